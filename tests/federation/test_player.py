"""Rounds on one device, and what they have in common with those over a network."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import ClientError, NumericalError, ShapeError, StudyError
from pacbayes_fl.federation import cohort, engine, federation_state
from pacbayes_fl.federation.guard import Outcome
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.federation.player import Notes, Player, RoundPlayer, parameter_size
from pacbayes_fl.federation.remote_player import RemotePlayer
from pacbayes_fl.methods import METHODS
from pacbayes_fl.noise import Noise
from tests.federating import bits, play, poison
from tests.laws import cases
from tests.laws.cases import Toy, assert_close, federation, from_recipe, scene
from tests.laws.test_robust_laws import case_of
from tests.remote import player

BATCH = federation(1)


def test_a_round_is_played_by_the_same_code_wherever_clients_are() -> None:
    assert RoundPlayer.play is RemotePlayer.play is Player.play


def test_everybody_trains_unless_a_cohort_alone_does() -> None:
    method = from_recipe(METHODS["pac-pfl"], 1)
    for make in (RoundPlayer, lambda *parts: player(*parts[:3])):
        plans = FederationPlan(), FederationPlan(cohort=2), FederationPlan(cohort=2, train="all")
        assert [make(method, BATCH, plan, None).everybody for plan in plans] == [True, False, True]


def test_notes_are_numbers_of_those_who_were_asked() -> None:
    s = scene(case_of("fedavg"), 1)
    here = RoundPlayer(s.method, s.batch, s.plan, None)
    update, _ = s.method.client(s.message, s.clients, s.batch, s.noise(s.batch.ids))
    good = s.batch.size > 3
    note = here.note(s.method, s.message, update, good)
    assert note is not None
    notes = Notes()
    notes.add(s.batch.names, note)
    result: Outcome = notes.read(s.batch.names[:2], s.server, parameter_size(s.method, s.server), {})
    assert result.dropped == tuple(name for name, fine in zip(s.batch.names, good.tolist(), strict=True) if not fine)
    assert set(result.norms) == set(s.batch.names[:2]) - set(result.dropped)
    assert result.finite and result.size > 0


@pytest.mark.parametrize("size", [None, 1, 3, 5, 9])
def test_the_cohort_takes_part_and_nobody_else(size: int | None) -> None:
    batch, plan = federation(1), FederationPlan(rounds=4, cohort=size, seed=2)
    seen = torch.zeros(5, dtype=torch.int64)
    before = federation_state.start(Toy(1), batch, plan)
    for record, state in engine.rounds(Toy(1), batch, plan):
        drawn = cohort.draw(2, record.round, batch.ids, size)
        seen[drawn] += 1
        assert record.clients == len(drawn) == min(size or 5, 5)
        assert torch.equal(state.clients.seen, seen)
        others = torch.tensor([k for k in range(5) if k not in drawn.tolist()], dtype=torch.int64)
        assert bits(tensors.select(state.clients, others)) == bits(tensors.select(before.clients, others))
        before = state


def loop(method: Any, batch: ClientBatch, plan: FederationPlan) -> tuple[Any, list[Any]]:
    """Let every client train alone in every round, and the server hear those that were drawn (Algorithm 1)."""
    state = federation_state.start(method, batch, plan)
    server, each = state.server, [tensors.select(state.clients, torch.tensor([k])) for k in range(batch.clients)]
    for t in range(1, plan.rounds + 1):
        message, sent = method.broadcast(server), []
        for k in range(batch.clients):
            one = batch.select(torch.tensor([k])).trim()
            update, each[k] = method.client(message, each[k], one, Noise(plan.seed, t, one.ids, engine=plan.noise))
            sent.append(update)
        drawn = cohort.draw(plan.seed, t, batch.ids, plan.cohort).tolist()
        server = method.server(server, tensors.cat([sent[k] for k in drawn]), batch.clients)
    return server, each


@pytest.mark.law
@pytest.mark.parametrize("name", ["toy", *METHODS])
def test_all_train_and_the_cohort_is_heard(name: str) -> None:
    method = Toy(1) if name == "toy" else from_recipe(METHODS[name], 1)
    if not method.federated:
        return
    batch, plan = cases.rows_for(name), FederationPlan(rounds=2, cohort=2, seed=7, train="all")
    server, each = loop(method, batch, plan)
    for chunk in (1, 10**6):
        records = play(method, batch, replace(plan, chunk=chunk))
        state = records[-1][1]
        assert_close(cases.identified(method, state.server), cases.identified(method, server), 1e-9)
        for k, one in enumerate(each):
            assert_close(tensors.select(state.clients, torch.tensor([k])), one, 1e-9)
        assert [record.clients for record, _ in records] == [2, 2]
    few = engine.run_rounds(method, batch, replace(plan, train="cohort"))
    moved = bits(few.clients) != bits(state.clients)
    assert moved or name not in ("toy", "pfedbayes", "sfedbayes", "cfedbayes", "bpfed", "local")
    if not moved:  # where clients learn nothing that they keep, it does not matter who trains
        assert_close(cases.identified(method, few.server), cases.identified(method, state.server), 1e-9)
    everybody = replace(plan, cohort=None, rounds=1)
    assert bits(play(method, batch, everybody)[-1][1]) == bits(
        play(method, batch, replace(everybody, train="cohort"))[-1][1]
    )


def test_a_client_that_fails_outside_of_the_cohort_costs_only_itself() -> None:
    plan = FederationPlan(rounds=1, cohort=2, seed=7, train="all", min_clients=2)
    batch, inside = federation(1), cohort.draw(7, 1, federation(1).ids, 2).tolist()
    bad = next(k for k in range(5) if k not in inside)
    ((record, state),) = play(Toy(1), poison(batch, batch.names[bad]), plan)
    ((_, whole),) = play(Toy(1), batch, plan)
    assert (record.clients, record.dropped) == (2, (batch.names[bad],))
    assert bits(state.server) == bits(whole.server)
    assert state.clients.seen.tolist() == [int(k != bad) for k in range(5)]
    with pytest.raises(ClientError, match="1 of 2 clients gave a finite update, 2 are needed"):
        play(Toy(1), poison(batch, batch.names[inside[0]]), plan)
    with pytest.raises(NumericalError, match=f"client {batch.names[bad]!r}"):
        play(Toy(1), poison(batch, batch.names[bad]), replace(plan, on_bad_client="stop"))


@pytest.mark.parametrize(
    ("given", "objective", "said"),
    [
        ({"norm": torch.zeros(3)}, None, r"must give 'norm' as a tensor of one number, \[\], got \[3\]"),
        ({"norm": 3.0}, None, r"must give 'norm' as a tensor of one number, \[\], got 3.0"),
        ({"round": torch.tensor(1.0)}, None, "'round' is what the record of a round says itself"),
        ({"norm": torch.tensor(1.0)}, "loss", "lacks 'loss', the clients' objective, by which a divergence is noticed"),
    ],
)
def test_what_a_method_reports_is_one_number_each_and_its_objective_among_them(
    given: dict[str, Any], objective: str | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Toy, "report", lambda *_: given)
    monkeypatch.setattr(Toy, "objective", objective)
    with pytest.raises((ShapeError, StudyError), match=f"^report of Toy.*{said}"):
        engine.run_rounds(Toy(1), BATCH, FederationPlan(rounds=1))
