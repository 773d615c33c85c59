"""Posteriors of powers of some rows' likelihood, however many of them, by one eigendecomposition."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.posteriors.functions.gaussian_process import JITTERS, GPPosterior
from pacbayes_fl.posteriors.predictive import NormalMixture
from pacbayes_fl.posteriors.weights.mixture import log_mixture_kl


class _At(NamedTuple):
    """P at inputs x: their tensor, the values' mixture [K, P, M], and H [K, P, M, N], their covariance with t; H^2."""

    x: Tensor
    values: NormalMixture
    with_targets: Tensor
    squares: Tensor


@dataclass(eq=False)
class Spectrum:
    """Rows of K clients in the coordinates in which a prior and the noise are independent.

    D^(-1/2) S D^(-1/2) = U diag(e) U', S the covariance of the function at the rows under P, D their noise

    Args:
        prior: P.
        rows: x [K, N, d], which P has not seen.
        noise: D [K, P, N], in squared units of y; 1 on padding.
        basis: D^(-1/2) U [K, P, N, N], in 1 / units of y.
        values: e [K, P, N], from 0; 0 on padding.
        targets: t = U' D^(-1/2) (y - m) [K, P, N].
        usable: bool [K, P], False where P or S is not known, or S + D is indefinite beyond jitter.
        half: covariance of the rows with those that P has seen, by the inverse factor of these [K, P, N, n].
        own: P at the rows themselves.
    """

    prior: GPPosterior
    rows: ClientBatch
    noise: Tensor
    basis: Tensor
    values: Tensor
    targets: Tensor
    usable: Tensor
    half: Tensor
    own: _At
    _last: _At | None = field(default=None, repr=False)

    def at(self, x: Tensor) -> _At:
        """Give P at inputs x [K, M, d], which is kept until others are asked for; at those of the rows always."""
        if x is self.own.x:
            return self.own
        if self._last is None or self._last.x is not x:
            prior = self.prior
            half = prior.cross(x)[1] @ prior.whitener.mT
            covariance = prior.model.covariance(prior.theta, x, self.rows.x) - half @ self.half.mT
            with_targets = covariance @ self.basis
            self._last = _At(x, prior.function(x), with_targets, with_targets.square())
        return self._last


@dataclass(frozen=True, eq=False)
class PowerPosterior:
    """Posterior of K clients under P particles that counts some of their rows to a power.

    Q(f) ~ P(f) p(y | f)^w,  g = w / (1 + w e)

    Args:
        spectrum: of P and the rows.
        power: w, in (0, 1].
    """

    spectrum: Spectrum
    power: float

    @cached_property
    def _gain(self) -> Tensor:
        return self.power / (1.0 + self.power * self.spectrum.values)

    @cached_property
    def log_weights(self) -> Tensor:
        """Mixture weights [K, P] as logarithms: those of P, and by evidence times the integral of the power under P."""
        of, real = self.spectrum, self.spectrum.rows.mask.unsqueeze(1)
        if of.prior.weighting == "equal":
            return of.prior.log_weights
        constant = torch.where(real, (2 * math.pi * of.noise).log(), 0.0)
        each = self._gain * of.targets.square() + (self.power * of.values).log1p() + self.power * constant
        weighed = torch.where(of.usable, of.prior.log_weights - 0.5 * each.sum(-1), -torch.inf)
        return torch.log_softmax(weighed, 1)

    def function(self, x: Tensor) -> NormalMixture:
        """Values of the function itself at inputs x [K, M, d]; at padding of the rows' own inputs those under P.

        mu = m(x*) + H g t,  Sigma = diag(k(x*, x*) - H g H'),  H = k(x*, x) D^(-1/2) U,  m and k those of P
        """
        _, values, with_targets, squares = self.spectrum.at(x)
        gain = self._gain
        mean = values.means + (with_targets @ (gain * self.spectrum.targets).unsqueeze(-1)).squeeze(-1)
        explained = (squares @ gain.unsqueeze(-1)).squeeze(-1)
        return NormalMixture(self.log_weights, mean, (values.variances - explained).clamp_min(0.0))

    def kl(self) -> Tensor:
        """KL divergence of every particle's posterior from P [K, P]: over functions, which is that at the rows.

        KL = sum (1 / (1 + w e) - 1 + ln(1 + w e) + e g^2 t^2) / 2

        Returns:
            [K, P], in nats; NaN where P or its covariance is not known.
        """
        of, gain = self.spectrum, self._gain
        shrunk = self.power * of.values
        each = shrunk.log1p() - gain * of.values + of.values * (gain * of.targets).square()
        return torch.where(of.usable, 0.5 * each.sum(-1), torch.nan).clamp_min(0.0)


def partly_refined(
    prior: object, whole: object, rows: ClientBatch, powers: Sequence[float]
) -> list[tuple[PowerPosterior, Tensor]]:
    """Let clients see more rows, whose likelihood counts to a power: between P and the posterior of `refined`.

    Q(f) ~ P(f) p(y | f)^power, y the later rows'

    Args:
        prior: P, of the rows that K clients have seen.
        whole: Q of `refined`, of all rows.
        rows: later rows of theirs.
        powers: each in (0, 1].

    Returns:
        Q of each power, and the bound on KL(Q || P) [K] of `refined`; none where P or Q is not exact, or float32.
    """
    if not isinstance(prior, GPPosterior) or not isinstance(whole, GPPosterior) or prior.theta.dtype != torch.float64:
        return []
    with torch.no_grad():
        spectrum = _spectrum(prior, rows)
        found = [PowerPosterior(spectrum, power) for power in powers]
        before = prior.log_weights
        return [(one, log_mixture_kl(one.log_weights, before, one.kl())) for one in found]


def _spectrum(prior: GPPosterior, rows: ClientBatch) -> Spectrum:
    real = rows.mask.unsqueeze(1)
    noise = torch.where(real, prior.model.noise(prior.theta, rows.x), 1.0)
    scale = torch.where(real, noise, torch.inf).rsqrt()  # 0 on padding
    mean, cross, _ = prior.cross(rows.x)
    half = cross @ prior.whitener.mT
    covariance = prior.model.covariance(prior.theta, rows.x) - half @ half.mT
    means = mean + (cross @ prior.alpha.unsqueeze(-1)).squeeze(-1)
    variances = covariance.diagonal(dim1=-2, dim2=-1).clamp_min(0.0)
    matrix = covariance * scale.unsqueeze(-1) * scale.unsqueeze(-2)
    usable = prior.log_evidence.isfinite() & matrix.flatten(2).sum(-1).isfinite()
    matrix = torch.where(usable[..., None, None], matrix, 0.0)
    values, vectors = (each.to(matrix.device) for each in torch.linalg.eigh(matrix.cpu()))  # a GPU takes them in turn
    size = values.sum(-1, keepdim=True) / rows.size.view(-1, 1, 1).clamp_min(1.0)  # mean of the diagonal
    usable &= (values > -1.0 - JITTERS[-1] * (1.0 + size)).all(-1)  # the covariance of targets is definite
    residual = torch.where(real, rows.y.unsqueeze(1) - means, 0.0)
    targets = (vectors.mT @ (scale * residual).unsqueeze(-1)).squeeze(-1)
    basis, values = scale.unsqueeze(-1) * vectors, values.clamp_min(0.0)
    with_targets = noise.unsqueeze(-1) * basis * values.unsqueeze(-2)  # S D^(-1/2) U
    own = _At(rows.x, NormalMixture(prior.log_weights, means, variances), with_targets, with_targets.square())
    return Spectrum(prior, rows, noise, basis, values, targets, usable, half, own)
