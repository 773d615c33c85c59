"""Processes that end with whoever has started them, and the ports that they need."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Final

from pacbayes_fl.errors import DeployError, one_line
from pacbayes_fl.federation.flower.parent import end_with_parent
from pacbayes_fl.files import make_folder, opened

HOST: Final = "127.0.0.1"
_GRACE: Final = 5.0  # seconds between asking a process to end and ending it
_MARK: Final = "PACBAYES_FL_DEPLOYMENT"  # of the environment, by which processes of a deployment are known
UNKNOWN: Final = "[code: 2004]"
"""What Flower 1.41 says of a key that it does not know."""
_MEANINGS: Final = MappingProxyType(
    {
        UNKNOWN: "the server knows no node of this key",
        "CERTIFICATE_VERIFY_FAILED": "the server's certificate does not hold under this ca.pem",
        "SuperNode terminated gracefully": "the server refuses this node's signature; see whether its clock is right",
    }
)


def check_installed() -> None:
    """Check that Flower is there.

    Raises:
        DeployError: when it is not.
    """
    if importlib.util.find_spec("flwr") is None:
        raise DeployError("Flower is not installed", hint="pip install 'pacbayes_fl[flower]'")


def check_ports(ports: Sequence[int]) -> None:
    """Check that nobody uses the ports of a deployment, before anything is started.

    Args:
        ports: on the loopback address.

    Raises:
        DeployError: naming the first that is in use.
    """
    for port in ports:
        with socket.socket() as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind((HOST, port))
            except OSError as error:
                what = f"port {port} of {HOST} cannot be used: {error.strerror}"
                raise DeployError(what, cause="port", hint="--port takes another first one") from error


def free_port() -> int:
    """Find a port of the loopback address that nobody uses now."""
    with socket.socket() as trial:
        trial.bind((HOST, 0))
        return int(trial.getsockname()[1])


def answers(host: str, port: int) -> bool:
    """Say whether somebody listens.

    Args:
        host: where.
        port: at which port.
    """
    with socket.socket() as trial:
        return trial.connect_ex((host, port)) == 0


class Processes:
    """Processes that end with the block, whatever ends it.

    Args:
        logs: folder of their output.
        environment: of all of them, beside that of this process.
    """

    def __init__(self, logs: Path, environment: dict[str, str]) -> None:
        """Start nothing yet."""
        make_folder(logs)
        self._logs, self._running = logs, dict[str, subprocess.Popen[bytes]]()
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        here = os.pathsep.join(filter(None, [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH")]))
        self._mark = secrets.token_hex(8)
        marked = {_MARK: self._mark, **environment}
        self._environment = {**os.environ, "PATH": path, "PYTHONPATH": here, **marked}

    def __enter__(self) -> Processes:
        """Give the processes."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all of them, and all that they have started, the last first."""
        running = [*reversed(self._running.values())]
        for process in running:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGTERM)
        until = time.monotonic() + _GRACE
        for process in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
        for process in running:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        while strays := self._strays():  # until they have gone: one may have started another meanwhile
            for pid in strays:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)

    def _strays(self) -> list[int]:
        """Find, where the kernel tells (Linux), those that have left the groups: a SuperLink's SuperExec does so."""
        mark, found = f"{_MARK}={self._mark}".encode(), list[int]()
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if mark in path.read_bytes().split(b"\0"):
                    found.append(int(path.parent.name))
        return found

    def start(self, name: str, command: Sequence[str]) -> None:
        """Start a process in a group of its own, so that a signal for this one does not reach it.

        Args:
            name: of its log.
            command: with arguments.
        """
        with opened(self._logs / f"{name}.log", "wb") as log:
            self._running[name] = subprocess.Popen(  # noqa: S603 - of our own making
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )

    def call(self, command: Sequence[str], seconds: float = 60.0) -> str:
        """Run a command to its end.

        Args:
            command: with arguments.
            seconds: for which to wait.

        Returns:
            What it printed.

        Raises:
            DeployError: when it fails, with the end of what it said.
        """
        try:
            done = subprocess.run(  # noqa: S603 - of our own making
                command, env=self._environment, capture_output=True, text=True, timeout=seconds, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise DeployError(f"{' '.join(command[:3])} did not end within {seconds:g} s") from error
        if done.returncode:
            raise DeployError(f"{' '.join(command[:3])} failed: {(done.stdout + done.stderr).strip()[-300:]}")
        return done.stdout

    def check(self) -> None:
        """Check that all are still running.

        Raises:
            DeployError: naming the first that is not, with the end of its log, or with what that means.
        """
        for name, process in self._running.items():
            if (log := self.ended(name)) is not None:
                known = next((said for mark, said in _MEANINGS.items() if mark in log), one_line(log[-300:]))
                what = f"{name} has ended with code {process.returncode}: {known}"
                raise DeployError(what, cause="process", hint=f"its log is {self._logs / f'{name}.log'}")

    def ended(self, name: str) -> str | None:
        """Read the log of a process that has ended.

        Args:
            name: under which it was started.

        Returns:
            What it said; None while it is running.
        """
        if self._running[name].poll() is None:
            return None
        return (self._logs / f"{name}.log").read_text("utf-8", "replace").strip()

    def pid(self, name: str) -> int:
        """Give the number of a process, which is that of its group too.

        Args:
            name: under which it was started.
        """
        return self._running[name].pid

    def wait(self, seconds: float, ready: Callable[[], bool], what: str) -> None:
        """Wait while all are running.

        Args:
            seconds: at most.
            ready: whether the wait is over.
            what: is waited for, for the message.

        Raises:
            DeployError: when one has ended, or the time is over.
        """
        until = time.monotonic() + seconds
        while not ready():
            self.check()
            if time.monotonic() > until:
                raise DeployError(f"{what} within {seconds:g} s", cause="process")
            time.sleep(0.1)
