"""Independent Gaussian weights: the family of pFedBayes, cFedBayes and BPFed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from pyro.distributions import Normal, TorchDistribution
from torch import Tensor
from torch.nn.functional import softplus

from pacbayes_fl.models.base import WeightModel
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.weights.family import site_view

DETERMINISTIC = -20.0
"""rho of a weight without uncertainty: a standard deviation of 2e-9."""


def log_softplus(rho: Tensor) -> Tensor:
    """Take ln ln(1 + e^rho), also where ln(1 + e^rho) is no longer a number of the dtype.

    Args:
        rho: [*].

    Returns:
        [*]; rho itself below -15, where the two agree to 2e-8 relative.
    """
    usual = softplus(rho.clamp_min(-15.0)).log()  # clamped: an infinite slope would spoil gradients though not taken
    return torch.where(rho < -15.0, rho, usual)


def rho_of(variance: Tensor) -> Tensor:
    """Take softplus^-1 of a standard deviation, ln(e^sigma - 1).

    Args:
        variance: sigma^2 [*], in squared units of a weight; not negative.

    Returns:
        [*]; -inf for a variance of 0.

    Example:
        >>> import torch
        >>> from pacbayes_fl.posteriors.weights.mean_field import rho_of
        >>> round(torch.nn.functional.softplus(rho_of(torch.tensor(0.25))).item(), 3)
        0.5
    """
    scale = variance.sqrt()
    return scale + torch.log(-torch.expm1(-scale))


def bound_rho_(rho: Tensor) -> None:
    """Clamp in place to where softplus and its logarithm are exact numbers.

    Args:
        rho: [*].
    """
    limit = 40.0 if rho.dtype == torch.float64 else 20.0
    rho.clamp_(-limit, limit)


class NormalFrom(Normal):
    """A Normal whose draw is given: loc + scale * eps. Its KL divergence stays the Normal's closed form."""

    def __init__(self, loc: Tensor, scale: Tensor, eps: Tensor) -> None:
        """Store eps [*], and expand loc [*] and scale [*] to its shape."""
        self.eps = eps
        super().__init__(loc.expand(eps.shape), scale.expand(eps.shape), validate_args=False)

    def expand(self, batch_shape: torch.Size, _instance: object = None) -> NormalFrom:
        """Expand the distribution and its draw."""
        return NormalFrom(self.loc.expand(batch_shape), self.scale.expand(batch_shape), self.eps.expand(batch_shape))

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Return the draw [*]."""
        drawn: Tensor = self.loc + self.scale * self.eps
        return drawn


class MeanField(NamedTuple):
    """theta_m ~ N(mu_m, softplus(rho_m)^2), independent (pFedBayes eqs. 7-8, 29).

    Args:
        loc: mu [*, D].
        rho: [*, D], kept in [-20, 20] (float64: [-40, 40]).

    Example:
        >>> import torch
        >>> from pacbayes_fl.posteriors.weights.mean_field import MeanField
        >>> q = MeanField(torch.zeros(1, 3).double(), torch.zeros(1, 3).double())
        >>> q.scale.numpy().round(3).tolist(), q.kl(q).tolist()
        ([[0.693, 0.693, 0.693]], [0.0])
    """

    loc: Tensor
    rho: Tensor

    @property
    def scale(self) -> Tensor:
        """Standard deviations sigma [*, D]."""
        return softplus(self.rho)

    def draw(self, noise: Noise) -> Tensor:
        """Standard normals [K, D]."""
        return noise.weights(self.loc)

    def precompute(self) -> MeanFieldTerms:
        """Precompute the common terms of the gradients."""
        return MeanFieldTerms(self.loc, self.scale, torch.sigmoid(self.rho))

    def weights(self, draw: Tensor) -> Tensor:
        """Weights theta [K, D] of a draw [K, D] of eps."""
        return torch.addcmul(self.loc, self.scale, draw)

    def mean(self) -> Tensor:
        """Mean mu [*, D]."""
        return self.loc

    def kl(self, prior: MeanField) -> Tensor:
        """KL divergence of two mean-field Gaussians.

        KL = 1/2 sum_m [ln(sigma_w^2 / sigma_q^2) + (sigma_q^2 + (mu_q - mu_w)^2) / sigma_w^2 - 1]      (eq. 9)

        Args:
            prior: w, leaves [D] or [K, D].

        Returns:
            [K], in nats, float64.
        """
        return self.kl_by_weight(prior).sum(-1)

    def kl_by_weight(self, prior: MeanField) -> Tensor:
        """Terms of the KL divergence [K, D] to a prior with leaves [D] or [K, D], in nats, float64."""
        q, w = (MeanField(*(leaf.double() for leaf in family)) for family in (self, prior))
        log_ratio = log_softplus(w.rho) - log_softplus(q.rho)
        squares = (q.scale.square() + (q.loc - w.loc).square()) / w.scale.square()
        return log_ratio + 0.5 * squares - 0.5

    def bounded(self) -> MeanField:
        """Clamp rho in place to where softplus and its logarithm are exact numbers."""
        bound_rho_(self.rho)
        return self

    def site(self, span: slice, shape: tuple[int, ...], draw: Tensor | None) -> TorchDistribution:
        """Normal weights of a site, with a draw [K, D] ones that give it."""
        loc, scale = site_view(self.loc, span, shape), site_view(self.scale, span, shape)
        if draw is None:
            return Normal(loc, scale).to_event(len(shape))
        return NormalFrom(loc, scale, site_view(draw, span, shape)).to_event(len(shape))


class MeanFieldTerms(NamedTuple):
    """A mean field with its scales: the written-out slopes of the hot path.

    Args:
        loc: mu [*, D].
        scale: sigma = softplus(rho) [*, D].
        slope: d sigma / d rho = sigmoid(rho) [*, D].
    """

    loc: Tensor
    scale: Tensor
    slope: Tensor

    def weights(self, draw: Tensor) -> Tensor:
        """Reparametrise, theta = mu + sigma eps (eq. 29).

        Args:
            draw: eps [K, D].

        Returns:
            theta [K, D].
        """
        return torch.addcmul(self.loc, self.scale, draw)

    def vjp(self, draw: Tensor, grad_weights: Tensor) -> MeanField:
        """Chain rule of eq. 29: d theta / d mu = 1, d theta / d rho = eps sigmoid(rho).

        Args:
            draw: eps [K, D].
            grad_weights: gradient by theta [K, D].

        Returns:
            Gradient by mu and rho.
        """
        return MeanField(grad_weights, (draw * grad_weights).mul_(self.slope))

    def kl(self, prior: MeanFieldTerms) -> Tensor:
        """Sum the terms of eq. 9 as they are at hand, where `MeanField.kl` takes every scale anew in float64.

        Args:
            prior: w, leaves [D] or [K, D].

        Returns:
            [K], in nats; float64 sums of terms in the dtype of the leaves.
        """
        return self.kl_by_weight(prior).sum(-1, dtype=torch.float64)

    def kl_by_weight(self, prior: MeanFieldTerms) -> Tensor:
        """Terms of eq. 9 [K, D] to a prior with leaves [D] or [K, D], in nats.

        (r - 1) (r + 1) / 2 - ln r + ((mu_q - mu_w) / sigma_w)^2 / 2,  r = sigma_q / sigma_w

        Near q = w the difference r - 1 is exact, so that the rounding of r, d, moves a term by 2 d (r - 1) alone.
        """
        ratio = self.scale / prior.scale
        moved = ((self.loc - prior.loc) / prior.scale).square_()
        return ((ratio - 1.0) * (ratio + 1.0)).add_(moved).mul_(0.5).sub_(ratio.log_())

    def kl_gradient(self, prior: MeanFieldTerms) -> MeanField:
        """Slope of eq. 9 in q.

        (mu_q - mu_w) / sigma_w^2 and (sigma_q^2 - sigma_w^2) / (sigma_q sigma_w^2) sigmoid(rho_q), exactly 0 at q = w:
        Adam would turn what rounding leaves into whole steps.

        Args:
            prior: w, leaves [D] or [K, D].

        Returns:
            Gradient by mu_q and rho_q [K, D].
        """
        variance = prior.scale.square()
        grad_rho = (self.scale - prior.scale).mul_(self.scale + prior.scale).div_(self.scale * variance)
        return MeanField((self.loc - prior.loc).div_(variance), grad_rho.mul_(self.slope))

    def kl_gradient_wrt_prior(self, prior: MeanFieldTerms) -> MeanField:
        """Slope of eq. 9 in w.

        (mu_w - mu_q) / sigma_w^2 and (sigma_w^2 - sigma_q^2 - (mu_q - mu_w)^2) / sigma_w^3 sigmoid(rho_w), exactly 0 at
        w = q; the journal's (A.34)-(A.35) print twice these.

        Args:
            prior: w, leaves [D] or [K, D].

        Returns:
            Gradient by mu_w and rho_w [K, D].
        """
        variance, difference = prior.scale.square(), prior.loc - self.loc
        grad_rho = (
            (prior.scale - self.scale).mul_(prior.scale + self.scale).addcmul_(difference, difference, value=-1.0)
        )
        grad_rho.div_(variance * prior.scale).mul_(prior.slope)
        return MeanField(difference.div_(variance), grad_rho)


def initial_mean_field(
    model: WeightModel, std: float, rho: float, generator: torch.Generator, *leading: int
) -> MeanField:
    """Initialise a mean-field family: mu ~ N(centre, std^2), rho constant; weights without uncertainty have rho = -20.

    Args:
        model: gives the number of weights, their centre and dtype, and which are deterministic.
        std: spread of the means, which breaks the network's symmetry.
        rho: softplus^-1 of every weight's standard deviation.
        generator: source of randomness, on the CPU.
        *leading: sizes before D, such as J clusters.

    Returns:
        Leaves [*, D].
    """
    noise = torch.randn(*leading, model.dim, generator=generator, dtype=torch.float64)
    rhos = torch.where(model.stochastic_columns(), rho, DETERMINISTIC).to(model.dtype)
    return MeanField((model.centre() + std * noise).to(model.dtype), rhos.expand(noise.shape).clone())


@dataclass(frozen=True)
class Diagonal:
    """Independent Gaussian weights: the mean field, with written-out slopes."""

    def initial(self, model: WeightModel, std: float, rho: float, generator: torch.Generator) -> MeanField:
        """Initialise by `initial_mean_field`."""
        return initial_mean_field(model, std, rho, generator)

    def held(self, dim: int) -> int:
        """Numbers of a client beside mean and scale of D weights: none."""
        return 0

    def check(self, model: WeightModel) -> None:
        """Take any model."""
