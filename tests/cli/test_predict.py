"""The command `predict` gives a client's predictions as the run reported them."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from pacbayes_fl.results import records as results
from tests.cli.answers import Call
from tests.tiny import ROUNDS, write_csv


def test_predict_gives_what_the_run_reported(call: Call, finished: Path, tmp_path: Path) -> None:
    flat = results.load(finished).predictions
    for client, group, k in (("poly_02", "existing", 2), ("new_poly_01", "new", 1)):
        write_csv(tmp_path / "ask.csv", [{"client": client, "x": x} for x in flat[f"{group}.x_test"][k, :, 0].tolist()])
        code, out, err = call("predict", finished, "--client", client, "--data", "ask.csv", "--json")
        assert (code, err) == (0, "")
        got = json.loads(out)
        assert list(got) == [client]
        for name in ("mean", "std", "lower", "upper"):
            assert got[client][name] == pytest.approx(flat[f"{group}.{name}"][k].tolist(), rel=1e-9, abs=1e-12)
        _, out, _ = call("predict", finished, "--client", client, "--data", "ask.csv")
        lines = list(csv.reader(io.StringIO(out)))
        assert lines[0] == ["client", "row", "mean", "std", "lower", "upper", "round"]
        assert {line[-1] for line in lines[1:]} == {str(ROUNDS)} and got[client]["round"] == ROUNDS
        assert [line[:2] for line in lines[1:]] == [[client, str(row)] for row in range(8)]
        assert [float(line[2]) for line in lines[1:]] == pytest.approx(got[client]["mean"], rel=1e-5)


def test_later_rows_change_a_prediction(call: Call, finished: Path, tmp_path: Path) -> None:
    write_csv(tmp_path / "ask.csv", [{"x": 0.1}])
    write_csv(tmp_path / "later.csv", [{"x": 0.1, "y": 5.0}])
    asked = ("predict", finished, "--client", "poly_02", "--data", "ask.csv", "--json")
    before, after = (json.loads(call(*asked, *more).out)["poly_02"] for more in ((), ("--later", "later.csv")))
    assert after["mean"][0] > before["mean"][0] + 0.1
