"""Checks of the inputs of bounds, and of the losses that they are measured by."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from numbers import Real
from types import MappingProxyType
from typing import Final

import numpy as np
import torch
from torch import Tensor

from pacbayes_fl.bounds.losses import LOSSES, BoundedLoss, ZeroOne
from pacbayes_fl.bounds.normal_nll import UNBOUNDED
from pacbayes_fl.errors import AssumptionError, ShapeError, shown

Number = Tensor | float
"""One number [] or one a client [K]."""

ROUNDING: Final = 1e-6
"""Of a range, by which rounding may move a number beyond its ends."""
_OF_MEANS: Final = 1e-5  # of the range: what a mean in float32 of many losses may be off by
NO_INNER: Final[Mapping[str, int]] = MappingProxyType({})


def as_numbers(name: str, value: object) -> Tensor:
    """Convert a number of a bound to float64, or say which argument is none.

    Args:
        name: for the error.
        value: one number, or a tensor, an array or a list of one a client [K].

    Returns:
        [] or [K], with further dimensions where a client has several.

    Raises:
        AssumptionError: when it is no number, such as a text or None.
    """
    try:
        return torch.as_tensor(value, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        what = f"{name} must be one number, or a tensor of one a client [K], got {shown(value)}"
        raise AssumptionError(what, hint=f"{name}=torch.tensor([...]) for several") from error


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
    numbers = as_numbers(name, value)
    slack = ROUNDING * (high - low if high < math.inf else 1.0)
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
    if isinstance(value, int) and not isinstance(value, bool):
        value = float(value)  # of any size, where a tensor has 64 bits
    numbers = as_numbers(name, value)  # at once: by way of float32 a count above 2^24 is rounded
    truth = torch.as_tensor(value).dtype == torch.bool
    wrong = (numbers < 1) | ~numbers.isfinite() | (numbers != numbers.round()) | truth
    if bool(wrong.any()):
        place = f" (client {int(wrong.flatten().nonzero()[0])})" if wrong.dim() else ""
        got = value if isinstance(value, bool) else f"{numbers[wrong].flatten()[0].item():g}"
        raise AssumptionError(f"{name} must be at least 1 and a whole number, got {got}{place}")
    return numbers


def probability(name: str, value: object) -> Number:
    """Take a probability as what can be subtracted from another one and written down; its range is not checked.

    Args:
        name: for the error.
        value: a number, of numpy too, or a tensor or an array of one a client [K].

    Returns:
        A float, or a tensor [] or [K].

    Raises:
        AssumptionError: when it is no number.
    """
    if isinstance(value, Tensor) and not value.is_complex() and value.dtype != torch.bool:
        return value.double()  # shares are subtracted
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiu":
        return torch.from_numpy(value.astype(np.float64)) if value.ndim else float(value)
    if isinstance(value, Real):
        return float(value)
    what = f"{name} must be one number, or a tensor of one a client [K], got {value!r}"
    raise AssumptionError(what, hint=f"{name}=torch.tensor([...]) for several")


def require_alike(numbers: Mapping[str, Number], inner: Mapping[str, int] = NO_INNER) -> torch.Size:
    """Refuse numbers that are neither one for all nor one a client: of two shapes nobody knows which client is whose.

    Args:
        numbers: by name, each [] or of the common shape [*K], with its further dimensions behind that.
        inner: how many further dimensions a number has; none where it is not named.

    Returns:
        The common shape; [] where all have none.

    Raises:
        ShapeError: naming the first number of another shape than one before it, and both.
    """
    shape, like = torch.Size(), ""
    for name, value in numbers.items():
        if not isinstance(value, Tensor) or value.dim() <= inner.get(name, 0):
            continue
        own = value.shape[: value.dim() - inner.get(name, 0)]
        if like and own != shape:
            what = f"{name} must be one number [] or one a client, {list(shape)} as {like} is, got {list(own)}"
            raise ShapeError(what, hint="one number counts for every client; give all others by client, in one order")
        if not like:
            shape, like = own, name
    return shape


def require_mean(name: str, given: Tensor, draws: Tensor, largest: float) -> None:
    """Refuse a number that is not the mean of the draws: the bound would be by these alone.

    Args:
        name: for the error.
        given: the number [] or [K].
        draws: [M] or [K, M].
        largest: by a share of which rounding may move it; infinite where there is no range.

    Raises:
        AssumptionError: naming the argument and the first client that is wrong.
    """
    expected, number = torch.broadcast_tensors(draws.mean(-1), given.detach().to(draws.device))
    wrong = (number - expected).abs() > _OF_MEANS * (largest if math.isfinite(largest) else 1.0 + expected.abs())
    if bool(wrong.any()):
        place = f" (client {int(wrong.nonzero()[0])})" if wrong.dim() else ""
        got = f"{expected[wrong][0].item():g}, got {number[wrong][0].item():g}{place}"
        what = f"{name} must be the mean of its {draws.shape[-1]} draws, {got}"
        raise AssumptionError(what, hint=f"give the mean over the draws of `monte_carlo`, or leave these {name}s out")


def counts_errors(loss: object) -> bool:
    """Whether a loss is the 0-1 loss itself, whose sum is a number of errors: a subclass may have costs of its own.

    Args:
        loss: any.

    Returns:
        Whether it is.
    """
    return type(loss) is ZeroOne


def of_library(loss: object) -> bool:
    """Whether a loss is one of `LOSSES` or `UNBOUNDED`, which keep what they say of themselves: a subclass may not.

    Args:
        loss: any.

    Returns:
        Whether it is.
    """
    return type(loss) in (*LOSSES.values(), *UNBOUNDED.values())


def row_by_row(loss: BoundedLoss, of_rows: Callable[..., Tensor], rows: Tensor, *given: Tensor) -> Tensor:
    """Take the values of a loss, checked to be in its range and to be each of its row alone.

    Bounds are of means of independent losses, which those are not that are scaled, ranked or trimmed by the others of a
    call. But for the library's own losses, the rows of the least and the largest value are called again, each by
    itself, and so are the lower and the upper half of the values, whose means and quantiles are others.

    Args:
        loss: says its range.
        of_rows: the loss itself, or its average over Gaussian predictions.
        rows: where values count, bool [*].
        *given: its arguments, each [*] or with further dimensions behind; a loss of one's own is given copies.

    Returns:
        [*], float64.

    Raises:
        ShapeError: when there is not one value for each row.
        AssumptionError: when a value is outside of the range, or another one without the other rows.
    """
    if of_library(loss):
        return in_declared_range(loss, of_rows(*given), rows)
    values = in_declared_range(loss, of_rows(*(each.clone() for each in given)), rows)
    counts = (rows & ~values.isnan()).flatten().nonzero().flatten()
    if not len(counts):
        return values
    flat, each_row = values.flatten(), [each.flatten(0, rows.dim() - 1) for each in given]
    rising = counts[flat[counts].argsort(stable=True)]
    halves = (each.sort().values for each in rising.tensor_split(2) if len(each))
    for at in (rising[:1], rising[-1:], *halves):  # the ends each alone: two rows might be scaled by one another
        some = in_declared_range(loss, of_rows(*(each[at] for each in each_row)), at == at)
        far = (some - flat[at]).abs() > ROUNDING * (loss.high - loss.low)
        if bool((far | some.isnan()).any()):
            one, together = (each[far | some.isnan()][0].item() for each in (some, flat[at]))
            fewer = "alone" if len(at) == 1 else f"among {len(at)} of them"
            what = f"the loss {loss.name!r} ({type(loss).__name__}) of a row must not depend on the others"
            what = f"{what}, got {together:g} among {int(rows.sum())} rows and {one:g} {fewer}"
            raise AssumptionError(what, hint="take each value from its prediction and its target: no scale, no rank")
    return values


def in_declared_range(loss: BoundedLoss, losses: Tensor, rows: Tensor) -> Tensor:
    """Check every value of a loss against the range that it declares: a bound of their mean holds for no other.

    Values of the library's own losses cannot leave theirs, and are not looked at: reading a device at every draw takes
    its time.

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
    own = f"the loss {loss.name!r} ({type(loss).__name__})"
    if not isinstance(losses, Tensor):
        what = f"{own} must give a tensor with a value for each row, {list(rows.shape)}, got {shown(losses)}"
        raise ShapeError(what, hint="torch.as_tensor(...) of an array")
    values = losses.double()
    if values.shape != rows.shape:  # of any loss where predictions have a dimension more
        what = f"{own} must give a value for each row, {list(rows.shape)}, got {list(values.shape)}"
        raise ShapeError(what, hint="without averaging, and of predictions without further dimensions")
    if of_library(loss):
        return values
    slack = ROUNDING * (loss.high - loss.low)
    wrong = rows & ((values < loss.low - slack) | (values > loss.high + slack))
    if bool(wrong.any()):
        what = f"every value of {own} must lie in the range that it declares, [{loss.low:g}, {loss.high:g}]"
        hint = "clip it, or declare a `low` and a `high` that no row and no prediction can pass"
        raise AssumptionError(f"{what}, got {values[wrong][0].item():g}", hint=hint)
    return values.clamp(loss.low, loss.high)
