"""Exact GP inference for ragged clients: masked Cholesky, log evidence, and the posterior that predicts."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal, NamedTuple

import torch
from gpytorch.distributions import MultivariateNormal
from pyro import distributions
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.models.base import FunctionModel
from pacbayes_fl.models.prior_values import embedded_covariance, embedded_variance
from pacbayes_fl.posteriors.predictive import ConditionedFunctions, NormalMixture
from pacbayes_fl.posteriors.residuals import Residuals

JITTERS = (1e-8, 1e-6, 1e-4)
"""Rungs that are tried after 0, in units of the mean diagonal."""
_WORTH_ASKING: Final = 128
"""Rows from which a GPU is asked whether a rung is needed: three more factorisations take longer than the answer."""


class Factor(NamedTuple):
    """Cholesky factors of masked covariances, and the jitter that was added.

    Args:
        cholesky: lower factors [K, P, N, N]; identities where `ok` is False.
        jitter: added to the diagonal of real rows [K, P], in squared units of y.
        ok: bool [K, P], False where the matrix stayed indefinite or was not finite.
    """

    cholesky: Tensor
    jitter: Tensor
    ok: Tensor


def add_noise(covariance: Tensor, noise: Tensor, mask: Tensor) -> Tensor:
    """Put the noise on the diagonal and make padded rows those of the identity, in place.

    With rows and columns of padding 0 and their diagonal 1, determinant and quadratic form are exactly those of the
    real rows.

    Args:
        covariance: prior covariance [K, P, N, N], already 0 in rows and columns of padding; overwritten.
        noise: observation variance [K, P, N], in squared units of y.
        mask: [K, N] bool.

    Returns:
        `covariance`, [K, P, N, N].
    """
    diagonal = covariance.diagonal(dim1=-2, dim2=-1)
    diagonal.copy_(torch.where(mask.unsqueeze(1), diagonal + noise, 1.0))
    return covariance


def factorise(matrix: Tensor, mask: Tensor) -> Factor:
    """Factor covariances, adding jitter to those alone that need it.

    Rungs 0, 1e-8, 1e-6, 1e-4 times the mean diagonal over real rows; a matrix that fails all of them is marked and
    fails alone. On a GPU every rung of small matrices is computed, because asking whether one is needed would stop it.

    Args:
        matrix: symmetric [K, P, N, N], identity in rows of padding.
        mask: [K, N] bool.

    Returns:
        Factors, jitter used, and success.
    """
    # LAPACK is column-major: the transposed view of a symmetric matrix spares a copy.
    cholesky, info = torch.linalg.cholesky_ex(matrix.mT)
    jitter = matrix.new_zeros(info.shape)
    real = mask.unsqueeze(1).to(matrix.dtype)
    for rung in JITTERS:
        if (tensors.on_host(matrix) or matrix.shape[-1] >= _WORTH_ASKING) and not bool(info.any()):
            break
        diagonal = matrix.diagonal(dim1=-2, dim2=-1) * real
        jitter = torch.where(info > 0, rung * diagonal.sum(-1) / real.sum(-1).clamp_min(1.0), jitter)
        shifted = matrix + torch.diag_embed(jitter.unsqueeze(-1) * real)
        again, again_info = torch.linalg.cholesky_ex(shifted.mT)
        cholesky = torch.where((info > 0)[..., None, None], again, cholesky)
        info = torch.where(info > 0, again_info, info)
    ok = (info == 0) & cholesky.diagonal(dim1=-2, dim2=-1).sum(-1).isfinite()
    if not tensors.on_host(matrix) or not bool(ok.all()):
        identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
        cholesky = torch.where(ok[..., None, None], cholesky, identity)
    return Factor(cholesky, jitter, ok)


def inverse(factor: Factor) -> Tensor:
    """Invert factored covariances.

    Args:
        factor: Cholesky factors.

    Returns:
        (L L')^-1 [K, P, N, N], in 1 / squared units of y.
    """
    cholesky = factor.cholesky
    inverted: Tensor
    if not tensors.on_host(cholesky):  # on a GPU cholesky_inverse asks the device for errors, and goes matrix by matrix
        identity = torch.eye(cholesky.shape[-1], dtype=cholesky.dtype, device=cholesky.device)
        whitener = torch.linalg.solve_triangular(cholesky, identity.expand_as(cholesky), upper=False)
        inverted = whitener.mT @ whitener
    else:
        inverted = torch.cholesky_inverse(cholesky).mT  # symmetric; transposed, its rows are contiguous
    return inverted


def gaussian_log_evidence(prior: MultivariateNormal, noise: Tensor, y: Tensor, mask: Tensor) -> tuple[Tensor, Factor]:
    """Exact log marginal likelihood of each client under each particle: the definition, differentiable by autograd.

    ln Z_k(phi_p) = ln N(y_k | m_p(x_k), K_p(x_k, x_k) + D_p)      (PAC-PFL eq. 33: D_p = sigma_p^2 I)

    Args:
        prior: GP prior at the training inputs, batch [K, P], event [N].
        noise: observation variance of every row, the diagonal of D_p [K, P, N], in squared units of y.
        y: targets [K, N]; values where mask is False are ignored but must be finite.
        mask: [K, N] bool.

    Returns:
        Log evidence [K, P] in nats, summed over rows (GPyTorch's mll is per row), NaN where the covariance stays
        indefinite after jitter; and the factors, which say so.
    """
    return log_evidence_of(prior.mean, prior.covariance_matrix, noise, y, mask)


def log_evidence_of(mean: Tensor, covariance: Tensor, noise: Tensor, y: Tensor, mask: Tensor) -> tuple[Tensor, Factor]:
    """Compute the evidence of `gaussian_log_evidence` without GPyTorch's distribution, which imports sympy: .5 s.

    Args:
        mean: m [K, P, N].
        covariance: of the function [K, P, N, N]; anything in rows and columns of padding.
        noise: the diagonal of D [K, P, N], in squared units of y.
        y: targets [K, N].
        mask: [K, N] bool.

    Returns:
        As `gaussian_log_evidence`: [K, P] in nats, and the factors.
    """
    real = mask.unsqueeze(1)
    both = real.unsqueeze(-1) & real.unsqueeze(-2)
    factor = factorise(add_noise(torch.where(both, covariance, 0.0), noise, mask), mask)
    residual = torch.where(real, y.unsqueeze(1) - mean, 0.0)
    white = torch.linalg.solve_triangular(factor.cholesky, residual.unsqueeze(-1), upper=False).squeeze(-1)
    count = real.sum(-1, dtype=residual.dtype)  # an integer count would make the constant float32
    log_determinant = factor.cholesky.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    value = -0.5 * white.square().sum(-1) - log_determinant - 0.5 * math.log(2 * math.pi) * count
    return torch.where(factor.ok, value, torch.nan), factor


class ParticleProcesses(ABC):
    """What posteriors of K clients under P particles share that are Gaussian processes, however they know the rows."""

    model: FunctionModel
    theta: Tensor

    @cached_property
    def _prior(self) -> Callable[[Tensor], tuple[Tensor, Tensor | None]]:
        return self.model.bind(self.theta)

    def __getstate__(self) -> dict[str, object]:
        """Give a copy or a pickle all but what is bound, a function that is made again."""
        return {name: value for name, value in vars(self).items() if name != "_prior"}

    @property
    def personal(self) -> bool:
        """A client is conditioned on its own rows."""
        return True

    @abstractmethod
    def function(self, x: Tensor) -> NormalMixture:
        """Values of the function itself at inputs x [K, M, d]: a mixture over particles [K, P, M], in units of y."""

    @abstractmethod
    def covariance(self, x: Tensor) -> Tensor:
        """Covariance of the function's values at inputs x [K, M, d]: [K, P, M, M], in squared units of y."""

    def joint(self, x: Tensor) -> distributions.MixtureSameFamily:
        """Joint distribution of the function's values at some inputs, of which `function` has the marginals.

        p(f*) = sum_p w_p N(f* | mu_p, Sigma_p)      (PAC-PFL eqs. 35 and 37, without the noise of new targets)

        Its draws are functions, each of one particle, as those of GPyTorch's `model(x)` under a single prior. Draws are
        by torch's global generator, which `torch.manual_seed` sets.

        Args:
            x: inputs [K, M, d].

        Returns:
            A mixture with batch shape [K] and event shape [M], in units of y. To what rounding leaves of a covariance
            jitter is added as to those of rows; NaN where it stays indefinite.

        Raises:
            ShapeError: when x has another shape.
        """
        self.model.check_inputs(x, len(self.theta))
        marginal = self.function(x)
        everywhere = torch.ones(marginal.means.shape[::2], dtype=torch.bool, device=x.device)
        factor = factorise(self.covariance(x), everywhere)
        half = torch.where(factor.ok[..., None, None], factor.cholesky, torch.nan)
        parts = distributions.MultivariateNormal(marginal.means, scale_tril=half, validate_args=False)
        weights = distributions.Categorical(logits=marginal.log_weights, validate_args=False)
        return distributions.MixtureSameFamily(weights, parts, validate_args=False)

    def predict(self, x: Tensor) -> NormalMixture:
        """Predictive mixture of new targets (PAC-PFL eqs. 35 and 37): `function` and the noise s_p(x*)^2.

        Args:
            x: new inputs [K, M, d].

        Returns:
            Mixture over particles [K, P, M], in units of y, noise included.

        Raises:
            ShapeError: when x has another shape.
        """
        self.model.check_inputs(x, len(self.theta))
        result = self.function(x)
        return replace(result, variances=result.variances + self.model.noise(self.theta, x))


@dataclass(frozen=True)
class GPPosterior(ParticleProcesses):
    """GP posterior of K clients under P particles, with everything cached that a prediction needs.

    Args:
        model: the prior.
        theta: particles [K, P, D].
        x: training inputs [K, N, d].
        mask: [K, N] bool.
        alpha: (K + D)^-1 (y - m) [K, P, N], D the rows' noise, in 1 / units of y.
        whitener: inverse Cholesky factors [K, P, N, N], in 1 / units of y.
        log_evidence: ln Z [K, P], in nats.
        log_weights: mixture weights [K, P] as logarithms.
        factor_jitter: jitter that was added [K, P], in squared units of y.
        train_embedding: features of the training inputs [K, P, N, F], if the prior has an embedding.
        weighting: whether mixture weights follow the evidence or are equal.
        given_noise: variances of the rows [K, P, N], in squared units of y, where they are not what the prior says.
    """

    model: FunctionModel
    theta: Tensor
    x: Tensor
    mask: Tensor
    alpha: Tensor
    whitener: Tensor
    log_evidence: Tensor
    log_weights: Tensor
    factor_jitter: Tensor
    train_embedding: Tensor | None
    weighting: Literal["evidence", "equal"] = "evidence"
    given_noise: Tensor | None = None

    @property
    def row_noise(self) -> Tensor:
        """Noise that the rows are taken to have [K, P, N], in squared units of y: jitter is noise too."""
        noise = self.model.noise(self.theta, self.x) if self.given_noise is None else self.given_noise
        return noise + self.factor_jitter.unsqueeze(-1)

    def function(self, x: Tensor) -> NormalMixture:
        """Values of the function itself (PAC-PFL eqs. 35 and 37 without the noise of new targets).

        mu_p = m_p(x*) + k_p*' (K_p + D_p)^-1 (y - m_p)
        Sigma_p = k_p(x*, x*) - k_p*' (K_p + D_p)^-1 k_p*

        Args:
            x: inputs [K, M, d].

        Returns:
            Mixture over particles [K, P, M], in units of y; a variance may be 0.
        """
        prior_mean, cross, prior_variance = self.cross(x)
        # Padded rows of alpha and of the whitener's real rows are 0, so what `cross` [K, P, M, N] holds there is lost.
        mean = prior_mean + (cross @ self.alpha.unsqueeze(-1)).squeeze(-1)
        explained = (cross @ self.whitener.mT).square_().sum(-1)
        return NormalMixture(self.log_weights, mean, (prior_variance - explained).clamp_min_(0.0))

    def covariance(self, x: Tensor) -> Tensor:
        """Covariance of the function's values; see `function`.

        Args:
            x: inputs [K, M, d].

        Returns:
            Sigma_p [K, P, M, M], in squared units of y.
        """
        return self.moments(x)[1]

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Means and covariance of the function's values, and what explains them; see `function`.

        Args:
            x: inputs [K, M, d].

        Returns:
            mu_p [K, P, M], Sigma_p [K, P, M, M] and k_p*' L_p^-T [K, P, M, N], L_p the factor of the training rows.
        """
        mean, cross, _ = self.cross(x)
        half = cross @ self.whitener.mT
        means = mean + (cross @ self.alpha.unsqueeze(-1)).squeeze(-1)
        return means, self.model.covariance(self.theta, x) - half @ half.mT, half

    def cross(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Prior at new inputs, and between these and the training inputs.

        Args:
            x: inputs [K, M, d].

        Returns:
            The mean m_p(x*) [K, P, M], k_p(x*, x) [K, P, M, N], of which columns of padding hold anything, and the
            variance k_p(x*, x*) [K, P, M].
        """
        prior_mean, embedding = self._prior(x)
        if embedding is None or self.train_embedding is None:
            cross = self.model.covariance(self.theta, x, self.x)
            prior_variance = self.model.variance(self.theta, x)
        else:
            linear = self.model.linear_features(self.theta, x)
            other = None if linear is None else self.model.linear_features(self.theta, self.x)
            scale = self.model.outputscale(self.theta)
            cross = embedded_covariance(embedding, self.train_embedding, scale, linear, other)
            prior_variance = embedded_variance(embedding, scale, linear)
        return prior_mean, cross, prior_variance

    def leave_one_out(self) -> Residuals:
        """Residuals of every training row, predicted from all others, over the predictive standard deviation.

        z_i = (y_i - mu_-i) / s_-i = alpha_i / sqrt([A^-1]_ii),  A = K + D, D the rows' noise
        (Rasmussen and Williams 2006, eqs. 5.10-5.12)

        Returns:
            Residuals [K, P, N]; NaN for a client whose covariance could not be factored.
        """
        precision = self.whitener.square().sum(-2)
        precision = torch.where(precision > 0, precision, 1.0)  # no row, or a particle of weight 0
        return Residuals(self.log_weights, self.alpha * precision.rsqrt(), self.mask)

    def precision_at(self, at: Tensor) -> Tensor:
        """Blocks [K, P, G, b, b] of A^-1 at rows that stand at [K, G, b], A = K + D."""
        particles, rows = self.alpha.shape[1:]
        inverse = (self.whitener.mT @ self.whitener).flatten(2)
        pairs = (at.unsqueeze(-1) * rows + at.unsqueeze(-2)).flatten(1).unsqueeze(1).expand(-1, particles, -1)
        return inverse.gather(2, pairs).view(len(at), particles, *at.shape[1:], at.shape[-1])

    def through(self, x: Tensor) -> Tensor:
        """What each row's target adds to the mean at inputs x [K, M, d], k_p*' A^-1 [K, P, M, N]."""
        return self.cross(x)[1] @ self.whitener.mT @ self.whitener

    @property
    def unexplained(self) -> Tensor:
        """Prior variance of the rows [K, P, N] that other rows cannot explain, in squared units of y: none."""
        return torch.zeros_like(self.alpha)

    def kl(self) -> Tensor:
        """KL divergence of every particle's GP posterior from its prior: over functions, which is that at the rows.

        KL = (ln |A| - ln |D| - tr(K A^-1) + alpha' K alpha) / 2,  A = K + D, D the rows' noise

        Returns:
            [K, P], in nats; 0 for a client without rows.
        """
        real = self.mask.unsqueeze(1)
        noise = torch.where(real, self.row_noise, 1.0)
        rows = real.sum(-1, dtype=noise.dtype)
        diagonal = torch.where(real, self.whitener.diagonal(dim1=-2, dim2=-1), 1.0)
        log_determinant = -2.0 * diagonal.log().sum(-1)
        quadratic = -2.0 * self.log_evidence - log_determinant - rows * math.log(2 * math.pi)  # alpha' A alpha
        precision = self.whitener.square().sum(-2)  # diagonal of A^-1, 0 at padding as alpha is
        trace = rows - (noise * precision).sum(-1)
        prior_quadratic = quadratic - (noise * self.alpha.square()).sum(-1)
        return 0.5 * (log_determinant - noise.log().sum(-1) - trace + prior_quadratic)


def condition(
    model: FunctionModel,
    theta: Tensor,
    batch: ClientBatch,
    weighting: Literal["evidence", "equal"] = "evidence",
    given: tuple[Tensor, Tensor] | None = None,
) -> GPPosterior:
    """Condition every particle's GP on every client's rows.

    Weights are Z_p / sum_q Z_q (PAC-PFL eq. 37b) or 1/P. A client without rows gets the prior, equally weighted.

    Args:
        model: the prior.
        theta: particles [K, P, D].
        batch: rows x [K, N, d], y [K, N].
        weighting: "evidence" or "equal".
        given: variances of the rows [K, P, N], in squared units of y, and what is added to the log evidence [K, P] in
            the weights; those of the prior, and 0, when None.

    Returns:
        The posterior; NaN in the mixture of a client whose covariance could not be factored under any particle.
    """
    with torch.no_grad():
        mean, embedding = model.bind(theta)(batch.x)
        if embedding is None:
            covariance = model.covariance(theta, batch.x)
        else:
            linear = model.linear_features(theta, batch.x)
            covariance = embedded_covariance(embedding, embedding, model.outputscale(theta), linear, linear)
        noise, beside = (model.noise(theta, batch.x), 0.0) if given is None else given
        log_evidence, factor = log_evidence_of(mean, covariance, noise, batch.y, batch.mask)
        real = batch.mask.unsqueeze(1)
        identity = torch.diag_embed(real.to(batch.x.dtype))
        whitener = torch.linalg.solve_triangular(factor.cholesky, identity.expand_as(factor.cholesky), upper=False)
        residual = torch.where(real, batch.y.unsqueeze(1) - mean, 0.0)
        alpha = (whitener.mT @ (whitener @ residual.unsqueeze(-1))).squeeze(-1)
        # A particle that cannot be factored for a client gets weight 0 there; alone, it leaves NaN to be reported.
        weighed = torch.where(
            factor.ok, log_evidence + beside if weighting == "evidence" else torch.zeros_like(log_evidence), -torch.inf
        )
        usable = factor.ok[..., None]
        alpha = torch.where(usable, alpha, torch.where(factor.ok.any(1)[:, None, None], 0.0, torch.nan))
        whitener = torch.where(usable[..., None], whitener, 0.0)
        log_weights = torch.log_softmax(weighed, 1)
    kept = model, theta, batch.x, batch.mask, alpha, whitener, log_evidence, log_weights, factor.jitter, embedding
    return GPPosterior(*kept, weighting, None if given is None else noise)


def function_kl(posterior: ConditionedFunctions, prior: GPPosterior, seen: ClientBatch) -> Tensor:
    """KL divergence, particle by particle, of a GP posterior from one that saw some of its rows: over functions.

    KL(Q || P) = KL(Q || P_0) - E_Q[ln N(y | f(x), D)] + ln Z_P,  f(x) ~ Q

    P_0, the prior before any rows, is that of `GPPosterior.kl`; x and y are the rows that P saw, and D is the noise
    that it took them to have, so that this is exact whatever jitter each of the two needed.

    Args:
        posterior: Q, of these rows and others, under particles that are those of P.
        prior: P.
        seen: rows of the K clients that P saw, possibly none.

    Returns:
        [K, P], in nats; NaN where a covariance could not be factored.
    """
    function = posterior.function(seen.x)
    squares = (seen.y.unsqueeze(1) - function.means).square() + function.variances
    noise = prior.row_noise
    misfit = torch.where(seen.mask.unsqueeze(1), 0.5 * (squares / noise + (2 * math.pi * noise).log()), 0.0).sum(-1)
    return (posterior.kl() + misfit + prior.log_evidence).clamp_min(0.0)
