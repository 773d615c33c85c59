"""Hyper-priors, the hyper-posterior that SVGD holds as particles, and one with a density that bounds can speak of."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Final, NamedTuple, Protocol

import torch
from torch import Tensor

from pacbayes_fl.errors import AssumptionError, StudyError
from pacbayes_fl.models.base import FunctionModel, WeightModel
from pacbayes_fl.options import check, option
from pacbayes_fl.plugins.table import OpenTable
from pacbayes_fl.posteriors.weights.mean_field import DETERMINISTIC


class HyperPrior(Protocol):
    """Distribution over the hyper-parameters of a prior: all that PAC-PFL asks of one."""

    def sample(self, particles: int, generator: torch.Generator) -> Tensor:
        """Draw particles [P, D]."""

    def score(self, particles: Tensor) -> Tensor:
        """Gradient of the log density [P, D] at particles [P, D]."""


Making = HyperPrior | Callable[..., HyperPrior]
"""A hyper-prior, or what makes it of the model."""


def is_hyper_prior(thing: object) -> bool:
    """Whether an object has what is asked of a hyper-prior."""
    return not isinstance(thing, type) and all(callable(getattr(thing, part, None)) for part in ("sample", "score"))


def _hyper_prior(thing: object, module: ModuleType, name: str) -> Making | None:
    return thing if is_hyper_prior(thing) or _takes_a_model(thing) else None  # type: ignore[return-value]


def _takes_a_model(thing: object) -> bool:
    """Whether an object can be called with a model alone; true of one that does not say what it is called with."""
    if not callable(thing):
        return False
    try:
        inspect.signature(thing).bind(None)
    except TypeError:
        return False
    except ValueError:
        pass
    return True


HYPER_PRIORS: Final[OpenTable[Making]] = OpenTable(
    dict,
    "pacbayes_fl.hyper_priors",
    "[method] own_hyper_prior",
    "a hyper-prior with sample and score, or a function of the model that gives one",
    _hyper_prior,
)
"""Hyper-priors that users and installed packages bring; the built-in ones are fields of their methods."""


@dataclass(frozen=True, eq=False)
class GaussianHyperPrior:
    """The paper's hyper-prior, N(loc, std^2 I) (PAC-PFL section 8.6.2).

    Args:
        loc: [D], from `FunctionModel.location`.
        std: sigma_P, in units of the hyper-parameters.

    Example:
        >>> import torch
        >>> from pacbayes_fl import GaussianHyperPrior
        >>> hyper_prior = GaussianHyperPrior(torch.zeros(3), std=2.0)
        >>> hyper_prior.sample(4, torch.Generator().manual_seed(0)).shape
        torch.Size([4, 3])
        >>> hyper_prior.score(torch.ones(1, 3)).tolist()  # towards the location
        [[-0.25, -0.25, -0.25]]
    """

    loc: Tensor
    std: float

    def __post_init__(self) -> None:
        """Check that std is one positive number."""
        several = isinstance(self.std, Tensor) and self.std.numel() != 1
        if several or not self.std > 0:
            got = f"{list(self.std.shape)} of them" if isinstance(self.std, Tensor) and several else f"{self.std:g}"
            hint = "a class of your own with sample and score may have one for each of D" if several else None
            raise StudyError(f"the hyper-prior's std must be one positive number, got {got}", hint=hint)

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
        relative: factors of it by coordinate [D]; 1 when None.
    """

    loc: Tensor
    std: float
    relative: Tensor | None = None

    def sample(self, particles: int, generator: torch.Generator) -> Tensor:
        """Draw starting points [P, D] from N(loc, std^2 I); see `GaussianHyperPrior.sample`."""
        draws = GaussianHyperPrior(torch.zeros_like(self.loc), self.std).sample(particles, generator)
        return self.loc + (draws if self.relative is None else self.relative.to(draws) * draws)

    def score(self, particles: Tensor) -> Tensor:
        """Gradient of a constant: zeros [P, D] at particles [P, D]."""
        return torch.zeros_like(particles)


@dataclass(frozen=True, eq=False)
class DiagonalHyperPrior:
    """Independent Gaussians of different spread, N(loc, diag(std)^2), and a start of its own.

    Args:
        loc: [D].
        std: [D], in units of the hyper-parameters; where it is 0, phi stays where it starts.
        start_std: spread of the initial draw around loc [D]: the prior of a network is wider than what it can learn
            from.
    """

    loc: Tensor
    std: Tensor
    start_std: Tensor

    def __post_init__(self) -> None:
        """Check that every std is at least 0."""
        for std in (self.std, self.start_std):
            if std.shape != self.loc.shape or not bool((std >= 0).all()):
                raise StudyError("a hyper-prior's std must be a number >= 0 for every coordinate of its loc")

    def sample(self, particles: int, generator: torch.Generator) -> Tensor:
        """Draw starting points [P, D] from N(loc, diag(start_std)^2); see `GaussianHyperPrior.sample`."""
        noise = torch.randn(particles, len(self.loc), generator=generator, dtype=torch.float64)
        return self.loc + self.start_std * noise.to(self.loc)

    def score(self, particles: Tensor) -> Tensor:
        """Gradient of the log density [P, D] at particles [P, D]: (loc - phi) / std^2, 0 where phi cannot move."""
        loc, std = (leaf.to(particles.device) for leaf in (self.loc, self.std))
        free = std > 0
        return torch.where(free, (loc - particles) / torch.where(free, std, 1.0).square(), 0.0)


@dataclass(frozen=True)
class CentredHyperPrior:
    """The Gaussian hyper-prior around a model's own hyper-parameters (PAC-PFL section 8.6.2).

    Args:
        std: standard deviation of the hyper-prior around the model's own hyper-parameters, in their units.
    """

    std: float = option(0.3, above=0, symbol="sigma_P")

    def __post_init__(self) -> None:
        """Check the ranges."""
        check(self)

    def __call__(self, model: FunctionModel) -> GaussianHyperPrior | DiagonalHyperPrior:
        """Make the hyper-prior of a model: N(location, std^2 I), or each coordinate's std by the model's `spreads`."""
        spreads = model.spreads()
        if spreads is None:
            return GaussianHyperPrior(model.location(), self.std)
        return DiagonalHyperPrior(model.location(), self.std * spreads.prior, self.std * spreads.start)


@dataclass(frozen=True)
class CentredFlatHyperPrior:
    """The flat hyper-prior with a start around a model's own hyper-parameters.

    Args:
        init_std: standard deviation of the initial draw of theta around the model's own.
    """

    init_std: float = option(0.3, above=0)

    def __post_init__(self) -> None:
        """Check the ranges."""
        check(self)

    def __call__(self, model: FunctionModel) -> FlatHyperPrior:
        """Make the hyper-prior of a model, whose start each coordinate has by the model's `spreads`."""
        spreads = model.spreads()
        return FlatHyperPrior(model.location(), self.init_std, None if spreads is None else spreads.start)


@dataclass(frozen=True)
class NetworkHyperPrior:
    """The hyper-prior of diagonal Gaussians over a network's weights, whose phi are (mu, rho).

    mu ~ N(centre, mean_std^2), rho ~ N(rho_0, rho_std^2); weights without uncertainty have no rho to learn. Particles
    start at mu ~ N(centre, init_std^2), rho = rho_0.

    Args:
        init_rho: rho_0, softplus^-1 of every weight's standard deviation at the centre of the hyper-prior.
        mean_std: standard deviation of the hyper-prior of the priors' means, around the model's centre.
        rho_std: standard deviation of the hyper-prior of the priors' rhos, around `init_rho`.
        init_std: standard deviation of the first means, which breaks the network's symmetry.
    """

    init_rho: float = option(-3.0, low=-40, high=40, symbol="rho_0")
    mean_std: float = option(1.0, above=0, symbol="sigma_P")
    rho_std: float = option(1.0, above=0)
    init_std: float = option(0.1, above=0)

    def __post_init__(self) -> None:
        """Check the ranges."""
        check(self)

    def __call__(self, model: WeightModel) -> DiagonalHyperPrior:
        """Make the hyper-prior of a network.

        Args:
            model: gives the weights, their centre and dtype, and which are deterministic.

        Returns:
            The hyper-prior of 2 D coordinates.
        """
        uncertain, centre = model.stochastic_columns(), model.centre()
        rhos = torch.full_like(centre, self.init_rho).where(uncertain, DETERMINISTIC)
        spread = torch.full_like(centre, self.rho_std).where(uncertain, 0.0)
        stds = torch.cat((torch.full_like(centre, self.mean_std), spread))
        start = torch.cat((torch.full_like(centre, self.init_std), torch.zeros_like(centre)))
        return DiagonalHyperPrior(torch.cat((centre, rhos)), stds, start)


class HyperPosterior(NamedTuple):
    """Equally weighted particles that stand for the optimal hyper-posterior (PAC-PFL Corollary 4.4).

    Args:
        particles: [P, D].
        hyper_prior: prior of the particles.
    """

    particles: Tensor
    hyper_prior: HyperPrior

    def score(self) -> Tensor:
        """Gradient of the log hyper-prior at the particles [P, D]."""
        return self.hyper_prior.score(self.particles)


def gibbs_tau(lam: float, beta: float, n: int, n2: float, v: float = 1e-4) -> float:
    """Exponent of the optimal hyper-posterior.

    tau = lambda / (lambda + beta n (n2 + v))      (PAC-PFL Corollary 4.4)

    Args:
        lam: lambda > n2 + v.
        beta: temperature of the clients' posteriors.
        n: number of clients.
        n2: number of clients that expect new samples.
        v: small constant of Theorem 4.2.

    Returns:
        tau in (0, 1).

    Raises:
        AssumptionError: when lambda <= n2 + v.

    Example:
        >>> from pacbayes_fl.bounds import gibbs_tau
        >>> round(gibbs_tau(lam=2_000.0, beta=100.0, n=24, n2=0.0), 4)
        0.9999
    """
    if not lam > n2 + v:
        raise AssumptionError(f"lambda must be above n2 + v = {n2 + v:g} (Theorem 4.2), got {lam:g}")
    return lam / (lam + beta * n * (n2 + v))


def _gaussian(hyper_prior: HyperPrior) -> GaussianHyperPrior | DiagonalHyperPrior:
    if isinstance(hyper_prior, GaussianHyperPrior | DiagonalHyperPrior):
        return hyper_prior
    raise AssumptionError(
        f"no divergence from a {type(hyper_prior).__name__} is known: a flat one has no density at all",
        hint="use a GaussianHyperPrior or a DiagonalHyperPrior that was fixed before any rows were seen",
    )


@dataclass(frozen=True, eq=False)
class SmoothedHyperPosterior:
    """Particles blurred into an equally weighted mixture of Gaussians, (1/P) sum_p N(phi_p, std^2 I).

    Particles themselves are atoms, whose divergence from any density is infinite: no server-level bound holds for them
    (PAC-PFL section 8.4 says so of SVGD). A coordinate that the hyper-prior knows, with std 0, is not blurred.

    Args:
        particles: phi [P, D].
        std: of the blur, in units of the hyper-parameters; it may be chosen by looking at the rows.
        hyper_prior: a `GaussianHyperPrior` or a `DiagonalHyperPrior`.
    """

    particles: Tensor
    std: float
    hyper_prior: HyperPrior

    def __post_init__(self) -> None:
        """Check that std is positive and finite, and that the hyper-prior has a density."""
        if not (self.std > 0 and math.isfinite(self.std)):
            raise AssumptionError(
                f"the std of a smoothed hyper-posterior must be positive and finite, got {self.std:g}",
                hint="atoms have an infinite divergence from a density",
            )
        _gaussian(self.hyper_prior)

    def kl(self) -> Tensor:
        """Bound the divergence from the hyper-prior, by convexity.

        KL <= (1/P) sum_p KL(N(phi_p, s^2 I) || N(loc, diag(std)^2))

        It is too large by no more than ln P.

        Returns:
            [], in nats, float64; infinite where a particle has moved a coordinate that the hyper-prior knows.
        """
        wide = self._prior_std()
        free = wide > 0
        scale = torch.where(free, wide, 1.0)
        moved = self.particles.double() - _gaussian(self.hyper_prior).loc.to(self.particles).double()
        narrow = 0.5 * math.log(self.std**2) - scale.log()
        terms = 0.5 * ((self.std / scale).square() - 1.0 + (moved / scale).square()) - narrow
        known = torch.where(moved == 0, 0.0, torch.inf)
        return torch.where(free, terms, known).sum(-1).mean()

    def _prior_std(self) -> Tensor:
        """Return the hyper-prior's std [D], float64."""
        std = torch.as_tensor(_gaussian(self.hyper_prior).std, dtype=torch.float64, device=self.particles.device)
        return std.expand(self.particles.shape[-1])

    def sample(self, draws: int, generator: torch.Generator) -> Tensor:
        """Draw priors: a particle each, blurred.

        Args:
            draws: S.
            generator: source of randomness, on the CPU so that every device draws alike.

        Returns:
            [S, D].
        """
        chosen = torch.randint(len(self.particles), (draws,), generator=generator)
        noise = torch.randn(draws, self.particles.shape[-1], generator=generator, dtype=torch.float64)
        blur = torch.where(self._prior_std() > 0, self.std, 0.0)
        return self.particles[chosen.to(self.particles.device)] + (blur * noise.to(blur)).to(self.particles)
