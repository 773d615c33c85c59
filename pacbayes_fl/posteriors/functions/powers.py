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
    """Functions at inputs x [K, M, d]: their means and variances for every power, [W, K, P, M] each."""

    x: Tensor
    means: Tensor
    variances: Tensor


@dataclass(eq=False)
class Spectrum:
    """Rows of K clients in the coordinates in which a prior and the noise are independent.

    D^(-1/2) S D^(-1/2) = U diag(e) U', S the covariance of the function at the rows under P, D their noise

    Args:
        prior: P.
        rows: x [K, N, d], which P has not seen.
        powers: w [W], float64, in (0, 1].
        noise: D [K, P, N], in squared units of y; 1 on padding.
        basis: D^(-1/2) U [K, P, N, N], in 1 / units of y.
        values: e [K, P, N], from 0; 0 on padding.
        targets: t = U' D^(-1/2) (y - m) [K, P, N].
        usable: bool [K, P], False where P or S is not known, or S + D is indefinite beyond jitter.
        half: covariance of the rows with those that P has seen, by the inverse factor of these [K, P, N, n].
        own: P at the rows themselves, a mixture [K, P, N].
    """

    prior: GPPosterior
    rows: ClientBatch
    powers: Tensor
    noise: Tensor
    basis: Tensor
    values: Tensor
    targets: Tensor
    usable: Tensor
    half: Tensor
    own: NormalMixture
    _last: _At | None = field(default=None, repr=False)

    @cached_property
    def gains(self) -> Tensor:
        """Factors g = w / (1 + w e) of every power [W, K, P, N]."""
        power = self.powers.view(-1, 1, 1, 1)
        return power / (1.0 + power * self.values)

    def at(self, x: Tensor) -> _At:
        """Give the functions at inputs x [K, M, d], which are kept until others are asked for."""
        if self._last is None or self._last.x is not x:
            model, prior = self.prior.model, self.prior
            if x is self.rows.x:
                known, with_targets = self.own, self.noise.unsqueeze(-1) * self.basis * self.values.unsqueeze(-2)
            else:
                half = prior.cross(x)[1] @ prior.whitener.mT
                covariance = model.covariance(prior.theta, x, self.rows.x) - half @ self.half.mT
                known, with_targets = prior.function(x), covariance @ self.basis  # H = k(x, x') D^(-1/2) U
            gains = self.gains.movedim(0, -1)  # of all powers in one product [K, P, N, W]
            moved = with_targets @ (gains * self.targets.unsqueeze(-1))
            explained = with_targets.square_() @ gains
            means, variances = (
                (leaf.unsqueeze(-1) + change).movedim(-1, 0)
                for leaf, change in ((known.means, moved), (known.variances, -explained))
            )
            self._last = _At(x, means, variances.clamp_min_(0.0))
        return self._last


@dataclass(frozen=True, eq=False)
class PowerPosterior:
    """Posterior of K clients under P particles that counts some of their rows to a power.

    Q(f) ~ P(f) p(y | f)^w,  g = w / (1 + w e)

    Args:
        spectrum: of P and the rows.
        place: of w among its powers.
    """

    spectrum: Spectrum
    place: int

    @property
    def _power(self) -> float:
        return self.spectrum.powers[self.place].item()

    @cached_property
    def log_weights(self) -> Tensor:
        """Mixture weights [K, P] as logarithms: those of P, and by evidence times the integral of the power under P."""
        of, real = self.spectrum, self.spectrum.rows.mask.unsqueeze(1)
        if of.prior.weighting == "equal":
            return of.prior.log_weights
        constant = torch.where(real, (2 * math.pi * of.noise).log(), 0.0)
        each = of.gains[self.place] * of.targets.square() + (self._power * of.values).log1p() + self._power * constant
        weighed = torch.where(of.usable, of.prior.log_weights - 0.5 * each.sum(-1), -torch.inf)
        return torch.log_softmax(weighed, 1)

    def function(self, x: Tensor) -> NormalMixture:
        """Values of the function itself at inputs x [K, M, d]; at padding of the rows' own inputs those under P.

        mu = m(x*) + H g t,  Sigma = diag(k(x*, x*) - H g H'),  H = k(x*, x) D^(-1/2) U,  m and k those of P
        """
        _, means, variances = self.spectrum.at(x)
        return NormalMixture(self.log_weights, means[self.place], variances[self.place])

    def kl(self) -> Tensor:
        """KL divergence of every particle's posterior from P [K, P]: over functions, which is that at the rows.

        KL = sum (1 / (1 + w e) - 1 + ln(1 + w e) + e g^2 t^2) / 2

        Returns:
            [K, P], in nats; NaN where P or its covariance is not known.
        """
        of, gain = self.spectrum, self.spectrum.gains[self.place]
        shrunk = self._power * of.values
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
        spectrum = _spectrum(prior, rows, prior.theta.new_tensor(powers))
        found = [PowerPosterior(spectrum, place) for place in range(len(powers))]
        before = prior.log_weights
        return [(one, log_mixture_kl(one.log_weights, before, one.kl())) for one in found]


def _spectrum(prior: GPPosterior, rows: ClientBatch, powers: Tensor) -> Spectrum:
    real = rows.mask.unsqueeze(1)
    noise = torch.where(real, prior.model.noise(prior.theta, rows.x), 1.0)
    scale = torch.where(real, noise, torch.inf).rsqrt()  # 0 on padding
    means, covariance, half = prior.moments(rows.x)
    own = NormalMixture(prior.log_weights, means, covariance.diagonal(dim1=-2, dim2=-1).clamp_min(0.0))
    matrix = covariance.mul_(scale.unsqueeze(-1)).mul_(scale.unsqueeze(-2))
    usable = prior.log_evidence.isfinite() & matrix.flatten(2).sum(-1).isfinite()
    matrix = torch.where(usable[..., None, None], matrix, 0.0)
    values, vectors = (each.to(matrix.device) for each in torch.linalg.eigh(matrix.cpu()))  # a GPU takes them in turn
    size = values.sum(-1, keepdim=True) / rows.size.view(-1, 1, 1).clamp_min(1.0)  # mean of the diagonal
    usable &= (values > -1.0 - JITTERS[-1] * (1.0 + size)).all(-1)  # the covariance of targets is definite
    residual = torch.where(real, rows.y.unsqueeze(1) - means, 0.0)
    targets = (vectors.mT @ (scale * residual).unsqueeze(-1)).squeeze(-1)
    basis = scale.unsqueeze(-1) * vectors
    return Spectrum(prior, rows, powers, noise, basis, values.clamp_min(0.0), targets, usable, half, own)
