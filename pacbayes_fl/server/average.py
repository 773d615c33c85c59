"""Averaging of what clients upload, and the step that the server takes towards the average."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.tensors import Tree

Weighting = Literal["uniform", "rows"]


def extrapolate(old: Tree, mean: Tree, beta: float) -> Tree:
    """Go from the server's value towards the clients' average, or beyond it.

    v^{t+1} = (1 - beta) v^t + beta mean      (pFedBayes Algorithm 1, last line of the server)

    Args:
        old: the server's leaves [*].
        mean: of the clients [*].
        beta: 1 takes the average, above 1 overshoots.

    Returns:
        Leaves [*].
    """
    return tensors.tree_map(lambda before, after: torch.lerp(before, after, beta), old, mean)


def client_weight(size: Tensor, weighting: Weighting) -> Tensor:
    """Weight of every client in an average.

    Args:
        size: real rows [K].
        weighting: "uniform" (Algorithm 1), or "rows" as the public codes do.

    Returns:
        [K], 0 for a client without rows.
    """
    present = (size > 0).to(size.dtype)
    return present if weighting == "uniform" else size


def mean(tree: Tree, weight: Tensor) -> Tree:
    """Average clients into one, keeping a client dimension: averages of such averages are the average of all.

    Args:
        tree: leaves [K, *].
        weight: non-negative [K].

    Returns:
        Leaves [1, *].
    """
    return tensors.expand(tensors.weighted_mean(tree, weight), 1)


def reduced(update: Any, averaged: str) -> Any:
    """Reduce the updates of a chunk of clients to one row: what the server averages to its mean, the rest to sums.

    Args:
        update: a NamedTuple with leaves [K, *], one of them `weight` [K].
        averaged: name of the field that the server averages with these weights.

    Returns:
        The same NamedTuple with leaves [1, *].
    """
    sums = tensors.total(update._replace(**{averaged: update.weight}))
    return sums._replace(**{averaged: mean(getattr(update, averaged), update.weight)})
