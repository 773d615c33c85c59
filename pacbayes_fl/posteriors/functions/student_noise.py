"""Student-t noise of Gaussian processes: a variational bound by scales of the rows, and predictions over them.

y_i | f ~ t_nu(f(x_i), s_i^2) is y_i | f, l_i ~ N(f(x_i), s_i^2 / l_i) with l_i ~ Gamma(nu / 2, nu / 2). For independent
q(f) q(l_1) ... q(l_N) the log evidence has the lower bound (Tipping and Lawrence 2005; Vanhatalo et al. 2009, 3.3)

L(w) = ln N(y | m, K + diag(s^2 / w)) + sum_i ((nu / 2)(ln w_i - w_i + 1) + d(nu)),  w_i = E_q[l_i],

at its best q(f), where a Gamma with shape a = (nu + 1) / 2 is best for l_i, and, with b = nu / 2,

d(nu) = ln Gamma(a) - a ln a + a - ln Gamma(b) + b ln b - b.

At its maximum in w the gradient of L by everything else is the partial one, w being fixed (the envelope theorem): that
of an exact Gaussian evidence whose rows have the noise s^2 / w.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

import torch
from pyro.distributions import MixtureSameFamily
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import StudyError
from pacbayes_fl.models.base import FunctionModel
from pacbayes_fl.models.inducing import all_exact
from pacbayes_fl.models.prior_values import PriorValues, embedded_covariance
from pacbayes_fl.posteriors.functions import gaussian_process
from pacbayes_fl.posteriors.functions.gaussian_process import (
    GPPosterior,
    add_noise,
    factorise,
    inverse,
)
from pacbayes_fl.posteriors.predictive import NormalMixture

STEPS: Final = 20
"""Steps of coordinate ascent, fixed, so that nothing waits for a device."""

NODES: Final = 20
"""Normals that stand for a Student-t distribution in predictions."""

POINTS: Final = "inducing points are for Gaussian noise"
WITHOUT_POINTS: Final = "model.inducing = 'none', or model.likelihood = 'gaussian'"
"""What is said where a client's rows would be known through inducing points."""

_LEFT, _RIGHT = 12.0, 8.0  # nats by which the density of ln l falls from its mode to the last node on either side
_SERIES: Final = 16.0  # from here on Stirling's series has all digits
_STIRLING: Final = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680)


def expected_scales(
    covariance: Tensor,
    residual: Tensor,
    noise: Tensor,
    dof: Tensor,
    mask: Tensor,
    power: Tensor | None = None,
    steps: int = STEPS,
) -> Tensor:
    """Ascend the bound in the rows' scales, from those of a normal distribution.

    w_i <- (nu + 1) / (nu + E_q[(y_i - f(x_i))^2] / s_i^2),  q(f) the posterior under noise s^2 / w

    Each step is the best q(f) and then the best q(l), so that the bound never falls.

    Args:
        covariance: prior covariance at the rows [K, P, N, N], 0 in padding.
        residual: y - m [K, P, N], 0 in padding.
        noise: s^2 [K, P, N], in squared units of y.
        dof: degrees of freedom nu [K, P].
        mask: [K, N] bool.
        power: c of every client [K], of likelihoods to a power, whose Gaussian noise is s^2 / (c w); 1 when None.
        steps: of the ascent.

    Returns:
        w [K, P, N], positive; 1 in padding.
    """
    real, nu = mask.unsqueeze(1), dof.unsqueeze(-1)
    tempered = noise if power is None else noise / power.to(noise)[:, None, None]
    scales = torch.ones_like(noise)
    for _ in range(steps):
        spread = tempered / scales
        inverted = inverse(factorise(add_noise(covariance.clone(), spread, mask), mask))
        alpha = (residual.unsqueeze(-2) @ inverted).squeeze(-2)
        squares = spread + spread.square() * (alpha.square() - inverted.diagonal(dim1=-2, dim2=-1))
        scales = torch.where(real, (nu + 1.0) / (nu + (squares / noise).clamp_min(0.0)), 1.0)
    return scales


def scales_of(prior: PriorValues, y: Tensor, mask: Tensor, power: Tensor | None = None) -> Tensor:
    """Ascend the bound of a prior with degrees of freedom; see `expected_scales`.

    Args:
        prior: at the rows.
        y: targets [K, N].
        mask: [K, N] bool.
        power: c of every client [K]; 1 when None.

    Returns:
        w [K, P, N].

    Raises:
        ValueError: when the prior's noise is Gaussian.
    """
    if prior.dof is None:
        raise ValueError("the noise of this prior is Gaussian: it has no degrees of freedom")
    covariance = prior.kernel
    if prior.embedded:
        covariance = embedded_covariance(prior.kernel, prior.kernel, prior.outputscale, prior.linear, prior.linear)
    both = mask[:, None, :, None] & mask[:, None, None, :]
    residual = torch.where(mask.unsqueeze(1), y.unsqueeze(1) - prior.mean, 0.0)
    noise = prior.noise.expand_as(residual)
    return expected_scales(torch.where(both, covariance, 0.0), residual, noise, prior.dof, mask, power)


def scale_terms(scales: Tensor, dof: Tensor, mask: Tensor) -> Tensor:
    """Give what the bound has beside the Gaussian log evidence, sum_i ((nu / 2)(ln w_i - w_i + 1) + d(nu)).

    Args:
        scales: w [K, P, N].
        dof: nu [K, P].
        mask: [K, N] bool.

    Returns:
        [K, P], in nats; it goes to 0 as nu grows.
    """
    nu, real = dof.unsqueeze(-1), mask.unsqueeze(1)
    shape, rate = 0.5 * (dof + 1.0), 0.5 * dof
    constant = -0.5 * torch.log1p(1.0 / dof) + _stirling(shape) - _stirling(rate)  # d(nu), without its large parts
    excess = (scales - 1.0).log1p() - (scales - 1.0)
    return torch.where(real, 0.5 * nu * excess + constant.unsqueeze(-1), 0.0).sum(-1)


def dof_gradient(scales: Tensor, dof: Tensor, mask: Tensor) -> Tensor:
    """Differentiate the bound by the degrees of freedom, at its maximum in the scales.

    dL / dnu = sum_i (ln w_i - w_i + 1 + psi(a) - ln a - psi(b) + ln b) / 2

    Args:
        scales: w [K, P, N].
        dof: nu [K, P].
        mask: [K, N] bool.

    Returns:
        [K, P], in nats per degree.
    """
    shape, rate = 0.5 * (dof + 1.0), 0.5 * dof
    constant = torch.digamma(shape) - shape.log() - torch.digamma(rate) + rate.log()
    excess = (scales - 1.0).log1p() - (scales - 1.0)
    return 0.5 * torch.where(mask.unsqueeze(1), excess + constant.unsqueeze(-1), 0.0).sum(-1)


def _stirling(z: Tensor) -> Tensor:
    """What Stirling's formula lacks, ln Gamma(z) - (z - 1/2) ln z + z - ln(2 pi) / 2."""
    near, far = z.clamp_max(_SERIES), z.clamp_min(_SERIES)
    direct = torch.lgamma(near) - (near - 0.5) * near.log() + near - 0.5 * math.log(2 * math.pi)
    series = sum(term * far ** -(2 * k + 1) for k, term in enumerate(_STIRLING))
    return torch.where(z < _SERIES, direct, series)


def over_scales(function: NormalMixture, noise: Tensor, dof: Tensor) -> NormalMixture:
    """Give targets around a normal function Student-t noise: a mixture of normals over nodes of the scale.

    p(y) = int Gamma(l | nu / 2, nu / 2) N(y | mu, v + s^2 / l) dl,  by the trapezoid rule in ln l

    Log densities are within 1e-3 where nu is 3 or more, up to ten s from the mean; the variance is that of the nodes,
    which falls short of s^2 nu / (nu - 2) as nu comes near 2.

    Args:
        function: values of the function [K, P, M], in units of y.
        noise: s^2 [K, P, M], in squared units of y.
        dof: nu [K, P], above 2.

    Returns:
        [K, P NODES, M].
    """
    rate = (0.5 * dof).unsqueeze(-1)
    left, right = _LEFT / rate, _RIGHT / rate
    start, end = -(left + (2.0 * left).sqrt()), (2.0 * right).sqrt()
    steps = torch.linspace(0.0, 1.0, NODES, dtype=dof.dtype, device=dof.device)
    log_scale = start + (end - start) * steps  # [K, P, NODES]
    log_weights = torch.log_softmax(rate * (log_scale - log_scale.exp() + 1.0), -1)
    variances = function.variances.unsqueeze(2) + noise.unsqueeze(2) * (-log_scale).exp().unsqueeze(-1)
    means = function.means.unsqueeze(2).expand_as(variances)
    weights = function.log_weights.unsqueeze(-1) + log_weights
    return NormalMixture(weights.flatten(1), means.flatten(1, 2), variances.flatten(1, 2))


@dataclass(frozen=True, eq=False)
class StudentPosterior:
    """Posterior q(f) of a prior with Student-t noise, the best one of the bound.

    It is the exact posterior of rows with the normal noise s^2 / w, so that its divergence from the prior has a closed
    form; that w depends on the targets is what any posterior may do. It is not the exact posterior of Student-t noise.

    Args:
        inner: posterior of the rows with that noise.
        dof: nu [K, P].
    """

    inner: GPPosterior
    dof: Tensor

    @property
    def model(self) -> FunctionModel:
        """The prior."""
        return self.inner.model

    @property
    def theta(self) -> Tensor:
        """Particles [K, P, D]."""
        return self.inner.theta

    @property
    def log_weights(self) -> Tensor:
        """Mixture weights [K, P] as logarithms, by the bound or equal."""
        return self.inner.log_weights

    @property
    def personal(self) -> bool:
        """A client is conditioned on its own rows."""
        return True

    def predict(self, x: Tensor) -> NormalMixture:
        """Predictive distribution of new targets, `function` and Student-t noise; see `over_scales`.

        Args:
            x: new inputs [K, M, d].

        Returns:
            Mixture over particles and scales [K, P NODES, M], in units of y.
        """
        return over_scales(self.function(x), self.model.noise(self.theta, x), self.dof)

    def function(self, x: Tensor) -> NormalMixture:
        """Values of the function itself at inputs x [K, M, d]: a mixture over particles [K, P, M], in units of y."""
        return self.inner.function(x)

    def joint(self, x: Tensor) -> MixtureSameFamily:
        """Joint distribution of the function's values at inputs x [K, M, d]; see `ParticleProcesses.joint`."""
        return self.inner.joint(x)

    def kl(self) -> Tensor:
        """KL divergence of every particle's q(f) from its prior [K, P], in nats; 0 for a client without rows."""
        return self.inner.kl()


def condition(
    model: FunctionModel,
    theta: Tensor,
    batch: ClientBatch,
    weighting: Literal["evidence", "equal"] = "evidence",
) -> StudentPosterior:
    """Condition every particle's GP on every client's rows under Student-t noise.

    Args:
        model: the prior, with degrees of freedom.
        theta: particles [K, P, D].
        batch: rows x [K, N, d], y [K, N].
        weighting: of the particles, by the bound on the "evidence", or "equal".

    Returns:
        The posterior; NaN for a client whose covariance could not be factored under any particle.

    Raises:
        StudyError: when rows would be known through inducing points.
        ValueError: when the prior's noise is Gaussian.
    """
    dof = model.degrees_of_freedom(theta)
    if dof is None:
        raise ValueError("the noise of this prior is Gaussian: it has no degrees of freedom")
    if not all_exact(model.inducing, batch):
        raise StudyError(POINTS, hint=WITHOUT_POINTS)
    with torch.no_grad():
        mean, embedding = model.bind(theta)(batch.x)
        kernel = model.covariance(theta, batch.x) if embedding is None else embedding
        scale, linear = model.outputscale(theta), model.linear_features(theta, batch.x)
        noise = model.noise(theta, batch.x).expand_as(mean)
        prior = PriorValues(mean, noise, kernel, embedding is not None, scale, linear, dof)
        scales = scales_of(prior, batch.y, batch.mask)
        given = noise / scales, scale_terms(scales, dof, batch.mask)
        return StudentPosterior(gaussian_process.condition(model, theta, batch, weighting, given), dof)
