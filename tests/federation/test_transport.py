"""A network in memory: messages are bytes on their way."""

from __future__ import annotations

import torch

from pacbayes_fl.federation.messages import Refused, Reply, Request
from pacbayes_fl.federation.transport import Loopback
from tests.remote import BATCH, METHOD, NAMES, REPLIES, ROUND, network, opened


def test_everybody_is_asked_and_answers_as_by_hand() -> None:
    reached: Loopback = network(METHOD, BATCH)
    first = opened(number=1)
    asked = {name: first.request(name) for name in reversed(NAMES)}
    result = dict(
        reached.exchange({name: Request({**one.config, "run": "run"}, one.arrays) for name, one in asked.items()})
    )
    assert list(result) == [*reversed(NAMES)] and all(isinstance(reply, Reply) for reply in result.values())
    for name, reply in result.items():
        assert isinstance(reply, Reply)
        assert reply.arrays.keys() == REPLIES[name].arrays.keys()
        assert all(not isinstance(leaf, torch.Tensor) for leaf in reply.arrays.values())


def test_a_refusal_comes_through() -> None:
    ((name, answer),) = network(METHOD, BATCH).exchange({NAMES[0]: ROUND.request(NAMES[0])})
    assert name == NAMES[0] and isinstance(answer, Refused) and "the client takes part in" in answer.reason
