"""The error class of the generators, and checks of options."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


class DataGenError(ValueError):
    """A wrong option, an unusable weather file, or data that cannot be written or read."""


def whole(name: str, value: Any, least: int, most: int | None = None) -> int:
    """Check an option that must be a whole number.

    Args:
        name: of the option.
        value: to check; True and False are refused.
        least: smallest value allowed.
        most: largest value allowed, or None.

    Returns:
        The value.

    Raises:
        DataGenError: not a whole number, or out of range.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise DataGenError(f"{name} must be a whole number of at least {least}, is {value!r}")
    if most is not None and value > most:
        raise DataGenError(f"{name} must be a whole number of at most {most}, is {value!r}")
    return int(value)


def number(name: str, value: Any, least: float = -math.inf, most: float = math.inf) -> float:
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
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not math.isfinite(value):
        raise DataGenError(f"{name} must be a finite number, is {value!r}")
    if not least <= value <= most:
        raise DataGenError(f"{name} must lie in {least:g}..{most:g}, is {value!r}")
    return float(value)
