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
    child = "import subprocess, time; print(subprocess.Popen(['sleep', '60']).pid, flush=True); time.sleep(60)"
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


def test_a_process_that_has_ended_is_named_with_what_it_said(tmp_path: Path) -> None:
    with Processes(tmp_path, {"MINE": "42"}) as running:
        assert running.call([sys.executable, "-c", "import os; print(os.environ['MINE'])"]).strip() == "42"
        with pytest.raises(DeployError, match=r"failed: .*no such thing"):
            running.call([sys.executable, "-c", "raise SystemExit('no such thing')"])
        running.start("short", [sys.executable, "-c", "raise SystemExit('out of luck')"])
        running._running["short"].wait(20)
        with pytest.raises(DeployError, match=r"short has ended with code 1: out of luck .*short.log"):
            running.check()


def test_keys_are_the_owners_alone(tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason="comes with Flower: pip install 'pacbayes_fl[flower]'")
    from cryptography import x509

    processes.write_keys(tmp_path / "keys", 2)
    files = {path.name: path for path in (tmp_path / "keys").iterdir()}
    assert {*files} == {"ca.pem", "server.pem", "server.key", "node_0.key", "node_0.pub", "node_1.key", "node_1.pub"}
    assert {path.stat().st_mode & 0o777 for path in files.values()} == {0o600}
    ca, server = (x509.load_pem_x509_certificate(files[name].read_bytes()) for name in ("ca.pem", "server.pem"))
    server.verify_directly_issued_by(ca)
    assert files["node_0.pub"].read_bytes().startswith(b"ecdsa-sha2-nistp384 ")
    assert files["node_0.pub"].read_bytes() != files["node_1.pub"].read_bytes()


def test_the_app_is_two_relays_and_nothing_else(tmp_path: Path) -> None:
    processes.write_app(tmp_path / "app")
    names = {path.relative_to(tmp_path / "app").as_posix() for path in (tmp_path / "app").rglob("*") if path.is_file()}
    assert names == {"pyproject.toml", "LICENSE", "relay/__init__.py", "relay/server.py", "relay/client.py"}
