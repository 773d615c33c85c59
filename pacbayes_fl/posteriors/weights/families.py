"""Families of distributions over weights: the built-in ones by name, and those of a torch distribution alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType, ModuleType
from typing import Final

from torch import Tensor
from torch.distributions import Distribution, Transform

from pacbayes_fl.errors import StudyError
from pacbayes_fl.plugins.table import OpenTable
from pacbayes_fl.posteriors.weights.distribution import DistributionFamily, Start, from_distribution
from pacbayes_fl.posteriors.weights.family import VariationalFamily
from pacbayes_fl.posteriors.weights.full_rank import FullRank
from pacbayes_fl.posteriors.weights.low_rank import LowRank
from pacbayes_fl.posteriors.weights.mean_field import Diagonal

BUILT_IN: Final[Mapping[str, Callable[[int], VariationalFamily]]] = MappingProxyType(
    {"mean-field": lambda _: Diagonal(), "full-rank": lambda _: FullRank(), "low-rank": LowRank}
)
"""Makes each of the library's families, of a covariance of rank R."""


def _family(thing: object, module: ModuleType, name: str) -> Callable[[int], VariationalFamily] | None:
    """Take a family itself, which no rank changes."""
    parts = ("initial", "check")
    whole: bool = not isinstance(thing, type) and all(callable(getattr(thing, part, None)) for part in parts)
    return (lambda _: thing) if whole else None  # type: ignore[return-value]


FAMILIES: Final = OpenTable(
    lambda: BUILT_IN,
    "pacbayes_fl.families",
    "[method] family",
    "a variational family, such as one of Family.from_distribution",
    _family,
)
"""All of them by name or reference."""


class Family:
    """Where a method's family comes from."""

    @staticmethod
    def named(name: str, rank: int) -> VariationalFamily:
        """Give a family by its name.

        Args:
            name: of the Gaussians' covariance; or a reference to a family of one's own, such as "mine.py:MY_FAMILY".
            rank: R of a low one.

        Returns:
            The family.

        Raises:
            StudyError: naming the known ones; or when a reference leads to no family.
        """
        if name not in FAMILIES:
            raise StudyError(f"family must be one of {', '.join(FAMILIES)}, got {name!r}")
        return FAMILIES[name](rank)

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
