"""Inducing points of every client: rows chosen greedily by the pivoted Cholesky factor of its kernel."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.models.base import FunctionModel
from pacbayes_fl.models.prior_values import embedded_covariance

_EXHAUSTED = 1e-12  # of a row's prior variance: what is left below is rounding

SLACK = 1e-4
"""Nats of the bound's trace term below which no further point is chosen: it would gain next to nothing."""


class Kernel(Protocol):
    """A prior covariance at rows of K clients under P particles, of which columns can be had one by one."""

    def variance(self) -> Tensor:
        """Diagonal [K, P, N]."""

    def column(self, at: Tensor) -> Tensor:
        """Covariance [K, P, N] of all rows with one of them, which stands at [K, P]."""


@dataclass(frozen=True, eq=False)
class EmbeddedKernel:
    """The covariance a exp(-|z - z'|^2 / 2) + b' b of a prior with an embedding.

    Args:
        embedding: z [K, P, N, F].
        outputscale: a [K, P]; 1 when None.
        linear: b [K, P, N, R]; 0 when None.
    """

    embedding: Tensor
    outputscale: Tensor | None = None
    linear: Tensor | None = None

    def variance(self) -> Tensor:
        """Diagonal [K, P, N]."""
        one = torch.ones_like(self.embedding[..., 0])
        scaled = one if self.outputscale is None else one * self.outputscale.unsqueeze(-1)
        return scaled if self.linear is None else scaled + self.linear.square().sum(-1)

    def column(self, at: Tensor) -> Tensor:
        """Covariance [K, P, N] of all rows with one of them, which stands at [K, P]."""
        z, half, linear = self._by_feature
        column = _product(z, at)
        column -= half
        column -= half.gather(-1, at.unsqueeze(-1))
        column.clamp_(max=0.0).exp_()
        if self.outputscale is not None:
            column *= self.outputscale.unsqueeze(-1)
        return column if linear is None else column.add_(_product(linear, at))

    @cached_property
    def _by_feature(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Features [K, P, F, N] less a row's, as an offset would cost digits, half their squares, linear features.

        Rows are last, so that the products of a column, of which there is one for every point, read memory in order.
        """
        z = (self.embedding - self.embedding[..., :1, :]).mT.contiguous()
        linear = None if self.linear is None else self.linear.mT.contiguous()
        return z, 0.5 * z.square().sum(-2), linear

    def points(self, at: Tensor) -> EmbeddedKernel:
        """The same covariance at those of the rows that stand at [K, P, M]."""
        linear = None if self.linear is None else rows_at(self.linear, at)
        return EmbeddedKernel(rows_at(self.embedding, at), self.outputscale, linear)

    def cross(self, other: EmbeddedKernel) -> Tensor:
        """Covariance [K, P, N, M] with the M rows of another."""
        return embedded_covariance(self.embedding, other.embedding, self.outputscale, self.linear, other.linear)


@dataclass(frozen=True, eq=False)
class ModelKernel:
    """The covariance of any prior, which is evaluated particle by particle: their points differ.

    Args:
        model: the prior.
        theta: particles [K, P, D].
        x: rows [K, N, d].
    """

    model: FunctionModel
    theta: Tensor
    x: Tensor

    def variance(self) -> Tensor:
        """Diagonal [K, P, N]."""
        return self.model.variance(self.theta, self.x)

    def column(self, at: Tensor) -> Tensor:
        """Covariance [K, P, N] of all rows with one of them, which stands at [K, P]."""
        return self.cross(self.inputs(at.unsqueeze(-1))).squeeze(-1)

    def inputs(self, at: Tensor) -> Tensor:
        """Rows [K, P, M, d] that stand at [K, P, M]."""
        return rows_at(self.x.unsqueeze(1).expand(-1, at.shape[1], -1, -1), at)

    def cross(self, points: Tensor) -> Tensor:
        """Covariance [K, P, N, M] with points [K, P, M, d] of each particle's own."""
        each = range(self.theta.shape[1])
        return torch.cat([self.model.covariance(self.theta[:, p : p + 1], self.x, points[:, p]) for p in each], 1)


class Points(NamedTuple):
    """Inducing points that are rows, and the factor of the covariance that they explain.

    Args:
        at: positions of the M points among the rows [K, P, M]; 0 where `used` is False.
        used: bool [K, P, M]; False from where on no row leaves anything to explain.
        factor: A [K, P, M, N], for Q = K_xz K_zz^-1 K_zx = A' A; 0 at padding and at points that are not used.
        left: the rest of every row's prior variance, k - q [K, P, N], at least 0; 0 at padding.
    """

    at: Tensor
    used: Tensor
    factor: Tensor
    left: Tensor

    def lower(self) -> Tensor:
        """Cholesky factors of K_zz [K, P, M, M], which are the columns of A at the points; identities where unused."""
        columns = self.factor.gather(-1, self.at.unsqueeze(-2).expand(*self.at.shape, -1)).mT
        both = self.used.unsqueeze(-1) & self.used.unsqueeze(-2)
        return torch.where(both, columns.tril(), torch.diag_embed((~self.used).to(columns.dtype)))


def choose(kernel: Kernel, noise: Tensor, mask: Tensor, count: int) -> Points:
    """Choose inducing points greedily: always the row of which most is left, over its noise.

    i_j = argmax_i (k_ii - q_ii) / s_i^2, q of the points i_1 ... i_(j-1)

    These are the pivots of the Cholesky factor of D^(-1/2) K D^(-1/2) (Harbrecht, Peters and Schneider 2012; for GPs
    Burt, Rasmussen and van der Wilk 2020, section 4), and each takes the row that costs the bound's trace term most.
    Nothing is drawn. A client's points end where its rows are exhausted: repeated rows are never chosen twice.

    Args:
        kernel: covariance at the rows.
        noise: observation variance s^2 [K, P, N], in squared units of y.
        mask: [K, N] bool.
        count: most points, M at least 1; no more than there are rows, with padding.

    Returns:
        The points; M is less where fewer do for all K clients.
    """
    real, variance = mask.unsqueeze(1), kernel.variance()
    shape = *variance.shape[:2], min(count, variance.shape[2]), variance.shape[2]
    left, floor, precise = torch.where(real, variance, 0.0), _EXHAUSTED * variance, noise.reciprocal()
    factor, at = variance.new_empty(shape), torch.zeros(shape[:3], dtype=torch.long, device=mask.device)
    used, real = torch.zeros(shape[:3], dtype=torch.bool, device=mask.device), real.to(variance)
    for j in range(shape[2]):
        gain = (left - floor).clamp_min_(0.0).mul_(precise)
        live = gain.sum(-1) > 2 * SLACK
        if j and tensors.known_false(live):
            return Points(at[..., :j], used[..., :j], factor[..., :j, :], left)
        row = torch.where(live, gain.max(-1).indices, 0)
        index, before = row.unsqueeze(-1), factor[..., :j, :]
        column = kernel.column(row)
        if j:
            column -= _product(before, row)
        pivot = torch.where(live, left.gather(-1, index).squeeze(-1), torch.inf)
        column = torch.mul(column.mul_(real), pivot.rsqrt().unsqueeze(-1), out=factor[..., j, :])
        left.addcmul_(column, column, value=-1.0).clamp_min_(0.0)
        left.scatter_(-1, index, torch.where(live.unsqueeze(-1), 0.0, left.gather(-1, index)))
        at[..., j], used[..., j] = row, live
    return Points(at, used, factor, left)


def rows_at(values: Tensor, at: Tensor) -> Tensor:
    """Take rows of each particle's own.

    Args:
        values: of all rows [K, P, N, F].
        at: positions [K, P, M].

    Returns:
        [K, P, M, F].
    """
    return values.gather(2, at.unsqueeze(-1).expand(*at.shape, values.shape[-1]))


def _product(values: Tensor, at: Tensor) -> Tensor:
    """Products [K, P, N] of all columns of values [K, P, F, N] with the one that stands at [K, P]."""
    own = values.gather(-1, at[..., None, None].expand(*values.shape[:-1], 1))
    return (own.mT @ values).squeeze(-2)
