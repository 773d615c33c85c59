"""What a prior over functions is at some inputs, and the gradients that go back from there to its hyper-parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor


class PriorValues(NamedTuple):
    """A prior at some inputs.

    Args:
        mean: [K, P, N], in units of y.
        noise: observation variance [K, P, N], in squared units of y.
        kernel: the embedding [K, P, N, F] of a prior that has one; else the covariance [K, P, N, N], in squared units.
        embedded: whether `kernel` is an embedding.
        outputscale: factor [K, P] of the embedding's covariance, in squared units of y; 1 when None.
        linear: features b [K, P, N, R] whose products b' b are added to the embedding's covariance, in units of y; 0
            when None.
        dof: degrees of freedom [K, P] of Student-t noise, whose squared scale `noise` is then; it is normal when None.
    """

    mean: Tensor
    noise: Tensor
    kernel: Tensor
    embedded: bool
    outputscale: Tensor | None = None
    linear: Tensor | None = None
    dof: Tensor | None = None


class PriorGradients(NamedTuple):
    """Gradients of a number by `PriorValues`, client by client.

    Args:
        mean: [K, P, N].
        noise: [K, P, N].
        kernel: [K, P, N, F] or [K, P, N, N].
        outputscale: [K, P] of a prior that has one.
        linear: [K, P, N, R] of a prior that has them.
        dof: [K, P] of a prior that has them.
    """

    mean: Tensor
    noise: Tensor
    kernel: Tensor
    outputscale: Tensor | None = None
    linear: Tensor | None = None
    dof: Tensor | None = None


Pullback = Callable[[PriorGradients], Tensor]
"""Turns a number's gradients by a prior's values into its gradient by theta [K, P, D], client by client."""


class Spreads(NamedTuple):
    """Standard deviations of every hyper-parameter, relative to that of the hyper-prior.

    Args:
        prior: of the hyper-prior [D], positive.
        start: of the first particles [D].
        units: how long steps of learning are beside one another [D], positive.
    """

    prior: Tensor
    start: Tensor
    units: Tensor


def squared_exponential(z: Tensor, other: Tensor) -> Tensor:
    """Squared-exponential kernel of features, k(z, z') = exp(-|z - z'|^2 / 2) (PAC-PFL section 8.3.2).

    Args:
        z: features [*, N, F].
        other: features [*, M, F].

    Returns:
        [*, N, M].
    """
    if not other.shape[-2]:
        return z @ other.mT
    origin = other[..., :1, :]  # only differences count, and an offset common to all would cost digits
    z, other = z - origin, other - origin
    gram = z @ other.mT
    gram -= 0.5 * z.square().sum(-1).unsqueeze(-1)
    gram -= 0.5 * other.square().sum(-1).unsqueeze(-2)
    return gram.clamp_(max=0.0).exp_()


def embedded_covariance(
    z: Tensor, other: Tensor, scale: Tensor | None, linear: Tensor | None, other_linear: Tensor | None
) -> Tensor:
    """Covariance of a prior with an embedding, a exp(-|z - z'|^2 / 2) + b' b.

    Args:
        z: features [K, P, N, F].
        other: features [K, P, M, F].
        scale: a [K, P]; 1 when None.
        linear: b of the N rows [K, P, N, R]; 0 when None.
        other_linear: of the M rows [K, P, M, R].

    Returns:
        [K, P, N, M], in squared units of y.
    """
    covariance = squared_exponential(z, other)
    if scale is not None:
        covariance *= scale[..., None, None]
    return covariance if linear is None or other_linear is None else covariance.add_(linear @ other_linear.mT)


def embedded_variance(z: Tensor, scale: Tensor | None, linear: Tensor | None) -> Tensor:
    """Diagonal of `embedded_covariance`, a + b' b.

    Args:
        z: features [K, P, N, F].
        scale: a [K, P]; 1 when None.
        linear: b [K, P, N, R]; 0 when None.

    Returns:
        [K, P, N], in squared units of y.
    """
    variance = z.new_ones(z.shape[:-1]) if scale is None else scale.unsqueeze(-1).expand(z.shape[:-1])
    return variance if linear is None else variance + linear.square().sum(-1)
