"""GP posterior of clients with many rows, which knows them through inducing points: O(N M^2) for M points."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.models.base import FunctionModel
from pacbayes_fl.posteriors.functions.collapsed import Collapsed, collapse
from pacbayes_fl.posteriors.functions.gaussian_process import ParticleProcesses
from pacbayes_fl.posteriors.functions.pivoted import EmbeddedKernel, ModelKernel, Points, choose, rows_at
from pacbayes_fl.posteriors.predictive import NormalMixture
from pacbayes_fl.posteriors.residuals import Residuals

_LEAST_LEFT = 1e-6  # of 1 - h, which is positive but for rounding


@dataclass(frozen=True)
class InducingPosterior(ParticleProcesses):
    """Variational GP posterior of K clients under P particles, q(f) = int p(f | u) q(u) du (Titsias 2009).

    Args:
        model: the prior.
        theta: particles [K, P, D].
        x: training inputs [K, N, d].
        mask: [K, N] bool.
        residual: y - m of the training rows [K, P, N], in units of y; 0 at padding.
        inducing: inputs of the points, rows of each particle's own choice [K, P, M, d].
        used: which of them are needed, bool [K, P, M].
        lower: Cholesky factors L of K_zz [K, P, M, M]; identities where points are not used.
        mean: mean of v = L^-1 (u - m_z) under q [K, P, M].
        whitener: inverse Cholesky factor of the precision B of v under q [K, P, M, M].
        log_evidence: lower bound on ln Z [K, P], in nats.
        log_weights: mixture weights [K, P] as logarithms.
        embedding: of the points, if the prior has one.
        weighting: whether mixture weights follow the bound on the evidence or are equal.
    """

    model: FunctionModel
    theta: Tensor
    x: Tensor
    mask: Tensor
    residual: Tensor
    inducing: Tensor
    used: Tensor
    lower: Tensor
    mean: Tensor
    whitener: Tensor
    log_evidence: Tensor
    log_weights: Tensor
    embedding: EmbeddedKernel | None
    weighting: Literal["evidence", "equal"] = "evidence"

    def function(self, x: Tensor) -> NormalMixture:
        """Values of the function itself, phi = L^-1 k_z(x*) (Titsias 2009, eq. 6).

        mu_p = m_p(x*) + phi' E v,  Sigma_p = k_p(x*, x*) - phi' phi + phi' B^-1 phi

        Args:
            x: inputs [K, M, d].

        Returns:
            Mixture over particles [K, P, M], in units of y; a variance may be 0.
        """
        prior_mean, variance, features = self.features(x)
        mean = prior_mean + (features @ self.mean.unsqueeze(-1)).squeeze(-1)
        remaining = (variance - features.square().sum(-1)).clamp_min(0.0)
        return NormalMixture(self.log_weights, mean, remaining + (features @ self.whitener.mT).square().sum(-1))

    def covariance(self, x: Tensor) -> Tensor:
        """Covariance of the function's values; see `function`.

        Args:
            x: inputs [K, M, d].

        Returns:
            Sigma_p [K, P, M, M], in squared units of y.
        """
        _, _, features = self.features(x)
        known = features @ self.whitener.mT
        return self.model.covariance(self.theta, x) - features @ features.mT + known @ known.mT

    def features(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Prior at inputs, and what it shares with the points.

        Args:
            x: inputs [K, N, d].

        Returns:
            The mean [K, P, N], the variance [K, P, N], and phi = L^-1 k_z(x) [K, P, N, M].
        """
        mean, z = self._prior(x)
        if z is None or self.embedding is None:
            kernel = ModelKernel(self.model, self.theta, x)
            variance, cross = kernel.variance(), kernel.cross(self.inducing)
        else:
            here = EmbeddedKernel(z, self.embedding.outputscale, self.model.linear_features(self.theta, x))
            variance, cross = here.variance(), here.cross(self.embedding)
        cross = torch.where(self.used.unsqueeze(-2), cross, 0.0)
        return mean, variance, torch.linalg.solve_triangular(self.lower, cross.mT, upper=False).mT

    def leave_one_out(self) -> Residuals:
        """Residuals of every training row, predicted from all others, over the predictive standard deviation.

        With the leverage h = phi' B^-1 phi / s^2 of a row, y - mu_-i = (y - mu) / (1 - h) and
        s_-i^2 = k - phi' phi + s^2 / (1 - h) (Sherman and Morrison): q(v) forgets the row; the points, which were
        chosen by inputs alone, stay.

        Returns:
            Residuals [K, P, N]; NaN for a client whose bound is not finite.
        """
        _, variance, features = self.features(self.x)
        noise = self.model.noise(self.theta, self.x)
        missed = self.residual - (features @ self.mean.unsqueeze(-1)).squeeze(-1)
        leverage = (features @ self.whitener.mT).square().sum(-1) / noise
        left = (1.0 - leverage).clamp(_LEAST_LEFT, 1.0)
        spread = (variance - features.square().sum(-1)).clamp_min(0.0) + noise / left
        return Residuals(self.log_weights, missed / left * spread.rsqrt(), self.mask)

    @cached_property
    def _rows(self) -> tuple[Tensor, Tensor, Tensor]:
        """Noise [K, P, N], phi W' / s [K, P, N, M] with W the whitener, 0 at padding, and k - phi' phi [K, P, N]."""
        _, variance, features = self.features(self.x)
        noise, real = self.model.noise(self.theta, self.x), self.mask.unsqueeze(1)
        shared = (features @ self.whitener.mT) * noise.rsqrt().unsqueeze(-1)
        left = (variance - features.square().sum(-1)).clamp_min(0.0)
        return noise, torch.where(real.unsqueeze(-1), shared, 0.0), torch.where(real, left, 0.0)

    @cached_property
    def alpha(self) -> Tensor:
        """(Q + D)^-1 (y - m) [K, P, N], Q = phi' phi and D the rows' noise, in 1 / units of y; 0 at padding."""
        _, _, features = self.features(self.x)
        missed = self.residual - (features @ self.mean.unsqueeze(-1)).squeeze(-1)
        return torch.where(self.mask.unsqueeze(1), missed / self._rows[0], 0.0)

    def precision_at(self, at: Tensor) -> Tensor:
        """Blocks [K, P, G, b, b] of (Q + D)^-1 at rows that stand at [K, G, b]: (I - U U') between D^(-1/2)."""
        noise, shared, _ = self._rows
        flat = at.flatten(1).unsqueeze(1).expand(-1, noise.shape[1], -1)
        inverse_std = noise.rsqrt().gather(2, flat).unflatten(2, at.shape[1:])
        u = rows_at(shared, flat).unflatten(2, at.shape[1:])
        inner = torch.eye(at.shape[-1], dtype=u.dtype, device=u.device) - u @ u.mT
        blocks: Tensor = inner * inverse_std.unsqueeze(-1) * inverse_std.unsqueeze(-2)
        return blocks

    def through(self, x: Tensor) -> Tensor:
        """What each row's target adds to the mean at inputs x [K, M, d], phi' B^-1 A D^-1 [K, P, M, N]."""
        noise, shared, _ = self._rows
        here = self.features(x)[2] @ self.whitener.mT
        return (here @ shared.mT) * noise.rsqrt().unsqueeze(-2)

    @property
    def unexplained(self) -> Tensor:
        """Prior variance of the rows [K, P, N] that the points do not explain, in squared units of y."""
        return self._rows[2]

    def kl(self) -> Tensor:
        """KL divergence of every particle's posterior from its prior, over functions.

        q and the prior share p(f | u), so that the densities' ratio is that at u alone, whichever rows the points are
        (Matthews, Hensman, Turner and Ghahramani 2016): it is exact, and certificates need no other of this posterior.

        KL(q(f) || p(f)) = KL(q(u) || p(u)) = (tr B^-1 + |E v|^2 - M + ln |B|) / 2

        Returns:
            [K, P], in nats; 0 for a client without rows.
        """
        ones = self.mean.shape[-1]
        spread = self.whitener.square().sum((-2, -1)) + self.mean.square().sum(-1) - ones
        return (0.5 * spread - self.whitener.diagonal(dim1=-2, dim2=-1).log().sum(-1)).clamp_min(0.0)

    def kl_from(self, prior: InducingPosterior) -> Tensor:
        """KL divergence, particle by particle, from a posterior under the same particles with points of its own.

        The density of P by the prior P_0 is N(v; b, B^-1) / N(v; 0, I) at P's own v, which is normal under Q, N(n, S),
        with n = Psi E_Q[v_Q], S = I - Psi Psi' + Psi B_Q^-1 Psi', Psi = L_P^-1 phi_Q(z_P)'. Hence

        KL(Q || P) = KL(Q || P_0) - ln |B| / 2 + ((n - b)' B (n - b) + tr(B S) - n'n - tr S) / 2

        Args:
            prior: P.

        Returns:
            [K, P], in nats; exact.
        """
        psi = self._at_points_of(prior)
        mean, half = (psi @ self.mean.unsqueeze(-1)).squeeze(-1), psi @ self.whitener.mT
        identity = torch.eye(psi.shape[-2], dtype=psi.dtype, device=psi.device)
        covariance = identity - psi @ psi.mT + half @ half.mT  # S
        root = torch.linalg.solve_triangular(prior.whitener, identity.expand_as(prior.whitener), upper=False).mT
        away = (root @ (mean - prior.mean).unsqueeze(-1)).squeeze(-1)
        misfit = away.square().sum(-1) + ((root @ covariance) * root).sum((-2, -1))  # B = root' root
        trace = mean.square().sum(-1) + covariance.diagonal(dim1=-2, dim2=-1).sum(-1)
        half_log_determinant = -prior.whitener.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        kl: Tensor = self.kl() - half_log_determinant + 0.5 * (misfit - trace)
        return kl.clamp_min(0.0)

    def _at_points_of(self, other: InducingPosterior) -> Tensor:
        """Psi = L_P^-1 phi(z_P)' [K, P, M_P, M] of another posterior's points; 0 for those that are not used."""
        each = range(self.theta.shape[1])
        if self.embedding is not None and other.embedding is not None:
            cross = other.embedding.cross(self.embedding)
        else:
            pairs = ((self.theta[:, p : p + 1], other.inducing[:, p], self.inducing[:, p]) for p in each)
            cross = torch.cat([self.model.covariance(*pair) for pair in pairs], 1)
        cross = torch.where(other.used.unsqueeze(-1) & self.used.unsqueeze(-2), cross, 0.0)
        features = torch.linalg.solve_triangular(self.lower, cross.mT, upper=False).mT
        psi: Tensor = torch.linalg.solve_triangular(other.lower, features, upper=False)
        return psi


def condition_on_points(
    model: FunctionModel,
    theta: Tensor,
    batch: ClientBatch,
    count: int,
    weighting: Literal["evidence", "equal"] = "evidence",
) -> InducingPosterior:
    """Condition every particle's GP on every client's rows by way of inducing points.

    Weights are those of PAC-PFL eq. 37b with the bound for the evidence, or 1/P. A client without rows gets the prior,
    equally weighted.

    Args:
        model: the prior.
        theta: particles [K, P, D].
        batch: rows x [K, N, d], y [K, N].
        count: most points of a client, M.
        weighting: "evidence" or "equal".

    Returns:
        The posterior; NaN in the mixture of a client whose bound is finite under no particle.
    """
    with torch.no_grad():
        mean, z = model.bind(theta)(batch.x)
        noise = model.noise(theta, batch.x)
        embedded: EmbeddedKernel | None = None
        if z is None:
            points = choose(general := ModelKernel(model, theta, batch.x), noise, batch.mask, count)
            inducing = general.inputs(points.at)
        else:
            kernel = EmbeddedKernel(z, model.outputscale(theta), model.linear_features(theta, batch.x))
            points = choose(kernel, noise, batch.mask, count)
            embedded = kernel.points(points.at)
            inducing = rows_at(batch.x.unsqueeze(1).expand(-1, theta.shape[1], -1, -1), points.at)
        residual = torch.where(batch.mask.unsqueeze(1), batch.y.unsqueeze(1) - mean, 0.0)
        found = collapse(points.factor, points.left, residual, noise, batch.mask)
        kept = _kept(found, points, weighting)
    rows = model, theta, batch.x, batch.mask, residual, inducing, points.used
    return InducingPosterior(*rows, *kept, embedded, weighting)


def _kept(found: Collapsed, points: Points, weighting: str) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return L, E v, the whitener, the bound and the weights; a particle that is of no use has weight 0 and the prior.

    Where no particle is of use, E v is NaN, to be reported.
    """
    usable = found.value.isfinite()
    equal = torch.zeros_like(found.value)
    log_weights = torch.log_softmax(
        torch.where(usable, found.value if weighting == "evidence" else equal, -torch.inf), 1
    )
    identity = torch.eye(found.inner.shape[-1], dtype=found.inner.dtype, device=found.inner.device)
    root = torch.where(usable[..., None, None], found.inner, identity)
    whitener = torch.linalg.solve_triangular(root, identity.expand_as(root), upper=False)
    otherwise = torch.where(usable.any(1)[:, None, None], 0.0, torch.nan)
    mean = torch.where(usable[..., None], found.mean, otherwise)
    lower = torch.where(usable[..., None, None], points.lower(), identity)
    return lower, mean, whitener, found.value, log_weights
