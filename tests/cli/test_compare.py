"""The command `compare`: tables of several runs, and how it goes on."""

from __future__ import annotations

import csv
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from pacbayes_fl import plots
from pacbayes_fl.errors import NumericalError
from pacbayes_fl.results import records as results
from pacbayes_fl.results.bootstrap import nested_bootstrap
from pacbayes_fl.results.records import Result
from pacbayes_fl.study import compare as study_compare
from pacbayes_fl.study import run as study
from pacbayes_fl.study.file import Study
from tests.cli.answers import Call, assert_one_line


def test_compare_prints_writes_and_reads_again(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("compare", "tiny.toml", "--methods", "ridge, pooled-ridge", "--seeds", 2, "--out", "all")
    code, out, err = call(*arguments)
    assert code == 0
    title, header, *lines, rounds, folder = out.splitlines()
    assert rounds == "scored at round: ridge 1, pooled-ridge 1"
    assert title == "over clients and 2 seeds, intervals by the bootstrap" and header.split()[2] == "mean"
    groups = [
        f"{metric}, {group} clients" for group in ("existing", "new") for metric in ("rsmse", "ce", "nlpd", "crps")
    ]
    assert lines[::3] == groups
    assert [line.split()[0] for line in lines[1::3]] == ["ridge"] * 8
    assert [line.split()[0] for line in lines[2::3]] == ["pooled-ridge"] * 8
    assert folder == "folder: all"
    assert [line.split()[1] for line in err.splitlines()] == ["0/4", "1/4", "2/4", "3/4", "4/4"]
    values = [results.load(tmp_path / "all" / f"ridge-seed{seed}").column("new", "rsmse") for seed in (3, 4)]
    mean, low, high = nested_bootstrap(values)
    assert lines[13].split()[1:4] == [f"{mean:.3f}", f"[{low:.3f},", f"{high:.3f}]"]
    with (tmp_path / "all" / "compare.csv").open(newline="") as file:
        (row,) = [
            r for r in csv.DictReader(file) if (r["method"], r["group"], r["metric"]) == ("ridge", "new", "rsmse")
        ]
    assert (float(row["mean"]), float(row["low"]), float(row["high"])) == (mean, low, high)
    assert json.loads((tmp_path / "all" / "compare.json").read_text())["study"] == "tiny"
    monkeypatch.setattr(study, "train", lambda *_: pytest.fail("trained again"))
    again = call(*arguments, "--quiet")
    assert again == (0, out, "")


def test_compare_varies_a_value_of_every_method(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "save_joint", lambda *_: [])
    varied = ("--vary", "model.mean_widths=zero,[4],[4,2]", "--set", "federation.rounds=1", "--out", "all")
    code, out, err = call("compare", "tiny.toml", "--methods", "pac-pfl,pfedgp", *varied)
    widths = ("zero", "[4]", "[4, 2]")
    names = [f"{method} mean_widths={value}" for method in ("pac-pfl", "pfedgp") for value in widths]
    assert code == 0 and err.splitlines()[-1].split() == ["runs:", "6/6"]
    rsmse = out.splitlines()[3:9]
    assert [line[2 : 2 + len(name)] for line, name in zip(rsmse, names, strict=True)] == names
    assert sorted(path.name for path in (tmp_path / "all").glob("*-seed3")) == sorted(f"{name}-seed3" for name in names)
    run = Study.from_toml(tmp_path / "all" / "pfedgp mean_widths=[4, 2]-seed3" / "study.toml")
    assert (run.method.name, run.model.mean_widths) == ("pfedgp", (4, 2))  # type: ignore[union-attr]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_compare_says_how_to_go_on(call: Call, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(study, "train", lambda *_: os.kill(os.getpid(), number))
    arguments = ("compare", "tiny.toml", "--methods", "ridge", "--quiet")
    told = "pacbayes-fl: stopped; go on with --resume, finished runs are read\n"
    assert call(*arguments, "--out", "all") == (130, "", told)
    assert call(*arguments) == (130, "", "pacbayes-fl: stopped; nothing was kept, for want of --out\n")
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("error", [NumericalError("it has diverged"), RuntimeError("it has diverged")])
def test_a_compare_that_fails_tells_the_finished_runs(
    call: Call, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def broken(one: Study, *args: Any, **more: Any) -> Result:
        if one.method.name == "pooled-ridge":
            raise error
        return study.run(one, *args, **more)

    monkeypatch.setattr(study_compare, "run", broken)
    arguments = ("compare", "tiny.toml", "--methods", "ridge,pooled-ridge", "--out", "all", "--quiet")
    code, out, err = call(*arguments)
    assert code == 1 and "rsmse, new clients" in out and out.splitlines()[-1] == "folder: all"
    assert "it has diverged" in err and all(not line.startswith("pooled-ridge") for line in out.splitlines())
    monkeypatch.setattr(study_compare, "run", study.run)
    assert call(*arguments, "--resume")[0] == 0


def test_what_compare_refuses(call: Call) -> None:
    base = ("compare", "tiny.toml", "--quiet")
    assert_one_line(call(*base, "--seeds", 0), "--seeds must be at least 1, got 0")
    assert_one_line(call(*base, "--methods", "ridge,rigde"), "unknown method 'rigde' (did you mean 'ridge'?)")
    assert_one_line(call(*base, "--methods", "ridge,ridge"), "need different methods")
    for words in ("method.rate", "rate=1", "method.=1", "=1,2"):
        assert_one_line(call(*base, "--vary", words), f"--vary takes KEY=V1,V2, got {words!r}")
    assert_one_line(call(*base, "--vary", "method.rate=, "), "there is no value of 'method.rate' to take")
    assert_one_line(call(*base, "--methods", "ridge", "--vary", "method.rate=1"), "unknown key 'rate'")


def test_compare_says_what_private_runs_have_spent(call: Call, tmp_path: Path) -> None:
    sets = ("--set", "privacy.mechanism=paper_algorithm_3", "--rounds", 4, "--out", "both", "--quiet")
    code, out, _ = call("compare", "tiny.toml", *sets, "--vary", "privacy.epsilon=1,10")
    assert code == 0
    spent = json.loads((tmp_path / "both/compare.json").read_text())["privacy"]
    for claimed in (1.0, 10.0):
        name = f"pac-pfl epsilon={claimed}"
        (line,) = [line for line in out.splitlines() if line.startswith(f"{name}: ")]
        assert f"claims epsilon {claimed:g}, which does not hold" in line
        assert float(line.split("epsilon ")[1].split()[0]) >= spent[name]["epsilon"]
    assert "adds up" in out
