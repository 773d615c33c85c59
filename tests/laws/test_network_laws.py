"""Laws of every method over a network beside `laws.remote`: joined robustly, drawn by us, and private."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pacbayes_fl.federation import engine, federation_state, private
from pacbayes_fl.federation.private import PrivateAggregator
from pacbayes_fl.privacy.mechanisms import Cohorts
from tests.laws import test_private_laws, test_robust_laws
from tests.laws.cases import Case, assert_close, identified, scene
from tests.private import HUGE, Free
from tests.remote import network, player

pytestmark = pytest.mark.law


def both(case: Case, opened: Any, rounds: int = 2, **more: Any) -> None:
    """Compare rounds on one device with the same over messages in bytes."""
    s = scene(case, 1)
    plan = replace(s.plan, rounds=rounds, **more)
    here = list(engine.rounds(s.method, s.batch, plan, None, opened()))
    remote = player(s.method, s.batch, plan, network(s.method, s.batch), opened())
    there = list(engine.play(remote, federation_state.start(s.method, remote.batch, plan)))
    assert len(here) == len(there) == rounds
    for (record, state), (told, after) in zip(here, there, strict=True):
        assert_close(identified(s.method, after.server), identified(s.method, state.server), 1e-9)
        assert (told.clients, told.dropped, told.undone) == (record.clients, record.dropped, record.undone)


@pytest.mark.parametrize("case", tuple(map(test_robust_laws.case_of, test_robust_laws.STEPPING)), ids=str)
def test_robust_rounds_of_a_cohort_are_those_of_one_device(case: Case) -> None:
    rules = test_robust_laws.ROBUST
    rule = rules[test_robust_laws.STEPPING.index(case.name) % len(rules)]
    both(case, lambda: None, aggregate=rule, cohort=None if rule == "multi-krum" else 4)  # which needs five


@pytest.mark.parametrize("case", tuple(map(test_private_laws.case_of, test_private_laws.RELEASED)), ids=str)
@pytest.mark.parametrize("seed", [5, None], ids=["simulation", "system"])
def test_private_rounds_are_those_of_one_device(case: Case, seed: int | None) -> None:
    """With noise below the last digit, and a drawn cohort where the draw has a seed.

    Noise of the system is another on each side, and may decide ties of later rounds, such as which weights FedSI picks.
    """
    s = scene(case, 1)
    server = federation_state.start(s.method, s.batch, s.plan).server
    cohorts = Cohorts(s.batch.clients) if seed is None else Cohorts(s.batch.clients, 2.5, "poisson")

    def opened() -> PrivateAggregator:
        return private.open_private(s.method, server, s.batch, s.plan, HUGE, cohorts, Free(), seed)

    both(case, opened, rounds=1 if seed is None else 2)
