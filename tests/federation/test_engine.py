"""The engine: who takes part, what a record says, who is dropped, and how a run goes on."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, final

import pytest
import torch

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import ClientError, DataError, NumericalError, StudyError
from pacbayes_fl.federation import cohort, engine
from pacbayes_fl.federation.engine import FederationState
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.methods import METHODS
from pacbayes_fl.methods.base import Method, Nothing
from pacbayes_fl.methods.pac_pfl.gp import PacPFL
from pacbayes_fl.noise import Engine, Noise
from pacbayes_fl.posteriors.point import LinearPoint
from pacbayes_fl.posteriors.predictive import NormalMixture
from pacbayes_fl.results.rounds import RoundRecord
from tests.laws import cases
from tests.laws.cases import Toy, assert_close, deep, federation, from_recipe, strangers


def pac_pfl(d: int = 1, **options: Any) -> PacPFL:
    method = from_recipe(METHODS["pac-pfl"], d, options)
    assert isinstance(method, PacPFL)
    return method


def poison(batch: ClientBatch, *names: str) -> ClientBatch:
    """Put a NaN into one row of each named client, behind the back of `ClientBatch.pad`."""
    x = batch.x.clone()
    for name in names:
        x[batch.names.index(name), 0] = torch.nan
    return replace(batch, x=x)


def bits(tree: Any) -> Any:
    """Return the bytes of a tree, or of a whole state."""
    if isinstance(tree, FederationState):
        return cases.bits({"server": tree.server, "clients": tree.clients}), tree.round
    return cases.bits(tree)


def play(method: Any, batch: ClientBatch, plan: FederationPlan) -> list[tuple[RoundRecord, FederationState]]:
    return list(engine.rounds(method, batch, plan))


# who takes part -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [None, 1, 3, 5, 9])
def test_the_cohort_takes_part_and_nobody_else(size: int | None) -> None:
    batch, plan = federation(1), FederationPlan(rounds=4, cohort=size, seed=2)
    seen = torch.zeros(5, dtype=torch.int64)
    before = engine.start(Toy(1), batch, plan)
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
    state = engine.start(method, batch, plan)
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


@pytest.mark.parametrize("chunk", [1, 10**6])
@pytest.mark.parametrize("name", ["toy", *METHODS])
def test_all_train_and_the_cohort_is_heard(name: str, chunk: int) -> None:
    method = Toy(1) if name == "toy" else from_recipe(METHODS[name], 1)
    if not method.federated:
        return
    batch, plan = federation(1), FederationPlan(rounds=3, cohort=2, seed=7, train="all", chunk=chunk)
    server, each = loop(method, batch, plan)
    records = play(method, batch, plan)
    state = records[-1][1]
    assert_close(cases.identified(method, state.server), cases.identified(method, server), 1e-9)
    for k, one in enumerate(each):
        assert_close(tensors.select(state.clients, torch.tensor([k])), one, 1e-9)
    assert [record.clients for record, _ in records] == [2, 2, 2]
    few = engine.run_rounds(method, batch, replace(plan, train="cohort"))
    moved = bits(few.clients) != bits(state.clients)
    assert moved or name not in ("toy", "pfedbayes", "sfedbayes", "cfedbayes", "bpfed", "local")
    if not moved:  # where clients learn nothing that they keep, it does not matter who trains
        assert_close(cases.identified(method, few.server), cases.identified(method, state.server), 1e-9)
    everybody = replace(plan, cohort=None)
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


@pytest.mark.parametrize("waste", [1.0, 1.1, 3.0])
@pytest.mark.parametrize("chunk", [1, 4000, 10**6])
def test_calls_are_small_enough_and_hold_everybody_once(waste: float, chunk: int) -> None:
    sizes = [60, 1, 61, 20, 20, 300, 22, 59, 5]
    positions = [0, 1, 3, 4, 5, 6, 7, 8]
    method, plan = pac_pfl(), FederationPlan(chunk=chunk, waste=waste)
    calls = engine.parts(method, sizes, positions, plan)
    assert sorted(k for call in calls for k in call) == positions
    for call in calls:
        rows = [sizes[k] for k in call]
        assert max(rows) <= max(waste * min(rows), min(rows) + 8)
        assert len(call) == 1 or len(call) * method.footprint(max(rows)) <= chunk
    assert (len(calls) == len(positions)) == (chunk == 1)


def test_pooled_methods_see_everybody_at_once() -> None:
    pooled = from_recipe(METHODS["pooled-ridge"], 1)
    assert engine.parts(pooled, [5, 1, 900], [0, 1, 2], FederationPlan(chunk=1)) == [[0, 1, 2]]


# records and results --------------------------------------------------------------------------------------------


def test_a_record_says_what_the_round_did() -> None:
    batch, plan = federation(3), FederationPlan(rounds=3, chunk=1)
    method = pac_pfl(3)
    server = engine.start(method, batch, plan).server
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
    assert bits(engine.run_rounds(Toy(1), federation(1), plan)) == bits(engine.start(Toy(1), federation(1), plan))


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
    start = engine.start(method, batch, plan)
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
    start = engine.start(Toy(1), batch, plan)
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


@pytest.mark.parametrize("name", METHODS)
def test_when_all_fail_the_error_says_so(name: str) -> None:
    batch = federation(1)
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


# rounds that diverge --------------------------------------------------------------------------------------------


def quietly(
    method: Any, plan: FederationPlan, state: FederationState | None = None, batch: ClientBatch | None = None
) -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(engine.rounds(method, batch or federation(1), plan, state))


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

    def client_steps(self, message: Steep, update: SteepUpdate) -> Steep:
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
    found = [(float(s.server.theta), record.rates, len(record.undone)) for record, s in run]
    assert found == expected
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


# plans ----------------------------------------------------------------------------------------------------------


# personalisation ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [Toy(3), pac_pfl(3)], ids=["toy", "pac-pfl"])
def test_personalise_gives_every_client_its_own_posterior(method: Any) -> None:
    batch, plan = federation(3), FederationPlan(rounds=2, chunk=1)
    state = engine.run_rounds(method, batch, plan)
    parts = list(engine.personalise(method, state, batch, plan))
    index = torch.cat([part for part, _ in parts])
    mean = torch.cat([posterior.predict(batch.x[part]).mean for part, posterior in parts])
    whole = method.personalise(method.broadcast(state.server), state.clients, batch, Noise(0, 0, batch.ids))
    assert_close(mean, whole.predict(batch.x).mean[index], 1e-9)


def test_joining_compares_the_columns_and_names_the_client() -> None:
    batch, plan = federation(3), FederationPlan(rounds=1)
    state = engine.run_rounds(pac_pfl(3), batch, plan)
    with pytest.raises(DataError, match=r"client 'stranger': x has \[1\] features, the model was trained on \[3\]"):
        engine.join(pac_pfl(3), state.server, strangers(1), 0, like=batch)
    labels = replace(strangers(3), y=strangers(3).y.long())
    with pytest.raises(ValueError, match=r"client 'stranger': y must be torch.float64, got torch.int64"):
        engine.join(pac_pfl(3), state.server, labels, 0, like=batch)


def test_joining_without_rows_predicts_the_prior() -> None:
    method, batch = pac_pfl(3), strangers(3)
    server = engine.run_rounds(method, federation(3), FederationPlan(rounds=2)).server
    predictive = engine.join(method, server, batch, 0).predict(batch.x[[0, 0]])
    assert isinstance(predictive, NormalMixture)
    theta, x = server.particles.unsqueeze(0), batch.x[:1]
    prior, noise = deep(3).prior(theta, x)
    assert_close(predictive.weights[1], torch.full((3,), 1 / 3, dtype=torch.float64), 1e-14)
    assert_close(predictive.means[1:], prior.mean, 1e-12)
    assert_close(predictive.variances[1:], prior.variance + noise.unsqueeze(-1), 1e-12)
    assert not torch.allclose(predictive.means[0], predictive.means[1])


def test_joining_changes_nothing_and_draws_by_seed() -> None:
    new, server = strangers(1), engine.run_rounds(Toy(1), federation(1), FederationPlan(rounds=1)).server
    kept = bits(server)

    def bias(seed: int, streams: Engine = "philox") -> torch.Tensor:
        posterior = engine.join(Toy(1), server, new, seed, engine=streams)
        assert isinstance(posterior, LinearPoint)
        return posterior.bias

    assert torch.equal(bias(4), bias(4))
    assert not torch.equal(bias(4), bias(5))
    assert not torch.equal(bias(4), bias(4, "generators"))
    assert bits(server) == kept


@pytest.mark.parametrize("chunk", [1, 2**20])
def test_a_state_that_was_yielded_stays_as_it_was(chunk: int) -> None:
    """Calls write into the next state in place; nobody's hold on an earlier one may change."""
    batch = federation(3)
    played, kept = [], []
    for _, state in engine.rounds(Toy(3), batch, FederationPlan(rounds=4, chunk=chunk, cohort=3)):
        played.append(state)
        kept.append(bits(state))
    assert [bits(state) for state in played] == kept and len(set(map(str, kept))) == 4
    start = engine.start(Toy(3), batch, FederationPlan())
    before = bits(start)
    next(engine.rounds(Toy(3), batch, FederationPlan(rounds=2, chunk=chunk), start))
    assert bits(start) == before


@pytest.mark.parametrize("chunk", [1, 2**20])
def test_the_global_model_is_given_to_every_client(chunk: int) -> None:
    batch, plan = federation(1), FederationPlan(rounds=2, chunk=chunk)
    method: Any = from_recipe(METHODS["fedavg"], 1, {"steps": 2})
    state = engine.run_rounds(method, batch, plan)
    found = list(engine.global_models(method, state, batch, plan))
    assert sorted(k for index, _ in found for k in index.tolist()) == list(range(batch.clients))
    for index, posterior in found:
        assert torch.equal(posterior.family.loc, state.server.theta.expand(len(index), -1))  # type: ignore[attr-defined]
    assert len(found) > 1 if chunk == 1 else len(found) <= batch.clients
    assert list(engine.global_models(Toy(1), engine.start(Toy(1), batch, plan), batch, plan)) == []
