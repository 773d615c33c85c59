"""Tables that fit the terminal: names give way, numbers never do."""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Collection, Sequence
from typing import Final

from pacbayes_fl.names import padded, printable, shortened, width

_LEAST: Final = 6  # columns that a name keeps


def room() -> int | None:
    """Count the columns that a table may take; None where it goes to a file or a pipe, which have no edge."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def number(value: float | None) -> str:
    """Write a number of a table in at most 10 columns; None and non-finite values as "-".

    Args:
        value: the number.

    Returns:
        Three decimals; digits and an exponent from 100,000 on, and below 5e-4, where these would all be 0.
    """
    if value is None or not math.isfinite(value):
        return "-"
    if value == 0 or 5e-4 <= abs(value) < 99999.9995:
        return f"{value:.3f}"
    text = f"{value:.3e}"
    return text if len(text) <= 10 else f"{value:.2e}"


def fitted(
    rows: Sequence[Sequence[str]], names: Collection[int], columns: int | None, right: Collection[int] = ()
) -> list[str]:
    """Align the cells of a table, and shorten names where it would be too wide.

    Args:
        rows: cells, as many in each row.
        names: positions of columns that may be shortened, the widest first and none below 6 columns.
        columns: of the terminal; None where there is no edge.
        right: positions of columns that end on the same column, as numbers do.

    Returns:
        A line a row; wider than the terminal only where the numbers alone are.
    """
    if not rows:
        return []
    cells = [[printable(cell) for cell in row] for row in rows]
    wide = [max(map(width, column)) for column in zip(*cells, strict=True)]
    gap = 2
    if columns is not None:
        if sum(wide) + gap * (len(wide) - 1) > columns:
            gap = 1
        excess = sum(wide) + gap * (len(wide) - 1) - columns
        while excess > 0 and (widest := max(names, key=lambda k: wide[k], default=None)) is not None:
            if wide[widest] <= _LEAST:
                break
            wide[widest] -= 1
            excess -= 1
    lines = []
    for row in cells:
        text = [shortened(cell, wide[k]) if k in names else cell for k, cell in enumerate(row)]
        line = [
            " " * (wide[k] - width(cell)) + cell if k in right else padded(cell, wide[k]) for k, cell in enumerate(text)
        ]
        lines.append((" " * gap).join(line).rstrip())
    return lines
