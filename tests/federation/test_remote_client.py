"""What a client accepts from a server, and what it keeps."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pacbayes_fl import tensors
from pacbayes_fl.errors import DeployError, ShapeError
from pacbayes_fl.federation import engine, federation_state, messages, remote_client, wire
from pacbayes_fl.federation.messages import Kept, Request
from pacbayes_fl.methods import METHODS
from tests.laws.cases import Toy, assert_close, deep, from_recipe
from tests.remote import BATCH, METHOD, NAMES, PLAN, REQUEST, SERVER, one, opened


def test_a_client_goes_on_from_the_state_it_kept() -> None:
    toy = Toy(1)
    kept: Kept | None = None
    server = federation_state.start(toy, BATCH, PLAN).server
    members, expected = messages.members(BATCH), wire.expected_update(toy, server, BATCH)
    for record, state in engine.rounds(toy, BATCH, PLAN):
        now = wire.open_round(toy, server, PLAN, "r", record.round, members, expected)
        _, kept = remote_client.handle_train(toy, now.request(NAMES[2]), kept, one(2))
        assert (kept.run, kept.round) == ("r", record.round)
        assert_close(kept.state, tensors.leaves(tensors.select(state.clients, torch.tensor([2]))), 1e-12)
        server = state.server
    assert kept is not None and kept.state["seen"].tolist() == [2]


def test_a_state_that_does_not_fit_is_refused() -> None:
    toy = Toy(1)
    first, second = opened(toy, 1).request(NAMES[0]), opened(toy, 2).request(NAMES[0])
    _, kept = remote_client.handle_train(toy, first, None, one(0))
    more = {**kept.state, "seen": kept.state["seen"].repeat(2)}
    for bad in ({**kept.state, "mean": kept.state["mean"].float()}, {"mean": kept.state["mean"]}, more):
        with pytest.raises(ShapeError):
            remote_client.handle_train(toy, second, kept._replace(state=bad), one(0))
    spoilt = {**kept.state, "memory": kept.state["memory"] * torch.nan}
    with pytest.raises(DeployError, match="client 'client_00': what it kept is not finite"):
        remote_client.handle_train(toy, second, kept._replace(state=spoilt), one(0))


@pytest.mark.parametrize("change", [{"seed": 4}, {"round": 3}, {"noise": "generators"}], ids=str)
def test_every_number_of_the_round_reaches_the_noise(change: Any) -> None:
    toy = Toy(1)
    request = opened(toy).request(NAMES[0])
    first, _ = remote_client.handle_train(toy, request, None, one(0))
    again, _ = remote_client.handle_train(toy, request, None, one(0))
    other, _ = remote_client.handle_train(toy, Request({**request.config, **change}, request.arrays), None, one(0))
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
        remote_client.handle_train(METHOD, Request(config, REQUEST.arrays), Kept("a run", 1, {}), one(0))
    assert "client_00" in str(caught.value) and len(str(caught.value)) < 300


@pytest.mark.parametrize("bad", [None, {}, "request", (1, 2), Request([], {}), Request({}, None)], ids=str)  # type: ignore[arg-type]
def test_what_is_no_request_is_refused(bad: Any) -> None:
    with pytest.raises(DeployError, match=r"client 'client_00': .*(no config or no arrays|'run' must be)"):
        remote_client.handle_train(METHOD, bad, None, one(0))


def test_a_client_may_name_its_run_before_the_first_round() -> None:
    with pytest.raises(DeployError, match="takes part in 'mine'"):
        remote_client.handle_train(METHOD, REQUEST, None, one(0), run="mine")
    remote_client.handle_train(METHOD, REQUEST, None, one(0), run="a run")
    with pytest.raises(DeployError, match="and here is 'client_00', 'client_01'"):
        remote_client.handle_train(METHOD, REQUEST, None, BATCH.select(torch.tensor([0, 1])))


OTHERS: dict[str, tuple[Any, str]] = {
    "another class": (from_recipe(METHODS["fedavg"], 1), "method is 'FedAvg' here and 'PacPFL' on the server"),
    "another number": (from_recipe(METHODS["pac-pfl"], 1, {"rate": 0.123}), r"is 0.123 here and 0.01 on the server"),
    "another model": (from_recipe(METHODS["pac-pfl"], 1, model=lambda d: deep(2)), "hyper_prior.loc is .* here and "),
}


@pytest.mark.parametrize(("method", "text"), OTHERS.values(), ids=OTHERS.keys())
def test_a_request_of_another_method_is_refused_by_what_differs(method: Any, text: str) -> None:
    with pytest.raises(DeployError, match=f"the server runs another method: .*{text}"):
        remote_client.handle_train(method, REQUEST, None, one(0))


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
        remote_client.handle_train(METHOD, request_, None, one(0))
