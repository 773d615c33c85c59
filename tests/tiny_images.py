"""A folder with a few images that look like MNIST's files, and a study on them that runs in a fraction of a second."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pacbayes_fl.federation import checkpoint
from pacbayes_fl.study.file import Study

Array = np.ndarray[Any, Any]
TRAIN, TEST, SIDE = 300, 120, 6
ROUNDS = 6
ZETAS = {"pfedbayes": 10.0, "sfedbayes": 10.0, "cfedbayes": 10.0, "bpfed": 1.0}


def write_idx(folder: Path, part: str, x: Array, y: Array) -> None:
    """Write images [R, H, W] and labels [R] as the official files of MNIST."""
    folder.mkdir(parents=True, exist_ok=True)
    head = struct.pack(">4i", 0x803, *x.shape)
    (folder / f"{part}-images-idx3-ubyte").write_bytes(head + x.astype(np.uint8).tobytes())
    (folder / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 0x801, len(y)) + y.astype(np.uint8).tobytes())


def write_root(folder: Path, seed: int = 0) -> Path:
    """Write a small MNIST whose classes are ten patterns with noise, and return its root."""
    random = np.random.default_rng(seed)
    patterns = np.random.default_rng(7).integers(0, 200, (10, SIDE, SIDE))
    y = random.permutation(np.arange(TRAIN + TEST) % 10)
    x = patterns[y] + random.integers(0, 56, (TRAIN + TEST, SIDE, SIDE))
    write_idx(folder / "MNIST" / "raw", "train", x[:TRAIN], y[:TRAIN])
    write_idx(folder / "MNIST" / "raw", "t10k", x[TRAIN:], y[TRAIN:])
    return folder


def table(root: Path) -> dict[str, Any]:
    """Return the study's table."""
    rows = {"clients": 4, "new_clients": 2, "train": 4, "test": 5, "validation": 2}
    return {
        "name": "tiny-images",
        "seed": 3,
        "data": {"source": "mnist", "follow_seed": True, "options": {"root": str(root), **rows}},
        "model": {"widths": [6]},
        "method": {"name": "pfedbayes", "steps": 3, "minibatch": 8, "draws": 4, "join_passes": 2, "rate": 0.02},
        # as with more rows: what few leave open takes trials
        "methods": {name: {"method": {"zeta": zeta}, "model": {"temperature": 1.0}} for name, zeta in ZETAS.items()},
        "federation": {
            "rounds": ROUNDS,
            "checkpoint_every": 2,
            "device": "cpu",
            "threads": 1,
            "noise": "generators",
        },
        "report": {"evaluate_every": 2, "uncertainty_rounds": [1]},
    }


def tiny_images(root: Path, *sets: str) -> Study:
    """Return the study with some values changed."""
    return Study.from_table(table(root), "tiny-images.toml", sets)


def assert_same_run(one: Path, other: Path) -> None:
    """Check that two finished runs left the same state to the last bit, and the same numbers."""
    mine, theirs = checkpoint.load(one), checkpoint.load(other)
    assert mine is not None and theirs is not None and mine.round == theirs.round
    assert mine.tensors.keys() == theirs.tensors.keys()
    assert all(torch.equal(tensor, theirs.tensors[name]) for name, tensor in mine.tensors.items())
    for name in ("metrics.json", "clients.csv", "predictions.safetensors", "labels.json"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
