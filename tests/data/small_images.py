"""Small copies of image sets as their files hold them."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
TRAIN, TEST = 400, 200  # rows of the small copies


def write_idx(folder: Path, part: str, x: Array, y: Array) -> None:
    """Write images [R, 28, 28] and labels [R] as the official files of MNIST."""
    folder.mkdir(parents=True, exist_ok=True)
    head = struct.pack(">4i", 0x803, *x.shape)
    (folder / f"{part}-images-idx3-ubyte").write_bytes(head + x.astype(np.uint8).tobytes())
    (folder / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 0x801, len(y)) + y.astype(np.uint8).tobytes())


def small(base: int) -> tuple[Array, Array]:
    """Return images whose first two pixels are the row's number, and labels."""
    x = np.random.default_rng(base).integers(0, 256, (TRAIN + TEST, 28, 28))
    x[:, 0, 0], x[:, 0, 1] = np.arange(len(x)) // 256, np.arange(len(x)) % 256
    return x, np.random.default_rng(base + 10).permutation(np.arange(len(x)) % 10)


def write_leaf(folder: Path, writers: Mapping[str, tuple[Array, list[int]]]) -> None:
    data = {name: {"x": np.round(x.reshape(len(x), -1) / 255, 4).tolist(), "y": y} for name, (x, y) in writers.items()}
    folder.parent.mkdir(parents=True, exist_ok=True)
    sizes = [len(y) for _, y in writers.values()]
    folder.write_text(json.dumps({"users": list(writers), "num_samples": sizes, "user_data": data}))


def write_emnist(root: Path) -> tuple[Array, Array]:
    """Write a small EMNIST as its files are, every image transposed; return its upright images and labels."""
    x, _ = small(3)
    y = np.random.default_rng(5).permutation(np.arange(len(x)) % 62)
    for part, rows in (("train", slice(TRAIN)), ("test", slice(TRAIN, None))):
        write_idx(root / "EMNIST" / "raw", f"emnist-byclass-{part}", x[rows].transpose(0, 2, 1), y[rows])
    return x, y
