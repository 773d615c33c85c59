"""Interfaces of posteriors, and predictive distributions for metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from typing import Any, Final, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import StudyError
from pacbayes_fl.models.base import default
from pacbayes_fl.noise import Noise

_MOST: Final = 128  # steps to a quantile: halvings of a bracket of any width
_CLOSE: Final = 2.0**-50  # of a level and of a quantile, which sums of components round by

Owner = TypeVar("Owner")


class RegressionPredictive(Protocol):
    """Distribution of new targets, row by row, in the units of `y`."""

    @property
    def mean(self) -> Tensor:
        """Mean [K, N], in units of y."""

    @property
    def variance(self) -> Tensor:
        """Variance [K, N], in squared units of y, observation noise included."""

    def log_prob(self, y: Tensor) -> Tensor:
        """Log density [K, N] in nats at targets y [K, N]."""

    def cdf(self, y: Tensor) -> Tensor:
        """Probability [K, N] of a target up to y [K, N]."""

    def quantile(self, level: Tensor | float) -> Tensor:
        """Quantiles [L, K, N] at each level [L] from 0 to 1, which give the ends of what is possible."""

    def sample(self, draws: int, noise: Noise | int) -> Tensor:
        """Independent draws [S, K, N] of single targets, from the clients' streams or a seed."""

    def rescale(self, loc: Tensor, scale: Tensor) -> RegressionPredictive:
        """Distribution of loc + scale * y for loc and scale [K], scale positive."""


class ClassPredictive(Protocol):
    """Distribution of new labels, row by row, over C classes."""

    @property
    def probs(self) -> Tensor:
        """Probabilities [K, N, C]."""

    @property
    def entropy(self) -> Tensor:
        """Entropy [K, N] of each row, in nats: 0 where one class is certain, ln C where all are alike."""

    def log_prob(self, y: Tensor) -> Tensor:
        """Log probability [K, N] in nats of integer labels y [K, N]."""


Predictive = RegressionPredictive | ClassPredictive


class Posterior(Protocol):
    """Result of a method's `personalise` for the clients of one call."""

    def predict(self, x: Tensor) -> Predictive:
        """Predictive distribution at inputs x [K, N, *feature], of real targets or of classes as the model has it."""


@runtime_checkable
class FunctionPosterior(Protocol):
    """A posterior whose hypotheses are functions with Gaussian values."""

    def function(self, x: Tensor) -> NormalMixture:
        """Distribution of the function's values at inputs x [K, N, d]; observation noise is no part of it."""


class ConditionedFunctions(FunctionPosterior, Protocol):
    """A posterior over functions that knows how far it is from its prior."""

    def kl(self) -> Tensor:
        """KL divergence of every component from its prior [K, P], in nats; 0 for a client without rows."""


@runtime_checkable
class FinitePosterior(Protocol):
    """A posterior over finitely many hypotheses."""

    def enumerate_hypotheses(self, x: Tensor) -> Iterator[tuple[Tensor, TorchDistribution]]:
        """Log weight [K] and predictions at inputs x [K, N, *feature], batch shape [K, N], of each of them."""


@runtime_checkable
class SampledPosterior(Protocol):
    """A posterior whose hypotheses can be drawn, independently of one another.

    One of which a draw is a hypothesis for every row, and not one for all, says so by `rows_apart = True`: its mean
    over rows is as that of a hypothesis, and what varies from row to row is not.
    """

    def sample_hypotheses(self, x: Tensor, draws: int, noise: Noise) -> Iterator[TorchDistribution]:
        """Predictions of each draw at inputs x [K, N, *feature], batch shape [K, N]."""


class LearnedPriors(NamedTuple):
    """Priors over functions that a federation has learned, and how a client responds to any of them.

    Args:
        particles: hyper-parameters of the priors [P, D].
        hyper_prior: distribution of these that was fixed before any rows, as `posteriors.hyper_posterior` has them.
        condition: gives the posterior of K clients under priors [K, S, D] from their rows, a mixture of S with equal
            weights.
        at_once: largest S of one call.
        temper: as `condition`, of a power of the rows' likelihood; gives None where that is not known.
    """

    particles: Tensor
    hyper_prior: Any
    condition: Callable[[Tensor, ClientBatch], ConditionedFunctions]
    at_once: int
    temper: Callable[[Tensor, ClientBatch, float], ConditionedFunctions | None] | None = None


def streams(noise: Noise | int, like: Tensor) -> Noise:
    """Make the streams behind the draws of a predictive distribution.

    Args:
        noise: streams of the K clients as they are, or a seed: then clients are told apart by their place.
        like: gives K and the device [K, *].

    Returns:
        Streams of the K clients.
    """
    return noise if isinstance(noise, Noise) else Noise(noise, 0, range(len(like)), like.device)


def at_levels(quantile: Callable[[Owner, Tensor], Tensor]) -> Callable[[Owner, Tensor | float], Tensor]:
    """Have a predictive's `quantile` take numbers and levels of any shape, as torch's `icdf` does, and refuse others.

    Args:
        quantile: of levels [L] from 0 to 1.

    Returns:
        The method, of levels [*]; it raises StudyError of one that is not from 0 to 1.
    """

    @wraps(quantile)
    def call(self: Owner, level: Tensor | float) -> Tensor:
        given = torch.as_tensor(level, dtype=None if isinstance(level, Tensor) else torch.float64)
        flat = given.flatten() if given.is_floating_point() else given.flatten().double()
        if not bool(((flat >= 0) & (flat <= 1)).all()):
            wrong = flat[~((flat >= 0) & (flat <= 1))][0]
            raise StudyError(f"level must be from 0 to 1, got {float(wrong):g}", hint="such as .95 for 95 %")
        result = quantile(self, flat)
        return result.view(*given.shape, *result.shape[1:])

    return call


@dataclass(frozen=True, eq=False)
class NormalMixture:
    """Mixture of P normals per row, with one weight per client and component (PAC-PFL eq. 37a).

    p(y) = sum_p w_p N(y | mu_p, s_p^2)

    Args:
        log_weights: [K, P], normalised over P.
        means: [K, P, N], in units of y.
        variances: [K, P, N], in squared units of y, not negative; 0 is all probability at the mean.

    Example:
        >>> import torch
        >>> from pacbayes_fl.posteriors.predictive import NormalMixture
        >>> log_weights, means, variances = torch.zeros(1, 1), torch.tensor([[[0.0, 1.0]]]), torch.ones(1, 1, 2)
        >>> predictive = NormalMixture(log_weights.double(), means.double(), variances.double())
        >>> predictive.mean.tolist(), predictive.variance.tolist()
        ([[0.0, 1.0]], [[1.0, 1.0]])
        >>> predictive.quantile(torch.tensor([0.5])).numpy().round(4).tolist()
        [[[0.0, 1.0]]]
        >>> round(predictive.cdf(y := torch.zeros(1, 2).double())[0, 0].item(), 3)
        0.5
    """

    log_weights: Tensor
    means: Tensor
    variances: Tensor

    @property
    def weights(self) -> Tensor:
        """Weights [K, P]."""
        return self.log_weights.exp()

    @property
    def stds(self) -> Tensor:
        """Standard deviations [K, P, N] of the components."""
        return self.variances.sqrt()

    @property
    def mean(self) -> Tensor:
        """Mean [K, N]."""
        return torch.einsum("kp,kpn->kn", self.weights, self.means)

    @property
    def variance(self) -> Tensor:
        """Variance [K, N]: within the components and between them."""
        between = (self.means - self.mean.unsqueeze(1)).square()
        return torch.einsum("kp,kpn->kn", self.weights, self.variances + between)

    @property
    def undefined(self) -> Tensor:
        """Rows of which a mean or a variance is NaN, bool [K, N]."""
        return (self.means + self.variances).isnan().any(1)

    def log_prob(self, y: Tensor) -> Tensor:
        """Log density.

        Args:
            y: targets [K, N], in units of y.

        Returns:
            [K, N], in nats; infinite where a component without spread hits, and minus infinity where all of these miss.
        """
        squares = (y.unsqueeze(1) - self.means).square()
        normal = -0.5 * (squares / self.variances + self.variances.log() + math.log(2 * math.pi))
        normal = torch.where(self.variances == 0, torch.where(squares == 0, torch.inf, -torch.inf) + squares, normal)
        return torch.logsumexp(self.log_weights.unsqueeze(-1) + normal, 1)

    def cdf(self, y: Tensor) -> Tensor:
        """Cumulative probability.

        Args:
            y: targets [K, N], in units of y; a leading [L] is allowed.

        Returns:
            [K, N], or [L, K, N].
        """
        normal: Tensor = torch.special.ndtr(self._standard(y))
        return (self.weights.unsqueeze(-1) * normal).sum(-2)

    @default
    @at_levels
    def quantile(self, level: Tensor) -> Tensor:
        """Quantiles by Newton's method between the outermost components' quantiles, as exact as the cdf is in float64.

        A step that leaves its bracket, or is not half the one before, halves the bracket in its place (Press et al.,
        Numerical Recipes, 2007, section 9.4), so that components far apart cost halvings and nothing else.

        Args:
            level: [L], from 0 to 1, whose quantiles are the ends of what is possible; or a number, for [K, N].

        Returns:
            [L, K, N], in units of y.
        """
        level = level.to(self.means.device)
        stds, weights, goal = self.stds, self.weights.unsqueeze(-1), level.view(-1, 1, 1)
        away: Tensor = torch.special.ndtri(level).view(-1, 1, 1, 1)  # infinite at 0 and 1
        single = self.means + torch.where(stds == 0, 0.0, stds * away)
        low, high = single.amin(2), single.amax(2)
        density = torch.where(stds == 0, 0.0, weights / (stds * math.sqrt(2 * math.pi)))
        y, last = 0.5 * (low + high), high - low
        left, pointed = low < high, bool((stds == 0).any())
        least = _CLOSE * (self.means.abs() + stds).amin(1)  # what a number is known to, however close to 0 it is
        for _ in range(_MOST):
            if not bool(left.any()):
                break
            z = self._standard(y) if pointed else (y.unsqueeze(-2) - self.means) / stds
            miss = (weights * torch.special.ndtr(z)).sum(2) - goal
            step = miss / (density * (-0.5 * z.square()).exp()).sum(2)
            far = (miss.abs() > _CLOSE * goal) & (step.abs() > torch.maximum(_CLOSE * y.abs(), least))
            low, high = torch.where(miss < 0, y, low), torch.where(miss < 0, high, y)
            newton, middle = y - step, 0.5 * (low + high)
            good = (newton >= low) & (newton <= high) & (2 * step.abs() <= last)
            new = torch.where(left & good, newton, torch.where(left & far, middle, y))
            last, y, left = (new - y).abs(), new, left & far & (new != y)  # of a bracket without a number inside
        return y

    def _standard(self, y: Tensor) -> Tensor:
        """Targets [*, K, N] in standard deviations from the means [*, K, P, N]: infinite without any, above at them."""
        distance = y.unsqueeze(-2) - self.means
        return torch.where((self.stds == 0) & (distance == 0), torch.inf, distance / self.stds)

    def sample(self, draws: int, noise: Noise | int) -> Tensor:
        """Independent draws, row by row.

        Args:
            draws: S.
            noise: streams of the K clients, or a seed.

        Returns:
            [S, K, N], in units of y.
        """
        noise = streams(noise, self.means)
        clients, _, rows = self.means.shape
        like = self.means.new_empty(clients, rows, draws)  # rows first: padding then moves no number
        steps = self.weights.cumsum(1)[:, None, None, :-1]
        component = (noise.uniform(like).unsqueeze(-1) > steps).sum(-1).transpose(1, 2)  # [K, S, N]
        mean, std = (
            tensor.transpose(1, 2).unsqueeze(1).expand(-1, draws, -1, -1).gather(3, component.unsqueeze(-1)).squeeze(-1)
            for tensor in (self.means, self.stds)
        )
        return (mean + std * noise.normal(like).transpose(1, 2)).transpose(0, 1)

    @default
    def rescale(self, loc: Tensor, scale: Tensor) -> NormalMixture:
        """Change units.

        Args:
            loc: [K], added after scaling.
            scale: [K], positive.

        Returns:
            The distribution of loc + scale * y.
        """
        loc, scale = loc.view(-1, 1, 1), scale.view(-1, 1, 1)
        return NormalMixture(self.log_weights, loc + scale * self.means, scale.square() * self.variances)
