"""Published image data sets by name: one record each, which says how it is read."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pacbayes_fl import settings
from pacbayes_fl.data import femnist, torchvision_images
from pacbayes_fl.data.images import CHANGES, Images
from pacbayes_fl.data.torchvision_images import ROOT
from pacbayes_fl.errors import DataError
from pacbayes_fl.options import by_name


@dataclass(frozen=True)
class ImageSet:
    """A published data set of images with labels.

    Args:
        name: what studies call it.
        title: one line for people.
        read: gives the images from the folder of data sets, downloading what is missing if it is told so and can.
        owners: whether every row has an owner, such as the writer of a character.
        rows_independent: whether the rows that a client is given count as independent draws of its distribution, as
            bounds need them: images are drawn without replacement, which is no less concentrated (Hoeffding 1963).
    """

    name: str
    title: str
    read: Callable[[Path, bool], Images]
    owners: bool = False
    rows_independent: bool = True


def _of_torchvision(
    name: str,
    title: str,
    class_name: str,
    below: str,
    classes: int = 10,
    transposed: bool = False,
    split: str | None = None,
) -> ImageSet:
    read = partial(torchvision_images.read, name, class_name, below, classes, transposed=transposed, split=split)
    return ImageSet(name, title, read)


IMAGE_SETS: Mapping[str, ImageSet] = by_name(
    _of_torchvision(
        "mnist",
        "handwritten digits, 28 x 28, 10 classes; shared out by labels or Dirichlet shares",
        *("MNIST", "MNIST/raw"),
    ),
    _of_torchvision("fashion-mnist", "articles of clothing, 28 x 28, 10 classes", "FashionMNIST", "FashionMNIST/raw"),
    _of_torchvision("cifar10", "colour photographs, 32 x 32, 10 classes", "CIFAR10", "cifar-10-batches-py"),
    ImageSet(
        "femnist",
        "handwritten characters by writer (LEAF), 28 x 28, 62 classes or the 10 digits",
        femnist.read,
        owners=True,
    ),
    _of_torchvision(
        "emnist",
        "handwritten characters, 28 x 28, 62 classes (digits, capital and small letters: EMNIST by class)",
        *("EMNIST", "EMNIST/raw", 62),
        transposed=True,
        split="byclass",
    ),
)
"""All of them by name. A new one is one more record here."""


def find_root(root: str | None) -> Path:
    """Find the folder that holds the data sets.

    Args:
        root: the folder; None for the one that the environment variable PACBAYES_FL_DATA names.

    Returns:
        The folder, which need not exist.

    Raises:
        DataError: when neither names one.
    """
    chosen = root or os.environ.get(ROOT)
    if not chosen:
        raise DataError(
            f"no folder of data sets is given and the environment variable {ROOT} is not set",
            hint=f"give `root`, or export {ROOT}=/path/to/data",
        )
    return Path(chosen).expanduser()


def read(name: str, root: str | None = None, download: bool = False) -> Images:
    """Read a data set.

    Args:
        name: one of `IMAGE_SETS`.
        root: see `find_root`.
        download: download what is missing, where somebody offers it.

    Returns:
        The images.

    Raises:
        DataError: naming what was looked for, or what is wrong with it.
    """
    if name not in IMAGE_SETS:
        raise DataError(f"there is no image data set {name!r}", hint=settings.nearest(name, IMAGE_SETS))
    return IMAGE_SETS[name].read(find_root(root), download)


def domains() -> tuple[str, ...]:
    """Name all domains: the data sets, and each of them changed in every way of `images.CHANGES`."""
    return (*IMAGE_SETS, *(f"{name}-{kind}" for name in IMAGE_SETS for kind in CHANGES))


def split_name(name: str) -> tuple[str, str | None]:
    """Take the name of a domain apart.

    Args:
        name: a name of `IMAGE_SETS`, with or without "-inverted" or "-rotated".

    Returns:
        The data set's name and the kind of change, if any.

    Raises:
        DataError: when there is no such domain.
    """
    for kind in CHANGES:
        if name.removesuffix(f"-{kind}") in IMAGE_SETS and name not in IMAGE_SETS:
            return name.removesuffix(f"-{kind}"), kind
    if name not in IMAGE_SETS:
        raise DataError(f"there is no image data set {name!r}", hint=settings.nearest(name, domains()))
    return name, None
