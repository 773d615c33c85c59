"""Families of distributions over weights: the built-in ones by name, and those of a torch distribution alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Final

from torch import Tensor
from torch.distributions import Distribution, Transform

from pacbayes_fl.errors import StudyError
from pacbayes_fl.options import by_name
from pacbayes_fl.plugins.table import OpenTable
from pacbayes_fl.posteriors.weights.distribution import DistributionFamily, Start, from_distribution
from pacbayes_fl.posteriors.weights.family import VariationalFamily
from pacbayes_fl.posteriors.weights.full_rank import FullRank
from pacbayes_fl.posteriors.weights.low_rank import LowRank
from pacbayes_fl.posteriors.weights.mean_field import Diagonal


@dataclass(frozen=True)
class FamilyKind:
    """A variational family by name.

    Args:
        name: what studies call it.
        title: one line for people.
        parameters: how many a client keeps of D weights, as a formula in D and the rank R.
        make: gives the family of a rank.
    """

    name: str
    title: str
    parameters: str
    make: Callable[[int], VariationalFamily]


_BUILT_IN: Final[Mapping[str, FamilyKind]] = by_name(
    FamilyKind("mean-field", "independent Gaussians, N(mu, diag(sigma^2))", "2 D", lambda _: Diagonal()),
    FamilyKind("full-rank", "one Gaussian of any covariance, N(mu, L L')", "D (D + 3) / 2", lambda _: FullRank()),
    FamilyKind(
        "low-rank", "Gaussian of covariance diag(sigma^2) + V V', V [D, R] with R = method.rank", "D (R + 2)", LowRank
    ),
)


def _family(thing: object, module: ModuleType, name: str) -> FamilyKind | None:
    """Take a record, or a family itself, which no rank changes."""
    if isinstance(thing, FamilyKind):
        return replace(thing, name=name)
    parts = ("initial", "check")
    whole: bool = not isinstance(thing, type) and all(callable(getattr(thing, part, None)) for part in parts)

    def make(_: int) -> VariationalFamily:
        return thing  # type: ignore[return-value]

    return FamilyKind(name, str(getattr(thing, "name", type(thing).__name__)), "its own", make) if whole else None


FAMILIES: Final = OpenTable(
    lambda: _BUILT_IN,
    "pacbayes_fl.families",
    "[method] family",
    "a variational family, such as one of Family.from_distribution",
    _family,
)
"""All of them by name or reference. A new one is one more record above."""


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
        return FAMILIES[name].make(rank)

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
