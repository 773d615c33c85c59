"""Scores of later rows are those that the run would have reported, and rows that were learned from do not count."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from pacbayes_fl.errors import DataError, StudyError
from pacbayes_fl.results import records
from pacbayes_fl.study import run
from pacbayes_fl.study.serving.score import score
from pacbayes_fl.study.serving.updates import update
from tests.tiny import Row, on_csv, quick, rows, write_csv

TABLE = rows(sizes=(9, 8), new=(7,))
TEST = [row for row in TABLE if row["split"] == "test"]


def asked(table: list[Row]) -> list[Row]:
    return [{name: row[name] for name in ("client", "wind", "lag_1", "y")} for row in table]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("score")
    run.run(on_csv(write_csv(root / "rows.csv", TABLE), "federation.rounds=1"), root / "run")
    return root / "run"


def test_the_rows_of_the_test_score_as_the_run_reported(folder: Path, tmp_path: Path) -> None:
    reported = records.load(folder)
    got = score(run.open_run(folder), write_csv(tmp_path / "truth.csv", asked(TEST)))
    assert (dict(got.rows), got.left_out) == ({"existing_0": 3, "existing_1": 3, "new_0": 3}, {})
    for mine, theirs in zip(got.result.clients, reported.clients, strict=True):
        known = {name: value for name, value in theirs.metrics.items() if name in mine.metrics}
        assert (mine.name, mine.group, mine.m) == (theirs.name, theirs.group, theirs.m) and "rsmse" in known
        assert mine.metrics == pytest.approx(known, rel=1e-9, nan_ok=True)
    for name in ("existing.mean", "new.std"):
        torch.testing.assert_close(got.result.predictions[name], reported.predictions[name])
    mean, expected = (one["groups"]["existing"]["rsmse"] for one in (got.to_json(), reported.summary()))
    assert mean["interval"] == pytest.approx(expected["interval"], rel=1e-9) and len(mean) == len(expected)


def test_rows_that_were_learned_from_and_rows_without_target_are_left_out(folder: Path, tmp_path: Path) -> None:
    train = [row for row in TABLE if row["split"] == "train" and row["client"] == "existing_0"]
    blank = TEST[0] | {"y": float("nan")}
    path = write_csv(tmp_path / "truth.csv", asked([*train[:2], *TEST, blank]))
    copy = Path(shutil.copytree(folder, tmp_path / "run"))
    with pytest.warns(UserWarning, match="left out: 3 of existing_0"):
        got = score(run.open_run(copy), path)
    assert got.left_out == {"existing_0": 3} and got.rows["existing_0"] == 3
    update(run.open_run(copy), write_csv(tmp_path / "later.csv", asked(TEST[:2])))
    with pytest.warns(UserWarning, match="left out: 5 of existing_0"):
        after = score(run.open_run(copy), path)
    assert after.rows == {"existing_0": 1, "existing_1": 3, "new_0": 3}
    assert after.result.clients[1].metrics == got.result.clients[1].metrics
    with pytest.warns(UserWarning, match="left out"), pytest.raises(DataError, match="has no row to score"):
        score(run.open_run(copy), write_csv(tmp_path / "known.csv", asked(train)))


def test_files_hold_every_client(folder: Path, tmp_path: Path) -> None:
    got = score(run.open_run(folder), write_csv(tmp_path / "truth.csv", asked(TEST)), ["new_0"])
    got.save(tmp_path / "scores.csv")
    head, line = (tmp_path / "scores.csv").read_text().splitlines()
    assert head.startswith("client,group,rows,left_out,rsmse") and line.startswith("new_0,new,3,0,")
    got.save(tmp_path / "scores.json")
    assert json.loads((tmp_path / "scores.json").read_text()) == json.loads(json.dumps(got.to_json()))
    with pytest.raises(StudyError, match=r"written to \.csv or \.json, got .*scores\.txt"):
        got.save(tmp_path / "scores.txt")


def test_labels_are_scored_by_the_metrics_of_classifiers(tmp_path: Path) -> None:
    table = [row | {"y": float(k % 2)} for k, row in enumerate(TABLE)]
    study = on_csv(write_csv(tmp_path / "rows.csv", table), "data.task=classification", *quick("fedavg"))
    run.run(study, tmp_path / "run")
    got = score(
        run.open_run(tmp_path / "run"),
        write_csv(tmp_path / "truth.csv", asked([row for row in table if row["split"] == "test"])),
    )
    reported = records.load(tmp_path / "run")
    for name in ("pm.accuracy", "pm.nll", "gm.accuracy"):
        assert got.result.column("existing", name) == pytest.approx(reported.column("existing", name))
    odd = [row | {"y": float(2 * (k == 4))} for k, row in enumerate(asked(table)[:6])]
    with pytest.raises(DataError, match=r"client 'existing_0': .*line 6: label 2 is none of the 2 classes 0 to 1"):
        score(run.open_run(tmp_path / "run"), write_csv(tmp_path / "odd.csv", odd))


def test_one_more_client_is_one(tmp_path: Path) -> None:
    table = rows(sizes=(6,) * 6, new=())
    run.run(on_csv(write_csv(tmp_path / "rows.csv", table), "method.name=ridge"), tmp_path / "run")
    own = [{key: value for key, value in row.items() if key not in ("split", "group")} for row in table]
    with pytest.warns(UserWarning, match="and of 1 more client$"):
        score(run.open_run(tmp_path / "run"), write_csv(tmp_path / "truth.csv", own))
