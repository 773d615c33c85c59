"""Processes that end with the deployment, ports that are tried first, and keys."""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path

import pytest

from pacbayes_fl.errors import DeployError
from pacbayes_fl.federation.flower import processes
from pacbayes_fl.federation.flower.processes import Processes


def alive(pid: int) -> bool:
    path = Path(f"/proc/{pid}/stat")
    return path.is_file() and path.read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_port_in_use_is_named_before_anything_starts() -> None:
    with socket.socket() as other:
        other.bind((processes.HOST, 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(DeployError, match=f"port {port} of 127.0.0.1 cannot be used: .*--port"):
            processes.check_ports([port])
    processes.check_ports([port])


def test_flower_is_missed_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DeployError, match=r"Flower is not installed .*pacbayes_fl\[flower\]"):
        processes.check_installed()


def test_all_processes_end_with_the_block_also_those_that_do_not_want_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_GRACE", 0.3)
    start = "subprocess.Popen(['sleep', '60'], start_new_session=True)"
    child = f"import subprocess, time; print({start}.pid, flush=True); time.sleep(60)"
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
    with pytest.raises(ZeroDivisionError), Processes(tmp_path, {}) as running:
        running.start("child", [sys.executable, "-c", child])
        running.start("deaf", [sys.executable, "-c", deaf])
        until = time.monotonic() + 20
        while not all((tmp_path / f"{name}.log").read_text() for name in ("child", "deaf")):
            assert time.monotonic() < until
            time.sleep(0.02)
        running.check()
        pids = [process.pid for process in running._running.values()]
        pids.append(int((tmp_path / "child.log").read_text()))
        raise ZeroDivisionError
    assert not any(map(alive, pids))


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="the kernel does not tell")
def test_those_that_left_their_group_end_too(tmp_path: Path) -> None:
    """Flower's SuperLink starts its SuperExec so, which starts the ServerApp."""
    child = "import subprocess; print(subprocess.Popen(['sleep', '60'], start_new_session=True).pid, flush=True)"
    with Processes(tmp_path, {}) as running, Processes(tmp_path / "other", {}) as other:
        other.start("bystander", ["sleep", "60"])
        running.start("child", [sys.executable, "-c", child])
        until = time.monotonic() + 20
        while not (text := (tmp_path / "child.log").read_text()):
            assert time.monotonic() < until
            time.sleep(0.02)
        assert alive(int(text))
        running.__exit__(None, None, None)
        time.sleep(0.1)
        assert not alive(int(text)) and alive(other._running["bystander"].pid)


def test_a_process_that_has_ended_is_named_with_what_it_said(tmp_path: Path) -> None:
    with Processes(tmp_path, {"MINE": "42"}) as running:
        assert running.call([sys.executable, "-c", "import os; print(os.environ['MINE'])"]).strip() == "42"
        with pytest.raises(DeployError, match=r"failed: .*no such thing"):
            running.call([sys.executable, "-c", "raise SystemExit('no such thing')"])
        running.start("short", [sys.executable, "-c", "raise SystemExit('out of luck')"])
        running._running["short"].wait(20)
        with pytest.raises(DeployError, match=r"short has ended with code 1: out of luck .*short.log"):
            running.check()
        assert running.ended("short") == "out of luck"
        running.start("long", [sys.executable, "-c", "import time; time.sleep(60)"])
        assert running.ended("long") is None


def test_a_wait_ends_with_a_process_with_the_time_or_with_what_was_waited_for(tmp_path: Path) -> None:
    with Processes(tmp_path, {}) as running:
        running.wait(1.0, lambda: True, "never")
        with pytest.raises(DeployError, match=r"nobody has come within 0.2 s"):
            running.wait(0.2, lambda: False, "nobody has come")
        running.start("short", [sys.executable, "-c", "print('x' * 500 + '[code: 2004] Failed to activate')"])
        with pytest.raises(DeployError, match="short has ended with code 0: the server knows no node of this key"):
            running.wait(20.0, lambda: False, "nobody has come")
        running._running.pop("short").wait()
        running.start("clock", [sys.executable, "-c", "print('SuperNode terminated gracefully.'); raise SystemExit(1)"])
        with pytest.raises(DeployError, match=r"clock has ended with code 1: .*see whether its clock is right"):
            running.wait(20.0, lambda: False, "nobody has come")


def test_a_free_port_is_nobodys() -> None:
    port = processes.free_port()
    processes.check_ports([port])
    assert not processes.answers(processes.HOST, port)
    with socket.socket() as other:
        other.bind((processes.HOST, port))
        other.listen()
        assert processes.answers(processes.HOST, port)
