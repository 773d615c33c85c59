"""FEMNIST as one archive and as LEAF writes it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from pacbayes_fl.data import image_federation, image_sets, tables
from pacbayes_fl.errors import DataError
from tests.data.small_images import TEST, TRAIN, small, write_leaf


def test_femnist_drops_copies_and_names_its_writers(root: Path) -> None:
    read = image_sets.read("femnist", str(root))
    kept = np.arange(TRAIN + TEST) != 5
    np.testing.assert_array_equal(read.x.numpy(), small(2)[0][kept][:, None])
    assert read.owner is not None and read.owner.tolist() == (np.arange(TRAIN + TEST) % 6)[kept].tolist()
    assert read.official_test.tolist() == (np.arange(TRAIN + TEST) % 7 == 0)[kept].tolist()
    assert (read.classes, read.owner_names) == (62, tuple(f"f{i:04d}" for i in range(6)))


@pytest.mark.parametrize("below", ["femnist", "."])
def test_leaf_files_are_read_by_writer(tmp_path: Path, below: str) -> None:
    x = np.random.default_rng(3).integers(0, 256, (7, 28, 28))
    x[0, 0, 0], x[0, 0, 1] = 0, 255
    write_leaf(tmp_path / below / "train" / "all_data_1.json", {"f2": (x[2:4], [61, 3])})
    write_leaf(tmp_path / below / "train" / "all_data_0.json", {"f1": (x[:2], [0, 5]), "f3": (x[4:5], [7])})
    write_leaf(tmp_path / below / "test" / "all_data_0.json", {"f2": (x[5:6], [10]), "f1": (x[6:], [9])})
    read = image_sets.read("femnist", str(tmp_path))
    np.testing.assert_array_equal(read.x.numpy(), x[[0, 1, 2, 3, 4, 6, 5]][:, None])
    assert read.y.tolist() == [0, 5, 61, 3, 7, 9, 10] and read.owner_names == ("f1", "f2", "f3")
    assert read.owner is not None and read.owner.tolist() == [0, 0, 1, 1, 2, 0, 1]
    assert read.official_test.tolist() == [False] * 5 + [True] * 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not one of LEAF's files"),
        ("[]", "is not one of LEAF's files"),
        ('{"users": []}', "user_data"),
        ('{"user_data": {"f1": {"x": [[0.5]], "y": [1]}}}', r"an image must be 784 values in 0\.\.1"),
        (json.dumps({"user_data": {"f1": {"x": [[255.0] * 784], "y": [1]}}}), r"an image must be 784 values in 0\.\.1"),
        (json.dumps({"user_data": {"f1": {"x": [[1.0] * 784], "y": [1, 2]}}}), "is not one of LEAF's files"),
        (
            json.dumps({"user_data": {"f1": {"x": [[1.0] * 784], "y": [62]}}}),
            r"labels must be in 0\.\.61, got 62\.\.62",
        ),
        ('{"user_data": {}}', "holds no images"),
    ],
)
def test_damaged_leaf_files_are_named(tmp_path: Path, text: str, message: str) -> None:
    for part in ("train", "test"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "all_data.json").write_text(text if part == "train" else '{"user_data": {}}')
    with pytest.raises(DataError, match=message):
        image_sets.read("femnist", str(tmp_path))


def test_femnist_is_leafs(data_root: Path) -> None:
    read = image_sets.read("femnist", str(data_root))
    assert len(read.y) == 16393 - 105 and len(read.owner_names) == 105 and read.owner is not None
    assert int(read.official_test.sum()) == 1685 - 23 and read.owner_names[0] == "f1501_00"
    assert int((read.y < 10).sum()) == pytest.approx(11776, abs=105)
    assert float(read.x.double().mean()) > 200  # dark ink on white
    dataset = image_federation.federation("femnist", {"root": str(data_root), "partition": "natural", "clients": 100})
    told = tables.to_positions(dataset)
    sizes = np.bincount(told["owner"])
    assert math.isclose(np.median(sizes), 168, abs_tol=5) and dataset.groups["existing"].train.clients == 100
