from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_gen import DataGenError, Dataset, load
from data_gen.dataset import client_names
from data_gen.polynomial import PolynomialConfig, generate


@pytest.fixture(scope="module")
def data() -> Dataset:
    return generate(PolynomialConfig(clients=3, new_clients=2, samples=4, test_samples=5))


def test_npz_holds_the_stated_arrays_without_pickles(data: Dataset, tmp_path: Path) -> None:
    with np.load(data.save(tmp_path), allow_pickle=False) as archive:
        kinds = {name: (archive[name].dtype.kind, archive[name].shape) for name in archive.files}
    assert kinds == {
        "x": ("f", (45, 1)),
        "y": ("f", (45,)),
        "client": ("i", (45,)),
        "test": ("b", (45,)),
        "client_name": ("U", (5,)),
        "client_new": ("b", (5,)),
        "feature_name": ("U", (1,)),
        "feature_unit": ("U", (1,)),
        "target_name": ("U", ()),
        "target_unit": ("U", ()),
        "latent": ("f", (45,)),
    }


def test_round_trip_keeps_arrays_and_manifest(data: Dataset, tmp_path: Path) -> None:
    path = data.save(tmp_path / "deep" / "folder")
    again = load(path)
    assert again.manifest == data.manifest == json.loads(path.with_suffix(".json").read_text())
    for name, array in data.arrays.items():
        np.testing.assert_array_equal(again.arrays[name], array)
    assert again.time is None


def test_equal_data_make_equal_files(data: Dataset, tmp_path: Path) -> None:
    first, second = data.save(tmp_path / "a"), data.save(tmp_path / "b")
    assert first.read_bytes() == second.read_bytes()
    assert sorted(file.name for file in first.parent.iterdir()) == [f"{first.stem}.json", first.name]


def test_manifest_states_sizes_features_and_hash(data: Dataset) -> None:
    sizes = data.manifest["sizes"]
    assert (sizes["rows"], sizes["clients"], sizes["new_clients"], sizes["train_rows"]) == (45, 3, 2, 20)
    assert sizes["train_rows_per_client"] == {"least": 4, "most": 4}
    assert data.manifest["features"] == [{"name": "x", "unit": "1"}]
    assert data.manifest["sha256"] == data.sha256


def test_rows_of_a_client(data: Dataset) -> None:
    np.testing.assert_array_equal(data.rows(1, test=False), [9, 10, 11, 12])
    np.testing.assert_array_equal(data.rows("new_poly_00", test=True), [31, 32, 33, 34, 35])
    for wrong in (5, -1, "poly_07"):
        with pytest.raises(DataGenError, match="no client"):
            data.rows(wrong, test=True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"x": np.zeros(45)}, "two dimensions"),
        ({"y": np.zeros(44)}, "y is float64"),
        ({"y": np.full(45, np.nan)}, "not finite"),
        ({"client": np.full(45, 5)}, "client numbers"),
        ({"test": np.zeros(45)}, "test is float64"),
        ({"time": np.zeros(45)}, "time is float64"),
        ({"feature_name": np.array(["a", "b"])}, "feature_name"),
        ({"client_name": np.array([["a"]])}, "client_name"),
    ],
)
def test_wrong_arrays_are_refused(data: Dataset, change: dict[str, Any], words: str) -> None:
    with pytest.raises(DataGenError, match=words):
        replace(data, **change)


def test_damaged_and_missing_files_are_named(data: Dataset, tmp_path: Path) -> None:
    with pytest.raises(DataGenError, match="cannot read"):
        load(tmp_path / "none.npz")
    path = data.save(tmp_path)
    replace(data, y=data.y + 1, manifest={"stem": "other"}).save(tmp_path)
    (tmp_path / "other.npz").replace(path)
    with pytest.raises(DataGenError, match="content hash"):
        load(path)
    np.savez(path, x=np.zeros((1, 1)))
    with pytest.raises(DataGenError, match="missing arrays"):
        load(path)
    path.write_bytes(b"PK no archive")
    with pytest.raises(DataGenError, match="cannot read"):
        load(path)


def test_saving_where_it_cannot_be(data: Dataset, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataGenError, match="cannot write"):
        data.save(tmp_path / "file")
    with pytest.raises(DataGenError, match="plain file name"):
        replace(data, manifest={"stem": "../up"}).save(tmp_path)


def test_names_of_clients() -> None:
    assert client_names("house", 2, 1).tolist() == ["house_00", "house_01", "new_house_00"]
