"""The engine: who takes part, what a record says, who is dropped, and how a run goes on."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import ClientError, NumericalError, StudyError
from pacbayes_fl.federation import cohort, engine, federation_state
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.methods import METHODS
from pacbayes_fl.methods.pac_pfl.gp import PacPFL
from pacbayes_fl.noise import Noise
from pacbayes_fl.results.rounds import RoundRecord
from tests.federating import bits, pac_pfl, play, poison, quietly
from tests.laws.cases import Toy, assert_close, federation, from_recipe, rows_for

# records and results --------------------------------------------------------------------------------------------


def test_a_record_says_what_the_round_did() -> None:
    batch, plan = federation(3), FederationPlan(rounds=3, chunk=1)
    method = pac_pfl(3)
    server = federation_state.start(method, batch, plan).server
    for t, (record, state) in enumerate(engine.rounds(method, batch, plan), 1):
        assert (record.round, record.clients, record.dropped, state.round) == (t, 4, (), t)
        assert record.steps is not None and record.steps.whose in batch.names
        assert list(record.values) == ["log_evidence", "score_norm", "spread", "jittered", "seconds"]
        noise = Noise(0, t, batch.ids)
        update, _ = method.client(method.broadcast(server), state.clients, batch, noise)
        server = method.server(server, update, 4)
        centred = server.particles - server.particles.mean(0)
        assert record.values["log_evidence"] == pytest.approx(update.log_evidence.mean().item(), rel=1e-9)
        assert record.values["score_norm"] == pytest.approx(update.score.sum(0).norm().item(), rel=1e-9)
        assert record.values["spread"] == pytest.approx(centred.square().mean().sqrt().item(), rel=1e-9)
        assert record.values["seconds"] > 0
        assert all(type(value) is float for value in record.values.values())


def test_run_rounds_reports_every_round_and_returns_the_last() -> None:
    plan = FederationPlan(rounds=3, seed=5)
    records: list[RoundRecord] = []
    state = engine.run_rounds(Toy(1), federation(1), plan, records.append)
    assert [record.round for record in records] == [1, 2, 3]
    assert bits(state) == bits(play(Toy(1), federation(1), plan)[-1][1])


def test_no_rounds_leave_the_start() -> None:
    plan = FederationPlan(rounds=0)
    assert play(Toy(1), federation(1), plan) == []
    assert bits(engine.run_rounds(Toy(1), federation(1), plan)) == bits(
        federation_state.start(Toy(1), federation(1), plan)
    )


@pytest.mark.law
@pytest.mark.parametrize(("size", "train"), [(None, "cohort"), (3, "cohort"), (3, "all")])
@pytest.mark.parametrize("method", [Toy(1), pac_pfl(), pac_pfl(minibatch=3)], ids=["toy", "pac-pfl", "minibatch"])
def test_a_resumed_run_goes_on_bit_by_bit(method: Any, size: int | None, train: Any) -> None:
    batch, plan = federation(1), FederationPlan(rounds=5, cohort=size, seed=7, train=train)
    whole = play(method, batch, plan)
    for _, middle in whole[:-1]:
        rest = list(engine.rounds(method, batch, plan, middle))
        assert [record.round for record, _ in rest] == [*range(middle.round + 1, 6)]
        assert bits(rest[-1][1]) == bits(whole[-1][1])
    assert list(engine.rounds(method, batch, plan, whole[-1][1])) == []


# clients that fail ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"cohort_scale": "mean"}, {"tau": None, "lam": 10.0, "beta": 150.0}], ids=str)
def test_a_dropped_client_is_as_if_it_had_not_been_drawn(options: dict[str, Any]) -> None:
    batch, method = federation(1), pac_pfl(**options)
    plan = FederationPlan(rounds=1)
    ((record, state),) = play(method, poison(batch, "client_02"), plan)
    assert (record.clients, record.dropped) == (4, ("client_02",))
    start = federation_state.start(method, batch, plan)
    rest = batch.select(torch.tensor([0, 1, 3, 4]))
    update, _ = method.client(method.broadcast(start.server), start.clients, rest, Noise(0, 1, rest.ids))
    assert_close(state.server, method.server(start.server, update, 5), 1e-12)
    assert record.values["log_evidence"] == pytest.approx(update.log_evidence.mean().item(), rel=1e-12)


def test_a_dropped_client_keeps_its_state_and_the_others_theirs() -> None:
    batch, plan = federation(1), FederationPlan(rounds=2)
    (_, first), (_, second) = play(Toy(1), batch, plan)
    hurt = poison(batch, "client_01")
    ((record, state),) = engine.rounds(Toy(1), hurt, plan, first)
    rest, gone = torch.tensor([0, 2, 3, 4]), torch.tensor([1])
    assert record.dropped == ("client_01",)
    assert bits(tensors.select(state.clients, gone)) == bits(tensors.select(first.clients, gone))
    assert_close(tensors.select(state.clients, rest), tensors.select(second.clients, rest), 1e-12)
    others = tensors.weighted_mean(state.clients.mean[rest], batch.size[rest])
    assert_close(state.server.centre, others, 1e-12)


def test_a_state_that_is_not_finite_drops_its_client_too() -> None:
    batch, plan = federation(1), FederationPlan(rounds=1)
    start = federation_state.start(Toy(1), batch, plan)
    memory = start.clients.memory.index_fill(0, torch.tensor([3]), torch.inf)  # which no update shows
    spoilt = start.clients._replace(memory=memory)
    ((record, state),) = engine.rounds(Toy(1), batch, plan, start._replace(kept=spoilt))
    assert record.dropped == ("client_03",)
    assert state.clients.seen.tolist() == [1, 1, 1, 0, 1]
    assert state.server.centre.isfinite().all()


def test_pooled_rows_of_a_dropped_client_are_left_out() -> None:
    batch, plan = federation(3), FederationPlan(rounds=1)
    method = from_recipe(METHODS["pooled-ridge"], 3)
    ((record, state),) = play(method, poison(batch, "client_00"), plan)
    assert record.dropped == ("client_00",)
    assert_close(state.server, play(method, batch.select(torch.tensor([1, 2, 3])), plan)[0][1].server, 1e-12)


def test_stop_names_the_client_and_the_round() -> None:
    plan = FederationPlan(rounds=3, on_bad_client="stop")
    with pytest.raises(NumericalError, match="client 'client_03'") as caught:
        play(pac_pfl(), poison(federation(1), "client_03"), plan)
    assert (caught.value.client, caught.value.round) == ("client_03", 1)


def test_too_few_good_clients_change_nothing_and_the_run_can_go_on() -> None:
    batch, method = federation(1), pac_pfl()
    plan = FederationPlan(rounds=2, min_clients=4)
    (_, first), (_, second) = play(method, batch, plan)
    kept = bits(first)
    run = engine.rounds(method, poison(batch, "client_01", "client_04"), plan, first)
    with pytest.raises(ClientError, match="3 of 5 clients gave a finite update, 4 are needed") as caught:
        next(run)
    assert (caught.value.client, caught.value.round) == (None, 2), "two are bad, and both are named"
    assert bits(first) == kept
    ((_, again),) = engine.rounds(method, batch, plan, first)
    assert bits(again) == bits(second)


@pytest.mark.law
@pytest.mark.parametrize("name", METHODS)
def test_when_all_fail_the_error_says_so(name: str) -> None:
    batch = rows_for(name)
    every_row = {"minibatch": batch.mask.shape[1]}
    method, hurt = from_recipe(METHODS[name], 1, every_row), poison(batch, *batch.names)
    update, _ = method.client(
        method.broadcast(method.init_server(torch.Generator())),
        method.init_clients(method.broadcast(method.init_server(torch.Generator())), hurt),
        hurt,
        Noise(0, 1, batch.ids),
    )
    if tensors.finite(update).any():  # a method that looks at no row in a round
        assert play(method, hurt, FederationPlan(rounds=1))[0][0].dropped == ()
        return
    with pytest.raises(NumericalError, match="0 of 5 clients") as caught:
        quietly(method, FederationPlan(rounds=1), batch=hurt)
    assert caught.value.client is None, "all are bad, so that none is the cause"


def test_a_federation_smaller_than_min_clients_is_refused() -> None:
    with pytest.raises(StudyError, match="min_clients is 6, and there are 5 clients"):
        play(pac_pfl(), federation(1), FederationPlan(rounds=1, min_clients=6))


def test_a_client_that_fails_three_times_in_a_row_is_named() -> None:
    batch, plan = federation(1), FederationPlan(rounds=4)
    with pytest.warns(UserWarning, match=r"client 'client_02' was dropped 3 times in a row \(round 3\)") as caught:
        records = [record for record, _ in play(pac_pfl(), poison(batch, "client_02"), plan)]
    assert len([w for w in caught if "in a row" in str(w.message)]) == 1
    assert [record.dropped for record in records] == [("client_02",)] * 4


def test_what_a_method_remarks_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    words = iter(["look here", None, "look here", "look there", "look here"])
    monkeypatch.setattr(Toy, "remark", lambda self, values: next(words) if values["seconds"] > 0 else None)
    with pytest.warns(UserWarning, match="look") as caught:
        engine.run_rounds(Toy(1), federation(1), FederationPlan(rounds=5))
    assert [str(w.message) for w in caught] == ["look here (round 1)", "look there (round 4)"]
    assert {w.filename for w in caught} == {__file__}


def test_rounds_without_a_client_do_not_break_its_row() -> None:
    batch, plan = federation(1), FederationPlan(rounds=12, cohort=2, seed=1)
    drawn = [t for t in range(1, 13) if 2 in cohort.draw(1, t, batch.ids, 2).tolist()]
    assert len(drawn) > 3 and drawn[2] > 3, "the seed must let it be drawn now and then"
    with pytest.warns(UserWarning, match=rf"'client_02' was dropped 3 times in a row \(round {drawn[2]}\)"):
        play(pac_pfl(), poison(batch, "client_02"), plan)


def test_the_row_goes_on_where_a_run_was_left() -> None:
    batch, plan = poison(federation(1), "client_02"), FederationPlan(rounds=4)
    _, (_, second) = play(pac_pfl(), batch, replace(plan, rounds=2))
    with pytest.warns(UserWarning, match=r"client 'client_02' was dropped 3 times in a row \(round 3\)"):
        list(engine.rounds(pac_pfl(), batch, plan, second))


def test_a_good_round_ends_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = federation(1)
    hurt = poison(batch, "client_02")
    flags = iter([True, True, False, True, True])

    method, original = pac_pfl(), PacPFL.client

    def client(self: PacPFL, message: Any, state: Any, rows: ClientBatch, noise: Any) -> Any:
        return original(self, message, state, hurt if next(flags) else batch, noise)

    monkeypatch.setattr(PacPFL, "client", client)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        records = [record for record, _ in play(method, batch, FederationPlan(rounds=5, waste=100.0))]
    assert [bool(record.dropped) for record in records] == [True, True, False, True, True]


@pytest.mark.parametrize("method", ["pac-pfl", PacPFL], ids=str)
def test_names_and_classes_are_no_methods_and_pairs_no_batches(method: Any) -> None:
    with pytest.raises(StudyError, match="method must be an object of a method, such as"):
        engine.run_rounds(method, federation(1), FederationPlan(rounds=1))
    with pytest.raises(StudyError, match=r"batch must be a ClientBatch, got list \(ClientBatch\.pad"):
        engine.run_rounds(Toy(1), [(1, 2)], FederationPlan(rounds=1))  # type: ignore[arg-type]
