"""Ways to share a data set out among clients, by name: one record each, with the options that it has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from pacbayes_fl import options
from pacbayes_fl.data import partition
from pacbayes_fl.data.archives import Array
from pacbayes_fl.data.images import Images
from pacbayes_fl.data.partition import Counts, LabelGroups, Parts
from pacbayes_fl.errors import DataError
from pacbayes_fl.options import OpenNames, Packaged, by_name, option

Pool = Literal["merged", "official"]

_DIGITS: Final = 10  # classes 0..9 of FEMNIST


class Pieces(NamedTuple):
    """A data set that is to be shared out, and among whom.

    Args:
        images: the data set, of R rows.
        members: numbers u of the K clients.
        official_test: bool [R], True on rows of which test rows are to be taken; None where all rows are alike.
        generator: of every draw.
    """

    images: Images
    members: Sequence[int]
    official_test: Array | None
    generator: np.random.Generator

    @property
    def y(self) -> Array:
        """Labels [R], int64."""
        labels: Array = self.images.y.numpy()
        return labels

    def named(self, parts: Sequence[Parts]) -> dict[str, Parts]:
        """Name clients by their numbers.

        Args:
            parts: of the K clients.

        Returns:
            The parts by name, "client_00" and so on.
        """
        return {f"client_{u:02d}": own for u, own in zip(self.members, parts, strict=True)}


def _all(own: Any, classes: int) -> int:
    return classes


def _unlimited(own: Any) -> int | None:
    return None


@dataclass(frozen=True)
class Partition:
    """A way to share a data set out among clients.

    Args:
        name: what studies call it.
        title: one line for people.
        options: dataclass of its options, which stand in [data.options] beside those that all partitions have.
        cut: gives the rows of the K clients by name, in the order of the members, from the pieces and the options.
        pool: where test rows come from when a study does not say it: "merged" or "official".
        needs_owners: whether it is for data sets alone whose rows have owners.
        limit: training rows that the options let each client keep at most; None for all.
        rows: training rows of a client, where the options say their number; `limit` does when None.
        classes: how many of the C classes the options leave.
        refused_elsewhere: options that are refused beside another partition, where nobody would see that they do
            nothing.
    """

    name: str
    title: str
    options: type
    cut: Callable[[Pieces, Any], dict[str, Parts]]
    pool: Pool = "merged"
    needs_owners: bool = False
    limit: Callable[[Any], int | None] = _unlimited
    rows: Callable[[Any], int | None] | None = None
    classes: Callable[[Any, int], int] = _all
    refused_elsewhere: tuple[str, ...] = ()


@dataclass(frozen=True)
class LabelOptions:
    """Options of the partition "labels".

    Args:
        labels_per_client: classes per client.
        groups: which classes; see `partition.label_set`.
        train: training rows per class and client.
        test: test rows per class and client.
        validation: validation rows per class and client.
    """

    labels_per_client: int = option(5, low=1)
    groups: LabelGroups = "two"
    train: int = option(50, low=1)
    test: int = option(950, low=1)
    validation: int = option(10, low=0)

    def __post_init__(self) -> None:
        """Check the ranges."""
        options.check(self, "[data]")


@dataclass(frozen=True)
class ShareOptions:
    """Common options of partitions that split each client's rows by shares.

    Args:
        minimum: rows that each client has at least.
        test_share: share of each client's rows, in the merged pool.
        validation_share: share of each client's rows.
        limit: training rows that each client keeps at most, drawn from those that are left without its test and
            validation rows; all when None.
    """

    minimum: int = option(10, low=2)
    test_share: float = option(0.2, above=0, below=1)
    validation_share: float = option(0.0, low=0, below=1)
    limit: int | None = option(None, low=1)

    def __post_init__(self) -> None:
        """Check the ranges."""
        options.check(self, "[data]")


@dataclass(frozen=True)
class DirichletOptions(ShareOptions):
    """Options of the partition "dirichlet".

    Args:
        alpha: concentration; small values give clients few classes and unequal sizes.
    """

    alpha: float = option(0.4, above=0, symbol="alpha")


@dataclass(frozen=True)
class NaturalOptions(ShareOptions):
    """Options of the partition "natural".

    Args:
        digits_only: only the ten digits.
    """

    digits_only: bool = False


def _by_labels(pieces: Pieces, own: LabelOptions) -> dict[str, Parts]:
    parts = partition.by_labels(
        pieces.y,
        pieces.members,
        own.labels_per_client,
        own.groups,
        Counts(own.train, own.validation, own.test),
        pieces.images.classes,
        pieces.generator,
        pieces.official_test,
    )
    return pieces.named(parts)


def _dirichlet(pieces: Pieces, own: DirichletOptions) -> dict[str, Parts]:
    parts = partition.dirichlet(
        pieces.y,
        len(pieces.members),
        own.alpha,
        pieces.images.classes,
        pieces.generator,
        test_share=own.test_share,
        validation_share=own.validation_share,
        minimum=own.minimum,
        official_test=pieces.official_test,
    )
    return pieces.named(parts)


def _natural(pieces: Pieces, own: NaturalOptions) -> dict[str, Parts]:
    images = pieces.images
    if images.owner is None:
        raise DataError(f"{images.name} has no writers", hint="use the partition 'labels' or 'dirichlet'")
    drawn = partition.natural(
        pieces.y,
        images.owner.numpy(),
        len(pieces.members),
        pieces.generator,
        test_share=own.test_share,
        validation_share=own.validation_share,
        minimum=own.minimum,
        labels=range(_DIGITS) if own.digits_only else None,
        official_test=pieces.official_test,
    )
    return {images.owner_names[i]: mine for i, mine in drawn.items()}


def _limit(own: ShareOptions) -> int | None:
    return own.limit


PARTITIONS: Mapping[str, Partition] = by_name(
    Partition(
        "labels",
        "each client has the same number of rows of a few classes",
        LabelOptions,
        _by_labels,
        rows=lambda own: own.labels_per_client * own.train,
    ),
    Partition(
        "dirichlet",
        "of each class the clients get shares that are drawn from a Dirichlet distribution",
        DirichletOptions,
        _dirichlet,
        limit=_limit,
        refused_elsewhere=("limit",),
    ),
    Partition(
        "natural",
        "each client is one owner of rows, such as the writer of characters",
        NaturalOptions,
        _natural,
        pool="official",
        needs_owners=True,
        limit=_limit,
        classes=lambda own, classes: _DIGITS if own.digits_only else classes,
        refused_elsewhere=("limit", "digits_only"),
    ),
)
"""All of them by name. A new one is one more record here."""

GROUP: Final = "pacbayes_fl.partitions"
"""Of the entry points by which installed packages add partitions."""

_PACKAGED: Final = Packaged(GROUP)


def names() -> OpenNames:
    """Name all partitions, those of installed packages among them, of which none is imported.

    Returns:
        The names.
    """
    return OpenNames(dict.fromkeys((*PARTITIONS, *_PACKAGED.entries())))
