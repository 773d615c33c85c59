"""A certificate: a bound on a true risk, with all that it rests on.

A number can always be computed from numbers; whether it bounds anything depends on where the prior came from, how the
rows were drawn and what was chosen by looking at them. A certificate carries these premises, and one whose premises are
broken or unknown prints the reasons in place of its value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, get_args

import torch
from torch import Tensor

from pacbayes_fl.bounds.losses import BoundedLoss, ZeroOne, require_bounded
from pacbayes_fl.errors import AssumptionError
from pacbayes_fl.results import SIMULATED_EPSILON
from pacbayes_fl.results_certificates import rounded_up

Number = Tensor | float
"""One number [] or one a client [K]."""
Terms = Mapping[str, Tensor]
Formula = Callable[[Terms], Mapping[str, Tensor]]
"""Turns terms into the named parts that sum to the bound."""
Source = Literal[
    "data-free",
    "disjoint clients",
    "other clients",
    "split",
    "row-level DP",
    "client-level DP",
    "saw the rows",
    "unknown",
]
Predictor = Literal["Gibbs", "majority vote", "averaged prediction", "point estimate"]
Posterior = Literal["any", "exact Gibbs", "no worse than the prior"]
Average = Literal["client", "size-weighted clients", "clients on average", "clients by beta", "new client on average"]

_ROUNDING = 1e-6
_OVER = MappingProxyType(
    {
        "client": "each client on its own",
        "size-weighted clients": "averaged over clients by their rows",
        "clients on average": "averaged over clients",
        "clients by beta": "averaged over clients by their beta",
        "new client on average": "of a new client, averaged over such clients and their rows",
    }
)
_PRIVATE = ("row-level DP", "client-level DP")
_OF_ONE = MappingProxyType(
    {
        "other clients": "priors that were trained on other clients of an average have seen rows of its bound (source"
        " 'disjoint clients' where no client of the average trained them)",
        **dict.fromkeys(_PRIVATE, "privacy covers the rows of one client, and an average has those of several"),
    }
)
_NO_PRIOR = MappingProxyType(
    {
        "saw the rows": "the prior saw the rows of the bound (split them, or leave the client out of its training)",
        "unknown": "nobody said where the prior came from (give its provenance: prior)",
    }
)


@dataclass(frozen=True)
class Provenance:
    """Where a prior came from, as seen from the rows of the bound.

    Args:
        source: "data-free": fixed before any rows, or public; "disjoint clients": trained on clients of which no bound
            speaks, as for clients that join later; "other clients": trained without this client, possibly on others
            with bounds; "split": trained on other rows than those of the bound; "row-level DP" and "client-level DP":
            drawn by a mechanism that is differentially private in the client's rows, when one of them or when all of
            them are replaced; "saw the rows": none of these; "unknown".
        epsilon: of one draw from the mechanism, for the two kinds of privacy alone.
        delta: d0 of (epsilon, d0)-DP, for "client-level DP" alone: row-level privacy must be pure.
        draws: how many priors were drawn from the mechanism: they cost epsilon and d0 each.
        rows: rows of the client that a row-level mechanism saw, m_i; all rows of the bound when not given.
        simulated: whether its noise came from a seed, fixed before any rows: a bound holds, but nothing is hidden.
    """

    source: Source = "unknown"
    epsilon: float | None = None
    delta: float = 0.0
    draws: int = 1
    rows: int | None = None
    simulated: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        if self.source not in get_args(Source):
            raise AssumptionError(f"source must be one of {', '.join(get_args(Source))}, got {self.source!r}")
        if not self.private:
            for name, value in (("epsilon", self.epsilon), ("delta", self.delta or None)):
                if value is not None:
                    raise AssumptionError(
                        f"{name} is of a private prior, got {value:g} with a prior of source {self.source!r}",
                        hint="the source 'client-level DP' or 'row-level DP', or neither epsilon nor delta",
                    )
            return
        if self.epsilon is None or not (0 <= self.epsilon < math.inf):
            raise AssumptionError(
                f"epsilon of a private prior must be finite and at least 0, got {self.epsilon}",
                hint="a prior whose privacy is unknown has source='saw the rows'",
            )
        if not 0 <= self.delta < 1:
            raise AssumptionError(f"delta of a private prior must be at least 0 and below 1, got {self.delta}")
        whole("draws", self.draws)
        if self.rows is not None:
            whole("rows", self.rows)

    @property
    def private(self) -> bool:
        """Whether the prior was drawn with differential privacy from the rows of the bound."""
        return self.source in _PRIVATE

    def __str__(self) -> str:
        if not self.private:
            return self.source
        delta = f" and delta {rounded_up(self.delta)}" if self.delta else ""
        name = SIMULATED_EPSILON if self.simulated else "epsilon"
        return f"{self.source} with {name} {self.epsilon:g}{delta}" + (f", {self.draws} draws" * (self.draws > 1))


@dataclass(frozen=True)
class Premises:
    """What a bound rests on and cannot see in its numbers.

    What is not said of the prior, the rows, the posterior and the clients counts as broken. `tried` is not like that:
    its 1 claims that nothing was chosen by the rows of the bound.

    Args:
        prior: where the prior came from.
        independent: whether the rows are declared to be independent draws of the client's distribution, and clients
            to be independent of each other: not so for a time series.
        loss: the loss whose risk is meant.
        predictor: what predicts: "Gibbs" draws a hypothesis for every prediction; "majority vote" costs a factor 2;
            "averaged prediction" needs a convex loss; no bound here speaks of a "point estimate".
        average: over what; "client" is each on its own. "size-weighted clients": over the pooled rows of clients that
            need not be alike, with one posterior for all or one a client: the tuple of them is then the posterior,
            that of their priors the prior, and the divergences add up (see `pooled`). The other averages are those of
            server-level bounds, which set them themselves. No prior of an average may have seen any row of it: one
            that was trained on other clients of a pool has, and with such priors a pooled bound at delta = 0.05 can
            fail half of the time. "disjoint clients" and a "split" of all clients' rows have not.
        tried: number of configurations (priors, beta, settings) among which the rows of the bound chose: delta is
            shared between them. 1, the default, claims that there was no choice; None when they were not counted.
        posterior: "exact Gibbs" where it is exactly that of the same loss, beta and rows: bounds by ln Z need it. "no
            worse than the prior" where L^(Q) + KL(Q || P) / beta <= L^(P) for every prior, as when Q gives way to the
            prior otherwise: then this free energy stays in the loss's range, which bounds on new clients and estimates
            by draws of priors need.
        drawn_clients: whether clients, seen and new, are declared to be independent draws of one distribution of
            clients and their numbers of rows: what bounds on new clients need.
    """

    prior: Provenance = field(default_factory=Provenance)
    independent: bool = False
    loss: BoundedLoss = field(default_factory=ZeroOne)
    predictor: Predictor = "Gibbs"
    average: Average = "client"
    tried: int | None = 1
    posterior: Posterior = "any"
    drawn_clients: bool = False

    def __post_init__(self) -> None:
        """Refuse an unbounded loss and what cannot be."""
        require_bounded(self.loss)
        for name, kind in (("predictor", Predictor), ("average", Average), ("posterior", Posterior)):
            value = getattr(self, name)
            if value not in get_args(kind):
                raise AssumptionError(f"{name} must be one of {', '.join(get_args(kind))}, got {value!r}")
        if self.tried is not None:
            whole("tried", self.tried)

    @property
    def risk(self) -> str:
        """Which risk is bounded: of which loss and predictor, averaged over what."""
        return f"{self.loss.name} of the {self.predictor} predictor, {_OVER[self.average]}"

    @property
    def factor(self) -> float:
        """What the predictor costs on top of the Gibbs predictor: a vote that errs has half of its votes wrong."""
        return 2.0 if self.predictor == "majority vote" else 1.0

    def broken(self) -> tuple[str, ...]:
        """List the premises that do not hold, each as a reason."""
        reasons = []
        if self.prior.source in _NO_PRIOR:
            reasons.append(_NO_PRIOR[self.prior.source])
        if self.prior.source == "row-level DP" and self.prior.delta:
            reasons.append("Theorem 3.2 needs pure privacy of rows: only that of clients may have a delta")
        if self.average != "client" and self.prior.source in _OF_ONE:
            reasons.append(_OF_ONE[self.prior.source])
        if not self.independent:
            reasons.append("the rows were not declared independent draws of the client's distribution (independent)")
        if self.tried is None:
            reasons.append("beta, the prior or a setting was chosen on the rows of the bound, uncounted (give tried)")
        if self.predictor == "majority vote" and not isinstance(self.loss, ZeroOne):
            reasons.append(f"a majority vote is bounded for the 0-1 loss only, not for {self.loss.name}")
        if self.predictor == "averaged prediction" and not self.loss.convex:
            reasons.append(f"averaged predictions are bounded for a convex loss only, and {self.loss.name} is none")
        if self.predictor == "point estimate":
            reasons.append("the bound is on draws from the posterior, not on a point estimate")
        return tuple(reasons)


@dataclass(frozen=True)
class MonteCarlo:
    """A number that was estimated by independent draws from the posterior, each evaluated on all rows.

    It is an empirical risk, or, for draws of priors from a hyper-posterior, an average of clients' free energies.

    Args:
        draws: number of draws, M.
        delta: probability with which the estimate may mislead, taken from the certificate's delta, [] or [K].
    """

    draws: int
    delta: Number

    def __post_init__(self) -> None:
        """Refuse no draws; delta is checked with the certificate's."""
        whole("draws", self.draws)


@dataclass(frozen=True, eq=False, repr=False)
class Certificate:
    """A bound on a true risk that holds with probability at least 1 - delta, of each of K clients or of an average.

    Args:
        theorem: which bound.
        value: the bound [] or [K], in the unit of the loss; larger than its range where the bound says nothing.
        delta: probability with which it may fail, [] or [K].
        delta_split: what delta was spent on, each [] or [K].
        terms: the numbers that the formula is made of, each [] or [K], also where the bound is on an average.
        formula: turns the terms into the parts that sum to the bound.
        premises: what it rests on.
        reasons: why it is no certificate; empty for one that is.
    """

    theorem: str
    value: Tensor
    delta: Number
    delta_split: Mapping[str, Number]
    terms: Terms
    formula: Formula
    premises: Premises
    reasons: tuple[str, ...]

    @property
    def valid(self) -> bool:
        """Whether every premise holds."""
        return not self.reasons

    @property
    def vacuous(self) -> Tensor:
        """Where the bound says no more than the loss's range: bool [] or [K]."""
        return self.value >= self.premises.loss.high

    @property
    def risk(self) -> str:
        """Which risk is bounded."""
        return self.premises.risk

    @property
    def prior(self) -> Provenance:
        """Where the prior came from."""
        return self.premises.prior

    def parts(self) -> Mapping[str, Tensor]:
        """Take the value apart: named parts, each [] or [K], that sum to it; one part where it is no sum."""
        return {name: self.terms["factor"] * part for name, part in self.formula(self.terms).items()}

    def recompute(self) -> Tensor:
        """Rebuild the value [] or [K] from the terms alone."""
        return _total(self.parts())

    def __str__(self) -> str:
        if self.reasons:
            return f"{self.theorem}: no certificate: {'; '.join(self.reasons)}"
        low, high = (rounded_up(value.item()) for value in (self.value.min(), self.value.max()))
        spread = low if self.value.numel() == 1 else f"{low} to {high} for {self.value.numel()} clients"
        split = ", ".join(f"{name} {_largest(share):.3g}" for name, share in self.delta_split.items())
        vacuous = int(self.vacuous.sum())
        counted = f" for {vacuous} of {self.value.numel()}" if self.value.numel() > 1 else ""
        note = f"; vacuous{counted}: the loss never exceeds {self.premises.loss.high:g}" if vacuous else ""
        delta = _largest(self.delta)
        sure = f"{1 - delta:.6g}"
        if sure == "1":
            sure = f"1 - {delta:g}"
        return (
            f"{self.theorem}: risk at most {spread} with probability at least {sure}"
            f" ({self.risk}; delta: {split}; prior: {self.prior}){note}"
        )

    __repr__ = __str__


def certify(
    theorem: str,
    formula: Formula,
    terms: Mapping[str, Tensor],
    delta: Number,
    premises: Premises,
    *,
    monte_carlo: MonteCarlo | None = None,
    reasons: tuple[str, ...] = (),
) -> Certificate:
    """Put a certificate together: split delta, compute the value, collect what is broken.

    The formula is given, beside the terms, "low" and "high" of the loss, "delta" of the bound itself, "factor" of the
    predictor, and where they apply "epsilon", "prior_rows" or "prior_delta", "mc_draws" and "mc_delta".

    Args:
        theorem: which bound.
        formula: turns terms into parts that sum to the bound on the Gibbs risk.
        terms: its own numbers.
        delta: of the whole certificate, [] or [K].
        premises: what it rests on.
        monte_carlo: how the risk was estimated, if it was.
        reasons: what else is broken.

    Returns:
        The certificate.

    Raises:
        AssumptionError: when delta is no probability or does not cover what is spent of it, that of the prior's privacy
            included.
    """
    split = split_delta(delta, monte_carlo)
    extra = shared_terms(premises, split)
    if monte_carlo is not None:
        extra["mc_draws"] = monte_carlo.draws
    numbers = {name: torch.as_tensor(value, dtype=torch.float64) for name, value in extra.items()}
    device = next(iter(terms.values())).device
    if "prior_delta" in numbers and bool((numbers["delta"] <= numbers["prior_delta"]).any()):
        raise AssumptionError(
            f"delta of the bound must exceed that of the prior's privacy, {numbers['prior_delta'].item():g}, got"
            f" {numbers['delta'].min().item():g}",
            hint="the releases have an epsilon at a smaller delta too: privacy.accounting.replacement",
        )
    everything = MappingProxyType({**terms, **{name: value.to(device) for name, value in numbers.items()}})
    value = everything["factor"] * _total(formula(everything))
    return Certificate(
        theorem,
        value,
        delta,
        MappingProxyType(split),
        everything,
        formula,
        premises,
        (*premises.broken(), *reasons),
    )


def trivial_bound(certificate: Certificate, risk: Number) -> Tensor:
    """Bound what a predictor that needs no learning gets by the same formula from as many rows at the same delta.

    It is fixed before any rows, such as a uniform guess or the mean of the targets: its divergence is 0, its empirical
    risk exact, and nothing is paid for privacy or for choices. A certificate that is not below it tells of no learning.

    Args:
        certificate: of a bound of this library.
        risk: of that predictor, [] or [K], in the unit of the loss: of a loss's `trivial`, or measured on the rows.

    Returns:
        [] or [K], in the unit of the loss.

    Raises:
        AssumptionError: when the risk is outside of the loss's range.
    """
    loss, terms = certificate.premises.loss, dict(certificate.terms)
    device = terms["delta"].device
    level = checked("risk", risk, loss.low, loss.high).to(device)
    for name in ("mc_draws", "mc_delta", "epsilon", "prior_rows", "prior_delta"):
        terms.pop(name, None)
    terms["delta"] = torch.as_tensor(certificate.delta, dtype=torch.float64, device=device)
    if "log_z" in terms:  # the first part of such a bound is -ln Z times a constant
        at_minus_one = certificate.formula(terms | {"log_z": -torch.ones_like(terms["log_z"])})
        return _total(certificate.formula(terms | {"log_z": -level / next(iter(at_minus_one.values()))}))
    energy = {name: torch.broadcast_tensors(level, terms[name])[0] for name in ("risk", "free_energy") if name in terms}
    return _total(certificate.formula(terms | energy | {"kl": torch.zeros_like(terms["kl"])}))


def shared_terms(premises: Premises, split: Mapping[str, Number]) -> dict[str, Number]:
    """Give the terms that follow from the premises and delta alone, which every formula is given.

    Args:
        premises: name the loss, the predictor, and how many configurations share delta.
        split: what delta is spent on.

    Returns:
        Range of the loss, factor of the predictor, delta of the bound itself, and where they apply that of Monte Carlo
        and the privacy of the prior.
    """
    tried, prior = premises.tried or 1, premises.prior
    terms: dict[str, Number] = {"low": premises.loss.low, "high": premises.loss.high, "factor": premises.factor}
    terms["delta"] = split["bound"] / tried
    if "Monte Carlo" in split:
        terms["mc_delta"] = split["Monte Carlo"] / tried
    if prior.epsilon is not None:
        terms["epsilon"] = prior.epsilon * prior.draws
        if prior.source == "client-level DP":
            terms["prior_delta"] = prior.delta * prior.draws
        elif prior.rows is not None:
            terms["prior_rows"] = prior.rows
    return terms


def split_delta(delta: Number, monte_carlo: MonteCarlo | None = None) -> dict[str, Number]:
    """Say what delta is spent on.

    Args:
        delta: of the whole certificate, [] or [K].
        monte_carlo: takes its own part of it.

    Returns:
        Shares that sum to delta.

    Raises:
        AssumptionError: when delta is no probability or does not cover what is spent of it.
    """
    whole_delta = torch.as_tensor(delta, dtype=torch.float64)
    if bool((wrong := ~((whole_delta > 0) & (whole_delta < 1))).any()):
        raise AssumptionError(f"delta must lie strictly between 0 and 1, got {whole_delta[wrong].flatten()[0].item()}")
    if monte_carlo is None:
        return {"bound": delta}
    part, of = torch.broadcast_tensors(torch.as_tensor(monte_carlo.delta, dtype=torch.float64), whole_delta)
    if bool((wrong := ~((part > 0) & (part < of))).any()):
        raise AssumptionError(
            f"the delta of Monte Carlo must be positive and smaller than delta = {of[wrong][0].item():g}, got"
            f" {part[wrong][0].item():g}",
            hint="it is taken from delta",
        )
    return {"bound": delta - monte_carlo.delta, "Monte Carlo": monte_carlo.delta}


def checked(name: str, value: Number, low: float, high: float = math.inf, *, strict: bool = False) -> Tensor:
    """Take a number of a bound as float64 and refuse what it cannot be.

    Args:
        name: what the error calls it.
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
    """Take a count of a bound and refuse what counts nothing.

    Args:
        name: what the error calls it.
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


def _largest(value: Number) -> float:
    return value.max().item() if isinstance(value, Tensor) else value


def _total(parts: Mapping[str, Tensor]) -> Tensor:
    return torch.stack(torch.broadcast_tensors(*parts.values())).sum(0)
