"""A first study is changed where a run would refuse it, and nowhere else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pacbayes_fl.errors import DataError, StudyError
from pacbayes_fl.study.drafting.drafts import runnable
from tests.tiny import Row, write_csv


def drafted(folder: Path, rows: list[Row], **data: Any) -> tuple[Any, tuple[str, ...]]:
    path = write_csv(folder / "mine.csv", rows)
    table = {"data": {"source": str(path), **data}, "method": {"name": "ridge"}}
    table_before = {**table, "data": {**table["data"]}}
    got = runnable(table, folder / "mine.toml")
    assert table == table_before
    return got.table["data"], got.remarks


ROWS: list[Row] = [{"client": f"c{k}", "x": 0.1 * i, "y": 50 + i * i} for k in range(3) for i in range(6)]


def test_a_study_that_runs_stays_as_it_is(tmp_path: Path) -> None:
    assert drafted(tmp_path, ROWS) == ({"source": str(tmp_path / "mine.csv")}, ())


def test_short_clients_and_repeats_are_both_settled(tmp_path: Path) -> None:
    rows = [*ROWS, {"client": "one", "x": 3, "y": 60}, ROWS[0]]
    data, remarks = drafted(tmp_path, rows)
    assert (data["exclude_clients"], data["duplicate_rows"]) == (["one"], "allow") and len(remarks) == 2
    marked = [{**row, "split": "test" if i % 6 > 3 else "train"} for i, row in enumerate(ROWS)]
    for row in marked[:6]:
        row["split"] = "train"
    assert drafted(tmp_path, marked)[0]["exclude_clients"] == ["c0"]


def test_other_faults_are_raised_as_a_run_does(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="column 'x': 'calm' is not a number"):
        drafted(tmp_path, [{**ROWS[0], "x": "calm"}, *ROWS])
    with pytest.raises(DataError, match="has no existing client"):
        drafted(tmp_path, [{**row, "group": "new"} for row in ROWS])


@pytest.mark.parametrize("only", ["train", "test"])
def test_marks_that_divide_no_client_are_named_and_not_the_column_of_clients(only: str, tmp_path: Path) -> None:
    said = r"no client in column 'client' .* \(column 'split' gives none both 'train' and 'test': mark some rows of"
    with pytest.raises(StudyError, match=said):
        drafted(tmp_path, [{**row, "split": only} for row in ROWS])


def test_clients_of_a_single_row_are_said_to_be_ones(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"every client has a single row; --client names a column whose values repeat"):
        drafted(tmp_path, [{**row, "client": f"c{k}"} for k, row in enumerate(ROWS)])
