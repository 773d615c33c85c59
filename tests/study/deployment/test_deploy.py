"""A deployment over real processes is the run on one machine; a node's worker alone."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pacbayes_fl.errors import CheckpointError, DeployError, StudyError
from pacbayes_fl.federation import frames, mail
from pacbayes_fl.federation.flower import processes
from pacbayes_fl.federation.mail import TRAIN
from pacbayes_fl.federation.node import InMemory
from pacbayes_fl.federation.sockets import Listener, connect
from pacbayes_fl.results.rounds import read_rounds
from pacbayes_fl.study.data import load
from pacbayes_fl.study.deployment import deploy as deployment
from pacbayes_fl.study.deployment.deploy import check_node, deploy, work_as_node
from pacbayes_fl.study.deployment.node import StudyNode
from pacbayes_fl.study.deployment.node_folder import NodeFolder
from pacbayes_fl.study.deployment.server import serve
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.run import run
from pacbayes_fl.testing.scene import assert_close
from tests.deployed import Owners, free, needs_flower, rounds_in, server_of, study_of, until

STUDY = study_of(2)
HELLO = frames.encode({"kind": "hello"}, {})
UNNEEDED = ("scipy", "sklearn", "sympy", "pandas", "matplotlib", "torchvision", "jinja2", "dp_accounting", "flwr")


def test_a_worker_has_the_threads_of_its_study_and_else_its_share_of_the_processors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, seen = torch.get_num_threads(), list[int]()

    def once() -> bytes:
        seen.append(torch.get_num_threads())
        return HELLO

    for count in (before + 1, before + 2):
        study = replace(STUDY, federation=replace(STUDY.federation, threads=count))
        work_as_node(study, tmp_path / "node", ["poly_03"], None, lambda _: None, once)
    assert (seen, torch.get_num_threads()) == ([before + 1, before + 2], before)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {*range(8)}, raising=False)
    for said, threads in (("", "2"), ("5", "5")):
        monkeypatch.setenv("OMP_NUM_THREADS", said)
        assert deployment._environment(3)["OMP_NUM_THREADS"] == threads


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


@pytest.mark.slow
def test_a_worker_of_gaussian_processes_trains_without_what_it_does_not_need(tmp_path: Path) -> None:
    """Of Pyro it has what GPyTorch itself imports; the answer is that of this process, where all of it may be there."""
    one = ["poly_03"]
    node, asked = StudyNode(STUDY, load(STUDY), InMemory(), one), list[bytes]()

    def reached(letter: bytes) -> bytes:
        asked.extend([letter] if frames.decode(letter).config["kind"] == TRAIN else [])
        return node.answer(letter)

    serve(replace(STUDY, federation=replace(STUDY.federation, rounds=1)), tmp_path / "run", mail.InMemory({0: reached}))
    (tmp_path / "study.toml").write_text(STUDY.to_toml())
    place = [str(tmp_path / "study.toml"), "--folder", str(tmp_path / "node"), "--client", *one]
    code = f"""
import sys, gpytorch
unneeded = {UNNEEDED} if "pyro" in sys.modules else {(*UNNEEDED, "pyro")}
from pacbayes_fl.cli import main
main(["node", "run", *{place!r}, "--once"])
sys.exit(", ".join(name for name in unneeded if name in sys.modules) or 0)
"""
    done = subprocess.run([sys.executable, "-c", code], input=asked[0], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    again = StudyNode(STUDY, load(STUDY), InMemory(), one).answer(asked[0])
    assert done.stdout == again and b"refused" not in again[:200]


def test_what_cannot_be_deployed_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "check_installed", lambda: None)
    with pytest.raises(StudyError, match=r"--nodes must be in 1..24, .* got 25"):
        deploy(STUDY, tmp_path / "out", 25, port=free(26))
    unequal = Study.from_table({"method": {"name": "fedavg"}, "federation": {"aggregate": "median", "rounds": 1}})
    with pytest.raises(StudyError, match="aggregate = 'median' counts every client once"):
        deploy(unequal, tmp_path / "out", 2, port=free(3))
    with socket.socket() as other:
        other.bind((processes.HOST, 0))
        other.listen()
        with pytest.raises(DeployError, match=f"port {other.getsockname()[1]}"):
            deploy(STUDY, tmp_path / "out", 2, port=other.getsockname()[1] - 1)
    assert not any(tmp_path.iterdir())


@pytest.mark.deploy
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_deployment_is_the_run_on_one_machine_and_whatever_ends_it_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in round 2 of three, a failure after the round that follows, and the rest."""
    needs_flower()
    study, out, port = study_of(3), tmp_path / "there", free(3)
    (tmp_path / "study.toml").write_text(study.to_toml())
    with Owners(tmp_path / "logs") as owners:
        line = f"pacbayes-fl deploy study.toml --out there --nodes 2 --port {port}"
        process = owners.type("deploy", line, tmp_path)
        until(lambda: rounds_in(out) or process.poll() is not None, 250.0)
        owners.stop("deploy")
        assert process.wait() == 130 and "stopped; go on with --resume" in owners.said("deploy")
        assert 1 <= len(read_rounds(out)) < 3
        processes.check_ports(range(port, port + 3))
        monkeypatch.setenv(*owners.marked)

        def fail(record: object) -> None:
            assert owners.left()
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            deploy(study, out, 2, resume=True, on_round=fail, port=port)
        assert not owners.left()
        deploy(study, out, 2, resume=True, port=port)
        assert not owners.left()
    run(study, tmp_path / "here")
    assert_close(server_of(out), server_of(tmp_path / "here"), 1e-9)
    assert [record.dropped for record in read_rounds(out)] == [()] * 3
