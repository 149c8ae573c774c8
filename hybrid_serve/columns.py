"""Rows of cells as aligned lines."""

from collections.abc import Collection, Sequence


def aligned(titles: Sequence[str], rows: Sequence[Sequence[str]], numbers: Collection[str] = ()) -> list[str]:
    """The titles and the rows below them, columns as wide as they need; those named in `numbers` to the right."""
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    lines = []
    for row in [titles, *rows]:
        cells = [
            cell.rjust(width) if title in numbers else cell.ljust(width)
            for cell, width, title in zip(row, widths, titles, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def number(value: int | None) -> str:
    """`305,012`; `-` for none."""
    return "-" if value is None else f"{value:,}"
