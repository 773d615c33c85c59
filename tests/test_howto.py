"""Pages of docs/howto whose commands are run as they stand, on less data."""

from __future__ import annotations

import dataclasses
import re
import runpy
import shlex
import tomllib
from pathlib import Path

import pandas as pd
import pytest

from pacbayes_fl import cli
from pacbayes_fl.settings import to_toml
from pacbayes_fl.study.config.parts import DataPart
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.search import tune
from tests.tiny import on_csv, rows, write_csv

PAGE = Path("docs/howto/your-csv.md").resolve().read_text("utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE, re.DOTALL)


def test_a_table_becomes_a_forecast_with_every_key_of_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With ridge regression in the place of PAC-PFL, and eleven days of rows before those that come later."""
    monkeypatch.chdir(tmp_path)
    made = dict(BLOCKS)
    Path("houses.py").write_text(made["python"].replace("2024-10-07", "2024-10-24"))
    runpy.run_path("houses.py")
    given = tomllib.loads(made["toml"])["data"]
    left_out = {"options", "follow_seed"}
    assert given.keys() == {one.name for one in dataclasses.fields(DataPart)} - left_out
    Path("houses.toml").write_text(made["toml"].replace('"pac-pfl"', '"ridge"'))
    lines = [line for kind, block in BLOCKS if kind == "sh" for line in block.splitlines()]
    assert len(lines) == 8
    for line in lines:
        capsys.readouterr()
        command = shlex.split(line)[1:]
        extra = ["--method", "ridge"] if command[0] == "init" else []
        assert cli.main([*command, *extra]) == 0, capsys.readouterr().err
    newcomer = pd.read_csv("newcomer_forecast.csv")["mean"]
    assert len(newcomer) == 24 and newcomer.notna().sum() > 12
    forecast = pd.read_csv("forecast.csv")
    assert [*forecast.columns][:2] == ["house", "timestamp"] and {"q0.05", "q0.5", "q0.95"} <= {*forecast.columns}
    assert (forecast["mean"].isna().groupby(forecast.house).mean() == 1).sum() == 1, "the house that was left out"


def test_a_search_runs_as_it_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With every configuration scored alike, in no time."""
    page = Path("docs/howto/tuning.md").read_text("utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tune, "cross_validate", lambda *_: {1: {"rsmse": 1.0, "nlpd": 1.0}})
    write_csv(Path("houses.csv"), rows())
    Path("houses.toml").write_text(to_toml(on_csv(Path("houses.csv")).table()))
    lines = re.findall(r"^pacbayes-fl (tune .*)$", page, re.MULTILINE)
    assert len(lines) == 2
    for line in lines:
        assert cli.main([*shlex.split(line), "--quiet"]) == 0, capsys.readouterr().err
    out = Path(shlex.split(lines[0])[-1])
    assert Study.from_toml(out).name == "tiny" and out.exists()
