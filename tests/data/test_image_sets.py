"""Published image sets by name, and where they are looked for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pacbayes_fl.data import image_sets, torchvision_ops
from pacbayes_fl.errors import DataError
from tests.data.small_images import TEST, TRAIN


def test_missing_files_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, place in (("mnist", "MNIST/raw"), ("fashion-mnist", "FashionMNIST/raw"), ("femnist", "femnist.npz")):
        with pytest.raises(DataError, match=f"{name} is not there.*{tmp_path / place}"):
            image_sets.read(name, str(tmp_path))
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar10" / "unpack.py").touch()
    with pytest.raises(DataError, match=r"cifar-10-batches-py.*python .*cifar10/unpack\.py OUT_DIR"):
        image_sets.read("cifar10", str(tmp_path))
    with pytest.raises(DataError, match=r"no image data set 'minst'.*did you mean 'mnist'"):
        image_sets.read("minst", str(tmp_path))
    monkeypatch.delenv("PACBAYES_FL_DATA", raising=False)
    with pytest.raises(DataError, match=r"PACBAYES_FL_DATA is not set.*export PACBAYES_FL_DATA="):
        image_sets.read("mnist")
    monkeypatch.setattr(torchvision_ops, "ensure_importable", lambda: "absent")
    with pytest.raises(DataError, match=r"needs torchvision.*pip install torchvision"):
        image_sets.read("mnist", str(tmp_path))


def test_the_environment_names_the_root(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACBAYES_FL_DATA", str(root))
    assert len(image_sets.read("mnist").y) == TRAIN + TEST and image_sets.find_root(None) == root
    assert image_sets.find_root("~/elsewhere") == Path.home() / "elsewhere"


def test_names_of_domains() -> None:
    assert image_sets.split_name("fashion-mnist") == ("fashion-mnist", None)
    assert image_sets.split_name("fashion-mnist-inverted") == ("fashion-mnist", "inverted")
    assert image_sets.split_name("cifar10-rotated") == ("cifar10", "rotated")
    for name in ("mnist-invertet", "inverted", "mnist-inverted-rotated"):
        with pytest.raises(DataError, match="no image data set"):
            image_sets.split_name(name)


def test_mnist_is_the_published_one(data_root: Path) -> None:
    read = image_sets.read("mnist", str(data_root))
    assert read.x.shape == (70000, 1, 28, 28) and int(read.official_test.sum()) == 10000
    assert torch.bincount(read.y).tolist() == [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958]
    assert torch.bincount(read.y[60000:]).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    train = read.x[:60000].double() / 255
    assert (round(float(train.mean()), 4), round(float(train.std()), 4)) == (0.1307, 0.3081)  # as everybody normalises
    assert read.y[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]


def test_fashion_mnist_is_the_published_one(data_root: Path) -> None:
    read = image_sets.read("fashion-mnist", str(data_root))
    assert read.x.shape == (70000, 1, 28, 28) and torch.bincount(read.y).tolist() == [7000] * 10
    assert torch.bincount(read.y[read.official_test]).tolist() == [1000] * 10
    train = read.x[:60000].double() / 255
    assert (round(float(train.mean()), 4), round(float(train.std()), 4)) == (0.2860, 0.3530)


def test_cifar10_is_the_published_one(data_root: Path) -> None:
    if not (data_root / "cifar-10-batches-py").is_dir():
        pytest.skip("CIFAR-10 is not unpacked there")
    read = image_sets.read("cifar10", str(data_root))
    assert read.x.shape == (60000, 3, 32, 32) and torch.bincount(read.y).tolist() == [6000] * 10
    assert torch.bincount(read.y[read.official_test]).tolist() == [1000] * 10
    means = [round(float((read.x[:50000, c].double() / 255).mean()), 4) for c in range(3)]
    assert means == [0.4914, 0.4822, 0.4465]  # as everybody normalises
    assert read.x[0, :, 0, 0].tolist() == [59, 62, 63] and int(read.y[0]) == 6  # the frog
