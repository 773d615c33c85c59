"""What a server accepts from clients, and that rounds over a network are those on one device."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.errors import DeployError
from pacbayes_fl.federation import arrays, wire
from pacbayes_fl.federation.messages import Reply
from pacbayes_fl.methods.base import Nothing
from pacbayes_fl.methods.pac_pfl.gp import Update
from pacbayes_fl.noise import Noise
from tests.laws.cases import assert_close, bits
from tests.remote import BATCH, EXPECTED, METHOD, NAMES, REPLIES, ROUND, SERVER, opened


def test_replies_are_joined_in_the_order_of_the_federation() -> None:
    result = wire.collect(ROUND, reversed(REPLIES.items()))
    together, _ = METHOD.client(METHOD.broadcast(SERVER), Nothing(), BATCH, Noise(3, 2, BATCH.ids))
    assert result.present == NAMES and not result.reasons and isinstance(result.update, Update)
    assert_close(result.update, together)
    assert bits(result.update) == bits(wire.collect(ROUND, REPLIES.items()).update)


def test_nobody_else_is_asked_than_the_cohort() -> None:
    some = opened(asked=(NAMES[3], NAMES[1]))
    with pytest.raises(DeployError, match="client 'client_00': it is not asked"):
        some.request(NAMES[0])
    with pytest.raises(DeployError, match="client 'x': it is asked and not registered"):
        opened(asked=("x",))
    result = wire.collect(some, REPLIES.items())
    assert result.present == (NAMES[1], NAMES[3])
    assert dict(result.reasons) == dict.fromkeys((NAMES[0], NAMES[2], NAMES[4]), "not asked in this round")
    assert bits(result.update) == bits(
        tensors.select(wire.collect(ROUND, REPLIES.items()).update, torch.tensor([1, 3]))
    )


def test_an_expected_update_depends_on_no_number() -> None:
    assert {bool(leaf.any()) for leaf in tensors.leaves(EXPECTED).values()} == {False}
    like = replace(BATCH, x=BATCH.x * 0 + 1, y=BATCH.y * 0)
    assert bits(wire.expected_update(METHOD, SERVER, like)) == bits(EXPECTED)


def test_replies_as_tensors_are_those_as_bytes() -> None:
    raw = {
        name: Reply(reply.config, tensors.leaves(arrays.unpack(EXPECTED, reply.arrays)))
        for name, reply in REPLIES.items()
    }
    assert all(isinstance(leaf, Tensor) for leaf in raw[NAMES[0]].arrays.values())
    assert bits(wire.collect(ROUND, raw.items()).update) == bits(wire.collect(ROUND, REPLIES.items()).update)
