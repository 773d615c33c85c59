"""The wire: what a server accepts from clients, what a client accepts from a server, and that both sides agree."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.errors import ClientError, ShapeError
from pacbayes_fl.federation import engine, wire
from pacbayes_fl.federation.engine import FederationPlan
from pacbayes_fl.methods import METHODS
from pacbayes_fl.methods.base import Nothing
from pacbayes_fl.methods.pac_pfl import Update
from pacbayes_fl.noise import Noise
from tests.laws.cases import Toy, assert_close, bits, federation, from_recipe

METHOD = from_recipe(METHODS["pac-pfl"], 1)
BATCH = federation(1)
SERVER = engine.start(METHOD, BATCH, FederationPlan()).server
ROUND: wire.RoundConfig = {"seed": 3, "round": 2}


def one(k: int) -> Any:
    return BATCH.select(torch.tensor([k])).trim()


def message() -> wire.Flat:
    return wire.flatten(METHOD.broadcast(SERVER))


def replies() -> dict[str, Mapping[str, Any]]:
    return {BATCH.names[k]: wire.handle_train(METHOD, message(), ROUND, None, one(k))[0] for k in range(3)}


def expected() -> Any:
    scores = torch.zeros(1, *SERVER.particles.shape, dtype=torch.float64)
    return Update(scores, scores[:, :, 0], scores[:, 0, 0], scores[:, 0, 0])


def test_flat_trees_are_contiguous_and_named_without_gradient() -> None:
    wide = torch.arange(6.0).view(2, 3).requires_grad_()
    flat = wire.flatten({"a": wide.T, "b": {"c": torch.ones(())}})
    assert list(flat) == ["a", "b.c"]
    assert flat["a"].is_contiguous() and not flat["a"].requires_grad
    assert flat["a"].tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]


def test_replies_are_joined_in_their_order() -> None:
    update = wire.collect(expected(), replies())
    index = torch.tensor([0, 1, 2])
    rows = BATCH.select(index)
    together, _ = METHOD.client(METHOD.broadcast(SERVER), Nothing(), rows, Noise(3, 2, rows.ids))
    assert isinstance(update, Update)
    assert_close(update, together)
    backwards = wire.collect(expected(), dict(reversed(replies().items())))
    assert bits(backwards) == bits(tensors.select(update, index.flip(0)))


def changed(**leaves: Any) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    """Return a change of some leaves: to another value, or to none at all."""

    def change(reply: Mapping[str, Any]) -> Mapping[str, Any]:
        made = {name: value(reply[name]) if callable(value) else value for name, value in leaves.items()}
        return {name: value for name, value in {**reply, **made}.items() if value is not None}

    return change


WRONG: dict[str, tuple[Callable[[Mapping[str, Any]], Mapping[str, Any]], str]] = {
    "float32": (changed(score=Tensor.float), "leaf 'score' must be .* torch.float64, got .* torch.float32"),
    "whole numbers": (changed(weight=Tensor.long), "leaf 'weight' must be .* torch.float64, got .* torch.int64"),
    "complex": (changed(log_evidence=lambda t: t.to(torch.complex128)), "leaf 'log_evidence' must be"),
    "a size that would broadcast": (changed(log_evidence=lambda t: t[:, :1]), r"must be \[1, 3\] .*, got \[1, 1\]"),
    "no client dimension": (changed(weight=lambda t: t[0]), r"leaf 'weight' must be \[1\] .*, got \[\]"),
    "two clients": (changed(weight=lambda t: t.repeat(2)), r"leaf 'weight' must be \[1\] .*, got \[2\]"),
    "transposed": (changed(score=lambda t: t.mT), "leaf 'score' must be"),
    "a leaf missing": (changed(weight=None), r"leaves missing: \['weight'\]"),
    "a leaf too many": (changed(more=torch.zeros(1)), r"not known: \['more'\]"),
    "an array": (changed(weight=np.ones(1)), "'weight' is not a tensor"),
    "a list": (changed(weight=[1.0]), "'weight' is not a tensor"),
    "text": (changed(weight="1.0"), "'weight' is not a tensor"),
    "nothing": (lambda reply: {}, "leaves missing"),
}


@pytest.mark.parametrize(("change", "text"), WRONG.values(), ids=WRONG.keys())
def test_a_reply_that_does_not_fit_is_refused_with_its_client(change: Any, text: str) -> None:
    got = replies()
    got["client_01"] = change(got["client_01"])
    with pytest.raises(ClientError, match=text) as caught:
        wire.collect(expected(), got)
    assert caught.value.client == "client_01"


def test_no_reply_at_all_is_an_error() -> None:
    with pytest.raises(ClientError, match="no client replied"):
        wire.collect(expected(), {})


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (changed(particles=lambda t: t[:2]), "leaf 'particles' must be"),
        (changed(particles=Tensor.float), "torch.float64, got .* torch.float32"),
        (changed(particles=None), "leaves missing"),
        (changed(more=torch.zeros(1)), "not known"),
    ],
)
def test_a_message_that_does_not_fit_is_refused(change: Any, text: str) -> None:
    with pytest.raises(ShapeError, match=text):
        wire.handle_train(METHOD, change(message()), ROUND, None, one(0))


def test_a_state_that_does_not_fit_is_refused() -> None:
    toy = Toy(1)
    down = wire.flatten(toy.broadcast(toy.init_server(torch.Generator())))
    _, state = wire.handle_train(toy, down, ROUND, None, one(0))
    more = {**state, "seen": state["seen"].repeat(2)}
    for bad in ({**state, "mean": state["mean"].float()}, {"mean": state["mean"]}, more):
        with pytest.raises(ShapeError):
            wire.handle_train(toy, down, ROUND, bad, one(0))


def test_a_client_goes_on_from_the_state_it_kept() -> None:
    toy, plan = Toy(1), FederationPlan(rounds=2, seed=3)
    kept: wire.Flat | None = None
    server = engine.start(toy, BATCH, plan).server
    for record, state in engine.rounds(toy, BATCH, plan):
        config: wire.RoundConfig = {"seed": 3, "round": record.round}
        _, kept = wire.handle_train(toy, wire.flatten(toy.broadcast(server)), config, kept, one(2))
        assert_close(kept, tensors.leaves(tensors.select(state.clients, torch.tensor([2]))), 1e-12)
        server = state.server
    assert kept is not None and kept["seen"].tolist() == [2]


@pytest.mark.parametrize("changed_config", [{"seed": 4}, {"round": 3}, {"noise": "generators"}], ids=str)
def test_every_number_of_the_round_reaches_the_noise(changed_config: Any) -> None:
    toy = Toy(1)
    down = wire.flatten(toy.broadcast(toy.init_server(torch.Generator())))
    first = wire.handle_train(toy, down, ROUND, None, one(0))[0]
    assert bits(first) == bits(wire.handle_train(toy, down, {**ROUND, "noise": "philox"}, None, one(0))[0])
    assert bits(first) != bits(wire.handle_train(toy, down, {**ROUND, **changed_config}, None, one(0))[0])
