"""The processes of a deployment on this machine: a SuperLink and SuperNodes, with TLS, keys and ports of their own."""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import importlib.util
import ipaddress
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

from pacbayes_fl.errors import DeployError
from pacbayes_fl.files import make_folder, opened

HOST: Final = "127.0.0.1"
_PR_SET_PDEATHSIG: Final = 1
_GRACE: Final = 5.0  # seconds between asking a process to end and ending it
_APP: Final = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "pacbayes-fl-deployment"
version = "0.1.0"
description = "Passes messages of pacbayes_fl on"
license = { file = "LICENSE" }
dependencies = ["flwr>=1.41"]
[tool.hatch.build.targets.wheel]
packages = ["."]
[tool.flwr.app]
publisher = "pacbayes-fl"
fab-format-version = 1
flwr-version-target = "1.41.0"
[tool.flwr.app.components]
serverapp = "relay.server:app"
clientapp = "relay.client:app"
[tool.flwr.app.config]
server = ""
"""


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


def write_app(folder: Path) -> None:
    """Write the Flower app, which holds nothing but where the relays are.

    Args:
        folder: of the app.
    """
    make_folder(folder / "relay")
    files = {
        "pyproject.toml": _APP,
        "LICENSE": "Apache-2.0\n",
        "relay/__init__.py": "",
        "relay/server.py": "from pacbayes_fl.federation.flower import server_app\n\napp = server_app.app\n",
        "relay/client.py": "from pacbayes_fl.federation.flower import client_app\n\napp = client_app.app\n",
    }
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")


def write_keys(folder: Path, nodes: int) -> None:
    """Make a certificate authority, a certificate of the server, and a key of every node.

    Args:
        folder: in which `ca.pem`, `server.pem`, `server.key`, `node_0.key`, `node_0.pub`, ... are written.
        nodes: their number.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    make_folder(folder)
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()

    def put(name: str, data: bytes) -> None:
        with opened(folder / name, "wb") as file:
            file.write(data)

    def private(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> bytes:
        return bytes(key.private_bytes(pem, form, plain))

    ca_key, server_key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "pacbayes-fl deployment")])
    server_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)

    def builder(subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        begun = x509.CertificateBuilder().subject_name(subject).issuer_name(ca_name).public_key(key.public_key())
        begun = begun.serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(hours=1))
        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
        begun = begun.add_extension(identifier, critical=False).add_extension(authority, critical=False)
        return begun.not_valid_after(now + datetime.timedelta(days=30))

    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    authority = builder(ca_name, ca_key).add_extension(x509.BasicConstraints(True, None), critical=True)
    ca = authority.add_extension(usage, critical=True).sign(ca_key, hashes.SHA384())
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address(HOST))])
    server = builder(server_name, server_key).add_extension(names, critical=False).sign(ca_key, hashes.SHA384())
    put("ca.pem", ca.public_bytes(pem))
    put("server.pem", server.public_bytes(pem))
    put("server.key", private(server_key, serialization.PrivateFormat.PKCS8))
    for k in range(nodes):
        key = ec.generate_private_key(ec.SECP384R1())
        put(f"node_{k}.key", private(key, serialization.PrivateFormat.OpenSSH))
        public = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        put(f"node_{k}.pub", key.public_key().public_bytes(*public))


def _end_with_parent() -> None:
    """Ask the kernel, where it can (Linux), to end a new process with the one that has started it, also by kill -9."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


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
        quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1"}
        quiet["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"] = "0.05"  # seconds, of which 1 is the default
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        here = os.pathsep.join(filter(None, [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH")]))
        self._environment = {**os.environ, **quiet, "PATH": path, "PYTHONPATH": here, **environment}

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
                preexec_fn=_end_with_parent,
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
            DeployError: naming the first that is not, with the end of its log.
        """
        for name, process in self._running.items():
            if process.poll() is not None:
                log = (self._logs / f"{name}.log").read_text("utf-8", "replace").strip()
                what = f"{name} has ended with code {process.returncode}: {log[-300:]}"
                raise DeployError(what, cause="process", hint=f"its log is {self._logs / f'{name}.log'}")


class Flower:
    """A SuperLink and SuperNodes on the loopback address.

    Args:
        processes: in which they run.
        folder: of keys, configuration and the app.
        port: of the SuperLink; the SuperNodes have those after it.
    """

    def __init__(self, processes: Processes, folder: Path, port: int) -> None:
        """Start nothing yet."""
        self._processes, self._folder, self._port = processes, folder, port

    def start_link(self, seconds: float = 60.0) -> None:
        """Start the SuperLink, and wait until it answers.

        Args:
            seconds: for which to wait.
        """
        keys, home = self._folder / "keys", self._folder / "flwr"
        make_folder(home)
        config = f'[superlink]\ndefault = "deploy"\n[superlink.deploy]\naddress = "{HOST}:{self._port}"\n'
        (home / "config.toml").write_text(config + f'root-certificates = "{keys / "ca.pem"}"\n', encoding="utf-8")
        files = ("--ssl-ca-certfile", "ca.pem"), ("--ssl-certfile", "server.pem"), ("--ssl-keyfile", "server.key")
        tls = [part for flag, name in files for part in (flag, str(keys / name))]
        place = ["--host", HOST, "--port", str(self._port)]
        quiet = ["--enable-supernode-auth", "--disable-runtime-dependency-installation"]
        self._processes.start("superlink", ["flower-superlink", *place, *tls, *quiet])
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._processes.check()
            with socket.socket() as trial:
                if trial.connect_ex((HOST, self._port)) == 0:
                    return
            time.sleep(0.1)
        raise DeployError(f"the SuperLink does not answer within {seconds:g} s", cause="process")

    def add_node(self, k: int, settings: dict[str, str]) -> int:
        """Register a node's key, and start its SuperNode.

        Args:
            k: position of the node.
            settings: for its ClientApp.

        Returns:
            Flower's number of the node, which belongs to its key.
        """
        keys = self._folder / "keys"
        said = self._processes.call(
            ["flwr", "supernode", "register", str(keys / f"node_{k}.pub"), "deploy", "--format", "json"]
        )
        try:
            number = int(json.loads(said[said.index("{") :])["node-id"])
        except (ValueError, KeyError) as error:
            raise DeployError(f"Flower does not say which node has been registered: {said.strip()[-200:]}") from error
        own = " ".join(f"{name}={json.dumps(value)}" for name, value in settings.items())
        link = ["--superlink", f"{HOST}:{self._port}", "--root-certificates", str(keys / "ca.pem")]
        place = ["--host", HOST, "--port", str(self._port + 1 + k)]
        files = ("--ssl-ca-certfile", "ca.pem"), ("--ssl-certfile", "server.pem"), ("--ssl-keyfile", "server.key")
        tls = [part for flag, name in files for part in (flag, str(keys / name))]
        key = ["--auth-supernode-private-key", str(keys / f"node_{k}.key")]
        self._processes.start(f"supernode_{k}", ["flower-supernode", *link, *place, *tls, *key, "--node-config", own])
        return number

    def start_app(self, server: Path) -> None:
        """Submit the app, whose ServerApp calls the server.

        Args:
            server: the server's socket.
        """
        write_app(self._folder / "app")
        config = f"server={json.dumps(str(server))}"
        self._processes.call(["flwr", "run", str(self._folder / "app"), "deploy", "--run-config", config], 120.0)
