"""The command line under fault: whatever goes wrong is one line and an exit code, and a refused run leaves nothing."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pacbayes_fl import cli
from pacbayes_fl.errors import DataError, PacBayesFLError
from pacbayes_fl.federation import checkpoint
from pacbayes_fl.federation.checkpoint import RunLock
from tests.tiny import TABLE, write_study

# What each command needs to be called at all.
ARGUMENTS = {
    "run": ["polynomial"],
    "compare": ["polynomial"],
    "tune": ["polynomial"],
    "list": ["methods"],
    "show": ["run"],
    "plot": ["run"],
    "certify": ["run"],
    "bound": ["seeger", "--n", "9", "--delta", "0.1"],
    "join": ["run", "--data", "rows.csv"],
    "predict": ["run", "--client", "c0", "--data", "rows.csv"],
}


def too_deep() -> None:
    too_deep()


def unheard_of() -> None:
    raise ValueError("first line\n  second \x1b[31mline")


def no_memory() -> None:
    raise MemoryError("Unable to allocate 7 TiB")


def no_memory_of_torch() -> None:
    import torch

    torch.empty(2**60)


FAULTS: dict[str, tuple[Callable[[], None], str]] = {
    "RecursionError": (too_deep, "(a defect of pacbayes-fl: run it again with --debug for the trace, and report that)"),
    "ValueError": (unheard_of, "ValueError: first line second \\x1b[31mline (a defect of pacbayes-fl"),
    "KeyError": (lambda: {}["lost"], "KeyError: 'lost' (a defect of pacbayes-fl"),
    "AssertionError": (lambda: exec("assert False"), "AssertionError (a defect of pacbayes-fl"),
    "MemoryError": (no_memory, "memory is exhausted: MemoryError: Unable to allocate 7 TiB (ask for less"),
    "RuntimeError": (no_memory_of_torch, "memory is exhausted: RuntimeError"),
    "OSError": (lambda: os.stat("nowhere"), "nowhere: No such file"),
    "DataError": (lambda: (_ for _ in ()).throw(DataError("bad\nrow", client="c\n0")), "client 'c\\n0': bad row"),
}


def test_every_command_is_attacked() -> None:
    found = next(each for each in cli.parser()._actions if isinstance(each, argparse._SubParsersAction))
    assert set(found.choices) == set(ARGUMENTS)


@pytest.mark.parametrize("command", ARGUMENTS)
@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_happens_is_one_line_and_debug_shows_where(
    command: str, fault: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each kind of failure inside each command, without --debug, and with it before and after the command."""
    raised, text = FAULTS[fault]
    monkeypatch.setattr(cli, f"_{command}", lambda options: raised())
    given = [command, *ARGUMENTS[command]]
    assert cli.main(given) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith("pacbayes-fl: ") and err[:-1].isprintable()
    assert text in err
    for arguments in (["--debug", *given], [*given, "--debug"], ["--debug", *given, "--debug"]):
        assert cli.main(arguments) == 1
        out, traced = capsys.readouterr()
        assert out == "" and traced.endswith(err)
        assert traced.startswith("Traceback (most recent call last)") and fault in traced


def test_debug_is_no_part_of_what_a_command_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "methods"]) == cli.main(["--debug", "list", "methods"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[: len(lines) // 2] == lines[len(lines) // 2 :]


def test_stopping_is_still_130_and_a_wrong_command_still_2(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(options: argparse.Namespace) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_show", stopped)
    assert cli.main(["show", "run"]) == 130
    with pytest.raises(SystemExit) as left:
        cli.main(["--debug"])
    assert left.value.code == 2


@pytest.mark.parametrize("raised", [DataError("refused"), ZeroDivisionError(), KeyboardInterrupt()], ids=repr)
def test_a_refused_run_leaves_what_it_found(
    raised: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither its folder, nor one above it, nor a lock in a folder of the user's."""

    def refuse(*_: object) -> None:
        raise raised

    monkeypatch.setattr("pacbayes_fl.study.load", refuse)
    study = str(write_study(tmp_path))
    before = sorted(tmp_path.rglob("*"))
    for out in ("new", "deep/deeper/new"):
        assert cli.main(["run", study, "--quiet", "--out", str(tmp_path / out)]) in (1, 130)
        assert cli.main(["compare", study, "--quiet", "--out", str(tmp_path / out)]) in (1, 130)
        assert sorted(tmp_path.rglob("*")) == before
    (tmp_path / "mine").mkdir()
    assert cli.main(["run", study, "--quiet", "--out", str(tmp_path / "mine")]) in (1, 130)
    assert sorted(tmp_path.rglob("*")) == sorted([*before, tmp_path / "mine"])


def test_a_run_that_has_written_something_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure after the first file is a run to go on with."""
    monkeypatch.setattr("pacbayes_fl.federation.engine.rounds", lambda *_: (_ for _ in ()).throw(ZeroDivisionError()))
    study, folder = str(write_study(tmp_path, TABLE)), tmp_path / "run"
    assert cli.main(["run", study, "--quiet", "--out", str(folder)]) == 1
    assert {"study.toml", "run.lock", "data.npz"} <= {path.name for path in folder.iterdir()}


def test_a_lock_that_its_maker_takes_away_is_taken_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who opened the file of a failed run just before it went must not lock a file that nobody else can see."""
    folder = tmp_path / "run"
    first, real = RunLock(folder), checkpoint.opened
    first.__enter__()

    def late(path: Path, mode: str, **named: object) -> object:
        file = real(path, mode, **named)
        monkeypatch.setattr(checkpoint, "opened", real)
        first.__exit__(DataError, None, None)  # takes run.lock and its folder away
        return file

    monkeypatch.setattr(checkpoint, "opened", late)
    with RunLock(folder):
        with pytest.raises(PacBayesFLError, match="in use"), RunLock(folder):
            pass
        assert (folder / "run.lock").read_text().startswith("pid ")


def test_the_program_itself_ends_without_a_trace(tmp_path: Path) -> None:
    """As a process: its own exit code and its own stderr."""
    code = (
        "import sys; from pacbayes_fl import cli; cli._list = lambda options: 1 / 0; sys.exit(cli.main(sys.argv[1:]))"
    )
    done = subprocess.run([sys.executable, "-c", code, "list", "methods"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("pacbayes-fl: ZeroDivisionError: division by zero (") and done.stderr.count("\n") == 1
