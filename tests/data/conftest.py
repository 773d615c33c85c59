"""Folders of data for the tests of this room."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.data.small_images import TRAIN, small, write_idx


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with small copies of MNIST, Fashion-MNIST and FEMNIST."""
    folder = tmp_path_factory.mktemp("data")
    for base, name in enumerate(("MNIST", "FashionMNIST")):
        x, y = small(base)
        write_idx(folder / name / "raw", "train", x[:TRAIN], y[:TRAIN])
        write_idx(folder / name / "raw", "t10k", x[TRAIN:], y[TRAIN:])
    x, _ = small(2)
    rows = np.arange(len(x))
    np.savez(
        folder / "femnist.npz",
        x=x.astype(np.uint8),
        y=rows % 62,
        writer=rows % 6,
        is_test=rows % 7 == 0,
        dup=rows == 5,
        writer_name=np.array([f"f{i:04d}" for i in range(8)]),  # two more, of whom only test rows are known
    )
    return folder
