"""The gradient of the collapsed bound on the log evidence, written out: O(N M^2) for N rows and M inducing points.

The definition is `posteriors.functions.collapsed.collapsed_bound` under autograd, with the chosen points held. By the
covariances alone, with alpha = (Q + D)^-1 (y - m) and b = E v, the gradients are

by K_zx: L^-T (b alpha' + (I - B^-1) A D^-1),  by K_zz: -L^-T (b b' + B - 2 I + B^-1) L^-1 / 2,  by k_ii: -1 / (2 s_i^2)

which a prior with an embedding takes back by hand and any other by autograd.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.models.base import FunctionModel
from pacbayes_fl.models.prior_values import PriorGradients
from pacbayes_fl.posteriors.functions.collapsed import collapse
from pacbayes_fl.posteriors.functions.pivoted import EmbeddedKernel, ModelKernel, Points, choose, rows_at


class Bound(NamedTuple):
    """The bound on the log evidence [K, P], and its gradient by theta [K, P, D]; NaN where it is not finite."""

    value: Tensor
    score: Tensor


class _Gradients(NamedTuple):
    """By the mean [K, P, N], noise [K, P, N], K_zx [K, P, M, N], K_zz [K, P, M, M] and k_ii [K, P, N]."""

    value: Tensor
    mean: Tensor
    noise: Tensor
    cross: Tensor
    inner: Tensor
    variance: Tensor


class Tempered(NamedTuple):
    """A likelihood to a power c: its noise s^2 / c [K, P, N], and what else it adds to the log evidence.

    Args:
        noise: s^2 / c [K, P, N], in squared units of y.
        constant: added [K, P], in nats.
        power: c, [K, 1, 1].
        slope: of the constant by s^2 [K, P, N].
    """

    noise: Tensor
    constant: Tensor
    power: Tensor | float
    slope: Tensor | float


def bound(
    model: FunctionModel,
    particles: Tensor,
    batch: ClientBatch,
    count: int,
    temper: Callable[[Tensor], Tempered],
) -> Bound:
    """Differentiate every client's bound by every particle; the points are chosen under it, and then held.

    A bound holds for any points, so that the sum that a server climbs is always below that of the log evidences.

    Args:
        model: the prior.
        particles: [P, D], the same for all clients, or [K, P, D].
        batch: rows x [K, N, d], y [K, N].
        count: most points of a client, M.
        temper: of the noise [K, P, N].

    Returns:
        Bounds and scores.
    """
    theta = particles if particles.dim() == 3 else particles.expand(batch.clients, *particles.shape)
    if model.embedding(theta[:1, :1], batch.x[:1, :1]) is None:
        return _by_autograd(model, theta, batch, count, temper)
    prior, vjp = model.with_vjp(particles, batch.x)
    real = batch.mask.unsqueeze(1)
    centred = torch.where(real.unsqueeze(-1), prior.kernel - prior.kernel[..., :1, :], 0.0)
    linear = None if prior.linear is None else torch.where(real.unsqueeze(-1), prior.linear, 0.0)
    kernel = EmbeddedKernel(centred, prior.outputscale, linear)
    tempered = temper(prior.noise)
    points = choose(kernel, tempered.noise, batch.mask, count)
    residual = torch.where(real, batch.y.unsqueeze(1) - prior.mean, 0.0)
    by = _gradients(points, residual, tempered.noise, batch.mask)
    by_noise = by.noise / tempered.power + tempered.slope
    score = vjp(PriorGradients(by.mean, by_noise, *_through_embedding(kernel, points, by)))
    return _checked(by.value + tempered.constant, score)


def _by_autograd(
    model: FunctionModel, theta: Tensor, batch: ClientBatch, count: int, temper: Callable[[Tensor], Tempered]
) -> Bound:
    """As `bound` for theta [K, P, D] and a covariance of any form: its own way back is autograd's."""
    chosen = ModelKernel(model, theta, batch.x)
    tempered = temper(model.noise(theta, batch.x))
    points = choose(chosen, tempered.noise, batch.mask, count)
    with torch.enable_grad():
        leaf = theta.detach().clone().requires_grad_(True)
        kernel, inputs = ModelKernel(model, leaf, batch.x), chosen.inputs(points.at)
        inner = [model.covariance(leaf[:, p : p + 1], inputs[:, p]) for p in range(theta.shape[1])]
        mean, noise = model.mean(leaf, batch.x), model.noise(leaf, batch.x)
        outputs = mean, noise, kernel.cross(inputs), torch.cat(inner, 1), kernel.variance()
    residual = torch.where(batch.mask.unsqueeze(1), batch.y.unsqueeze(1) - mean.detach(), 0.0)
    by = _gradients(points, residual, tempered.noise, batch.mask)
    slopes = by.mean, by.noise / tempered.power + tempered.slope, by.cross.mT, by.inner, by.variance
    reached = [(out, slope) for out, slope in zip(outputs, slopes, strict=True) if out.requires_grad]
    score = torch.autograd.grad([out for out, _ in reached], leaf, [slope for _, slope in reached])[0]
    return _checked(by.value + tempered.constant, score)


def _checked(value: Tensor, score: Tensor) -> Bound:
    bad = torch.where(value.isfinite(), 0.0, torch.nan)
    return Bound(value + bad, score + bad.unsqueeze(-1))


def _gradients(points: Points, residual: Tensor, noise: Tensor, mask: Tensor) -> _Gradients:
    """Differentiate the bound by the prior's moments."""
    found = collapse(points.factor, points.left, residual, noise, mask)
    lower = points.lower()
    identity = torch.eye(lower.shape[-1], dtype=lower.dtype, device=lower.device)
    whitener = torch.linalg.solve_triangular(found.inner, identity.expand_as(lower), upper=False)
    precision = whitener.mT @ whitener  # B^-1
    unwhitener = torch.linalg.solve_triangular(lower, identity.expand_as(lower), upper=False).mT  # L^-T
    rest = identity - precision
    spread = rest @ found.white  # (I - B^-1) A D^(-1/2)
    fitted = (found.mean.unsqueeze(-2) @ found.white).squeeze(-2)
    alpha = (found.residual - fitted) * found.inverse_std
    cross = unwhitener @ (found.mean.unsqueeze(-1) * alpha.unsqueeze(-2) + spread * found.inverse_std.unsqueeze(-2))
    explained = (found.white * (found.white - spread)).sum(-2)  # of D^(-1/2) A' B^-1 A D^(-1/2), the diagonal
    precise = found.inverse_std.square()
    by_noise = 0.5 * (alpha.square() - precise * (1.0 - explained) + points.left * precise.square())
    outer = found.mean.unsqueeze(-1) * found.mean.unsqueeze(-2)
    twice = outer + found.inner @ found.inner.mT - 2.0 * identity + precision
    by_inner = -0.5 * unwhitener @ twice @ unwhitener.mT
    return _Gradients(found.value, alpha, by_noise, cross, by_inner, -0.5 * precise)


def _through_embedding(
    kernel: EmbeddedKernel, points: Points, by: _Gradients
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Bring gradients by covariances to the embedding [K, P, N, F], the output scale [K, P] and the linear features."""
    own = EmbeddedKernel(kernel.embedding, kernel.outputscale).points(points.at)
    weight = own.cross(EmbeddedKernel(kernel.embedding)).mul_(by.cross)  # by ln k of the part with an embedding
    inner = own.cross(own).mul_(by.inner)
    inner.diagonal(dim1=-2, dim2=-1).zero_()  # a point does not pull on itself
    z, at = kernel.embedding, own.embedding
    by_rows = weight.mT @ at - z * weight.sum(-2).unsqueeze(-1)
    by_points = weight @ z - at * weight.sum(-1, keepdim=True)
    by_points = by_points + 2.0 * (inner @ at - at * inner.sum(-1, keepdim=True))
    grad_embedding = _add_at(by_rows, points.at, by_points)
    grad_scale: Tensor | None = None
    if kernel.outputscale is not None:
        on_diagonal = by.inner.diagonal(dim1=-2, dim2=-1).sum(-1) + by.variance.sum(-1)
        grad_scale = (weight.sum((-2, -1)) + inner.sum((-2, -1))) / kernel.outputscale + on_diagonal
    if kernel.linear is None:
        return grad_embedding, grad_scale, None
    linear, linear_at = kernel.linear, rows_at(kernel.linear, points.at)
    by_linear = by.cross.mT @ linear_at + 2.0 * by.variance.unsqueeze(-1) * linear
    at_points = by.cross @ linear + 2.0 * by.inner @ linear_at
    return grad_embedding, grad_scale, _add_at(by_linear, points.at, at_points)


def _add_at(rows: Tensor, at: Tensor, values: Tensor) -> Tensor:
    """Add values [K, P, M, F] to rows [K, P, N, F] at positions [K, P, M]."""
    return rows.scatter_add_(2, at.unsqueeze(-1).expand_as(values), values)
