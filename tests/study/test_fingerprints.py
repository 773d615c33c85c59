"""Fingerprints tell rows apart, and say nothing without their salt."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch

from pacbayes_fl.data import split, tables
from pacbayes_fl.study import fingerprints as study_fingerprints
from pacbayes_fl.study.data import load, rows_by_client
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
    assert [len(plain[name]) for name in train.names] == [2 * int(m) for m in train.size]
    fewer = study_fingerprints.for_ledger(load(on_csv(tmp_path / "mine.csv", "data.features=['wind']")))
    renamed = [{**row, "client": f"x{row['client']}"} for row in rows(2)]
    other = study_fingerprints.for_ledger(load(on_csv(write_csv(tmp_path / "other.csv", renamed))))
    changed = study_fingerprints.for_ledger(of_table(tmp_path, (0, "y", 1.0)))
    for name in plain:
        half = len(plain[name]) // 2
        assert len(plain[name] & fewer[name]) == len(plain[name] & other[f"x{name}"]) == half
        assert len(plain[name] - changed[name]) == 2 * (name == train.names[0])
