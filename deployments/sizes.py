"""Memory sizes as people write them."""

import re

_UNITS = {"": 1, "B": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {unit + "B": size for unit, size in list(_UNITS.items()) if unit not in ("", "B")}
_UNITS |= {f"{unit}iB": 2 ** (10 * power) for power, unit in enumerate("KMGT", start=1)}
_UNITS |= {f"{unit}i": 2 ** (10 * power) for power, unit in enumerate("KMGT", start=1)}
_BY_LOWER = {unit.lower(): size for unit, size in _UNITS.items()}


def parse_size(value: str | int) -> int:
    """Bytes of `1GiB`, `512 MiB`, `20GB`, `1.5GiB` or a plain number of bytes.

    Raises:
        ValueError: not a size, or not positive.
    """
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", str(value))
    if match is None or match[2].lower() not in _BY_LOWER:
        raise ValueError(f"{value!r} is not a size: write a number and a unit, e.g. 1GiB, 512MiB or 20GB")
    size = int(float(match[1]) * _BY_LOWER[match[2].lower()])
    if size <= 0:
        raise ValueError(f"{value!r} is not a size: it must be above 0")
    return size


def format_size(size: int) -> str:
    """`1.0 GiB`, `512.0 MiB`, ..."""
    value, unit = float(size), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{size} B" if unit == "B" else f"{value:.1f} {unit}"
