"""Averages of clients' uploads, and the server's step towards the average."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol, TypeVar

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.errors import StudyError
from pacbayes_fl.server.aggregations import AggregationRule
from pacbayes_fl.tensors import AnyTree, Tree

Weighting = Literal["uniform", "rows"]


class WeightedUpdate(Protocol):
    """A NamedTuple of clients' uploads, with their weights in the server's average."""

    @property
    def weight(self) -> Tensor:
        """Weights [K]."""


Sent = TypeVar("Sent", bound=WeightedUpdate)


def extrapolate(old: Tree, mean: Tree, beta: float) -> Tree:
    """Go from the server's value towards the clients' average, or beyond it.

    v^{t+1} = (1 - beta) v^t + beta mean      (pFedBayes Algorithm 1, last line of the server)

    Args:
        old: the server's leaves [*].
        mean: of the clients [*].
        beta: 1 takes the average, above 1 overshoots.

    Returns:
        Leaves [*].

    Example:
        >>> import torch
        >>> from pacbayes_fl.server import average
        >>> average.extrapolate(torch.zeros(2), torch.ones(2), beta=0.5).tolist()
        [0.5, 0.5]
    """
    return tensors.tree_map(lambda before, after: torch.lerp(before, after, beta), old, mean)


def client_weight(size: Tensor, weighting: Weighting) -> Tensor:
    """Weight of every client in an average.

    Args:
        size: real rows [K].
        weighting: "uniform" (Algorithm 1), or "rows" as the public codes do.

    Returns:
        [K], 0 for a client without rows.

    Example:
        >>> import torch
        >>> from pacbayes_fl.server import average
        >>> average.client_weight(torch.tensor([10, 30, 0]), "rows").tolist()
        [10, 30, 0]
    """
    present = (size > 0).to(size.dtype)
    return present if weighting == "uniform" else size


def check_robust(weighting: Weighting, rule: AggregationRule) -> None:
    """Ask that clients weigh alike where a rule knows no weights.

    Args:
        weighting: of clients in the server's average.
        rule: that joins their steps.

    Raises:
        StudyError: naming both options.
    """
    if weighting != "uniform" and not rule.weighted:
        what = f"aggregate = {rule.name!r} counts every client once, and weighting = {weighting!r} does not"
        raise StudyError(what, hint="method.weighting = 'uniform', or federation.aggregate = 'clipped'")


def reduced(update: Sent, averaged: str, join: Callable[[AnyTree, Tensor], AnyTree] = tensors.weighted_mean) -> Sent:
    """Reduce the updates of a chunk of clients to one row: averaged leaves to their mean, the others to sums.

    Args:
        update: a NamedTuple with leaves [K, *], one of them `weight` [K].
        averaged: name of the field that the server joins with these weights.
        join: takes leaves [K, *] and weights [K] and gives leaves [*]; it must be associative.

    Returns:
        The same NamedTuple with leaves [1, *].
    """
    rows: Any = update
    sums = tensors.total(rows._replace(**{averaged: update.weight}))
    joined: Sent = sums._replace(**{averaged: tensors.expand(join(getattr(update, averaged), update.weight), 1)})
    return joined
