"""Gaussian-process classifiers by Polya-Gamma mean field (Wenzel et al., AAAI 2019): every update in closed form.

A label y in {0, 1} of probability sigma(f) has, with kappa = y - 1/2 and omega ~ PG(1, 0), the likelihood
exp(kappa f) E[exp(-omega f^2 / 2)] / 2 (Polson, Scott and Windle 2013, Theorem 1), so that f given omega is Gaussian
and omega given f is PG(1, f). A row that is padding, or not among a classifier's rows, has kappa = omega = 0 and drops
out exactly.

All is written in B = I + Omega^1/2 K Omega^1/2, whose eigenvalues are at least 1: no jitter, and K is never inverted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from pacbayes_fl import tensors

NODES: Final = 80
"""Nodes of the quadrature rules."""

_WIDE: Final = 1.5  # standard deviations of f from which the rule is over the sigmoid's own scale
_ENDS: Final = 4.4  # of that rule, in t: the logistic density at 2 sinh t is below 1e-35


def mean(c: Tensor) -> Tensor:
    """Mean of a Polya-Gamma variable PG(1, c), tanh(c / 2) / (2 c), and 1/4 at c = 0.

    Args:
        c: [*], not negative.

    Returns:
        [*].
    """
    small = c < 1e-3
    safe = torch.where(small, 1.0, c)
    return torch.where(small, 0.25 - c.square() / 48.0, torch.tanh(0.5 * safe) / (2.0 * safe))


class Conditioned(NamedTuple):
    """Gaussian processes given omega: N(Sigma kappa, Sigma) with Sigma = (K^-1 + Omega)^-1, at the training rows.

    Args:
        cholesky: lower factor L of B = I + Omega^1/2 K Omega^1/2 [K, P, N, N].
        root: omega^1/2 [K, P, N].
        alpha: K^-1 mean [K, P, N], 0 on rows that are not a classifier's.
        mean: Sigma kappa at all rows [K, P, N].
    """

    cholesky: Tensor
    root: Tensor
    alpha: Tensor
    mean: Tensor

    def marginals(self, cross: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of function values (Wenzel et al., eq. 11, in terms of B).

        k*^T alpha and k** - |L^-1 Omega^1/2 k*|^2

        Args:
            cross: covariance k* of the training rows with M others [K, 1, N, M].
            variance: prior variance k** of those [K, 1, M].

        Returns:
            Both [K, P, M].
        """
        white = torch.linalg.solve_triangular(self.cholesky, self.root.unsqueeze(-1) * cross, upper=False)
        mean: Tensor = (self.alpha.unsqueeze(-2) @ cross).squeeze(-2)
        return mean, (variance - white.square().sum(-2)).clamp_min(0.0)

    def log_normaliser(self, kappa: Tensor) -> Tensor:
        """Logarithm of the prior expectation of exp(kappa^T f - f^T Omega f / 2).

        kappa^T Sigma kappa / 2 - ln|B| / 2

        Args:
            kappa: [K, P, N].

        Returns:
            [K, P], in nats.
        """
        return 0.5 * (kappa * self.mean).sum(-1) - self._half_log_determinant()

    def kl(self) -> Tensor:
        """KL divergence from the prior, over functions: (tr(B^-1) - N + alpha^T K alpha + ln|B|) / 2.

        Returns:
            [K, P], in nats.
        """
        identity = torch.eye(self.cholesky.shape[-1], dtype=self.cholesky.dtype, device=self.cholesky.device)
        inverse = torch.linalg.solve_triangular(self.cholesky, identity.expand_as(self.cholesky), upper=False)
        trace = inverse.square().sum((-2, -1)) - identity.shape[-1]
        kl: Tensor = 0.5 * (trace + (self.alpha * self.mean).sum(-1)) + self._half_log_determinant()
        return kl.clamp_min(0.0)

    def _half_log_determinant(self) -> Tensor:
        result: Tensor = self.cholesky.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return result


def condition(kernel: Tensor, kappa: Tensor, omega: Tensor) -> Conditioned:
    """Condition Gaussian processes with one prior on P classifications of the same rows, given omega.

    Args:
        kernel: prior covariance of the rows [K, 1, N, N].
        kappa: y - 1/2, or 0 for a row that is none of a classifier's [K, P, N].
        omega: not negative, 0 on the same rows [K, P, N].

    Returns:
        The posteriors, differentiable by autograd.
    """
    root = omega.sqrt()
    scaled = root.unsqueeze(-1) * kernel * root.unsqueeze(-2)
    scaled.diagonal(dim1=-2, dim2=-1).add_(1.0)
    cholesky, _ = torch.linalg.cholesky_ex(scaled.mT)  # LAPACK is column-major: the transposed view spares a copy
    pull = root * (kappa.unsqueeze(-2) @ kernel).squeeze(-2)
    solved = torch.cholesky_solve(pull.unsqueeze(-1), cholesky).squeeze(-1)
    alpha = kappa - root * solved
    return Conditioned(cholesky, root, alpha, (alpha.unsqueeze(-2) @ kernel).squeeze(-2))


def fit(kernel: Tensor, kappa: Tensor, updates: int) -> Tensor:
    """Find the mean field q(f) prod_i PG(omega_i | 1, c_i) by coordinate ascent (Wenzel et al., eqs. 8 and 9).

    c_i^2 = E[f_i^2] = Sigma_ii + mu_i^2 with Sigma = (K^-1 + diag E[omega])^-1 and mu = Sigma kappa, from c = 0

    Args:
        kernel: prior covariance of the rows [K, 1, N, N].
        kappa: y - 1/2, or 0 for a row that is none of a classifier's [K, P, N].
        updates: how often c is found anew; as many for all, so that nobody's c depends on another client.

    Returns:
        c [K, P, N], without autograd.
    """
    with torch.no_grad():
        real, variance = kappa != 0, kernel.diagonal(dim1=-2, dim2=-1)
        c = torch.zeros_like(kappa)
        for _ in range(updates):
            conditioned = condition(kernel, kappa, torch.where(real, mean(c), 0.0))
            at, spread = conditioned.marginals(kernel, variance)
            c = torch.where(real, (spread + at.square()).sqrt(), 0.0)
    return c


def given(kernel: Tensor, kappa: Tensor, c: Tensor) -> Conditioned:
    """Condition on omega = E[PG(1, c)] at the rows of every classifier.

    Args:
        kernel: prior covariance of the rows [K, 1, N, N].
        kappa: y - 1/2, or 0 for a row that is none of a classifier's [K, P, N].
        c: [K, P, N].

    Returns:
        q(f) of the mean field whose c these are.
    """
    return condition(kernel, kappa, torch.where(kappa != 0, mean(c), 0.0))


def log_likelihood_given(conditioned: Conditioned, kappa: Tensor) -> Tensor:
    """Log likelihood of the labels given omega, f integrated out.

    ln p(y | omega) = -N ln 2 + kappa^T (K^-1 + Omega)^-1 kappa / 2 - ln|I + Omega^1/2 K Omega^1/2| / 2

    Args:
        conditioned: of kappa and omega.
        kappa: [K, P, N].

    Returns:
        [K, P], in nats; 0 for a classifier without rows.
    """
    return conditioned.log_normaliser(kappa) - math.log(2.0) * (kappa != 0).sum(-1, dtype=kappa.dtype)


def lower_bound(conditioned: Conditioned, kappa: Tensor, c: Tensor) -> Tensor:
    """Lower bound of the log evidence, for any c; at those of `fit` the bound of the mean field, E_q and KL together.

    ln p(y) >= ln p(y | omega = E[PG(1, c)]) + sum_i (E[omega_i] c_i^2 / 2 - ln cosh(c_i / 2))

    At the fixed point its slope by c is 0, so that the gradient by the kernel needs no c: with W = L^-1 Omega^1/2 it is
    (alpha alpha^T - W^T W) / 2 (`kernel_gradient`).

    Args:
        conditioned: as `given` has it for these c.
        kappa: [K, P, N].
        c: [K, P, N].

    Returns:
        [K, P], in nats; 0 for a classifier without rows.
    """
    log_cosh = softplus(c) - 0.5 * c - math.log(2.0)
    each = torch.where(kappa != 0, 0.5 * conditioned.root.square() * c.square() - log_cosh, 0.0)
    return log_likelihood_given(conditioned, kappa) + each.sum(-1)


def kernel_gradient(conditioned: Conditioned, weight: Tensor) -> Tensor:
    """Differentiate a weighted sum of lower bounds, or of log likelihoods given omega, by the kernel that they share.

    Args:
        conditioned: P classifiers.
        weight: of each [K, P].

    Returns:
        Gradient [K, N, N], in nats per unit of the kernel.
    """
    white = torch.linalg.solve_triangular(conditioned.cholesky, torch.diag_embed(conditioned.root), upper=False)
    half, alpha = 0.5 * weight, conditioned.alpha
    flat = (white * half.sqrt()[..., None, None]).flatten(1, 2)
    gradient: Tensor = (half.unsqueeze(-1) * alpha).mT @ alpha - flat.mT @ flat
    return gradient


def log_probability(mean: Tensor, variance: Tensor) -> Tensor:
    """Log probability of y = 1 where f is normal: ln p, p = int sigma(f) N(f; mean, variance) df, to 12 digits.

    Up to a standard deviation s of 1.5 by Gauss-Hermite quadrature. A wider f is smooth in the scale of the sigmoid,
    not the sigmoid in that of f: sigma(f) = P[x <= f] for a logistic x, so that p = E Phi((mean - x) / s), by the
    trapezoidal rule in t, x = 2 sinh t. Far below, p(mean) = e^(mean + s^2 / 2) p(-mean - s^2) leaves no tail of it:
    sigma(f) = e^f sigma(-f), and e^f moves a normal's mean by s^2.

    That of y = 0 is the one at -mean.

    Args:
        mean: [*].
        variance: [*].

    Returns:
        [*], in nats.
    """
    std = variance.sqrt()
    wide, narrow = std > _WIDE, std.clamp_max(_WIDE)
    result = _averaged(*np.polynomial.hermite_e.hermegauss(NODES), lambda u: logsigmoid(mean + u * narrow))
    if tensors.known_false(wide):
        return result
    std = std.clamp_min(_WIDE)
    far = mean < -0.5 * std.square()
    centre = torch.where(far, -mean - std.square(), mean)
    t = np.linspace(-_ENDS, _ENDS, NODES)
    places, density = 2.0 * np.sinh(t), np.cosh(t) / np.cosh(np.sinh(t)) ** 2
    smooth = _averaged(places, density, lambda x: torch.special.log_ndtr((centre - x) / std))
    return torch.where(wide, torch.where(far, mean + 0.5 * std.square() + smooth, smooth), result)


def _averaged(places: Any, weights: Any, log: Callable[[float], Tensor]) -> Tensor:
    """Logarithm of the mean of a function [*], given its own logarithm, by a rule of places and weights."""
    shares = np.log(weights / weights.sum()).tolist()
    terms = (share + log(place) for place, share in zip(places.tolist(), shares, strict=True))
    result: Tensor = reduce(torch.logaddexp, terms)
    return result
