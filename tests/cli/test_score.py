"""The command `score` prints the table of a run for other rows."""

from __future__ import annotations

import json
from pathlib import Path

from pacbayes_fl.results import records as results
from tests.cli.answers import Call
from tests.tiny import write_csv


def test_the_table_is_that_of_the_run(call: Call, finished: Path, tmp_path: Path) -> None:
    flat, reported = results.load(finished).predictions, results.load(finished)
    table = [
        {"client": row.name, "x": x, "y": y}
        for k, row in enumerate(one for one in reported.clients if one.group == "existing")
        for x, y in zip(flat["existing.x_test"][k, :, 0].tolist(), flat["existing.y_test"][k].tolist(), strict=True)
    ]
    write_csv(tmp_path / "truth.csv", table)
    code, out, err = call("score", finished, "--data", "truth.csv", "--out", "scores.json")
    assert (code, err) == (0, "scores.json: scores of 4 clients\n")
    shown, whole = out.splitlines(), call("show", finished).out.splitlines()
    assert shown[:4] == whole[:4] and shown[-1] == "scored: 32 rows of 4 clients"
    assert json.loads(call("score", finished, "--data", "truth.csv", "--json").out) == json.loads(
        (tmp_path / "scores.json").read_text()
    )


def test_a_file_that_cannot_be_written_is_refused_at_once(call: Call, tmp_path: Path) -> None:
    answer = call("score", tmp_path / "nowhere", "--data", "truth.csv", "--out", "scores.xls")
    assert answer.code == 1 and "scores are written to .csv or .json, got scores.xls" in answer.err
