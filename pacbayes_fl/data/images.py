"""Images with labels, and how their pixels are changed and scaled."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from pacbayes_fl import settings
from pacbayes_fl.errors import DataError

if TYPE_CHECKING:  # imported where it is used: who lists data sets needs no tensors
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class Images:
    """A data set of R images: training and test part together.

    Args:
        x: pixels [R, channels, H, W], uint8.
        y: labels [R] in 0..classes-1, int64.
        official_test: bool [R], True on rows of the official test part.
        owner: number of each row's writer [R], int64; None where nobody owns rows.
        owner_names: names of the writers by number.
        classes: number of classes.
        name: such as "mnist" or "mnist-inverted".
        sha256: fingerprint of the arrays.
    """

    x: Tensor
    y: Tensor
    official_test: Tensor
    owner: Tensor | None
    owner_names: tuple[str, ...]
    classes: int
    name: str
    sha256: str

    def select(self, rows: Tensor) -> Images:
        """Take rows.

        Args:
            rows: positions [r], int64.

        Returns:
            These r rows, under the fingerprint of all.
        """
        owner = None if self.owner is None else self.owner[rows]
        return replace(self, x=self.x[rows], y=self.y[rows], official_test=self.official_test[rows], owner=owner)


def make(
    name: str,
    x: Tensor,
    y: Tensor,
    official_test: Tensor,
    classes: int,
    owner: Tensor | None = None,
    names: Sequence[str] = (),
) -> Images:
    """Make a data set: check that the arrays fit each other, and take their fingerprint.

    Args:
        name: such as "mnist".
        x: pixels [R, channels, H, W], uint8.
        y: labels [R], int64.
        official_test: bool [R], True on rows of the official test part.
        classes: number C of classes, labels being 0..C-1.
        owner: number of each row's writer [R], int64; None where nobody owns rows.
        names: of the writers by number.

    Returns:
        The data set.

    Raises:
        DataError: when they do not fit.
    """
    import torch

    sizes = {len(x), len(y), len(official_test), *([] if owner is None else [len(owner)])}
    if x.dim() != 4 or x.dtype != torch.uint8 or len(sizes) > 1 or not len(x):
        raise DataError(
            f"{name}: expected uint8 images [R, channels, H, W] with R labels, got {list(x.shape)} {x.dtype}"
        )
    if int(y.min()) < 0 or int(y.max()) >= classes:
        raise DataError(f"{name}: labels must be in 0..{classes - 1}, got {int(y.min())}..{int(y.max())}")
    digest = hashlib.sha256()
    for array in (x, y, official_test, *([] if owner is None else [owner])):
        digest.update(f"{array.dtype} {list(array.shape)}\n".encode())
        digest.update(array.contiguous().numpy().data)
    return Images(x, y, official_test, owner, tuple(names), classes, name, digest.hexdigest())


class Change(NamedTuple):
    """A change of all pixels of a data set, which makes a second domain of it.

    Args:
        title: what the images are then, in a few words.
        pixels: gives the changed pixels [R, channels, H, W], uint8.
    """

    title: str
    pixels: Callable[[Tensor], Tensor]


CHANGES: Mapping[str, Change] = MappingProxyType(
    {
        "inverted": Change("in negative", lambda x: 255 - x),
        "rotated": Change("turned by 180 degrees", lambda x: x.flip(-2, -1)),
    }
)
"""All changes by name. A new one is one more record here."""


def turned(x: Tensor, kind: str | None) -> Tensor:
    """Change pixels.

    Args:
        x: [R, channels, H, W], uint8.
        kind: a name of `CHANGES`; None leaves them as they are.

    Returns:
        The changed pixels [R, channels, H, W], uint8.

    Raises:
        DataError: when there is no such change.
    """
    if kind is None:
        return x
    if kind not in CHANGES:
        raise DataError(f"there is no change {kind!r} of images", hint=settings.nearest(kind, CHANGES))
    return CHANGES[kind].pixels(x)


def to_floats(x: Tensor) -> Tensor:
    """Scale pixels to [-1, 1]: (x / 255 - 0.5) / 0.5.

    Args:
        x: pixels [R, channels, H, W], uint8.

    Returns:
        The scaled pixels [R, channels, H, W], float32.

    Example:
        >>> import torch
        >>> from pacbayes_fl.data.images import to_floats
        >>> to_floats(torch.tensor([[[[0, 255]]]], dtype=torch.uint8)).tolist()
        [[[[-1.0, 1.0]]]]
    """
    return (x.float() / 255 - 0.5) / 0.5
