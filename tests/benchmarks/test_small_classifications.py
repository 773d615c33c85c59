"""Federations of labels beside which defaults are measured: who has which rows, and a table of one of them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import small_classifications
from benchmarks.panels import half_width
from benchmarks.small_classifications import TABLES, main


@pytest.mark.parametrize(
    ("name", "clients", "rows", "labels"),
    [
        ("digits", 20, {24}, {3}),
        ("wine", 6, set(range(14, 17)), {1, 2, 3}),
        ("cancer", 8, set(range(34, 38)), {2}),
        ("shifted", 12, {24}, {4}),
        ("few", 16, {4}, {4}),
    ],
)
def test_every_client_has_the_rows_and_labels_that_are_said(
    name: str, clients: int, rows: set[int], labels: set[int]
) -> None:
    table = TABLES[name](0)
    train = table[table["split"] == "train"].groupby("client")
    assert len(train) == clients == table[table["split"] == "test"]["client"].nunique()
    assert set(train.size()) <= rows and set(table.groupby("client")["y"].nunique()) <= labels
    assert table.equals(TABLES[name](0)) and not table.equals(TABLES[name](1))
    assert np.isfinite(table.select_dtypes("number").to_numpy(float)).all()


def test_intervals_over_few_clients_are_by_student_s_t(monkeypatch: pytest.MonkeyPatch) -> None:
    gains = np.array([0.1, 0.3, -0.05, 0.2])
    monkeypatch.setattr(
        small_classifications.fl,
        "run",
        lambda study: SimpleNamespace(column=lambda group, score: gains * (study.method.name == "fedavg")),
    )
    (line,) = small_classifications.compared("few", [0], ["fedavg"], ())
    assert f"{100 * gains.mean():+.1f} ± {half_width(100 * gains):.1f} " in line


@pytest.mark.slow
def test_the_table_has_a_line_for_every_method(capsys: pytest.CaptureFixture[str]) -> None:
    main(["few", "--methods", "fedavg,local", "--set", "federation.rounds=2", "--seeds", "1"])
    head, _, *lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[:2] for line in lines] == [["| few", "fedavg"], ["| few", "local"]]
    assert len({line.count("|") for line in (head, *lines)}) == 1
    assert lines[0].split(" | ")[2] == lines[1].split(" | ")[2]
