"""Weights that are exactly zero or Gaussian: the family of sFedBayes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import NamedTuple

import torch
from pyro.distributions import Normal, TorchDistribution
from torch import Tensor
from torch.distributions import constraints, kl
from torch.nn.functional import logsigmoid, softplus

from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.weights.family import site_view
from pacbayes_fl.posteriors.weights.mean_field import MeanField, MeanFieldTerms

TEMPERATURE = 0.5
"""tau of eq. 41: the relaxation's default (the journal is silent; its authors' code leaves this number unused)."""


class SpikeSlabDraw(NamedTuple):
    """Random numbers of one draw.

    Args:
        eps: standard normals [K, D].
        logistic: ln u - ln(1 - u) of uniforms u [K, D].
        temperature: tau of the relaxed gate's gradient (eq. 41).
    """

    eps: Tensor
    logistic: Tensor
    temperature: float = TEMPERATURE

    def map(self, function: Callable[[Tensor], Tensor]) -> SpikeSlabDraw:
        """Apply a function to the tensors [K, D]."""
        return SpikeSlabDraw(function(self.eps), function(self.logistic), self.temperature)


class HardGate(torch.autograd.Function):
    """gamma = 1{eta > 0} forward; backward the slope of the relaxation sigmoid(eta / tau) (eq. 41)."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, eta: Tensor, temperature: float) -> Tensor:
        """Gate [*] of eta [*]."""
        ctx.save_for_backward(eta)
        ctx.temperature = temperature  # type: ignore[attr-defined]
        return (eta > 0).to(eta.dtype)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *grad_gate: Tensor) -> tuple[Tensor, None]:
        """Gradient by eta [*], from grad_gate [*]."""
        (eta,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return grad_gate[0] * relaxed_slope(eta, ctx.temperature), None  # type: ignore[attr-defined]


def relaxed_slope(eta: Tensor, temperature: float) -> Tensor:
    """Slope of the relaxed gate sigmoid(eta / tau) in eta.

    Args:
        eta: logit plus logistic noise [*].
        temperature: tau.

    Returns:
        gamma~ (1 - gamma~) / tau [*].
    """
    relaxed = torch.sigmoid(eta / temperature)
    return relaxed * (1.0 - relaxed) / temperature


def _open(eta: Tensor) -> Tensor:
    """Overwrite eta with its gates, 1 where it is positive: numbers multiply several times as fast as bools."""
    return eta.gt_(0.0)


class BernoulliGaussian(TorchDistribution):
    """theta = gamma (loc + scale eps), gamma ~ Bern(sigmoid(logit)) (eqs. 32, 40); with a draw, one that gives it.

    Args:
        loc: of the slab [*].
        scale: of the slab [*].
        logit: of the inclusion probability lambda [*].
        draw: random numbers [*] that `rsample` is to use.
    """

    arg_constraints = MappingProxyType(
        {"loc": constraints.real, "scale": constraints.positive, "logit": constraints.real}
    )
    support = constraints.real
    has_rsample = True

    def __init__(self, loc: Tensor, scale: Tensor, logit: Tensor, draw: SpikeSlabDraw | None = None) -> None:
        """Expand the parameters to the shape of the draw."""
        shape = loc.shape if draw is None else draw.eps.shape
        self.loc, self.scale, self.logit = loc.expand(shape), scale.expand(shape), logit.expand(shape)
        self.given = draw
        super().__init__(shape, torch.Size(), validate_args=False)

    def expand(self, batch_shape: torch.Size, _instance: object = None) -> BernoulliGaussian:
        """Expand the distribution and its draw."""
        draw = None if self.given is None else self.given.map(lambda leaf: leaf.expand(batch_shape))
        loc, scale, logit = (leaf.expand(batch_shape) for leaf in (self.loc, self.scale, self.logit))
        return BernoulliGaussian(loc, scale, logit, draw)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Return the draw [*]: exactly zero where the gate is shut."""
        if self.given is None:
            raise NotImplementedError("draws are made of given random numbers: pass them as `draw`")
        gate: Tensor = HardGate.apply(self.logit + self.given.logistic, self.given.temperature)  # type: ignore[no-untyped-call]
        return gate * (self.loc + self.scale * self.given.eps)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density [*] of value [*] with respect to a unit mass at zero plus Lebesgue measure."""
        slab = logsigmoid(self.logit) + Normal(self.loc, self.scale, validate_args=False).log_prob(value)
        return torch.where(value == 0, logsigmoid(-self.logit), slab)


@kl.register_kl(BernoulliGaussian, BernoulliGaussian)  # type: ignore[untyped-decorator]
def _kl_bernoulli_gaussian(q: BernoulliGaussian, w: BernoulliGaussian) -> Tensor:
    """Eq. 34, exact: the gate is 1{theta != 0} almost surely, so nothing is lost by looking at theta alone."""
    slab = kl.kl_divergence(Normal(q.loc, q.scale), Normal(w.loc, w.scale))
    return bernoulli_kl(q.logit, w.logit) + torch.sigmoid(q.logit) * slab


def bernoulli_kl(logit: Tensor, prior: Tensor) -> Tensor:
    """KL(Bern(sigmoid(logit)) || Bern(sigmoid(prior))), from logits alone, so that it stays finite.

    Args:
        logit: [*]; -inf for a gate that is shut.
        prior: [*]; where it is -inf and the logit is not, the divergence is infinite.

    Returns:
        [*], in nats.
    """
    terms = []
    for sign in (1.0, -1.0):  # the gate is open, or shut; what never happens adds nothing
        chance = torch.sigmoid(sign * logit)
        ratio = logsigmoid(sign * logit) - logsigmoid(sign * prior)
        terms.append(torch.where(chance == 0, 0.0, chance * ratio))
    return terms[0] + terms[1]


class SpikeSlab(NamedTuple):
    """theta_m = gamma_m (mu_m + softplus(rho_m) eps_m), gamma_m ~ Bern(sigmoid(logit_m)) (sFedBayes eqs. 32-33, 40).

    Args:
        loc: mu [*, D].
        rho: [*, D].
        logit: of the inclusion probability lambda [*, D], kept in [-15, 15].

    Example:
        >>> import torch
        >>> from pacbayes_fl.posteriors.weights.spike_slab import SpikeSlab
        >>> one = torch.ones(1, 2).double()
        >>> q = SpikeSlab(one, 0 * one, torch.tensor([[0.0, 4.0]]).double())
        >>> q.inclusion.numpy().round(3).tolist()  # probability that a weight is not 0
        [[0.5, 0.982]]
    """

    loc: Tensor
    rho: Tensor
    logit: Tensor

    @property
    def slab(self) -> MeanField:
        """The Gaussian part."""
        return MeanField(self.loc, self.rho)

    @property
    def inclusion(self) -> Tensor:
        """Inclusion probabilities lambda [*, D]."""
        return torch.sigmoid(self.logit)

    def draw(self, noise: Noise) -> SpikeSlabDraw:
        """Normals and logistics [K, D]."""
        return SpikeSlabDraw(noise.weights(self.loc), noise.weights(self.loc, "logistic"))

    def precompute(self) -> SpikeSlabTerms:
        """Precompute the common terms of the gradients."""
        return SpikeSlabTerms(self.slab.precompute(), self.logit, self.inclusion)

    def weights(self, draw: SpikeSlabDraw) -> Tensor:
        """Weights theta [K, D] of a draw."""
        return self.precompute().weights(draw)

    def mean(self) -> Tensor:
        """Mean lambda mu [*, D]."""
        return self.inclusion * self.loc

    def kl(self, prior: SpikeSlab) -> Tensor:
        """KL divergence of two Bernoulli-Gaussians, an equality (journal eq. 34 says at most).

        KL = sum_m [KL(Bern(lambda_q) || Bern(lambda_w)) + lambda_q KL(N(mu_q, sigma_q^2) || N(mu_w, sigma_w^2))]

        Args:
            prior: w, leaves [D] or [K, D].

        Returns:
            [K], in nats, float64.
        """
        logit = self.logit.double()
        terms = bernoulli_kl(logit, prior.logit.double())
        return (terms + torch.sigmoid(logit) * self.slab.kl_by_weight(prior.slab)).sum(-1)

    def pruned(self, threshold: float) -> SpikeSlab:
        """Shut the gates of weights whose inclusion probability is below a threshold.

        Args:
            threshold: in [0, 1).

        Returns:
            Leaves [*, D]; a shut gate has logit -inf, so that no draw opens it, and mean 0.
        """
        keep = self.inclusion >= threshold
        return SpikeSlab(self.loc * keep, self.rho, torch.where(keep, self.logit, -torch.inf))

    def bounded(self) -> SpikeSlab:
        """Clamp rho and logit in place."""
        self.slab.bounded()
        self.logit.clamp_(-15.0, 15.0)
        return self

    def site(self, span: slice, shape: tuple[int, ...], draw: SpikeSlabDraw | None) -> TorchDistribution:
        """Weights of a site, with a draw [K, D] ones that give it."""
        loc, scale, logit = (site_view(leaf, span, shape) for leaf in (self.loc, softplus(self.rho), self.logit))
        given = None if draw is None else draw.map(lambda leaf: site_view(leaf, span, shape))
        return BernoulliGaussian(loc, scale, logit, given).to_event(len(shape))


class SpikeSlabTerms(NamedTuple):
    """Spike and slab with scales and inclusion probabilities: the written-out slopes of the hot path.

    Args:
        slab: leaves [*, D].
        logit: of the inclusion probability [*, D].
        inclusion: lambda [*, D].
    """

    slab: MeanFieldTerms
    logit: Tensor
    inclusion: Tensor

    def weights(self, draw: SpikeSlabDraw) -> Tensor:
        """Draw with hard gates, theta = 1{eta > 0} (mu + sigma eps), eta = logit + ln u - ln(1 - u) (eq. 40).

        Args:
            draw: random numbers [K, D].

        Returns:
            theta [K, D], exactly zero where the gate is shut.
        """
        return self.slab.weights(draw.eps).mul_(_open(self.logit + draw.logistic))

    def vjp(self, draw: SpikeSlabDraw, grad_weights: Tensor) -> SpikeSlab:
        """Chain rule with the relaxed gate's slope in place of the hard gate's (eq. 41).

        Args:
            draw: random numbers [K, D].
            grad_weights: gradient by theta [K, D].

        Returns:
            Gradient by mu, rho and logit.
        """
        eta = self.logit + draw.logistic
        by_gate = self.slab.weights(draw.eps).mul_(grad_weights).mul_(relaxed_slope(eta, draw.temperature))
        return SpikeSlab(*self.slab.vjp(draw.eps, _open(eta).mul_(grad_weights)), by_gate)

    def kl(self, prior: SpikeSlabTerms) -> Tensor:
        """Sum the terms of eq. 34, see `SpikeSlab.kl`, to a prior with leaves [D] or [K, D]: [K], in nats."""
        terms = bernoulli_kl(self.logit, prior.logit).addcmul_(self.inclusion, self.slab.kl_by_weight(prior.slab))
        return terms.sum(-1, dtype=torch.float64)

    def kl_gradient(self, prior: SpikeSlabTerms) -> SpikeSlab:
        """Slope of eq. 34 in q.

        lambda times the slab's slope; by logit lambda (1 - lambda) (logit_q - logit_w + KL of the slab).

        Args:
            prior: w, leaves [D] or [K, D].

        Returns:
            Gradient by mu_q, rho_q and logit_q [K, D].
        """
        slab = self.slab.kl_gradient(prior.slab)
        divergence = self.slab.kl_by_weight(prior.slab)
        grad_logit = (self.logit - prior.logit).add_(divergence).mul_(self.inclusion * (1.0 - self.inclusion))
        return SpikeSlab(slab.loc.mul_(self.inclusion), slab.rho.mul_(self.inclusion), grad_logit)

    def kl_gradient_wrt_prior(self, prior: SpikeSlabTerms) -> SpikeSlab:
        """Slope of eq. 34 in w: lambda_q times the slab's slope; by logit lambda_w - lambda_q.

        Args:
            prior: w, leaves [D] or [K, D].

        Returns:
            Gradient by mu_w, rho_w and logit_w [K, D].
        """
        slab = self.slab.kl_gradient_wrt_prior(prior.slab)
        grad_logit = (prior.inclusion - self.inclusion).expand(slab.loc.shape)
        return SpikeSlab(slab.loc.mul_(self.inclusion), slab.rho.mul_(self.inclusion), grad_logit)
