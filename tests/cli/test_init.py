"""The command `init`: a table becomes a study, which `run` runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from pacbayes_fl import cli
from tests.tiny import rows, write_csv


def test_a_table_becomes_a_study_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_csv(tmp_path / "houses.csv", rows())
    assert cli.main(["init", "--data", "houses.csv", "--method", "ridge"]) == 0
    out, err = capsys.readouterr()
    assert out == "clients: column 'client'; target 'y', numbers; all others are features\nstudy: houses.toml\n"
    assert err == "" and (tmp_path / "houses.toml").is_file()
    assert cli.main(["run", "houses.toml", "--quiet", "--out", "run"]) == 0
    capsys.readouterr()
    assert cli.main(["init", "--data", "houses.csv"]) == 1
    assert "houses.toml is there already" in capsys.readouterr().err
    assert cli.main(["init", "--data", "houses.csv", "--out", "b.toml", "--target", "wind", "--client", "client"]) == 0
    assert "target 'wind'" in capsys.readouterr().out


def test_what_was_decided_is_said_a_line_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    table = [{"Unnamed: 0": at, **row} for at, row in enumerate(rows())]
    write_csv(tmp_path / "houses.csv", [*table, table[0] | {"Unnamed: 0": 99, "client": "alone"}])
    assert cli.main(["init", "--data", "houses.csv", "--method", "ridge"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].endswith("features: lag_1, wind") and out[1].startswith("column 'Unnamed: 0' is left out: it numbers")
    assert out[2].startswith("1 of 7 clients left out by exclude_clients") and out[3] == "study: houses.toml"
    assert cli.main(["run", "houses.toml", "--quiet", "--out", "run"]) == 0


def test_no_table_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["init", "--data", "nowhere.csv"]) == 1
    out, err = capsys.readouterr()
    assert (out, err) == ("", "pacbayes-fl: there is no file nowhere.csv\n")
