"""Predicted probabilities to the power 1 / T: temperature scaling of any posterior over classifiers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from pyro.distributions import Categorical, TorchDistribution
from torch import Tensor

from pacbayes_fl.errors import StudyError
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.classes import ClassMixture
from pacbayes_fl.posteriors.predictive import FinitePosterior, SampledPosterior

RANGE = (0.1, 10.0)
"""Temperatures among which `best` chooses."""

_BISECTIONS = 60


def temper(log_probs: Tensor, temperature: float) -> Tensor:
    """Raise probabilities to the power 1 / T and normalise them: the order of the classes stays.

    p_c^(1/T) / sum_c' p_c'^(1/T)      (Guo et al. 2017, on logits; the same where a softmax gave p)

    Args:
        log_probs: [*, C], in nats.
        temperature: T, positive; 1 changes nothing, more makes less sure.

    Returns:
        Log probabilities [*, C].

    Example:
        >>> import torch
        >>> from pacbayes_fl.posteriors.tempered import temper
        >>> log_probs = torch.tensor([0.8, 0.2], dtype=torch.float64).log()
        >>> temper(log_probs, 2.0).exp().numpy().round(4).tolist()  # odds of 4 become odds of 2
        [0.6667, 0.3333]
    """
    return log_probs if temperature == 1.0 else (log_probs / temperature).log_softmax(-1)


def best(log_probs: Tensor, y: Tensor, weight: Tensor) -> float:
    """Find the temperature under which labels are most likely.

    min_T -sum_n w_n ln p_n^(1/T)(y_n), convex in 1 / T: the root of its slope by bisection within `RANGE`

    Args:
        log_probs: of M rows [M, C], in nats.
        y: labels [M].
        weight: of the rows [M].

    Returns:
        T, never one that is less likely than 1; an end of `RANGE` where labels are all the most probable class, or
        where any other class would do.
    """
    known = log_probs.double().clamp_min(torch.finfo(torch.float64).min / log_probs.shape[-1])
    own, weight = known.gather(-1, y.long().unsqueeze(-1)).squeeze(-1), weight.double()

    def loss(power: float) -> float:
        return -float((weight * (power * own - (power * known).logsumexp(-1))).sum())

    def slope(power: float) -> float:
        return -float((weight * (own - ((power * known).softmax(-1) * known).sum(-1))).sum())

    low, high = 1.0 / RANGE[1], 1.0 / RANGE[0]
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    predictive = 0.5 * (low + high)
    return 1.0 / predictive if loss(predictive) < loss(1.0) else 1.0


@dataclass(frozen=True, eq=False)
class TemperedPosterior:
    """A posterior over classifiers whose predictions are tempered.

    Args:
        inner: the posterior.
        temperature: T.
    """

    inner: Any
    temperature: float

    @property
    def uncertain(self) -> bool:
        """Whether predictions differ from those at the mean weights."""
        return bool(self.inner.uncertain)

    def predict(self, x: Tensor) -> ClassMixture:
        """Temper the average over draws.

        Args:
            x: inputs [K, N, *feature].

        Returns:
            Probabilities [K, N, C].
        """
        return self._mixture(self.inner.predict(x))

    def predict_at_mean(self, x: Tensor) -> ClassMixture:
        """Temper the predictions of the mean weights.

        Args:
            x: inputs [K, N, *feature].

        Returns:
            Probabilities [K, N, C].
        """
        return self._mixture(self.inner.predict_at_mean(x))

    def _mixture(self, predictive: object) -> ClassMixture:
        if not isinstance(predictive, ClassMixture):
            raise StudyError(f"a temperature is for probabilities of classes, got a {type(predictive).__name__}")
        return ClassMixture(temper(predictive.log_probs, self.temperature))

    def _categorical(self, one: TorchDistribution) -> Categorical:
        return Categorical(logits=temper(one.logits.log_softmax(-1), self.temperature), validate_args=False)


class TemperedDraws(TemperedPosterior):
    """A posterior that can be drawn from; every draw is tempered on its own."""

    def sample_hypotheses(self, x: Tensor, draws: int, noise: Noise) -> Iterator[TorchDistribution]:
        """Temper the predictions of each draw.

        Args:
            x: inputs [K, N, *feature].
            draws: S.
            noise: the clients' streams, left as they are.

        Yields:
            Classes, batch shape [K, N].
        """
        return (self._categorical(one) for one in self.inner.sample_hypotheses(x, draws, noise))

    def sample_by_row(self, x: Tensor, draws: int, noise: Noise) -> Iterator[TorchDistribution] | None:
        """Temper the predictions of each draw, where the posterior inside draws a network for every row.

        Args:
            x: inputs [K, N, *feature].
            draws: S.
            noise: the clients' streams, which every draw moves on.

        Returns:
            Classes of every draw, batch shape [K, N]; None where the posterior inside draws for all rows alone.
        """
        by_row = getattr(self.inner, "sample_by_row", None)
        each = None if by_row is None else by_row(x, draws, noise)
        return None if each is None else (self._categorical(one) for one in each)


class TemperedList(TemperedPosterior):
    """A posterior over a finite list; every hypothesis is tempered on its own."""

    def enumerate_hypotheses(self, x: Tensor) -> Iterator[tuple[Tensor, TorchDistribution]]:
        """Temper the predictions of each hypothesis.

        Args:
            x: inputs [K, N, *feature].

        Yields:
            Log weight [K] and classes, batch shape [K, N].
        """
        return ((log_weight, self._categorical(one)) for log_weight, one in self.inner.enumerate_hypotheses(x))


def tempered(posterior: object, temperature: float) -> TemperedPosterior:
    """Temper a posterior's predictions; its hypotheses stay the same.

    Args:
        posterior: over classifiers.
        temperature: T.

    Returns:
        The posterior, which can be drawn from or is listed if the given one is.
    """
    kind = TemperedList if isinstance(posterior, FinitePosterior) else TemperedPosterior
    return (TemperedDraws if isinstance(posterior, SampledPosterior) else kind)(posterior, temperature)
