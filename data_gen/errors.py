"""The error class of the generators, and checks of options."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np

_LARGEST = 1e30  # so that squares and products of options are finite, and its inverse the smallest: none is 0


class DataGenError(ValueError):
    """A wrong option, an unusable weather file, or data that cannot be written or read."""


def fits(what: str, size: int, options: str) -> None:
    """Check that numbers have room in the machine's memory, before they are made.

    Args:
        what: takes the room.
        size: bytes.
        options: to lower, should it be too much.

    Raises:
        DataGenError: they would take more than half of it.
    """
    limit = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    if size > limit:
        took = f"{size / 1e9:.3g} GB of memory, and the limit is {limit / 1e9:.3g} GB, half of what there is"
        raise DataGenError(f"{what} would take {took}; lower {options}")


def whole(name: str, value: Any, least: int, most: int = 2**63 - 1) -> int:
    """Check an option that must be a whole number.

    Args:
        name: of the option.
        value: to check; True and False are refused.
        least: smallest value allowed.
        most: largest value allowed.

    Returns:
        The value.

    Raises:
        DataGenError: not a whole number, or out of range.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise DataGenError(f"{name} must be a whole number of at least {least}, is {value!r:.80}")
    if value > most:
        raise DataGenError(f"{name} must be a whole number of at most {most}, is {value!r:.80}")
    return int(value)


def number(name: str, value: Any, least: float = -_LARGEST, most: float = _LARGEST) -> float:
    """Check an option that must be a finite number.

    Args:
        name: of the option.
        value: to check; True and False are refused.
        least: smallest value allowed.
        most: largest value allowed.

    Returns:
        The value.

    Raises:
        DataGenError: not a finite number, or out of range.
    """
    size: Any = abs(value) if isinstance(value, int | float | np.number) and not isinstance(value, bool) else math.inf
    if not size < math.inf:
        raise DataGenError(f"{name} must be a finite number, is {value!r:.80}")
    if 0 < size < 1 / _LARGEST or not least <= value <= most:
        raise DataGenError(
            f"{name} must be 0 or of a size of 1e-30 or more, and lie in {least:g}..{most:g}, is {value!r:.80}"
        )
    return float(value)
