"""A round over a network by hand: what the server sends, and what every client replies."""

from __future__ import annotations

from typing import Any

import torch

from pacbayes_fl.federation import federation_state, messages, remote_client, wire
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.methods import METHODS
from tests.laws.cases import federation, from_recipe

METHOD = from_recipe(METHODS["pac-pfl"], 1)
BATCH = federation(1)
PLAN = FederationPlan(seed=3, rounds=2)
SERVER = federation_state.start(METHOD, BATCH, PLAN).server
EXPECTED = wire.expected_update(METHOD, SERVER, BATCH)
NAMES = BATCH.names


def one(k: int) -> Any:
    return BATCH.select(torch.tensor([k])).trim()


def opened(method: Any = METHOD, number: int = 2, plan: FederationPlan = PLAN, **more: Any) -> wire.Round:
    server = SERVER if method is METHOD else federation_state.start(method, BATCH, PLAN).server
    expected = EXPECTED if method is METHOD else wire.expected_update(method, server, BATCH)
    return wire.open_round(method, server, plan, "a run", number, messages.members(BATCH), expected, **more)


ROUND = opened()
REQUEST = ROUND.request(NAMES[0])
REPLIES = {
    name: remote_client.handle_train(METHOD, ROUND.request(name), None, one(k))[0] for k, name in enumerate(NAMES)
}
