"""Families of distributions over weights: the built-in ones by name, and those of a torch distribution alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from torch import Tensor
from torch.distributions import Distribution, Transform

from pacbayes_fl.errors import StudyError
from pacbayes_fl.posteriors.weights.distribution import DistributionFamily, Start, from_distribution
from pacbayes_fl.posteriors.weights.family import VariationalFamily
from pacbayes_fl.posteriors.weights.full_rank import FullRank
from pacbayes_fl.posteriors.weights.low_rank import LowRank
from pacbayes_fl.posteriors.weights.mean_field import Diagonal

FamilyName = Literal["mean-field", "full-rank", "low-rank"]


class Family:
    """Where a method's family comes from."""

    @staticmethod
    def named(name: FamilyName, rank: int) -> VariationalFamily:
        """Give a built-in family by its name.

        Args:
            name: of the Gaussians' covariance.
            rank: R of a low one.

        Returns:
            The family.

        Raises:
            StudyError: naming the known ones.
        """
        built_in: dict[str, Callable[[], VariationalFamily]] = {
            "mean-field": Diagonal,
            "full-rank": FullRank,
            "low-rank": lambda: LowRank(rank),
        }
        if name not in built_in:
            raise StudyError(f"family must be one of {', '.join(built_in)}, got {name!r}")
        return built_in[name]()

    @staticmethod
    def from_distribution(
        make: Callable[..., Distribution],
        initial: Mapping[str, Callable[[Start], Tensor]] | None = None,
        transforms: Mapping[str, Transform] | None = None,
        name: str | None = None,
    ) -> DistributionFamily:
        """Make a family of a torch or Pyro distribution alone: slopes by autograd, the KL divergence as torch knows it.

        `Family.from_distribution(Normal)` is the mean field. A full covariance is
        `Family.from_distribution(MultivariateNormal, {"loc": lambda start: start.loc, "scale_tril": lambda start:
        start.scale.diag()})`.

        What is asked of the distribution: batched over clients [K], or over [K, D]; an `rsample` that transforms
        normals and uniforms, shaped [K, *], which are then the clients' own; a KL divergence from its like that
        `torch.distributions.kl` knows in closed form (`register_kl` takes one's own), as bounds hold of no estimate;
        and a mean.

        Args:
            make: the distribution's class, or a function of its parameters [K, *] or [*] by name.
            initial: gives the initial value [*] of each parameter from independent normals `Start(loc, scale)`, which
                a mean field would begin at; parameters loc and scale, begun there, when None.
            transforms: to parameters from unconstrained ones, which clients learn and the server averages. Of a class
                those not given follow from its constraints, softplus for what is positive.
            name: for errors and records; that of `make` when None.

        Returns:
            A family for a method's `family`.
        """
        return from_distribution(make, initial, transforms, name)
