"""Private rounds through the engine: what leaves, when it is paid, and what nobody gets to see."""

from __future__ import annotations

import math
import os
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, final

import pytest
import torch
from scipy import stats
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import CheckpointError, NumericalError, PrivacyError
from pacbayes_fl.federation import cohort, engine, federation_state, private
from pacbayes_fl.federation.federation_state import FederationState
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.federation.private import PrivateAggregator
from pacbayes_fl.methods import METHODS
from pacbayes_fl.methods.base import Method
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.point import LinearPoint
from pacbayes_fl.privacy import correlated, ledger, mechanisms
from pacbayes_fl.privacy.accounting import Budget, epsilon
from pacbayes_fl.privacy.adaptive import AdaptiveClip
from pacbayes_fl.privacy.charges import Charge, checked
from pacbayes_fl.privacy.ledger import Ledger
from pacbayes_fl.privacy.mechanisms import Cohorts, Mechanism
from pacbayes_fl.results.rounds import RoundRecord
from tests.laws.cases import bits, federation, from_recipe
from tests.private import HUGE, Free, open_private

PLAN = FederationPlan(rounds=1, seed=3, diverges_at=None)  # noise of any size is no trouble here
ANY = Budget(1e9, 1e-3)


class Server(NamedTuple):
    """What was received last, and how often."""

    value: Tensor  # [D]
    rounds: Tensor  # []


class Client(NamedTuple):
    seen: Tensor  # [K]


class Update(NamedTuple):
    value: Tensor  # [K, D]
    weight: Tensor  # [K]
    loss: Tensor  # [K]


@final
@dataclass(frozen=True)
class Sends(Method[Server, Server, Client, Update]):
    """Clients send their first row, and the server keeps the mean."""

    d: int

    def init_server(self, generator: torch.Generator) -> Server:
        return Server(torch.zeros(self.d, dtype=torch.float64), torch.zeros((), dtype=torch.int64))

    def init_clients(self, message: Server, batch: ClientBatch) -> Client:
        return Client(torch.zeros(batch.clients, dtype=torch.int64))

    def broadcast(self, server: Server) -> Server:
        return server

    def client(self, message: Server, state: Client, batch: ClientBatch, noise: Noise) -> tuple[Update, Client]:
        value = batch.x[:, 0]
        return Update(value, torch.ones_like(batch.size), value.square().sum(1)), Client(state.seen + 1)

    def server(self, server: Server, update: Update, n_clients: int) -> Server:
        assert update.weight.tolist() == [1.0] and update.loss.isnan().all()
        return Server(update.value[0], server.rounds + 1)

    def to_release(self, message: Server, update: Update) -> dict[str, Tensor]:
        return {"value": update.value}

    def from_release(self, message: Server, mean: Any, clients: float) -> Update:
        return Update(mean["value"], torch.ones(1, dtype=torch.float64), torch.full((1,), math.nan))

    def report(self, server: Server, update: Update) -> dict[str, Tensor]:
        return {"length": update.value.norm(), "loss": update.loss.sum()}

    def personalise(self, message: Server, state: Client, batch: ClientBatch, noise: Noise) -> LinearPoint:
        raise AssertionError("nobody asks")


def rows(values: Tensor) -> ClientBatch:
    """Return clients with one row each, of the values [K, D] that they will send."""
    return ClientBatch.pad([(value.unsqueeze(0), value[:1]) for value in values])


def drawn(clients: int, d: int, scale: float = 1.0) -> ClientBatch:
    generator = torch.Generator().manual_seed(0)
    return rows(scale * torch.randn(clients, d, generator=generator, dtype=torch.float64))


def aggregator_of(
    batch: ClientBatch,
    mechanism: Mechanism,
    cohorts: Cohorts | None = None,
    seed: int | None = 5,
    plan: FederationPlan = PLAN,
) -> PrivateAggregator:
    method = Sends(batch.x.shape[2])
    server = federation_state.start(method, batch, plan).server
    return private.open_private(method, server, batch, plan, mechanism, cohorts or Cohorts(batch.clients), Free(), seed)


def play(
    batch: ClientBatch, aggregator: PrivateAggregator, rounds: int = 1, chunk: int = 2**20
) -> list[tuple[RoundRecord, Any]]:
    plan = replace(PLAN, rounds=rounds, chunk=chunk)
    return list(engine.rounds(Sends(batch.x.shape[2]), batch, plan, None, aggregator))


def silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the noise zero."""

    def zeros(mechanism: Mechanism, coordinates: int, generator: Any, draws: int = 1) -> Tensor:
        return torch.zeros(draws, coordinates, dtype=torch.float64)

    monkeypatch.setattr(mechanisms, "noise", zeros)


# what leaves ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 2**20])
@pytest.mark.parametrize("kind", ["gaussian", "laplace", "paper_algorithm_3", "knorm"])
def test_what_leaves_is_the_clipped_sum_with_the_noise_that_was_asked_for(kind: str, chunk: int) -> None:
    d, mechanism = 20_000, Mechanism(kind, 3.0, 0.7)
    batch = drawn(4, d)
    ((record, state),) = play(batch, aggregator_of(batch, mechanism, Cohorts(4, 2.5)), chunk=chunk)
    x = batch.x[:, 0]
    norm = torch.linalg.vector_norm(x, 1 if kind == "laplace" else 2, dim=1)
    expected = (x * (3.0 / norm).clamp_max(1.0).unsqueeze(1)).sum(0)
    noise = (2.5 * state.server.value - expected) / (0.7 * 3.0)
    assert (record.clients, record.dropped) == (2, ())
    if kind == "knorm":
        radius = float(noise.norm())
        assert radius == pytest.approx(d, rel=5 / math.sqrt(d))  # Gamma(d, 1)
        noise = noise * math.sqrt(d) / radius
    reference = stats.laplace() if kind in ("laplace", "paper_algorithm_3") else stats.norm()
    assert stats.kstest(noise.numpy(), reference.cdf).pvalue > 1e-6
    assert stats.kstest(1.2 * noise.numpy(), reference.cdf).pvalue < 1e-6, "the test would see more noise"


@pytest.mark.parametrize("chunk", [1, 2**20])
def test_no_client_adds_more_than_the_clip(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    silence(monkeypatch)
    lengths = torch.tensor([0.1, 0.5, 3.0, 1e9, math.nan, math.inf, 1e300], dtype=torch.float64)
    batch = rows(torch.eye(7, dtype=torch.float64))
    batch = replace(batch, x=torch.where(batch.x > 0, lengths.view(-1, 1, 1), 0.0))  # behind the back of `pad`
    ((_, state),) = play(batch, aggregator_of(batch, Mechanism("gaussian", 0.8, 1.0)), chunk=chunk)
    added = state.server.value * 7
    expected = torch.tensor([0.1, 0.5, 0.8, 0.8, 0.0, 0.0, 0.0], dtype=torch.float64)  # 1e300 has no square
    torch.testing.assert_close(added, expected, rtol=0, atol=2e-6)  # the grid


def test_many_calls_need_the_memory_of_one_payload() -> None:
    batch = drawn(6, 50)
    noisy_sum = aggregator_of(batch, Mechanism("gaussian", 1.0, 1.0)).noisy_sum(Sends(50), None, 1)
    for k in range(6):
        one = batch.select(torch.tensor([k]))
        noisy_sum.add(Update(one.x[:, 0], one.size, one.size), torch.ones(1, dtype=torch.bool))
        assert {name: leaf.shape for name, leaf in tensors.leaves(noisy_sum._sum).items()} == {"value": (1, 50)}


def test_what_is_received_has_the_methods_own_dtype() -> None:
    batch = federation(3, labelled=True).to(dtype=torch.float32)
    from pacbayes_fl.models.likelihoods import Categorical
    from pacbayes_fl.models.weights.bayesian_network import BayesianMLP

    model = BayesianMLP((3, 4, 3), Categorical(3))
    method: Any = from_recipe(METHODS["pfedbayes"], 3, {}, lambda d: model)
    start = federation_state.start(method, batch, PLAN)
    aggregator = private.open_private(
        method, start.server, batch, PLAN, Mechanism("gaussian", 1.0, 0.1), Cohorts(batch.clients), Free(), 5
    )
    ((_, state),) = engine.rounds(method, batch, PLAN, start, aggregator)
    assert {leaf.dtype for leaf in tensors.leaves(state.server).values()} == {torch.float32}


# a clip that adapts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 2**20])
@pytest.mark.parametrize("kind", ["gaussian", "laplace", "knorm"])
def test_the_clip_of_every_round_is_that_of_a_loop(monkeypatch: pytest.MonkeyPatch, kind: str, chunk: int) -> None:
    """Without noise: C <- C exp(-rate (share - quantile)), and every round clips at its own C."""
    silence(monkeypatch)
    batch, cohorts = drawn(7, 3, 2.0), Cohorts(7)
    batch = replace(batch, x=batch.x.index_fill(0, torch.tensor([4]), math.nan))  # counts as a half
    opened = replace(aggregator_of(batch, Mechanism(kind, 0.5, 1.0), cohorts), adaptive=AdaptiveClip(0.3, 0.7, 0.2))
    clip, x, shares = 0.5, batch.x[:, 0], set[float]()
    norm = torch.linalg.vector_norm(x, 1 if kind == "laplace" else 2, dim=1)
    for record, state in play(batch, opened, 12, chunk):
        share = (float((norm <= clip).sum()) + 0.5) / 7
        assert (record.values["clip"], record.values["below_clip"]) == pytest.approx((clip, share), rel=1e-5)
        expected = (x * (clip / norm).clamp_max(1.0).unsqueeze(1)).nansum(0) / 7
        torch.testing.assert_close(state.server.value, expected, rtol=1e-5, atol=1e-6)  # the grid
        clip *= math.exp(-0.7 * (share - 0.3))
        assert state.watch.clip == pytest.approx(clip, rel=1e-5)
        shares.add(round(share, 3))
    assert len(shares) > 1, "the clip never passed a norm"


def test_a_clip_that_adapts_is_charged_for_one_more_number_and_one_that_stays_tells_nothing() -> None:
    batch = drawn(4, 6)
    opened = aggregator_of(batch, Mechanism("gaussian", 1.0, 1.0))
    following = replace(opened, adaptive=AdaptiveClip(0.5, 0.2, 0.1))
    assert following.charge == replace(opened.charge, coordinates=7)
    ((record, state),) = play(batch, opened)
    assert not {"clip", "below_clip"} & record.values.keys() and state.watch.clip is None
    ((record, _),) = play(batch, following)
    assert record.values["clip"] == 1.0


# a subspace -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 2**20])
@pytest.mark.parametrize("kind", ["gaussian", "laplace", "knorm"])
def test_what_leaves_in_a_subspace_is_the_lifted_sum_of_clipped_projections(
    monkeypatch: pytest.MonkeyPatch, kind: str, chunk: int
) -> None:
    silence(monkeypatch)
    batch = drawn(5, 9)
    opened = private.in_subspace(aggregator_of(batch, Mechanism(kind, 0.6, 1.0)), Sends(9), 4, PLAN.seed)
    assert opened.subspace is not None and opened.charge.coordinates == 4
    ((_, state),) = play(batch, opened, chunk=chunk)
    within = batch.x[:, 0] @ opened.subspace.basis.T
    norm = torch.linalg.vector_norm(within, 1 if kind == "laplace" else 2, dim=1)
    mean = (within * (0.6 / norm).clamp_max(1.0).unsqueeze(1)).mean(0)
    torch.testing.assert_close(state.server.value, mean @ opened.subspace.basis, rtol=0, atol=1e-5)  # the grid


def test_a_subspace_and_a_clip_that_adapts_measure_the_same_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    silence(monkeypatch)
    batch = drawn(7, 9)
    opened = private.in_subspace(aggregator_of(batch, Mechanism("gaussian", 2.0, 1.0)), Sends(9), 4, PLAN.seed)
    opened = replace(opened, adaptive=AdaptiveClip(0.3, 0.7, 0.2))
    assert opened.subspace is not None and opened.charge.coordinates == 5
    ((record, _),) = play(batch, opened)
    norms = (batch.x[:, 0] @ opened.subspace.basis.T).norm(dim=1)
    assert record.values["below_clip"] == pytest.approx(float((norms <= 2.0).double().mean()), abs=1e-4)
    assert 0 < record.values["below_clip"] < 1


def test_noise_in_a_subspace_is_as_long_as_its_dimension_and_stays_in_it() -> None:
    batch = rows(torch.zeros(3, 400, dtype=torch.float64))
    opened = private.in_subspace(aggregator_of(batch, Mechanism("gaussian", 2.0, 1.5)), Sends(400), 100, PLAN.seed)
    assert opened.subspace is not None
    ((_, state),) = play(batch, opened)
    noise, basis = state.server.value, opened.subspace.basis
    torch.testing.assert_close(noise @ basis.T @ basis, noise, rtol=0, atol=1e-12)
    assert stats.kstest((3 * noise @ basis.T / 3.0).numpy(), "norm").pvalue > 1e-6


# cohorts in a known order -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gaussian", "dp-ftrl"])
def test_cohorts_in_order_take_turns_and_pay_for_their_own_rounds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    silence(monkeypatch)
    batch, cohorts = rows(torch.eye(6, dtype=torch.float64)), Cohorts(6, 2.0, "in-order")
    mechanism, seen = Mechanism(kind, 1.0, 1.0), torch.zeros(6)
    opened = open_private(Sends(6), batch, PLAN, tmp_path, mechanism, cohorts, None, Budget(1e9, 1e-3))
    for p, (record, state) in enumerate(play(batch, opened, 7)):
        came = cohort.in_order(PLAN.seed, p, batch.ids, 2)
        here = torch.zeros(6, dtype=torch.float64).index_fill(0, came, 1.0)
        torch.testing.assert_close(state.server.value, here / 2, rtol=0, atol=1e-6)
        seen += here
        assert state.clients.seen.tolist() == seen.tolist() and record.clients == 2
    assert seen.min() == 2 and seen.max() == 3
    known = Charge(kind, 1.0, 6, Cohorts(6, 2.0))
    assert opened.ledger.epsilon() == epsilon([known] * 3, 1e-3)


@pytest.mark.parametrize("seed", [5, None])
def test_noise_cancels_over_the_rounds_of_a_run(tmp_path: Path, seed: int | None) -> None:
    """Releases through the engine: what is left of C (release - clipped sum) is white, and of its true scale."""
    batch, cohorts = drawn(4, 4000), Cohorts(4, 1, "in-order")
    mechanism = Mechanism("dp-ftrl", 1.0, 2.0)
    opened = open_private(Sends(4000), batch, PLAN, tmp_path, mechanism, cohorts, seed, ANY)
    x = batch.x[:, 0] / torch.linalg.vector_norm(batch.x[:, 0], dim=1, keepdim=True)
    noise = []
    for p, (_, state) in enumerate(play(batch, opened, 9)):
        noise.append(state.server.value - x[cohort.in_order(PLAN.seed, p, batch.ids, 1)].sum(0))
    c = correlated.band(4)
    for i in range(9):
        white = sum(c[k] * noise[i - k] for k in range(min(4, i + 1))) / (2.0 * c.norm())
        assert stats.kstest(white.numpy(), "norm").pvalue > 1e-7
        assert stats.kstest(1.3 * white.numpy(), "norm").pvalue < 1e-7, "the test would see less noise"
    neighbours = torch.corrcoef(torch.stack(noise))[1:, :-1].diagonal()
    assert (neighbours < -0.2).all(), "noise that is not correlated"


def test_other_clients_begin_another_row(tmp_path: Path) -> None:
    """One leaves and another comes: whoever stays may come again too early, so that counting begins anew."""
    batch, cohorts = drawn(4, 3), Cohorts(4, 2, "in-order")
    mechanism = Mechanism("dp-ftrl", 1.0, 2.0)

    def opened(batch: ClientBatch) -> PrivateAggregator:
        return open_private(Sends(3), batch, PLAN, tmp_path, mechanism, cohorts, 5, ANY)

    played = play(batch, opened(batch), 3)
    other = replace(batch, ids=(*batch.ids[:3], 10**6))
    aggregator = opened(other)
    assert aggregator.ledger.position(aggregator.charge) == 0
    state = played[-1][1]._replace(round=0)
    list(engine.rounds(Sends(3), other, PLAN, state, aggregator))
    assert len(checked(aggregator.ledger.charges)) == 3, "two of the first row, and one more"
    assert opened(other).ledger.position(aggregator.charge) == 1


# who takes part -------------------------------------------------------------------------------------------------


def test_a_poisson_round_adds_those_who_came_and_divides_by_those_who_were_expected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    silence(monkeypatch)
    batch = rows(torch.eye(6, dtype=torch.float64))
    aggregator, seen, sizes = (
        aggregator_of(batch, Mechanism("gaussian", 1.0, 1.0), Cohorts(6, 2.0, "poisson")),
        torch.zeros(6),
        [],
    )
    for record, state in play(batch, aggregator, 40):
        came = cohort.draw_poisson(5, record.round, batch.ids, 1 / 3)
        here = torch.zeros(6, dtype=torch.float64).index_fill(0, came, 1.0)
        torch.testing.assert_close(state.server.value, here / 2, rtol=0, atol=1e-6)
        seen += here
        assert state.clients.seen.tolist() == seen.tolist()
        assert record.clients == 2
        sizes.append(len(came))
    assert min(sizes) == 0 and max(sizes) > 3


def test_a_round_without_anybody_releases_noise() -> None:
    d = 5000
    batch = drawn(3, d)
    aggregator = aggregator_of(batch, Mechanism("gaussian", 2.0, 1.5), Cohorts(3, 1e-9, "poisson"))
    played = play(batch, aggregator, 2)
    values = [state.server.value * 1e-9 / 3.0 for _, state in played]
    for (record, state), value in zip(played, values, strict=True):
        assert stats.kstest(value.numpy(), "norm").pvalue > 1e-6
        assert state.clients.seen.tolist() == [0, 0, 0] and record.clients == 0
    assert abs(float(torch.corrcoef(torch.stack(values))[0, 1])) < 0.1
    assert len(aggregator.ledger) == 2


def test_the_systems_randomness_is_nobodys_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    real, asked = os.urandom, list[int]()

    def urandom(count: int) -> bytes:
        asked.append(count)
        return real(count)

    monkeypatch.setattr(os, "urandom", urandom)
    batch = drawn(40, 7)
    cohorts = Cohorts(40, 20, "poisson")
    one, other = (
        play(batch, aggregator_of(batch, Mechanism("gaussian", 1.0, 1.0), cohorts, None), 2) for _ in range(2)
    )
    assert asked == [8 * 40, 2 * 8 * 7] * 4  # a cohort and a noise, of two words a number, in every round
    for (_, mine), (_, theirs) in zip(one, other, strict=True):
        assert not torch.isclose(mine.server.value, theirs.server.value).any()
        assert mine.clients.seen.tolist() != theirs.clients.seen.tolist()
    asked.clear()
    again = [play(batch, aggregator_of(batch, Mechanism("gaussian", 1.0, 1.0), cohorts, 5), 2) for _ in range(2)]
    assert not asked
    assert bits(again[0][1][1].server) == bits(again[1][1][1].server)


def test_a_round_that_is_repeated_draws_its_cohort_and_its_noise_anew() -> None:
    batch = drawn(30, 9)
    aggregator = aggregator_of(batch, Mechanism("gaussian", 1.0, 1.0), Cohorts(30, 10, "poisson"))
    (_, first), (_, second) = play(batch, aggregator, 2)
    plan = replace(PLAN, rounds=2)
    ((record, again),) = engine.rounds(Sends(9), batch, plan, first, aggregator)
    assert record.round == 2 and len(aggregator.ledger) == 3
    assert not torch.isclose(again.server.value, second.server.value).any()
    assert not torch.equal(again.clients.seen, second.clients.seen)


# what is paid ---------------------------------------------------------------------------------------------------

CHARGE = Charge("laplace", 10.0, 6, Cohorts(4))  # a tenth of an epsilon


def paid_aggregator(tmp_path: Path, budget: Budget, batch: ClientBatch) -> PrivateAggregator:
    return open_private(Sends(6), batch, PLAN, tmp_path, Mechanism("laplace", 1.0, 10.0), budget=budget)


def test_a_round_is_paid_for_before_anything_is_made_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch, counted, real = drawn(4, 6), list[int](), Sends.from_release

    def from_release(*arguments: Any) -> Any:
        counted.append(len(Ledger(tmp_path, Budget(1.0, 0.0))))
        return real(*arguments)

    monkeypatch.setattr(Sends, "from_release", from_release)
    aggregator = paid_aggregator(tmp_path, Budget(1.0, 0.0), batch)
    assert len(aggregator.ledger) == 0  # the look at the payload's shape has cost nothing
    play(batch, aggregator, 3)
    assert counted == [1, 2, 3]
    assert aggregator.ledger.charges == (CHARGE,) * 3 == Ledger(tmp_path, Budget(1.0, 0.0)).charges
    assert aggregator.ledger.epsilon() == pytest.approx(epsilon([CHARGE] * 3, 0.0))


def test_what_cannot_be_paid_is_not_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = drawn(4, 6)
    aggregator = paid_aggregator(tmp_path, Budget(1.0, 0.0), batch)
    ((_, first),) = play(batch, aggregator)

    def full(folder: Path, files: Any) -> None:
        raise CheckpointError(f"cannot write {folder}: No space left on device")

    monkeypatch.setattr(ledger, "put", full)
    monkeypatch.setattr(Sends, "from_release", lambda *_: pytest.fail("released without payment"))
    before = bits(first.server)
    with pytest.raises(CheckpointError, match="No space left"):
        list(engine.rounds(Sends(6), batch, replace(PLAN, rounds=2), first, aggregator))
    assert bits(first.server) == before and first.clients.seen.tolist() == [1] * 4
    assert len(aggregator.ledger) == len(Ledger(tmp_path, Budget(1.0, 0.0))) == 1


@pytest.mark.parametrize("dimension", [None, 2], ids=["whole", "subspace"])
@pytest.mark.parametrize("adaptive", [None, AdaptiveClip(0.4, 0.5, 0.3)], ids=["fixed", "adaptive"])
@pytest.mark.parametrize("seed", [5, None])
def test_a_round_that_was_cut_short_takes_the_release_that_it_has_paid_for(
    tmp_path: Path, seed: int | None, adaptive: AdaptiveClip | None, dimension: int | None
) -> None:
    """Cohort and mean are those of before, whatever the clients send now."""
    batch, cohorts = drawn(6, 4), Cohorts(6, 3.0, "poisson")
    plan, mechanism = replace(PLAN, rounds=2), Mechanism("gaussian", 1.0, 1.0)

    def chosen(opened: PrivateAggregator) -> PrivateAggregator:
        opened = replace(opened, adaptive=adaptive)
        return opened if dimension is None else private.in_subspace(opened, Sends(4), dimension, PLAN.seed)

    aggregator = chosen(open_private(Sends(4), batch, plan, tmp_path, mechanism, cohorts, seed, ANY))
    (_, first), (record, second) = engine.rounds(Sends(4), batch, plan, None, aggregator)
    turned = replace(batch, x=-batch.x).select(torch.tensor([3, 0, 5, 1, 4, 2]))  # in another order
    clients = tensors.select(first.clients, torch.tensor([3, 0, 5, 1, 4, 2]))
    opened = private.open_private(
        Sends(4), first.server, turned, plan, mechanism, cohorts, Ledger(tmp_path, ANY, released=1), seed
    )
    again = chosen(opened)
    ((told, state),) = engine.rounds(Sends(4), turned, plan, first._replace(kept=clients), again)
    assert told == record and len(again.ledger) == 2
    assert bits(state.server) == bits(second.server) and state.watch == second.watch
    assert state.clients.seen.tolist() == second.clients.seen[[3, 0, 5, 1, 4, 2]].tolist()
    ((_, third),) = engine.rounds(Sends(4), turned, replace(plan, rounds=3), state, again)
    assert len(again.ledger) == 3 and bits(third.server) != bits(state.server)
    ((_, fresh),) = engine.rounds(Sends(4), turned, plan, first._replace(kept=clients), again)
    assert len(again.ledger) == 4 and bits(fresh.server) != bits(second.server), "its release is not kept any more"


def test_a_release_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    aggregator = open_private(Sends(6), drawn(4, 6), PLAN, tmp_path, Mechanism("gaussian", 1.0, 1.0), budget=ANY)
    play(drawn(4, 6), aggregator)
    other = drawn(4, 5)
    again = open_private(Sends(5), other, PLAN, tmp_path, Mechanism("gaussian", 1.0, 1.0), budget=ANY)
    with pytest.raises(PrivacyError, match=r"round 1: the release of this round .* does not fit"):
        play(other, again)


def test_a_budget_that_is_spent_ends_the_rounds_before_anybody_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, worked, real = drawn(4, 6), list[int](), Sends.client

    def client(self: Sends, *arguments: Any) -> Any:
        worked.append(arguments[2].clients)
        return real(self, *arguments)

    aggregator = paid_aggregator(tmp_path, Budget(0.35, 0.0), batch)
    monkeypatch.setattr(Sends, "client", client)
    done = []
    with pytest.raises(PrivacyError, match="round 4: one more release would exceed") as caught:
        for record, _ in engine.rounds(Sends(6), batch, replace(PLAN, rounds=9), None, aggregator):
            done.append(record.round)
    assert (done, worked, len(aggregator.ledger), caught.value.cause) == ([1, 2, 3], [4] * 3, 3, "budget spent")


# what nobody gets to see ----------------------------------------------------------------------------------------


def test_clients_that_fail_leave_no_trace_in_records_and_warnings() -> None:
    batch = drawn(4, 6)
    hurt = replace(batch, x=batch.x.index_fill(0, torch.tensor([2]), math.nan))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        well, ill = (play(one, aggregator_of(one, Mechanism("gaussian", 1.0, 1.0)), 5) for one in (batch, hurt))
    for (record, _), (other, state) in zip(well, ill, strict=True):
        assert (other.clients, other.dropped) == (record.clients, record.dropped) == (4, ())
        assert other.values.keys() == record.values.keys() == {"length"}
        assert state.clients.seen[2] == 0 and state.server.value.isfinite().all()


def test_when_all_fail_a_round_is_noise_like_any_other() -> None:
    batch = drawn(4, 6)
    hurt = replace(batch, x=torch.full_like(batch.x, math.nan))
    ((record, state),) = play(hurt, aggregator_of(hurt, Mechanism("gaussian", 1.0, 1.0)))
    assert record.clients == 4 and (state.server.value != 0).all() and state.clients.seen.tolist() == [0] * 4


def test_what_a_method_remarks_on_numbers_that_are_withheld_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sends, "remark", lambda self, values: pytest.fail("asked"))
    batch = drawn(4, 6)
    play(batch, aggregator_of(batch, Mechanism("gaussian", 1.0, 1.0)))


def test_the_rooms_cohorts_count_and_not_the_plans() -> None:
    batch = drawn(6, 4)
    aggregator = aggregator_of(batch, Mechanism("gaussian", 1.0, 1.0), Cohorts(6, 4))
    plan = replace(PLAN, rounds=3, cohort=2)
    for record, state in engine.rounds(Sends(4), batch, plan, None, aggregator):
        assert record.clients == 4 and int(state.clients.seen.sum()) == 4 * record.round
        assert isinstance(state, FederationState)


def test_more_clients_than_the_account_knows_of_are_refused() -> None:
    batch = drawn(4, 6)
    update = Update(batch.x[:, 0], batch.size, batch.size)
    fixed, others = Cohorts(4, 2, "fixed", "replace"), (Cohorts(4, 2, "poisson"), Cohorts(4, 2))
    for cohorts, most in ((fixed, 2), *((each, 4) for each in others)):
        plan = replace(PLAN, train="all")
        noisy_sum = aggregator_of(batch, Mechanism("gaussian", 1.0, 1.0), cohorts, plan=plan).noisy_sum(
            Sends(6), None, 7
        )
        for k in range(most):
            one = tensors.tree_map(lambda leaf, k=k: leaf[k : k + 1], update)
            noisy_sum.add(one, torch.tensor([k != 1]))  # one that fails has come all the same
        with pytest.raises(PrivacyError, match=f"round 7: .* may have at most {most} clients, got {most + 1}"):
            noisy_sum.add(one, torch.tensor([True]))


@pytest.mark.parametrize(
    "cohorts", [Cohorts(6, 2, "fixed", "replace"), Cohorts(6, 2, "poisson"), Cohorts(6, 2)], ids=str
)
def test_of_all_who_train_only_the_drawn_are_heard(cohorts: Cohorts) -> None:
    batch, plan = drawn(6, 4), replace(PLAN, rounds=4, train="all", chunk=1)
    aggregator, again = (aggregator_of(batch, HUGE, cohorts, plan=plan) for _ in range(2))
    sizes = set()
    for record, state in engine.rounds(Sends(4), batch, plan, None, aggregator):
        who = again.draw(batch.ids, record.round)
        again.ledger.spend(again.charge)
        sizes.add(len(who))
        torch.testing.assert_close(state.server.value, batch.x[who, 0].sum(0) / 2, rtol=1e-9, atol=1e-9)
        assert state.clients.seen.tolist() == [record.round] * 6 and (record.clients, record.dropped) == (2, ())
    assert (sizes == {2}) == (cohorts.kind != "poisson")


def test_fixed_cohorts_of_clients_that_remember_who_was_drawn_are_refused() -> None:
    batch, fixed = drawn(4, 6), Cohorts(4, 2, "fixed", "replace")
    mechanism = Mechanism("gaussian", 1.0, 1.0)
    with pytest.raises(PrivacyError, match=r"who was drawn.*'poisson'; 'all', which gains nothing.*train = 'all'"):
        aggregator_of(batch, mechanism, fixed)
    for cohorts, plan in (
        (fixed, replace(PLAN, train="all")),
        (Cohorts(4, 4, "fixed", "replace"), PLAN),
        (Cohorts(4, 2, "poisson"), PLAN),
        (Cohorts(4, 2), PLAN),
    ):
        assert aggregator_of(batch, mechanism, cohorts, plan=plan).cohorts == cohorts
    stateless, rows_of = from_recipe(METHODS["pac-pfl"], 1), federation(1)
    assert not tensors.leaves(federation_state.start(stateless, rows_of, PLAN).clients)
    server = federation_state.start(stateless, rows_of, PLAN).server
    private.open_private(stateless, server, rows_of, PLAN, mechanism, Cohorts(5, 2, "fixed", "replace"), Free(), 5)


def test_runs_of_one_seed_with_other_noise_do_not_share_it() -> None:
    """Their difference would show the sum bare."""
    batch, scaled = drawn(4, 9), list[Tensor]()
    for clip, multiplier in ((1.0, 1.0), (1.0, 2.0), (2.0, 1.0), (0.5, 2.0)):
        hurt = replace(batch, x=torch.full_like(batch.x, math.nan))  # so that nothing but noise leaves
        ((_, state),) = play(hurt, aggregator_of(hurt, Mechanism("gaussian", clip, multiplier)))
        scaled.append(state.server.value * 4 / (clip * multiplier))
    for i, one in enumerate(scaled):
        assert not any(torch.isclose(one, other, rtol=1e-3).any() for other in scaled[:i])


# what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plan", "cohorts", "text"),
    [
        ({"min_clients": 2}, Cohorts(4), r"min_clients = 2 would tell .*\(federation.min_clients = 1\)"),
        ({"on_bad_client": "stop"}, Cohorts(4), r"on_bad_client = 'stop' would tell who failed.*'drop'"),
        ({}, Cohorts(5), "cohorts are of 5 clients, and the federation has 4"),
    ],
)
def test_what_would_tell_of_clients_is_refused(plan: dict[str, Any], cohorts: Cohorts, text: str) -> None:
    batch, method = drawn(4, 6), Sends(6)
    server = federation_state.start(method, batch, PLAN).server
    with pytest.raises(PrivacyError, match=text):
        private.open_private(
            method, server, batch, replace(PLAN, **plan), Mechanism("gaussian", 1.0, 1.0), cohorts, Free(), 5
        )


def test_a_round_that_is_undone_has_been_paid_for_and_tells_of_nobody() -> None:
    """What decides is the server's state, made of what was released: a look at it costs nothing, the release does."""
    batch = federation(1)
    method: Any = from_recipe(METHODS["pac-pfl"], 1, {"optimiser": "ascent", "rate": 1e3})
    plan = FederationPlan(rounds=3)
    server = federation_state.start(method, batch, plan).server
    aggregator = private.open_private(
        method, server, batch, plan, Mechanism("gaussian", 30.0, 1e-3), Cohorts(5), Free(), 5
    )
    words = r"round \d undone: the server's parameters have come to .*, and its release is paid for all the same"
    records, ended = [], None
    with pytest.warns(UserWarning, match=words) as said:
        try:
            for record, state in engine.rounds(method, batch, plan, None, aggregator):
                records.append(record)
                assert state.watch.steps is None and not state.watch.failures
                assert record.steps is None and record.values.keys() <= {"spread", "score_norm"}
        except NumericalError as error:
            ended = error
    assert len(said) == 3 and all("client" not in str(warning.message) for warning in said)
    assert ended is not None and ended.client is None and "clip" not in str(ended)
    assert len(aggregator.ledger) == len(records) + 3 + 1, "rounds that hold, those that were undone, and the last one"


class Crash(BaseException):
    """What no handler of the library takes for its own."""


@pytest.mark.law
@pytest.mark.filterwarnings("ignore:round . undone")
@pytest.mark.parametrize("at", range(1, 6))
def test_no_crash_forgets_that_rates_were_halved_and_buys_an_undone_round_again(
    at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut short behind each release in turn and gone on with from the last state; at last once more, at its end."""
    batch, plan = federation(1), FederationPlan(rounds=3, diverges_at=30.0)
    method: Any = from_recipe(METHODS["pac-pfl"], 1, {"optimiser": "ascent", "rate": 1e2})
    mechanism, spend = Mechanism("gaussian", 0.5, 1.0), Ledger.spend

    whys: dict[str, list[tuple[str, ...]]] = {"whole": [], "cut": []}

    def life(folder: Path, state: FederationState | None, released: int) -> tuple[FederationState | None, int, str]:
        ledger = Ledger(folder, Budget(1e9, 1e-5), released, simulated=True)
        server = federation_state.start(method, batch, plan).server
        aggregator = private.open_private(method, server, batch, plan, mechanism, Cohorts(5), ledger, 5)
        try:
            for record, after in engine.rounds(method, batch, plan, state, aggregator):
                state, released = after, len(ledger)
                whys[folder.name].append(record.undone)
        except (Crash, NumericalError) as error:
            return state, released, repr(error)
        return state, released, ""

    for name in ("whole", "cut"):
        (tmp_path / name).mkdir()
    whole = life(tmp_path / "whole", None, 0)
    paid = len(Ledger(tmp_path / "whole", Budget(1e9, 1e-5)))
    assert paid == 5, "each of which is cut short behind"

    def crash(self: Ledger, *args: Any, **named: Any) -> int:
        if spend(self, *args, **named) + 1 == at:
            raise Crash
        return len(self) - 1

    monkeypatch.setattr(Ledger, "spend", crash)
    state, released, why = life(tmp_path / "cut", None, 0)
    assert "Crash" in why
    for _ in range(2):
        state, released, why = life(tmp_path / "cut", state, released)
        assert why == whole[2] and released == whole[1]
        assert state is not None and whole[0] is not None and state.watch == whole[0].watch
        assert bits(state.server) == bits(whole[0].server)
        assert len(Ledger(tmp_path / "cut", Budget(1e9, 1e-5))) == paid
        assert whys["cut"] == whys["whole"] and any(whys["whole"]), "records keep why rounds were undone"
