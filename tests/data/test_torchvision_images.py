"""Files of image sets that torchvision reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from pacbayes_fl.data import image_sets
from pacbayes_fl.errors import DataError
from tests.data.small_images import TEST, TRAIN, small, write_emnist, write_idx


@pytest.mark.parametrize(("name", "base"), [("mnist", 0), ("fashion-mnist", 1)])
def test_idx_files_are_read_in_the_official_order(root: Path, name: str, base: int) -> None:
    x, y = small(base)
    read = image_sets.read(name, str(root))
    assert (read.name, read.classes, read.owner, read.owner_names) == (name, 10, None, ())
    assert read.x.dtype == torch.uint8 and read.y.dtype == torch.int64
    np.testing.assert_array_equal(read.x.numpy(), x[:, None])
    np.testing.assert_array_equal(read.y.numpy(), y)
    assert read.official_test.tolist() == [False] * TRAIN + [True] * TEST


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_plain_files_are_read_as_torchvision_reads_them(root: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as without:
        without.setattr("pacbayes_fl.data.torchvision_ops.ensure_importable", lambda: "absent")
        plain = image_sets.read(name, str(root))
    monkeypatch.setattr("pacbayes_fl.data.torchvision_images._plain", lambda folder, kind: None)
    theirs = image_sets.read(name, str(root))
    for part in ("x", "y", "official_test"):
        assert torch.equal(getattr(plain, part), getattr(theirs, part)), part


def test_the_characters_of_emnist_stand_upright(tmp_path: Path) -> None:
    x, y = write_emnist(tmp_path)
    read = image_sets.read("emnist", str(tmp_path))
    assert (read.classes, read.official_test.tolist()) == (62, [False] * TRAIN + [True] * TEST)
    np.testing.assert_array_equal(read.x.numpy(), x[:, None])
    np.testing.assert_array_equal(read.y.numpy(), y)
    for path in (tmp_path / "EMNIST" / "raw").iterdir():
        path.rename(f"{path}.gz")
    with pytest.raises(DataError, match=r"emnist in .*not found.*\(unpack its files: gunzip .*EMNIST/raw/\*\.gz\)"):
        image_sets.read("emnist", str(tmp_path))


def test_damaged_files_are_named(tmp_path: Path) -> None:
    x, y = small(0)
    write_idx(tmp_path / "MNIST" / "raw", "train", x[:TRAIN], y[:TRAIN])
    with pytest.raises(DataError, match=r"mnist in .*MNIST/raw cannot be read: Dataset not found"):
        image_sets.read("mnist", str(tmp_path))
    write_idx(tmp_path / "MNIST" / "raw", "t10k", x[TRAIN:], y[TRAIN:])
    cut = tmp_path / "MNIST" / "raw" / "t10k-images-idx3-ubyte"
    cut.write_bytes(cut.read_bytes()[:1000])
    with pytest.raises(DataError, match=r"mnist in .* cannot be read"):
        image_sets.read("mnist", str(tmp_path))
    (tmp_path / "cifar-10-batches-py").mkdir()
    with pytest.raises(DataError, match=r"cifar10 in .* cannot be read: Dataset not found or corrupted"):
        image_sets.read("cifar10", str(tmp_path))
    (tmp_path / "femnist.npz").write_bytes(b"no archive")
    with pytest.raises(DataError, match=r"femnist\.npz is not an \.npz archive"):
        image_sets.read("femnist", str(tmp_path))
