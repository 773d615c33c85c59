"""Commands of a deployment as their owners type them, in processes that are found again by a mark, and all end."""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from pacbayes_fl.errors import DeployError
from pacbayes_fl.federation import checkpoint
from pacbayes_fl.federation.flower import processes
from pacbayes_fl.study.file import Study

ROOT = Path(__file__).parent.parent
SMALL = ["method.particles=2", "federation.device=cpu", "data.scale=client"]


def study_of(rounds: int, *more: str) -> Study:
    return Study.from_toml("polynomial", [f"federation.rounds={rounds}", *SMALL, *more])


def needs_flower() -> None:
    pytest.importorskip("flwr", reason="Flower is not installed; `make deploy-test` has an environment with it")


def free(count: int) -> int:
    """Find consecutive ports that nobody uses."""
    for first in range(20000 + 50 * (os.getpid() % 500), 60000, count):
        try:
            processes.check_ports(range(first, first + count))
        except DeployError:
            continue
        return first
    raise AssertionError("no port is free")


def until(ready: Callable[[], object], seconds: float = 250.0, what: str = "") -> None:
    """Wait for something that comes to pass; the time is generous, since a machine may do much else."""
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end, what or "it did not come to pass"
        time.sleep(0.05)


def rounds_in(folder: Path) -> int:
    path = folder / "rounds.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def server_of(folder: Path) -> dict[str, Any]:
    saved = checkpoint.load(folder)
    assert saved is not None
    return {name: leaf for name, leaf in saved.tensors.items() if name.startswith(("server", "average"))}


def commands_in(readme: str) -> list[str]:
    """Take the commands out of Markdown."""
    return re.findall(r"^```sh\n(.*?)\n```$", readme, re.MULTILINE | re.DOTALL)


class Owners:
    """Whoever types commands; every process and all that it starts bear a mark in their environment.

    Args:
        logs: folder of what they print.
    """

    def __init__(self, logs: Path) -> None:
        logs.mkdir(exist_ok=True)
        self.logs, self.mark = logs, f"PACBAYES_FL_MARK={secrets.token_hex(8)}"
        self.running = dict[str, subprocess.Popen[bytes]]()
        name, _, value = self.mark.partition("=")
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        python = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        self.marked = (name, value)
        self.environment = {**os.environ, name: value, "PATH": path, "PYTHONPATH": python}

    def __enter__(self) -> Owners:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while left := self.left():  # one may have started another meanwhile
            for pid in left:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        for process in self.running.values():
            process.wait()

    def type(self, name: str, line: str, where: Path) -> subprocess.Popen[bytes]:
        """Start a line of a shell in a session of its own, as in a terminal."""
        with (self.logs / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                ["bash", "-c", f"exec env {line}"],
                cwd=where,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self.running[name]

    def said(self, name: str) -> str:
        return (self.logs / f"{name}.log").read_text("utf-8", "replace")

    def done(self, name: str, line: str, where: Path, code: int = 0, seconds: float = 250.0) -> str:
        """Type a line, and wait for its end."""
        self.type(name, line, where)
        return self.ended(name, code, seconds)

    def ended(self, name: str, code: int = 0, seconds: float = 250.0) -> str:
        """Wait for the end of a line that was typed."""
        ended = self.running[name].wait(seconds)
        assert ended == code, self.said(name)
        return self.said(name)

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        os.kill(self.running[name].pid, number)

    def left(self) -> list[int]:
        """Processes that bear the mark and have not ended."""
        found = list[int]()
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                alive = (path / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
                if alive and self.mark.encode() in (path / "environ").read_bytes().split(b"\0"):
                    found.append(int(path.name))
        return found

    def stop(self, *names: str) -> None:
        """Press Ctrl-C at each of them, and see that nothing is left."""
        for name in names:
            self.kill(name, signal.SIGINT)
        try:
            until(lambda: not self.left(), 150.0)
        except AssertionError:
            left = [Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ") for pid in self.left()]
            raise AssertionError(f"left after Ctrl-C: {left}") from None
