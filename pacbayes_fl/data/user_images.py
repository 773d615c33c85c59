"""Images that a user brings to a finished run, as .npz."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from pacbayes_fl.data import images, user_tables
from pacbayes_fl.data.archives import read_npz
from pacbayes_fl.errors import DataError

_TO_PREDICT = -1


def read(path: Path, shape: tuple[int, ...], default_client: str | None = None) -> user_tables.Table:
    """Read images by client: arrays `x` [R, channels, H, W], `y` [R] and `client` [R].

    Args:
        path: the .npz file.
        shape: of one image, as the run was trained on.
        default_client: owner of all rows of a file without `client`.

    Returns:
        The rows by client; pixels, uint8, are scaled as in training, floats taken as they are. Labels are NaN where
        they are -1, or where there is no `y`.

    Raises:
        DataError: when the file cannot be read, or an array is missing or does not fit the others.
    """
    arrays = read_npz(path)
    for name in ("x", *(() if default_client is not None else ("client",))):
        if name not in arrays:
            raise DataError(f"{path} has no array {name!r}", hint="it needs x [R, channels, H, W], y and client [R]")
    x = arrays["x"]
    y = arrays.get("y", np.full(len(x), _TO_PREDICT))
    owner = arrays.get("client", np.full(len(x), default_client))
    if x.shape != (len(x), *shape) or y.shape != (len(x),) or owner.shape != (len(x),) or not len(x):
        wanted = ", ".join(map(str, shape))
        got = f"{list(x.shape)}, {list(y.shape)} and {list(owner.shape)}"
        raise DataError(f"{path}: x, y and client must be [R, {wanted}], [R] and [R], got {got}")
    if x.dtype.kind not in "uif" or y.dtype.kind not in "uif":
        raise DataError(f"{path}: x and y must hold numbers, got {x.dtype} and {y.dtype}")
    pixels = torch.from_numpy(x)
    inputs = images.to_floats(pixels) if pixels.dtype == torch.uint8 else pixels.float()
    labels = torch.from_numpy(np.where(y == _TO_PREDICT, np.nan, y.astype(np.float64)))
    names = owner.astype(str)
    owned = {str(name): torch.from_numpy(np.flatnonzero(names == name)) for name in dict.fromkeys(names.tolist())}
    clients = {name: (inputs[rows], labels[rows]) for name, rows in owned.items()}
    return user_tables.Table(clients, ("image",), None, ())
