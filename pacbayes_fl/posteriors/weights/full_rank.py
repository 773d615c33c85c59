"""Gaussian weights with any covariance, by its Cholesky factor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from pacbayes_fl.errors import StudyError
from pacbayes_fl.models.base import WeightModel
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.weights.by_autograd import ByAutograd, check_uncertain
from pacbayes_fl.posteriors.weights.mean_field import bound_rho_, initial_mean_field, log_softplus

MOST = 8192
"""Weights of a full covariance: 33 million numbers a client, as often as its optimisers need them."""


class _Parameters(NamedTuple):
    loc: Tensor
    rho: Tensor
    lower: Tensor


class FullRankNormal(_Parameters, ByAutograd):
    """theta ~ N(mu, L L'), L lower triangular with the diagonal softplus(rho).

    The mean over clients of their parameters is a Gaussian again, as every L with a positive diagonal is a factor; with
    nothing below the diagonal it is the mean of mean fields (pFedBayes, Algorithm 1).

    Args:
        loc: mu [*, D].
        rho: of the diagonal [*, D], kept in [-20, 20] (float64: [-40, 40]).
        lower: entries below the diagonal, row by row [*, D (D - 1) / 2].
    """

    __slots__ = ()

    @property
    def factor(self) -> Tensor:
        """Cholesky factors L [*, D, D]."""
        dim = self.loc.shape[-1]
        row, column = torch.tril_indices(dim, dim, -1, device=self.loc.device)
        factor = torch.diag_embed(softplus(self.rho))
        factor[..., row, column] = self.lower
        return factor

    def draw(self, noise: Noise) -> Tensor:
        """Standard normals [K, D]."""
        return noise.weights(self.loc)

    def weights(self, draw: Tensor) -> Tensor:
        """Weights theta = mu + L eps [K, D] of a draw [K, D] of eps."""
        return self.loc + (self.factor @ draw.unsqueeze(-1)).squeeze(-1)

    def mean(self) -> Tensor:
        """Mean mu [*, D]."""
        return self.loc

    def kl(self, prior: FullRankNormal) -> Tensor:
        """KL divergence of two Gaussians, from their Cholesky factors.

        KL = sum_m ln(M_mm / L_mm) + 1/2 (|M^-1 L|^2 + |M^-1 (mu_q - mu_w)|^2 - D)

        Args:
            prior: N(mu_w, M M'), leaves [D] or [K, D].

        Returns:
            [K], in nats, float64.
        """
        q, w = (FullRankNormal(*(leaf.double() for leaf in family)) for family in (self, prior))
        columns = torch.cat((q.factor, (q.loc - w.loc).unsqueeze(-1)), -1)
        squares = torch.linalg.solve_triangular(w.factor, columns, upper=False).square().sum((-2, -1))
        kl: Tensor = (log_softplus(w.rho) - log_softplus(q.rho)).sum(-1) + 0.5 * (squares - q.loc.shape[-1])
        return kl

    def bounded(self) -> FullRankNormal:
        """Clamp rho in place to where softplus and its logarithm are exact numbers."""
        bound_rho_(self.rho)
        return self


@dataclass(frozen=True)
class FullRank:
    """All Gaussians over the weights: the exact posterior of a model that is linear with Gaussian noise is one."""

    def initial(self, model: WeightModel, std: float, rho: float, generator: torch.Generator) -> FullRankNormal:
        """Initialise as the mean field, without correlations; see `initial_mean_field`."""
        loc, rhos = initial_mean_field(model, std, rho, generator)
        return FullRankNormal(loc, rhos, loc.new_zeros(self.held(model.dim)))

    def held(self, dim: int) -> int:
        """Numbers of a client beside mean and scale of D weights, D (D - 1) / 2."""
        return dim * (dim - 1) // 2

    def check(self, model: WeightModel) -> None:
        """Check that the covariance fits into memory."""
        check_uncertain(model, "FullRank")
        if model.dim > MOST:
            what = f"a full covariance over {model.dim} weights has {self.held(model.dim):.2g} numbers per client"
            raise StudyError(f"{what}; at most {MOST} weights have one", hint="family = LowRank(rank)")
