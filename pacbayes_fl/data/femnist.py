"""FEMNIST: handwritten characters by writer, as one archive or as LEAF writes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pacbayes_fl.data import images, memory
from pacbayes_fl.data.archives import Array, read_npz
from pacbayes_fl.data.images import Images
from pacbayes_fl.errors import DataError, shown

_SIDE = 28  # of LEAF's images
_PER_BYTE = 10  # bytes that numbers take for each byte of JSON


def read(folder: Path, download: bool = False) -> Images:
    """Read the handwritten characters of FEMNIST, each with its writer.

    `femnist.npz` holds arrays x, y, writer, is_test, dup, writer_name, of which rows are taken as they stand there
    (without those that are marked `dup`). LEAF writes `train/*.json` and `test/*.json`, which are looked for in
    `femnist/` and in the root itself; rows are ordered by part and writer.

    Args:
        folder: the root.
        download: not looked at: nobody offers the files.

    Returns:
        The images.

    Raises:
        DataError: naming what was looked for, or what is wrong with it.
    """
    if (folder / "femnist.npz").is_file():
        return _read_npz(folder / "femnist.npz")
    for place in (folder / "femnist", folder):
        if any(place.glob("train/*.json")) and any(place.glob("test/*.json")):
            return _read_leaf(place)
    raise DataError(
        f"femnist is not there: looked for {folder / 'femnist.npz'} and for train/*.json and test/*.json in "
        f"{folder / 'femnist'} and {folder}",
        hint="make it with LEAF's preprocess.sh (-s niid -t sample); torchvision cannot download it",
    )


def _read_npz(path: Path) -> Images:
    import torch

    arrays = read_npz(path)
    try:
        first = ~arrays["dup"]
        x, y, writer, test = (torch.from_numpy(arrays[name][first]) for name in ("x", "y", "writer", "is_test"))
        names = [str(name) for name in arrays["writer_name"]]
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    if any(t.dim() != 1 or t.is_floating_point() or t.is_complex() for t in (y, writer, test)) or x.dim() < 2:
        raise DataError(f"{path}: y, writer and is_test must be whole numbers [R], one for each image")
    if len(writer) and not 0 <= int(writer.min()) <= int(writer.max()) < len(names):
        raise DataError(f"{path}: writers must be in 0..{len(names) - 1}, as there are names")
    used = names[: int(writer.max()) + 1] if len(writer) else []
    return images.make("femnist", x.unsqueeze(1), y.long(), test.bool(), 62, writer.long(), used)


def _read_leaf(folder: Path) -> Images:
    import torch

    rows = {part: _leaf_part(folder / part) for part in ("train", "test")}
    names = sorted({writer for part in rows.values() for writer in part})
    x, y, owner, test = [], [], [], []
    for part in ("train", "test"):
        for i, writer in enumerate(names):
            for pixels, label in rows[part].get(writer, ()):
                x.append(pixels)
                y.append(label)
                owner.append(i)
                test.append(part == "test")
    if not x:
        raise DataError(f"{folder} holds no images")
    stacked = torch.from_numpy(np.stack(x).reshape(-1, 1, _SIDE, _SIDE))
    return images.make("femnist", stacked, torch.tensor(y), torch.tensor(test), 62, torch.tensor(owner), names)


def _leaf_part(folder: Path) -> dict[str, list[tuple[Array, int]]]:
    """Return the rows of every writer in the JSON files of one folder."""
    rows: dict[str, list[tuple[Array, int]]] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            memory.require(_PER_BYTE * path.stat().st_size, f"{path}, read,", "split it", DataError)
            for writer, data in json.loads(path.read_text("utf-8"))["user_data"].items():
                own = rows.setdefault(writer, [])
                own += [(_leaf_pixels(image), _leaf_label(y)) for image, y in zip(data["x"], data["y"], strict=True)]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DataError(f"{path} is not one of LEAF's files: {error}") from error
    return rows


def _leaf_label(y: object) -> int:
    if not isinstance(y, int | float) or not abs(y) < 2**31 or y != int(y):
        raise ValueError(f"a label must be a whole number, got {shown(y)}")
    return int(y)


def _leaf_pixels(image: Sequence[float]) -> Array:
    values = np.asarray(image, dtype=np.float64)
    if values.shape != (_SIDE**2,) or not ((values >= 0) & (values <= 1)).all():
        raise ValueError(f"an image must be {_SIDE**2} values in 0..1")
    return np.rint(values * 255).astype(np.uint8)
