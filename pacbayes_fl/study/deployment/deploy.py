"""A deployment on this machine: nodes with workers, Flower between them and the server, and a run folder as usual."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

from pacbayes_fl.errors import DeployError, StudyError
from pacbayes_fl.federation import engine, federation_state
from pacbayes_fl.federation.flower import commands, processes
from pacbayes_fl.federation.flower.app import write_app
from pacbayes_fl.federation.flower.keys import write_keys
from pacbayes_fl.federation.flower.member import Member, Server
from pacbayes_fl.federation.flower.post import FlowerMail
from pacbayes_fl.federation.flower.processes import HOST, Processes
from pacbayes_fl.federation.flower.reach import check_server
from pacbayes_fl.federation.flower.scratch import scratch
from pacbayes_fl.federation.node import InMemory
from pacbayes_fl.federation.sockets import Line, Listener
from pacbayes_fl.files import make_folder
from pacbayes_fl.results.records import Result
from pacbayes_fl.results.rounds import RoundRecord
from pacbayes_fl.study.data import load
from pacbayes_fl.study.deployment import roster
from pacbayes_fl.study.deployment.node import StudyNode
from pacbayes_fl.study.deployment.node_folder import NodeFolder
from pacbayes_fl.study.deployment.server import PATIENT, Waits, serve
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.prepare import build
from pacbayes_fl.study.threads import shared, threads

PORT: Final = 9190
_THREADS: Final = "OMP_NUM_THREADS"  # which torch and its libraries read when they are loaded
_LOOK: Final = 1.0  # seconds between looks at the SuperNode of a worker
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
        StudyError: when there are fewer clients than nodes; as `study.deployment.server.serve`.
    """
    processes.check_installed()
    processes.check_ports(range(port, port + nodes + 1))
    roster.check(study)
    data = load(study)
    groups, known = data.groups, data.groups["existing"].train
    names = known.names
    if not 1 <= nodes <= len(names):
        raise StudyError(f"--nodes must be in 1..{len(names)}, the number of clients, got {nodes}")
    method, _ = build(study, data)
    engine.check(method, known, study.plan, federation_state.start(method, known, study.plan))
    dealt = [[name for group in groups.values() for name in group.train.names[k::nodes]] for k in range(nodes)]
    own, address = out.with_name(f"{out.name}-nodes"), f"{HOST}:{port}"
    with scratch() as work:
        keys, home, file = work / "keys", work / "flwr", work / "app" / "study.toml"
        write_app(work / "app", study.to_toml())
        write_keys(keys, [f"node_{k}" for k in range(nodes)], days=30)
        commands.write_home(home, address, keys / "ca.pem")
        with (
            Processes(own / "logs", {**_environment(nodes), "FLWR_HOME": str(home)}) as running,
            Listener(work / "server") as listener,
        ):
            work_commands = [_command(file, own / str(k), clients) for k, clients in enumerate(dealt)]
            for k, command in enumerate(work_commands):
                worker = [sys.executable, "-m", "pacbayes_fl", *command, "--socket", str(work / f"worker_{k}")]
                running.start(f"worker_{k}", worker)
            running.start("superlink", commands.of_link(keys, HOST, port))
            running.wait(_STARTS, lambda: processes.answers(HOST, port), "the SuperLink does not answer")
            ready = [work / f"worker_{k}" for k in range(nodes)]
            running.wait(_STARTS, lambda: all(path.exists() for path in ready), "not all workers have begun")
            with ThreadPoolExecutor() as pool:  # each takes a process of its own for a second or two
                submitted = pool.submit(commands.submit, running, work / "app", listener.path)
                public = [keys / f"node_{k}" / "node.pub" for k in range(nodes)]
                owners = dict(zip(pool.map(partial(commands.register, running), public), dealt, strict=True))
                submitted.result()
            for k, command in enumerate(work_commands):
                settings = {"worker": str(ready[k]), "command": shlex.join(command)}
                node = commands.of_node(keys / f"node_{k}", address, port + 1 + k, settings)
                running.start(f"supernode_{k}", node)
            with opened(running, listener, owners) as mail:
                return serve(study, out, mail, resume, on_round, waits=waits, claims=owners)


def _environment(nodes: int) -> dict[str, str]:
    """All nodes compute at once here, so that each takes its share of the processors where nobody says otherwise."""
    return {**commands.ENVIRONMENT, _THREADS: os.environ.get(_THREADS) or str(shared(nodes))}


def _command(study: Path, folder: Path, clients: Sequence[str]) -> list[str]:
    named = [part for name in clients for part in ("--client", name)]
    return ["node", "run", str(study), "--folder", str(folder), *named]


@contextmanager
def opened(running: Processes, listener: Listener, owners: Mapping[int, object]) -> Iterator[FlowerMail]:
    """Wait until the ServerApp of an app that was submitted has called and all nodes are there, and end it at last.

    Args:
        running: what must not end before.
        listener: at which the ServerApp calls.
        owners: numbers of the nodes.

    Yields:
        The mail to the nodes.

    Raises:
        DeployError: when somebody is not there in time.
    """
    came = list[Line]()

    def called() -> bool:
        line = listener.accept(0.5)
        came.extend([] if line is None else [line])
        return bool(came)

    running.wait(_STARTS, called, "the ServerApp has not called")
    with came[0] as line:
        mail = FlowerMail(line)
        running.wait(_STARTS, lambda: owners.keys() <= {*mail.nodes()}, f"not all of {len(owners)} nodes have come")
        try:
            yield mail
        finally:
            mail.end()


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
    server: tuple[str, Path] | None = None,
    made: Callable[[Path], None] | None = None,
) -> bytes | None:
    """Be the worker of a node: read its rows once, and answer messages until the process is ended.

    Args:
        study: of the deployment; its [data] says where this node's rows are.
        folder: of the node.
        clients: names of those that take part from here; all when there are none.
        path: of the socket at which to listen.
        say: told what leaves the node, before anything does.
        once: gives the one message that is to be answered, instead of listening.
        server: HOST:PORT of the SuperLink that a SuperNode beside the worker joins, and the folder of the node's keys.
        made: told of the run folder that the node makes of its clients after the last round.

    Returns:
        The answer to that message; None after listening.

    Raises:
        CheckpointError: when another worker uses the folder.
        StudyError, DataError: as `StudyNode`.
        DeployError: when the server cannot be reached, naming why, or refuses the node.
    """
    if server is not None:
        processes.check_installed()
        check_server(server[0], server[1] / "ca.pem")
    make_folder(folder)
    place = NodeFolder(folder)
    with place.lock(), threads(study.federation.threads):
        node = StudyNode(study, load(study), place, clients or None, place.results, made)
        for line in node.leaves:
            say(line)
        if once is not None:
            return node.answer(once())
        if path is None and server is None:
            raise DeployError("a worker needs a socket to listen at", hint="--socket PATH, or --server and --keys")
        with ExitStack() as stack:
            short = stack.enter_context(scratch())
            listener = stack.enter_context(Listener(path or short / "worker"))
            environment = {**commands.ENVIRONMENT, "FLWR_HOME": str(short / "flwr")}
            running = stack.enter_context(Processes(folder / "logs", environment))
            member = None
            if server is not None:
                member = Member(running, Server(*server), {"worker": str(listener.path)}, say)
            while True:
                if member is not None:
                    member.look()
                caller = listener.accept(_LOOK)
                if caller is not None:
                    with caller, suppress(DeployError):  # who has gone gets no answer, and asks again
                        caller.send(node.answer(caller.receive(60.0)))
