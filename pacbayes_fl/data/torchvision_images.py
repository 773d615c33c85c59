"""Image data sets whose files torchvision reads."""

from __future__ import annotations

import math
import struct
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pacbayes_fl.data import images
from pacbayes_fl.data.images import Images
from pacbayes_fl.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

ROOT = "PACBAYES_FL_DATA"
"""The environment variable that names the folder of data sets."""


def read(
    name: str,
    class_name: str,
    below: str,
    classes: int,
    folder: Path,
    download: bool,
    transposed: bool = False,
    split: str | None = None,
) -> Images:
    """Read a data set of torchvision: rows are the training part, then the test part, each in the official order.

    Args:
        name: what errors call it.
        class_name: of its class in `torchvision.datasets`.
        below: folder in the root where that class looks for its files.
        classes: number of classes.
        folder: the root.
        download: let torchvision download what is missing.
        transposed: whether the files hold every image with its rows and columns exchanged, which is undone.
        split: which of several variants of the data set, as that class names them.

    Returns:
        The images.

    Raises:
        DataError: naming what was looked for, or what is wrong with it.
    """
    import torch  # names of data sets are listed without it

    from pacbayes_fl.data import torchvision_ops

    if (both := _plain(folder / below, class_name)) is not None:
        return _made(name, both, classes, transposed)
    if torchvision_ops.ensure_importable() == "absent":
        raise DataError(f"reading {name} needs torchvision", hint="pip install torchvision")
    from torchvision import datasets

    if not download and not (folder / below).is_dir():
        raise DataError(f"{name} is not there: there is no folder {folder / below}", hint=_advice(name, folder, below))
    try:
        kind = partial(
            getattr(datasets, class_name), str(folder), download=download, **({} if split is None else {"split": split})
        )
        known = [kind(train=train) for train in (True, False)]
    except Exception as error:  # whatever it meets in a damaged file
        first = str(error).strip().splitlines()[:1]
        what = first[0] if first else type(error).__name__
        raise DataError(
            f"{name} in {folder / below} cannot be read: {what}", hint=_advice(name, folder, below)
        ) from error
    both = [(torch.as_tensor(one.data), torch.as_tensor(one.targets)) for one in known]
    parts = [x for x, _ in both]
    if parts[0].dim() not in (3, 4) or parts[0].shape[1:] != parts[1].shape[1:]:
        got = " and ".join(str(list(part.shape)) for part in parts)
        raise DataError(f"{name} in {folder / below}: the parts hold images {got}", hint=_advice(name, folder, below))
    return _made(name, both, classes, transposed)


def _plain(folder: Path, class_name: str) -> list[tuple[Tensor, Tensor]] | None:
    """Read the four files of MNIST's own form without torchvision, whose import takes longer; None where it should."""
    if class_name not in ("MNIST", "FashionMNIST"):
        return None
    import torch

    both = []
    for part in ("train", "t10k"):
        arrays = []
        for kind, magic, dims in (("images-idx3", 0x803, 3), ("labels-idx1", 0x801, 1)):
            try:
                data = (folder / f"{part}-{kind}-ubyte").read_bytes()
                first, *shape = struct.unpack(f">{1 + dims}i", data[: 4 + 4 * dims])
            except (OSError, struct.error):
                return None
            if first != magic or min(shape) < 1 or len(data) != 4 + 4 * dims + math.prod(shape):
                return None
            arrays.append(torch.frombuffer(bytearray(data), dtype=torch.uint8, offset=4 + 4 * dims).reshape(shape))
        both.append((arrays[0], arrays[1]))
    fits = all(len(x) == len(y) for x, y in both) and both[0][0].shape[1:] == both[1][0].shape[1:]
    return both if fits else None


def _made(name: str, both: list[tuple[Tensor, Tensor]], classes: int, transposed: bool) -> Images:
    """Put images [R, H, W] or [R, H, W, C] and labels [R] of the training and the test part together."""
    import torch

    pixels = torch.cat([x for x, _ in both])
    x = pixels.unsqueeze(1) if pixels.dim() == 3 else pixels.permute(0, 3, 1, 2).contiguous()
    x = x.transpose(-2, -1).contiguous() if transposed else x
    y = torch.cat([labels for _, labels in both]).long()
    official_test = torch.arange(len(y)) >= len(both[0][1])
    return images.make(name, x, y, official_test, classes)


def _advice(name: str, folder: Path, below: str) -> str:
    script = folder / name / "unpack.py"
    if script.is_file():
        return f"unpack it: python {script} OUT_DIR, and make OUT_DIR the root"
    if any((folder / below).glob("*.gz")):
        return f"unpack its files: gunzip {folder / below}/*.gz"
    return f"set download, or make {ROOT} the folder that holds {below}"
