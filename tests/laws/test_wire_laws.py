"""Laws of every method over a network: rounds are those of one device, and clients count as they were registered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import pytest
import torch

from pacbayes_fl import tensors
from pacbayes_fl.federation import arrays, engine, federation_state, messages, remote_client, wire
from pacbayes_fl.federation.messages import Kept, Reply
from pacbayes_fl.testing import laws
from tests.laws.cases import FEDERATED, FEDERATED_LABELLED, Case, Scene, assert_close, bits, identified, scene

pytestmark = pytest.mark.law

CASES = tuple(
    pytest.param(case, d, id=f"{case}-{d}")
    for case in FEDERATED + FEDERATED_LABELLED
    if case.build(case.dimensions[0]).federated
    for d in case.dimensions
)
every_federated = pytest.mark.parametrize(("case", "d"), CASES)
IMPOSSIBLE = {"variance": -1e-3, "inclusion": 1.5, "cluster": 10**9}


class Exchange(NamedTuple):
    """The third round of a federation on one device; the same opened, and what its clients answer."""

    scene: Scene
    state: federation_state.FederationState
    now: wire.Round
    honest: Mapping[str, Reply]
    liar: str


@cache
def exchange(case: Case, d: int) -> Exchange:
    """Play it once; the expected update is made of other rows than anybody's."""
    s = scene(case, d)
    begun = federation_state.FederationState(s.server, s.clients, 2)
    ((record, state),) = engine.rounds(s.method, s.batch, replace(s.plan, rounds=3), begun)
    strangers = replace(s.batch, x=torch.ones_like(s.batch.x), y=torch.zeros_like(s.batch.y))
    expected = wire.expected_update(s.method, s.server, strangers)
    members = messages.members(s.batch)
    now = wire.open_round(s.method, s.server, s.plan, "run", 3, members, expected, rates=record.rates)
    result = {}
    for k, name in enumerate(s.batch.names):
        index = torch.tensor([k])
        kept = Kept("run", 2, messages.flatten(tensors.select(s.clients, index)))
        result[name], _ = remote_client.handle_train(s.method, now.request(name), kept, s.batch.select(index).trim())
    return Exchange(s, state, now, result, s.batch.names[1])


@pytest.mark.parametrize("case", FEDERATED, ids=str)
def test_a_loop_over_the_wire_is_the_engine_bit_by_bit(case: Case) -> None:
    """Where the engine calls clients one by one."""
    laws.remote(scene(case, case.dimensions[0]))


@every_federated
def test_remote_clients_and_one_device_agree(case: Case, d: int) -> None:
    s, state, now, honest, _ = exchange(case, d)
    server = s.method.server(s.server, wire.collect(now, honest.items()).update, s.batch.clients)
    assert_close(identified(s.method, server), identified(s.method, state.server))


@every_federated
def test_what_an_honest_client_sends_is_possible_and_what_the_server_knows_of_it(case: Case, d: int) -> None:
    """The leaf `weight` is `Method.weight` of the rows, `clients` is 1, and variances, shares and clusters are some."""
    s, _, now, _, _ = exchange(case, d)
    update, _ = s.method.client(s.message, s.clients, s.batch, s.noise(s.batch.ids))
    assert s.method.possible(update).tolist() == [True] * s.batch.clients
    assert bits(s.method.registered(update, s.batch.size, s.batch.ids)) == bits(update)
    assert arrays.size(arrays.pack(tensors.select(update, torch.tensor([0])))) <= now.budget


@every_federated
def test_weights_are_those_of_the_registered_rows_whatever_a_reply_says(case: Case, d: int) -> None:
    _, _, now, honest, liar = exchange(case, d)
    truth = wire.collect(now, honest.items())
    for lie in (1e12, (-1.0, 0.0, 1e-30)[len(str(case)) % 3]):
        sent = tensors.leaves(arrays.unpack(now.expected, honest[liar].arrays))
        for name in {"weight", "clients"} & sent.keys():
            sent[name].fill_(lie)
        result = wire.collect(now, {**honest, liar: Reply(honest[liar].config, sent)}.items())
        assert not result.reasons and bits(result.update) == bits(truth.update)


@every_federated
def test_a_reply_that_is_refused_touches_nobody_else(case: Case, d: int) -> None:
    """Every leaf of an update in turn, at its last number: NaN, infinity, too large to be squared, no such value.

    The first leaf with numbers meets all three, the others one in turn.
    """
    _, _, now, honest, liar = exchange(case, d)
    rest, strange = (
        wire.collect(now, [item for item in honest.items() if item[0] != liar]),
        (torch.nan, torch.inf, 1e200),
    )
    first = next(leaf for leaf, array in honest[liar].arrays.items() if array.dtype != "int64")
    for i, (leaf, array) in enumerate(honest[liar].arrays.items()):
        known = IMPOSSIBLE.get(leaf.split(".")[-1])
        values = () if array.dtype == "int64" else strange if leaf == first else (strange[i % 3],)
        faults = dict.fromkeys(values, "is not finite")
        for value, why in (faults | ({} if known is None else {known: "cannot give"})).items():
            sent = tensors.leaves(arrays.unpack(now.expected, honest[liar].arrays))
            sent[leaf].view(-1)[-1] = value
            result = wire.collect(now, {**honest, liar: Reply(honest[liar].config, sent)}.items())
            assert list(result.reasons) == [liar] and why in result.reasons[liar]
            assert result.present == rest.present and bits(result.update) == bits(rest.update)
