"""Fingerprints tell rows apart, and say nothing without their salt."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

from pacbayes_fl.data import split, tables
from pacbayes_fl.study.data import load, rows_by_client
from pacbayes_fl.study.rows import fingerprints as study_fingerprints
from tests.tiny import on_csv, rows, tiny, write_csv
from tests.tiny_images import tiny_images, write_root


def of_table(path: Path, *changes: tuple[int, str, float]) -> tables.Dataset:
    table = rows(2)
    for at, column, by in changes:
        table[at] = table[at] | {column: table[at][column] + by}
    return load(on_csv(write_csv(path / "mine.csv", table)))


def test_they_are_the_salted_hash_of_what_the_rows_hold() -> None:
    dataset = load(tiny())
    train = dataset.groups["existing"].train
    for k, name in enumerate(train.names):
        text = f"ab {split.split_hash(train.select(torch.tensor([k])))}"
        result = study_fingerprints.of_training_rows(dataset, "ab")
        assert result[name] == hashlib.sha256(text.encode()).hexdigest()
    for name, (group, text) in rows_by_client(dataset).items():
        code = hashlib.sha256(f"ab {text}".encode()).hexdigest()
        assert study_fingerprints.of_all_rows(dataset, "ab")[name] == [group, code]


def test_one_number_changes_its_own_client_and_a_salt_all(tmp_path: Path) -> None:
    """Training rows of existing clients alone, or all rows of all."""
    before, train, test = of_table(tmp_path), of_table(tmp_path, (0, "wind", 1e-9)), of_table(tmp_path, (8, "y", 1e-9))
    for fingerprints, changed in (
        (study_fingerprints.of_training_rows, (["existing_0"], [])),
        (study_fingerprints.of_all_rows, (["existing_0"], ["existing_0"])),
    ):
        old = fingerprints(before, "0")
        for dataset, names in zip((train, test), changed, strict=True):
            new = fingerprints(dataset, "0")
            assert old.keys() == new.keys() and [name for name in old if old[name] != new[name]] == names
        assert all(code != old[name] for name, code in fingerprints(before, "1").items())
    assert "new_0" not in study_fingerprints.of_training_rows(before, "0")
    assert study_fingerprints.of_all_rows(before, "0")["new_0"][0] == "new"


def test_images_are_known_by_their_places(tmp_path: Path) -> None:
    dataset = load(tiny_images(write_root(tmp_path)))
    every = study_fingerprints.of_all_rows(dataset, "0")
    assert set(every) == {name for group in dataset.groups.values() for name in group.train.names}
    assert len({code for _, code in every.values()}) == len(every)
    train = study_fingerprints.of_training_rows(dataset, "0")
    assert [*train] == [*dataset.groups["existing"].train.names] and len(set(train.values())) == len(train)


def test_a_shared_ledger_knows_rows_by_values_and_by_client_and_target(tmp_path: Path) -> None:
    """Under another name of the file and of the client, with other columns, and with one value changed."""
    plain = study_fingerprints.for_ledger(of_table(tmp_path))
    train = load(on_csv(tmp_path / "mine.csv")).groups["existing"].train
    sizes = {name: int(m) for name, m in zip(train.names, train.size, strict=True)}
    pairs = {name: 2 * min(8, m - 1) for name, m in sizes.items()}  # of either feature
    assert [len(plain[name]) for name in train.names] == [
        3 * m + 2 * (m - 1) + 2 * pairs[name] for name, m in sizes.items()
    ]
    fewer = study_fingerprints.for_ledger(load(on_csv(tmp_path / "mine.csv", "data.features=['wind']")))
    renamed = [{**row, "client": f"x{row['client']}"} for row in rows(2)]
    other = study_fingerprints.for_ledger(load(on_csv(write_csv(tmp_path / "other.csv", renamed))))
    changed = study_fingerprints.for_ledger(of_table(tmp_path, (0, "y", 1.0)))
    for name, m in sizes.items():
        assert len(plain[name] & fewer[name]) == m + 2 * (m - 1) + pairs[name]
        assert len(plain[name] & other[f"x{name}"]) == 2 * m
        assert (plain[name] == changed[name]) == (name != train.names[0]) and plain[name] & changed[name]


ROUNDED: Mapping[str, Callable[[float], float]] = {
    "by a factor": lambda value: value * (1 + 1e-9),
    "to single precision": lambda value: float(np.float32(value)),
    "to seven digits": lambda value: float(f"{value:.7g}"),
}


@pytest.mark.parametrize("kind", [*ROUNDED])
def test_a_shared_ledger_knows_rows_that_were_rounded(kind: str, tmp_path: Path) -> None:
    """Every row, whatever its client is called; and the client with its targets, whatever the columns are."""
    plain, table = study_fingerprints.for_ledger(of_table(tmp_path)), rows(2)
    columns = ("lag_1", "wind", "y")
    again = [{**row, **{name: ROUNDED[kind](row[name]) for name in columns}} for row in table]
    file = write_csv(tmp_path / "rounded.csv", again)
    fewer = study_fingerprints.for_ledger(load(on_csv(file, "data.features=['wind']")))
    write_csv(file, [{**row, "client": f"x{row['client']}"} for row in again])
    renamed = study_fingerprints.for_ledger(load(on_csv(file)))
    train = load(on_csv(tmp_path / "mine.csv")).groups["existing"].train
    for name, m in zip(train.names, train.size.tolist(), strict=True):
        assert len(plain[name] & renamed[f"x{name}"]) >= m
        assert len(plain[name] & fewer[name]) >= m - 1
    unlike = study_fingerprints.for_ledger(load(on_csv(write_csv(tmp_path / "unlike.csv", rows(3)))))
    assert not frozenset().union(*plain.values()) & frozenset().union(*unlike.values())


def test_a_shared_ledger_knows_a_client_with_a_single_row(tmp_path: Path) -> None:
    table = rows(2, sizes=(4, 4))
    plain = study_fingerprints.for_ledger(load(on_csv(write_csv(tmp_path / "a.csv", table))))
    again = [{**row, **{name: float(np.float32(row[name])) for name in ("lag_1", "wind", "y")}} for row in table]
    rounded = study_fingerprints.for_ledger(load(on_csv(write_csv(tmp_path / "b.csv", again))))
    assert all(len(own) == 3 and own & rounded[name] for name, own in plain.items())


LABELS = ("data.task=classification", "method.name=fedavg")


@pytest.mark.parametrize("columns", ["wind,lag_1", "wind", "lag_1"])
@pytest.mark.parametrize("before", ["labels", "numbers"])
def test_a_shared_ledger_knows_labelled_rows_by_any_column(before: str, columns: str, tmp_path: Path) -> None:
    """In another order and without some of them; learned as labels, or another column as numbers before."""
    table = [{**row, "y": at % 2} for at, row in enumerate(rows(2, sizes=(12, 20)))]
    path = write_csv(tmp_path / "a.csv", table)
    features = json.dumps(columns.split(","))
    again = study_fingerprints.for_ledger(load(on_csv(path, *LABELS, f"data.features={features}")))
    sets = LABELS if before == "labels" else ("data.target=wind", 'data.features=["lag_1"]')
    plain = study_fingerprints.for_ledger(load(on_csv(path, *sets)))
    whole = before == "labels" and "," in columns
    for name, m in (("existing_0", 9), ("existing_1", 17)):
        shared = len(plain[name] & again[name])
        assert shared == 2 * m + 32 if whole else shared >= 16
    other = [{**row, "y": at % 2} for at, row in enumerate(rows(3, sizes=(12, 20)))]
    unlike = study_fingerprints.for_ledger(load(on_csv(write_csv(tmp_path / "b.csv", other), *LABELS)))
    assert not any(plain[name] & unlike[name] for name in plain)


def test_columns_of_whole_numbers_make_no_fingerprints_by_themselves(tmp_path: Path) -> None:
    """Days and years are alike in tables that have nothing to do with each other."""
    days = [{**row, "wind": at % 9, "lag_1": 2000 + at % 9, "y": at % 2} for at, row in enumerate(rows(2))]
    for name, own in study_fingerprints.for_ledger(load(on_csv(write_csv(tmp_path / "a.csv", days), *LABELS))).items():
        assert len(own) == 2 * {"existing_0": 6, "existing_1": 9, "existing_2": 5, "existing_3": 7}[name]
