"""Data sets on disk: the long form, and users' own tables with their faults named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import data_gen
from pacbayes_fl.data import tables, user_tables
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.layout import Layout
from pacbayes_fl.data.split import assert_disjoint
from pacbayes_fl.errors import DataError
from tests.data.small_tables import CSV, LABELLED, without, write


def long_form() -> dict[str, np.ndarray[Any, Any]]:
    """Return three clients in long form, their rows mixed; "late" is new and has no training row."""
    return {
        "x": np.arange(18.0).reshape(9, 2),
        "y": np.arange(9.0) / 10,
        "client": np.array([0, 1, 0, 2, 0, 1, 1, 2, 0]),
        "test": np.array([0, 0, 1, 1, 0, 0, 1, 1, 1], dtype=bool),
        "client_name": np.array(["a", "b", "late"]),
        "client_new": np.array([False, False, True]),
        "feature_name": np.array(["sun", "wind"]),
        "feature_unit": np.array(["W/m2", "m/s"]),
        "target_name": np.array("power"),
        "target_unit": np.array("kW"),
    }


def rows_of(batch: ClientBatch, k: int) -> list[float]:
    return [float(y) for y in batch.y[k][batch.mask[k]]]


def test_the_long_form_becomes_groups_of_train_and_test_rows() -> None:
    dataset = tables.from_arrays(long_form(), {"made": "here"})
    assert list(dataset.groups) == ["existing", "new"] and dataset.provenance == {"made": "here"}
    assert dataset.features == (("sun", "W/m2"), ("wind", "m/s")) and dataset.target == ("power", "kW")
    existing, new = dataset.groups["existing"], dataset.groups["new"]
    assert existing.train.names == existing.test.names == ("a", "b") and new.train.names == ("late",)
    assert [rows_of(existing.train, k) for k in (0, 1)] == [[0.0, 0.4], [0.1, 0.5]]
    assert [rows_of(existing.test, k) for k in (0, 1)] == [[0.2, 0.8], [0.6]]
    assert rows_of(new.train, 0) == [] and rows_of(new.test, 0) == [0.3, 0.7]
    assert existing.test.x[0].tolist() == [[4.0, 5.0], [16.0, 17.0]]


def test_the_long_form_survives_there_and_back(tmp_path: Path) -> None:
    dataset = tables.from_arrays(long_form(), {})
    arrays = tables.to_arrays(dataset)
    np.savez(tmp_path / "data.npz", **arrays)  # type: ignore[arg-type]
    again = tables.read(tmp_path / "data.npz")
    assert (again.features, again.target, list(again.groups)) == (dataset.features, dataset.target, ["existing", "new"])
    assert again.provenance == {"source": "data.npz"}
    for label, group in dataset.groups.items():
        for part in ("train", "test"):
            mine, theirs = getattr(group, part), getattr(again.groups[label], part)
            assert (mine.ids, mine.names) == (theirs.ids, theirs.names)
            assert all(torch.equal(getattr(mine, name), getattr(theirs, name)) for name in ("x", "y", "mask"))
    stable = tables.to_arrays(again)
    assert set(stable) == set(long_form()) and all(np.array_equal(stable[name], arrays[name]) for name in arrays)


def test_labels_validation_rows_and_shapes_survive_there_and_back(tmp_path: Path) -> None:
    arrays = long_form() | {
        "x": np.arange(36, dtype=np.float32).reshape(9, 4),
        "y": np.array([0, 1, 2, 0, 1, 2, 0, 1, 2]),
        "validation": np.array([0, 0, 0, 0, 1, 0, 0, 0, 0], dtype=bool),  # "a" has one, "b" and "late" none
        "classes": np.array(4),
        "feature_shape": np.array([1, 2, 2]),
        "feature_name": np.array(["image"]),
        "feature_unit": np.array([""]),
    }
    dataset = tables.from_arrays(arrays, {})
    assert (dataset.classes, dataset.feature_shape, dataset.features) == (4, (1, 2, 2), (("image", ""),))
    existing = dataset.groups["existing"]
    assert dataset.groups["new"].validation is None and existing.validation is not None
    assert rows_of(existing.train, 0) == [0.0] and rows_of(existing.validation, 0) == [1.0]
    assert existing.validation.names == ("a", "b") and rows_of(existing.validation, 1) == []
    assert existing.train.y.dtype == torch.int64 and existing.train.x.dtype == torch.float32
    assert existing.validation.x[0].tolist() == [[[[16.0, 17.0], [18.0, 19.0]]]]
    np.savez(tmp_path / "data.npz", **tables.to_arrays(dataset))  # type: ignore[arg-type]
    again = tables.read(tmp_path / "data.npz", task="classification")
    assert (again.classes, again.feature_shape, again.features) == (4, (1, 2, 2), dataset.features)
    for label, group in dataset.groups.items():
        for part in ("train", "test", "validation"):
            mine, theirs = getattr(group, part), getattr(again.groups[label], part)
            assert (mine is None) == (theirs is None)
            if mine is not None:
                assert all(torch.equal(getattr(mine, name), getattr(theirs, name)) for name in ("x", "y", "mask"))
                assert mine.x.dtype == theirs.x.dtype and mine.names == theirs.names


def test_regression_may_have_validation_rows_too() -> None:
    arrays = long_form() | {"validation": np.arange(9) == 5}
    group = tables.from_arrays(arrays, {}).groups["existing"]
    assert group.validation is not None and rows_of(group.validation, 1) == [0.5] and rows_of(group.train, 1) == [0.1]
    assert group.validation.y.dtype == torch.float64 and "classes" not in tables.to_arrays(
        tables.from_arrays(arrays, {})
    )


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"validation": np.ones(8, dtype=bool)}, r"array 'validation' must be \[R=9\], got \[8\]"),
        ({"validation": np.arange(9) == 2}, "client 'a': a row is both a test and a validation row"),
        ({"classes": np.array([2])}, r"array 'classes' must be \[\], got \[1\]"),
        ({"classes": np.array("two")}, "array 'classes' must hold whole numbers of at least 2, got 'two'"),
        ({"classes": np.array(1)}, "array 'classes' must hold whole numbers of at least 2, got 1"),
        ({"feature_shape": np.array([2.5])}, "array 'feature_shape' must hold whole numbers of at least 1, got"),
        ({"classes": np.array(2)}, "client 'a': label 0.4 is not whole"),
        ({"classes": np.array(2), "y": np.arange(9)}, r"client 'a': label 4 outside 0\.\.1"),
        ({"feature_shape": np.array([1, 2])}, r"array 'feature_name' must be \[f=1\], got \[2\]"),
        ({"feature_shape": np.array([2, 2])}, r"array 'x' must be \[R=9, d=4\], got \[9, 2\]"),
    ],
)
def test_optional_arrays_that_do_not_fit_are_named(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        tables.from_arrays(long_form() | changed, {})


def test_positions_are_told_where_they_are_known() -> None:
    dataset = tables.from_arrays(long_form(), {})
    with pytest.raises(DataError, match="does not know the positions of its rows"):
        tables.to_positions(dataset)
    rows = {"client_name": np.array(["a", "b", "late"]), "position": np.arange(9)}
    assert tables.to_positions(replace(dataset, rows=rows)) == rows
    with pytest.raises(DataError, match="the positions are of other clients"):
        tables.to_positions(replace(dataset, rows=rows | {"client_name": np.array(["a", "late", "b"])}))


def test_a_table_of_labels_becomes_a_classification(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text(LABELLED)
    with pytest.warns(
        UserWarning, match=r"labels\.csv: no row of training has label 2 of the classes 0 to 2: .* 1 row "
    ):
        dataset = tables.read(path, test_share=0.5, task="classification")
    group = dataset.groups["existing"]
    assert dataset.classes == 3 and group.train.y.dtype == group.test.y.dtype == torch.int64
    assert group.train.y.tolist() == [[0], [1]] and group.test.y.tolist() == [[2], [0]]
    assert group.train.x.dtype == torch.float64 and tables.read(path, test_share=0.5).classes is None
    assert tables.read(path, Layout(classes=7), test_share=0.5, task="classification").classes == 7


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("b,4.5,1.5", r"client 'b': .*line 6, column 'y': 1\.5 is not a label \(number the classes"),
        ("b,4.5,-1", r"client 'b': .*line 6, column 'y': -1 is not a label"),
        ("b,4.5,cat", r"line 6, column 'y': 'cat' is not a number"),
        ("b,4.5,", r"line 6, column 'y': '' is not a number"),
    ],
)
def test_targets_that_are_no_labels_are_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "labels.csv"
    path.write_text(LABELLED + line + "\n")
    with pytest.raises(DataError, match=message):
        tables.read(path, task="classification")


def test_what_is_no_classification_is_named(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text("client,x,y\na,0.5,0\na,1.5,0\n")
    with pytest.raises(DataError, match=r"labels\.csv has only the label 0"):
        tables.read(path, task="classification")
    np.savez(tmp_path / "data.npz", **long_form())  # type: ignore[arg-type]
    with pytest.raises(DataError, match="holds no labels: array 'classes' is missing"):
        tables.read(tmp_path / "data.npz", task="classification")


def test_a_generated_data_set_reads_as_it_was_made(tmp_path: Path) -> None:
    made = data_gen.generate("polynomial", clients=3, new_clients=2, samples=4, test_samples=5, seed=1)
    dataset = tables.read(made.save(tmp_path))
    assert dataset.target == ("y", "1") and dataset.features == (("x", "1"),)
    for label, clients in (("existing", range(3)), ("new", range(3, 5))):
        group = dataset.groups[label]
        assert_disjoint(group.train, group.test)
        for k, client in enumerate(clients):
            assert group.train.names[k] == made.client_name[client]
            for batch, test in ((group.train, False), (group.test, True)):
                at = made.rows(client, test=test)
                np.testing.assert_array_equal(batch.x[k][batch.mask[k]].numpy(), made.x[at])
                np.testing.assert_array_equal(batch.y[k][batch.mask[k]].numpy(), made.y[at])
    direct = tables.from_arrays(made.arrays, made.manifest)
    assert torch.equal(direct.groups["new"].test.x, dataset.groups["new"].test.x)
    assert direct.provenance["name"] == "polynomial"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("test", None, "array 'test' is missing"),
        ("target_unit", None, "array 'target_unit' is missing"),
        ("x", np.arange(9.0), r"array 'x' must be \[R=9, d\], got \[9\]"),
        ("y", np.arange(8.0), r"array 'y' must be \[R=9\], got \[8\]"),
        ("test", np.zeros((9, 1), dtype=bool), r"array 'test' must be \[R=9\], got \[9, 1\]"),
        ("client_new", np.zeros(2, dtype=bool), r"array 'client_new' must be \[C=3\], got \[2\]"),
        ("feature_unit", np.array(["m"]), r"array 'feature_unit' must be \[d=2\], got \[1\]"),
        ("client", np.array([0, 1, 0, 2, 0, 1, 1, 2, 3]), r"array 'client' must hold whole numbers in 0\.\.2"),
        ("client", np.array([0, 1, 0, 2, 0, 1, 1, 2, -1]), "array 'client'"),
        ("client", np.array([0, 1, 0, 2, 0, 1, 1, 2, 0.5]), "array 'client'"),
        ("client_name", np.array(["a", "b", "a"]), "client 'a': its name is used twice"),
        ("x", np.full((9, 2), "sunny"), "arrays 'x' and 'y' must hold numbers"),
        ("y", np.full(9, np.nan), "client 'a': y has 2 non-finite values"),
        ("client_new", np.ones(3, dtype=bool), "there is no existing client"),
        ("client_new", np.zeros(3, dtype=bool), "client 'late': has no training samples"),
        ("test", np.zeros(9, dtype=bool), "client 'a': has no test samples"),
    ],
)
def test_arrays_that_do_not_fit_are_named(name: str, value: np.ndarray[Any, Any] | None, message: str) -> None:
    arrays = long_form()
    if value is None:
        del arrays[name]
    else:
        arrays[name] = value
    with pytest.raises(DataError, match=message):
        tables.from_arrays(arrays, {})


def test_npz_runs_no_code_and_damage_is_named(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    hidden = long_form() | {"target_name": np.array([print], dtype=object)}
    np.savez(path, **hidden)
    with pytest.raises(DataError, match=r"data.npz cannot be read: .*Python objects, which could run code"):
        tables.read(path)
    np.savez(path, **long_form())  # type: ignore[arg-type]
    whole = path.read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], b"no archive"):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"data\.npz is not an \.npz archive"):
            tables.read(path)
    middle = whole.index(np.arange(18.0).tobytes()) + 20
    path.write_bytes(whole[:middle] + b"\xff" + whole[middle + 1 :])
    with pytest.raises(DataError, match=r"data\.npz cannot be read"):
        tables.read(path)
    with pytest.raises(DataError, match="there is no file"):
        tables.read(tmp_path / "none.npz")


def test_a_table_is_cut_by_client_split_and_group(tmp_path: Path) -> None:
    path = write(tmp_path, CSV)
    table = user_tables.read_table(path)
    assert table.features == ("sun", "wind") and table.new == ("late",) and list(table.clients) == ["a", "b", "late"]
    assert table.clients["a"][0].tolist() == [[1.0, 0.5], [3.0, -1.0], [6.0, 7.0]]
    assert table.clients["a"][1].tolist() == [10.0, 30.0, 60.0]
    assert table.split is not None and table.split["a"].tolist() == [False, True, False]
    dataset = tables.read(path)
    assert rows_of(dataset.groups["existing"].train, 0) == [10.0, 60.0]
    assert rows_of(dataset.groups["existing"].test, 1) == [50.0]
    assert rows_of(dataset.groups["new"].test, 0) == [40.0] and not dataset.groups["new"].train.mask.any()
    cut = {"by": "split", "column": "split", "last": None}
    assert dataset.provenance == {"source": "table.csv", "cut": cut, "test_rows": "column split"}
    assert dataset.target == ("y", "") and [column.name for column in dataset.features] == ["sun", "wind"]


@pytest.mark.parametrize(("share", "held"), [(0.25, (1, 2)), (0.5, (1, 5)), (0.01, (1, 1)), (0.99, (1, 9))])
def test_without_a_split_the_last_rows_are_held_out(tmp_path: Path, share: float, held: tuple[int, int]) -> None:
    lines = [f"a,{i},{i}\n" for i in range(2)] + [f"b,{i},{i}\n" for i in range(10)]
    dataset = tables.read(write(tmp_path, "client,x,y\n" + "".join(lines)), test_share=share)
    group = dataset.groups["existing"]
    for k, (m, count) in enumerate(zip((2, 10), held, strict=True)):
        at = m - count
        assert rows_of(group.train, k) == list(range(at)) and rows_of(group.test, k) == list(range(at, m))
    assert dataset.provenance["test_rows"].startswith(f"last {share:g} of each client in the order of the file")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda text: text.replace("client", "house"),
            r"table.csv has no column 'client' \(it has house, sun, y, wind",
        ),
        (lambda text: without(text, "y"), "has no column 'y'"),
        (lambda text: without(text, "sun", "wind"), r"has no feature columns \(data\.features = \[\"lag:24h\""),
        (lambda text: text.splitlines()[0] + "\n", "has no rows"),
        (lambda text: "", r"table\.csv has no columns"),
        (lambda text: "\n" + text, r"table\.csv has no columns"),
        (lambda text: text.replace(",", "|"), r"has no column 'client' \(it has client\|sun\|y"),
        (
            lambda text: text.replace("\nlate,", "\n,"),
            r"csv line 5, column 'client': the client's name is blank",
        ),
        (lambda text: text.replace("\nlate,", "\n ,"), "line 5, column 'client': the client's name is blank"),
        (
            lambda text: text.replace("6.0,60", "6.0,inf"),
            "client 'a': .* line 7, column 'y': inf is not a finite number",
        ),
        (
            lambda text: text.replace("6.0,60", "6.0,nan"),
            "client 'a': .* line 7, column 'y': nan is not a finite number",
        ),
        (lambda text: text.replace("60,7", "60,-inf"), "client 'a': .* line 7, column 'wind': -inf is not a finite"),
        (lambda text: text.replace("3.0,30", "cloudy,30"), "line 4, column 'sun': 'cloudy' is not a number"),
        (lambda text: text.replace(",-1,", ",,"), "line 4, column 'wind': '' is not a number"),
        (lambda text: text.replace("3.0,30", "3.0,none"), "line 4, column 'y': 'none' is not a number"),
        (lambda text: text.replace("5.0,50", "5.0,x"), "line 6, column 'y': 'x'"),
        (lambda text: text.replace("\nb,2.0", "\n\n\nb,2.0").replace("5.0,", "o,"), "line 8, column 'sun': 'o'"),
        (lambda text: text.replace("3.0,30", "3.0,30,30"), "line 4: expected 6 values"),
        (lambda text: text.replace("3.0,30,", "3.0,"), "line 4: expected 6 values"),
        (lambda text: text.replace("sun", "wind"), "has two columns 'wind'"),
        (lambda text: text.replace("-1,test", "-1,Test"), "line 4: split must be 'train' or 'test', got 'Test'"),
        (lambda text: text.replace("test,new", "test,fresh"), "line 5: group must be 'existing' or 'new', got 'fresh'"),
        (
            lambda text: text.replace("6,test,existing", "6,test,new"),
            "client 'b': is marked both as existing and as new",
        ),
        (lambda text: text.replace("existing", "new"), "has no existing client"),
        (lambda text: text.replace("test", "train"), "client 'a': has no test samples"),
        (lambda text: text.replace("train", "test"), "client 'a': has no training samples"),
        (lambda text: text.replace("1.0,10", "nan,10"), "client 'a': .*csv line 2, column 'sun': nan is not a finite"),
        (lambda text: text.replace("1.0,10", "1.0,"), "line 2, column 'y': '' is not a number"),
    ],
)
def test_faults_of_a_table_are_named(tmp_path: Path, change: Callable[[str], str], message: str) -> None:
    changed = change(CSV)
    assert changed != CSV
    with pytest.raises(DataError, match=message):
        tables.read(write(tmp_path, changed))


def test_a_share_must_leave_something_on_both_sides(tmp_path: Path) -> None:
    path = write(tmp_path, without(CSV, "split"))
    for share in (0.0, 1.0, -0.5):
        with pytest.raises(DataError, match="test_share must be between 0 and 1"):
            tables.read(path, test_share=share)
    with pytest.raises(DataError, match="client 'late': has no test samples"):
        tables.read(path)
    assert tables.read(write(tmp_path, CSV), test_share=0.0).groups  # the column decides


def test_a_mark_of_excel_is_no_part_of_a_name(tmp_path: Path) -> None:
    assert user_tables.read_table(write(tmp_path, "\ufeff" + CSV)).features == ("sun", "wind")
    (tmp_path / "latin.csv").write_bytes("client,x,y\nZürich,1,2\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"latin\.csv is not a CSV table in UTF-8: .* \(save it as UTF-8\)$"):
        tables.read(tmp_path / "latin.csv")
    (tmp_path / "folder.csv").mkdir()
    for read in (tables.read, user_tables.read_columns):
        with pytest.raises(DataError, match=r"folder\.csv is a folder, and no file \(name the file in it\)"):
            read(tmp_path / "folder.csv")


def test_parquet_reads_as_the_same_table(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    arrow = pytest.importorskip("pyarrow")
    header, *lines = [line.split(",") for line in CSV.splitlines()]
    columns: dict[str, list[Any]] = dict(zip(header, map(list, zip(*lines, strict=True)), strict=True))
    for name in ("sun", "wind", "y"):
        columns[name] = [float(value) for value in columns[name]]
    parquet.write_table(arrow.table(columns), tmp_path / "table.parquet")
    mine, theirs = tables.read(tmp_path / "table.parquet"), tables.read(write(tmp_path, CSV))
    assert list(mine.groups) == list(theirs.groups) and mine.features == theirs.features
    for label, group in mine.groups.items():
        assert (
            torch.equal(group.train.x, theirs.groups[label].train.x)
            and group.train.ids == theirs.groups[label].train.ids
        )
        assert torch.equal(group.test.y, theirs.groups[label].test.y)
    columns["sun"][2] = None
    parquet.write_table(arrow.table(columns), tmp_path / "table.parquet")
    with pytest.raises(DataError, match="row 3, column 'sun': None is not a number"):
        tables.read(tmp_path / "table.parquet")
    (tmp_path / "table.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(DataError, match=r"table.parquet is not a Parquet table"):
        tables.read(tmp_path / "table.parquet")


def dated(times: dict[str, list[str]], split: bool = False) -> str:
    """A table of two clients, its rows mixed; the target counts the rows of a client in the order of the file."""
    lines = [f"client,when,sun,y{',split' if split else ''}"]
    for i in range(max(map(len, times.values()))):
        for name, own in times.items():
            if i < len(own):
                lines.append(f"{name},{own[i]},{i}.5,{i}{',test' if split and i % 2 else ',train' if split else ''}")
    return "\n".join(lines) + "\n"


def read_dated(path: Path, text: str, **more: Any) -> tables.Dataset:
    path.write_text(text)
    return tables.read(path, Layout(time="when"), **more)


DAYS = {"a": ["2024-03-05", "2024-03-01", "2024-03-04", "2024-03-02"], "b": ["2024-01-09", "2023-12-31"]}


def test_rows_are_sorted_by_time_and_the_last_in_time_are_held_out(tmp_path: Path) -> None:
    dataset = read_dated(tmp_path / "t.csv", dated(DAYS))
    group = dataset.groups["existing"]
    assert [column.name for column in dataset.features] == ["sun"]  # time is no feature
    assert rows_of(group.train, 0) == [1.0, 3.0, 2.0] and rows_of(group.test, 0) == [0.0]
    assert rows_of(group.train, 1) == [1.0] and rows_of(group.test, 1) == [0.0]
    assert dataset.provenance["cut"] == {"by": "time", "column": "when", "last": "0.25"}
    assert dataset.provenance["test_rows"] == "last 0.25 of each client by column 'when'"
    assert group.times is not None
    assert group.times.train[0].tolist() == sorted(group.times.train[0].tolist()) and group.times.train.shape == (2, 3)


def test_without_a_time_the_order_of_the_file_is_said_to_be_taken_for_it(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("client,sun,y\na,1,2\na,3,4\na,5,6\n")
    dataset = tables.read(tmp_path / "t.csv")
    expected = "last 0.25 of each client in the order of the file, which was taken for that of time"
    assert dataset.provenance["test_rows"] == expected and dataset.groups["existing"].times is None


@pytest.mark.parametrize("seed", range(6))
def test_the_order_of_the_file_does_not_matter_once_there_is_a_time(tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    lines = dated(
        {"a": [f"2024-03-{d:02d}T0{d % 7}:15" for d in range(1, 20)], "b": [f"2023-0{m}-01T00:00" for m in range(1, 8)]}
    )
    head, *rows = lines.splitlines()
    first = read_dated(tmp_path / "a.csv", lines)
    second = read_dated(tmp_path / "b.csv", "\n".join([head, *random.permutation(rows)]) + "\n")
    for part in ("train", "test"):
        one, other = (getattr(dataset.groups["existing"], part) for dataset in (first, second))
        at = torch.tensor([other.names.index(name) for name in one.names])
        assert torch.equal(one.x, other.select(at).x) and torch.equal(one.y, other.select(at).y)


def test_rows_of_one_time_are_on_one_side_and_are_said(tmp_path: Path) -> None:
    times = {"a": ["3", "1", "2", "3", "2", "1", "3", "1"], "b": ["1", "2", "3", "4"]}
    with pytest.warns(UserWarning, match="^5 rows of a come at the time of the row before, by column 'when'"):
        dataset = read_dated(tmp_path / "t.csv", dated(times))
    group = dataset.groups["existing"]
    assert rows_of(group.train, 0) == [1.0, 5.0, 7.0, 2.0, 4.0] and rows_of(group.test, 0) == [0.0, 3.0, 6.0]
    with pytest.warns(UserWarning), pytest.raises(DataError, match="client 'b': all of its 2 rows have one time"):
        read_dated(tmp_path / "t.csv", dated({"a": ["1", "2"], "b": ["7", "7"]}))


def test_a_split_column_counts_more_than_the_time(tmp_path: Path) -> None:
    dataset = read_dated(tmp_path / "t.csv", dated(DAYS, split=True))
    group = dataset.groups["existing"]
    assert rows_of(group.train, 0) == [2.0, 0.0] and rows_of(group.test, 0) == [1.0, 3.0]  # each sorted by time
    assert dataset.provenance["test_rows"] == "column split"


def test_times_that_cannot_be_read_are_named_by_client_line_and_value(tmp_path: Path) -> None:
    mixed = {"a": ["2024-03-05", "2024-03-04"], "b": ["2024-01-09", "2023-12-31T10:00"]}
    with pytest.raises(
        DataError, match=r"client 'b': .*t\.csv line 5, column 'when': '2023-12-31T10:00' is a datetime, and"
    ):
        read_dated(tmp_path / "t.csv", dated(mixed))
    with pytest.raises(DataError, match=r"client 'a': .*t\.csv line 4, column 'when': 'noon' is no time"):
        read_dated(tmp_path / "t.csv", dated({"a": ["2024-03-05", "noon"], "b": ["2024-03-05"]}))
    (tmp_path / "t.csv").write_text("client,sun,y\na,1,2\na,3,4\n")
    with pytest.raises(DataError, match=r"t\.csv has no column 'when' \(it has client, sun, y\)"):
        tables.read(tmp_path / "t.csv", Layout(time="when"))


@pytest.mark.parametrize("times", [DAYS, {"a": ["0.5", "-1.25", "3"], "b": ["1.5", "0.125"]}])
def test_times_survive_there_and_back(tmp_path: Path, times: dict[str, list[str]]) -> None:
    dataset = read_dated(tmp_path / "t.csv", dated(times))
    np.savez(tmp_path / "data.npz", **tables.to_arrays(dataset))  # type: ignore[arg-type]
    again = tables.read(tmp_path / "data.npz").groups["existing"]
    mine, theirs = dataset.groups["existing"].times, again.times
    assert mine is not None and theirs is not None
    for one, other in zip(mine, theirs, strict=True):
        assert torch.equal(one, other) and one.dtype == other.dtype
    held = replace(again, validation=again.test)  # whose times are not kept, and shift no other
    kept = tables.to_arrays(replace(dataset, groups={"existing": held}))
    alike = tables.from_arrays(kept, {}).groups["existing"].times
    assert alike is not None and all(map(torch.equal, alike, theirs))
    some = again.select(torch.tensor([1]))
    assert some.times is not None and torch.equal(some.times.train, theirs.train[1:])
    arrays = tables.to_arrays(dataset)
    with pytest.raises(DataError, match="array 'time' must hold int64 or float64, got <U"):
        tables.from_arrays(arrays | {"time": arrays["time"].astype(str)}, {})
    with pytest.raises(DataError, match=r"array 'time' must be \[R="):
        tables.from_arrays(arrays | {"time": arrays["time"][1:]}, {})


def test_a_new_client_may_have_test_rows_alone(tmp_path: Path) -> None:
    lines = dated(DAYS, split=True).splitlines()
    table = [lines[0] + ",group", *(line + ",existing" for line in lines[1:]), "late,2024-01-01,1.5,0,test,new"]
    for group in read_dated(tmp_path / "t.csv", "\n".join(table) + "\n").groups.values():
        assert group.times is not None
        assert_disjoint(group.train, group.test, times=group.times)
        with pytest.raises(DataError):
            assert_disjoint(group.test, group.test, times=(group.times.test, group.times.test))


def test_a_column_of_times_that_nobody_named_is_refused_with_the_key(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(dated(DAYS))
    with pytest.raises(DataError, match=r"'2024-03-05' is not a number \(data\.time names a column of times\)"):
        tables.read(tmp_path / "t.csv")
    with pytest.raises(DataError, match=r"t\.csv has no column 'at' \(it has client, when, sun, y\)"):
        tables.read(tmp_path / "t.csv", Layout(time="at"))


def test_parquet_times_are_those_of_their_text(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    frame = pd.DataFrame(
        {
            "client": ["a", "a", "a"],
            "when": pd.to_datetime(["2024-05-03", "2024-05-01", "2024-05-02"]),
            "sun": 1.0,
            "y": [3.0, 1.0, 2.0],
        }
    )
    parquet.write_table(pyarrow.Table.from_pandas(frame), tmp_path / "t.parquet")
    group = tables.read(tmp_path / "t.parquet", Layout(time="when")).groups["existing"]
    assert rows_of(group.train, 0) == [1.0, 2.0] and rows_of(group.test, 0) == [3.0]


X, Y = torch.arange(12.0).reshape(6, 2), torch.arange(6.0)


def test_rows_of_a_program_are_held_out_as_given_or_the_last_ones() -> None:
    result = tables.of_clients({"a": (X, Y), "b": (X[:3].numpy(), Y[:3])}, 0.5)
    group = result.groups["existing"]
    assert (rows_of(group.train, 0), rows_of(group.test, 0)) == ([0, 1, 2], [3, 4, 5])
    assert (rows_of(group.train, 1), rows_of(group.test, 1)) == ([0], [1, 2])
    reversed_rows = tables.of_clients({"a": (X.numpy()[::-1], Y.numpy()[::-1])}, 0.5).groups["existing"]
    assert (rows_of(reversed_rows.train, 0), rows_of(reversed_rows.test, 0)) == ([5, 4, 3], [2, 1, 0])
    assert [column.name for column in result.features] == ["x_1", "x_2"] and result.target.name == "y"
    assert result.provenance["cut"] == {"by": "rows", "column": None, "last": "0.5"}
    group = tables.of_clients({"a": (X[:4], Y[:4], X[4:], Y[4:])}).groups["existing"]
    assert (rows_of(group.train, 0), rows_of(group.test, 0)) == ([0, 1, 2, 3], [4, 5])
    assert tables.of_clients({"a": (X, Y)}, task="classification").classes == 6
    assert tables.of_clients({"a": (X, Y)}, task="classification", classes=8).classes == 8


@pytest.mark.parametrize(
    ("clients", "fragment"),
    [
        ({}, "no existing client"),
        ({"a": (X,)}, "'a': must have .x, y. or .x, y, test x, test y., got 1 parts"),
        ({"a": (X, X)}, r"'a': must have x \[m, d\] and y \[m\], got \[6, 2\] and \[6, 2\]"),
        ({"a": (X, Y, X[:, :1], Y)}, "'a': must have x"),
        ({"a": (X, Y), "b": (X[:, :1], Y)}, "'b': has 1 features, and the client before it 2"),
        ({"a": (X, Y, X, Y), "b": (X, Y)}, "'b': has no test rows, and other clients have"),
        ({"a": ([["one"]], [1.0])}, "'a': its rows are no numbers"),
        ({"a": (X, Y), "a ": (X, Y)}, "differs from 'a'"),
        ({"a": (X / 0, Y)}, "'a'.*finite"),
    ],
)
def test_rows_of_a_program_that_cannot_be_used_name_their_client(clients: dict[str, Any], fragment: str) -> None:
    with pytest.raises(DataError, match=fragment):
        tables.of_clients(clients)


def test_labels_of_a_program_are_whole_numbers_from_zero() -> None:
    for y in (Y - 1, Y / 2):
        with pytest.raises(DataError, match="'a': y must hold labels"):
            tables.of_clients({"a": (X, y)}, task="classification")


def test_rows_of_a_program_may_be_tables_and_columns_and_are_real_numbers_of_named_clients() -> None:
    frame = pd.DataFrame({"one": X[:, 0].numpy(), "two": X[:, 1].numpy()}, index=range(5, 5 + len(X)))
    column = pd.Series(Y.numpy(), index=frame.index)
    result, expected = (
        tables.of_clients({"a": rows}).groups["existing"].train for rows in ((frame, column), (X[:, :2], Y))
    )
    assert torch.equal(result.x, expected.x) and torch.equal(result.y, expected.y)
    assert torch.equal(tables.of_clients({"a": (part for part in (X, Y))}).groups["existing"].train.y, expected.y)
    masked = np.ma.masked_greater(X.numpy(), X.max().item() - 1e-9)
    for client, wrong, said in (
        ("a", (masked, Y), "some of its numbers are masked"),
        ("a", (X + 1j, Y), "real numbers, got complex ones"),
        ("a", (X.numpy() + 1j, Y), "real numbers, got complex ones"),
        (3, (X, Y), "names of clients are texts, got 3 of type int"),
    ):
        with pytest.raises(DataError, match=said):
            tables.of_clients({client: wrong})  # type: ignore[dict-item]
