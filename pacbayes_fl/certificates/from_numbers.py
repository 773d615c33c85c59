"""Certificates from numbers alone, for the command `bound`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pacbayes_fl import bounds
from pacbayes_fl.bounds import (
    Bound,
    BoundedLoss,
    Certificate,
    LossRange,
    MonteCarlo,
    Premises,
    Provenance,
    UnboundedLoss,
    ZeroOne,
    to_record,
)
from pacbayes_fl.bounds.bound import STATED
from pacbayes_fl.bounds.premises import Predictor, Source
from pacbayes_fl.bounds.table import listing
from pacbayes_fl.errors import AssumptionError

__all__ = [
    "Certificate",
    "Numbers",
    "assumptions_text",
    "certificate",
    "formula_text",
    "listing",
    "rows_needed",
    "stem",
    "to_record",
]


@dataclass(frozen=True)
class Numbers:
    """Numbers and assumptions of a posterior, as stated by the user.

    Args:
        risk: empirical risk, in the unit of the loss.
        kl: KL divergence of the posterior from the prior, in nats.
        n: rows.
        delta: probability with which the bound may fail.
        beta: of bounds at a fixed beta, in 1 / unit of the loss.
        log_z: ln Z of an exact Gibbs posterior, in nats.
        log_ratio: ln dQ/dP at the one hypothesis that was drawn, in nats.
        tandem_risk: share of rows that two draws of the posterior both miss.
        variance: of the losses over the rows, averaged over the posterior, in squared units of the loss.
        variance_factor: of a sub-gamma loss, as stated, in squared units of the loss.
        scale: of a sub-gamma loss, as stated, in the unit of the loss.
        low: smallest value of the loss.
        high: its largest value.
        loss: "0-1", in [0, 1], whose majority vote can be bounded; "convex", whose averaged prediction can be;
            "unbounded", without a range; any other when not given.
        prior: where the prior came from; a certificate needs that it is said.
        epsilon: of a prior drawn with privacy, and of no other.
        prior_delta: d0 of a prior drawn with (epsilon, d0)-DP of clients; 0 when not given.
        independent: whether the rows are declared independent draws; a certificate needs it.
        predictor: whose risk is meant.
        draws: hypotheses behind an estimated risk; None where it is exact.
        draws_delta: share of delta for the estimate; a fifth of it when not given.
        tried: configurations among which the rows chose.
    """

    n: float
    delta: float
    risk: float | None = None
    kl: float | None = None
    beta: float | None = None
    log_z: float | None = None
    log_ratio: float | None = None
    tandem_risk: float | None = None
    variance: float | None = None
    variance_factor: float | None = None
    scale: float | None = None
    low: float = 0.0
    high: float = 1.0
    loss: Literal["0-1", "convex", "unbounded"] | None = None
    prior: Source = "unknown"
    epsilon: float | None = None
    prior_delta: float | None = None
    independent: bool = False
    predictor: Predictor = "Gibbs"
    draws: int | None = None
    draws_delta: float | None = None
    tried: int = 1


def certificate(name: str | Bound, numbers: Numbers) -> Certificate:
    """Compute a bound from numbers and the stated assumptions.

    Args:
        name: of a bound on a client (`bounds.BOUNDS`), a reference such as "mine.py:MY_BOUND", or its record.
        numbers: exactly those that the bound needs.

    Returns:
        The certificate.

    Raises:
        AssumptionError: when the bound is unknown, a number is missing or the bound has no use for it, or none can be
            formed.
    """
    bound, given, premises, estimate = _call(name, numbers)
    return bound.certify(given, numbers.delta, premises, estimate)


def rows_needed(name: str | Bound, numbers: Numbers, target: float) -> int:
    """Find how many rows a bound of at most a target takes, all other numbers the same.

    Args:
        name: as `certificate` takes it.
        numbers: those that the bound needs; n is of no use.
        target: in the unit of the loss.

    Returns:
        n.

    Raises:
        AssumptionError: as `certificate` does; or when the certificate would not be valid, or no number is enough.
    """
    bound, given, premises, estimate = _call(name, numbers)
    own = {key: value for key in bound.needs if key != "n" and (value := given[key]) is not None}
    return bounds.rows_needed(target, bound, delta=numbers.delta, premises=premises, monte_carlo=estimate, **own)


def stem(name: str | Bound) -> str:
    """Name a bound in a file's name.

    Args:
        name: of a bound, or its record.

    Returns:
        Its name.
    """
    return bounds.bound_named(name).name


def _call(name: str | Bound, numbers: Numbers) -> tuple[Bound, dict[str, float | None], Premises, MonteCarlo | None]:
    """Take numbers apart: the bound, what it needs, the premises, and the estimate."""
    known = [each.name for each in bounds.BOUNDS.values() if each.group is None]
    if isinstance(name, str) and name not in known and name not in bounds.OWN_BOUNDS:
        raise AssumptionError(f"bound must be one of {', '.join(known)}, got {name!r}")
    bound = bounds.bound_named(name)
    if bound.group is not None:
        raise AssumptionError(f"bound must be one on a client, and {bound.name!r} is on averages over clients")
    given = {key: getattr(numbers, key) for key in STATED}
    missing = [key for key in bound.needs if given.get(key) is None]
    idle = [key for key, value in given.items() if value is not None and key not in bound.needs]
    if numbers.draws is not None and not bound.estimable:
        idle.append("draws")
    elsewhere = sorted({*missing}.difference(STATED))  # of a bound of one's own too
    hint = f"{', '.join(elsewhere)} can be given in Python alone, to {bound.function.__name__}" if elsewhere else None
    for text, keys, advice in (("needs", missing, hint), ("has no use for", idle, None)):
        if keys:
            raise AssumptionError(f"the bound {bound.name!r} {text} {', '.join(keys)}", hint=advice)
    if numbers.draws is None and numbers.draws_delta is not None:
        raise AssumptionError(
            f"draws_delta is what an estimate from draws takes of delta, got {numbers.draws_delta:g} without draws",
            hint="say how many draws, or leave it out for an exact risk",
        )
    provenance = Provenance(numbers.prior, numbers.epsilon, numbers.prior_delta or 0.0)
    premises = Premises(
        provenance,
        numbers.independent,
        _loss(numbers),
        numbers.predictor,
        tried=numbers.tried,
        posterior=bound.posterior,
    )
    draws = None
    if numbers.draws is not None:
        draws = MonteCarlo(numbers.draws, 0.2 * numbers.delta if numbers.draws_delta is None else numbers.draws_delta)
    return bound, given, premises, draws


def assumptions_text(numbers: Numbers) -> str:
    """The unchecked assumptions of a certificate from numbers.

    Args:
        numbers: as given.

    Returns:
        A line for people.
    """
    rows = "the rows are independent draws" if numbers.independent else "the rows are not said to be independent"
    return f"taken on trust: {rows}; the prior is {numbers.prior}; {numbers.tried} configuration(s) tried on the rows"


def formula_text(name: str | Bound) -> str:
    """State the inequality of a bound, and its assumptions.

    Args:
        name: of a bound, or its record.

    Returns:
        A line for people.

    Raises:
        AssumptionError: when the bound is unknown.
    """
    bound = bounds.bound_named(name)
    return f"{bound.statement}; where {', '.join(bound.assumptions)}"


def _loss(numbers: Numbers) -> BoundedLoss:
    if numbers.loss == "0-1":
        if (numbers.low, numbers.high) != (0.0, 1.0):
            what = f"the 0-1 loss lies in [0, 1], got low = {numbers.low:g} and high = {numbers.high:g}"
            raise AssumptionError(what, hint="leave the range out")
        return ZeroOne()
    if numbers.loss == "unbounded":
        return UnboundedLoss("unbounded loss")
    if numbers.loss not in (None, "convex"):
        raise AssumptionError(f"loss must be 0-1, convex or unbounded, or left out, got {numbers.loss!r}")
    kind = "convex loss" if numbers.loss == "convex" else "loss"
    name = f"{kind} in [{numbers.low:g}, {numbers.high:g}]"
    return LossRange(name, numbers.low, numbers.high, convex=numbers.loss == "convex")
