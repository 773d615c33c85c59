"""Gaussian weights whose covariance is a diagonal and a few directions."""

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

SPREAD = 0.1
"""Entries of the initial factor, in standard deviations of a weight: directions that begin at 0 have slope 0."""


class LowRankDraw(NamedTuple):
    """Random numbers of one draw.

    Args:
        eps: standard normals of the weights [K, D].
        shared: standard normals of the directions [K, R].
    """

    eps: Tensor
    shared: Tensor


class _Parameters(NamedTuple):
    loc: Tensor
    rho: Tensor
    factor: Tensor


class LowRankNormal(_Parameters, ByAutograd):
    """theta ~ N(mu, diag(sigma^2) + F F'), sigma = softplus(rho).

    The mean over clients of their parameters is such a Gaussian again. F and its columns in other directions are one
    distribution; the clients' F agree in theirs as far as they began a round at the same one.

    Args:
        loc: mu [*, D].
        rho: [*, D], kept in [-20, 20] (float64: [-40, 40]).
        factor: F [*, D, R].
    """

    __slots__ = ()

    @property
    def scale(self) -> Tensor:
        """Standard deviations sigma of the diagonal part [*, D]."""
        return softplus(self.rho)

    def draw(self, noise: Noise) -> LowRankDraw:
        """Standard normals [K, D] and [K, R]."""
        return LowRankDraw(noise.weights(self.loc), noise.weights(self.factor[..., 0, :]))

    def weights(self, draw: LowRankDraw) -> Tensor:
        """Weights theta = mu + sigma eps + F z [K, D] of a draw."""
        return self.loc + self.scale * draw.eps + (self.factor @ draw.shared.unsqueeze(-1)).squeeze(-1)

    def mean(self) -> Tensor:
        """Mean mu [*, D]."""
        return self.loc

    def kl(self, prior: LowRankNormal) -> Tensor:
        """KL divergence of two Gaussians, by Woodbury's identity and the matrix determinant lemma: R x R matrices.

        KL = 1/2 [ln |Sigma_w| - ln |Sigma_q| + tr(Sigma_w^-1 (Sigma_q + (mu_q - mu_w) (mu_q - mu_w)')) - D],
        ln |Sigma| = sum_m ln sigma_m^2 + ln |C|, Sigma^-1 = S^-1 - S^-1 F C^-1 F' S^-1, S = diag(sigma^2),
        C = I + F' S^-1 F

        Args:
            prior: w, leaves [D], [D, R] or [K, D], [K, D, R].

        Returns:
            [K], in nats, float64.
        """
        q, w = (LowRankNormal(*(leaf.double() for leaf in family)) for family in (self, prior))
        (_, q_capacity), (inner, w_capacity) = (_capacitance(family) for family in (q, w))
        precise = w.scale.reciprocal().unsqueeze(-1)
        columns = torch.cat((q.factor, (q.loc - w.loc).unsqueeze(-1)), -1) * precise  # [K, D, R + 1]
        ratio = (q.scale / w.scale).square()
        reached = inner.mT @ columns
        moments = reached @ reached.mT + inner.mT @ (ratio.unsqueeze(-1) * inner)  # [K, R, R]
        explained = torch.cholesky_solve(moments, w_capacity).diagonal(dim1=-2, dim2=-1).sum(-1)
        squares = ratio.sum(-1) + columns.square().sum((-2, -1)) - explained
        logs = (
            (log_softplus(w.rho) - log_softplus(q.rho)).sum(-1) + _log_diagonal(w_capacity) - _log_diagonal(q_capacity)
        )
        kl: Tensor = logs + 0.5 * (squares - q.loc.shape[-1])
        return kl

    def bounded(self) -> LowRankNormal:
        """Clamp rho in place to where softplus and its logarithm are exact numbers."""
        bound_rho_(self.rho)
        return self


def _capacitance(family: LowRankNormal) -> tuple[Tensor, Tensor]:
    """S^-1/2 F [*, D, R], and Cholesky factors of C = I + F' S^-1 F [*, R, R]."""
    inner = family.factor * family.scale.reciprocal().unsqueeze(-1)
    identity = torch.eye(inner.shape[-1], dtype=inner.dtype, device=inner.device)
    return inner, torch.linalg.cholesky_ex(identity + inner.mT @ inner).L


def _log_diagonal(factor: Tensor) -> Tensor:
    """Half of the log determinants [*] of the factored matrices, from factors [*, R, R]."""
    return factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)


@dataclass(frozen=True)
class LowRank:
    """Gaussians whose weights depend on each other along R directions.

    Args:
        rank: R.
    """

    rank: int = 10

    def __post_init__(self) -> None:
        """Check that the rank is at least 1."""
        if self.rank < 1:
            raise StudyError(f"rank must be at least 1, got {self.rank}", hint="the mean field has no such directions")

    def initial(self, model: WeightModel, std: float, rho: float, generator: torch.Generator) -> LowRankNormal:
        """Initialise as the mean field, with weak random directions; see `initial_mean_field`."""
        loc, rhos = initial_mean_field(model, std, rho, generator)
        drawn = torch.randn(model.dim, self.rank, generator=generator, dtype=torch.float64)
        return LowRankNormal(loc, rhos, (SPREAD * drawn).to(loc) * softplus(rhos).unsqueeze(-1))

    def held(self, dim: int) -> int:
        """Numbers of a client beside mean and scale of D weights, D R."""
        return dim * self.rank

    def check(self, model: WeightModel) -> None:
        """Check that the rank is at most the number of weights."""
        check_uncertain(model, "LowRank")
        if self.rank > model.dim:
            raise StudyError(f"rank must be at most the {model.dim} weights of the model, got {self.rank}")
