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
    """

    prior: Tensor
    start: Tensor
