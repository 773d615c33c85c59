"""Aggregation of clients' steps that a few broken or hostile clients cannot steer far.

All rules are of steps s_k, how far each client went, never of weights themselves. Steps that are scaled give a scaled
aggregate, and steps that are shifted a shifted one, but for clipping, whose centre is to stay. Rows of weight 0 are no
clients and count nowhere; sums are of float64, and no rule depends on the order of its rows. However far hostile
clients go, as long as there are no more than a rule is made for, it moves by a bounded amount, and the mean by any.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.errors import StudyError
from pacbayes_fl.tensors import Tree

Aggregate = Literal["clipped", "mean", "median", "trimmed", "multi-krum", "geometric-median"]
"""What a server makes of its clients' steps: their mean, or one that few of them cannot steer."""

AGGREGATES: tuple[Aggregate, ...] = get_args(Aggregate)
UNWEIGHTED: tuple[Aggregate, ...] = ("median", "trimmed", "multi-krum")
"""Rules whose clients all weigh alike."""

FAULTY = 1
"""Clients of a round that may send anything, where nobody says how many."""

MULTIPLE = 2.0
"""Of the running median of norms, at which steps end, where nobody says another."""

WINDOW = 10
"""Rounds that the running median of norms looks back."""

_BLOCK = 2**22
_STEPS = 500
_NEAR = 1e-6
_STANDS = 1e-14
_TINY = torch.finfo(torch.float64).tiny


@dataclass(frozen=True)
class Rule:
    """An aggregate as a round applies it to its clients' steps.

    Args:
        kind: any but "mean".
        faulty: f, clients of a round that may send anything.
        factor: of every step under "clipped" [K], float64; None for other rules.
    """

    kind: Aggregate
    faulty: int
    factor: Tensor | None = None

    @classmethod
    def of(
        cls, kind: Aggregate, faulty: int, multiple: float, steps: Tree, weight: Tensor, known: Sequence[float]
    ) -> Rule:
        """Make the rule of a round, which for "clipped" depends on how long its steps are.

        Args:
            kind: any but "mean".
            faulty: f.
            multiple: of the running median at which "clipped" bounds norms.
            steps: leaves [K, *].
            weight: of the clients [K].
            known: median norm of each round before, oldest first.

        Returns:
            The rule.
        """
        if kind != "clipped":
            return cls(kind, faulty)
        lengths, counts = norms(steps), weight > 0
        if not bool(counts.any()):
            return cls(kind, faulty, torch.ones_like(lengths))
        return cls(kind, faulty, shrinkage(lengths, multiple * running_median(known, lengths[counts])))

    def __call__(self, steps: Tree, weight: Tensor) -> Tree:
        """Join steps.

        Args:
            steps: leaves [K, *], or some of each client's coordinates.
            weight: of the clients [K], 0 for absent ones.

        Returns:
            Leaves [*]; 0 where all weights are 0.
        """
        if self.factor is not None:
            return shortened(steps, weight, self.factor)
        if self.kind == "trimmed":
            return trimmed(steps, weight, self.faulty)
        if self.kind == "multi-krum":
            return multi_krum(steps, weight, self.faulty)
        return median(steps, weight) if self.kind == "median" else geometric_median(steps, weight)

    def statistics(self, said: Tree, weight: Tensor) -> Tree:
        """Winsorised sum of the clients' statistics of a round.

        Args:
            said: floating leaves [K, *].
            weight: of the clients [K].

        Returns:
            Leaves [*]; see `winsorised`.
        """
        return winsorised(said, weight, self.faulty)

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


def check(kind: Aggregate, faulty: int | None, multiple: float | None) -> None:
    """Refuse options without effect because another one is missing; their ranges are the plan's.

    Args:
        kind: the rule.
        faulty: f, or None for the default.
        multiple: of the running median of norms, or None for the default.

    Raises:
        StudyError: naming the option.
    """
    if kind not in AGGREGATES:
        raise StudyError(f"aggregate must be one of {', '.join(AGGREGATES)}, got {kind!r}")
    if kind == "mean" and faulty is not None:
        raise StudyError(
            f"faulty = {faulty} clients can take the mean anywhere", hint="federation.aggregate = 'clipped'"
        )
    if multiple is not None and kind != "clipped":
        what = f"clip_multiple = {multiple:g} is of aggregate = 'clipped', and aggregate is {kind!r}"
        raise StudyError(what, hint="federation.aggregate = 'clipped'")


def fewest(kind: Aggregate, faulty: int) -> int:
    """Number of clients that a rule needs to tolerate the faulty ones.

    Args:
        kind: the rule.
        faulty: f.

    Returns:
        2 f + 1, for which more than half are honest; of "multi-krum" 2 f + 3, as its paper asks; 1 where the rounds
        before count too, or nothing is promised.
    """
    return {"clipped": 1, "mean": 1, "multi-krum": 2 * faulty + 3}.get(kind, 2 * faulty + 1)


def running_median(known: Sequence[float], lengths: Tensor) -> Tensor:
    """Typical length of a step: the median of the median norms of the last rounds and of this one.

    Where a cohort of few clients is mostly hostile, the rounds before it outvote it. Of an even number the smaller
    middle one counts: of two clients, or of two rounds, the hostile one must not.

    Args:
        known: median norm of each round before, oldest first; the last `WINDOW` - 1 count.
        lengths: norms of this round's steps [n], n >= 1.

    Returns:
        [], float64.
    """
    before = torch.tensor(known[1 - WINDOW :], dtype=torch.float64, device=lengths.device)
    return torch.cat((before, lengths.double().median().view(1))).median()


def middle(values: Tensor) -> Tensor:
    """Median along the first dimension; of an even number of values the mean of the two middle ones.

    Args:
        values: [n, *], n >= 1.

    Returns:
        [*].
    """
    ordered, half = values.sort(0).values, (len(values) - 1) // 2
    return 0.5 * ordered[half] + 0.5 * ordered[len(values) // 2]


def norms(steps: Tree) -> Tensor:
    """Length of every client's step, all leaves as one vector; no square overflows or vanishes on the way.

    Args:
        steps: leaves [K, *].

    Returns:
        [K], float64.
    """
    return _lengths(_matrix(steps))


def clipped(steps: Tree, weight: Tensor, bound: Tensor) -> Tree:
    """Average steps that are longer than a bound as if they had ended there.

    s = sum_k w_k min(1, C / |s_k|) s_k / sum_k w_k: a client moves it by at most w_k C / sum_j w_j

    Args:
        steps: leaves [K, *].
        weight: of the clients [K], not negative.
        bound: C [].

    Returns:
        Leaves [*].
    """
    return shortened(steps, weight, shrinkage(norms(steps), bound))


def shrinkage(lengths: Tensor, bound: Tensor) -> Tensor:
    """Clipping factor of every step, min(1, C / |s_k|).

    Args:
        lengths: norms of the steps [K], float64.
        bound: C [].

    Returns:
        [K], float64, 1 for a step that ends within the bound.
    """
    return torch.where(lengths > bound, bound / lengths, 1.0)


def shortened(steps: Tree, weight: Tensor, factor: Tensor) -> Tree:
    """Average steps that are shortened, each by its factor; weights stay.

    Args:
        steps: leaves [K, *].
        weight: of the clients [K], not negative.
        factor: of every step [K].

    Returns:
        Leaves [*].
    """
    rows, share = _present(steps, weight.double())
    return _tree((factor[weight > 0] * share / share.sum().clamp_min(_TINY)) @ _matrix(rows), steps)


def median(steps: Tree, weight: Tensor) -> Tree:
    """Median of every coordinate (Yin et al., ICML 2018); of an even number the mean of the two middle values.

    Args:
        steps: leaves [K, *].
        weight: of the clients [K], 0 or one and the same number.

    Returns:
        Leaves [*].

    Example:
        >>> import torch
        >>> from pacbayes_fl.server import robust
        >>> steps = torch.tensor([[1.0], [1.2], [0.8], [0.9], [1.1], [100.0]]).double()
        >>> robust.median(steps, torch.ones(6)).numpy().round(2).tolist()
        [1.05]
    """
    return _by_coordinate(middle, steps, weight)


def trimmed(steps: Tree, weight: Tensor, faulty: int) -> Tree:
    """Mean of every coordinate without its f smallest and its f largest values (Yin et al., ICML 2018).

    Args:
        steps: leaves [K, *].
        weight: of the clients [K], 0 or one and the same number.
        faulty: f >= 0; as many as leave a value where the clients are no more than 2 f.

    Returns:
        Leaves [*].
    """

    def one(values: Tensor) -> Tensor:
        f = min(faulty, (len(values) - 1) // 2)
        kept = values.sort(0).values[f : len(values) - f]
        return (kept / len(kept)).sum(0)

    return _by_coordinate(one, steps, weight)


def krum_scores(steps: Tree, faulty: int) -> Tensor:
    """Score every step by how close its nearest ones are (Blanchard et al., NeurIPS 2017).

    The score of k is the sum of the n - f - 2 smallest |s_k - s_j|^2 over j other than k.

    Args:
        steps: leaves [n, *].
        faulty: f >= 0.

    Returns:
        [n], float64, in squared units of the steps.
    """
    points = _matrix(steps)
    near = max(0, len(points) - faulty - 2)
    squares = [(points - one).square().sum(1) for one in points]
    return torch.stack([each.sort().values[1 : near + 1].sum() for each in squares])  # the first is its own, 0


def multi_krum(steps: Tree, weight: Tensor, faulty: int, keep: int | None = None) -> Tree:
    """Mean of the steps with the best `krum_scores` (Blanchard et al., NeurIPS 2017): n^2 D operations.

    Steps whose scores tie for the last places share these, so that the order of clients decides nothing.

    Args:
        steps: leaves [K, *].
        weight: of the clients [K], 0 or one and the same number.
        faulty: f >= 0, of n > 2 f + 2 clients; fewer clients leave room for fewer.
        keep: how many steps; n - f when None, 1 is Krum.

    Returns:
        Leaves [*].
    """
    rows, share = _present(steps, weight)
    n = len(share)
    f = max(0, min(faulty, (n - 3) // 2))
    keep = n - f if keep is None else min(keep, n)
    points = _matrix(rows)
    if n and keep < n:
        scores = krum_scores((points - middle(points)) / _spread(points), f)
        last = scores.sort().values[keep - 1]
        better, tied = (scores < last).double(), (scores == last).double()
        share = better + tied * (keep - better.sum()) / tied.sum()
    return _tree(tensors.weighted_mean(points, share.double()), steps)


def geometric_median(steps: Tree, weight: Tensor) -> Tree:
    """The point with the least weighted sum of distances, sum_k w_k |s_k - z| (Pillutla et al., RFA, IEEE TSP 2022).

    By `weiszfeld` from the median of every coordinate, which is never far, until it stands.

    Args:
        steps: leaves [K, *].
        weight: of the clients [K], not negative.

    Returns:
        Leaves [*].
    """
    rows, share = _present(steps, weight)
    points = _matrix(rows)
    result = weiszfeld(points, share.double(), middle(points), _STEPS) if len(points) else points.sum(0)
    return _tree(result, steps)


def weiszfeld(points: Tensor, weight: Tensor, start: Tensor, steps: int) -> Tensor:
    """Go towards the geometric median by smoothed Weiszfeld steps (RFA, Algorithm 2).

    z <- sum_k b_k x_k / sum_k b_k with b_k = w_k / max(|x_k - z|, nu)

    Args:
        points: x [n, D], float64.
        weight: w [n], positive.
        start: z [D].
        steps: at most.

    Returns:
        z [D]; nu is a millionth of the points' spread.
    """
    spread, z = _spread(points), start
    for _ in range(steps):
        b = weight / (_lengths(points - z) / spread).clamp_min(_NEAR)
        before, z = z, (b / b.sum()) @ points
        if bool((z - before).abs().amax() <= _STANDS * (spread + z.abs().amax())):
            break
    return z


def winsorised(tree: Tree, weight: Tensor, faulty: int) -> Tree:
    """Winsorised sum of the clients' statistics: the f smallest and f largest values of a coordinate are replaced.

    Args:
        tree: floating leaves [K, *].
        weight: of the clients [K]; those of weight 0 are left out.
        faulty: f >= 0.

    Returns:
        Leaves [*].
    """

    def one(values: Tensor) -> Tensor:
        f = min(faulty, (len(values) - 1) // 2)
        ordered = values.sort(0).values
        return ordered.clamp(ordered[f], ordered[len(values) - 1 - f]).sum(0)

    return _by_coordinate(one, tree, weight)


def _present(steps: Tree, weight: Tensor) -> tuple[Tree, Tensor]:
    """Drop clients of weight 0."""
    at = (weight > 0).nonzero().squeeze(1)
    return tensors.select(steps, at), weight[at]


def _by_coordinate(rule: Callable[[Tensor], Tensor], steps: Tree, weight: Tensor) -> Tree:
    """Apply a rule [n, d] -> [d] to blocks of coordinates, in float64: sorting needs a copy."""
    rows, _ = _present(steps, weight)

    def one(leaf: Tensor) -> Tensor:
        if not len(leaf):
            return leaf.sum(0)
        flat = leaf.reshape(len(leaf), -1)
        parts = [rule(part.double()) for part in flat.split(max(1, _BLOCK // len(leaf)), 1)]
        return torch.cat(parts).to(leaf.dtype).view(leaf.shape[1:])

    return tensors.tree_map(one, rows)


def _matrix(steps: Tree) -> Tensor:
    """One row a client: all leaves side by side [K, D], float64."""
    return torch.cat([leaf.flatten(1) if leaf.dim() > 1 else leaf.unsqueeze(1) for leaf in _leaves(steps)], 1).double()


def _leaves(steps: Tree) -> list[Tensor]:
    return list(tensors.leaves(steps).values())


def _tree(row: Tensor, like: Tree) -> Tree:
    """Cut a row [D] into leaves [*], in the shapes and dtypes of `like`'s rows."""
    parts = iter(row.split([leaf.shape[1:].numel() for leaf in _leaves(like)]))
    return tensors.tree_map(lambda leaf: next(parts).view(leaf.shape[1:]).to(leaf.dtype), like)


def _lengths(points: Tensor) -> Tensor:
    """Norms [n] of rows [n, D], float64; 0 of rows without coordinates."""
    if not points.shape[1]:
        return points.sum(1)
    largest = points.abs().amax(1)
    scaled = points / torch.where(largest > 0, largest, 1.0).unsqueeze(1)
    result: Tensor = largest * torch.linalg.vector_norm(scaled, dim=1)
    return result


def _spread(points: Tensor) -> Tensor:
    """Typical distance [] of points [n, D] from their middle, positive: a unit in which they can be squared."""
    distances = _lengths(points - middle(points))
    positive = distances[distances > 0]
    return middle(positive) if len(positive) else torch.ones((), dtype=points.dtype, device=points.device)
