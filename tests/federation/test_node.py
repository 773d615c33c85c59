"""What a node remembers of its clients, and what it answers."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
import torch

from pacbayes_fl.federation.messages import Kept, Refused, Reply, Request
from pacbayes_fl.federation.node import InMemory, Memory, Node
from tests.laws.cases import Toy
from tests.remote import BATCH, NAMES, one, opened

TOY = Toy(1)


def asked(number: int, name: str = NAMES[0], **more: Any) -> Request:
    uncounted = {name: more.pop("uncounted", 0)}
    return replace(opened(TOY, number, **more), uncounted=uncounted).request(name)


def joined() -> Node:
    node = Node(TOY, one(0), InMemory())
    node.join("a run", 0)
    return node


def seen(node: Node) -> list[int]:
    memory = node.memories.load(NAMES[0])
    return [] if memory is None or memory.last is None else memory.last.state["seen"].tolist()


def test_a_node_knows_its_clients_and_who_begins_anew() -> None:
    node = Node(TOY, BATCH, InMemory())
    assert node.clients == dict(zip(NAMES, map(int, BATCH.size), strict=True))
    assert node.join("a run", 0) == dict.fromkeys(NAMES, True)
    assert node.join("a run", 4) == dict.fromkeys(NAMES, False)
    assert node.join("another", 4) == dict.fromkeys(NAMES, True)
    assert node.memories.load(NAMES[1]) == Memory("another", 4)


def test_a_round_is_answered_from_the_state_before_it_however_often_it_is_asked_for() -> None:
    node = joined()
    first = [node.answer(asked(1)) for _ in range(2)]
    assert first[0] == first[1] and isinstance(first[0], Reply) and seen(node) == [1]
    second = [node.answer(asked(2)) for _ in range(2)]
    assert second[0] == second[1] and seen(node) == [2]
    late = node.answer(asked(1))
    assert isinstance(late, Refused) and "of round 1, and the client has answered round 2" in late.reason
    assert seen(node) == [2]


def test_who_did_not_count_goes_on_from_the_state_before_however_many_rounds_that_lasts() -> None:
    """Rounds 2 and 3 did not count; the request of round 4 did not arrive."""
    node = joined()
    for number, uncounted in ((1, 0), (2, 0), (3, 2), (5, 2)):
        assert isinstance(node.answer(asked(number, uncounted=uncounted)), Reply)
    assert seen(node) == [2]
    node.answer(asked(6))  # round 5 counted
    assert seen(node) == [3]
    node.answer(asked(8, uncounted=7))  # it had not heard of round 7: its last one counted
    assert seen(node) == [4]
    own = node.state(TOY.broadcast(TOY.init_server(torch.Generator())), 3, {NAMES[0]: 8})
    assert own.seen.tolist() == [3]
    never = joined()
    never.answer(asked(1))
    never.answer(asked(2, uncounted=1))
    assert seen(never) == [1]


def test_of_a_trial_nothing_is_kept() -> None:
    node = joined()
    first = node.answer(asked(1))
    for number in (1, 2, 1):
        reply = node.answer(asked(number, keep=False))
        assert isinstance(reply, Reply) and (number == 2 or reply == first)
        assert seen(node) == [1]


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (asked(1, NAMES[1]), f"for client '{NAMES[1]}', and here is '{NAMES[0]}'"),
        (Request({}, {}), "for client None"),
        (Request({"client": NAMES[0]}, {}), "names no run or no round"),
        (Request({**asked(1).config, "run": "b"}, asked(1).arrays), "of run 'b', and the client takes part in 'a run'"),
    ],
)
def test_a_request_for_somebody_else_is_refused(request_: Request, text: str) -> None:
    node = joined()
    answer = node.answer(request_)
    assert isinstance(answer, Refused) and text in answer.reason and seen(node) == []


def test_what_fails_inside_is_told_by_its_kind_alone(logged: list[logging.LogRecord]) -> None:
    node = joined()
    node.memories.save(NAMES[0], Memory("a run", 0, Kept("a run", 1, {})))
    answer = node.answer(asked(2))
    assert answer == Refused("its training failed (ShapeError); the node's log tells more")
    said = "\n".join(map(logging.Formatter().format, logged))
    assert "ShapeError: " in said and "centre" not in answer.reason
