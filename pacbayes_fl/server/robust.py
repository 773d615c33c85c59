"""Aggregation of clients' steps that a few broken or hostile clients cannot steer far.

All rules are of steps s_k, how far each client went, never of weights themselves. Steps that are scaled give a scaled
aggregate, and steps that are shifted a shifted one, but for clipping, whose centre is to stay. Rows of weight 0 are no
clients and count nowhere; sums are of float64, and no rule depends on the order of its rows. However far hostile
clients go, as long as there are no more than a rule is made for, it moves by a bounded amount, and the mean by any.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.tensors import Tree

WINDOW = 10
"""Rounds that the running median of norms looks back."""

_BLOCK = 2**22
_STEPS = 500
_NEAR = 1e-6
_STANDS = 1e-14
_TINY = torch.finfo(torch.float64).tiny


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
    return _lengths(matrix(steps))


def shrinkage(lengths: Tensor, bound: Tensor) -> Tensor:
    """Clipping factor of every step, min(1, C / |s_k|).

    Args:
        lengths: norms of the steps [K], float64.
        bound: C [].

    Returns:
        [K], float64, 1 for a step that ends within the bound.
    """
    return torch.where(lengths > bound, bound / lengths, 1.0)


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
    points = matrix(steps)
    return cut(mean(shrinkage(_lengths(points), bound).unsqueeze(1) * points, weight), steps)


def mean(points: Tensor, weight: Tensor) -> Tensor:
    """Weighted mean of steps; no product of a weight and a step overflows on the way.

    Args:
        points: [K, D], float64.
        weight: of the clients [K], not negative.

    Returns:
        [D]; 0 where all weights are 0.
    """
    rows, share = present(points, weight.double())
    result: Tensor = (share / share.sum().clamp_min(_TINY)) @ rows
    return result


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
    points = matrix(steps)
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
    rows, share = present(steps, weight)
    n = len(share)
    f = max(0, min(faulty, (n - 3) // 2))
    keep = n - f if keep is None else min(keep, n)
    points = matrix(rows)
    if n and keep < n:
        scores = krum_scores((points - middle(points)) / _spread(points), f)
        last = scores.sort().values[keep - 1]
        better, tied = (scores < last).double(), (scores == last).double()
        share = better + tied * (keep - better.sum()) / tied.sum()
    return cut(tensors.weighted_mean(points, share.double()), steps)


def geometric_median(steps: Tree, weight: Tensor) -> Tree:
    """The point with the least weighted sum of distances, sum_k w_k |s_k - z| (Pillutla et al., RFA, IEEE TSP 2022).

    By `weiszfeld` from the median of every coordinate, which is never far, until it stands.

    Args:
        steps: leaves [K, *].
        weight: of the clients [K], not negative.

    Returns:
        Leaves [*].
    """
    rows, share = present(steps, weight)
    points = matrix(rows)
    result = weiszfeld(points, share.double(), middle(points), _STEPS) if len(points) else points.sum(0)
    return cut(result, steps)


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


def present(steps: Tree, weight: Tensor) -> tuple[Tree, Tensor]:
    """Drop clients of weight 0.

    Args:
        steps: leaves [K, *].
        weight: of the clients [K].

    Returns:
        Leaves [n, *] and weights [n] of those that are there; what was given where all are.
    """
    at = (weight > 0).nonzero().squeeze(1)
    return (steps, weight) if len(at) == len(weight) else (tensors.select(steps, at), weight[at])


def _by_coordinate(rule: Callable[[Tensor], Tensor], steps: Tree, weight: Tensor) -> Tree:
    """Apply a rule [n, d] -> [d] to blocks of coordinates, in float64: sorting needs a copy."""
    rows, _ = present(steps, weight)

    def one(leaf: Tensor) -> Tensor:
        if not len(leaf):
            return leaf.sum(0)
        flat = leaf.reshape(len(leaf), -1)
        parts = [rule(part.double()) for part in flat.split(max(1, _BLOCK // len(leaf)), 1)]
        return torch.cat(parts).to(leaf.dtype).view(leaf.shape[1:])

    return tensors.tree_map(one, rows)


def matrix(steps: Tree) -> Tensor:
    """Put all leaves side by side, one row a client.

    Args:
        steps: leaves [K, *].

    Returns:
        [K, D], float64; a single leaf that is so already is itself.
    """
    rows = [leaf.flatten(1) if leaf.dim() > 1 else leaf.unsqueeze(1) for leaf in _leaves(steps)]
    return rows[0].double() if len(rows) == 1 else torch.cat(rows, 1).double()


def _leaves(steps: Tree) -> list[Tensor]:
    return list(tensors.leaves(steps).values())


def cut(row: Tensor, like: Tree) -> Tree:
    """Cut a row into leaves.

    Args:
        row: [D].
        like: leaves [K, *], whose rows have the shapes and dtypes.

    Returns:
        Leaves [*].
    """
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
