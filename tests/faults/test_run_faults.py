"""The command, in a process of its own, that is told to stop or killed: what is on disk then, and how it goes on."""

from __future__ import annotations

import json
import multiprocessing
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pacbayes_fl import cli
from pacbayes_fl.federation import checkpoint
from pacbayes_fl.results import rounds
from pacbayes_fl.results.manifest import problems
from tests.forked import fork
from tests.tiny import TABLE, assert_same_results, write_study

ROUNDS, KILLS, EVERY = 400, 4, 7
START = "import sys; from pacbayes_fl.cli import main; sys.exit(main(sys.argv[1:]))"
TIMEOUT = 120.0


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a study of many short rounds."""
    federation = TABLE["federation"] | {"rounds": ROUNDS, "checkpoint_every": EVERY}
    return write_study(tmp_path_factory.mktemp("study"), TABLE | {"federation": federation})


@pytest.fixture(scope="module")
def whole(study: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert cli.main(["run", str(study), "--out", str(folder), "--quiet"]) == 0
    return folder


def start(study: Path, folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", START, "run", str(study), "--out", str(folder), "--resume", "--quiet"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def rounds_of(folder: Path) -> int:
    return len(rounds.read_rounds(folder))


def opened(folder: Path) -> int:
    """Return when a run last opened the folder, 0 if never."""
    path = folder / "environment.json"
    return path.stat().st_mtime_ns if path.exists() else 0


def wait_for(alive: Callable[[], bool], folder: Path, least: int, before: int = 0) -> None:
    """Wait until the process has opened the folder and recorded a round, which says that it trains."""
    until, lines = time.monotonic() + TIMEOUT, folder / "rounds.jsonl"
    while not (opened(folder) > before and lines.exists() and lines.stat().st_mtime_ns > opened(folder)) or (
        rounds_of(folder) < least
    ):
        assert alive(), "it has ended"
        assert time.monotonic() < until, "it has not begun"
        time.sleep(0.002)


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=TIMEOUT)
    return process.returncode, out, err


def assert_like(folder: Path, whole: Path) -> None:
    """Check that a run ended as the undisturbed one: states and metrics to the bit, rounds but for their seconds."""
    assert_same_results(folder, whole)
    mine, theirs = (
        [json.loads(line) for line in (one / "rounds.jsonl").read_text().splitlines()] for one in (folder, whole)
    )
    for line in (*mine, *theirs):
        assert line["values"].pop("seconds") > 0
    assert mine == theirs and len(mine) == ROUNDS


@pytest.mark.slow
def test_sigterm_ends_in_order_and_the_run_goes_on_to_the_same_bits(
    study: Path, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    process = start(study, folder)
    try:
        wait_for(lambda: process.poll() is None, folder, 3)
        # meanwhile nobody else gets in, whatever he wants
        for more in ((), ("--resume",)):
            assert cli.main(["run", str(study), "--out", str(folder), "--quiet", *more]) == 1
            assert f"in use by pid {process.pid}, host " in capsys.readouterr().err
        process.send_signal(signal.SIGTERM)
        code, out, err = finish(process)
    finally:
        process.kill()
    assert (code, out, err) == (130, "", "pacbayes-fl: stopped; go on with --resume\n")
    saved = checkpoint.load(folder)
    assert saved is not None and saved.warnings == ()
    assert saved.round == rounds_of(folder) < ROUNDS  # the round that was under way is kept too
    assert cli.main(["run", str(study), "--out", str(folder), "--resume", "--quiet"]) == 0
    assert_like(folder, whole)


@pytest.mark.slow
@fork
def test_sigkill_at_any_moment_loses_at_most_one_interval(study: Path, whole: Path, tmp_path: Path) -> None:
    """Lives are forked off, which saves most of their time: that of imports."""
    folder, moments, at, before = tmp_path / "run", random.Random(1), 0, 0
    command = ["run", str(study), "--out", str(folder), "--resume", "--quiet"]
    for kill in range(KILLS):
        last = opened(folder)
        life = multiprocessing.get_context("fork").Process(target=cli.main, args=(command,))
        life.start()
        try:
            wait_for(life.is_alive, folder, at + 1 + (EVERY if kill == KILLS - 1 else 0), last)
            time.sleep(moments.uniform(0.0, 0.15) if kill else 0.0)
        finally:
            life.kill()
            life.join()
        assert life.exitcode == -signal.SIGKILL
        done = rounds_of(folder)
        assert problems(folder) == {}
        saved = checkpoint.load(folder)
        at = 0 if saved is None else saved.round
        assert saved is None or saved.warnings == ()
        assert at % EVERY == 0 and at <= done <= at + EVERY  # one interval at most, and its record is there
        assert at >= before  # never behind what an earlier life had saved
        before = at
    assert EVERY < done < ROUNDS
    assert cli.main(["run", str(study), "--out", str(folder), "--resume", "--quiet"]) == 0
    assert_like(folder, whole)
    assert not [path for path in (folder / "checkpoints").iterdir() if path.suffix in (".tmp", ".old")]
