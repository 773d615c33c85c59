"""A round over a network by hand, and federations over one in memory: what the server sends, and what clients reply."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.federation import federation_state, messages, remote_client, wire
from pacbayes_fl.federation.messages import Refused, Reply, Request
from pacbayes_fl.federation.node import InMemory, Node
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.federation.remote_player import RemotePlayer, roster
from pacbayes_fl.federation.transport import Loopback
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

Altered = Callable[[str, int, Reply | Refused], Reply | Refused | None]


class Unreliable(Loopback):
    """Alters what clients answer by name and round, or loses it; counts what was asked."""

    def __init__(self, nodes: list[Node], altered: Altered = lambda name, t, reply: reply) -> None:
        super().__init__(nodes)
        self.altered, self.asked = altered, list[tuple[int, str]]()

    def exchange(self, requests: Mapping[str, Request]) -> Iterator[tuple[str, Reply | Refused]]:
        self.asked += [(request.config["round"], name) for name, request in requests.items()]
        for name, reply in super().exchange(requests):
            if (answer := self.altered(name, requests[name].config["round"], reply)) is not None:
                yield name, answer


def network(method: Any, batch: ClientBatch, altered: Altered = lambda name, t, reply: reply) -> Unreliable:
    """Put every client on a node of its own."""
    nodes = [Node(method, batch.select(torch.tensor([k])), InMemory()) for k in range(batch.clients)]
    for node in nodes:
        node.join("run", 0)
    return Unreliable(nodes, altered)


def player(
    method: Any, batch: ClientBatch, plan: FederationPlan, reached: Loopback | None = None, aggregator: Any = None
) -> RemotePlayer:
    reached = network(method, batch) if reached is None else reached
    clients = {name: rows for node in reached.nodes for name, rows in node.clients.items()}
    return RemotePlayer(method, roster(clients, batch), plan, aggregator, reached, "run")
