"""The collapsed variational bound of inducing points, and the normal posterior of their values that attains it.

q(f) = int p(f | u) q(u) du has the bound E_q[ln N(y | f, D)] - KL(q(u) || p(u)) on the log evidence. At the best q(u)
it is (Titsias, AISTATS 2009, eq. 9; D is the diagonal of the rows' noise, Q = K_xz K_zz^-1 K_zx)

    ln N(y | m, Q + D) - tr(D^-1 (K - Q)) / 2

Whitened values v = L^-1 (u - m_z), L L' = K_zz, have the prior N(0, I) and the posterior N(B^-1 A D^-1 (y - m), B^-1),
B = I + A D^-1 A', A = L^-1 K_zx. Points that are not needed have rows of 0 in A and change nothing.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.models.base import FunctionModel


class Collapsed(NamedTuple):
    """The bound, and what its gradient and predictions need; D^(-1/2) of padding is 0.

    Args:
        value: [K, P], in nats.
        white: A D^(-1/2) [K, P, M, N].
        residual: D^(-1/2) (y - m) [K, P, N].
        inverse_std: diagonal of D^(-1/2) [K, P, N], in 1 / units of y.
        inner: Cholesky factors of B [K, P, M, M].
        mean: of v under q [K, P, M].
    """

    value: Tensor
    white: Tensor
    residual: Tensor
    inverse_std: Tensor
    inner: Tensor
    mean: Tensor


def collapse(
    factor: Tensor, left: Tensor, residual: Tensor, noise: Tensor, mask: Tensor, overwrite: bool = False
) -> Collapsed:
    """Find the best q(v) and its bound, O(N M^2); differentiable by autograd.

    Args:
        factor: A [K, P, M, N].
        left: k - q of every row [K, P, N], in squared units of y.
        residual: y - m [K, P, N].
        noise: diagonal of D [K, P, N], in squared units of y.
        mask: [K, N] bool; what the others hold at padding does not count, but must be finite.
        overwrite: whether the factor's memory may be used.

    Returns:
        The bound, NaN where a number is not finite.
    """
    real = mask.unsqueeze(1)
    inverse_std = torch.where(real, noise.rsqrt(), 0.0)
    white = (factor.mul_ if overwrite else factor.mul)(inverse_std.unsqueeze(-2))
    aim = residual * inverse_std
    identity = torch.eye(factor.shape[-2], dtype=factor.dtype, device=factor.device)
    inner, info = torch.linalg.cholesky_ex(identity + white @ white.mT)  # at least I: it needs no jitter
    projected = (white @ aim.unsqueeze(-1)).squeeze(-1)
    half = torch.linalg.solve_triangular(inner, projected.unsqueeze(-1), upper=False)
    mean = torch.linalg.solve_triangular(inner.mT, half, upper=True).squeeze(-1)
    quadratic = aim.square().sum(-1) - half.square().sum((-2, -1))
    log_noise = torch.where(real, noise.log() + math.log(2 * math.pi), 0.0).sum(-1)
    log_determinant = 2 * inner.diagonal(dim1=-2, dim2=-1).log().sum(-1) + log_noise
    value = -0.5 * (quadratic + log_determinant + (left * inverse_std.square()).sum(-1))
    usable = (info == 0) & value.isfinite()
    return Collapsed(torch.where(usable, value, torch.nan), white, aim, inverse_std, inner, mean)


class Pieces(NamedTuple):
    """Factors behind the bound with any inducing inputs; D is the diagonal of the rows' noise, 1 at padding.

    For one client under one particle they have no dimensions K and P.

    Args:
        lower: L, Cholesky factors of K_zz and the jitter [K, P, M, M].
        white: A D^(-1/2) [K, P, M, N], 0 at padding.
        inner: Cholesky factors of B [K, P, M, M].
        projected: A D^-1 (y - m) [K, P, M].
        residual: y - m [K, P, N], in units of y; 0 at padding.
        noise: D [K, P, N], in squared units of y.
    """

    lower: Tensor
    white: Tensor
    inner: Tensor
    projected: Tensor
    residual: Tensor
    noise: Tensor


def pieces(model: FunctionModel, theta: Tensor, inducing: Tensor, batch: ClientBatch, jitter: float = 0.0) -> Pieces:
    """Factor what the bound is made of; differentiable by autograd.

    Args:
        model: the prior.
        theta: particles [K, P, D].
        inducing: inputs [K, M, d], the same for all particles of a client.
        batch: rows x [K, N, d], y [K, N].
        jitter: noise of the inducing values, with which the bound holds too, in squared units of y.

    Returns:
        The factors.

    Raises:
        RuntimeError: when K_zz is not positive definite (torch's LinAlgError).
    """
    real, x = batch.mask.unsqueeze(1), batch.x
    identity = torch.eye(inducing.shape[1], dtype=x.dtype, device=x.device)
    k_zz, k_zx = model.covariance(theta, inducing), model.covariance(theta, inducing, x)
    k_zx = torch.where(real.unsqueeze(-2), k_zx, 0.0)
    noise = torch.where(real, model.noise(theta, x), 1.0)
    residual = torch.where(real, batch.y.unsqueeze(1) - model.mean(theta, x), 0.0)
    if batch.clients == theta.shape[1] == 1:  # products of matrices, not of batches of one
        k_zz, k_zx, noise, residual = (part[0, 0] for part in (k_zz, k_zx, noise, residual))
    lower = torch.linalg.cholesky(k_zz + jitter * identity)
    white = torch.linalg.solve_triangular(lower, k_zx, upper=False) / noise.sqrt().unsqueeze(-2)
    inner = torch.linalg.cholesky(identity + white @ white.mT)
    projected = (white @ (residual / noise.sqrt()).unsqueeze(-1)).squeeze(-1)
    return Pieces(lower, white, inner, projected, residual, noise)


def collapsed_bound(
    model: FunctionModel, theta: Tensor, inducing: Tensor, batch: ClientBatch, jitter: float = 0.0
) -> Tensor:
    """Lower bound on the log evidence with any inducing inputs: the definition, differentiable by autograd.

    Args:
        model: the prior.
        theta: particles [K, P, D].
        inducing: inputs [K, M, d], the same for all particles of a client.
        batch: rows x [K, N, d], y [K, N].
        jitter: as of `pieces`.

    Returns:
        [K, P], in nats.

    Raises:
        RuntimeError: as `pieces`.
    """
    _, white, inner, projected, residual, noise = pieces(model, theta, inducing, batch, jitter)
    half = torch.linalg.solve_triangular(inner, projected.unsqueeze(-1), upper=False)
    quadratic = (residual.square() / noise).sum(-1) - half.square().sum((-2, -1))
    log_determinant = 2 * inner.diagonal(dim1=-2, dim2=-1).log().sum(-1) + noise.log().sum(-1)
    variance = torch.where(batch.mask.unsqueeze(1), model.variance(theta, batch.x), 0.0)
    lost = (variance / noise).sum(-1) - white.square().sum((-2, -1))
    rows = batch.mask.sum(-1, dtype=noise.dtype).unsqueeze(1)
    bound: Tensor = -0.5 * (quadratic + log_determinant + rows * math.log(2 * math.pi) + lost)
    return bound
