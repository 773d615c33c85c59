"""Averages by cluster: what the server of a clustered method keeps, one value per cluster."""

from __future__ import annotations

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.server import moments
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


def mean(totals: Tree, weight: Tensor, old: Tree) -> Tree:
    """Average every cluster over its members; an empty cluster keeps its value.

    The journal's Algorithm 3 divides by the number of clients drawn, members or not, which would shrink the mean
    towards zero; here by the members.

    Args:
        totals: weighted sums [J, *].
        weight: of the members of each cluster [J].
        old: the clusters' values [J, *].

    Returns:
        Leaves [J, *].
    """

    def one(total: Tensor, before: Tensor) -> Tensor:
        by = weight.to(total.dtype).view(-1, *[1] * (total.dim() - 1))
        return torch.where(by > 0, total / by.clamp_min(torch.finfo(total.dtype).tiny), before)

    return tensors.tree_map(one, totals, old)


def matched(sent: Moments, cluster: Tensor, weight: Tensor, old: Moments) -> Moments:
    """Match the moments of every cluster's members; an empty cluster keeps its own.

    Args:
        sent: leaves [K, D].
        cluster: of every client [K], int64 in 0..J-1.
        weight: of every client [K].
        old: of the clusters, leaves [J, D].

    Returns:
        Leaves [J, D].
    """
    member = torch.nn.functional.one_hot(cluster, len(old.mean)).to(weight) * weight.unsqueeze(1)  # [K, J]
    result = [moments.match(sent, own) for own in member.unbind(1)]
    joined = tensors.tree_map(lambda *leaves: torch.stack(leaves), *result)
    return tensors.where(member.sum(0) > 0, joined, old)


def k_means(points: Tensor, weight: Tensor, clusters: int, steps: int = 20) -> Tensor:
    """Group clients by what they sent: Lloyd's algorithm from farthest-first centres, without any randomness.

    Args:
        points: [K, D].
        weight: of every client [K]; clients of weight 0 found no cluster.
        clusters: J; with fewer clients than that some clusters stay empty.
        steps: of Lloyd's algorithm.

    Returns:
        Cluster of every client [K], int64.
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
        far = nearest.argmax().view(1)
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
