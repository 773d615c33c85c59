"""Bounds as functions of their numbers: over grids, and how many rows a target takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from types import MappingProxyType
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from pacbayes_fl.bounds.bound import Bound
from pacbayes_fl.bounds.certificate import Certificate, MonteCarlo
from pacbayes_fl.bounds.checks import as_numbers, checked
from pacbayes_fl.bounds.holdout import whole_errors
from pacbayes_fl.bounds.premises import Premises
from pacbayes_fl.bounds.table import DEFAULT, bound_named
from pacbayes_fl.errors import AssumptionError, shown

Values = float | Sequence[float] | Literal["rows", "root"]
"""A number, several, or of beta the number of rows or its square root."""

_MOST = 2**40  # rows, about 10^12
_BLOCK = 2**16  # of them that are looked at in one go


class Sweep(NamedTuple):
    """A bound on a grid.

    Args:
        axes: the numbers that were varied, each with its values in order.
        certificate: of all points, [product of the axes], the last axis the fastest.
    """

    axes: Mapping[str, tuple[float, ...]]
    certificate: Certificate

    @property
    def values(self) -> Tensor:
        """The bound at every point, with one dimension for each axis [*], in the unit of the loss."""
        return self.certificate.value.reshape([len(axis) for axis in self.axes.values()])

    def rows(self) -> list[dict[str, float]]:
        """Give every point as the numbers that were varied, and "bound"."""
        bounds = self.certificate.value.flatten().tolist()
        points = product(*self.axes.values())
        return [{**dict(zip(self.axes, at, strict=True)), "bound": to} for at, to in zip(points, bounds, strict=True)]


def sweep(
    bound: str | Bound,
    *,
    delta: float | Sequence[float],
    premises: Premises,
    monte_carlo: MonteCarlo | None = None,
    **numbers: Values,
) -> Sweep:
    """Compute a bound on a client at every combination of the values given.

    Args:
        bound: a name of `BOUNDS`, a reference, or a record.
        delta: probability with which it may fail, one or several.
        premises: its assumptions.
        monte_carlo: how the risk was estimated, if it was.
        **numbers: those that the bound needs, each one or several; beta may be "rows" or "root", of the rows.

    Returns:
        The bound on the grid.

    Raises:
        AssumptionError: when the bound is on averages, has no use for a number, or one of them is out of range.

    Example:
        >>> from pacbayes_fl.bounds import Premises, Provenance, sweep
        >>> fine = Premises(Provenance("split"), independent=True)
        >>> table = sweep("seeger", risk=0.03, kl=[50.0, 500.0], n=[1e3, 1e5], delta=0.025, premises=fine)
        >>> [[round(value, 4) for value in row] for row in table.values.tolist()]
        [[0.1253, 0.0363], [0.4721, 0.0505]]
    """
    record = _of_clients(bound)
    given: dict[str, Values] = {**numbers, "delta": delta}
    if idle := [name for name in numbers if name not in record.needs]:
        raise AssumptionError(f"the bound {record.name!r} has no use for {', '.join(idle)}")
    axes = {
        name: _axis(name, each)
        for name, each in given.items()
        if isinstance(each, Iterable) and not isinstance(each, str) and getattr(each, "ndim", 1) > 0
    }
    if empty := [name for name, values in axes.items() if not values]:
        raise AssumptionError(f"{', '.join(empty)} must have a value at least")
    points = list(product(*axes.values()))
    columns = dict(zip(axes, torch.tensor(points, dtype=torch.float64).unbind(1), strict=True))
    at = {name: columns.get(name, each) for name, each in given.items()}
    return Sweep(MappingProxyType(axes), _certified(record, at, premises, monte_carlo, len(points)))


def rows_needed(
    target: float,
    bound: str | Bound = DEFAULT,
    *,
    delta: float,
    premises: Premises,
    monte_carlo: MonteCarlo | None = None,
    **numbers: float | Literal["rows", "root"],
) -> int:
    """Find the least number of rows at which a bound is at most a target, were all its other numbers the same.

    min {n : bound(n) <= target} among numbers of rows at which it is defined and valid, by bisection: bounds fall with
    n, but for a prior that was drawn privately from all of these rows, whose cost grows with them, and in the end for
    estimates of `anytime`. A bound that counts errors is valid where risk times n is a whole number of them.

    Args:
        target: in the unit of the loss.
        bound: a name of `BOUNDS`, a reference, or a record.
        delta: probability with which it may fail.
        premises: its assumptions.
        monte_carlo: how the risk was estimated, if it was.
        **numbers: those that the bound needs beside n; beta may be "rows" or "root".

    Returns:
        n, of which the certificate is valid.

    Raises:
        AssumptionError: when no number of rows is enough, saying what 10^12 of them give; when there would be no
            certificate however many there are, with the bound's reasons; when the bound does not fall with them, or has
            no use for a number.

    Example:
        >>> from pacbayes_fl.bounds import Premises, Provenance, rows_needed
        >>> rows_needed(0.15, risk=0.09, kl=1.4, delta=0.05, premises=Premises(Provenance("split"), independent=True))
        481
    """
    record = _of_clients(bound)
    checked("target", target, premises.loss.low, premises.loss.high)
    if idle := [name for name in numbers if name == "n" or name not in record.needs]:
        raise AssumptionError(f"the rows that the bound {record.name!r} needs do not depend on {', '.join(idle)}")
    if premises.prior.source == "row-level DP" and premises.prior.rows is None:
        what = "a prior that was drawn privately from all rows of the bound costs the more, the more there are"
        raise AssumptionError(what, hint="Provenance(rows=...) says how many the mechanism saw; or `sweep` over n")

    if broken := premises.broken():
        raise AssumptionError(f"with so many rows there would be no certificate: {'; '.join(broken)}")

    def at(n: int) -> Certificate:
        return _certified(record, {**numbers, "n": float(n), "delta": delta}, premises, monte_carlo, 1)

    # Numbers that no bound takes are refused here, and what is refused below is too few rows.
    end = at(_MOST).value.item()

    def enough(n: int) -> bool:
        return _value(at, n) <= target

    low, high = 0, 1
    while not enough(high):
        if high >= _MOST:
            low, high = _lowest(lambda n: _value(at, n))
            if not enough(high):
                what = f"with 10^12 rows the bound {record.name!r} is {end:.6g}"
                least = f", and its least value {_value(at, high):.6g} with {high}" if high < _MOST // 2 else ""
                hint = "a larger target, or less risk"
                raise AssumptionError(f"no number of rows gives {target:g}: {what}{least}", hint=hint)
            break
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    if record.counts:
        risk = as_numbers("risk", numbers["risk"])
        high = _whole_from(high, risk)
        while not enough(high):  # by a rounding of the errors
            high = _whole_from(high + 1, risk)
    if reasons := at(high).reasons:
        raise AssumptionError(f"with {high} rows there would be no certificate: {'; '.join(reasons)}")
    return high


def _value(at: Callable[[int], Certificate], n: int) -> float:
    """Value of a bound, infinite where there are too few rows for it."""
    try:
        return at(n).value.item()
    except AssumptionError:
        return math.inf


def _lowest(value: Callable[[int], float]) -> tuple[int, int]:
    """Find where a bound that falls and then rises is least, and a number of rows below that; all give no more."""
    best = min((2**k for k in range(_MOST.bit_length())), key=value)
    start, low, high = best // 2, best // 2, min(2 * best, _MOST)
    while high - low > 2:
        third = (high - low) // 3
        left, right = low + third, high - third
        low, high = (low, right) if value(left) <= value(right) else (left, high)
    return start, min(range(max(low, 1), high + 1), key=value)


def _whole_from(n: int, risk: Tensor) -> int:
    """Least number of rows, n or more, of which the share of errors is a whole number; of very many rows any is."""
    while True:
        rows = torch.arange(n, n + _BLOCK, dtype=torch.float64)
        if bool((fine := whole_errors(risk, rows)).any()):
            return int(rows[fine.int().argmax()])
        n += _BLOCK


def _axis(name: str, values: Iterable[float]) -> tuple[float, ...]:
    try:
        return tuple(map(float, values))
    except (TypeError, ValueError) as error:
        raise AssumptionError(f"{name} must be numbers, got {shown(values)}") from error


def _of_clients(bound: str | Bound) -> Bound:
    record = bound_named(bound)
    if record.average != "client" or "n" not in record.needs:
        raise AssumptionError(f"a sweep is of a bound on a client with rows n, and {record.name!r} is none")
    return record


def _certified(
    record: Bound, given: Mapping[str, Values | Tensor], premises: Premises, estimate: MonteCarlo | None, points: int
) -> Certificate:
    numbers = {name: value for name, value in given.items() if name != "delta"}
    if isinstance(beta := numbers.get("beta"), str):
        if beta not in ("rows", "root"):
            raise AssumptionError(f"beta must be a number, 'rows' or 'root', got {beta!r}")
        n = as_numbers("n", numbers["n"])
        numbers["beta"] = n if beta == "rows" else n.sqrt()
    whole = {**numbers, "delta": given["delta"]}.items()
    columns = {name: as_numbers(name, value).expand(points) for name, value in whole}
    delta = columns.pop("delta")
    return record.certify(columns, delta, premises, estimate)
