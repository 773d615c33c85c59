"""A state that somebody holds stays as it was."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch

from pacbayes_fl import tensors
from pacbayes_fl.federation import engine, federation_state
from pacbayes_fl.federation.divergence import DivergenceGuard, Trouble
from pacbayes_fl.federation.federation_state import Average, FederationState, restored
from pacbayes_fl.federation.plan import FederationPlan
from tests.federating import bits, pac_pfl
from tests.laws.cases import Toy, federation


@pytest.mark.parametrize("chunk", [1, 2**20])
def test_a_state_that_was_yielded_stays_as_it_was(chunk: int) -> None:
    """Calls write into the next state in place; nobody's hold on an earlier one may change."""
    batch = federation(3)
    played, kept = [], []
    for _, state in engine.rounds(Toy(3), batch, FederationPlan(rounds=4, chunk=chunk, cohort=3)):
        played.append(state)
        kept.append(bits(state))
    assert [bits(state) for state in played] == kept and len(set(map(str, kept))) == 4
    start = federation_state.start(Toy(3), batch, FederationPlan())
    before = bits(start)
    next(engine.rounds(Toy(3), batch, FederationPlan(rounds=2, chunk=chunk), start))
    assert bits(start) == before


def test_rates_are_halved_as_often_as_rounds_were_undone() -> None:
    method, batch = pac_pfl(), federation(1)
    state = federation_state.start(method, batch, FederationPlan())
    assert federation_state.at_rates(method, state) is method
    halved = federation_state.at_rates(method, state._replace(watch=state.watch._replace(halved=3)))
    assert halved == replace(method, rate=method.rate / 8)


# the mean of the last rounds -------------------------------------------------------------------------------------


def squares(rounds: int, plan: FederationPlan, average: Average | None = None, after: int = 0) -> FederationState:
    """Go through rounds whose states are t^2, t^4 and t, a whole number."""
    state = FederationState((), (), after, average=average)
    for t in range(after + 1, rounds + 1):
        number = torch.tensor(float(t), dtype=torch.float64)
        server = {"two": number**2, "four": (number**4).expand(3), "rounds": torch.tensor(t)}
        state = FederationState(server, (), t).averaged(state.average, plan)
    return state


@pytest.mark.parametrize(("share", "first"), [(0.1, 7), (0.3, 6), (0.5, 4), (0.43, 5), (1.0, 1), (1e-9, 7)])
def test_the_mean_is_that_of_a_known_sequence(share: float, first: int) -> None:
    state = squares(7, FederationPlan(rounds=7, average_last=share))
    used, count = state.used.server, 8 - first
    assert float(used["two"]) == pytest.approx(sum(t**2 for t in range(first, 8)) / count, rel=1e-14)
    assert used["four"].tolist() == pytest.approx([sum(t**4 for t in range(first, 8)) / count] * 3, rel=1e-14)
    assert int(used["rounds"]) == 7 and state.used.average is None and float(state.server["two"]) == 49
    assert state.labels() == {"averaged": f"the server's model is the mean of those after rounds {first} to 7"}


def test_without_the_option_and_before_its_rounds_the_last_state_is_used() -> None:
    for state in (squares(7, FederationPlan(rounds=7)), squares(4, FederationPlan(rounds=7, average_last=0.4))):
        assert state.used is state and state.average is None and state.labels() == {}


def test_a_run_that_goes_on_to_more_rounds_begins_a_mean_that_reaches_too_far_back_anew() -> None:
    half = FederationPlan(rounds=10, average_last=0.5)
    ended = squares(10, half)
    assert ended.average is not None and int(ended.average.first) == 6
    for rounds, first in ((14, 11), (40, 21)):
        later = squares(rounds, replace(half, rounds=rounds), ended.average, after=10)
        assert later.average is not None and int(later.average.first) == first
        expected = sum(t**2 for t in range(first, rounds + 1)) / (rounds + 1 - first)
        assert float(later.used.server["two"]) == pytest.approx(expected, rel=1e-14)
    fewer = squares(9, replace(half, rounds=9), squares(8, half).average, after=8)
    assert fewer.average is not None and int(fewer.average.first) == 6, "those that there are, are among the last"


def test_along_one_run_all_shorter_ones_have_their_means() -> None:
    plan, marks = FederationPlan(rounds=9, average_last=0.4), (9, 2, 5)
    endings = federation_state.Endings(plan, marks)
    for t in range(1, 10):
        used = endings.used(squares(t, FederationPlan(rounds=99)))
        alone = squares(t, replace(plan, rounds=t) if t in marks else FederationPlan(rounds=99))
        assert float(used.server["two"]) == pytest.approx(float(alone.used.server["two"]), rel=1e-14)


def test_rounds_go_on_from_the_last_state_and_what_is_given_out_is_the_mean() -> None:
    method, batch, plan = pac_pfl(), federation(1), FederationPlan(rounds=6, cohort=3)
    plain = [state for _, state in engine.rounds(method, batch, plan)]
    other = [state for _, state in engine.rounds(method, batch, replace(plan, average_last=0.5))]
    assert [bits(one._replace(average=None)) for one in other] == [bits(one) for one in plain]
    assert [one.watch for one in other] == [one.watch for one in plain]
    mean = torch.stack([one.server.particles for one in plain[3:]]).mean(0)
    torch.testing.assert_close(other[-1].used.server.particles, mean, rtol=1e-12, atol=1e-13)
    last = engine.run_rounds(method, batch, replace(plan, average_last=0.5))
    assert torch.equal(last.server.particles, other[-1].used.server.particles)


def test_a_state_that_is_read_back_goes_on_to_the_same_bits() -> None:
    method, batch, plan = pac_pfl(), federation(1), FederationPlan(rounds=6, average_last=0.7)
    states = [state for _, state in engine.rounds(method, batch, plan)]
    for state in states:
        flat = {name: leaf.clone() for name, leaf in tensors.leaves(state.server_side).items()}
        server, average = restored(states[0].server, flat | {"clients.own": torch.zeros(5)})
        assert (average is None) == (state.round < 3)
        again = [*engine.rounds(method, batch, plan, state._replace(server=server, average=average))]
        assert not again or torch.equal(again[-1][1].used.server.particles, states[-1].used.server.particles)


def test_a_round_that_was_undone_is_not_in_the_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    method, batch, plan = pac_pfl(), federation(1), FederationPlan(rounds=5, average_last=1.0)
    told, real = list[int](), DivergenceGuard.trouble

    def trouble(self: DivergenceGuard, before: FederationState, played: Any) -> Trouble | None:
        told.append(before.round)
        return Trouble("it is the test's wish") if told == [0, 1, 2, 3] else real(self, before, played)

    monkeypatch.setattr(DivergenceGuard, "trouble", trouble)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        states = [state for _, state in engine.rounds(method, batch, plan)]
    assert told.count(3) == 2 and states[-1].watch.halved == 1
    mean = torch.stack([one.server.particles for one in states]).mean(0)
    torch.testing.assert_close(states[-1].used.server.particles, mean, rtol=1e-12, atol=1e-13)
