"""Rules by which a server joins the steps of a round's clients: the built-in ones by name, and those of one's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.errors import NumericalError, ShapeError, StudyError, shown
from pacbayes_fl.options import by_name
from pacbayes_fl.plugins.table import OpenTable, under_its_name
from pacbayes_fl.server import robust
from pacbayes_fl.tensors import Tree

Join = Callable[[Tensor, Tensor, int], Tensor]
"""Gives a step [D] of those of n >= 1 clients [n, D], their weights [n], and f, how many of them may send anything."""

FAULTY: Final = 1
"""Clients of a round that may send anything, where nobody says how many."""

MULTIPLE: Final = 2.0
"""Of the running median of norms, at which steps end, where nobody says another."""


def majority(faulty: int) -> int:
    """Number of clients of which more than half are honest.

    Args:
        faulty: f, those that are not.

    Returns:
        2 f + 1.
    """
    return 2 * faulty + 1


@dataclass(frozen=True)
class AggregationRule:
    """A rule by which a server joins the steps of a round's clients.

    It is called once for each step that the server makes: of all clients, or of a cluster's members, of a fold, down to
    one client. Its result may depend on what it is given alone, not on the order of clients, nor on earlier calls.

    Args:
        name: what studies call it; of one's own, the reference that leads to it.
        title: one line for people.
        join: takes the steps [n, D] of the clients that are there, how far each went from the server's parameters,
            their weights [n], positive, both float64, and f; gives the step of the server [D].
        weighted: whether weights count; clients of other rules have to weigh alike.
        robust: whether f clients can move it by no more than a bounded amount. f is 0 where it promises nothing, and
            rounds are then guarded as those of the mean.
        fewest: gives the number of clients in a round that it needs for f that may send anything.
        clips: whether steps end at `clip_multiple` times the running median of their norms before they are joined.

    Example:
        >>> import torch
        >>> from pacbayes_fl.server.aggregations import AggregationRule
        >>> def middle_half(steps, weight, faulty):
        ...     cut = len(steps) // 4
        ...     return steps.sort(0).values[cut : len(steps) - cut].mean(0)
        >>> rule = AggregationRule("middle-half", "mean of every coordinate's middle half", middle_half, weighted=False)
        >>> rule.join(torch.tensor([[0.0], [1.0], [2.0], [90.0]]).double(), torch.ones(4).double(), 0).tolist()
        [1.5]
    """

    name: str
    title: str
    join: Join
    weighted: bool = True
    robust: bool = False
    fewest: Callable[[int], int] = majority
    clips: bool = False

    def __post_init__(self) -> None:
        """Check what each field is."""
        for field in ("name", "title"):
            if not isinstance(getattr(self, field), str) or not getattr(self, field).strip():
                raise StudyError(f"{field} of an AggregationRule must be a text, got {shown(getattr(self, field))}")
        for field in ("join", "fewest"):
            if not callable(getattr(self, field)):
                what = f"{field} of the AggregationRule {self.name!r} must be a function"
                raise StudyError(f"{what}, got {shown(getattr(self, field))}")
        for field in ("weighted", "robust", "clips"):
            if not isinstance(getattr(self, field), bool):
                what = f"{field} of the AggregationRule {self.name!r} must be True or False"
                raise StudyError(f"{what}, got {shown(getattr(self, field))}")

    def needs(self, faulty: int) -> int:
        """Number of clients that the rule needs to tolerate the faulty ones.

        Args:
            faulty: f.

        Returns:
            That of `fewest`; 1 where nothing is promised.

        Raises:
            StudyError: when `fewest` gives no whole number of clients.
        """
        if not self.robust:
            return 1
        result = self.fewest(faulty)
        if not isinstance(result, int) or isinstance(result, bool) or result < 1:
            what = f"fewest of the AggregationRule {self.name!r} must give a whole number of clients, at least 1"
            raise StudyError(f"{what}, got {shown(result)} for f = {faulty}")
        return result


_BUILT_IN: Final[Mapping[str, AggregationRule]] = by_name(
    AggregationRule(
        "clipped",
        "mean of steps no longer than clip_multiple times the running median of their norms",
        lambda steps, weight, _: robust.mean(steps, weight),
        robust=True,
        fewest=lambda _: 1,  # the rounds before count too
        clips=True,
    ),
    AggregationRule(
        "mean",
        "the papers' weighted mean, which one client can take anywhere",
        lambda steps, weight, _: robust.mean(steps, weight),
    ),
    AggregationRule(
        "median",
        "median of every coordinate (Yin et al. 2018)",
        lambda steps, weight, _: robust.median(steps, weight),
        weighted=False,
        robust=True,
    ),
    AggregationRule(
        "trimmed",
        "mean of every coordinate without its f smallest and f largest values (Yin et al. 2018)",
        robust.trimmed,
        weighted=False,
        robust=True,
    ),
    AggregationRule(
        "multi-krum",
        "mean of the steps that have the closest neighbours (Blanchard et al. 2017)",
        robust.multi_krum,
        weighted=False,
        robust=True,
        fewest=lambda faulty: 2 * faulty + 3,  # as its paper asks
    ),
    AggregationRule(
        "geometric-median",
        "the point with the least weighted sum of distances to the steps (Pillutla et al. 2022)",
        lambda steps, weight, _: robust.geometric_median(steps, weight),
        robust=True,
    ),
)


AGGREGATIONS: Final = OpenTable(
    lambda: _BUILT_IN,
    "pacbayes_fl.aggregations",
    "[federation] aggregate",
    "a record pacbayes_fl.server.aggregations.AggregationRule",
    under_its_name(AggregationRule),
)
"""All of them by name or reference, the one that is offered first before others. A new one is one more record above."""


def aggregation_named(aggregate: str | AggregationRule) -> AggregationRule:
    """Look a rule up.

    Args:
        aggregate: a name or reference of `AGGREGATIONS`, or a record, which is taken as it is.

    Returns:
        Its record.

    Raises:
        StudyError: when there is none of that name, a reference leads to none, or a record has a built-in one's name.
    """
    if isinstance(aggregate, AggregationRule):
        if _BUILT_IN.get(aggregate.name, aggregate) is not aggregate:
            what = f"a rule of one's own cannot be called {aggregate.name!r}"
            raise StudyError(what, hint="give the AggregationRule another name")
        return aggregate
    if aggregate not in AGGREGATIONS:
        raise StudyError(f"aggregate must be one of {', '.join(AGGREGATIONS)}, got {shown(aggregate)}")
    return AGGREGATIONS[aggregate]


def check(aggregation: AggregationRule, faulty: int | None, multiple: float | None) -> None:
    """Refuse options without effect because another one is missing; their ranges are the plan's.

    Args:
        aggregation: the rule.
        faulty: f, or None for the default.
        multiple: of the running median of norms, or None for the default.

    Raises:
        StudyError: naming the option.
    """
    if not aggregation.robust and faulty is not None:
        what = f"faulty = {faulty} clients can take the {aggregation.name} anywhere"
        if aggregation.name not in _BUILT_IN:
            what = f"faulty = {faulty} is of rules that promise robustness, and {aggregation.name} promises none"
        raise StudyError(what, hint="federation.aggregate = 'clipped'")
    if multiple is not None and not aggregation.clips:
        what = f"clip_multiple = {multiple:g} is of aggregate = 'clipped', and aggregate is {aggregation.name!r}"
        raise StudyError(what, hint="federation.aggregate = 'clipped'")


@dataclass(frozen=True)
class Rule:
    """An aggregation as a round applies it to its clients' steps.

    Args:
        aggregation: any.
        faulty: f, clients of a round that may send anything.
        factor: of every step where the rule clips [K], float64; None for other rules.
    """

    aggregation: AggregationRule
    faulty: int
    factor: Tensor | None = None

    @classmethod
    def of(
        cls,
        aggregation: AggregationRule,
        faulty: int,
        multiple: float,
        steps: Tree,
        weight: Tensor,
        known: Sequence[float],
    ) -> Rule:
        """Make the rule of a round, which depends on how long its steps are where it clips.

        Args:
            aggregation: any.
            faulty: f.
            multiple: of the running median at which a rule that clips bounds norms.
            steps: leaves [K, *].
            weight: of the clients [K].
            known: median norm of each round before, oldest first.

        Returns:
            The rule.
        """
        if not aggregation.clips:
            return cls(aggregation, faulty)
        lengths, counts = robust.norms(steps), weight > 0
        if not bool(counts.any()):
            return cls(aggregation, faulty, torch.ones_like(lengths))
        bound = multiple * robust.running_median(known, lengths[counts])
        return cls(aggregation, faulty, robust.shrinkage(lengths, bound))

    @property
    def fewest(self) -> int:
        """Clients that it needs."""
        return self.aggregation.needs(self.faulty)

    def __call__(self, steps: Tree, weight: Tensor) -> Tree:
        """Join steps.

        Args:
            steps: leaves [K, *], or some of each client's coordinates.
            weight: of the clients [K], 0 for absent ones.

        Returns:
            Leaves [*]; 0 where all weights are 0.

        Raises:
            ShapeError: when a rule of one's own gives no step of the server.
            NumericalError: when it gives numbers that are not finite.
        """
        rows, share = robust.present(steps, weight)
        points = robust.matrix(rows)
        if self.factor is not None:
            points = self.factor[weight > 0].unsqueeze(1) * points
        if not len(points):
            return robust.cut(points.sum(0), steps)
        if _BUILT_IN.get(self.aggregation.name) is self.aggregation:
            return robust.cut(self.aggregation.join(points, share.double(), self.faulty), steps)
        return robust.cut(self._own(points, share), steps)

    def _own(self, points: Tensor, share: Tensor) -> Tensor:
        """Join copies of steps [n, D] by a rule of one's own: a step [D], finite where the steps are."""
        n, coordinates = points.shape
        result: object = self.aggregation.join(points.clone(), share.double().clone(), self.faulty)
        own = f"aggregate = {self.aggregation.name!r}"
        if not isinstance(result, Tensor) or result.shape != (coordinates,) or not result.is_floating_point():
            got = shown(result)
            if isinstance(result, Tensor):
                got = f"{list(result.shape)} of {result.dtype}"
            what = f"{own} must give the step of the server, floating-point numbers [{coordinates}], got {got}"
            raise ShapeError(what, hint=f"join over the first dimension of the steps [{n}, {coordinates}]")
        lost = int((~result.isfinite()).sum())
        if lost:
            what = f"{own} gave {lost} of {coordinates} numbers that are not finite, of the finite steps of {n} clients"
            raise NumericalError(what, hint="divide by nothing that can be 0, and mind rounds in which few clients are")
        return result.to(points)

    def statistics(self, said: Tree, weight: Tensor) -> Tree:
        """Winsorised sum of the clients' statistics of a round.

        Args:
            said: floating leaves [K, *].
            weight: of the clients [K].

        Returns:
            Leaves [*]; see `robust.winsorised`.
        """
        return robust.winsorised(said, weight, self.faulty)

    def filled(self, joined: Tree, update: Tree, weight: Tensor) -> Tree:
        """Fill the NaN of an aggregated update with winsorised sums of the clients' statistics.

        Args:
            joined: leaves [1, *].
            update: of all clients, leaves [K, *].
            weight: of the clients [K].

        Returns:
            Leaves [1, *].
        """
        said = tensors.leaves(update)

        def whole(name: str, leaf: Tensor) -> Tensor:
            unknown = leaf.is_floating_point() and bool(leaf.isnan().all())
            return self.statistics(said[name], weight).to(leaf.dtype).expand(leaf.shape) if unknown else leaf

        return tensors.unleaves(joined, {name: whole(name, leaf) for name, leaf in tensors.leaves(joined).items()})
