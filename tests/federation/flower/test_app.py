"""The Flower app."""

from __future__ import annotations

import tomllib
from pathlib import Path

from pacbayes_fl.federation.flower.app import write_app


def test_the_app_is_two_relays_and_a_study(tmp_path: Path) -> None:
    write_app(tmp_path / "app", "name = 'a'\n")
    names = {path.relative_to(tmp_path / "app").as_posix() for path in (tmp_path / "app").rglob("*") if path.is_file()}
    relays = {"relay/__init__.py", "relay/server.py", "relay/client.py"}
    assert names == {"pyproject.toml", "LICENSE", "study.toml", *relays}
    project = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())
    assert project["tool"]["flwr"]["app"]["components"] == {
        "serverapp": "relay.server:app",
        "clientapp": "relay.client:app",
    }
