"""What rounds on one device and over a network have in common."""

from __future__ import annotations

from pacbayes_fl.federation.guard import Outcome
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.federation.player import Notes, Player, parameter_size
from pacbayes_fl.federation.remote_player import RemotePlayer
from pacbayes_fl.federation.round import RoundPlayer
from pacbayes_fl.methods import METHODS
from tests.laws.cases import federation, from_recipe, scene
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
