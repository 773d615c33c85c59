"""Posterior of a method that learns one function and one residual variance: a linear map."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.predictive import NormalMixture


@dataclass(frozen=True, eq=False)
class LinearPoint:
    """A linear prediction with Gaussian residuals of constant variance.

    y = x w + b + e, e ~ N(0, s^2)

    Args:
        weight: [K, d], in units of y per unit of x.
        bias: [K], in units of y.
        variance: residual variance [K], in squared units of y, positive.
    """

    weight: Tensor
    bias: Tensor
    variance: Tensor

    def predict(self, x: Tensor) -> NormalMixture:
        """Predictive distribution.

        Args:
            x: inputs [K, M, d].

        Returns:
            One normal per row, [K, 1, M].
        """
        mean = torch.einsum("kmd,kd->km", x, self.weight) + self.bias.unsqueeze(-1)
        variance = self.variance.view(-1, 1, 1).expand(-1, 1, x.shape[1])
        return NormalMixture(x.new_zeros(len(x), 1), mean.unsqueeze(1), variance)


class PointMass(NamedTuple):
    """Weights that are known: the family of methods without uncertainty.

    Args:
        loc: theta [*, D].
    """

    loc: Tensor

    def draw(self, noise: Noise) -> None:
        """Draw nothing."""

    def weights(self, draw: None) -> Tensor:
        """Weights theta [*, D], the same for every draw."""
        return self.loc

    def mean(self) -> Tensor:
        """Weights theta [*, D]."""
        return self.loc
