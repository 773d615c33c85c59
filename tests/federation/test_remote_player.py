"""Rounds of clients on other machines: equal to those on one device, whatever comes to pass in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pacbayes_fl import tensors
from pacbayes_fl.errors import ClientError, NumericalError
from pacbayes_fl.federation import engine, federation_state, private
from pacbayes_fl.federation.messages import Refused
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.federation.player import RoundPlayer
from pacbayes_fl.federation.remote_player import roster
from pacbayes_fl.methods import METHODS
from pacbayes_fl.privacy.ledger import Ledger
from pacbayes_fl.privacy.mechanisms import Cohorts, Mechanism
from tests.federating import pac_pfl, poison, quietly
from tests.federation.test_divergence import Parabola
from tests.laws.cases import Toy, assert_close, bits, federation, from_recipe
from tests.private import HUGE, UNLIMITED, Free, open_private
from tests.remote import network, player
from tests.user_objects import WITHOUT_FARTHEST

BATCH = federation(1)
NAMES = BATCH.names


def start_of(remote: Any) -> Any:
    return federation_state.start(remote.method, remote.batch, remote.plan)


def played(remote: Any, state: Any = None) -> Any:
    return list(engine.play(remote, start_of(remote) if state is None else state))


def same(here: Any, there: Any) -> None:
    """Compare records and servers of two runs."""
    assert len(here) == len(there)
    for (record, state), (told, remote) in zip(here, there, strict=True):
        assert_close(remote.server, state.server, 1e-9)
        plain = [replace(one, values={}, steps=None, reasons={}) for one in (told, record)]
        assert plain[0] == plain[1]
        assert_close(numbers(told), numbers(record), 1e-9)
        assert (told.steps is None or told.steps.whose) == (record.steps is None or record.steps.whose)


def numbers(record: Any) -> dict[str, torch.Tensor]:
    found = {**record.values, "seconds": 0.0} | ({} if record.steps is None else record.steps._asdict())
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in found.items() if name != "whose"}


@pytest.mark.law
@pytest.mark.parametrize(
    "more",
    [{}, {"cohort": 3}, {"cohort": 3, "train": "all"}, {"aggregate": "median"}, {"aggregate": WITHOUT_FARTHEST}],
    ids=["mean", "cohort", "all train", "median", "one's own"],
)
def test_a_run_over_a_network_is_that_on_one_device(more: Any) -> None:
    method, plan = pac_pfl(), FederationPlan(rounds=4, seed=3, **more)
    same(list(engine.rounds(method, BATCH, plan)), played(player(method, BATCH, plan)))


@pytest.mark.parametrize("kind", ["all", "poisson"])
def test_private_rounds_release_the_same(kind: Any) -> None:
    method, plan = pac_pfl(), FederationPlan(rounds=3, seed=3)
    begun = federation_state.start(method, BATCH, plan)
    sampled = Cohorts(5) if kind == "all" else Cohorts(5, 2.5, kind)

    def opened() -> Any:
        return private.open_private(method, begun.server, BATCH, plan, HUGE, sampled, Free(), 5)

    here = list(engine.rounds(method, BATCH, plan, None, opened()))
    same(here, played(player(method, BATCH, plan, aggregator=opened())))


@pytest.mark.parametrize("rate", [3.0, 6.0])
def test_a_round_that_diverges_is_asked_for_again_at_half_the_rate(rate: float) -> None:
    plan = FederationPlan(rounds=6, diverges_at=100.0)
    here = quietly(Parabola(rate), plan)
    with pytest.warns(UserWarning, match="undone"):
        there = played(player(Parabola(rate), BATCH, plan))
    same(here, there)
    assert here[-1][1].watch.halved and any(record.undone for record, _ in there)


def test_clients_of_an_undone_round_go_back_with_it() -> None:
    """A state that counts its rounds: the server is interrupted after the clients have answered, and asks again."""
    plan, reached = FederationPlan(rounds=3, seed=2), network(Toy(1), BATCH)
    remote = player(Toy(1), BATCH, plan, reached)
    first = played(remote)
    memories = [node.memories.load(name) for node, name in zip(reached.nodes, NAMES, strict=True)]
    again = played(remote, first[1][1])
    assert bits(again[-1][1].server) == bits(first[-1][1].server)
    for node, name, memory in zip(reached.nodes, NAMES, memories, strict=True):
        now = node.memories.load(name)
        assert now is not None and memory is not None and now.last is not None and memory.last is not None
        assert bits(now.last.state) == bits(memory.last.state) and now.last.state["seen"].tolist() == [3]
    with pytest.raises(ClientError, match=r"none of 5 clients gave .*has answered round 3"):  # older states are gone
        played(remote, first[0][1])


def test_one_who_fails_is_named_with_the_reason_and_moves_nobody() -> None:
    method, plan = pac_pfl(), FederationPlan(rounds=2)

    def lost() -> Any:
        return network(method, BATCH, lambda name, t, reply: Refused("its disk is full") if name == NAMES[1] else reply)

    (record, state), _ = played(player(method, BATCH, plan, lost()))
    assert (record.clients, record.dropped) == (4, (NAMES[1],))
    assert dict(record.reasons) == {NAMES[1]: "it gives no update: its disk is full"}
    (_, without), *_ = quietly(method, plan, batch=poison(BATCH, NAMES[1]))
    assert_close(state.server, without.server, 1e-9)
    assert state.watch.failures == {NAMES[1]: 1}
    with pytest.raises(NumericalError, match=f"client '{NAMES[1]}': it gives no update: its disk is full"):
        played(player(method, BATCH, replace(plan, on_bad_client="stop"), lost()))
    with pytest.raises(ClientError, match=r"4 of 5 clients .*, 5 are needed; .*its disk is full"):
        played(player(method, BATCH, replace(plan, min_clients=5), lost()))


@pytest.mark.law
@pytest.mark.parametrize("private_", [False, True], ids=["plain", "private"])
@pytest.mark.parametrize("cohort", [None, 3])
def test_whose_reply_does_not_arrive_has_the_state_of_one_who_was_not_asked(cohort: int | None, private_: bool) -> None:
    """Late in two rounds on end, and in the last; on one device the client is left out of them."""
    method: Any = from_recipe(METHODS["pfedbayes"], 1, {"weighting": "uniform"}) if private_ else Toy(1)
    plan, late = FederationPlan(rounds=7, seed=3, cohort=None if private_ else cohort), {2, 3, 5, 7}
    begun = federation_state.start(method, BATCH, plan)

    def opened() -> Any:
        sampled = Cohorts(5) if cohort is None else Cohorts(5, cohort, "poisson")
        return private.open_private(method, begun.server, BATCH, plan, HUGE, sampled, Free(), 5) if private_ else None

    reached = network(method, BATCH, lambda name, t, reply: None if name == NAMES[1] and t in late else reply)
    there = played(player(method, BATCH, plan, reached, opened()))
    here, state = RoundPlayer(method, BATCH, plan, opened()), begun
    for record, remote in there:
        state = here.play(state, without=NAMES[1] if state.round + 1 in late else None).state
        assert_close(remote.server, state.server, 1e-9)
        assert private_ or remote.watch.since == state.watch.since
        assert not private_ or (record.dropped, record.reasons, remote.watch.failures) == ((), {}, {}), "it is told"
    message = method.broadcast(state.server)
    for k, node in enumerate(reached.nodes):
        own = node.state(message, plan.seed, there[-1][1].watch.since)
        assert_close(own, tensors.select(state.clients, torch.tensor([k])), 1e-9)
    assert {t for t, name in reached.asked if name == NAMES[1]} & late, "nothing was lost"


class Killed(Exception):
    pass


class Mortal(Ledger):
    """A ledger whose process dies once it has paid for a release."""

    def spend(self, *given: Any, **named: Any) -> int:
        super().spend(*given, **named)
        raise Killed


def states(reached: Any, method: Any, seed: int, last: Any) -> list[Any]:
    message = method.broadcast(last.server)
    return [node.state(message, seed, last.watch.since) for node in reached.nodes]


@pytest.mark.law
@pytest.mark.parametrize(("cohort", "train"), [(None, "cohort"), (3, "cohort"), (3, "all")])
@pytest.mark.parametrize("silent", [(), NAMES, NAMES[2:4]], ids=["all there", "nobody", "others missing"])
def test_a_release_that_the_server_outlived_counts_those_who_were_in_it_whoever_is_there_afterwards(
    tmp_path: Path, cohort: int | None, train: Any, silent: Sequence[str]
) -> None:
    """Killed in round 3 with its release on disk: it is not asked again, although one was late and others are gone."""
    method: Any = from_recipe(METHODS["pfedbayes"], 1, {"weighting": "uniform"})
    plan, late = FederationPlan(rounds=5, seed=3, train=train), NAMES[1]
    sampled = Cohorts(5) if cohort is None else Cohorts(5, cohort, "poisson")
    results = list[Any]()
    for dies in (False, True):
        folder = tmp_path / str(dies)
        folder.mkdir()
        reached = network(method, BATCH, lambda name, t, reply: None if name == late and t == 3 else reply)
        aggregator = open_private(method, BATCH, plan, folder, Mechanism("laplace", 1.0, 1.0), sampled)
        first = [*played(player(method, BATCH, replace(plan, rounds=2), reached, aggregator))]
        (told, state), released = first[-1], len(aggregator.ledger)
        if dies:
            with pytest.raises(Killed):
                mortal = replace(aggregator, ledger=Mortal(folder, UNLIMITED, released))
                played(player(method, BATCH, plan, reached, mortal), state)
            reached.altered = lambda name, t, reply: None if name in silent and t == 3 else reply
            reached.asked.clear()
            aggregator = replace(aggregator, ledger=Ledger(folder, UNLIMITED, released))
        rest = played(player(method, BATCH, plan, reached, aggregator), state)
        assert (told.round, rest[-1][0].round, len(aggregator.ledger)) == (2, 5, 5)
        assert not (dies and any(t == 3 for t, _ in reached.asked)), "it was asked again"
        results.append(([state for _, state in rest], states(reached, method, plan.seed, rest[-1][1])))
    (here, own), (there, resumed) = results
    assert [state.watch.since for state in there] == [state.watch.since for state in here]
    assert [bits(state.server) for state in there] == [bits(state.server) for state in here]
    assert [*map(bits, resumed)] == [*map(bits, own)]


def test_a_client_whose_state_is_no_number_is_left_out_of_the_round_and_keeps_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its update is finite, and would count."""
    method, plan, honest = Toy(1), FederationPlan(rounds=4, seed=3), Toy.client

    def client(self: Any, message: Any, state: Any, batch: Any, noise: Any) -> Any:
        update, after = honest(self, message, state, batch, noise)
        hurt = (state.seen == 1) & (torch.tensor(batch.ids) == BATCH.ids[1]) & (noise.round == 2)
        return update, after._replace(memory=torch.where(hurt.unsqueeze(1), torch.nan, after.memory))

    monkeypatch.setattr(Toy, "client", client)
    reached = network(method, BATCH)
    here, there = list(engine.rounds(method, BATCH, plan)), played(player(method, BATCH, plan, reached))
    same(here, there)
    assert [record.dropped for record, _ in there] == [(), (NAMES[1],), (), ()]
    own = reached.nodes[1].state(method.broadcast(here[-1][1].server), plan.seed, there[-1][1].watch.since)
    assert_close(own, tensors.select(here[-1][1].clients, torch.tensor([1])), 1e-9)


def test_nobody_replies_and_nothing_is_undone() -> None:
    """Halved learning rates would bring nobody back."""
    lost = network(pac_pfl(), BATCH, lambda name, t, reply: reply if t == 1 else None)
    states = []
    with pytest.raises(
        ClientError, match=r"round 2: none of 5 clients gave an update .*: no reply.*--resume"
    ) as caught:
        remote = player(pac_pfl(), BATCH, FederationPlan(rounds=3), lost)
        states += [state for _, state in engine.play(remote, start_of(remote))]
    assert caught.value.round == 2 and len(lost.asked) == 10


def test_a_roster_has_names_and_sizes_and_no_rows() -> None:
    clients = dict(zip(NAMES, map(int, BATCH.size), strict=True))
    result, sizes = roster(clients, BATCH)
    assert (result.names, result.ids, list(sizes)) == (BATCH.names, BATCH.ids, BATCH.size.tolist())
    assert roster(dict.fromkeys(NAMES, 10**12), BATCH).batch.mask.shape == (len(NAMES), 1)
    assert not result.x.any() and not result.y.any() and result.x.untyped_storage().nbytes() == 8
    assert result.x.shape[2:] == BATCH.x.shape[2:] and result.x.dtype == BATCH.x.dtype
