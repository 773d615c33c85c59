"""What travels is plain, of the size that is expected, and says which method it is for."""

from __future__ import annotations

import json

import pytest
import torch

from pacbayes_fl.errors import DeployError
from pacbayes_fl.federation import arrays, messages
from pacbayes_fl.federation.arrays import Array
from pacbayes_fl.methods import METHODS
from tests.laws.cases import bits, from_recipe
from tests.remote import METHOD, NAMES, REPLIES, REQUEST, ROUND, SERVER


def test_flat_trees_are_contiguous_and_named_without_gradient() -> None:
    wide = torch.arange(6.0).view(2, 3).requires_grad_()
    flat = messages.flatten({"a": wide.T, "b": {"c": torch.ones(())}})
    assert list(flat) == ["a", "b.c"]
    assert flat["a"].is_contiguous() and not flat["a"].requires_grad
    assert flat["a"].tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]


def test_requests_are_plain_values_and_bytes() -> None:
    assert dict(REQUEST.config) == {
        "run": "a run",
        "round": 2,
        "client": "client_00",
        "parameters": arrays.digest(METHOD.broadcast(SERVER)),
        "method": messages.signature(METHOD),
        "rates": 1.0,
        "seed": 3,
        "noise": "philox",
        "keep": True,
        "uncounted": 0,
    }
    assert bits(arrays.unpack(METHOD.broadcast(SERVER), REQUEST.arrays)) == bits(METHOD.broadcast(SERVER))
    assert all(isinstance(value, Array) for value in REQUEST.arrays.values())
    reply = REPLIES[NAMES[0]]
    assert dict(reply.config) == {key: REQUEST.config[key] for key in ("run", "round", "client", "parameters")}


@pytest.mark.parametrize("name", METHODS)
def test_every_method_of_the_table_has_a_signature_of_its_own_that_is_the_same_when_built_again(name: str) -> None:
    mine = messages.signature(from_recipe(METHODS[name], 1))
    assert mine == messages.signature(from_recipe(METHODS[name], 1)) and " at 0x" not in mine
    assert json.loads(mine)[""] == type(from_recipe(METHODS[name], 1)).__name__


def test_the_budget_is_a_tenth_more_than_a_reply_takes() -> None:
    takes = arrays.size(REPLIES[NAMES[0]].arrays)
    assert takes <= ROUND.budget == int(1.1 * takes)


def test_messages_go_through_bytes_and_come_back() -> None:
    reply = REPLIES[NAMES[0]]
    assert messages.answer_from_bytes(messages.to_bytes(reply)) == reply
    assert messages.answer_from_bytes(messages.to_bytes(messages.Refused("no"))) == messages.Refused("no")
    with pytest.raises(DeployError, match="must be in bytes, got tensors"):
        messages.to_bytes(reply._replace(arrays={"w": torch.ones(1)}))
