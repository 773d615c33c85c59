"""The client's half of PAC-PFL with GPs: log evidence of every particle and its gradient, one score per client.

The definition is `posteriors.functions.gaussian_process.gaussian_log_evidence` under autograd. Here the gradient is
written out, d ln Z / dK = (alpha alpha' - (K + D)^-1) / 2, D the rows' noise, which costs half of a pass through the
Cholesky factor; a test holds the two together.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import StudyError
from pacbayes_fl.inference import collapsed_evidence
from pacbayes_fl.inference.collapsed_evidence import Tempered
from pacbayes_fl.inference.optim import adam, adam_init
from pacbayes_fl.models.base import FunctionModel
from pacbayes_fl.models.inducing import Way, order, ways
from pacbayes_fl.models.prior_values import PriorGradients, PriorValues
from pacbayes_fl.posteriors.functions import student_noise
from pacbayes_fl.posteriors.functions.gaussian_process import Factor, add_noise, factorise, inverse


class ParticleScores(NamedTuple):
    """Log evidence and score of every client (PAC-PFL Algorithm 2, line 4).

    Args:
        score: gradient of the log evidence by the hyper-parameters [K, P, D], in nats per unit of theta; NaN for a
            client and particle whose covariance could not be factored.
        log_evidence: ln Z [K, P], in nats.
        jitter: added to the diagonal [K, P], in squared units of y.
    """

    score: Tensor
    log_evidence: Tensor
    jitter: Tensor


def particle_scores(
    model: FunctionModel, particles: Tensor, batch: ClientBatch, power: Tensor | None = None
) -> ParticleScores:
    """Differentiate the exact log evidence of every client by every particle (PAC-PFL eq. 33).

    Of a prior with Student-t noise it is the lower bound of `posteriors.functions.student_noise` instead.

    With a power c it is that of a tempered likelihood, Z(c) = E_f prod_i N(y_i | f(x_i), s_i^2)^c:

    ln Z(c) = ln N(y | m(x), K(x, x) + diag(s^2 / c)) + sum_i ((1 - c) ln(2 pi s_i^2) - ln c) / 2

    Args:
        model: the prior; where it has inducing points for a client, the collapsed bound stands for the evidence.
        particles: [P, D], the same for all clients, or [K, P, D].
        batch: rows x [K, N, d], y [K, N].
        power: c of every client [K], positive; 1 when None.

    Returns:
        Scores per client, so that they can be clipped, summed or sent one by one.
    """
    parts = ways(model.inducing, batch)
    found = [_scores(model, particles, power, part) for part in parts]
    return found[0] if len(parts) == 1 else tensors.select(tensors.cat(found), order(parts))


def particle_evidence(model: FunctionModel, particles: Tensor, batch: ClientBatch) -> Tensor:
    """Log evidence of every client under every particle, as `particle_scores` has it, without the gradient by theta.

    Args:
        model: as `particle_scores`.
        particles: [P, D], the same for all clients, or [K, P, D].
        batch: rows x [K, N, d], y [K, N].

    Returns:
        ln Z [K, P], in nats; NaN where a covariance could not be factored.
    """
    parts = ways(model.inducing, batch)
    found = [_values(model, *_of_way(particles, None, part), part) for part in parts]
    return found[0] if len(parts) == 1 else torch.cat(found)[order(parts)]


def _of_way(particles: Tensor, power: Tensor | None, way: Way) -> tuple[Tensor, Tensor | None]:
    """Particles and powers of the clients of a way."""
    if way.at is None:
        return particles, power
    return particles if particles.dim() == 2 else particles[way.at], None if power is None else power[way.at]


def _bound(model: FunctionModel, particles: Tensor, power: Tensor | None, way: Way) -> tuple[Tensor, Tensor]:
    """Lower bound of the log evidence by inducing points [K, P], and its gradient [K, P, D]."""
    if way.points is None or model.degrees_of_freedom(particles) is not None:
        raise StudyError(student_noise.POINTS, hint=student_noise.WITHOUT_POINTS)
    mask = way.batch.mask
    return collapsed_evidence.bound(model, particles, way.batch, way.points, lambda noise: _temper(noise, mask, power))


def _values(model: FunctionModel, particles: Tensor, power: Tensor | None, way: Way) -> Tensor:
    """Log evidence of clients who are all exact, or all have inducing points."""
    with torch.no_grad():
        if way.points is not None:
            return _bound(model, particles, power, way)[0]
        prior, _ = model.with_vjp(particles, way.batch.x)
        evidence, _ = (_tempered if prior.dof is None else _heavy_tailed)(prior, way.batch, power)
        return evidence.value + torch.where(evidence.factor.ok, 0.0, torch.nan)


def _scores(model: FunctionModel, particles: Tensor, power: Tensor | None, way: Way) -> ParticleScores:
    """Scores of clients who are all exact, or all have inducing points."""
    batch = way.batch
    particles, power = _of_way(particles, power, way)
    with torch.no_grad():
        if way.points is not None:
            value, score = _bound(model, particles, power, way)
            return ParticleScores(score, value, torch.zeros_like(value))
        prior, vjp = model.with_vjp(particles, batch.x)
        evidence, grad_kernel = (_tempered if prior.dof is None else _heavy_tailed)(prior, batch, power)
        by = evidence.alpha, evidence.grad_noise, grad_kernel, evidence.grad_outputscale, evidence.grad_linear
        score = vjp(PriorGradients(*by, evidence.grad_dof))
        bad = torch.where(evidence.factor.ok, 0.0, torch.nan)
        return ParticleScores(score.add_(bad.unsqueeze(-1)), evidence.value + bad, evidence.factor.jitter)


def maximise(model: FunctionModel, theta: Tensor, batch: ClientBatch, rate: float, steps: int) -> Tensor:
    """Ascend every client's log evidence from one start by Adam.

    Args:
        model: the prior.
        theta: start [D].
        batch: rows x [K, N, d], y [K, N].
        rate: learning rate.
        steps: Adam steps.

    Returns:
        Each client's hyper-parameters [K, 1, D].
    """
    own = theta.expand(batch.clients, 1, -1)
    moments = adam_init(own, batch.clients)
    for _ in range(steps):
        own, moments = adam(own, -particle_scores(model, own, batch).score, moments, rate)
    return own


class _Evidence(NamedTuple):
    """Log evidence [K, P], the inverse, and gradients by all of `PriorValues` but the kernel; alpha is by the mean."""

    value: Tensor
    alpha: Tensor
    grad_noise: Tensor
    inverse: Tensor
    factor: Factor
    grad_outputscale: Tensor | None = None
    grad_linear: Tensor | None = None
    grad_dof: Tensor | None = None


def _heavy_tailed(prior: PriorValues, batch: ClientBatch, power: Tensor | None) -> tuple[_Evidence, Tensor]:
    """Lower bound of the log evidence under Student-t noise, and its gradient: see `functions.student_noise`."""
    scales = student_noise.scales_of(prior, batch.y, batch.mask, power)
    dof: Tensor = prior.dof  # type: ignore[assignment]  # of every prior that comes here
    evidence, grad_kernel = _tempered(prior._replace(noise=prior.noise / scales), batch, power)
    factor = 1.0 if power is None else power.to(dof).unsqueeze(-1)
    return evidence._replace(
        value=evidence.value + factor * student_noise.scale_terms(scales, dof, batch.mask),
        grad_noise=evidence.grad_noise / scales,
        grad_dof=factor * student_noise.dof_gradient(scales, dof, batch.mask),
    ), grad_kernel


def _tempered(prior: PriorValues, batch: ClientBatch, power: Tensor | None) -> tuple[_Evidence, Tensor]:
    """Log evidence of likelihoods to a power, and its gradient by the kernel: noise s^2 / c, and a constant."""
    result = _by_embedding if prior.embedded else _by_covariance
    if power is None:
        return result(prior, batch)
    noise, constant, factor, slope = _temper(prior.noise, batch.mask, power)
    evidence, grad_kernel = result(prior._replace(noise=noise), batch)
    value, grad_noise = evidence.value + constant, evidence.grad_noise / factor + slope
    return evidence._replace(value=value, grad_noise=grad_noise), grad_kernel


def _temper(noise: Tensor, mask: Tensor, power: Tensor | None) -> Tempered:
    """Give the noise s^2 / c of likelihoods to a power c [K], and what this adds to the log evidence."""
    if power is None:
        return Tempered(noise, noise.new_zeros(()), 1.0, 0.0)
    c, real = power.to(noise)[:, None, None], mask.unsqueeze(1)
    constant = torch.where(real, torch.special.xlogy(1.0 - c, 2 * math.pi * noise) - c.log(), 0.0)
    slope = torch.where(real & (c != 1.0), (1.0 - c) / noise, 0.0)
    return Tempered(noise / c, 0.5 * constant.sum(-1), c, 0.5 * slope)


def _by_scaled_embedding(prior: PriorValues, scale: Tensor, batch: ClientBatch) -> tuple[_Evidence, Tensor]:
    """Log evidence and its gradient for a kernel a k + b b', in units in which the output scale a is 1.

    ln N(r | 0, a k + b b' + D) = ln N(r / sqrt(a) | 0, k + b b' / a + D / a) - m / 2 ln a,  D the noise of the rows

    With r, b and D in these units, its slope by a is (alpha' r / 2 - sum D d/dD - sum b d/db / 2 - m / 2) / a.
    """
    real, root = batch.mask.unsqueeze(1), scale.sqrt().unsqueeze(-1)
    residual = torch.where(real, batch.y.unsqueeze(1) - prior.mean, 0.0) / root
    noise = prior.noise / scale.unsqueeze(-1)
    linear = None if prior.linear is None else prior.linear / root.unsqueeze(-1)
    unit = PriorValues(batch.y.unsqueeze(1) - residual, noise, prior.kernel, True, None, linear)  # has this residual
    one, grad_kernel = _by_embedding(unit, batch)
    rows = real.sum(-1, dtype=residual.dtype)
    quadratic = (one.alpha * residual).sum(-1)
    if linear is not None and one.grad_linear is not None:
        quadratic = quadratic - (linear * one.grad_linear).sum((-2, -1))
    return one._replace(
        value=one.value - 0.5 * rows * scale.log(),
        alpha=one.alpha / root,
        grad_noise=one.grad_noise / scale.unsqueeze(-1),
        factor=one.factor._replace(jitter=one.factor.jitter * scale),
        grad_outputscale=(0.5 * (quadratic - rows) - (noise * one.grad_noise).sum(-1)) / scale,
        grad_linear=None if one.grad_linear is None else one.grad_linear / root.unsqueeze(-1),
    ), grad_kernel


def _evidence(covariance: Tensor, prior: PriorValues, batch: ClientBatch) -> _Evidence:
    """Factor and invert; the noise is added to the diagonal of `covariance` [K, P, N, N] in place."""
    real = batch.mask.unsqueeze(1)
    factor = factorise(add_noise(covariance, prior.noise, batch.mask), batch.mask)
    inverted = inverse(factor)
    residual = torch.where(real, batch.y.unsqueeze(1) - prior.mean, 0.0)
    alpha = (residual.unsqueeze(-2) @ inverted).squeeze(-2)  # a row from the left: twice as fast as a column, here too
    count = real.sum(-1, dtype=residual.dtype)
    log_determinant = factor.cholesky.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    value = -0.5 * (alpha * residual).sum(-1) - log_determinant - 0.5 * math.log(2 * math.pi) * count
    precision = torch.where(real, inverted.diagonal(dim1=-2, dim2=-1), 0.0)
    return _Evidence(value, alpha, 0.5 * (alpha.square() - precision), inverted, factor)


def _by_covariance(prior: PriorValues, batch: ClientBatch) -> tuple[_Evidence, Tensor]:
    """Log evidence and its gradient by a covariance of any form [K, P, N, N]."""
    both = batch.mask[:, None, :, None] & batch.mask[:, None, None, :]
    evidence = _evidence(torch.where(both, prior.kernel, 0.0), prior, batch)
    outer = evidence.alpha.unsqueeze(-1) * evidence.alpha.unsqueeze(-2)
    return evidence, torch.where(both, 0.5 * (outer - evidence.inverse), 0.0)


def _by_embedding(prior: PriorValues, batch: ClientBatch) -> tuple[_Evidence, Tensor]:
    """Log evidence and its gradient by features z [K, P, N, F] for k = exp(-|z - z'|^2 / 2): no N^2 F differences.

    With V = (k + b b' + D)^-1 - alpha alpha' and W = V * k elementwise, d ln Z / dz_i = z_i sum_j W_ji - sum_j W_ji z_j
    and d ln Z / db = -V b.
    """
    if prior.outputscale is not None:
        return _by_scaled_embedding(prior, prior.outputscale, batch)
    real = batch.mask.unsqueeze(1)
    features = torch.where(real.unsqueeze(-1), prior.kernel - prior.kernel[..., :1, :], 0.0)
    half = torch.where(real, 0.5 * features.square().sum(-1), torch.inf)  # infinity turns padding into k = 0
    kernel = features @ features.mT
    kernel -= half.unsqueeze(-1)
    kernel -= half.unsqueeze(-2)
    kernel.clamp_(max=0.0).exp_()
    linear = None if prior.linear is None else torch.where(real.unsqueeze(-1), prior.linear, 0.0)
    evidence = _evidence(kernel if linear is None else kernel + linear @ linear.mT, prior, batch)
    weight = evidence.inverse.addcmul_(evidence.alpha.unsqueeze(-1), evidence.alpha.unsqueeze(-2), value=-1.0)
    if linear is not None:
        evidence = evidence._replace(grad_linear=-(weight @ linear))
    weight *= kernel
    weight.diagonal(dim1=-2, dim2=-1).zero_()  # where the kernel carries the noise; a point does not pull on itself
    pulled = torch.cat((features, torch.ones_like(features[..., :1])), -1).mT @ weight  # from the left: twice as fast
    return evidence, (pulled[..., -1:, :] * features.mT - pulled[..., :-1, :]).mT
