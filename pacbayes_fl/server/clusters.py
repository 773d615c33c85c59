"""Averages by cluster, for the server of a clustered method."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.server import moments
from pacbayes_fl.server.aggregations import Rule
from pacbayes_fl.server.moments import Moments
from pacbayes_fl.tensors import Tree


def sums(tree: Tree, cluster: Tensor, weight: Tensor, clusters: int) -> tuple[Tree, Tensor]:
    """Sum clients by cluster, weighted.

    Args:
        tree: leaves [K, *].
        cluster: of every client [K], int64 in 0..J-1.
        weight: of every client [K].
        clusters: J.

    Returns:
        Sums [J, *], and the weight of each cluster [J].
    """
    member = torch.nn.functional.one_hot(cluster, clusters).to(weight) * weight.unsqueeze(1)  # [K, J]
    totals = tensors.tree_map(lambda leaf: torch.tensordot(member.T.to(leaf.dtype), leaf, dims=1), tree)
    return totals, member.sum(0)


def mean(tree: Tree, cluster: Tensor, weight: Tensor, old: Tree) -> tuple[Tree, Tensor]:
    """Average every cluster over its members; an empty cluster keeps its value.

    mean_j = old_j + sum_{k in j} w_k (leaf_k - old_j) / sum_{k in j} w_k, by which what no member has moved stays

    The journal's Algorithm 3 divides by the number of clients drawn, members or not, which would shrink the mean
    towards zero; here by the members.

    Args:
        tree: leaves [K, *].
        cluster: of every client [K], int64 in 0..J-1.
        weight: of every client [K].
        old: the clusters' values [J, *].

    Returns:
        Leaves [J, *], and the weight of each cluster [J].

    Example:
        >>> import torch
        >>> from pacbayes_fl.server import clusters
        >>> values, cluster = torch.tensor([[1.0], [3.0], [9.0]]), torch.tensor([0, 0, 2])
        >>> mean, weight = clusters.mean(values, cluster, torch.ones(3), old=torch.zeros(3, 1))
        >>> mean.tolist(), weight.tolist()
        ([[2.0], [0.0], [9.0]], [2.0, 0.0, 1.0])
    """
    steps = tensors.tree_map(torch.sub, tree, tensors.select(old, cluster))
    totals, members = sums(steps, cluster, weight, len(next(iter(tensors.leaves(old).values()))))

    def one(total: Tensor, before: Tensor) -> Tensor:
        by = members.to(total.dtype).view(-1, *[1] * (total.dim() - 1))
        return torch.where(by > 0, before + total / by.clamp_min(torch.finfo(total.dtype).tiny), before)

    return tensors.tree_map(one, totals, old), members


def nearest(points: Tensor, centres: Tensor) -> Tensor:
    """Find the centre next to every point.

    r_k = argmin_j |theta_k - c_j|^2, of equally near ones the first

    Args:
        points: [K, D].
        centres: [J, D].

    Returns:
        [K], int64.

    Example:
        >>> import torch
        >>> from pacbayes_fl.server import clusters
        >>> clusters.nearest(torch.tensor([[0.1], [0.9]]), torch.tensor([[0.0], [1.0]])).tolist()
        [0, 1]
    """
    distances = [(points - centre).double().square().sum(1) for centre in centres.unbind(0)]
    return torch.stack(distances).argmin(0)


def bipartition(cosines: Tensor, member: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Cut a group of clients in two so that the largest cosine across the cut is as small as can be.

    alpha = min over cuts of max_{i in one side, j in the other} cos_ij (Sattler et al. 2020, eq. 13): the two sides are
    what single linkage leaves, or the maximum spanning tree without its smallest edge. Here by widest paths: alpha is
    the smallest of them, and clients that are joined by a wider one are on the same side.

    Args:
        cosines: of any two clients [K, K].
        member: who is in the group, bool [K]; the others' cosines are not looked at.
        lengths: of the clients' steps [K]; the longest step's side is the first one, whatever the order of clients.

    Returns:
        Who is on the second side, bool [K], and alpha []; nobody and 2 for a group of fewer than two.

    Example:
        >>> import torch
        >>> from pacbayes_fl.server import clusters
        >>> cosines = torch.tensor([[1.0, 0.9, -0.8], [0.9, 1.0, -0.7], [-0.8, -0.7, 1.0]])
        >>> second, alpha = clusters.bipartition(cosines, torch.tensor([True] * 3), torch.tensor([2.0, 1.0, 1.0]))
        >>> second.tolist(), round(alpha.item(), 2)
        ([False, False, True], -0.7)
    """
    both = member.unsqueeze(1) & member
    wide = torch.where(both, (cosines + cosines.T) / 2, -2.0)
    for middle in range(len(member)):
        wide = torch.maximum(wide, torch.minimum(wide[:, middle : middle + 1], wide[middle : middle + 1]))
    distances = both & ~torch.eye(len(member), dtype=torch.bool, device=member.device)
    alpha = torch.where(distances, wide, 2.0).amin()
    longest = torch.where(member, lengths, -1.0).argmax().view(1)
    first = wide.index_select(0, longest).squeeze(0) > alpha
    first = first | (torch.arange(len(member), device=member.device) == longest)
    return member & ~first, alpha


class Ruled(NamedTuple):
    """Result of a robust rule in every cluster.

    Args:
        step: of each cluster, leaves [J, *].
        trusted: 1 for a cluster with as many members as the rule needs, 0 for another [J].
        members: how many [J].
        statistics: each cluster's share of those of all clients, leaves [J, *].
    """

    step: Any
    trusted: Tensor
    members: Tensor
    statistics: Any


def by_rule(rule: Rule, steps: Tree, cluster: Tensor, weight: Tensor, statistics: Tree) -> Ruled:
    """Join the steps of every cluster's members by a robust rule.

    Statistics are joined over all clients: a cluster may have few members.

    Args:
        rule: the aggregate.
        steps: each client's step in its cluster's slot, leaves [K, J, *].
        cluster: of every client [K], int64 in 0..J-1.
        weight: of every client [K].
        statistics: what clients say of the round, leaves [K, *].

    Returns:
        Steps, members and statistics by cluster.
    """
    said, present, rows = rule.statistics(statistics, weight), (weight > 0).sum().clamp_min(1), []
    for j in range(next(iter(tensors.leaves(steps).values())).shape[1]):
        members = torch.where(cluster == j, weight, 0.0)
        count = (members > 0).sum()
        step = rule(tensors.tree_map(lambda leaf, j=j: leaf[:, j], steps), members)
        trusted = (count >= rule.fewest).to(members)
        share = count.double() / present
        part = tensors.tree_map(lambda leaf, share=share: share * leaf, said)
        rows.append(Ruled(step, trusted, count.to(members), part))
    result: Ruled = tensors.tree_map(lambda *leaves: torch.stack(leaves), *rows)
    return result


def matched(sent: Moments, cluster: Tensor, weight: Tensor, old: Moments) -> tuple[Moments, Tensor]:
    """Match the moments of every cluster's members; an empty cluster keeps its own.

    Args:
        sent: leaves [K, D].
        cluster: of every client [K], int64 in 0..J-1.
        weight: of every client [K].
        old: of the clusters, leaves [J, D].

    Returns:
        Leaves [J, D], and the weight of each cluster [J].
    """
    member = torch.nn.functional.one_hot(cluster, len(old.mean)).to(weight) * weight.unsqueeze(1)  # [K, J]
    result = [moments.match(sent, own) for own in member.unbind(1)]
    joined = tensors.tree_map(lambda *leaves: torch.stack(leaves), *result)
    total = member.sum(0)
    return tensors.where(total > 0, joined, old), total


def k_means(points: Tensor, weight: Tensor, clusters: int, steps: int = 20) -> Tensor:
    """Group clients by their uploads: Lloyd's algorithm from farthest-first centres, without randomness.

    Args:
        points: [K, D].
        weight: of every client [K]; clients of weight 0 found no cluster.
        clusters: J; with fewer clients than that some clusters stay empty.
        steps: of Lloyd's algorithm.

    Returns:
        Cluster of every client [K], int64.

    Example:
        >>> import torch
        >>> from pacbayes_fl.server import clusters
        >>> points = torch.tensor([[0.0], [0.1], [5.0], [5.1]])
        >>> clusters.k_means(points, torch.ones(4), clusters=2).tolist()
        [0, 0, 1, 1]
    """
    present = weight > 0
    there, count = present.unsqueeze(1), present.sum()
    middle = torch.where(there, points, 0.0).sum(0) / count.clamp_min(1)
    centred = torch.where(there, points - middle, 0.0).double()
    inner = centred @ centred.T  # [K, K]: all distances between clients and means of clients come from it
    squares = inner.diagonal()
    nearest = squares.clone()
    chosen: list[Tensor] = []
    for _ in range(min(clusters, len(points))):
        far = torch.where(present, nearest, -1.0).argmax().view(1)  # who is absent stands at the middle
        chosen.append(far)
        distances = squares + squares.index_select(0, far) - 2 * inner.index_select(1, far).squeeze(1)
        nearest = torch.minimum(nearest, distances) if len(chosen) > 1 else distances
    founded = torch.arange(len(chosen), device=points.device) < count  # the others have nobody to begin at
    members = torch.nn.functional.one_hot(torch.cat(chosen), len(points)).double() * founded.unsqueeze(1)  # [J, K]
    cluster = torch.zeros(len(points), dtype=torch.int64, device=points.device)
    for _ in range(steps):
        share = members / members.sum(1, keepdim=True).clamp_min(1.0)
        distance = torch.einsum("jk,kl,jl->j", share, inner, share).unsqueeze(1) - 2 * share @ inner  # [J, K]
        cluster = torch.where(founded.unsqueeze(1), distance, torch.inf).argmin(0)
        members = torch.nn.functional.one_hot(cluster, len(chosen)).T.double() * present
    return cluster
