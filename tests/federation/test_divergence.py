"""Rounds that diverge are undone, and played again at half the rates."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, final

import pytest
import torch

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import NumericalError
from pacbayes_fl.federation import engine
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.methods.base import Method, Nothing
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.point import LinearPoint
from tests.federating import bits, pac_pfl, play, quietly
from tests.laws.cases import federation


def test_a_server_that_leaves_the_finite_numbers_stops_the_run() -> None:
    method = replace(pac_pfl(), optimiser="ascent", rate=1e308)
    with pytest.warns(UserWarning, match="round 1 undone: the server's state is not finite"):
        with pytest.raises(NumericalError, match="round 1: the server's state is not finite, at an eighth of"):
            play(method, federation(1), FederationPlan(rounds=2, diverges_at=None))


class Steep(NamedTuple):
    theta: torch.Tensor  # [1]


class SteepUpdate(NamedTuple):
    theta: torch.Tensor  # [K, 1]
    weight: torch.Tensor  # [K]


@final
@dataclass(frozen=True)
class Parabola(Method[Steep, Steep, Nothing, SteepUpdate]):
    """Descend curvature theta^2 / 2 from theta = begin: a step multiplies theta by 1 - curvature rate, exactly."""

    objective: ClassVar[str | None] = "loss"

    rate: float
    begin: float = 1.0
    curvature: float = 2.0
    shift: float = 0.0

    def init_server(self, generator: torch.Generator) -> Steep:
        return Steep(torch.tensor([self.begin], dtype=torch.float64))

    def init_clients(self, message: Steep, batch: ClientBatch) -> Nothing:
        return Nothing()

    def broadcast(self, server: Steep) -> Steep:
        return server

    def client(self, message: Steep, state: Nothing, batch: ClientBatch, noise: Noise) -> tuple[SteepUpdate, Nothing]:
        theta = tensors.expand(message.theta, batch.clients) * (1.0 - self.curvature * self.rate)
        return SteepUpdate(theta, torch.ones_like(batch.size)), state

    def client_deltas(self, message: Steep, update: SteepUpdate) -> Steep:
        return Steep(update.theta - message.theta)

    def server(self, server: Steep, update: SteepUpdate, n_clients: int) -> Steep:
        return Steep(tensors.weighted_mean(update.theta, update.weight))

    def report(self, server: Steep, update: SteepUpdate) -> dict[str, torch.Tensor]:
        return {"loss": 0.5 * self.curvature * update.theta.mean().square() + self.shift}

    def personalise(self, message: Any, state: Any, batch: ClientBatch, noise: Noise) -> LinearPoint:
        raise AssertionError("nobody asks")


@pytest.mark.parametrize("rate", [3.0, 6.0])
def test_a_round_that_diverges_is_undone_and_played_again_at_half_the_rate(rate: float) -> None:
    """Against the numbers by hand: theta is multiplied by 1 - 2 rate, and may come to 100."""
    plan = FederationPlan(rounds=6, diverges_at=100.0)
    run = quietly(Parabola(rate), plan)
    theta, now, expected = 1.0, rate, []
    for _ in range(6):
        before = now
        while abs(theta * (1 - 2 * now)) > 100.0 or (theta * (1 - 2 * now)) ** 2 - 1.0 > 100.0:
            now /= 2
        theta *= 1 - 2 * now
        expected.append((theta, now / rate, round(math.log2(before / now))))
    result = [(float(s.server.theta), record.rates, len(record.undone)) for record, s in run]
    assert result == expected
    assert 1 <= run[-1][1].watch.halved <= 3
    for _, state in run[:-1]:  # resumed after any round
        assert [record.undone for record, _ in quietly(Parabola(rate), plan, state)] == [
            record.undone for record, _ in run[state.round :]
        ]
        assert bits(quietly(Parabola(rate), plan, state)[-1][1]) == bits(run[-1][1])


def test_the_last_state_holds_when_three_halvings_were_not_enough() -> None:
    plan, states = FederationPlan(rounds=20, diverges_at=100.0), []
    with pytest.warns(UserWarning, match="undone") as said, pytest.raises(NumericalError) as caught:
        for _, state in engine.rounds(Parabola(40.0), federation(1), plan):
            states.append(state)
    assert len(said) == 3 and caught.value.client is None and caught.value.round == len(states) + 1
    assert "at an eighth of the learning rates too (lower the learning rates, and start anew)" in str(caught.value)
    assert [float(state.server.theta) for state in states] == [-9.0] and states[0].watch.halved == 3


@pytest.mark.law
@pytest.mark.parametrize("begin", [0.0, 1e-9, 1.0, 1e5])
@pytest.mark.parametrize("shift", [0.0, -1e4, 1e4])
def test_a_start_of_any_size_and_an_objective_of_any_sign_are_no_trouble(begin: float, shift: float) -> None:
    """At a rate that descends nothing is undone; at one that ascends it is, wherever it began."""
    method = Parabola(0.4, begin, shift=shift)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine.run_rounds(method, federation(1), FederationPlan(rounds=30, diverges_at=10.0))
    if begin:
        with pytest.raises(NumericalError, match="come to"):
            quietly(replace(method, rate=40.0), FederationPlan(rounds=30, diverges_at=10.0))


def test_what_the_guard_may_take_can_be_set_and_turned_off() -> None:
    assert quietly(Parabola(6.0), FederationPlan(rounds=6, diverges_at=1e99))[-1][1].watch.halved == 0
    assert quietly(Parabola(6.0), FederationPlan(rounds=6, diverges_at=None))[-1][1].watch.halved == 0


def test_a_method_without_a_rate_stops_at_once() -> None:
    @dataclass(frozen=True)
    class Fixed(Parabola):  # type: ignore[misc]
        rate: ClassVar[float] = 100.0  # type: ignore[misc]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert engine.run_rounds(Fixed(), federation(1), FederationPlan(rounds=2)).round == 2  # type: ignore[call-arg]
        with pytest.raises(NumericalError, match=r"loss is not finite .*the last round's state holds"):
            engine.run_rounds(Fixed(begin=1e200), federation(1), FederationPlan(rounds=2))  # type: ignore[call-arg]
