"""The gradient of the collapsed bound on the log evidence, written out: O(N M^2) for N rows and M inducing points.

The definition is `posteriors.functions.collapsed.collapsed_bound` under autograd, with the chosen points held. By the
covariances alone, with alpha = (Q + D)^-1 (y - m) and b = E v, the gradients are

by K_zx: L^-T (b alpha' + (I - B^-1) A D^-1),  by K_zz: -L^-T (b b' + B - 2 I + B^-1) L^-1 / 2,  by k_ii: -1 / (2 s_i^2)

which a prior with an embedding takes back by hand and any other by autograd. What is as large as K_zx is made for some
rows at a time, which stay in a processor's cache until they are summed.
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
from pacbayes_fl.posteriors.functions.pivoted import EmbeddedKernel, ModelKernel, Points, choose

_ROWS = 512
"""Rows whose M columns are in memory at once, by particle."""


class Bound(NamedTuple):
    """The bound on the log evidence [K, P], and its gradient by theta [K, P, D]; NaN where it is not finite."""

    value: Tensor
    score: Tensor


class _Gradients(NamedTuple):
    """By the mean [K, P, N], noise [K, P, N], K_zz [K, P, M, M] and k_ii [K, P, N]."""

    value: Tensor
    mean: Tensor
    noise: Tensor
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
    through = _ThroughEmbedding(kernel, points)
    by = _gradients(points, residual, tempered.noise, batch.mask, through.take)
    by_noise = by.noise / tempered.power + tempered.slope
    score = vjp(PriorGradients(by.mean, by_noise, *through.gradients(by)))
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
    cross: list[Tensor] = []
    by = _gradients(points, residual, tempered.noise, batch.mask, lambda _, some: cross.append(some))
    slopes = by.mean, by.noise / tempered.power + tempered.slope, torch.cat(cross, -1).mT, by.inner, by.variance
    reached = [(out, slope) for out, slope in zip(outputs, slopes, strict=True) if out.requires_grad]
    score = torch.autograd.grad([out for out, _ in reached], leaf, [slope for _, slope in reached])[0]
    return _checked(by.value + tempered.constant, score)


def _checked(value: Tensor, score: Tensor) -> Bound:
    bad = torch.where(value.isfinite(), 0.0, torch.nan)
    return Bound(value + bad, score + bad.unsqueeze(-1))


def _gradients(
    points: Points, residual: Tensor, noise: Tensor, mask: Tensor, take: Callable[[slice, Tensor], None]
) -> _Gradients:
    """Differentiate the bound by the prior's moments; `take` is given the gradients by K_zx [K, P, M, n] of n rows."""
    lower = points.lower()
    found = collapse(points.factor, points.left, residual, noise, mask, overwrite=True)
    identity = torch.eye(lower.shape[-1], dtype=lower.dtype, device=lower.device)
    whitener = torch.linalg.solve_triangular(found.inner, identity.expand_as(lower), upper=False)
    precision = whitener.mT @ whitener  # B^-1
    unwhitener = torch.linalg.solve_triangular(lower, identity.expand_as(lower), upper=False).mT  # L^-T
    rest, mean = identity - precision, found.mean.unsqueeze(-1)
    alpha, explained = torch.empty_like(residual), torch.empty_like(residual)
    for start in range(0, max(1, residual.shape[-1]), _ROWS):
        rows = slice(start, start + _ROWS)
        white, inverse_std = found.white[..., rows], found.inverse_std[..., rows]
        spread = rest @ white  # (I - B^-1) A D^(-1/2)
        explained[..., rows] = (white - spread).mul_(white).sum(-2)  # of D^(-1/2) A' B^-1 A D^(-1/2), the diagonal
        alpha[..., rows] = (found.residual[..., rows] - (mean.mT @ white).squeeze(-2)).mul_(inverse_std)
        spread.mul_(inverse_std.unsqueeze(-2)).addcmul_(mean, alpha[..., rows].unsqueeze(-2))
        take(rows, unwhitener @ spread)
    precise = found.inverse_std.square()
    by_noise = 0.5 * (alpha.square() - precise * (1.0 - explained) + points.left * precise.square())
    twice = mean @ mean.mT + found.inner @ found.inner.mT - 2.0 * identity + precision
    by_inner = -0.5 * unwhitener @ twice @ unwhitener.mT
    return _Gradients(found.value, alpha, by_noise, by_inner, -0.5 * precise)


class _ThroughEmbedding:
    """Brings gradients by covariances to the embedding [K, P, N, F], output scale [K, P] and linear features."""

    def __init__(self, kernel: EmbeddedKernel, points: Points) -> None:
        self._kernel, self._at = kernel, points.at
        self._own = kernel.points(points.at)
        self._points = EmbeddedKernel(self._own.embedding, kernel.outputscale)  # without their linear features
        self._by_rows = torch.empty_like(kernel.embedding)
        self._by_points = torch.zeros_like(self._own.embedding)
        self._weights = self._own.embedding.new_zeros(points.at.shape).unsqueeze(-1)
        self._linear: tuple[Tensor, ...] | None = None
        if kernel.linear is not None and self._own.linear is not None:  # of rows and points, then gradients by both
            both = kernel.linear, self._own.linear
            self._linear = *both, torch.empty_like(both[0]), torch.zeros_like(both[1])

    def take(self, rows: slice, by_cross: Tensor) -> None:
        """Add what some rows give, of gradients by their covariances with the points [K, P, M, n]."""
        z = self._kernel.embedding[..., rows, :]
        weight = self._points.cross(EmbeddedKernel(z)).mul_(by_cross)  # by ln k of the part with an embedding
        self._by_rows[..., rows, :] = weight.mT @ self._own.embedding - z * weight.sum(-2).unsqueeze(-1)
        self._by_points += weight @ z
        self._weights += weight.sum(-1, keepdim=True)
        if self._linear is not None:
            linear, at_points, by_linear, by_points = self._linear
            by_linear[..., rows, :] = by_cross.mT @ at_points
            by_points += by_cross @ linear[..., rows, :]

    def gradients(self, by: _Gradients) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Give the gradients, once all rows have been taken."""
        kernel, z = self._kernel, self._own.embedding
        inner = self._points.cross(self._points).mul_(by.inner)
        inner.diagonal(dim1=-2, dim2=-1).zero_()  # a point does not pull on itself
        by_points = self._by_points - z * self._weights + 2.0 * (inner @ z - z * inner.sum(-1, keepdim=True))
        grad_embedding = _add_at(self._by_rows, self._at, by_points)
        grad_scale: Tensor | None = None
        if kernel.outputscale is not None:
            on_diagonal = by.inner.diagonal(dim1=-2, dim2=-1).sum(-1) + by.variance.sum(-1)
            grad_scale = (self._weights.sum((-2, -1)) + inner.sum((-2, -1))) / kernel.outputscale + on_diagonal
        if self._linear is None:
            return grad_embedding, grad_scale, None
        linear, at_points, by_linear, by_linear_points = self._linear
        by_linear = by_linear + 2.0 * by.variance.unsqueeze(-1) * linear
        by_linear_points = by_linear_points + 2.0 * by.inner @ at_points
        return grad_embedding, grad_scale, _add_at(by_linear, self._at, by_linear_points)


def _add_at(rows: Tensor, at: Tensor, values: Tensor) -> Tensor:
    """Add values [K, P, M, F] to rows [K, P, N, F] at positions [K, P, M]."""
    return rows.scatter_add_(2, at.unsqueeze(-1).expand_as(values), values)
