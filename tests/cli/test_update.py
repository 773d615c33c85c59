"""The command `update` counts what a table holds, and predictions, tables and certificates say what they are of."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.cli.answers import Call
from tests.tiny import write_csv


def test_next_month_is_added_once(call: Call, finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, "run")
    write_csv(tmp_path / "ask.csv", [{"client": "poly_02", "x": 0.1}])
    table = [{"client": "poly_02", "x": 0.1, "y": 5.0}, {"client": "poly_01", "x": 0.3, "y": -4.0}]
    write_csv(tmp_path / "december.csv", [table[0], table[0], table[1]])
    ask = ("predict", "run", "--data", "ask.csv", "--json")
    before = json.loads(call(*ask).out)["poly_02"]["mean"][0]
    once = json.loads(call(*ask, "--later", "december.csv", "--client", "poly_02").out)["poly_02"]["mean"][0]
    code, out, err = call("update", "run", "--data", "december.csv")
    assert (code, err) == (0, "")
    assert [line.split() for line in out.splitlines()[:3]] == [
        ["client", "new", "repeats", "near-twins"],
        ["poly_01", "1", "0", "0"],
        ["poly_02", "1", "1", "0"],
    ]
    assert out.splitlines()[3].startswith("update 1: predictions use 2 more rows; the run's scores and certificates")
    after = json.loads(call(*ask).out)["poly_02"]["mean"][0]
    assert after == once > before + 0.1
    assert "no row is new: nothing has changed" in call("update", "run", "--data", "december.csv").out
    counts = json.loads(call("update", "run", "--data", "december.csv", "--client", "poly_01", "--json").out)
    assert counts == {"update": None, "clients": {"poly_01": {"new": 0, "repeats": 1, "twins": 0}}}
    assert call("show", "run").out.splitlines()[-1] == (
        "updated: predictions use 2 later rows of 2 clients; scores are without them, certificates too but for --later"
    )


def test_a_client_that_is_not_known_is_refused(call: Call, finished: Path, tmp_path: Path) -> None:
    write_csv(tmp_path / "december.csv", [{"client": "poly_77", "x": 0.1, "y": 5.0}])
    answer = call("update", finished, "--data", "december.csv")
    assert answer.code == 1 and "'poly_77': the run does not know it" in answer.err
