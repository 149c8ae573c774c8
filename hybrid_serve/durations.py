"""Durations as people write them."""

import re

_SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_ONE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)")


def parse_duration(value: str | int | float) -> float:
    """Seconds of `5m`, `30s`, `1h`, `1h30m`, `500ms` or a plain number of seconds.

    Raises:
        ValueError: not a duration, or negative.
    """
    text = str(value).strip().lower()
    parts = [] if isinstance(value, bool) else _ONE.findall(text)
    whole = "".join(re.split(r"\s+", _ONE.sub("", text)))
    plain = any(not unit for _, unit in parts) and len(parts) > 1
    if not parts or whole or plain or any(unit not in _SECONDS for _, unit in parts):
        raise ValueError(f"{value!r} is not a duration: write a number and a unit, e.g. 30s, 5m, 1h or 1h30m")
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def format_duration(seconds: float) -> str:
    """`45 s`, `1.5 min`, `2 h`, ...: the largest unit that it is at least one of."""
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"
