"""Predictive distributions over classes: probabilities averaged over draws of the weights, in log space."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from pacbayes_fl.errors import ShapeError


@dataclass(frozen=True, eq=False)
class ClassMixture:
    """Probabilities of C classes per row, already averaged over draws of the weights.

    p(y = c) = 1/S sum_s p_s(y = c)

    Args:
        log_probs: log probabilities [K, N, C] in nats, normalised over C; minus infinity where a class is impossible.
    """

    log_probs: Tensor

    @property
    def probs(self) -> Tensor:
        """Probabilities [K, N, C]."""
        return self.log_probs.exp()

    @property
    def entropy(self) -> Tensor:
        """Entropy [K, N] in nats; an impossible class contributes nothing."""
        information: Tensor = torch.special.entr(self.probs)
        return information.sum(-1)

    def log_prob(self, y: Tensor) -> Tensor:
        """Log probability.

        Args:
            y: integer labels [K, N], 0 to C - 1.

        Returns:
            [K, N], in nats.
        """
        return self.log_probs.gather(-1, y.long().unsqueeze(-1)).squeeze(-1)


def average_log_probs(draws: Iterable[Tensor]) -> Tensor:
    """Average the probabilities of several draws, one draw in memory at a time.

    ln p = ln(1/S sum_s exp(ln p_s)), by a running sum in log space: nothing underflows.

    Args:
        draws: log probabilities [K, N, C] in nats, one tensor a draw.

    Returns:
        Log probabilities [K, N, C], normalised where the draws are.

    Raises:
        ShapeError: when there is no draw, or two differ in shape.

    Example:
        >>> import torch
        >>> from pacbayes_fl.posteriors.classes import average_log_probs
        >>> draws = [torch.tensor([[[p, 1 - p]]], dtype=torch.float64).log() for p in (0.9, 0.5)]
        >>> average_log_probs(draws).exp().numpy().round(4).tolist()
        [[[0.7, 0.3]]]
    """
    total, count = None, 0
    for draw in draws:
        if total is not None and draw.shape != total.shape:
            raise ShapeError(f"draw {count} must be {list(total.shape)} like those before it, got {list(draw.shape)}")
        total = draw if total is None else torch.logaddexp(total, draw)
        count += 1
    if total is None:
        raise ShapeError("draws must hold at least one tensor [K, N, C], got none")
    return total - math.log(count)
