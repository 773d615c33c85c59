"""The wire: what a server accepts from clients, what a client accepts from a server, and that both sides agree."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.errors import ClientError, DeployError, NumericalError, ShapeError
from pacbayes_fl.federation import arrays, engine, wire
from pacbayes_fl.federation.arrays import Array
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.federation.wire import Kept, Reply, Request
from pacbayes_fl.methods import METHODS
from pacbayes_fl.methods.base import Nothing
from pacbayes_fl.methods.pac_pfl import Update
from pacbayes_fl.noise import Noise
from tests.laws.cases import Toy, assert_close, bits, deep, federation, from_recipe

METHOD = from_recipe(METHODS["pac-pfl"], 1)
BATCH = federation(1)
PLAN = FederationPlan(seed=3, rounds=2)
SERVER = engine.start(METHOD, BATCH, PLAN).server
EXPECTED = wire.expected_update(METHOD, SERVER, BATCH)
NAMES = BATCH.names


def one(k: int) -> Any:
    return BATCH.select(torch.tensor([k])).trim()


def opened(method: Any = METHOD, number: int = 2, plan: FederationPlan = PLAN, **more: Any) -> wire.Round:
    server = SERVER if method is METHOD else engine.start(method, BATCH, PLAN).server
    expected = EXPECTED if method is METHOD else wire.expected_update(method, server, BATCH)
    return wire.open_round(method, server, plan, "a run", number, wire.members(BATCH), expected, **more)


ROUND = opened()
REQUEST = ROUND.request(NAMES[0])
REPLIES = {name: wire.handle_train(METHOD, ROUND.request(name), None, one(k))[0] for k, name in enumerate(NAMES)}


def test_flat_trees_are_contiguous_and_named_without_gradient() -> None:
    wide = torch.arange(6.0).view(2, 3).requires_grad_()
    flat = wire.flatten({"a": wide.T, "b": {"c": torch.ones(())}})
    assert list(flat) == ["a", "b.c"]
    assert flat["a"].is_contiguous() and not flat["a"].requires_grad
    assert flat["a"].tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]


def test_requests_are_plain_values_and_bytes() -> None:
    assert dict(REQUEST.config) == {
        "run": "a run",
        "round": 2,
        "client": "client_00",
        "parameters": arrays.digest(METHOD.broadcast(SERVER)),
        "method": wire.signature(METHOD),
        "rates": 1.0,
        "seed": 3,
        "noise": "philox",
    }
    assert bits(arrays.unpack(METHOD.broadcast(SERVER), REQUEST.arrays)) == bits(METHOD.broadcast(SERVER))
    assert all(isinstance(value, Array) for value in REQUEST.arrays.values())
    reply = REPLIES[NAMES[0]]
    assert dict(reply.config) == {key: REQUEST.config[key] for key in ("run", "round", "client", "parameters")}


def test_replies_are_joined_in_the_order_of_the_federation() -> None:
    found = wire.collect(ROUND, reversed(REPLIES.items()))
    together, _ = METHOD.client(METHOD.broadcast(SERVER), Nothing(), BATCH, Noise(3, 2, BATCH.ids))
    assert found.present == NAMES and not found.reasons and isinstance(found.update, Update)
    assert_close(found.update, together)
    assert bits(found.update) == bits(wire.collect(ROUND, REPLIES.items()).update)


def test_nobody_else_is_asked_than_the_cohort() -> None:
    some = opened(asked=(NAMES[3], NAMES[1]))
    with pytest.raises(DeployError, match="client 'client_00': it is not asked"):
        some.request(NAMES[0])
    with pytest.raises(DeployError, match="client 'x': it is asked and not registered"):
        opened(asked=("x",))
    found = wire.collect(some, REPLIES.items())
    assert found.present == (NAMES[1], NAMES[3])
    assert dict(found.reasons) == dict.fromkeys((NAMES[0], NAMES[2], NAMES[4]), "not asked in this round")
    assert bits(found.update) == bits(tensors.select(wire.collect(ROUND, REPLIES.items()).update, torch.tensor([1, 3])))


def test_rounds_close_as_on_one_device() -> None:
    some = opened(asked=NAMES[:4])
    found = wire.collect(some, list(REPLIES.items())[1:3])
    server, record = wire.close_round(some, found)
    update = tensors.select(wire.collect(ROUND, REPLIES.items()).update, torch.tensor([1, 2]))
    assert bits(server) == bits(METHOD.server(SERVER, update, len(NAMES)))
    assert (record.round, record.clients, record.dropped) == (2, 2, (NAMES[0], NAMES[3]))
    assert dict(record.reasons) == dict.fromkeys((NAMES[0], NAMES[3]), "no reply")
    assert dict(record.values) == {name: float(v) for name, v in METHOD.report(server, update).items()}


def test_too_few_clients_and_those_that_must_not_fail_end_a_round() -> None:
    with pytest.raises(
        ClientError, match=r"0 of 5 clients gave an update that counts, 1 are needed .*: no reply"
    ) as none:
        wire.collect(ROUND, [])
    assert none.value.round == 2 and none.value.client == NAMES[0]
    three = opened(plan=replace(PLAN, min_clients=3))
    assert len(wire.collect(three, list(REPLIES.items())[:3]).present) == 3
    with pytest.raises(ClientError, match=r"2 of 5 clients .*, 3 are needed .*client_02: no reply"):
        wire.collect(three, list(REPLIES.items())[:2])
    with pytest.raises(NumericalError, match="client 'client_04': no reply"):
        wire.collect(opened(plan=replace(PLAN, on_bad_client="stop")), list(REPLIES.items())[:4])


def test_a_server_whose_state_is_not_finite_is_not_given() -> None:
    found = wire.collect(ROUND, REPLIES.items())
    spoilt = found._replace(update=found.update._replace(score=found.update.score * torch.inf))
    with pytest.raises(NumericalError, match="round 2: the server's state is not finite"):
        wire.close_round(ROUND, spoilt)


def test_a_client_goes_on_from_the_state_it_kept() -> None:
    toy = Toy(1)
    kept: Kept | None = None
    server = engine.start(toy, BATCH, PLAN).server
    members, expected = wire.members(BATCH), wire.expected_update(toy, server, BATCH)
    for record, state in engine.rounds(toy, BATCH, PLAN):
        now = wire.open_round(toy, server, PLAN, "r", record.round, members, expected)
        _, kept = wire.handle_train(toy, now.request(NAMES[2]), kept, one(2))
        assert (kept.run, kept.round) == ("r", record.round)
        assert_close(kept.state, tensors.leaves(tensors.select(state.clients, torch.tensor([2]))), 1e-12)
        server = state.server
    assert kept is not None and kept.state["seen"].tolist() == [2]


def test_a_state_that_does_not_fit_is_refused() -> None:
    toy = Toy(1)
    first, second = opened(toy, 1).request(NAMES[0]), opened(toy, 2).request(NAMES[0])
    _, kept = wire.handle_train(toy, first, None, one(0))
    more = {**kept.state, "seen": kept.state["seen"].repeat(2)}
    for bad in ({**kept.state, "mean": kept.state["mean"].float()}, {"mean": kept.state["mean"]}, more):
        with pytest.raises(ShapeError):
            wire.handle_train(toy, second, kept._replace(state=bad), one(0))
    spoilt = {**kept.state, "memory": kept.state["memory"] * torch.nan}
    with pytest.raises(DeployError, match="client 'client_00': what it kept is not finite"):
        wire.handle_train(toy, second, kept._replace(state=spoilt), one(0))


@pytest.mark.parametrize("change", [{"seed": 4}, {"round": 3}, {"noise": "generators"}], ids=str)
def test_every_number_of_the_round_reaches_the_noise(change: Any) -> None:
    toy = Toy(1)
    request = opened(toy).request(NAMES[0])
    first, _ = wire.handle_train(toy, request, None, one(0))
    again, _ = wire.handle_train(toy, request, None, one(0))
    other, _ = wire.handle_train(toy, Request({**request.config, **change}, request.arrays), None, one(0))
    assert first == again
    assert first.arrays != other.arrays


CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "nothing at all": (dict.fromkeys(REQUEST.config), "'run' must be str, got nothing"),
    "no round": ({"round": None}, "'round' must be int, got nothing"),
    "a round that is no number": ({"round": "2"}, "'round' must be int, got '2'"),
    "a round that is true": ({"round": True}, "'round' must be int, got True"),
    "round 0": ({"round": 0}, "of round 0, and the client has answered round 1"),
    "a round beyond all": ({"round": 2**32}, "no round has number 4294967296"),
    "a negative seed": ({"seed": -1}, "seed -1"),
    "no rate": ({"rates": 0.0}, "not to 0 of them"),
    "a rate beyond": ({"rates": float("inf")}, "not to inf of them"),
    "a rate that is none": ({"rates": float("nan")}, "not to nan of them"),
    "another noise": ({"noise": "none"}, "noise 'none'"),
    "another client": ({"client": "client_01"}, "for client 'client_01', and here is 'client_00'"),
    "another run": ({"run": "b run"}, "of run 'b run', and the client takes part in 'a run'"),
    "the round before": ({"round": 1}, "of round 1, and the client has answered round 1"),
    "a hash of other parameters": ({"parameters": "0" * 64}, "not those that the request names"),
    "a method that is noise": ({"method": "["}, "method is 'PacPFL' here and None on the server"),
    "a method that is deep": ({"method": "[" * 10**5}, "method is 'PacPFL' here and None on the server"),
}


@pytest.mark.parametrize(("change", "text"), CONFIGS.values(), ids=CONFIGS.keys())
def test_a_request_whose_values_do_not_fit_is_refused_by_name(change: Any, text: str) -> None:
    config = {key: value for key, value in {**REQUEST.config, **change}.items() if value is not None}
    with pytest.raises(DeployError, match=text) as caught:
        wire.handle_train(METHOD, Request(config, REQUEST.arrays), Kept("a run", 1, {}), one(0))
    assert "client_00" in str(caught.value) and len(str(caught.value)) < 300


@pytest.mark.parametrize("bad", [None, {}, "request", (1, 2), Request([], {}), Request({}, None)], ids=str)  # type: ignore[arg-type]
def test_what_is_no_request_is_refused(bad: Any) -> None:
    with pytest.raises(DeployError, match=r"client 'client_00': .*(no config or no arrays|'run' must be)"):
        wire.handle_train(METHOD, bad, None, one(0))


def test_a_client_may_name_its_run_before_the_first_round() -> None:
    with pytest.raises(DeployError, match="takes part in 'mine'"):
        wire.handle_train(METHOD, REQUEST, None, one(0), run="mine")
    wire.handle_train(METHOD, REQUEST, None, one(0), run="a run")
    with pytest.raises(DeployError, match="and here is 'client_00', 'client_01'"):
        wire.handle_train(METHOD, REQUEST, None, BATCH.select(torch.tensor([0, 1])))


OTHERS: dict[str, tuple[Any, str]] = {
    "another class": (from_recipe(METHODS["fedavg"], 1), "method is 'FedAvg' here and 'PacPFL' on the server"),
    "another number": (from_recipe(METHODS["pac-pfl"], 1, {"rate": 0.123}), r"is 0.123 here and 0.01 on the server"),
    "another model": (from_recipe(METHODS["pac-pfl"], 1, model=lambda d: deep(2)), "hyper_prior.loc is .* here and "),
}


@pytest.mark.parametrize(("method", "text"), OTHERS.values(), ids=OTHERS.keys())
def test_a_request_of_another_method_is_refused_by_what_differs(method: Any, text: str) -> None:
    with pytest.raises(DeployError, match=f"the server runs another method: .*{text}"):
        wire.handle_train(method, REQUEST, None, one(0))


@pytest.mark.parametrize("name", METHODS)
def test_every_method_of_the_table_has_a_signature_of_its_own_that_is_the_same_when_built_again(name: str) -> None:
    mine = wire.signature(from_recipe(METHODS[name], 1))
    assert mine == wire.signature(from_recipe(METHODS[name], 1)) and " at 0x" not in mine
    assert json.loads(mine)[""] == type(from_recipe(METHODS[name], 1)).__name__


def told(leaf: str, value: Any) -> Request:
    return Request(REQUEST.config, {**REQUEST.arrays, leaf: value})


PARTICLES = METHOD.broadcast(SERVER).particles
SPOILT = PARTICLES.clone()
SPOILT[0, 0] = torch.nan
MESSAGES: dict[str, tuple[Request, str]] = {
    "NaN": (told("particles", SPOILT), "leaf 'particles' is not finite"),
    "infinity": (told("particles", PARTICLES * torch.inf), "leaf 'particles' is not finite"),
    "beyond squares": (told("particles", PARTICLES + 1e300), "leaf 'particles' is .* too large to be squared"),
    "other numbers": (told("particles", PARTICLES + 1e-9), "not those that the request names by their hash"),
    "another shape": (told("particles", PARTICLES[:2]), "leaf 'particles' must be"),
    "another dtype": (told("particles", PARTICLES.float()), "torch.float64, got .* torch.float32"),
    "sparse": (told("particles", PARTICLES.to_sparse()), "dense on the CPU"),
    "a leaf too many": (told("more", torch.zeros(1)), "not known: 'more'"),
    "no leaf": (Request(REQUEST.config, {}), "leaves missing: .'particles'"),
    "no array": (told("particles", [1.0]), "no array in bytes and no tensor"),
    "too large": (told("more", torch.empty(2**40, device="meta")), "bytes, and at most"),
}


@pytest.mark.parametrize(("request_", "text"), MESSAGES.values(), ids=MESSAGES.keys())
def test_parameters_that_do_not_fit_are_refused(request_: Request, text: str) -> None:
    with pytest.raises(DeployError, match=f"round 2: client 'client_00': .*{text}"):
        wire.handle_train(METHOD, request_, None, one(0))


def test_the_budget_is_a_tenth_more_than_a_reply_takes() -> None:
    takes = arrays.size(REPLIES[NAMES[0]].arrays)
    assert takes <= ROUND.budget == int(1.1 * takes)


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
