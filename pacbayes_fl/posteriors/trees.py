"""Boosted regression trees as tensors: what scikit-learn grew, kept and evaluated without it and without pickles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pacbayes_fl.posteriors.predictive import NormalMixture


class Forest(NamedTuple):
    """T binary trees of K clients, or of one for all of them, whose leaves are added.

    A node sends a row to its left child where x[feature] <= threshold. A leaf is its own child on both sides, and so is
    every node behind the last real one.

    Args:
        feature: [K, T, L], int64.
        threshold: [K, T, L], in units of the feature.
        left: child [K, T, L], int64.
        right: child [K, T, L], int64.
        value: of a leaf [K, T, L], in units of y.
        baseline: what the leaves are added to [K], in units of y.
    """

    feature: Tensor
    threshold: Tensor
    left: Tensor
    right: Tensor
    value: Tensor
    baseline: Tensor

    def predict(self, x: Tensor) -> Tensor:
        """Add up the leaves in which rows end, tree by tree in the order in which they were grown.

        Args:
            x: inputs [K, M, d].

        Returns:
            [K, M], in units of y, float64: to the last bit what scikit-learn predicts.
        """
        x, clients = x.double(), len(x)
        total = self.baseline.expand(clients).unsqueeze(1).expand(x.shape[:2])
        depth = (self.feature.shape[2] - 1) // 2  # of a tree of L nodes at most
        for t in range(self.feature.shape[1]):
            feature, threshold, left, right, value = (nodes[:, t].expand(clients, -1) for nodes in self[:5])
            at = torch.zeros(x.shape[:2], dtype=torch.int64, device=x.device)
            for _ in range(depth):
                entry = x.gather(2, feature.gather(1, at).unsqueeze(-1)).squeeze(-1)
                at = torch.where(entry <= threshold.gather(1, at), left.gather(1, at), right.gather(1, at))
            total = total + value.gather(1, at)
        return total


def no_trees() -> Forest:
    """Predict 0: a forest before it has grown, leaves [1, 0, 1] and [1]."""
    none, level = torch.zeros(1, 0, 1, dtype=torch.int64), torch.zeros(1, 0, 1, dtype=torch.float64)
    return Forest(none, level, none.clone(), none.clone(), level.clone(), torch.zeros(1, dtype=torch.float64))


def side_by_side(forests: list[Forest]) -> Forest:
    """Join the forests of single clients.

    Args:
        forests: one for each of K clients, leaves [1, T, L_k] and [1], of as many trees each, or of none.

    Returns:
        Leaves [K, T, L] and [K], L the largest; further nodes are never reached.
    """
    trees, nodes = (max(one.feature.shape[axis] for one in forests) for axis in (1, 2))

    def whole(leaf: Tensor) -> Tensor:
        result = leaf.new_zeros(1, trees, nodes)
        result[:, : leaf.shape[1], : leaf.shape[2]] = leaf
        return result

    joined = [torch.cat([whole(leaf) for leaf in leaves]) for leaves in list(zip(*forests, strict=True))[:5]]
    return Forest._make([*joined, torch.cat([one.baseline for one in forests])])


@dataclass(frozen=True, eq=False)
class TreePosterior:
    """Trees with Gaussian residuals of constant variance.

    y = f(x, u) + e, e ~ N(0, s^2)

    Args:
        forest: f, of K clients or of one for all of them.
        variance: residual variance [K], in squared units of y, positive.
        summaries: u, numbers of each client that stand behind the features of every row of its [K, S].
    """

    forest: Forest
    variance: Tensor
    summaries: Tensor

    def predict(self, x: Tensor) -> NormalMixture:
        """Predictive distribution.

        Args:
            x: inputs [K, M, d].

        Returns:
            One normal per row, [K, 1, M].
        """
        mean = self.forest.predict(beside(x, self.summaries))
        variance = self.variance.view(-1, 1, 1).expand(-1, 1, x.shape[1])
        return NormalMixture(mean.new_zeros(len(x), 1), mean.unsqueeze(1), variance)


def beside(x: Tensor, summaries: Tensor) -> Tensor:
    """Put numbers of each client behind the features of its rows.

    Args:
        x: inputs [K, M, d].
        summaries: [K, S].

    Returns:
        [K, M, d + S], float64.
    """
    return torch.cat((x.double(), summaries.double().unsqueeze(1).expand(-1, x.shape[1], -1)), 2)
