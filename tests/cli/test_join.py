"""The command `join`: clients that never trained, and what cannot be joined."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pacbayes_fl.results import records as results
from pacbayes_fl.study import run as study
from tests.cli.answers import Call, assert_one_line
from tests.tiny import write_csv

NAN = float("nan")


def test_join_predicts_the_rows_without_a_target(call: Call, finished: Path, tmp_path: Path) -> None:
    """The run's own new client, joined from a table, gets the predictions that the run reported."""
    flat = results.load(finished).predictions
    train = zip(flat["new.x_train"][0, :, 0].tolist(), flat["new.y_train"][0].tolist(), strict=True)
    table = [{"client": 'a, "b"', "x": x, "y": y} for x, y in train]
    table += [{"client": 'a, "b"', "x": x, "y": NAN} for x in flat["new.x_test"][0, :, 0].tolist()]
    write_csv(tmp_path / "new.csv", table)
    code, out, err = call("join", finished, "--data", "new.csv", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)['a, "b"']["mean"] == pytest.approx(flat["new.mean"][0].tolist(), rel=1e-9, abs=1e-12)
    printed = call("join", finished, "--data", "new.csv", "--quantiles", ".1,.9").out
    lines = list(csv.reader(io.StringIO(printed)))
    assert lines[0] == ["client", "x", "y", "mean", "std", "q0.1", "q0.9", "round"]
    assert [line[0] for line in lines[1:]] == ['a, "b"'] * 8 and all(len(line) == 8 for line in lines)
    written = call("join", finished, "--data", "new.csv", "--quantiles", ".1,.9", "--out", "out.csv")
    assert (written.out, written.err) == ("", "out.csv: 8 rows of 1 client\n")
    assert (tmp_path / "out.csv").read_text() == printed
    assert_one_line(call("join", "nowhere", "--data", "new.csv", "--out", "out.xls"), "written to .csv or .parquet")


def test_a_client_without_labels_gets_the_prior_and_a_warning(call: Call, finished: Path, tmp_path: Path) -> None:
    write_csv(tmp_path / "new.csv", [{"client": "c", "x": 0.3, "y": NAN}])
    code, out, err = call("join", finished, "--data", "new.csv", "--json")
    assert code == 0 and "warning: c has no rows with a target: the prior's prediction" in err
    trained = study.open_run(finished)
    model: Any = trained.method.model  # type: ignore[attr-defined]
    units = trained.groups["existing"].units  # what the federation's clients have on average
    x = (torch.tensor([[[0.3]]], dtype=torch.float64) - units.x_mean.mean(0)) / units.x_std.mean(0)
    mean = model.mean(trained.state.server.particles.unsqueeze(0), x).mean()
    assert json.loads(out)["c"]["mean"] == pytest.approx([(units.y_mean.mean() + units.y_std.mean() * mean).item()])
    assert call("join", finished, "--data", "new.csv", "--quiet").err == ""


def test_what_predict_and_join_refuse(call: Call, finished: Path, tmp_path: Path) -> None:
    write_csv(tmp_path / "good.csv", [{"client": "poly_00", "x": 0.3, "y": 0.1}])
    write_csv(tmp_path / "other.csv", [{"client": "poly_00", "z": 0.3, "y": 0.1}])
    write_csv(tmp_path / "nan.csv", [{"client": "poly_00", "x": "nan", "y": 0.1}])
    both = (("predict", finished, "--client", "poly_00", "--data"), ("join", finished, "--data"))
    for command in both:
        assert_one_line(call(*command, "other.csv"), "other.csv has no column 'x' (it has client, z, y)")
        assert_one_line(
            call(*command, "nan.csv", "--quiet"), "client 'poly_00': nan.csv line 2, column 'x': nan is not a finite"
        )
        assert_one_line(call(*command, "none.csv"), "there is no file none.csv")
    unknown = call("predict", finished, "--client", "poly_99", "--data", "good.csv")
    assert_one_line(unknown, "client 'poly_99': the run does not know it (it knows poly_00,")
