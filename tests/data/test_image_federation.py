"""Federations made of images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pacbayes_fl.data import image_federation, image_sets, images, partition, tables
from pacbayes_fl.data.partition import Parts
from pacbayes_fl.errors import DataError, StudyError
from tests.data.small_images import TEST, TRAIN, write_emnist, write_idx


def make(root: Path, source: str = "mnist", **options: Any) -> tables.Dataset:
    defaults = {"train": 4, "test": 3, "validation": 1} if options.get("partition", "labels") == "labels" else {}
    return image_federation.federation(source, {"root": str(root), **defaults, **options})


def test_a_federation_holds_the_pixels_of_its_positions(root: Path) -> None:
    dataset = make(root, clients=4, new_clients=2)
    read, told = image_sets.read("mnist", str(root)), tables.to_positions(dataset)
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
    assert dataset.provenance["sha256"] == {"mnist": image_sets.read("mnist", str(root)).sha256}
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


def test_a_share_of_the_rows_is_drawn_before_they_are_shared_out(root: Path, tmp_path: Path) -> None:
    """PAC-PFL's EMNIST on a small copy: a tenth of the rows, each class by Dirichlet shares with alpha = 0.4."""
    write_emnist(tmp_path)
    split = {"partition": "dirichlet", "alpha": 0.4, "clients": 4, "minimum": 5}
    one, again, other, more = (
        tables.to_positions(make(tmp_path, "emnist", subsample=share, seed=seed, **split))
        for share, seed in ((0.1, 0), (0.1, 0), (0.1, 1), (0.5, 0))
    )
    rows = set(one["position"].tolist())
    assert len(rows) == len(one["position"]) == (TRAIN + TEST) // 10 and rows < set(more["position"].tolist())
    assert np.array_equal(one["position"], again["position"]) and rows != set(other["position"].tolist())
    dataset, read = make(tmp_path, "emnist", subsample=0.1, **split), image_sets.read("emnist", str(tmp_path))
    train = dataset.groups["existing"].train
    own = one["position"][(one["owner"] == 1) & (one["part"] == 0)]
    assert dataset.classes == 62 and torch.equal(train.x[1][train.mask[1]], images.to_floats(read.x[own]))
    official = tables.to_positions(make(root, clients=2, train=1, test=1, subsample=0.5, pool="official"))
    assert bool(((official["position"] >= TRAIN) == (official["part"] == 1)).all())
    writers = make(root, "femnist", partition="natural", clients=3, subsample=0.5)
    assert set(writers.groups["existing"].train.names) <= {f"f{i:04d}" for i in range(6)}
    told, owner = tables.to_positions(writers), image_sets.read("femnist", str(root)).owner
    assert owner is not None
    for k, name in enumerate(told["client_name"]):
        assert {f"f{i:04d}" for i in owner[told["position"][told["owner"] == k]].tolist()} == {name}
    with pytest.raises(DataError, match=r"10 clients need a row each at least, and the limit is 6"):
        make(root, clients=10, subsample=0.01)


def test_writers_are_clients(root: Path) -> None:
    dataset = make(root, "femnist", partition="natural", clients=4, new_clients=2)
    read = image_sets.read("femnist", str(root))
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
    fashion, told = image_sets.read("fashion-mnist", str(root)), tables.to_positions(dataset)
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
        ("mnist", {"alpha": 0.0}, "alpha must be positive and finite, got 0"),
        ("mnist", {"test_share": 1.0}, "test_share must be strictly between 0 and 1, got 1"),
        (
            "mnist",
            {"limit": 20},
            r"limit is for the partition 'dirichlet', 'natural', and the partition is 'labels' "
            r"\('labels' has labels_per_client, groups, train, test, validation\)",
        ),
        ("femnist", {"partition": "natural", "limit": 0}, "limit must be at least 1, got 0"),
        ("mnist", {"digits_only": True}, "digits_only is for the partition 'natural', and the partition is 'labels'"),
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


@pytest.mark.parametrize(("train", "test"), [(50, 950), (200, 800), (900, 300)])
def test_the_journals_sizes_fit_mnist(data_root: Path, train: int, test: int) -> None:
    dataset = image_federation.federation("mnist", {"root": str(data_root), "train": train, "test": test})
    group = dataset.groups["existing"]
    assert group.train.size.tolist() == [5 * train] * 10 and group.test.size.tolist() == [5 * test] * 10
    held = [set(group.test.y[k].tolist()) for k in range(10)]
    assert held == [set(range(5)), set(range(5, 10))] * 5  # two groups of clients, not ten
    told = tables.to_positions(dataset)["position"]
    assert len(np.unique(told)) == len(told) == 50 * (train + test + 10)
