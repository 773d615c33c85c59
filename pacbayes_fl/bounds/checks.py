"""Checks of the inputs of bounds, and of the losses that they are measured by."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pacbayes_fl.bounds.losses import LOSSES, BoundedLoss
from pacbayes_fl.errors import AssumptionError, ShapeError

Number = Tensor | float
"""One number [] or one a client [K]."""

_ROUNDING = 1e-6


def checked(name: str, value: Number, low: float, high: float = math.inf, *, strict: bool = False) -> Tensor:
    """Convert a number of a bound to float64 and check its range.

    Args:
        name: for the error.
        value: one number [] or one a client [K].
        low: smallest value.
        high: largest value; infinity itself is refused.
        strict: whether the smallest value itself is refused.

    Returns:
        [] or [K]; what rounding of float32 has put beyond the ends is put back.

    Raises:
        AssumptionError: naming the argument, the first client that is wrong, and what came.
    """
    numbers = torch.as_tensor(value, dtype=torch.float64)
    slack = _ROUNDING * (high - low if high < math.inf else 1.0)
    below = numbers <= low if strict else numbers < low - slack
    wrong = below | (numbers > high + slack) | ~numbers.isfinite()
    if bool(wrong.any()):
        place = f" (client {int(wrong.flatten().nonzero()[0])})" if numbers.dim() else ""
        bounds = f"{'above' if strict else 'at least'} {low:g}" + (f" and at most {high:g}" if high < math.inf else "")
        raise AssumptionError(f"{name} must be finite, {bounds}, got {numbers[wrong].flatten()[0].item():g}{place}")
    return numbers if strict else numbers.clamp(low, high)


def whole(name: str, value: Number) -> Tensor:
    """Convert a count of a bound and check that it is a whole number above 0.

    Args:
        name: for the error.
        value: one count [] or one a client [K].

    Returns:
        [] or [K], float64.

    Raises:
        AssumptionError: when it is a truth value, below 1 or not a whole number.
    """
    counts = torch.as_tensor(value)
    numbers = counts.double()
    wrong = (numbers < 1) | ~numbers.isfinite() | (numbers != numbers.round()) | (counts.dtype == torch.bool)
    if bool(wrong.any()):
        place = f" (client {int(wrong.flatten().nonzero()[0])})" if wrong.dim() else ""
        got = value if isinstance(value, bool) else f"{numbers[wrong].flatten()[0].item():g}"
        raise AssumptionError(f"{name} must be at least 1 and a whole number, got {got}{place}")
    return numbers


def in_declared_range(loss: BoundedLoss, losses: Tensor, rows: Tensor) -> Tensor:
    """Check every value of a loss against the range that it declares: a bound of their mean holds for no other.

    The library's own losses cannot leave theirs, and are not looked at: reading a device at every draw takes its time.

    Args:
        loss: says its range.
        losses: its values [*]; NaN passes, and is left to whoever asked for them.
        rows: where they count, bool [*].

    Returns:
        [*], float64; what rounding of float32 has put beyond the ends is put back.

    Raises:
        ShapeError: when there is not one value for each row.
        AssumptionError: naming the loss, its class, its range and the first value outside.
    """
    values = losses.double()
    if type(loss) in LOSSES.values():
        return values
    own = f"the loss {loss.name!r} ({type(loss).__name__})"
    if values.shape != rows.shape:
        what = f"{own} must give a value for each row, {list(rows.shape)}, got {list(values.shape)}"
        raise ShapeError(what, hint="without averaging")
    slack = _ROUNDING * (loss.high - loss.low)
    wrong = rows & ((values < loss.low - slack) | (values > loss.high + slack))
    if bool(wrong.any()):
        what = f"every value of {own} must lie in the range that it declares, [{loss.low:g}, {loss.high:g}]"
        hint = "clip it, or declare a `low` and a `high` that no row and no prediction can pass"
        raise AssumptionError(f"{what}, got {values[wrong][0].item():g}", hint=hint)
    return values.clamp(loss.low, loss.high)
