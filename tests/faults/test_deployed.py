"""Faults over a real network: Flower's processes on the loopback address, and nodes whose workers do what a test says.

One SuperLink serves them all. What the rounds come to is compared with the same schedule over a double in memory.
"""

from __future__ import annotations

import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from os import killpg
from pathlib import Path
from signal import SIGKILL
from typing import Any, NamedTuple

import pytest

from pacbayes_fl.errors import ClientError, DataError, DeployError
from pacbayes_fl.federation import frames, mail
from pacbayes_fl.federation.flower import commands, keys, reach
from pacbayes_fl.federation.flower.app import write_app
from pacbayes_fl.federation.flower.processes import HOST, Processes, answers
from pacbayes_fl.federation.messages import Reply
from pacbayes_fl.federation.node import InMemory
from pacbayes_fl.federation.sockets import Listener
from pacbayes_fl.results.rounds import read_rounds
from pacbayes_fl.study.data import load
from pacbayes_fl.study.deployment.deploy import opened
from pacbayes_fl.study.deployment.node import StudyNode
from pacbayes_fl.study.deployment.server import Waits, serve
from pacbayes_fl.testing.scene import assert_close
from tests.deployed import free, needs_flower, server_of, study_of, until

pytestmark = [pytest.mark.deploy, pytest.mark.slow, pytest.mark.timeout(900)]
ROUNDS = 9
LATE, KILLED, ALONE = 4, 7, 8  # rounds in which the second node is late, is killed, and the first is killed too
STUDY = study_of(ROUNDS)
DATA = load(STUDY)
NAMES = DATA.groups["existing"].train.names
DEALT = {7: NAMES[0::2], 8: NAMES[1::2]}
LIAR, BROKEN, OTHER = DEALT[8][:3]
SILENT, HUNG_UP = b"silent", b"hung up"
LATE_CLOCK = """
import datetime, sys
from flwr.supernode import node_auth_http_interceptor as module
now = module.now
module.now = lambda: now() - datetime.timedelta(seconds=400)
from flwr.supernode.cli.flower_supernode import flower_supernode
sys.exit(flower_supernode())
"""


def nodes() -> dict[int, StudyNode]:
    return {node: StudyNode(STUDY, DATA, InMemory(), names) for node, names in DEALT.items()}


class Hostile:
    """The second node, round by round; a double in memory and the worker of a real node ask the same one."""

    def __init__(self, node: StudyNode, died: Callable[[], None] = lambda: None) -> None:
        self.node, self.died, self.first, self.late = node, died, b"", HUNG_UP

    def __call__(self, data: bytes) -> bytes:
        config = frames.decode(data).config
        answer = self.node.answer(data)
        if config["kind"] != mail.TRAIN:
            return answer
        number = config["requests"][0]["round"]
        self.first = self.first or answer
        match number:
            case 2:
                return self.first  # replayed
            case 3:  # a fault of its own for each of three clients
                answer = changed(answer, LIAR, lambda one: one._replace(data=bytes(10 * len(one.data))))
                answer = changed(answer, BROKEN, lambda one: one._replace(data=one.data[:-8] + b"\xff" * 8))  # NaN
                return answer.replace(OTHER.encode(), NAMES[0].encode())  # under the name of the other node's client
            case 4:  # LATE
                self.late = answer
                return SILENT
            case 6:
                return HUNG_UP
            case 7 | 8:  # KILLED, ALONE
                self.died()
                return SILENT
        return answer


def changed(data: bytes, name: str, change: Callable[[Any], Any]) -> bytes:
    """Alter the largest array of a client's answer."""
    answers = dict(mail.unpack_answers(data))
    reply = answers[name]
    assert isinstance(reply, Reply)
    largest = max(reply.arrays, key=lambda leaf: len(reply.arrays[leaf].data))
    answers[name] = Reply(reply.config, {**reply.arrays, largest: change(reply.arrays[largest])})
    return mail.pack_answers([*answers.items()])


class Double(mail.InMemory):
    """The same in memory: who is silent is not heard, and one who hangs up is."""

    def ask(self, letters: Mapping[int, bytes], seconds: float) -> Iterator[tuple[int, bytes]]:
        for node, data in super().ask(letters, seconds):
            if data != SILENT:
                lost = frames.encode({"refused": "its worker is gone"}, {})
                yield node, lost if data == HUNG_UP else data


class Worker:
    """A node's worker in a thread of the test."""

    def __init__(self, path: Path, answer: Callable[[bytes], bytes]) -> None:
        self.listener, self.answer, self.over = Listener(path), answer, threading.Event()
        self.released = threading.Event()
        self.thread = threading.Thread(target=self.work)
        self.thread.start()

    def work(self) -> None:
        while not self.over.is_set():
            caller = self.listener.accept(0.2)
            if caller is None:
                continue
            with caller, suppress(DeployError):
                data = caller.receive(30.0)
                answer = self.answer(data)
                if answer == SILENT:  # late: it is on its way again once the round is over
                    self.released.wait(600.0)
                    answer = getattr(self.answer, "late", HUNG_UP)
                if answer != HUNG_UP:
                    caller.send(answer)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.released.set()
        self.thread.join()
        self.listener.__exit__(None, None, None)


class Patient:
    """Waits for as long as it takes, and where somebody is silent for as long as the slowest round has taken, and more.

    A machine that does much else needs more, and the fault alone is to cost a node its round.
    """

    def __init__(self, post: mail.Mail) -> None:
        self.post, self.slowest = post, 0.0
        self.nodes = post.nodes

    def ask(self, letters: Mapping[int, bytes], seconds: float) -> Iterator[tuple[int, bytes]]:
        config, begun = frames.decode(next(iter(letters.values()))).config, time.monotonic()
        if config["kind"] == mail.TRAIN and config["requests"][0]["round"] in (LATE, KILLED, ALONE):
            times = 1.0 if config["requests"][0]["round"] == ALONE else 1.5  # nobody is there who could be too slow
            yield from self.post.ask(letters, 2.0 + times * self.slowest)
        else:
            yield from self.post.ask(letters, seconds)
            self.slowest = max(self.slowest, time.monotonic() - begun)


class Network(NamedTuple):
    """Two nodes that are connected, and those who try to be, which `refused` ends."""

    running: Processes
    folder: Path
    mail: Any
    workers: Sequence[Worker]
    owners: Mapping[int, Sequence[str]]
    address: str
    others: Processes
    refused: ExitStack


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    needs_flower()
    folder, port = tmp_path_factory.mktemp("net"), free(8)
    address = f"{HOST}:{port}"
    write_app(folder / "app", STUDY.to_toml())
    keys.write_keys(folder / "keys", ["a", "b", "stranger"])
    keys.write_keys(folder / "other", ["a"])
    keys.write_authority(folder / "expired")
    keys.write_server(folder / "expired", days=-1.0)
    commands.write_home(folder / "home", address, folder / "keys" / "ca.pem")
    with ExitStack() as stack:
        running = stack.enter_context(Processes(folder / "logs", environment_of(folder)))
        running.start("link", commands.of_link(folder / "keys", HOST, port))
        workers = [stack.enter_context(Worker(folder / name, lambda data: data)) for name in "ab"]
        refused = stack.enter_context(ExitStack())
        others = refused.enter_context(Processes(folder / "refused", environment_of(folder)))
        others.start("expired link", commands.of_link(folder / "expired", HOST, port + 7))
        running.wait(120.0, lambda: answers(HOST, port), "no SuperLink")
        owners = dict[int, Sequence[str]]()
        for k, (name, clients) in enumerate(zip("ab", DEALT.values(), strict=True)):
            owners[commands.register(running, folder / "keys" / name / "node.pub")] = clients
            settings = {"worker": str(folder / name)}
            running.start(name, commands.of_node(folder / "keys" / name, address, port + 1 + k, settings))
        intrude(others, folder, address, port + 3)  # now, so that they start while the others wait for each other
        listener = stack.enter_context(Listener(folder / "server"))
        commands.submit(running, folder / "app", listener.path)
        post = stack.enter_context(opened(running, listener, owners))
        yield Network(running, folder, post, workers, owners, address, others, refused)


def environment_of(folder: Path) -> dict[str, str]:
    return {**commands.ENVIRONMENT, "FLWR_HOME": str(folder / "home")}


def intrude(others: Processes, folder: Path, address: str, port: int) -> None:
    """Start nodes that are not to get in."""
    settings = {"worker": "none"}
    others.start("wrong CA", commands.of_node(folder / "other" / "a", address, port, settings))
    others.start("stranger", commands.of_node(folder / "keys" / "stranger", address, port + 1, settings))
    skewed = commands.of_node(folder / "keys" / "stranger", address, port + 2, settings)
    others.start("clock", [sys.executable, "-c", LATE_CLOCK, *skewed[1:]])


def test_who_has_no_valid_key_certificate_or_clock_does_not_get_in(network: Network) -> None:
    running, folder, port = network.running, network.folder, int(network.address.rpartition(":")[2])
    others = network.others
    with network.refused:
        until(lambda: answers(HOST, port + 7))
        with pytest.raises(DeployError, match="has expired"):
            reach.check_server(f"{HOST}:{port + 7}", folder / "expired" / "ca.pem")
        with pytest.raises(DeployError, match="is not signed by the authority"):
            reach.check_server(network.address, folder / "other" / "ca.pem")
        reach.check_server(network.address, folder / "keys" / "ca.pem")
        until(lambda: all(others.ended(name) is not None for name in ("wrong CA", "stranger", "clock")))
        said = {name: str(others.ended(name)) for name in ("wrong CA", "stranger", "clock")}
        assert "CERTIFICATE_VERIFY_FAILED" in said["wrong CA"] and "[code: 2004]" in said["stranger"]
        assert "terminated gracefully" in said["clock"]  # all that Flower tells its owner
        with pytest.raises(DeployError, match=r"wrong CA has ended .*does not hold under this ca.pem"):
            others.check()
    assert '"POST /v1/fleet/activate-node HTTP/1.1" 401' in (folder / "logs" / "link.log").read_text()
    assert {*network.mail.nodes()} == {*network.owners}
    running.check()


def test_a_registered_node_that_claims_anothers_client_is_refused(network: Network, tmp_path: Path) -> None:
    honest = nodes()
    network.workers[0].answer = honest[7].answer
    network.workers[1].answer = StudyNode(STUDY, DATA, InMemory(), NAMES[0:2]).answer
    first = [*network.owners][1]
    with pytest.raises(DataError, match=f"client '{NAMES[0]}': node {first} claims it, and its key belongs to"):
        serve(STUDY, tmp_path / "out", network.mail, claims=network.owners)
    assert not (tmp_path / "out").exists() or not any((tmp_path / "out").glob("rounds*"))


def test_whatever_a_node_does_costs_its_clients_that_round_and_nothing_is_lost(
    network: Network, tmp_path: Path
) -> None:
    running, there = network.running, nodes()
    killed = iter(["b", "a"])
    network.workers[0].answer = there[7].answer
    hostile = Hostile(there[8], lambda: killpg(running.pid(next(killed)), SIGKILL))
    network.workers[1].answer = hostile

    def after(record: Any) -> None:
        (network.workers[1].released.set if record.round == LATE else network.workers[1].released.clear)()
        if record.round == KILLED:  # the first node is killed in the round after
            network.workers[0].answer = lambda data: (hostile.died(), SILENT)[1]

    waits, post = Waits(250.0, 250.0), Patient(network.mail)
    with pytest.raises(ClientError, match=rf"round {ALONE}: none of 24 clients gave an update .*--resume"):
        serve(STUDY, tmp_path / "there", post, on_round=after, waits=waits, claims=network.owners)
    until(lambda: None not in {running.ended(name) for name in "ab"}, what="both have been killed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        serve(STUDY, tmp_path / "there", mail.InMemory({k: one.answer for k, one in there.items()}), resume=True)
    records = read_rounds(tmp_path / "there")
    assert [record.round for record in records] == [*range(1, ROUNDS + 1)]
    whole = {2: "round 1 arrived in round 2", LATE: "no reply", KILLED: "no reply"}
    whole[6] = "the node's worker: the other process is gone"
    expected = {number: dict.fromkeys(DEALT[8], text) for number, text in whole.items()}
    expected[3] = {LIAR: "bytes, and at most", BROKEN: "is not finite", OTHER: "no reply"}
    for number, record in enumerate(records, 1):
        assert {*record.dropped} == expected.get(number, {}).keys()
        assert all(text in record.reasons[name] for name, text in expected.get(number, {}).items())
        assert not any(record.reasons.get(name) for name in {*NAMES} - {*record.dropped})
    assert any("node " in name and " for " in name for name in records[2].reasons)
    assert_close(server_of(tmp_path / "there"), server_of(in_memory(tmp_path / "here")), 1e-9)


def in_memory(folder: Path) -> Path:
    """Play the same over a double, with the last rounds undisturbed as after the resume."""
    here = nodes()
    hostile = Hostile(here[8])

    def second(data: bytes) -> bytes:
        config = frames.decode(data).config
        over = config["kind"] == mail.TRAIN and config["requests"][0]["round"] > KILLED
        return here[8].answer(data) if over else hostile(data)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        serve(STUDY, folder, Double({7: here[7].answer, 8: second}))
    return folder
