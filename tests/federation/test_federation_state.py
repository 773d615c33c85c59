"""A state that somebody holds stays as it was."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pacbayes_fl.federation import engine, federation_state
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
