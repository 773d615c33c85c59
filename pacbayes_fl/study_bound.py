"""A certificate from numbers alone: what the command `bound` does."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pacbayes_fl import bounds
from pacbayes_fl.bounds import Certificate, LossRange, MonteCarlo, Premises, Provenance, to_record
from pacbayes_fl.bounds.certificate import Predictor, Source
from pacbayes_fl.errors import AssumptionError
from pacbayes_fl.study_certify_request import AVERAGES

__all__ = ["Numbers", "certificate", "listing", "to_record", "trusted"]


@dataclass(frozen=True)
class Numbers:
    """What somebody knows of a posterior, and vouches for.

    Args:
        risk: empirical risk, in the unit of the loss.
        kl: KL divergence of the posterior from the prior, in nats.
        n: rows.
        delta: probability with which the bound may fail.
        beta: of bounds at a fixed beta, in 1 / unit of the loss.
        log_z: ln Z of an exact Gibbs posterior, in nats.
        low: smallest value of the loss.
        high: its largest value.
        prior: where the prior came from.
        epsilon: of a prior drawn with pure eps-DP, and of no other.
        independent: whether the rows are independent draws.
        predictor: whose risk is meant.
        draws: hypotheses behind an estimated risk; None where it is exact.
        draws_delta: what of delta the estimate may fail with; a fifth of it when not given.
        tried: configurations among which the rows chose.
    """

    n: float
    delta: float
    risk: float | None = None
    kl: float | None = None
    beta: float | None = None
    log_z: float | None = None
    low: float = 0.0
    high: float = 1.0
    prior: Source = "data-free"
    epsilon: float | None = None
    independent: bool = True
    predictor: Predictor = "Gibbs"
    draws: int | None = None
    draws_delta: float | None = None
    tried: int = 1


def certificate(name: str, numbers: Numbers) -> Certificate:
    """Compute a bound from numbers; nothing is known of them but what is said.

    Args:
        name: a key of `bounds.BOUNDS`.
        numbers: with those that the bound needs, and no others.

    Returns:
        The certificate.

    Raises:
        AssumptionError: when the bound is unknown, a number is missing or means nothing to it, or none can be formed.
    """
    if name not in bounds.BOUNDS:
        raise AssumptionError(f"bound must be one of {', '.join(bounds.BOUNDS)}, got {name!r}")
    apply = bounds.BOUNDS[name]
    known = inspect.signature(apply).parameters
    given = {key: getattr(numbers, key) for key in ("risk", "kl", "n", "beta", "log_z", "delta")}
    missing = [key for key, value in given.items() if value is None and key in known]
    idle = [key for key, value in given.items() if value is not None and key not in known]
    if numbers.draws is not None and "monte_carlo" not in known:
        idle.append("draws")
    for words, keys in (("needs", missing), ("has no use for", idle)):
        if keys:
            raise AssumptionError(f"the bound {name!r} {words} {', '.join(keys)}")
    if numbers.draws is None and numbers.draws_delta is not None:
        raise AssumptionError(
            f"draws_delta is what an estimate from draws takes of delta, got {numbers.draws_delta:g} without draws",
            hint="say how many draws, or leave it out for an exact risk",
        )
    posterior: Literal["any", "exact Gibbs"] = "exact Gibbs" if name == "gibbs" else "any"
    loss = LossRange(f"loss in [{numbers.low:g}, {numbers.high:g}]", numbers.low, numbers.high)
    provenance = Provenance(numbers.prior, numbers.epsilon)
    premises = Premises(
        provenance, numbers.independent, loss, numbers.predictor, tried=numbers.tried, posterior=posterior
    )
    more: Mapping[str, Any] = {}
    if numbers.draws is not None:
        share = 0.2 * numbers.delta if numbers.draws_delta is None else numbers.draws_delta
        more = {"monte_carlo": MonteCarlo(numbers.draws, share)}
    values = {key: value for key, value in given.items() if value is not None}
    return apply(**values, premises=premises, **more)


def trusted(numbers: Numbers) -> str:
    """Say what a certificate from numbers takes on trust.

    Args:
        numbers: as given.

    Returns:
        A line for people.
    """
    rows = "the rows are independent draws" if numbers.independent else "nothing of the rows"
    return f"taken on trust: {rows}; the prior is {numbers.prior}; {numbers.tried} configuration(s) tried on the rows"


def listing() -> list[tuple[str, str]]:
    """List the bounds with a line on each: on clients, then on averages over them, with who gives them."""
    asked = dict.fromkeys(bounds.BOUNDS, "")
    asked |= {name: f" [Python: bounds.{apply.__name__}]" for name, apply in bounds.SERVER_BOUNDS.items()}
    asked |= dict.fromkeys(AVERAGES, " [certify]")
    every = {**bounds.BOUNDS, **bounds.SERVER_BOUNDS}
    return [(name, (inspect.getdoc(apply) or "").splitlines()[0] + asked[name]) for name, apply in every.items()]
