"""A classical GP prior: Matern 5/2 with a lengthscale for every feature, and a linear term."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor

from pacbayes_fl.models.base import FunctionModel
from pacbayes_fl.models.likelihoods import NOISE_STD, gaussian_noise, inverse_softplus

_SCALES = -1.0  # where ln a and ln b start
_SMALLEST = 1e-20  # squared distance, at which the square root still has a slope


@final
class ARDMatern(FunctionModel):
    """Matern 5/2 with automatic relevance determination, and a linear model with Gaussian coefficients.

    k(x, x') = a (1 + r + r^2 / 3) exp(-r) + b (1 + x'x / d),  r^2 = 5 sum_j (x_j - x'_j)^2 / l_j^2

    (Rasmussen and Williams 2006, eqs. 4.17, 5.1 and section 2.7; the coefficients are integrated out.) theta holds the
    raw noise and the logarithms of a, b and l_1 ... l_d.

    Args:
        input_dim: number of input features, d.
        noise_std: centre of the noise standard deviation, in units of y.
    """

    def __init__(self, input_dim: int, noise_std: float = NOISE_STD) -> None:
        """Store the sizes."""
        self._input_dim, self._noise_std = input_dim, noise_std

    @property
    def dim(self) -> int:
        """Number of hyper-parameters, D = d + 3."""
        return self._input_dim + 3

    @property
    def input_dim(self) -> int:
        """Number of input features, d."""
        return self._input_dim

    def location(self) -> Tensor:
        """Centre [D]: a = b = 1/e, and l_j = sqrt(d), about the distance of two rows over the root of 2."""
        centre = torch.full((self.dim,), 0.5 * math.log(self._input_dim), dtype=torch.float64)
        centre[0], centre[1:3] = inverse_softplus(self._noise_std), _SCALES
        return centre

    def noise(self, theta: Tensor, x: Tensor) -> Tensor:
        """Observation noise variance [K, P, N] under theta [K, P, D], alike at all x [K, N, d]; see the base class."""
        return gaussian_noise(theta[..., :1]).expand(len(x), theta.shape[1], x.shape[1])

    def mean(self, theta: Tensor, x: Tensor) -> Tensor:
        """Prior mean 0 [K, P, N] under theta [K, P, D] at x [K, N, d]; see the base class."""
        return theta.new_zeros(len(x), theta.shape[1], x.shape[1])

    def covariance(self, theta: Tensor, x: Tensor, other: Tensor | None = None) -> Tensor:
        """Covariance [K, P, N, M] under theta [K, P, D] between x [K, N, d] and other [K, M, d]; see the base class."""
        a, b, inverse = self._scales(theta)
        x, other = (rows.unsqueeze(1) for rows in (x, x if other is None else other))
        one, two = x * inverse.unsqueeze(2), other * inverse.unsqueeze(2)
        squares = one.square().sum(-1)[..., :, None] + two.square().sum(-1)[..., None, :] - 2.0 * one @ two.mT
        r = (5.0 * squares).clamp_min(_SMALLEST).sqrt()
        linear = b[..., None, None] * (1.0 + x @ other.mT / self._input_dim)
        return a[..., None, None] * (1.0 + r + r.square() / 3.0) * (-r).exp() + linear

    def variance(self, theta: Tensor, x: Tensor) -> Tensor:
        """Prior variance [K, P, N] under theta [K, P, D] at x [K, N, d]; see the base class."""
        a, b, _ = self._scales(theta)
        return a.unsqueeze(-1) + b.unsqueeze(-1) * (1.0 + x.square().mean(-1)).unsqueeze(1)

    def embedding(self, theta: Tensor, x: Tensor) -> None:
        """None: squared distances alone do not decide the covariance, for every theta [K, P, D] and x [K, N, d]."""
        return None

    def _scales(self, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Variances a and b [K, P], and inverse lengthscales [K, P, d]."""
        return theta[..., 1].exp(), theta[..., 2].exp(), (-theta[..., 3:]).exp()
