"""A node that the server does not know yet waits; what else ends it is an error."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pacbayes_fl.errors import DeployError
from pacbayes_fl.federation.flower import commands, member
from pacbayes_fl.federation.flower.member import Member, Server
from pacbayes_fl.federation.flower.processes import Processes
from tests.deployed import until


def test_a_node_waits_until_its_key_is_registered_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "answers").write_text("")
    script = """
import pathlib, sys, time
path = pathlib.Path(sys.argv[1])
path.write_text(path.read_text() + "x")
if len(path.read_text()) < 3:
    sys.exit("Exit Code: 305 [code: 2004] Failed to activate SuperNode.")
time.sleep(60) if not (path.parent / "over").exists() else sys.exit("the disk is full")
"""
    command = [sys.executable, "-c", script, str(tmp_path / "answers")]
    monkeypatch.setattr(commands, "of_node", lambda *_: command)
    monkeypatch.setattr(member, "_AGAIN", 0.05)
    said = list[str]()
    with Processes(tmp_path / "logs", {}) as running:
        one = Member(running, Server("a:1", tmp_path), {}, said.append)

        def tried() -> bool:
            one.look()
            return len((tmp_path / "answers").read_text()) >= 3

        until(tried, 30.0)
        assert len(said) == 2 and "a:1 knows no node of the key" in said[1] and "node.pub" in said[1]
        assert running.ended("supernode") is None
    (tmp_path / "over").touch()
    with Processes(tmp_path / "logs", {}) as running:
        one = Member(running, Server("a:1", tmp_path), {}, said.append)
        until(lambda: running.ended("supernode") is not None, 30.0)
        with pytest.raises(DeployError, match="supernode has ended with code 1: the disk is full"):
            one.look()
