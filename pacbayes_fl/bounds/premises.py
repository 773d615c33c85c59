"""Assumptions of a bound beside its numbers: source of the prior, sampling of the rows, choices made by them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal, get_args

from pacbayes_fl.bounds.checks import counts_errors, whole
from pacbayes_fl.bounds.losses import BoundedLoss, UnboundedLoss, ZeroOne, require_bounded, require_parts
from pacbayes_fl.bounds.normal_nll import NormalNLL
from pacbayes_fl.errors import AssumptionError, shown
from pacbayes_fl.results.certificates import rounded_up
from pacbayes_fl.results.records import SIMULATED_EPSILON

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

Predictor = Literal[
    "Gibbs",
    "majority vote",
    "averaged prediction",
    "point estimate",
    "fixed predictor",
    "drawn once",
    "vote by pairs",
]

FIXED: Final = "fixed predictor"
DRAWN_ONCE: Final = "drawn once"
BY_PAIRS: Final = "vote by pairs"

_OWN_BOUNDS = MappingProxyType(
    {
        FIXED: ("predictor that was fixed before the rows", "for a fixed predictor take a hold-out bound"),
        DRAWN_ONCE: ("one hypothesis that was drawn from the posterior", "for one that is drawn once take one_draw"),
        BY_PAIRS: ("majority vote", "for a vote by how often two draws err together take tandem"),
    }
)

Posterior = Literal["any", "exact Gibbs", "no worse than the prior"]

Average = Literal["client", "size-weighted clients", "clients on average", "clients by beta", "new client on average"]

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

    Example:
        >>> from pacbayes_fl.bounds import Provenance
        >>> Provenance("split").source, Provenance("row-level DP", epsilon=0.1).epsilon
        ('split', 0.1)
    """

    source: Source = "unknown"
    epsilon: float | None = None
    delta: float = 0.0
    draws: int = 1
    rows: int | None = None
    simulated: bool = False

    def __post_init__(self) -> None:
        """Check the values."""
        if self.source not in get_args(Source):
            raise AssumptionError(f"source must be one of {', '.join(get_args(Source))}, got {self.source!r}")
        _declared("simulated", self.simulated)
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
    """Assumptions of a bound that its numbers do not show.

    What is not said of the prior, the rows, the posterior and the clients counts as broken. `tried` is not like that:
    its 1 claims that nothing was chosen by the rows of the bound.

    Args:
        prior: where the prior came from.
        independent: whether the rows are declared to be independent draws of the client's distribution, and clients
            to be independent of each other: not so for a time series.
        loss: the loss whose risk is meant.
        predictor: what predicts: "Gibbs" draws a hypothesis for every prediction; "majority vote" costs a factor 2;
            "averaged prediction" needs a convex loss; no PAC-Bayes bound speaks of a "point estimate". Hold-out bounds
            are on a "fixed predictor" of any make: `prior` is then what fixed it; `one_draw` is on what is "drawn
            once", `tandem` on a "vote by pairs". These three set it themselves.
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

    Example:
        >>> from pacbayes_fl.bounds import Premises, Provenance, seeger
        >>> seeger(0.1, 5.0, 1000, 0.05, Premises(Provenance("split"))).reasons
        ("the rows were not declared independent draws of the client's distribution (independent)",)
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
        """Check the values, and that the loss is bounded or said not to be."""
        if not isinstance(self.prior, Provenance):
            what = f"prior must say where it came from, a Provenance, got {self.prior!r}"
            raise AssumptionError(what, hint="such as Provenance('split')")
        require_parts(self.loss)
        if not isinstance(self.loss, UnboundedLoss | NormalNLL):
            require_bounded(self.loss)
        for name, kind in (("predictor", Predictor), ("average", Average), ("posterior", Posterior)):
            value = getattr(self, name)
            if value not in get_args(kind):
                raise AssumptionError(f"{name} must be one of {', '.join(get_args(kind))}, got {value!r}")
        for name in ("independent", "drawn_clients"):
            _declared(name, getattr(self, name))
        if self.tried is not None:
            whole("tried", self.tried)

    @property
    def risk(self) -> str:
        """Which risk is bounded: of which loss and predictor, averaged over what."""
        known = _OWN_BOUNDS.get(self.predictor)
        what = f"{self.predictor} predictor" if known is None else known[0]
        return f"{self.loss.name} of the {what}, {_OVER[self.average]}"

    @property
    def factor(self) -> float:
        """Factor of the predictor's risk over the Gibbs risk: 2 for a majority vote."""
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
        if self.predictor == "majority vote" and not counts_errors(self.loss):
            reasons.append(f"a majority vote is bounded for the 0-1 loss only, not for {self.loss.name}")
        if self.predictor == "averaged prediction" and not self.loss.convex:
            reasons.append(f"averaged predictions are bounded for a convex loss only, and {self.loss.name} is none")
        if self.predictor == "point estimate":
            reasons.append("the bound is on draws from the posterior, not on a point estimate")
        return tuple(reasons)


def _declared(name: str, value: object) -> None:
    """Refuse what is neither True nor False: every word counts as true, "no" among them."""
    if not isinstance(value, bool):
        raise AssumptionError(f"{name} must be True or False, got {value!r}", hint="True declares it, on your word")


def as_premises(premises: object) -> Premises:
    """Refuse what says nothing of a bound's assumptions, such as the provenance of a prior alone.

    Args:
        premises: what came as them.

    Returns:
        The same.

    Raises:
        AssumptionError: when it is no `Premises`.
    """
    if isinstance(premises, Premises):
        return premises
    what = f"premises must be Premises, what the bound rests on, got {shown(premises)}"
    raise AssumptionError(what, hint="such as Premises(Provenance('split'), independent=True)")


def not_of_fixed(premises: Premises) -> tuple[str, ...]:
    """Reason against a bound on draws from the posterior where the predictor has bounds of its own, if it has."""
    if premises.predictor not in _OWN_BOUNDS:
        return ()
    return (f"a PAC-Bayes bound is on draws from the posterior: {_OWN_BOUNDS[premises.predictor][1]}",)
