"""Federations of a user's own images: clients are folders or names, or get rows by a partition."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Final, Literal

import numpy as np
import torch

from pacbayes_fl import options, settings
from pacbayes_fl.data import cells, image_federation, images, partition, partitions, tables, user_images
from pacbayes_fl.data.archives import Array
from pacbayes_fl.data.image_federation import Client, Domain
from pacbayes_fl.data.image_files import Colour, Look
from pacbayes_fl.data.images import Images
from pacbayes_fl.data.partitions import Partition
from pacbayes_fl.data.user_images import Brought
from pacbayes_fl.errors import DataError, StudyError, caller_stacklevel
from pacbayes_fl.options import option

PUBLISHED_ONLY: Final = ("root", "download", "domains")
"""Options of published images that a user's have not."""


@dataclass(frozen=True)
class ReadOptions:
    """How a user's images are read.

    Args:
        size: side in pixels of the square that is cut from the middle of each image file and resized; files must be of
            one size when None.
        colour: "grey" or "rgb"; files must be alike when None.
        classes: names of the classes in the order of their numbers; those that there are, sorted, when empty. Others
            are refused.
        duplicate_rows: as in [data], whose value it has unless it is given.
        exclude_clients: likewise.
    """

    size: int | None = option(None, low=1)
    colour: Colour | None = None
    classes: tuple[str, ...] = ()
    duplicate_rows: Literal["refuse", "allow"] = "refuse"
    exclude_clients: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check the ranges."""
        options.check(self, "[data]")


@dataclass(frozen=True)
class OwnerOptions:
    """How the rows of clients that have images of their own are split.

    Args:
        new: names of clients that never train.
        test_share: share of each client's images to be scored on, where nothing says which.
        validation_share: share of each client's images for validation; of those not tested on, where it is said which.
        seed: of the draws.
    """

    new: tuple[str, ...] = ()
    test_share: float = option(0.25, above=0, below=1)
    validation_share: float = option(0.0, low=0, below=1)
    seed: int = option(0, low=0)

    def __post_init__(self) -> None:
        """Check the ranges."""
        options.check(self, "[data]")


def federation(
    path: Path, given: Mapping[str, object], known: Mapping[str, Partition] = partitions.PARTITIONS
) -> tables.Dataset:
    """Make a federation of a user's images, in a folder or an .npz; see `user_images.to_learn`.

    Where images have owners these are the clients. Otherwise a partition shares them out, by "labels" or by
    "dirichlet" shares. Pixels become (x / 255 - 0.5) / 0.5 in float32, as of published images.

    Args:
        path: the folder or the file.
        given: fields of `ReadOptions`, and those of `OwnerOptions`; or of images without owners, those of
            `image_federation.ImageOptions` and of the partition.
        known: partitions by name.

    Returns:
        The data set, with positions of all rows in the order of `user_images.to_learn`.

    Raises:
        StudyError: when an option is not known, out of range, or for images of the other kind.
        DataError: naming the file, row or client that cannot be used.

    Warns:
        UserWarning: of images that several clients have, or that have several labels.
    """
    where, names = f"[data] {path}", [field.name for field in fields(ReadOptions)]
    asked = settings.parse(ReadOptions, {key: given[key] for key in given if key in names}, where)
    rest = {key: value for key, value in given.items() if key not in names}
    brought = user_images.to_learn(path, Look(asked.size, asked.colour), asked.exclude_clients)
    owned = bool(brought.client[0])
    _check_keys(where, rest, owned, known)
    classes = _classes(brought, asked.classes)
    made = _images(path.resolve().name, brought, classes)
    if not owned:
        rest = {"pool": "merged" if brought.test is None else "official"} | rest
        domain = Domain(made.name, made.name, None)
        dataset = image_federation.shared_out(
            made.name, {made.name: made}, image_federation.planned(made.name, rest, known, (domain,))
        )
    else:
        dataset = _of_owners(made, settings.parse(OwnerOptions, rest, where), brought)
    told = tables.to_positions(dataset)
    if owned:
        _check_trained(told, brought)
    _check_twins(told, brought, asked.duplicate_rows)
    return replace(dataset, provenance={**dataset.provenance, "class_names": list(classes)})


def _check_keys(where: str, given: Mapping[str, object], owned: bool, known: Mapping[str, Partition]) -> None:
    """Refuse options of images of the other kind, by name."""
    own = [field.name for field in fields(OwnerOptions)]
    shared = [*_names(image_federation.ImageOptions), *(key for one in known.values() for key in _names(one.options))]
    for key in given:
        if key in PUBLISHED_ONLY:
            raise StudyError(f"{where}: {key} is for published images", hint="leave it out")
        if owned and key in shared and key not in own:
            what = f"{where}: {key} is for images that nobody owns, and these have a client each"
            raise StudyError(what, hint=f"the options are {', '.join((*_names(ReadOptions), *own))}")
        if not owned and key == "new":
            raise StudyError(f"{where}: new names clients, and these images have none", hint="new_clients = 2")
    if not owned and "partition" not in given:
        able = ", ".join(repr(name) for name, one in partitions.PARTITIONS.items() if not one.needs_owners)
        what = f"{where}: the images belong to nobody, and partition does not say which clients get them"
        raise StudyError(
            what, hint=f"data.options.partition = {able} or one of your own; or make it CLIENT/CLASS/*.png"
        )


def _names(kind: type) -> list[str]:
    return [field.name for field in fields(kind)]


def _classes(brought: Brought, asked: Sequence[str]) -> tuple[str, ...]:
    """Name the classes in the order of their numbers."""
    for row, label in enumerate(brought.label):
        if asked and label not in asked:
            what = f"{brought.where[row]}: there is no class {label!r}"
            raise DataError(what, client=brought.client[row] or None, hint=settings.nearest(label, asked))
    found = set(brought.label)
    numbers = all(map(str.isdecimal, found))
    names = asked or sorted(found, key=int if numbers else str)
    alike: dict[str, str] = {}
    for name in names:
        if (first := alike.setdefault(name.strip().casefold(), name)) != name:
            where = brought.where[brought.label.index(name)] if name in found else "data.options.classes"
            raise DataError(f"{where}: class {name!r} differs from {first!r} by capitals or blanks alone")
    if len(names) < 2:
        raise DataError(f"{brought.where[0]}: all images are of the class {names[0]!r}, and there must be two or more")
    return tuple(names)


def _images(name: str, brought: Brought, classes: Sequence[str]) -> Images:
    test = np.zeros(len(brought.label), dtype=bool) if brought.test is None else brought.test
    y = user_images.numbered(brought, classes).long()
    if not brought.client[0]:
        return images.make(name, brought.x, y, torch.from_numpy(test), len(classes))
    names = sorted(set(brought.client))
    cells.check_names(names)
    place = {owner: number for number, owner in enumerate(names)}
    owner = torch.tensor([place[one] for one in brought.client])
    return images.make(name, brought.x, y, torch.from_numpy(test), len(classes), owner, names)


def _of_owners(made: Images, own: OwnerOptions, brought: Brought) -> tables.Dataset:
    """Make every owner a client, each split with a generator of its own."""
    for name in own.new:
        if name not in made.owner_names:
            raise DataError("it has no images, and `new` names it", client=name, hint=", ".join(made.owner_names[:6]))
    if made.owner is None or len(own.new) == len(made.owner_names):
        raise DataError("all clients are new, and one at least must take part in the training")
    domain, owner = Domain(made.name, made.name, None), made.owner.numpy()
    clients = []
    for number, name in enumerate(made.owner_names):
        parts = _parts(np.flatnonzero(owner == number), name, made, own, brought.test is not None)
        clients.append(Client(name, domain, name in own.new, parts))
    given = {**settings.as_table(own), "partition": "natural"}
    return image_federation.assembled(made.name, {made.name: made}, clients, made.classes, given)


def _parts(rows: Array, name: str, made: Images, own: OwnerOptions, split: bool) -> partition.Parts:
    generator = np.random.default_rng([own.seed, *name.encode()])
    if split:
        test = made.official_test.numpy()[rows]
        fit, scored = generator.permutation(rows[~test]), generator.permutation(rows[test])
        count = round(own.validation_share * len(fit))
    else:
        mixed, held = generator.permutation(rows), max(1, round(own.test_share * len(rows)))
        fit, scored = mixed[held:], mixed[:held]
        count = round(own.validation_share * len(rows))
    if not len(scored) or count >= len(fit):
        what = (
            f"has {len(scored)} images to be scored on, {count} for validation and {max(0, len(fit) - count)} to learn"
        )
        raise DataError(f"{what} from", client=name, hint="one to learn from and one to score on are the least")
    return partition.Parts(fit[count:], fit[:count], scored)


def _check_trained(told: Mapping[str, Array], brought: Brought) -> None:
    """Refuse an image of a class of which no client that trains has one to learn from."""
    labels = np.array(brought.label)[told["position"]]
    learned = np.unique(labels[(told["part"] == 0) & ~told["client_new"][told["owner"]]])
    if len(odd := np.flatnonzero(~np.isin(labels, learned))):
        row, owner = int(told["position"][odd[0]]), int(told["owner"][odd[0]])
        what = f"{brought.where[row]}: no client that trains has an image of class {brought.label[row]!r} to learn from"
        raise DataError(what, client=str(told["client_name"][owner]), hint="is the class spelt alike everywhere?")


def _check_twins(told: Mapping[str, Array], brought: Brought, duplicate_rows: str) -> None:
    """Refuse an image to learn from that its client is scored on too, and warn of those of several clients."""
    same: dict[bytes, list[int]] = {}
    for at, row in enumerate(told["position"].tolist()):
        same.setdefault(hashlib.sha256(brought.x[row].numpy().tobytes()).digest(), []).append(at)
    leaks, shared, torn = list[tuple[int, int]](), list[tuple[int, int]](), list[tuple[int, int]]()
    for first, *others in same.values():
        for at in others:
            if told["owner"][at] != told["owner"][first]:
                shared.append((first, at))
            elif (told["part"][at] == 0) != (told["part"][first] == 0):
                leaks.append((first, at))
            if brought.label[told["position"][at]] != brought.label[told["position"][first]]:
                torn.append((first, at))

    def pair(found: Sequence[tuple[int, int]]) -> str:
        return " and ".join(brought.where[told["position"][at]] for at in found[0])

    if leaks and duplicate_rows == "refuse":
        what = f"{pair(leaks)} are one image, learned from and held out, the first of {len(leaks)} such pairs"
        client = str(told["client_name"][told["owner"][leaks[0][0]]])
        raise DataError(what, client=client, hint="delete one, or set data.duplicate_rows = 'allow'")
    for found, text in ((shared, "of several clients"), (torn, "of several classes")):
        if found:
            what = f"{len(found)} images are copies {text}, {pair(found)} the first"
            warnings.warn(what, stacklevel=caller_stacklevel())
