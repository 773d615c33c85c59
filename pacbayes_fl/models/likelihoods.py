"""Observation models: how a raw hyper-parameter becomes the noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from pyro import distributions
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.nn.functional import cross_entropy, softplus

from pacbayes_fl.errors import StudyError

NOISE_STD = 0.4
"""Hyper-prior centre of the noise standard deviation, in standardised units (PAC-PFL section 8.6.2)."""

_WIDEST = 8.0  # distance of a log variance from its centre


def inverse_softplus(value: float) -> float:
    """Solve softplus(raw) = value.

    Args:
        value: positive.

    Returns:
        raw = ln(exp(value) - 1).
    """
    return value + math.log(-math.expm1(-value))


def gaussian_noise(raw: Tensor) -> Tensor:
    """Turn the raw noise parameter into a variance.

    sigma^2 = softplus(raw)^2, never under 1e-8 (float64) or 1e-4 (float32): below that a kernel matrix cannot be
    factored at that precision.

    Args:
        raw: unconstrained [*].

    Returns:
        Variance [*], in squared units of y.
    """
    return softplus(raw).square().clamp_min(_floor(raw))


def gaussian_noise_slope(raw: Tensor) -> Tensor:
    """Differentiate `gaussian_noise`: 2 softplus(raw) sigmoid(raw), and 0 at the floor.

    Args:
        raw: unconstrained [*].

    Returns:
        d sigma^2 / d raw [*], in squared units of y.
    """
    slope = 2.0 * softplus(raw) * torch.sigmoid(raw)
    return torch.where(gaussian_noise(raw) > _floor(raw), slope, 0.0)


def _check_noise(noise_std: float) -> None:
    """Refuse a noise that is not positive and finite."""
    if not 0 < noise_std < math.inf:
        raise StudyError(f"noise_std must be positive, got {noise_std:g}")


def _floor(raw: Tensor) -> float:
    return 1e-8 if raw.dtype == torch.float64 else 1e-4


class Likelihood(Protocol):
    """Distribution of a target given a network's outputs."""

    @property
    def outputs(self) -> int:
        """Number of outputs that a network needs, C."""

    @property
    def classes(self) -> int | None:
        """Number of classes, None for regression."""

    def distribution(self, outputs: Tensor) -> TorchDistribution:
        """Pyro distribution with batch shape [K, N] of targets given outputs [K, N, C]."""

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The same log density [K, N] of targets y [K, N] given outputs [K, N, C], in nats, without Pyro."""


@dataclass(frozen=True)
class Categorical:
    """Labels 0..C-1 by softmax.

    Args:
        classes: C.

    Example:
        >>> import torch
        >>> from pacbayes_fl import Categorical
        >>> scores, labels = torch.zeros(1, 1, 4), torch.tensor([[2]])
        >>> Categorical(4).log_prob(scores, labels).exp().tolist()  # equal scores are a uniform guess
        [[0.25]]
    """

    classes: int

    @property
    def outputs(self) -> int:
        """One logit a class."""
        return self.classes

    def distribution(self, outputs: Tensor) -> TorchDistribution:
        """Categorical [K, N] whose logits are the outputs [K, N, C]."""
        return distributions.Categorical(logits=outputs)

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Log probability of labels.

        Args:
            outputs: logits [K, N, C].
            y: labels [K, N], int64.

        Returns:
            [K, N], in nats.
        """
        return -cross_entropy(outputs.flatten(0, 1), y.flatten(), reduction="none").view(y.shape)


@dataclass(frozen=True)
class Gaussian:
    """Real targets around the output, with one known noise.

    Args:
        noise_std: in units of y.

    Example:
        >>> import torch
        >>> from pacbayes_fl import Gaussian
        >>> density = Gaussian(noise_std=1.0).log_prob(torch.zeros(1, 1, 1), torch.zeros(1, 1))
        >>> round(density.item(), 4)  # -ln(2 pi) / 2
        -0.9189
    """

    noise_std: float = NOISE_STD

    def __post_init__(self) -> None:
        """Check that the noise is positive and finite."""
        _check_noise(self.noise_std)

    @property
    def outputs(self) -> int:
        """The mean alone."""
        return 1

    @property
    def classes(self) -> None:
        """No classes: regression."""
        return None

    def distribution(self, outputs: Tensor) -> TorchDistribution:
        """Normal [K, N] around outputs [K, N, 1]."""
        return distributions.Normal(outputs.squeeze(-1), self.noise_std)

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Log density of targets.

        Args:
            outputs: means [K, N, 1], in units of y.
            y: targets [K, N].

        Returns:
            [K, N], in nats.
        """
        standard = (y.to(outputs.dtype) - outputs.squeeze(-1)) / self.noise_std
        return -0.5 * standard.square() - math.log(self.noise_std) - 0.5 * math.log(2 * math.pi)


@dataclass(frozen=True)
class HeteroscedasticGaussian:
    """Real targets around the first output, with a noise that the second one makes depend on the input.

    y ~ N(f_1, s^2), ln s^2 = ln noise_std^2 + 8 tanh(f_2 / 8)      (Nix and Weigend 1994, with a bounded variance)

    The bound keeps s within a factor e^4 of noise_std, so that no row can make the density grow without limit.

    Args:
        noise_std: of an output of 0, in units of y.
    """

    noise_std: float = NOISE_STD

    def __post_init__(self) -> None:
        """Check that the noise is positive and finite."""
        _check_noise(self.noise_std)

    @property
    def outputs(self) -> int:
        """The mean and the logarithm of the variance."""
        return 2

    @property
    def classes(self) -> None:
        """No classes: regression."""
        return None

    def distribution(self, outputs: Tensor) -> TorchDistribution:
        """Normal [K, N] of outputs [K, N, 2]."""
        mean, log_variance = self._moments(outputs)
        return distributions.Normal(mean, (0.5 * log_variance).exp())

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Log density of targets.

        Args:
            outputs: means and raw log variances [K, N, 2].
            y: targets [K, N].

        Returns:
            [K, N], in nats.
        """
        mean, log_variance = self._moments(outputs)
        squares = (y.to(outputs.dtype) - mean).square() * (-log_variance).exp()
        return -0.5 * (squares + log_variance + math.log(2 * math.pi))

    def _moments(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean [K, N] and log variance [K, N]."""
        mean, raw = outputs.unbind(-1)
        return mean, 2 * math.log(self.noise_std) + _WIDEST * torch.tanh(raw / _WIDEST)
