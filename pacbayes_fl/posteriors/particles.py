"""Hyper-priors, and the hyper-posterior that SVGD holds as particles."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from pacbayes_fl.errors import StudyError


class HyperPrior(Protocol):
    """Distribution over the hyper-parameters of a prior: all that PAC-PFL asks of one."""

    def sample(self, particles: int, generator: torch.Generator) -> Tensor:
        """Draw particles [P, D]."""

    def score(self, particles: Tensor) -> Tensor:
        """Gradient of the log density [P, D] at particles [P, D]."""


@dataclass(frozen=True, eq=False)
class GaussianHyperPrior:
    """The paper's hyper-prior, N(loc, std^2 I) (PAC-PFL section 8.6.2).

    Args:
        loc: [D], from `FunctionModel.location`.
        std: sigma_P, in units of the hyper-parameters.
    """

    loc: Tensor
    std: float

    def __post_init__(self) -> None:
        """Refuse a spread that is none."""
        if not self.std > 0:
            raise StudyError(f"the hyper-prior's std must be positive, got {self.std:g}")

    def sample(self, particles: int, generator: torch.Generator) -> Tensor:
        """Draw particles.

        Args:
            particles: P.
            generator: source of randomness, on the CPU so that every device starts alike.

        Returns:
            [P, D].
        """
        noise = torch.randn(particles, len(self.loc), generator=generator, dtype=torch.float64)
        return self.loc + self.std * noise.to(self.loc)

    def score(self, particles: Tensor) -> Tensor:
        """Gradient of the log density, (loc - phi) / std^2.

        Args:
            particles: [P, D].

        Returns:
            [P, D].
        """
        return (self.loc.to(particles) - particles) / self.std**2

    def log_prob(self, particles: Tensor) -> Tensor:
        """Log density.

        Args:
            particles: [P, D].

        Returns:
            [P], in nats.
        """
        standard = (particles - self.loc) / self.std
        normal = 0.5 * math.log(2 * math.pi) + math.log(self.std)
        return -0.5 * standard.square().sum(-1) - normal * particles.shape[-1]


@dataclass(frozen=True, eq=False)
class FlatHyperPrior:
    """No preference at all: the "very wide hyper-prior" that makes pFedGP a special case (PAC-PFL section 8.6.2).

    Args:
        loc: centre of the initial draw [D].
        std: spread of the initial draw; it does not enter the score.
    """

    loc: Tensor
    std: float

    def sample(self, particles: int, generator: torch.Generator) -> Tensor:
        """Draw starting points [P, D] from N(loc, std^2 I); see `GaussianHyperPrior.sample`."""
        return GaussianHyperPrior(self.loc, self.std).sample(particles, generator)

    def score(self, particles: Tensor) -> Tensor:
        """Gradient of a constant: zeros [P, D] at particles [P, D]."""
        return torch.zeros_like(particles)


class HyperPosterior(NamedTuple):
    """Equally weighted particles that stand for the optimal hyper-posterior (PAC-PFL Corollary 4.4).

    Args:
        particles: [P, D].
        hyper_prior: where they came from and what pulls them back.
    """

    particles: Tensor
    hyper_prior: HyperPrior

    def score(self) -> Tensor:
        """Gradient of the log hyper-prior at the particles [P, D]."""
        return self.hyper_prior.score(self.particles)
