"""Unadjusted Langevin steps on some of a network's weights, many clients at once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pacbayes_fl.noise import Noise
from pacbayes_fl.options import check, option


@dataclass(frozen=True)
class Langevin:
    """How a client draws from a posterior: stochastic gradient Langevin dynamics (Welling and Teh 2011).

    Args:
        rate: of a step; the draws are too wide where it is not small beside the posterior's variances.
        temperature: of the draws; 0 descends to the posterior's mode, without noise.
        burn_in: share of a round's steps before the first draw that counts.
        longest: length that a step along the gradient has at most, of all weights of a client together: a chain whose
            rate is too large wanders, but stays finite.
    """

    rate: float = option(1e-4, above=0, symbol="gamma")
    temperature: float = option(1.0, low=0)
    burn_in: float = option(0.5, low=0, below=1)
    longest: float = option(1.0, above=0)

    def __post_init__(self) -> None:
        """Check the ranges."""
        check(self)

    def step(self, z: Tensor, drift: Tensor, noise: Noise) -> Tensor:
        """Take a step of the chain.

        z <- z - gamma grad U(z) + sqrt(2 gamma T) xi,  xi ~ N(0, I), where gamma |grad U| is at most `longest`

        Args:
            z: weights [K, E]; left as they are.
            drift: gradient of U = -ln p(D | z) - ln p(z) [K, E], in nats per unit of a weight.
            noise: the clients' streams; nothing is drawn where T = 0.

        Returns:
            [K, E].
        """
        length = self.rate * torch.linalg.vector_norm(drift, dim=1, keepdim=True)
        moved: Tensor = z - self.rate * drift * (self.longest / length.clamp_min(self.longest))
        if not self.temperature:
            return moved
        return torch.add(moved, noise.weights(z), alpha=math.sqrt(2.0 * self.rate * self.temperature))


class Draws(NamedTuple):
    """Sums over a chain's draws that count, about its start, which keeps their digits.

    Args:
        start: [K, E].
        first: sum of z - start [K, E].
        second: sum of (z - start)^2 [K, E].
        number: of the draws [K].
    """

    start: Tensor
    first: Tensor
    second: Tensor
    number: Tensor

    @classmethod
    def none(cls, start: Tensor) -> Draws:
        """Begin without draws, at start [K, E]."""
        zero = torch.zeros_like(start)
        return cls(start, zero, zero.clone(), torch.zeros(len(start), dtype=start.dtype, device=start.device))

    def add(self, z: Tensor, counts: Tensor) -> Draws:
        """Add a draw.

        Args:
            z: [K, E].
            counts: bool [K], of which clients it counts.

        Returns:
            The sums with it.
        """
        share = counts.to(z.dtype)
        away = (z - self.start) * share.unsqueeze(1)
        return Draws(self.start, self.first + away, self.second + away.square(), self.number + share)

    def mean(self) -> Tensor:
        """Mean of the draws [K, E]; the start where there are none."""
        return self.start + self._mean_step()

    def variance(self) -> Tensor:
        """Variance of the draws [K, E], divided by their number."""
        number = self.number.clamp_min(1.0).unsqueeze(1)
        return (self.second / number - self._mean_step().square()).clamp_min(0.0)

    def _mean_step(self) -> Tensor:
        return self.first / self.number.clamp_min(1.0).unsqueeze(1)
