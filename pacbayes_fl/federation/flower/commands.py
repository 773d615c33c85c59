"""Flower's commands as a deployment calls them: TLS and node keys always, no telemetry, nothing installed meanwhile."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from pacbayes_fl.errors import DeployError
from pacbayes_fl.federation.flower.processes import Processes
from pacbayes_fl.files import make_folder

ENVIRONMENT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",  # else each process asks Flower's makers, and ends after their answer
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",  # seconds, as a SuperNode looks for replies; a look is work
    }
)
"""Of every process of Flower."""

_LINK = "deploy"


def of_link(keys: Path, host: str, port: int) -> list[str]:
    """Give the command of a SuperLink.

    Args:
        keys: with `ca.pem`, `server.pem` and `server.key`.
        host: address at which it listens.
        port: its port.

    Returns:
        The command.
    """
    place = ["--host", host, "--port", str(port)]
    tls = _tls(keys / "ca.pem", keys / "server.pem", keys / "server.key")
    quiet = ["--enable-supernode-auth", "--disable-runtime-dependency-installation"]
    return ["flower-superlink", *place, *tls, *quiet]


def of_node(keys: Path, address: str, port: int, settings: Mapping[str, str]) -> list[str]:
    """Give the command of a SuperNode.

    Args:
        keys: of the node, with `ca.pem`, `node.key`, `loopback.pem` and `loopback.key`.
        address: HOST:PORT of the SuperLink.
        port: on this machine's loopback address, for Flower's own processes.
        settings: for its ClientApp.

    Returns:
        The command.
    """
    link = ["--superlink", address, "--root-certificates", str(keys / "ca.pem")]
    key = ["--auth-supernode-private-key", str(keys / "node.key")]
    place = ["--host", "127.0.0.1", "--port", str(port)]
    tls = _tls(keys / "loopback.pem", keys / "loopback.pem", keys / "loopback.key")
    own = " ".join(f"{name}={json.dumps(value)}" for name, value in settings.items())
    return ["flower-supernode", *link, *key, *place, *tls, "--node-config", own]


def write_home(home: Path, address: str, ca: Path) -> None:
    """Write where the command `flwr` finds the SuperLink.

    Args:
        home: the folder FLWR_HOME.
        address: HOST:PORT of the SuperLink.
        ca: certificate of the authority.
    """
    make_folder(home)
    place = f"address = {json.dumps(address)}\nroot-certificates = {json.dumps(str(ca.resolve()))}\n"
    text = f'[superlink]\ndefault = "{_LINK}"\n[superlink.{_LINK}]\n{place}'
    (home / "config.toml").write_text(text, encoding="utf-8")


def register(processes: Processes, key: Path) -> int:
    """Register a node's key.

    Args:
        processes: which have the environment.
        key: public, as OpenSSH writes it.

    Returns:
        Flower's number of the node, which belongs to its key.

    Raises:
        DeployError: when Flower refuses it.
    """
    said = processes.call(["flwr", "supernode", "register", str(key), _LINK, "--format", "json"])
    try:
        return int(json.loads(said[said.index("{") :])["node-id"])
    except (ValueError, KeyError) as error:
        raise DeployError(f"Flower does not say which node has been registered: {said.strip()[-200:]}") from error


def registered(processes: Processes) -> set[int]:
    """List the nodes that the SuperLink knows.

    Args:
        processes: which have the environment.

    Returns:
        Their numbers.

    Raises:
        DeployError: when Flower does not say.
    """
    said = processes.call(["flwr", "supernode", "list", _LINK, "--format", "json"])
    try:
        return {int(one["node-id"]) for one in json.loads(said[said.index("{") :])["nodes"]}
    except (ValueError, KeyError, TypeError) as error:
        raise DeployError(f"Flower does not say which nodes it knows: {said.strip()[-200:]}") from error


def submit(processes: Processes, app: Path, server: Path) -> None:
    """Submit the app, whose ServerApp calls the server.

    Args:
        processes: which have the environment.
        app: its folder.
        server: the server's socket.

    Raises:
        DeployError: when Flower refuses it.
    """
    config = f"server={json.dumps(str(server))}"
    processes.call(["flwr", "run", str(app), _LINK, "--run-config", config], 120.0)


def _tls(ca: Path, certificate: Path, key: Path) -> list[str]:
    files = {"--ssl-ca-certfile": ca, "--ssl-certfile": certificate, "--ssl-keyfile": key}
    return [part for flag, path in files.items() for part in (flag, str(path))]
