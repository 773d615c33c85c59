"""The command line: exit codes, and one line for whatever is wrong."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from pacbayes_fl import cli
from pacbayes_fl.results.manifest import put
from tests.cli.answers import Call, assert_one_line

COMMANDS = ("run", "compare", "tune", "list", "show", "plot", "certify", "bound", "join", "predict")


@pytest.mark.parametrize("arguments", [[], *([name] for name in COMMANDS)])
def test_help_is_no_failure(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main([*arguments, "-h"])
    out = capsys.readouterr().out
    assert left.value.code == 0
    assert "usage: pacbayes-fl" in out and "%%" not in out
    assert all(name in out for name in ([] if arguments else COMMANDS))


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["train"],
        ["run"],
        ["run", "tiny.toml", "--rounds", "many"],
        ["run", "tiny.toml", "--device", "gpu"],
        ["list", "bugs"],
        ["predict", "run"],
        ["tune", "tiny.toml", "--score", "crps"],
        ["bound", "seeger", "--risk", "0.1", "--kl", "1"],
        ["certify"],
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(arguments)
    assert left.value.code == 2
    assert "pacbayes-fl" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["show", "plot", "predict", "join", "certify"])
def test_a_folder_that_is_no_run_is_refused(call: Call, command: str) -> None:
    more = {"predict": ["--client", "a", "--data", "a.csv"], "join": ["--data", "a.csv"]}.get(command, [])
    assert_one_line(call(command, ".", *more), "run folder", "missing")


def test_what_is_no_finished_run_says_what_it_is(call: Call, finished: Path, tmp_path: Path) -> None:
    assert_one_line(call("show", "nowhere"), "there is no folder nowhere (runs are in runs/")
    (tmp_path / "empty").mkdir()
    assert_one_line(call("show", "empty"), "empty is not a run folder: metrics.json and ")
    shutil.copytree(finished, tmp_path / "half")
    for name in ("metrics.json", "manifest.json"):
        (tmp_path / "half" / name).unlink()
    for command in ("show", "plot"):
        assert_one_line(call(command, "half"), "half is not a finished run folder: metrics.json is missing", "--resume")
    shutil.copytree(finished, tmp_path / "all" / "pac-pfl-seed3")
    assert_one_line(call("show", "all"), "all holds a comparison that has not finished (run compare again with the sam")
    put(tmp_path / "all", {"compare.json": b"{}"})
    for command in ("certify", "predict", "join"):
        more = {"predict": ("--client", "c", "--data", "x.csv"), "join": ("--data", "x.csv")}.get(command, ())
        assert_one_line(call(command, "all", *more), "all holds a comparison (give one of its runs: pac-pfl-seed3)")
    assert_one_line(call("show", "all"), "compare.json cannot be read: 'runs' (run compare again")
    runs = {"runs": [{"folder": "../half", "method": "ridge", "seed": 3}]}
    put(tmp_path / "all", {"compare.json": json.dumps(runs).encode()})
    assert_one_line(call("plot", "all"), "compare.json names a run outside of its folder: '../half'")
    runs["runs"][0]["folder"] = "lost-seed3"
    put(tmp_path / "all", {"compare.json": json.dumps(runs).encode()})
    assert_one_line(call("plot", "all"), "there is no folder all/lost-seed3")


def test_a_reader_that_has_gone_is_no_failure(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as gone:
        monkeypatch.setattr(sys, "stdout", gone)
        assert cli.main(["show", str(finished)]) == 0
        monkeypatch.undo()


def test_warnings_and_their_printing_are_as_before(call: Call) -> None:
    import warnings

    before = (warnings.showwarning, list(warnings.filters))
    call("list", "methods")
    assert (warnings.showwarning, list(warnings.filters)) == before
