"""Two runs never share a folder, and a killed run leaves no lock behind."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from pacbayes_fl.errors import CheckpointError
from pacbayes_fl.federation.lock import RunLock
from tests.forked import child, fork


@fork
def test_a_second_run_in_the_folder_is_refused(tmp_path: Path) -> None:
    def work() -> int:
        try:
            with RunLock(tmp_path):
                return 0
        except CheckpointError as error:
            (tmp_path / "message").write_text(str(error))
            return 7

    with RunLock(tmp_path):
        assert os.waitstatus_to_exitcode(child(work)) == 7
        message = (tmp_path / "message").read_text()
        assert f"in use by pid {os.getpid()}, host {os.uname().nodename}" in message
        with pytest.raises(CheckpointError, match="in use by pid"), RunLock(tmp_path):
            pass
    assert os.waitstatus_to_exitcode(child(work)) == 0


@fork
def test_the_lock_of_a_killed_run_is_free_at_once(tmp_path: Path) -> None:
    def work() -> None:
        RunLock(tmp_path).__enter__()
        os.kill(os.getpid(), signal.SIGKILL)

    assert os.WTERMSIG(child(work)) == signal.SIGKILL
    assert "pid" in (tmp_path / "run.lock").read_text()
    with RunLock(tmp_path):  # and names its new holder, not the dead one
        assert (tmp_path / "run.lock").read_text().startswith(f"pid {os.getpid()},")


def test_a_run_that_is_refused_leaves_nothing_beside_files_of_others(tmp_path: Path) -> None:
    (tmp_path / "letter").touch()
    with pytest.raises(ValueError), RunLock(tmp_path):
        raise ValueError
    assert [path.name for path in tmp_path.iterdir()] == ["letter"]
    with pytest.raises(ValueError), RunLock(tmp_path):
        (tmp_path / "study.toml").touch()
        raise ValueError
    assert {path.name for path in tmp_path.iterdir()} == {"letter", "study.toml", "run.lock"}
