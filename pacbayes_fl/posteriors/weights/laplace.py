"""Laplace posteriors: Gaussian weights of a subnetwork around an estimate, all others known."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from pacbayes_fl.models.weights.jacobian import Jacobian
from pacbayes_fl.noise import Noise


class GaussianWeights(Protocol):
    """Gaussian weights around an estimate, for draws and for linearised predictions."""

    @property
    def loc(self) -> Tensor:
        """Estimate theta [K, D]."""

    @property
    def held(self) -> int:
        """Numbers per row and output that `output_covariance` makes of a Jacobian's factors."""

    def draw(self, noise: Noise) -> Tensor:
        """Standard normals of one draw, [K, *]."""

    def step(self, draw: Tensor) -> Tensor:
        """Way [K, D] from the estimate to the weights of a draw [K, *]."""

    def weights(self, draw: Tensor) -> Tensor:
        """Weights theta [K, D] of a draw [K, *]."""

    def mean(self) -> Tensor:
        """Estimate theta [K, D]."""

    def output_covariance(self, jacobian: Jacobian) -> Tensor:
        """Covariance [K, N, C, C] of the linearised outputs."""


class SubnetworkGaussian(NamedTuple):
    """A full-covariance Gaussian over a subnetwork, point masses on all other weights (FedSI eqs. 12, 15).

    A chosen weight on which no training row depends has the prior's variance and is correlated with no other. Such
    weights, often most of those of largest variance, are held by their variances alone.

    Args:
        loc: estimate of all weights theta [K, D].
        chosen: positions of the weights that are correlated [K, B].
        factor: lower Cholesky factor L of their precision [K, B, B], in the order of `chosen`.
        variance: of the weights that are not [K, D], in squared units of a weight; 0 elsewhere.
    """

    loc: Tensor
    chosen: Tensor
    factor: Tensor
    variance: Tensor

    @property
    def held(self) -> int:
        """One per correlated weight."""
        return self.chosen.shape[1]

    def draw(self, noise: Noise) -> Tensor:
        """Standard normals [K, D], of which the subnetwork's are used."""
        return noise.weights(self.loc)

    def step(self, draw: Tensor) -> Tensor:
        """Move the subnetwork away from the estimate.

        theta_S - loc_S = L^-T eps, with covariance L^-T L^-1 = (L L')^-1

        Args:
            draw: eps [K, D].

        Returns:
            theta - loc [K, D]; 0 for weights that are known.
        """
        eps = draw.gather(1, self.chosen).unsqueeze(-1)
        moved = torch.linalg.solve_triangular(self.factor.mT, eps, upper=True).squeeze(-1)
        return (self.variance.sqrt() * draw).scatter_add(1, self.chosen, moved)

    def weights(self, draw: Tensor) -> Tensor:
        """Weights theta [K, D] of a draw [K, D]."""
        return self.loc + self.step(draw)

    def mean(self) -> Tensor:
        """Estimate theta [K, D]."""
        return self.loc

    def covariance(self) -> Tensor:
        """Covariance of the correlated weights [K, B, B], in the order of `chosen`."""
        covariance: Tensor = torch.cholesky_inverse(self.factor)
        return covariance

    def output_covariance(self, jacobian: Jacobian) -> Tensor:
        """Spread the subnetwork to the linearised outputs.

        Sigma(x) = J_S H_S^-1 J_S' = (L^-1 J_S')' (L^-1 J_S')      (FedSI eqs. 18, 19)

        Args:
            jacobian: of the outputs at x.

        Returns:
            [K, N, C, C], float64.
        """
        columns = jacobian.columns(self.chosen)
        solved = torch.linalg.solve_triangular(self.factor, columns.flatten(1, 2).mT, upper=False)
        by_row = solved.mT.unflatten(1, columns.shape[1:3])
        covariance: Tensor = by_row @ by_row.mT + jacobian.spread(self.variance)
        return covariance.double()


class DiagonalGaussian(NamedTuple):
    """Independent Gaussian weights, those without uncertainty with variance 0: the factorised variant, FedSI-Fac.

    Args:
        loc: estimate theta [K, D].
        variance: sigma^2 [K, D], in squared units of a weight.
    """

    loc: Tensor
    variance: Tensor

    @property
    def held(self) -> int:
        """None: the factors suffice."""
        return 0

    def draw(self, noise: Noise) -> Tensor:
        """Standard normals [K, D]."""
        return noise.weights(self.loc)

    def step(self, draw: Tensor) -> Tensor:
        """Way sigma eps [K, D] from the estimate, for a draw [K, D]."""
        return self.variance.sqrt() * draw

    def weights(self, draw: Tensor) -> Tensor:
        """Weights theta [K, D] of a draw [K, D]."""
        return self.loc + self.step(draw)

    def mean(self) -> Tensor:
        """Estimate theta [K, D]."""
        return self.loc

    def output_covariance(self, jacobian: Jacobian) -> Tensor:
        """Covariance J diag(sigma^2) J' [K, N, C, C] of the linearised outputs, float64."""
        return jacobian.spread(self.variance).double()


class PartlyKnown(NamedTuple):
    """Gaussian weights, of which some clients' are known: they are the estimate, whatever stands in the Gaussian.

    Args:
        inner: of all clients.
        known: which clients' weights are [K], bool.
    """

    inner: GaussianWeights
    known: Tensor

    @property
    def loc(self) -> Tensor:
        """Estimate theta [K, D]."""
        return self.inner.loc

    @property
    def held(self) -> int:
        """As of the Gaussian."""
        return self.inner.held

    def draw(self, noise: Noise) -> Tensor:
        """Draw what the Gaussian would [K, *]: other clients' weights stay as they are."""
        return self.inner.draw(noise)

    def step(self, draw: Tensor) -> Tensor:
        """Way [K, D] from the estimate, for a draw [K, *]; 0 where weights are known."""
        return self.inner.step(draw).masked_fill(self.known.unsqueeze(1), 0.0)

    def weights(self, draw: Tensor) -> Tensor:
        """Weights theta [K, D] of a draw [K, *]."""
        return self.loc + self.step(draw)

    def mean(self) -> Tensor:
        """Estimate theta [K, D]."""
        return self.loc

    def output_covariance(self, jacobian: Jacobian) -> Tensor:
        """Covariance [K, N, C, C] of the linearised outputs, 0 where weights are known."""
        return self.inner.output_covariance(jacobian).masked_fill(self.known[:, None, None, None], 0.0)


def wasserstein(mean: Tensor, covariance: Tensor, other_mean: Tensor, other_covariance: Tensor) -> Tensor:
    """Measure how far two Gaussians are apart: the squared 2-Wasserstein distance, degenerate ones included.

    |m - m'|^2 + Tr(S + S' - 2 (S'^1/2 S S'^1/2)^1/2)      (FedSI eq. 13; its S' pads a subnetwork's covariance with 0)

    Args:
        mean: m [*, D].
        covariance: S [*, D, D], positive semi-definite.
        other_mean: m' [*, D].
        other_covariance: S' [*, D, D], positive semi-definite.

    Returns:
        [*], in squared units of a weight.

    Example:
        >>> import torch
        >>> from pacbayes_fl.posteriors.weights.laplace import wasserstein
        >>> zero, eye = torch.zeros(2).double(), torch.eye(2).double()
        >>> round(wasserstein(zero, eye, zero + 1, 4 * eye).item(), 3)
        4.0
    """
    values, vectors = torch.linalg.eigh(other_covariance)
    root = (vectors * values.clamp_min(0.0).sqrt().unsqueeze(-2)) @ vectors.mT
    across = torch.linalg.eigvalsh(root @ covariance @ root).clamp_min(0.0).sqrt().sum(-1)
    spread = (covariance + other_covariance).diagonal(dim1=-2, dim2=-1).sum(-1)
    distance: Tensor = (mean - other_mean).square().sum(-1) + spread - 2.0 * across
    return distance
