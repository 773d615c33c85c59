"""Federations of clients made from published image data sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pacbayes_fl import options, settings
from pacbayes_fl.data import image_sets, partition, partitions, tables
from pacbayes_fl.data.archives import Array
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.images import Images, to_floats, turned
from pacbayes_fl.data.partition import Parts
from pacbayes_fl.data.partitions import Partition, Pieces, Pool
from pacbayes_fl.errors import DataError, StudyError
from pacbayes_fl.options import option

_PARTS: Final = ("train", "test", "validation")  # numbered 0, 1, 2 in `Dataset.rows`


@dataclass(frozen=True)
class ImageOptions:
    """How a federation is made from images, whatever its partition, whose own options stand beside these.

    Args:
        root: folder of the data sets; see `image_sets.find_root`.
        download: let torchvision download what is missing.
        partition: how rows are shared out; see `partitions.PARTITIONS`.
        clients: clients that take part in the training.
        new_clients: clients that never do, with rows of their own.
        pool: "merged": rows of the official training and test parts alike, as public code takes them; "official":
            training and validation rows of the first, test rows of the second. By default "official" for "natural",
            where that split is within each writer, and "merged" otherwise.
        subsample: share of each data set's rows that is used at all, drawn at random and rounded down.
        domains: data sets, with "-inverted" or "-rotated" after the name or not; the clients are split evenly among
            them, in blocks. By default the source alone.
        seed: of the draws.
    """

    root: str | None = None
    download: bool = False
    partition: str = option("labels", names=partitions.names)
    clients: int = option(10, low=1)
    new_clients: int = option(0, low=0)
    pool: Pool | None = None
    subsample: float = option(1.0, above=0, high=1)
    domains: tuple[str, ...] = ()
    seed: int = option(0, low=0)

    def __post_init__(self) -> None:
        """Check the ranges."""
        options.check(self, "[data]")


class Domain(NamedTuple):
    """Images that clients see the world by.

    Args:
        name: such as "mnist-inverted".
        base: the data set, "mnist".
        change: a name of `images.CHANGES`; None for none.
    """

    name: str
    base: str
    change: str | None


@dataclass(frozen=True)
class ImagePlan:
    """The configuration of a federation of images.

    Args:
        domains: data sets, changed or not.
        common: options that all partitions have.
        partition: how rows are shared out.
        own: options of the partition.
    """

    domains: tuple[Domain, ...]
    common: ImageOptions
    partition: Partition
    own: Any

    @property
    def rows(self) -> int | None:
        """Training rows of a client, or the most that it can have; None where the options do not say."""
        return (self.partition.rows or self.partition.limit)(self.own)

    @property
    def pool(self) -> Pool:
        """Where test rows come from."""
        return self.common.pool or self.partition.pool


@dataclass(frozen=True)
class Client:
    """A client of a federation of images.

    Args:
        name: what it is called.
        domain: whose images it has.
        new: whether it never trains.
        parts: its rows, by positions in the base of the domain.
    """

    name: str
    domain: Domain
    new: bool
    parts: Parts


def federation(
    source: str, given: Mapping[str, object], known: Mapping[str, Partition] = partitions.PARTITIONS
) -> tables.Dataset:
    """Make a federation of image classification.

    Pixels become (x / 255 - 0.5) / 0.5 in float32, as in the public code of pFedBayes.

    Args:
        source: a data set, with "-inverted" or "-rotated" after its name or not.
        given: fields of `ImageOptions`, and those of the partition.
        known: partitions by name.

    Returns:
        The data set, with positions of all rows and a group "new" where there are new clients.

    Raises:
        StudyError: when an option is not known or out of range.
        DataError: when files are missing or hold too few rows.
    """
    plan = planned(source, given, known)
    bases = {domain.base: None for domain in plan.domains}  # in order, each once
    missing = [base for base in bases if plan.partition.needs_owners and not image_sets.IMAGE_SETS[base].owners]
    if missing:
        able = ", ".join(name for name, one in image_sets.IMAGE_SETS.items() if one.owners)
        what = f"[data] only {able} has writers for the {plan.partition.name} partition, got {', '.join(bases)}"
        raise StudyError(what)
    images = {base: image_sets.read(base, plan.common.root, plan.common.download) for base in bases}
    return shared_out(source, images, plan)


def shared_out(source: str, images: Mapping[str, Images], plan: ImagePlan) -> tables.Dataset:
    """Share images out among clients.

    Args:
        source: what provenance calls them.
        images: by base of the domains.
        plan: how.

    Returns:
        The data set, as of `federation`.

    Raises:
        DataError: when there are too few rows, or images of several sizes.
    """
    shapes = {base: tuple(one.x.shape[1:]) for base, one in images.items()}
    if len(set(shapes.values())) > 1:
        raise DataError(f"domains must have images of one size, got {shapes}")
    classes = plan.partition.classes(plan.own, max(one.classes for one in images.values()))
    return assembled(source, images, _clients(images, plan), classes, _resolved(plan))


def assembled(
    source: str, images: Mapping[str, Images], clients: Sequence[Client], classes: int, given: Mapping[str, object]
) -> tables.Dataset:
    """Make a data set of clients whose rows are chosen.

    Args:
        source: what provenance calls the images.
        images: by base of the domains, all of one size.
        clients: with positions of their rows.
        classes: number C of classes.
        given: all options that the rows depend on, for provenance.

    Returns:
        The data set, with positions of all rows and a group "new" where there are new clients.
    """
    groups = {}
    for label in ("existing", "new"):
        members = [client for client in clients if client.new == (label == "new")]
        if members:
            groups[label] = _group(images, members, classes)
    return tables.Dataset(
        groups,
        (tables.Column("image"),),
        tables.Column("class"),
        {"source": source, "options": given} | {"sha256": {base: one.sha256 for base, one in images.items()}},
        classes=classes,
        feature_shape=tuple(next(iter(images.values())).x.shape[1:]),
        rows=_rows([client for label in groups for client in clients if client.new == (label == "new")]),
    )


def planned(
    source: str,
    given: Mapping[str, object],
    known: Mapping[str, Partition] = partitions.PARTITIONS,
    domains: tuple[Domain, ...] = (),
) -> ImagePlan:
    """Read the options of a federation; those of other partitions are checked, and refused where they would be missed.

    Args:
        source: a data set, with "-inverted" or "-rotated" after its name or not.
        given: fields of `ImageOptions`, and those of the partition.
        known: partitions by name.
        domains: of images that are not published; the options name them when empty.

    Returns:
        What the federation is to be made of.

    Raises:
        StudyError: when an option is not known or out of range.
    """
    where, name = f"[data] {source}", given.get("partition")
    brought = known.get(name) if isinstance(name, str) and name not in partitions.PARTITIONS else None
    known = {**partitions.PARTITIONS, **({} if brought is None else {str(name): brought})}
    own_keys = {name: [field.name for field in fields(one.options)] for name, one in known.items()}
    common_keys = [field.name for field in fields(ImageOptions)]
    every = dict.fromkeys([*common_keys, *(key for keys in own_keys.values() for key in keys)])
    for key in given:
        if key not in every:
            raise StudyError(f"{where}: unknown key {key!r}", hint=settings.nearest(key, every))
    common = settings.parse(ImageOptions, {key: given[key] for key in given if key in common_keys}, where)
    if common.partition not in known:
        raise StudyError(f"{where}: there is no partition {common.partition!r}", hint=settings.nearest("", known))
    chosen, own_options = known[common.partition], own_keys[common.partition]
    own: Any = settings.parse(chosen.options, {key: given[key] for key in given if key in own_options}, where)
    for name, keys in own_keys.items():
        kind, foreign = (
            known[name].options,
            {key: given[key] for key in given if key in keys and key not in own_options},
        )
        other: Any = settings.parse(kind, foreign, where)
        for key in foreign.keys() & {*known[name].refused_elsewhere}:
            if getattr(other, key) != options.options_of(kind)[key].default:
                able = ", ".join(repr(each) for each, its_keys in own_keys.items() if key in its_keys)
                what = f"{where} {key} is for the partition {able}, and the partition is {common.partition!r}"
                raise StudyError(what, hint=f"{common.partition!r} has {', '.join(own_options)}")
    if not domains:
        names = common.domains or (source,)
        if source not in names:
            raise StudyError(f"[data] source {source!r} must be one of the domains {', '.join(names)}")
        domains = tuple(Domain(name, *image_sets.split_name(name)) for name in names)
    return ImagePlan(domains, common, chosen, own)


def _resolved(plan: ImagePlan) -> dict[str, object]:
    """Say what the rows depend on; where the files lay is not part of it."""
    common = settings.as_table(plan.common) | {"domains": [domain.name for domain in plan.domains], "pool": plan.pool}
    table = common | settings.as_table(plan.own)
    return {name: value for name, value in table.items() if name not in ("root", "download")}


def _clients(images: Mapping[str, Images], plan: ImagePlan) -> list[Client]:
    """Share out the rows; clients of one base never share a row, whatever their domains."""
    chosen, domains, limit = plan.common, plan.domains, plan.partition.limit(plan.own)
    kept = {
        base: _subsample(len(one.y), chosen.subsample, [chosen.seed, *base.encode()]) for base, one in images.items()
    }
    total, rows = chosen.clients + chosen.new_clients, sum(map(len, kept.values()))
    if total > rows:
        hint = "take fewer clients or new_clients"
        raise DataError(
            f"{total} clients need a row each at least, and the limit is {rows}, as many as there are", hint=hint
        )
    domain = [domains[u * len(domains) // chosen.clients] for u in range(chosen.clients)]
    domain += [domains[u * len(domains) // chosen.new_clients] for u in range(chosen.new_clients)]
    made: dict[int, Client] = {}
    for base, one in images.items():
        members = [u for u in range(total) if domain[u].base == base]
        if not members:
            continue
        # Its own generator: a base is cut alike whatever other bases there are.
        key = [chosen.seed, *base.encode()]
        part = one if len(kept[base]) == len(one.y) else one.select(torch.from_numpy(kept[base]))
        official_test = part.official_test.numpy() if plan.pool == "official" else None
        cut = plan.partition.cut(Pieces(part, members, official_test, np.random.default_rng(key)), plan.own)
        names, parts = list(cut), tuple(Parts(*(kept[base][rows] for rows in own)) for own in cut.values())
        if limit is not None:  # and another: clients and test rows are the same with and without a limit
            parts = partition.limited(parts, limit, np.random.default_rng([*key, *b"limit"]))
        partition.check_disjoint(parts, names)
        for u, name, own in zip(members, names, parts, strict=True):
            made[u] = Client(name, domain[u], u >= chosen.clients, own)
    return [made[u] for u in range(total)]


def _subsample(rows: int, share: float, key: Sequence[int]) -> Array:
    """Draw the positions of the rows that are used, in order; a smaller share draws some of a larger one's."""
    if share == 1:
        return np.arange(rows)
    count = int(share * rows + 1e-9)  # as .29 * 100 is meant
    return np.sort(np.random.default_rng([*key, *b"subsample"]).permutation(rows)[:count])


def _group(images: Mapping[str, Images], members: Sequence[Client], classes: int) -> tables.Group:
    names = [client.name for client in members]
    batches = [
        ClientBatch.pad(
            [_take(images, client, getattr(client.parts, part)) for client in members],
            names,
            dtype=torch.float32,
            classes=classes,
            allow_empty=part == "validation",
        )
        for part in _PARTS
    ]
    train, test, validation = batches
    return tables.Group(train, test, validation if validation.mask.any() else None)


def _take(images: Mapping[str, Images], client: Client, positions: Array) -> tuple[Tensor, Tensor]:
    """Return the images of a client as floats, and their labels."""
    own, at = images[client.domain.base], torch.from_numpy(positions)
    return to_floats(turned(own.x[at], client.domain.change)), own.y[at]


def _rows(clients: Sequence[Client]) -> dict[str, Array]:
    """Write down which rows went where, in the form of `tables.to_positions`."""
    parts = [(k, i, getattr(client.parts, part)) for k, client in enumerate(clients) for i, part in enumerate(_PARTS)]
    return {
        "client_name": np.array([client.name for client in clients]),
        "client_new": np.array([client.new for client in clients]),
        "client_domain": np.array([client.domain.name for client in clients]),
        "position": np.concatenate([rows for _, _, rows in parts]),
        "owner": np.concatenate([np.full(len(rows), k) for k, _, rows in parts]),
        "part": np.concatenate([np.full(len(rows), i) for _, i, rows in parts]),
    }
