"""Image data sets as they are read, and federations made of them."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pacbayes_fl.data import images, partition, tables, torchvision_ops
from pacbayes_fl.data.partition import Parts
from pacbayes_fl.errors import DataError, StudyError

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


@pytest.fixture(scope="module")
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


def make(root: Path, source: str = "mnist", **options: Any) -> tables.Dataset:
    defaults = {"train": 4, "test": 3, "validation": 1} if options.get("partition", "labels") == "labels" else {}
    return images.federation(source, {"root": str(root), **defaults, **options})


@pytest.mark.parametrize(("name", "base"), [("mnist", 0), ("fashion-mnist", 1)])
def test_idx_files_are_read_in_the_official_order(root: Path, name: str, base: int) -> None:
    x, y = small(base)
    read = images.read(name, str(root))
    assert (read.name, read.classes, read.owner, read.owner_names) == (name, 10, None, ())
    assert read.x.dtype == torch.uint8 and read.y.dtype == torch.int64
    np.testing.assert_array_equal(read.x.numpy(), x[:, None])
    np.testing.assert_array_equal(read.y.numpy(), y)
    assert read.official_test.tolist() == [False] * TRAIN + [True] * TEST


def test_the_fingerprint_is_of_pixels_and_labels(root: Path, tmp_path: Path) -> None:
    again, other = images.read("mnist", str(root)), images.read("fashion-mnist", str(root))
    assert images.read("mnist", str(root)).sha256 == again.sha256 != other.sha256
    x, y = small(0)
    y[0], y[1] = y[1], (y[1] + 1) % 10
    write_idx(tmp_path / "MNIST" / "raw", "train", x[:TRAIN], y[:TRAIN])
    write_idx(tmp_path / "MNIST" / "raw", "t10k", x[TRAIN:], y[TRAIN:])
    assert images.read("mnist", str(tmp_path)).sha256 != again.sha256


def test_femnist_drops_copies_and_names_its_writers(root: Path) -> None:
    read = images.read("femnist", str(root))
    kept = np.arange(TRAIN + TEST) != 5
    np.testing.assert_array_equal(read.x.numpy(), small(2)[0][kept][:, None])
    assert read.owner is not None and read.owner.tolist() == (np.arange(TRAIN + TEST) % 6)[kept].tolist()
    assert read.official_test.tolist() == (np.arange(TRAIN + TEST) % 7 == 0)[kept].tolist()
    assert (read.classes, read.owner_names) == (62, tuple(f"f{i:04d}" for i in range(6)))


def write_leaf(folder: Path, writers: Mapping[str, tuple[Array, list[int]]]) -> None:
    data = {name: {"x": np.round(x.reshape(len(x), -1) / 255, 4).tolist(), "y": y} for name, (x, y) in writers.items()}
    folder.parent.mkdir(parents=True, exist_ok=True)
    sizes = [len(y) for _, y in writers.values()]
    folder.write_text(json.dumps({"users": list(writers), "num_samples": sizes, "user_data": data}))


@pytest.mark.parametrize("below", ["femnist", "."])
def test_leaf_files_are_read_by_writer(tmp_path: Path, below: str) -> None:
    x = np.random.default_rng(3).integers(0, 256, (7, 28, 28))
    x[0, 0, 0], x[0, 0, 1] = 0, 255
    write_leaf(tmp_path / below / "train" / "all_data_1.json", {"f2": (x[2:4], [61, 3])})
    write_leaf(tmp_path / below / "train" / "all_data_0.json", {"f1": (x[:2], [0, 5]), "f3": (x[4:5], [7])})
    write_leaf(tmp_path / below / "test" / "all_data_0.json", {"f2": (x[5:6], [10]), "f1": (x[6:], [9])})
    read = images.read("femnist", str(tmp_path))
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
        images.read("femnist", str(tmp_path))


def test_missing_files_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, place in (("mnist", "MNIST/raw"), ("fashion-mnist", "FashionMNIST/raw"), ("femnist", "femnist.npz")):
        with pytest.raises(DataError, match=f"{name} is not there.*{tmp_path / place}"):
            images.read(name, str(tmp_path))
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar10" / "unpack.py").touch()
    with pytest.raises(DataError, match=r"cifar-10-batches-py.*python .*cifar10/unpack\.py OUT_DIR"):
        images.read("cifar10", str(tmp_path))
    with pytest.raises(DataError, match=r"no image data set 'minst'.*did you mean 'mnist'"):
        images.read("minst", str(tmp_path))
    monkeypatch.delenv("PACBAYES_FL_DATA", raising=False)
    with pytest.raises(DataError, match=r"PACBAYES_FL_DATA is not set.*export PACBAYES_FL_DATA="):
        images.read("mnist")
    monkeypatch.setattr(torchvision_ops, "ensure_importable", lambda: "absent")
    with pytest.raises(DataError, match=r"needs torchvision.*pip install torchvision"):
        images.read("mnist", str(tmp_path))


def test_damaged_files_are_named(tmp_path: Path) -> None:
    x, y = small(0)
    write_idx(tmp_path / "MNIST" / "raw", "train", x[:TRAIN], y[:TRAIN])
    with pytest.raises(DataError, match=r"mnist in .*MNIST/raw cannot be read: Dataset not found"):
        images.read("mnist", str(tmp_path))
    write_idx(tmp_path / "MNIST" / "raw", "t10k", x[TRAIN:], y[TRAIN:])
    cut = tmp_path / "MNIST" / "raw" / "t10k-images-idx3-ubyte"
    cut.write_bytes(cut.read_bytes()[:1000])
    with pytest.raises(DataError, match=r"mnist in .* cannot be read"):
        images.read("mnist", str(tmp_path))
    (tmp_path / "cifar-10-batches-py").mkdir()
    with pytest.raises(DataError, match=r"cifar10 in .* cannot be read: Dataset not found or corrupted"):
        images.read("cifar10", str(tmp_path))
    (tmp_path / "femnist.npz").write_bytes(b"no archive")
    with pytest.raises(DataError, match=r"femnist\.npz is not an \.npz archive"):
        images.read("femnist", str(tmp_path))


def test_the_environment_names_the_root(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACBAYES_FL_DATA", str(root))
    assert len(images.read("mnist").y) == TRAIN + TEST and images.find_root(None) == root
    assert images.find_root("~/elsewhere") == Path.home() / "elsewhere"


def test_changes_of_images(root: Path) -> None:
    read = images.read("mnist", str(root))
    inverted, rotated = images.transform(read, "inverted"), images.transform(read, "rotated")
    assert (inverted.name, rotated.name) == ("mnist-inverted", "mnist-rotated")
    assert len({one.sha256 for one in (read, inverted, rotated)}) == 3
    np.testing.assert_array_equal(inverted.x.numpy(), 255 - read.x.numpy())
    np.testing.assert_array_equal(rotated.x.numpy(), np.rot90(read.x.numpy(), 2, axes=(2, 3)))
    for changed in (inverted, rotated):
        assert torch.equal(changed.y, read.y) and changed.x.dtype == torch.uint8
        back = images.transform(changed, changed.name.split("-")[1])
        assert torch.equal(back.x, read.x) and back.sha256 == read.sha256
    with pytest.raises(DataError, match=r"no change 'invert' of images.*did you mean 'inverted'"):
        images.transform(read, "invert")


def test_names_of_domains() -> None:
    assert images.split_name("fashion-mnist") == ("fashion-mnist", None)
    assert images.split_name("fashion-mnist-inverted") == ("fashion-mnist", "inverted")
    assert images.split_name("cifar10-rotated") == ("cifar10", "rotated")
    for name in ("mnist-invertet", "inverted", "mnist-inverted-rotated"):
        with pytest.raises(DataError, match="no image data set"):
            images.split_name(name)


def test_pixels_are_scaled_as_torchvision_does() -> None:
    assert torchvision_ops.ensure_importable() != "absent"
    from torchvision.transforms import v2

    x = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    theirs = v2.Normalize([0.5], [0.5])(v2.ToDtype(torch.float32, scale=True)(x))
    mine = images.to_floats(x)
    assert mine.dtype == torch.float32 and torch.allclose(mine, theirs, atol=1e-6)
    assert mine.min() == -1 and mine.max() == 1


def test_a_federation_holds_the_pixels_of_its_positions(root: Path) -> None:
    dataset = make(root, clients=4, new_clients=2)
    read, told = images.read("mnist", str(root)), tables.to_positions(dataset)
    assert (dataset.classes, dataset.feature_shape) == (10, (1, 28, 28))
    assert dataset.features == (("image", ""),) and dataset.target == ("class", "")
    assert dataset.groups["existing"].train.names == ("client_00", "client_01", "client_02", "client_03")
    assert dataset.groups["new"].test.names == ("client_04", "client_05")
    assert told["client_new"].tolist() == [False] * 4 + [True] * 2 and set(told["client_domain"]) == {"mnist"}
    number = 0
    for group in dataset.groups.values():
        assert group.validation is not None
        for k in range(group.train.clients):
            for part, (batch, each) in enumerate(((group.train, 4), (group.test, 3), (group.validation, 1))):
                positions = told["position"][(told["owner"] == number) & (told["part"] == part)]
                assert batch.x.dtype == torch.float32 and batch.y.dtype == torch.int64
                assert torch.equal(batch.x[k][batch.mask[k]], images.to_floats(read.x[positions]))
                assert torch.equal(batch.y[k][batch.mask[k]], read.y[positions])
                held = range(0, 5) if number % 2 == 0 else range(5, 10)  # two groups of labels
                assert torch.bincount(batch.y[k], minlength=10).tolist() == [each * (c in held) for c in range(10)]
            number += 1
    assert len(set(told["position"].tolist())) == len(told["position"]) == 6 * 5 * 8


def test_provenance_says_what_the_rows_depend_on(root: Path) -> None:
    dataset = make(root, clients=4, seed=3)
    assert dataset.provenance["source"] == "mnist"
    assert dataset.provenance["sha256"] == {"mnist": images.read("mnist", str(root)).sha256}
    told = dataset.provenance["options"]
    assert (told["pool"], told["domains"], told["seed"], told["train"]) == ("merged", ["mnist"], 3, 4)
    assert "root" not in told and "download" not in told
    assert make(root, clients=4, seed=3, **{k: told[k] for k in ("pool", "domains")}).provenance == dataset.provenance


def test_the_seed_decides(root: Path) -> None:
    first, again, other = (tables.to_positions(make(root, clients=3, seed=seed)) for seed in (1, 1, 2))
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["position"], other["position"])


def test_the_official_pool_takes_test_rows_from_the_test_part(root: Path) -> None:
    for options in ({}, {"partition": "dirichlet", "minimum": 5, "validation_share": 0.1}):
        dataset = make(root, clients=4, pool="official", **options)
        told = tables.to_positions(dataset)
        assert (told["position"][told["part"] == 1] >= TRAIN).all()
        assert (told["position"][told["part"] != 1] < TRAIN).all() and dataset.provenance["options"][
            "pool"
        ] == "official"
    merged = tables.to_positions(make(root, clients=4))
    assert 0 < (merged["position"][merged["part"] == 1] >= TRAIN).mean() < 1


def test_a_dirichlet_federation_uses_every_row(root: Path) -> None:
    dataset = make(root, partition="dirichlet", clients=5, new_clients=1, minimum=20, alpha=0.3)
    assert sorted(tables.to_positions(dataset)["position"].tolist()) == list(range(TRAIN + TEST))
    sizes = [group.train.size + group.test.size for group in dataset.groups.values()]
    assert torch.cat(sizes).min() >= 20 and dataset.groups["existing"].validation is None


def test_writers_are_clients(root: Path) -> None:
    dataset = make(root, "femnist", partition="natural", clients=4, new_clients=2)
    read = images.read("femnist", str(root))
    assert dataset.classes == 62 and dataset.provenance["options"]["pool"] == "official" and read.owner is not None
    assert {name for group in dataset.groups.values() for name in group.train.names} == set(read.owner_names)
    told = tables.to_positions(dataset)
    assert (read.official_test.numpy()[told["position"]] == (told["part"] == 1)).all()
    owners = np.array(read.owner_names)[read.owner.numpy()[told["position"]]]
    assert (owners == told["client_name"][told["owner"]]).all() and len(owners) == len(read.y)
    digits = make(root, "femnist", partition="natural", clients=6, digits_only=True, pool="merged", minimum=2)
    assert digits.classes == 10 and int(digits.groups["existing"].train.y.max()) < 10
    assert len(tables.to_positions(digits)["position"]) == int((read.y < 10).sum())


def test_two_domains_of_one_data_set_share_no_image(root: Path) -> None:
    dataset = make(root, clients=4, new_clients=2, domains=["mnist", "mnist-inverted"])
    told = tables.to_positions(dataset)
    inverted = [domain == "mnist-inverted" for domain in told["client_domain"]]
    assert inverted == [False, False, True, True, False, True]  # the new clients are split by themselves
    assert len(set(told["position"].tolist())) == len(told["position"])
    plain = make(root, clients=4, new_clients=2)  # the partition is the same, only pixels differ
    assert np.array_equal(tables.to_positions(plain)["position"], told["position"])
    mine, theirs = dataset.groups["existing"].train.x, plain.groups["existing"].train.x
    assert torch.equal(mine[:2], theirs[:2]) and torch.allclose(mine[2:], -theirs[2:], atol=1e-6)
    assert dataset.provenance["sha256"] == plain.provenance["sha256"]


def test_domains_of_two_data_sets_are_cut_each_by_itself(root: Path) -> None:
    dataset = make(root, clients=4, domains=["mnist", "fashion-mnist-rotated"])
    alone = make(root, clients=2)
    assert torch.equal(dataset.groups["existing"].train.x[:2], alone.groups["existing"].train.x)
    fashion, told = images.read("fashion-mnist", str(root)), tables.to_positions(dataset)
    at = told["position"][(told["owner"] == 3) & (told["part"] == 0)]
    assert told["client_domain"][3] == "fashion-mnist-rotated"
    assert torch.equal(dataset.groups["existing"].train.x[3], images.to_floats(fashion.x[at].flip(2, 3)))
    assert set(dataset.provenance["sha256"]) == {"mnist", "fashion-mnist"}
    assert set(dataset.groups["existing"].train.y[2].tolist()) == set(range(5))  # numbering goes on: client 2
    three = make(root, clients=7, domains=["mnist", "mnist-inverted", "mnist-rotated"], train=2)
    counts = np.unique(tables.to_positions(three)["client_domain"], return_counts=True)[1]
    assert sorted(counts.tolist()) == [2, 2, 3]


def parts_of(dataset: tables.Dataset, part: int) -> list[list[int]]:
    """Return the positions of a part's rows, client by client; 0: training, 1: test, 2: validation."""
    told = tables.to_positions(dataset)
    owners = range(len(told["client_name"]))
    return [told["position"][(told["owner"] == k) & (told["part"] == part)].tolist() for k in owners]


@pytest.mark.parametrize(
    ("source", "options"),
    [
        ("femnist", {"partition": "natural", "clients": 4, "new_clients": 2}),
        ("femnist", {"partition": "natural", "clients": 6, "pool": "merged", "seed": 3}),
        ("mnist", {"partition": "dirichlet", "clients": 5, "alpha": 1.0, "minimum": 40}),
    ],
)
def test_a_limit_takes_training_rows_away_and_nothing_else(root: Path, source: str, options: dict[str, Any]) -> None:
    options = {"validation_share": 0.2} | options
    every, few, fewer = (make(root, source, **options, **limit) for limit in ({}, {"limit": 20}, {"limit": 7}))
    assert [len(rows) for rows in parts_of(few, 0)] == [20] * len(parts_of(few, 0))
    for whole, some, least in zip(*(parts_of(one, 0) for one in (every, few, fewer)), strict=True):
        assert set(least) < set(some) < set(whole) and len(least) == 7 and some != sorted(some)
    for part in (1, 2):
        assert parts_of(few, part) == parts_of(every, part) and all(parts_of(few, part))
    assert tables.to_positions(few)["client_name"].tolist() == tables.to_positions(every)["client_name"].tolist()
    assert parts_of(make(root, source, **options, limit=20), 0) == parts_of(few, 0)
    assert parts_of(make(root, source, **options, limit=5000), 1) == parts_of(every, 1)
    assert few.provenance["options"]["limit"] == 20


def test_a_cut_that_uses_a_row_twice_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.arange(9)
    twice = (Parts(rows[:3], rows[:0], rows[3:5]), Parts(rows[5:7], rows[7:8], rows[2:3]))
    monkeypatch.setattr(partition, "by_labels", lambda *args: twice)
    with pytest.raises(DataError, match="client 'client_01': row 2 is used twice"):
        make(root, clients=2)


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("mnist", {"cliens": 3}, r"\[data\] mnist: unknown key 'cliens' \(did you mean 'clients'"),
        ("mnist", {"partition": "label"}, "partition must be one of 'labels', 'dirichlet', 'natural', got 'label'"),
        ("mnist", {"clients": 0}, "clients must be at least 1, got 0"),
        ("mnist", {"test": 0}, "test must be at least 1, got 0"),
        ("mnist", {"validation": -1}, "validation must be a whole number from 0 to .*, got -1"),
        ("mnist", {"alpha": 0.0}, "alpha must be positive, got 0"),
        ("mnist", {"test_share": 1.0}, r"test_share must be in \(0, 1\)"),
        ("mnist", {"limit": 20}, "limit must be at least 1 and is for dirichlet and natural .* got 20 for 'labels'"),
        ("femnist", {"partition": "natural", "limit": 0}, "limit must be at least 1 .* got 0 for 'natural'"),
        ("mnist", {"digits_only": True}, "digits_only is for the natural partition"),
        ("mnist", {"partition": "natural"}, "only femnist has writers for the natural partition, got mnist"),
        ("mnist", {"domains": ["fashion-mnist"]}, "source 'mnist' must be one of the domains fashion-mnist"),
    ],
)
def test_options_that_cannot_be_are_named(root: Path, source: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(StudyError, match=message):
        make(root, source, **options)


def test_data_that_cannot_be_are_named(root: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="class 0: 5 clients with 953 rows each need 4765 rows, there are 60"):
        make(root, test=948)
    with pytest.raises(DataError, match=r"no image data set 'mnist-invert'.*did you mean 'mnist-inverted'"):
        make(root, "mnist-invert")
    for name, side in (("MNIST", 28), ("FashionMNIST", 14)):
        for part in ("train", "t10k"):
            write_idx(tmp_path / name / "raw", part, np.zeros((20, side, side)), np.arange(20) % 10)
    with pytest.raises(DataError, match="domains must have images of one size"):
        make(tmp_path, domains=["mnist", "fashion-mnist"], clients=2, train=1, test=1, validation=0)


def test_mnist_is_the_published_one(data_root: Path) -> None:
    read = images.read("mnist", str(data_root))
    assert read.x.shape == (70000, 1, 28, 28) and int(read.official_test.sum()) == 10000
    assert torch.bincount(read.y).tolist() == [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958]
    assert torch.bincount(read.y[60000:]).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    train = read.x[:60000].double() / 255
    assert (round(float(train.mean()), 4), round(float(train.std()), 4)) == (0.1307, 0.3081)  # as everybody normalises
    assert read.y[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]


def test_fashion_mnist_is_the_published_one(data_root: Path) -> None:
    read = images.read("fashion-mnist", str(data_root))
    assert read.x.shape == (70000, 1, 28, 28) and torch.bincount(read.y).tolist() == [7000] * 10
    assert torch.bincount(read.y[read.official_test]).tolist() == [1000] * 10
    train = read.x[:60000].double() / 255
    assert (round(float(train.mean()), 4), round(float(train.std()), 4)) == (0.2860, 0.3530)


def test_femnist_is_leafs(data_root: Path) -> None:
    read = images.read("femnist", str(data_root))
    assert len(read.y) == 16393 - 105 and len(read.owner_names) == 105 and read.owner is not None
    assert int(read.official_test.sum()) == 1685 - 23 and read.owner_names[0] == "f1501_00"
    assert int((read.y < 10).sum()) == pytest.approx(11776, abs=105)
    assert float(read.x.double().mean()) > 200  # dark ink on white
    dataset = images.federation("femnist", {"root": str(data_root), "partition": "natural", "clients": 100})
    told = tables.to_positions(dataset)
    sizes = np.bincount(told["owner"])
    assert math.isclose(np.median(sizes), 168, abs_tol=5) and dataset.groups["existing"].train.clients == 100


def test_cifar10_is_the_published_one(data_root: Path) -> None:
    if not (data_root / "cifar-10-batches-py").is_dir():
        pytest.skip("CIFAR-10 is not unpacked there")
    read = images.read("cifar10", str(data_root))
    assert read.x.shape == (60000, 3, 32, 32) and torch.bincount(read.y).tolist() == [6000] * 10
    assert torch.bincount(read.y[read.official_test]).tolist() == [1000] * 10
    means = [round(float((read.x[:50000, c].double() / 255).mean()), 4) for c in range(3)]
    assert means == [0.4914, 0.4822, 0.4465]  # as everybody normalises
    assert read.x[0, :, 0, 0].tolist() == [59, 62, 63] and int(read.y[0]) == 6  # the frog


@pytest.mark.parametrize(("train", "test"), [(50, 950), (200, 800), (900, 300)])
def test_the_journals_sizes_fit_mnist(data_root: Path, train: int, test: int) -> None:
    dataset = images.federation("mnist", {"root": str(data_root), "train": train, "test": test})
    group = dataset.groups["existing"]
    assert group.train.size.tolist() == [5 * train] * 10 and group.test.size.tolist() == [5 * test] * 10
    held = [set(group.test.y[k].tolist()) for k in range(10)]
    assert held == [set(range(5)), set(range(5, 10))] * 5  # two groups of clients, not ten
    told = tables.to_positions(dataset)["position"]
    assert len(np.unique(told)) == len(told) == 50 * (train + test + 10)
