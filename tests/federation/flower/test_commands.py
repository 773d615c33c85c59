"""Flower's commands: TLS and keys always, and what is read of what they say."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from pacbayes_fl.errors import DeployError
from pacbayes_fl.federation.flower import commands

KEYS = Path("keys")


def test_no_command_is_without_tls_and_keys_and_none_calls_home() -> None:
    link = commands.of_link(KEYS, "127.0.0.1", 9092)
    node = commands.of_node(KEYS, "a:9092", 9094, {"worker": "/tmp/a b"})
    for command in (link, node):
        assert "--insecure" not in command and {"--ssl-certfile", "--ssl-keyfile", "--ssl-ca-certfile"} <= {*command}
    assert {"--enable-supernode-auth", "--disable-runtime-dependency-installation"} <= {*link}
    assert node[node.index("--root-certificates") + 1] == "keys/ca.pem" and node[-1] == 'worker="/tmp/a b"'
    assert node[node.index("--host") + 1] == "127.0.0.1"
    assert commands.ENVIRONMENT["FLWR_TELEMETRY_ENABLED"] == "0"
    assert commands.ENVIRONMENT["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert commands.ENVIRONMENT["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"


def test_flower_finds_the_superlink_by_its_configuration(tmp_path: Path) -> None:
    commands.write_home(tmp_path / "home", "a:9092", tmp_path / "ca.pem")
    read = tomllib.loads((tmp_path / "home" / "config.toml").read_text())["superlink"]
    assert read["deploy"] == {"address": "a:9092", "root-certificates": str((tmp_path / "ca.pem").resolve())}


class Said:
    def __init__(self, text: str) -> None:
        self.text, self.asked = text, list[list[str]]()

    def call(self, command: list[str], seconds: float = 60.0) -> str:
        self.asked.append(command)
        return self.text


def test_numbers_of_nodes_are_read_behind_whatever_else_is_said() -> None:
    said: Any = Said('an update is available\n{"success": true, "node-id": "17877892012997826544"}')
    assert commands.register(said, Path("a.pub")) == 17877892012997826544
    assert said.asked[0][:4] == ["flwr", "supernode", "register", "a.pub"]
    listed: Any = Said('{"success": true, "nodes": [{"node-id": "7", "status": "online"}, {"node-id": "8"}]}')
    assert commands.registered(listed) == {7, 8}
    for bad in ("nothing", "{}", '{"nodes": 3}', '{"nodes": [{}]}'):
        unread: Any = Said(bad)
        for call in (lambda said: commands.register(said, Path("a.pub")), commands.registered):
            with pytest.raises(DeployError, match="Flower does not say"):
                call(unread)


def test_an_app_is_submitted_with_the_servers_socket(tmp_path: Path) -> None:
    said: Any = Said("")
    commands.submit(said, Path("app"), Path("/tmp/s"))
    assert said.asked == [["flwr", "run", "app", "deploy", "--run-config", 'server="/tmp/s"']]
