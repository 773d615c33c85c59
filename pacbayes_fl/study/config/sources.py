"""Sources of a study's data by name: records of generators and sets of images.

A generator is a record of `data_gen.generators`, a set of images one of `data.image_sets`; what a study, its
certificates and listings ask of them is read from those records here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, is_dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final

import data_gen
from data_gen import generators
from pacbayes_fl import files, options, settings
from pacbayes_fl.data import image_sets
from pacbayes_fl.data.images import CHANGES
from pacbayes_fl.data.partitions import GROUP, PARTITIONS, Partition
from pacbayes_fl.errors import StudyError, shown
from pacbayes_fl.files import JsonMapping
from pacbayes_fl.options import Option
from pacbayes_fl.plugins.table import OpenTable

if TYPE_CHECKING:  # imported where rows are made: who lists sources needs no tensors
    from pacbayes_fl.data import tables


@dataclass(frozen=True)
class Source:
    """Record of a source of data.

    Args:
        name: what [data] source calls it.
        title: one line for people.
        load: gives the data set, in its own units, from [data.options].
        options: dataclass of [data.options]; those of a partition stand beside them.
        rows_independent: whether the rows of a client are independent draws of its distribution, as bounds need them.
        published: whether rows are known by their positions in published files, which a run folder keeps in place of
            the rows.
        classes: whether the targets are labels.
        own: whether the images are a user's, which may hold copies.
    """

    name: str
    title: str
    load: Callable[[JsonMapping], tables.Dataset]
    options: type
    rows_independent: bool
    published: bool = False
    classes: bool = False
    own: bool = False


FOLDER: Final = "FOLDER/"
"""What listings call a folder of a user's images."""

ARRAYS: Final = "FILE.npz"
"""What listings call an archive, of a user's images or of `data_gen`."""

_FILES_ONLY: Final = ("size", "colour")  # what image files are brought to; arrays are taken as they are

FILES: tuple[tuple[str, str], ...] = (
    (ARRAYS, "what data_gen wrote; or your own images: x [R, channels, H, W], y, client, and maybe split"),
    (
        FOLDER,
        "your own images: CLIENT/CLASS/*.png, or CLASS/*.png with a partition; CLIENT/train/CLASS/ or train/ on top",
    ),
    (
        "FILE.csv",
        "your own rows: a client column, the target y, features (also words, gaps and lags: `describe data`), a time",
    ),
    ("FILE.parquet", "the same; with task = 'classification' in [data] the targets are labels 0, 1, 2, ..."),
)
"""Files that are sources too, each with a line on what it holds."""


def _source(thing: object, module: ModuleType, name: str) -> Source | None:
    if not isinstance(thing, Source):
        return None
    if not (isinstance(thing.options, type) and is_dataclass(thing.options)):
        raise StudyError(f"{name}: the options of a source must be a dataclass, got {shown(thing.options)}")
    return replace(thing, load=partial(_checked, thing.load, name))


def _checked(load: Callable[[JsonMapping], tables.Dataset], name: str, given: JsonMapping) -> tables.Dataset:
    """Load the data of a user's source, which must be what all others give."""
    from pacbayes_fl.data import tables

    dataset: object = load(given)
    if not isinstance(dataset, tables.Dataset):
        raise StudyError(f"[data] source {name} must give a pacbayes_fl.data.tables.Dataset, got {shown(dataset)}")
    if "existing" not in dataset.groups:
        what = f"[data] source {name} gives no group 'existing', but {[*dataset.groups]}"
        raise StudyError(what, hint="clients that train are of the group 'existing', others of 'new'")
    shape = dataset.feature_shape or (len(dataset.features),)
    for key, group in dataset.groups.items():
        if (got := tuple(group.train.x.shape[2:])) != shape:
            what = (
                f"[data] source {name}: inputs of the group {key!r} must be {[*shape]}, as features say, got {[*got]}"
            )
            raise StudyError(what, hint="one Column for every column of x, or feature_shape")
    return dataset


SOURCES: Final[OpenTable[Source]] = OpenTable(
    dict, "pacbayes_fl.sources", "[data] source", "a record pacbayes_fl.study.config.sources.Source", _source
)
"""Sources that users and installed packages bring; the built-in ones are made by `find`."""


def _partition(thing: object, module: ModuleType, name: str) -> Partition | None:
    return thing if isinstance(thing, Partition) else None


OPEN_PARTITIONS: Final = OpenTable(
    lambda: PARTITIONS,
    GROUP,
    "[data.options] partition",
    "a record pacbayes_fl.data.partitions.Partition",
    _partition,
)
"""Every partition by name or reference."""


def names() -> tuple[str, ...]:
    """Name all sources but files; every set of images can also have a change of `data.images.CHANGES` behind it."""
    return (*generators.GENERATORS, *image_sets.IMAGE_SETS)


def every() -> tuple[str, ...]:
    """Name all that `find` finds: the generators, and the sets of images with every change of theirs."""
    return (*generators.GENERATORS, *image_sets.domains())


def find(name: str) -> Source | None:
    """Look a source up.

    Args:
        name: as [data] source has it, or a reference.

    Returns:
        What is known of it; None of a file, or of a name that nothing has.
    """
    if name not in every() and name in SOURCES:
        return SOURCES[name]
    if name in generators.GENERATORS:
        one = generators.GENERATORS[name]
        return Source(name, one.title, partial(_generate, name), one.config, one.rows_independent)
    if name not in image_sets.domains():
        return _own(name)
    from pacbayes_fl.data import image_federation

    base, change = image_sets.split_name(name)
    known = image_sets.IMAGE_SETS[base]
    title = known.title if change is None else f"{known.title}; {CHANGES[change].title}"
    load = partial(_shared_out, name)
    return Source(name, title, load, image_federation.ImageOptions, known.rows_independent, True, True)


def rows_of(name: str, given: JsonMapping) -> int | None:
    """Say how many training rows a client of published images has at most, by the options alone.

    Args:
        name: of any source.
        given: its [data.options].

    Returns:
        The number; None of another source, and where the options do not say it or cannot be read.
    """
    if name not in image_sets.domains():
        return None
    from pacbayes_fl.data import image_federation

    try:
        return image_federation.planned(name, given, PARTITIONS).rows
    except StudyError:  # named where the images are read
        return None


def options_of(name: str) -> dict[str, Option]:
    """List the options of [data.options] for a source.

    Args:
        name: of a generator, or of a set of images, changed or not; or the path of a user's images.

    Returns:
        By name; of images, those of every partition behind those that all partitions have. Nothing for a table.
    """
    if name == ARRAYS:
        return _own_options(arrays=True)
    if name in generators.GENERATORS:
        known = options.options_of(generators.GENERATORS[name].config)
        return {key: known[key] for key in generators.GENERATORS[name].options}
    if name not in every() and name in SOURCES:
        return options.options_of(SOURCES[name].options)
    if name not in image_sets.domains():
        return _own_options(Path(name).suffix.lower() == ".npz") if _own(name) is not None else {}
    from pacbayes_fl.data import image_federation

    result = options.options_of(image_federation.ImageOptions)
    for one in PARTITIONS.values():
        result |= {key: option for key, option in options.options_of(one.options).items() if key not in result}
    return result


def alike(one: object, other: object) -> bool:
    """Say whether what a study says of one source goes for another.

    Args:
        one: what [data] source is.
        other: likewise.

    Returns:
        Whether both are tables of a user's, or sources with the same options.
    """
    from pacbayes_fl.data.user_tables import TABLES

    if not isinstance(one, str) or not isinstance(other, str):
        return False
    tables = [Path(name).suffix.lower() in TABLES for name in (one, other)]
    if any(tables):
        return all(tables)
    known = {*options_of(one)}.difference(_FILES_ONLY)
    return bool(known) and known == {*options_of(other)}.difference(_FILES_ONLY)


def _own_options(arrays: bool) -> dict[str, Option]:
    """Options of a user's images: with owners, then those of images without; arrays are taken as they are."""
    from pacbayes_fl.data import image_federation, own_images

    kinds = [own_images.ReadOptions, own_images.OwnerOptions, image_federation.ImageOptions]
    result: dict[str, Option] = {}
    for kind in (*kinds, *(one.options for one in PARTITIONS.values() if not one.needs_owners)):
        result |= {key: option for key, option in options.options_of(kind).items() if key not in result}
    others = (*own_images.PUBLISHED_ONLY, *(_FILES_ONLY if arrays else ()))
    return {key: option for key, option in result.items() if key not in others}


def _own(name: str) -> Source | None:
    """Take a path for a user's images, if it is one of them."""
    path = files.expanded(name)
    is_folder = "/" in name and (not path.suffix or path.is_dir())  # without a slash it is a name
    if not is_folder and path.suffix.lower() != ".npz":
        return None
    from pacbayes_fl.data import own_images, user_images

    if not is_folder and not user_images.holds_images(path):
        return None
    load = partial(_of_own, path)
    return Source(
        name, "images of your own", load, own_images.ReadOptions, False, published=True, classes=True, own=True
    )


def _of_own(path: Path, given: JsonMapping) -> tables.Dataset:
    from pacbayes_fl.data import own_images

    return own_images.federation(path, given, OPEN_PARTITIONS)


def _shared_out(name: str, given: JsonMapping) -> tables.Dataset:
    """Share out images, also by a partition of the user's own."""
    from pacbayes_fl.data import image_federation

    return image_federation.federation(name, given, OPEN_PARTITIONS)


def _generate(name: str, given: JsonMapping) -> tables.Dataset:
    """Make a data set of `data_gen`."""
    plain = {key: None if value == settings.NONE else value for key, value in given.items()}
    try:
        made = data_gen.generate(name, **plain)
    except (data_gen.DataGenError, TypeError) as error:
        raise StudyError(f"[data] {name}: {error}") from error
    from pacbayes_fl.data import tables

    return tables.from_arrays(made.arrays, made.manifest)


def listing() -> list[tuple[str, str]]:
    """List the sources.

    Returns:
        Names, each with a line on what it is.
    """
    known = [
        (name, one.title) for table in (generators.GENERATORS, image_sets.IMAGE_SETS) for name, one in table.items()
    ]
    changed = [(f"NAME-{name}", f"the same images {change.title}, a second domain") for name, change in CHANGES.items()]
    return [*known, *SOURCES.listing(), *changed, *FILES]
