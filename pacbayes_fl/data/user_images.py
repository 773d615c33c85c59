"""Images that a user brings: a folder with image files, or an .npz with arrays."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pacbayes_fl import settings
from pacbayes_fl.data import cells, image_files, image_folders, images, user_tables
from pacbayes_fl.data.archives import Array, read_npz
from pacbayes_fl.data.image_files import Look
from pacbayes_fl.errors import DataError, caller_stacklevel

_TO_PREDICT = ("", "-1", "nan")
_ARRAYS = "it needs x [R, channels, H, W], y [R] and client [R], and may have split [R] of 'train' and 'test'"
_CHANNELS = (1, 3)


class Brought(NamedTuple):
    """Images as they were brought, R rows.

    Args:
        x: pixels [R, channels, H, W], uint8.
        label: name of each row's class; empty where it is to be predicted.
        client: name of each row's owner; empty where the images belong to nobody.
        test: bool [R], True on rows to be scored on; None where nothing is split.
        where: what errors call each row, such as its file.
    """

    x: Tensor
    label: Sequence[str]
    client: Sequence[str]
    test: Array | None
    where: Sequence[str]


def holds_images(path: Path) -> bool:
    """Whether an .npz is one of images rather than of `data_gen`.

    Args:
        path: the file, which need not exist.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            return "x" in archive.files and "client_name" not in archive.files
    except Exception:  # none there, or a damaged one, which whoever reads it refuses
        return False


def to_learn(path: Path, look: Look, excluded: Sequence[str] = ()) -> Brought:
    """Read images to learn from.

    Args:
        path: a folder as `image_folders.labelled` takes it; or an .npz with arrays `x` [R, channels, H, W],
            [R, H, W, channels] or [R, H, W], of bytes, whole numbers in 0..255 or floats in 0..1 or 0..255; `y` [R] of
            whole numbers or names; and optionally `client` [R] and `split` [R] of "train" and "test".
        look: what image files are brought to; nothing may be asked of an .npz.
        excluded: names of clients whose images are left out; their files are not opened.

    Returns:
        The images, all with a class.

    Raises:
        DataError: naming the file or the row that cannot be used, or an excluded client that is not there.
    """
    if path.suffix.lower() == ".npz":
        if look != Look():
            raise DataError(f"{path}: size and colour are for image files", hint="arrays are taken as they are")
        brought = _without(_of_arrays(path, None), path, excluded)
        if blank := [row for row, label in enumerate(brought.label) if not label]:
            raise DataError(f"{path}: row {blank[0]} has no label", hint="y must hold the class of every row")
        return brought
    places = image_folders.labelled(path)
    places = [places[row] for row in _kept(path, [place.client for place in places], excluded)]
    tests = np.array([bool(place.test) for place in places]) if places[0].test is not None else None
    files = [place.path for place in places]
    labels, owners = [place.label for place in places], [place.client for place in places]
    return Brought(image_files.read(files, look), labels, owners, tests, [str(file) for file in files])


def _kept(path: Path, owners: Sequence[str], excluded: Sequence[str]) -> list[int]:
    """Find the rows of clients that are not excluded."""
    if excluded and not owners[0]:
        what = f"data.exclude_clients names clients, and the images of {path} have none"
        raise DataError(what, hint="leave it out: a partition says which clients get them")
    known = [*dict.fromkeys(owners)]
    for name in excluded:
        if name not in known:
            raise DataError(f"data.exclude_clients: {path} has no client {name!r}", hint=settings.nearest(name, known))
    if not (kept := [row for row, owner in enumerate(owners) if owner not in excluded]):
        raise DataError(f"data.exclude_clients: {path} has no other client", hint="name fewer")
    return kept


def _without(brought: Brought, path: Path, excluded: Sequence[str]) -> Brought:
    """Leave the images of excluded clients out."""
    kept = _kept(path, brought.client, excluded)
    names = (brought.label, brought.client, brought.where)
    label, client, where = ([one[row] for row in kept] for one in names)
    return Brought(brought.x[kept], label, client, None if brought.test is None else brought.test[kept], where)


def to_predict(path: Path, shape: tuple[int, ...], client: str | None = None, look: Look | None = None) -> Brought:
    """Read images to predict or to personalise with.

    Args:
        path: a folder as `image_folders.to_predict` takes it, or an .npz as of `to_learn`, in which -1, NaN or an empty
            name in `y` are rows to predict.
        shape: of one image, as the run was trained on.
        client: owner of all images; None where the folder or the array `client` says it.
        look: what files are brought to, as those that the run learned from were; None takes them as they are.

    Returns:
        The images; rows of an .npz without `client` belong to `client`.

    Raises:
        DataError: naming the file or the row that cannot be used, or a file of another shape.
    """
    if path.is_dir():
        places = image_folders.to_predict(path, client)
        pixels = image_files.read([place.path for place in places], look or Look(), shape)
        where = [str(one.path) for one in places]
        split = any(one.test is not None for one in places)
        tests = np.array([bool(one.test) for one in places]) if split else None
        brought = Brought(pixels, [one.label for one in places], [one.client for one in places], tests, where)
    else:
        brought = _of_arrays(path, client)
        if not brought.client[0]:
            raise DataError(f"{path} has no array 'client'", hint=_ARRAYS)
    if tuple(brought.x.shape[1:]) != shape:
        raise image_files.misfit(str(path), shape, brought.x.shape[1:])
    return brought


def by_client(brought: Brought, labels: Tensor) -> user_tables.Table:
    """Deal images out to their owners.

    Args:
        brought: R images.
        labels: their classes [R], NaN on rows to predict.

    Returns:
        The rows by client, in the order of first appearance, pixels scaled as in training.
    """
    inputs, names = images.to_floats(brought.x), np.array(brought.client)
    owned = {name: torch.from_numpy(np.flatnonzero(names == name)) for name in dict.fromkeys(brought.client)}
    cells.check_names([*owned])
    clients = {name: (inputs[rows], labels[rows]) for name, rows in owned.items()}
    tests = None if brought.test is None else torch.from_numpy(brought.test)
    split = None if tests is None else {name: tests[rows] for name, rows in owned.items()}
    return user_tables.Table(clients, ("image",), split, ())


def numbered(brought: Brought, classes: Sequence[str]) -> Tensor:
    """Number the classes of images.

    Args:
        brought: R images.
        classes: their names by number; when empty, names are the numbers themselves.

    Returns:
        Numbers [R], float64, NaN on rows to predict.

    Raises:
        DataError: naming a row whose class is not one of them.
    """
    place = {name: float(number) for number, name in enumerate(classes)}
    result = torch.full((len(brought.label),), torch.nan, dtype=torch.float64)
    for row, label in enumerate(brought.label):
        if label and not classes:
            result[row] = _number(label, brought.where[row])
        elif label:
            if label not in place:
                what = f"{brought.where[row]}: there is no class {label!r}"
                raise DataError(what, client=brought.client[row] or None, hint=settings.nearest(label, classes))
            result[row] = place[label]
    return result


def _number(label: str, where: str) -> float:
    try:
        return float(int(label))
    except ValueError:
        raise DataError(f"{where}: classes of the run are whole numbers, got {label!r}") from None


def _of_arrays(path: Path, client: str | None) -> Brought:
    arrays = read_npz(path)
    if "x" not in arrays:
        raise DataError(f"{path} has no array 'x'", hint=_ARRAYS)
    x = arrays["x"]
    rows = len(x) if x.ndim else 0
    if not rows:
        raise DataError(f"{path} has no images: x is {list(x.shape)}", hint=_ARRAYS)
    for name in ("y", "client", "split"):
        if name in arrays and arrays[name].shape != (rows,):
            raise DataError(f"{path}: {name} must be [{rows}], as x has rows, got {list(arrays[name].shape)}")
    where = [f"{path}, row {row}" for row in range(rows)]
    split = _split(path, arrays)
    label = _labels(path, arrays["y"]) if "y" in arrays else [""] * rows
    owner = [str(name) for name in arrays["client"].tolist()] if "client" in arrays else [client or ""] * rows
    if "client" in arrays and (blank := [row for row, name in enumerate(owner) if not name.strip()]):
        raise DataError(f"{where[blank[0]]} has no client")
    return Brought(_pixels(path, x), label, owner, split, where)


def _split(path: Path, arrays: Mapping[str, Array]) -> Array | None:
    if "split" not in arrays:
        return None
    words = arrays["split"]
    if odd := [(row, word) for row, word in enumerate(words.tolist()) if word not in ("train", "test")]:
        raise DataError(f"{path}, row {odd[0][0]}: split must be 'train' or 'test', got {odd[0][1]!r}")
    test: Array = words == "test"
    return test


def _labels(path: Path, y: Array) -> list[str]:
    """Names of classes: words as they are, whole numbers as text."""
    if y.dtype.kind == "f":
        odd = np.flatnonzero(~(np.isnan(y) | (y == np.rint(y))))
        if len(odd):
            raise DataError(f"{path}, row {odd[0]}: a label must be a whole number or a name, got {y[odd[0]]:g}")
        words = ["" if np.isnan(value) else str(int(value)) for value in y]
    elif y.dtype.kind in "uibU":
        words = [str(value) for value in y.tolist()]
    else:
        raise DataError(f"{path}: y must hold whole numbers or names, got {y.dtype}")
    return ["" if word in _TO_PREDICT else word for word in words]


def _pixels(path: Path, x: Array) -> Tensor:
    """Pixels [R, channels, H, W] as bytes."""
    if x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4 and x.shape[1] not in _CHANNELS and x.shape[3] in _CHANNELS:
        x = np.moveaxis(x, 3, 1)
    if x.ndim != 4 or not x.size:
        raise DataError(f"{path}: x must be [R, channels, H, W] or [R, H, W], got {list(x.shape)}", hint=_ARRAYS)
    if x.dtype.kind not in "uif":
        raise DataError(f"{path}: x must hold numbers, got {x.dtype}")
    floats, low, high = x.dtype.kind == "f", x.min(), x.max()
    if floats and not np.isfinite(x).all():
        row = int(np.flatnonzero(~np.isfinite(x).all(axis=(1, 2, 3)))[0])
        raise DataError(f"{path}, row {row}: a pixel is no finite number")
    if low < 0 or high > 255:
        what = f"{path}: pixels must be in 0..255, or of floats in 0..1, got {low:g}..{high:g}"
        raise DataError(what, hint="undo what was subtracted or divided; the run scales all images alike")
    if not floats and high <= 1:
        what = f"{path}: all pixels are 0 or 1 of 255, which is black"
        warnings.warn(f"{what}: floats of them would be taken for 0..1", stacklevel=caller_stacklevel())
    return torch.from_numpy(
        np.ascontiguousarray(np.rint(x * (255.0 if high <= 1 else 1.0)) if floats else x).astype(np.uint8)
    )
