"""A weighted mixture of posteriors over weights, for clients with several priors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from pyro.distributions import Categorical, Normal, TorchDistribution
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import ShapeError, StudyError
from pacbayes_fl.models.base import WeightModel
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.classes import ClassMixture
from pacbayes_fl.posteriors.point import PointMass
from pacbayes_fl.posteriors.predictive import NormalMixture
from pacbayes_fl.posteriors.sampled import SampledMixture
from pacbayes_fl.posteriors.weights.posterior import Predictive, at_once, observations, rows_of

Weighted = Iterator[tuple[Tensor, TorchDistribution]]


@dataclass(frozen=True, eq=False)
class MixturePosterior:
    """Weights of K clients as a mixture of M families, each seen through S draws that may weigh differently.

    What its hypotheses are, its children say. All families see the same random numbers.

    Args:
        model: the likelihood.
        components: M families, leaves [K, D].
        log_weights: of every draw [K, M, S], normalised over M and S.
        noise: the clients' streams; every prediction takes the same draws.
        means: mean weights of each of the M families [K, D].
        reference: the clients' training rows, for a network that normalises by their statistics.
        doubts: warns of clients whom few draws stand for, where that is known on a device alone; the evaluation calls
            it. None where nothing is left to say.
    """

    model: WeightModel
    components: tuple[Any, ...]
    log_weights: Tensor
    noise: Noise
    means: tuple[Tensor, ...]
    reference: ClientBatch | None = None
    doubts: Callable[[], None] | None = None

    def __post_init__(self) -> None:
        """Check the shape of the weights."""
        expected = [len(self.noise.ids), len(self.components)]
        if self.log_weights.dim() != 3 or [*self.log_weights.shape[:2]] != expected or self.log_weights.shape[2] < 1:
            raise ShapeError(f"log_weights must be {expected} and draws, got {list(self.log_weights.shape)}")
        if len(self.means) != len(self.components):
            raise ShapeError(f"there must be {len(self.components)} means, got {len(self.means)}")

    @property
    def uncertain(self) -> bool:
        """Whether predictions differ from those at the mean weights of every family."""
        return not all(isinstance(one, PointMass) for one in self.components)

    def predict(self, x: Tensor) -> Predictive:
        """Average the predictive distribution over all draws of all families.

        p(y | x) = sum_ms w_ms p(y | x, theta_ms)      (PAC-PFL eq. 37)

        Args:
            x: inputs [K, N, *feature].

        Returns:
            A distribution over classes, a mixture of normals, or a mixture of the likelihood's own kind, with batch
            shape [K, N].
        """
        return mixed(self._draws(x), self.noise)

    def predict_at_mean(self, x: Tensor) -> Predictive:
        """Mix the predictions of the families' mean weights.

        Args:
            x: inputs [K, N, *feature].

        Returns:
            As `predict`.
        """
        return mixed(self._means(x), self.noise)

    def _draws(self, x: Tensor) -> Weighted:
        noise, rows, at = self.noise.copy(), rows_of(x, self.noise), 0
        largest = rows if self.reference is None else max(rows, self.reference, key=lambda one: one.x.shape[1])
        for size in at_once(self.model, largest, 1, self.log_weights.shape[-1]):
            with torch.no_grad():  # not around the loop: between draws the mode is the caller's
                drawn = [self.components[0].draw(noise) for _ in range(size)]
                weights = [[family.weights(draw) for draw in drawn] for family in self.components]
                results = [observations(self.model, own, rows, self.reference) for own in weights]
            for s, each in enumerate(zip(*results, strict=True), at):
                for m, result in enumerate(each):
                    yield self.log_weights[:, m, s], result
            at += size

    def _means(self, x: Tensor) -> Weighted:
        rows, share = rows_of(x, self.noise), self.log_weights.logsumexp(-1)
        for m, mean in enumerate(self.means):
            with torch.no_grad():
                result = self.model.observation(mean, rows, self.reference)
            yield share[:, m], result


class FamilyMixture(MixturePosterior):
    """A mixture of distributions over weights: draws stand for their families, and weigh alike within each."""

    def __post_init__(self) -> None:
        """Check that draws of one family have equal weights."""
        super().__post_init__()
        level = self.log_weights[..., :1].expand_as(self.log_weights)
        if tensors.on_host(level) and not torch.equal(self.log_weights, level):
            raise StudyError("draws of one family must weigh alike", hint="a WeightedSamples has draws of any weight")

    def sample_hypotheses(self, x: Tensor, draws: int, noise: Noise) -> Iterator[TorchDistribution]:
        """Draw a family and weights from it, again and again.

        Args:
            x: inputs [K, N, *feature].
            draws: S.
            noise: the clients' streams, left as they are: the same streams give the same weights, whatever the inputs.

        Yields:
            p(y | x, theta_s), batch shape [K, N].
        """
        noise, rows, clients = noise.copy(), rows_of(x, self.noise), torch.arange(len(x), device=x.device)
        families = tensors.tree_map(lambda *leaves: torch.stack(leaves, 1), *self.components)  # [K, M, D]
        steps = self.log_weights.logsumexp(-1).double().exp().cumsum(1)[:, :-1]
        for _ in range(draws):
            with torch.no_grad():
                which = (noise.weights(steps.new_empty(len(x), 1), "uniform") > steps).sum(-1)
                family = tensors.tree_map(lambda leaf, which=which: leaf[clients, which], families)
                result = self.model.observation(family.weights(family.draw(noise)), rows, self.reference)
            yield result

    def kl(self, prior: FamilyMixture) -> Tensor:
        """Bound the KL divergence from a mixture of as many families; see `log_mixture_kl`.

        Args:
            prior: families of the same kind.

        Returns:
            [K], in nats, float64.
        """
        pairs = zip(self.components, prior.components, strict=True)
        divergences = torch.stack([one.kl(other) for one, other in pairs], 1)
        log_q, log_prior = (one.log_weights.logsumexp(-1) for one in (self, prior))
        return log_mixture_kl(log_q, log_prior, divergences)


class WeightedSamples(MixturePosterior):
    """Finitely many weights, the draws themselves, each with its own probability: such as importance weights."""

    def enumerate_hypotheses(self, x: Tensor) -> Weighted:
        """Go through all draws of all families.

        Args:
            x: inputs [K, N, *feature].

        Yields:
            Log weight [K] and predictions with batch shape [K, N], of each.
        """
        return self._draws(x)

    def kl(self, prior: WeightedSamples) -> Tensor:
        """KL divergence from other weights of the same draws; see `log_mixture_kl`.

        Args:
            prior: of the same families under the same random numbers.

        Returns:
            [K], in nats, float64: exact.
        """
        return log_mixture_kl(self.log_weights.flatten(1), prior.log_weights.flatten(1))


def log_mixture_kl(log_weights: Tensor, prior: Tensor, divergences: Tensor | None = None) -> Tensor:
    """Bound the KL divergence between mixtures with the same number of components, from logarithms of their weights.

    KL(sum_p a_p Q_p || sum_p w_p P_p) <= KL(a || w) + sum_p a_p KL(Q_p || P_p)

    Args:
        log_weights: ln a of the posterior [K, P], normalised.
        prior: ln w of the prior [K, P], normalised.
        divergences: KL(Q_p || P_p) [K, P], in nats, ignored where a_p = 0; none where Q_p = P_p.

    Returns:
        [K], in nats, float64; infinite where w_p = 0 < a_p, and where a number is missing.
    """
    log_weights, prior = log_weights.double(), prior.double()
    terms = log_weights - prior if divergences is None else log_weights - prior + divergences.double()
    weights = log_weights.exp()
    kl = torch.where(weights == 0, 0.0, weights * terms).sum(-1).clamp_min(0.0)
    return torch.where(kl.isnan(), torch.inf, kl)


def mixed(weighted: Weighted, noise: Noise) -> Predictive:
    """Mix distributions of the same targets.

    Args:
        weighted: log weights [K] and distributions of one kind with batch shape [K, N]; weights add up to 1.
        noise: the clients' streams, for what is known of a kind by draws alone.

    Returns:
        The mixture: of Categoricals over classes, one distribution in memory at a time, of Normals, or of any other
        kind.
    """
    log_probs: Tensor | None = None
    log_weights: list[Tensor] = []
    each: list[TorchDistribution] = []
    for log_weight, one in weighted:
        if isinstance(one, Categorical):
            term = one.logits.log_softmax(-1) + log_weight.to(one.logits).view(-1, 1, 1)
            log_probs = term if log_probs is None else torch.logaddexp(log_probs, term)
        else:
            log_weights.append(log_weight.double())
            each.append(one)
    if log_probs is not None:
        return ClassMixture(log_probs.log_softmax(-1))  # many float32 weights add up to 1 but for rounding
    weights = torch.stack(log_weights, 1)
    if not isinstance(each[0], Normal):
        return SampledMixture(weights, tuple(each), noise)
    means, variances = (torch.stack([getattr(one, name).double() for one in each], 1) for name in ("mean", "variance"))
    return NormalMixture(weights, means, variances)
