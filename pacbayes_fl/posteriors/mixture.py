"""A weighted mixture of posteriors over weights: what a client has that holds several priors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from pyro.distributions import Categorical, Normal, TorchDistribution
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import ShapeError, StudyError
from pacbayes_fl.models.base import WeightModel
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.base import NormalMixture
from pacbayes_fl.posteriors.classes import ClassMixture
from pacbayes_fl.posteriors.weights import Predictive, rows_of

Weighted = Iterator[tuple[Tensor, TorchDistribution]]


@dataclass(frozen=True, eq=False)
class MixturePosterior:
    """Weights of K clients as a mixture of M families, each seen through S draws that may weigh differently.

    Equal weights within a family make it a plain average over draws; importance weights make a posterior of draws from
    a prior. All families see the same random numbers.

    Args:
        model: the likelihood.
        components: M families, leaves [K, D].
        log_weights: of every draw [K, M, S], normalised over M and S.
        noise: the clients' streams; every prediction takes the same draws.
        means: mean weights of each of the M families [K, D].
        reference: the clients' training rows, for a network that normalises by their statistics.
    """

    model: WeightModel
    components: tuple[Any, ...]
    log_weights: Tensor
    noise: Noise
    means: tuple[Tensor, ...]
    reference: ClientBatch | None = None

    def __post_init__(self) -> None:
        """Refuse weights of something else."""
        expected = [len(self.noise.ids), len(self.components)]
        if self.log_weights.dim() != 3 or [*self.log_weights.shape[:2]] != expected or self.log_weights.shape[2] < 1:
            raise ShapeError(f"log_weights must be {expected} and draws, got {list(self.log_weights.shape)}")
        if len(self.means) != len(self.components):
            raise ShapeError(f"there must be {len(self.components)} means, got {len(self.means)}")

    @property
    def uncertain(self) -> bool:
        """Whether predictions average over several weights."""
        return True

    def predict(self, x: Tensor) -> Predictive:
        """Average the predictive distribution over all draws of all families.

        p(y | x) = sum_ms w_ms p(y | x, theta_ms)      (PAC-PFL eq. 37)

        Args:
            x: inputs [K, N, *feature].

        Returns:
            A distribution over classes, or a mixture of normals, with batch shape [K, N].
        """
        return mixed(self._draws(x))

    def predict_at_mean(self, x: Tensor) -> Predictive:
        """Mix the predictions of the families' mean weights.

        Args:
            x: inputs [K, N, *feature].

        Returns:
            As `predict`.
        """
        return mixed(self._means(x))

    def _draws(self, x: Tensor) -> Weighted:
        noise, rows = self.noise.copy(), rows_of(x, self.noise)
        for s in range(self.log_weights.shape[-1]):
            with torch.no_grad():
                draw = self.components[0].draw(noise)
                for m, family in enumerate(self.components):
                    yield self.log_weights[:, m, s], self.model.observation(family.weights(draw), rows, self.reference)

    def _means(self, x: Tensor) -> Weighted:
        rows, share = rows_of(x, self.noise), self.log_weights.logsumexp(-1)
        for m, mean in enumerate(self.means):
            with torch.no_grad():
                yield share[:, m], self.model.observation(mean, rows, self.reference)


def mixed(weighted: Weighted) -> Predictive:
    """Mix distributions of the same targets.

    Args:
        weighted: log weights [K] and Categorical or Normal with batch shape [K, N]; weights add up to 1.

    Returns:
        The mixture; classes one distribution in memory at a time.

    Raises:
        StudyError: for a distribution of another kind.
    """
    log_probs: Tensor | None = None
    log_weights, means, variances = [], [], []
    for log_weight, one in weighted:
        if isinstance(one, Categorical):
            term = one.logits.log_softmax(-1) + log_weight.to(one.logits).view(-1, 1, 1)
            log_probs = term if log_probs is None else torch.logaddexp(log_probs, term)
        elif isinstance(one, Normal):
            log_weights.append(log_weight.double())
            means.append(one.mean.double())
            variances.append(one.variance.double())
        else:
            raise StudyError(f"predictions need a Categorical or Normal observation, got {type(one).__name__}")
    if log_probs is not None:
        return ClassMixture(log_probs.log_softmax(-1))  # many float32 weights add up to 1 but for rounding
    return NormalMixture(torch.stack(log_weights, 1), torch.stack(means, 1), torch.stack(variances, 1))
