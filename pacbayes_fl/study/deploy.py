"""A deployment on this machine: nodes with workers, Flower between them and the server, and a run folder as usual."""

from __future__ import annotations

import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from pacbayes_fl.errors import DeployError, StudyError
from pacbayes_fl.federation.flower import processes
from pacbayes_fl.federation.flower.post import FlowerMail
from pacbayes_fl.federation.flower.processes import Flower, Processes
from pacbayes_fl.federation.node import InMemory
from pacbayes_fl.federation.sockets import Line, Listener
from pacbayes_fl.files import make_folder
from pacbayes_fl.results.records import Result
from pacbayes_fl.results.rounds import RoundRecord
from pacbayes_fl.study import apart
from pacbayes_fl.study.data import load
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.node import StudyNode
from pacbayes_fl.study.node_folder import NodeFolder
from pacbayes_fl.study.served import PATIENT, Waits, serve

PORT: Final = 9190
_STARTS: Final = 180.0  # seconds for a worker or a SuperNode to come up, on a machine that does much else


def deploy(
    study: Study,
    out: Path,
    nodes: int = 4,
    resume: bool = False,
    on_round: Callable[[RoundRecord], None] | None = None,
    port: int = PORT,
    waits: Waits = PATIENT,
) -> Result:
    """Run a study over Flower on this machine, with its clients dealt to nodes, each in processes of its own.

    Args:
        study: what to run.
        out: run folder of the server; the nodes have theirs, and all logs are, in the folder of that name and "-nodes".
        nodes: their number.
        resume: go on from the folder's last intact checkpoint, with the nodes' folders of before.
        on_round: called after every round with its record.
        port: of the SuperLink on the loopback address; the SuperNodes have those after it.
        waits: how long the server waits.

    Returns:
        The result.

    Raises:
        DeployError: when Flower is not installed, a port is in use, or a process ends before the run does.
        StudyError: when there are fewer clients than nodes; as `study.served.serve`.
    """
    processes.check_installed()
    processes.check_ports(range(port, port + nodes + 1))
    apart.check(study)
    names = load(study).groups["existing"].train.names
    if not 1 <= nodes <= len(names):
        raise StudyError(f"--nodes must be in 1..{len(names)}, the number of clients, got {nodes}")
    dealt = [names[k::nodes] for k in range(nodes)]
    own = out.with_name(f"{out.name}-nodes")
    work = Path(tempfile.mkdtemp(prefix="pacbayes-fl-"))
    try:
        file = work / "study.toml"
        file.write_text(study.to_toml(), encoding="utf-8")
        processes.write_keys(work / "keys", nodes)
        with (
            Processes(own / "logs", {"FLWR_HOME": str(work / "flwr")}) as running,
            Listener(work / "server") as listener,
        ):
            commands = [_command(file, own / str(k), clients) for k, clients in enumerate(dealt)]
            for k, command in enumerate(commands):
                worker = [sys.executable, "-m", "pacbayes_fl", *command, "--socket", str(work / f"worker_{k}")]
                running.start(f"worker_{k}", worker)
            flower = Flower(running, work, port)
            flower.start_link()
            _wait(running, lambda: all((work / f"worker_{k}").exists() for k in range(nodes)), "the workers")
            owners = {
                flower.add_node(k, {"worker": str(work / f"worker_{k}"), "command": shlex.join(command)}): dealt[k]
                for k, command in enumerate(commands)
            }
            flower.start_app(listener.path)
            with _called(running, listener) as line:
                mail = FlowerMail(line)
                _wait(running, lambda: len(mail.nodes()) >= nodes, "the SuperNodes")
                result = serve(study, out, mail, resume, on_round, waits=waits, claims=owners)
                with suppress(DeployError):
                    mail.end()
                return result
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _command(study: Path, folder: Path, clients: Sequence[str]) -> list[str]:
    named = [part for name in clients for part in ("--client", name)]
    return ["node", "run", str(study), "--folder", str(folder), *named]


def _wait(running: Processes, ready: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + _STARTS
    while not ready():
        running.check()
        if time.monotonic() > until:
            raise DeployError(f"{what} are not there within {_STARTS:g} s", cause="process")
        time.sleep(0.2)


def _called(running: Processes, listener: Listener) -> Line:
    """Wait for the ServerApp."""
    until = time.monotonic() + _STARTS
    while time.monotonic() < until:
        running.check()
        line = listener.accept(1.0)
        if line is not None:
            return line
    raise DeployError(f"the ServerApp has not called within {_STARTS:g} s", cause="process")


def check_node(study: Study, clients: Sequence[str]) -> list[str]:
    """Look at a node's rows as it would before it joins.

    Args:
        study: of the deployment.
        clients: names of those that take part from here; all when there are none.

    Returns:
        What would leave the node, a line each.

    Raises:
        StudyError, DataError: naming what is wrong.
    """
    return StudyNode(study, load(study), InMemory(), clients or None).leaves


def work_as_node(
    study: Study,
    folder: Path,
    clients: Sequence[str],
    path: Path | None,
    say: Callable[[str], None],
    once: Callable[[], bytes] | None = None,
) -> bytes | None:
    """Be the worker of a node: read its rows once, and answer messages until the process is ended.

    Args:
        study: of the deployment; its [data] says where this node's rows are.
        folder: of the node.
        clients: names of those that take part from here; all when there are none.
        path: of the socket at which to listen.
        say: told what leaves the node, before anything does.
        once: gives the one message that is to be answered, instead of listening.

    Returns:
        The answer to that message; None after listening.

    Raises:
        CheckpointError: when another worker uses the folder.
        StudyError, DataError: as `StudyNode`.
    """
    make_folder(folder)
    place = NodeFolder(folder)
    with place.lock():
        node = StudyNode(study, load(study), place, clients or None)
        for line in node.leaves:
            say(line)
        if once is not None:
            return node.answer(once())
        if path is None:
            raise DeployError("a worker needs a socket to listen at", hint="--socket PATH")
        with Listener(path) as listener:
            while True:
                caller = listener.accept()
                if caller is not None:
                    with caller, suppress(DeployError):  # who has gone gets no answer, and asks again
                        caller.send(node.answer(caller.receive(60.0)))
