"""check_method passes methods that keep the laws, and names the law that a method breaks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import StudyError
from pacbayes_fl.inference import map_estimate
from pacbayes_fl.inference.map_estimate import GaussianPrior
from pacbayes_fl.methods.baselines.averaging import AveragedWeights, Server, Update
from pacbayes_fl.methods.baselines.fedprox import FedProx
from pacbayes_fl.methods.baselines.persistence import Persistence
from pacbayes_fl.noise import Noise
from pacbayes_fl.options import option
from pacbayes_fl.posteriors.point import LinearPoint
from pacbayes_fl.posteriors.weights.posterior import WeightPosterior
from pacbayes_fl.tensors import expand
from pacbayes_fl.testing import LAWS, LawError, check_method
from pacbayes_fl.testing.scene import federation
from tests.laws.cases import Toy, ToyClient, ToyMessage, ToyServer, ToyUpdate


class Personal(NamedTuple):
    """A client's own weights v [K, D]."""

    v: Tensor


@dataclass(frozen=True)
class Ditto(AveragedWeights[Personal]):
    """Ditto (Li et al., ICML 2021): beside FedAvg every client trains weights v_k near the global ones.

    Args:
        pull: strength of the pull towards the global weights.
    """

    pull: float = option(0.1, low=0, symbol="lambda")

    def init_clients(self, message: Server, batch: ClientBatch) -> Personal:
        return Personal(expand(message.theta, batch.clients).clone())

    def client(self, message: Server, state: Personal, batch: ClientBatch, noise: Noise) -> tuple[Update, Personal]:
        start = expand(message.theta, batch.clients)
        theta, _, loss = map_estimate.fit(self.model, self.local, start, batch, noise)
        near = GaussianPrior(start, torch.ones_like(start), self.pull)
        return self.sent(theta, loss, batch), Personal(
            map_estimate.fit(self.model, self.local, state.v, batch, noise.fork(), prior=near).theta
        )

    def personalise(self, message: Server, state: Personal, batch: ClientBatch, noise: Noise) -> WeightPosterior:
        return self.posterior(state.v, batch, noise)


@pytest.mark.law
@pytest.mark.parametrize("labels", [False, True], ids=["numbers", "labels"])
@pytest.mark.parametrize("method", [FedProx, Ditto])
def test_methods_of_weights_pass(method: Any, labels: bool) -> None:
    check_method(method, labels=labels, steps=2)


def test_an_instance_passes_on_clients_of_its_own_and_a_local_method_sends_nothing() -> None:
    check_method(Toy(2), federation(2))
    check_method(Persistence)
    check_method(Mutant(3))


class Counter:
    """What a method must not have: a memory beside its states."""

    def __init__(self) -> None:
        self.calls = 0


Played = tuple[ToyUpdate, ToyClient]


@dataclass(frozen=True)
class Mutant(Toy):  # type: ignore[misc]
    """The toy with another client's half, or another personalisation."""

    after: Callable[[ToyMessage, ToyClient, ClientBatch, Played], Played] = lambda message, state, batch, played: played
    before: Callable[[ClientBatch], ClientBatch] = lambda batch: batch
    bias: Callable[[ToyClient, ClientBatch], Tensor | float] = lambda state, batch: 0.0
    counter: Counter = field(default_factory=Counter)

    def client(self, message: ToyMessage, state: ToyClient, batch: ClientBatch, noise: Noise) -> Played:
        return self.after(message, state, batch, super().client(message, state, self.before(batch), noise))

    def personalise(self, message: ToyMessage, state: ToyClient, batch: ClientBatch, noise: Noise) -> LinearPoint:
        result = super().personalise(message, state, batch, noise)
        return LinearPoint(result.weight, result.bias + self.bias(state, batch), result.variance)


@dataclass(frozen=True)
class Counting(Mutant):
    """Goes further the more often it was called."""

    def server(self, server: ToyServer, update: ToyUpdate, n_clients: int) -> ToyServer:
        self.counter.calls += 1
        result = super().server(server, update, n_clients)
        return result._replace(centre=result.centre * (1 + 1e-3 * self.counter.calls))


@dataclass(frozen=True)
class Described(Mutant):
    """Says one number of all clients together."""

    def describe(self, state: ToyClient) -> dict[str, Tensor]:
        return {"mean": state.mean.mean()}


def sent(change: Callable[[ToyUpdate, ClientBatch], ToyUpdate]) -> Any:
    """Change what is sent."""
    return lambda message, state, batch, played: (change(played[0], batch), played[1])


def by_place(update: ToyUpdate, batch: ClientBatch) -> ToyUpdate:
    return update._replace(value=update.value + 1e-3 * torch.arange(len(update.value)).unsqueeze(1))


def counted(counter: Counter) -> Any:
    """Send more the more often clients were called."""

    def change(update: ToyUpdate, batch: ClientBatch) -> ToyUpdate:
        counter.calls += 1
        return update._replace(value=update.value * (1 + 1e-3 * counter.calls))

    return sent(change)


def overwritten(message: ToyMessage, state: ToyClient, batch: ClientBatch, played: Played) -> Played:
    state.memory.add_(1.0)
    return played


def clean(batch: ClientBatch) -> ClientBatch:
    """Hide rows that are not finite."""
    return ClientBatch(batch.x.nan_to_num(), batch.y, batch.mask, batch.ids, batch.names)


MUTANTS: dict[str, list[Callable[[], Any]]] = {
    "batch": [
        lambda: Mutant(3, sent(lambda update, batch: update._replace(value=update.value - update.value.mean(0)))),
        lambda: Mutant(3, bias=lambda state, batch: state.mean.mean()),
    ],
    "permutation": [
        lambda: Mutant(3, sent(by_place)),
        lambda: Mutant(3, bias=lambda state, batch: torch.arange(batch.clients) * 1e-3),
    ],
    "padding": [
        lambda: Mutant(3, sent(lambda update, batch: update._replace(value=update.value + batch.x.mean(1)))),
        lambda: Mutant(3, bias=lambda state, batch: batch.x.mean((1, 2))),
    ],
    "seed": [lambda: Counting(3)],
    "inputs": [lambda: Mutant(3, overwritten)],
    "leaves": [lambda: Described(3)],
    "resume": [lambda: Counting(3)],
    "remote": [lambda: Mutant(3, counted(Counter()))],
    "failure": [lambda: Mutant(3, before=clean)],
    "newcomers": [lambda: Mutant(3, bias=lambda state, batch: batch.y.sum(1) / batch.size)],
    "device": [
        lambda: Mutant(3, sent(lambda update, batch: update._replace(value=update.value + 0 * float(batch.x.sum())))),
        lambda: Mutant(3, bias=lambda state, batch: torch.zeros(batch.clients, dtype=torch.float64, device="cpu")),
    ],
}


@pytest.mark.law
@pytest.mark.parametrize(
    ("law", "mutant"),
    [pytest.param(law, one, id=f"{law}-{k}") for law, ones in MUTANTS.items() for k, one in enumerate(ones)],
)
def test_a_mutant_breaks_the_law_by_name(law: str, mutant: Callable[[], Any]) -> None:
    with pytest.raises(LawError, match=rf"^\w+ breaks .*\b{law}\b") as error:
        check_method(mutant())
    assert law in error.value.laws


def test_a_law_that_a_method_does_not_claim_is_left_out() -> None:
    check_method(Described(3), without=["leaves"])


def test_every_law_has_a_mutant_and_only_laws_are_left_out() -> None:
    assert MUTANTS.keys() == LAWS.keys()
    with pytest.raises(StudyError, match="no law is called 'speed'"):
        check_method(Toy(3), without=["speed"])


def test_what_is_no_method_is_refused_and_rounds_that_cannot_be_played_are_told() -> None:
    for wrong, words in ((3, "takes a method or its class, got 3"), (dict, "takes a method or its class")):
        with pytest.raises(StudyError, match=words):
            check_method(wrong)  # type: ignore[arg-type]
    with pytest.raises(StudyError, match="options are of a class"):
        check_method(Toy(3), steps=2)
    with pytest.raises(LawError, match="Toy breaks rounds"):
        check_method(Toy(2))
