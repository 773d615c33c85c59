"""A deployment over real processes is the run on one machine; a node's worker alone."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pacbayes_fl.errors import CheckpointError, DeployError, StudyError
from pacbayes_fl.federation import frames
from pacbayes_fl.federation.flower import processes
from pacbayes_fl.federation.sockets import Listener, connect
from pacbayes_fl.results.rounds import read_rounds
from pacbayes_fl.study import deploy as deployment
from pacbayes_fl.study.deploy import check_node, deploy, work_as_node
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.node_folder import NodeFolder
from pacbayes_fl.study.run import run
from tests.laws.cases import assert_close
from tests.study.test_served import server_of

STUDY = Study.from_toml(
    "polynomial", ["federation.rounds=2", "method.particles=2", "federation.device=cpu", "data.scale=client"]
)
HELLO = frames.encode({"kind": "hello"}, {})


def test_a_worker_answers_one_message_or_as_many_as_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = list[str]()
    data = work_as_node(STUDY, tmp_path / "node", ["poly_03"], None, said.append, lambda: HELLO)
    assert data is not None and [*frames.decode(data).config["hello"]["clients"]] == ["poly_03"]
    assert said == check_node(STUDY, ["poly_03"]) and "poly_03" in said[0]
    with pytest.raises(DeployError, match="--socket"):
        work_as_node(STUDY, tmp_path / "node", ["poly_03"], None, said.append)
    with NodeFolder(tmp_path / "node").lock(), pytest.raises(CheckpointError, match="in use by"):
        work_as_node(STUDY, tmp_path / "node", [], None, said.append, lambda: HELLO)

    class Over(Exception):
        pass

    class Twice(Listener):
        def accept(self, seconds: float | None = None) -> Any:
            if not left:
                raise Over
            left.pop()
            return super().accept(5.0)

    left, answers = [1, 2], list[bytes]()
    monkeypatch.setattr(deployment, "Listener", Twice)

    def call() -> None:
        for _ in range(2):
            while not (tmp_path / "s").exists():
                pass
            with connect(tmp_path / "s") as line:
                line.send(HELLO)
                answers.append(line.receive(20.0))

    thread = threading.Thread(target=call)
    thread.start()
    with pytest.raises(Over):
        work_as_node(STUDY, tmp_path / "node", ["poly_03"], tmp_path / "s", said.append)
    thread.join()
    assert answers == [data, data]


def test_what_cannot_be_deployed_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "check_installed", lambda: None)
    with pytest.raises(StudyError, match=r"--nodes must be in 1..24, .* got 25"):
        deploy(STUDY, tmp_path / "out", 25, port=free(26))
    with socket.socket() as other:
        other.bind((processes.HOST, 0))
        other.listen()
        with pytest.raises(DeployError, match=f"port {other.getsockname()[1]}"):
            deploy(STUDY, tmp_path / "out", 2, port=other.getsockname()[1] - 1)
    assert not any(tmp_path.iterdir())


def free(count: int) -> int:
    """Find consecutive ports that nobody uses."""
    for first in range(20000 + os.getpid() % 20000, 60000, count):
        try:
            processes.check_ports(range(first, first + count))
        except DeployError:
            continue
        return first
    raise AssertionError("no port is free")


def descendants() -> set[int]:
    """Processes of this machine that name Flower or our workers."""

    def commands() -> Iterator[tuple[int, str]]:
        for path in Path("/proc").glob("[0-9]*"):
            try:
                yield int(path.name), (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue

    return {pid for pid, text in commands() if "flower-su" in text or "pacbayes_fl node run" in text}


@pytest.mark.deploy
@pytest.mark.slow
def test_a_deployment_is_the_run_on_one_machine_and_leaves_no_process(tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'pacbayes_fl[flower]'")
    before = descendants()
    deploy(STUDY, tmp_path / "there", 2, port=free(3))
    run(STUDY, tmp_path / "here")
    assert_close(server_of(tmp_path / "there"), server_of(tmp_path / "here"), 1e-9)
    assert [record.dropped for record in read_rounds(tmp_path / "there")] == [(), ()]
    assert descendants() <= before
    with pytest.raises(ZeroDivisionError):  # whatever ends the server ends them all

        def fail(record: object) -> None:
            raise ZeroDivisionError

        deploy(STUDY, tmp_path / "fails", 2, on_round=fail, port=free(3))
    assert descendants() <= before
