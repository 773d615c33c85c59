"""Bad clients and bad rows in a federation: a named error or a finite result, and never somebody else's loss."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Any

import gpytorch
import pytest
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import DataError, NumericalError, PacBayesFLError
from pacbayes_fl.federation import checkpoint, engine, federation_state, personalisation
from pacbayes_fl.federation.federation_state import FederationState
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.methods import METHODS
from pacbayes_fl.methods.base import Nothing
from pacbayes_fl.methods.pac_pfl.gp import Message, PacPFL
from pacbayes_fl.models.functions.gpytorch_prior import GPyTorchPrior
from pacbayes_fl.models.likelihoods import inverse_softplus
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.hyper_posterior import GaussianHyperPrior
from pacbayes_fl.results.rounds import RoundRecord
from tests.laws.cases import ALL, FEDERATED, Case, Toy, assert_close, bits, deep, federation, from_recipe, plain

Rows = list[tuple[torch.Tensor, torch.Tensor]]
every_federated = pytest.mark.parametrize("case", FEDERATED, ids=str)


def unpadded(batch: ClientBatch) -> Rows:
    return [(batch.x[k][batch.mask[k]], batch.y[k][batch.mask[k]]) for k in range(batch.clients)]


def particle(noise_std: float, mean: float = 0.0) -> torch.Tensor:
    """Return hyper-parameters [1, D] of `plain`: noise, mean, outputscale 1 and lengthscale 1."""
    one = inverse_softplus(1.0)
    return torch.tensor([[inverse_softplus(noise_std), mean, one, one]], dtype=torch.float64)


def round_at(model: Any, particles: torch.Tensor, batch: ClientBatch) -> Any:
    method = PacPFL(model, GaussianHyperPrior(model.location(), 1.0))
    update, _ = method.client(Message(particles), Nothing(), batch, Noise(0, 1, batch.ids))
    return update


# 1: values that are not finite ----------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_refused_where_they_enter(value: float) -> None:
    rows = unpadded(federation(3))
    x, y = rows[1][0].clone(), rows[1][1].clone()
    x[4, 2] = value
    with pytest.raises(DataError, match=r"client 'house_1': x has 1 non-finite value.* \(rows? 4; column 2\)"):
        ClientBatch.pad([rows[0], (x, y)], ["house_0", "house_1"])
    y[7] = value
    with pytest.raises(DataError, match=r"client 'house_1': y has 1 non-finite value.* \(rows? 7\)"):
        ClientBatch.pad([rows[0], (rows[1][0], y)], ["house_0", "house_1"])


@pytest.mark.parametrize("part", ["x", "y"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("model", [deep(3), plain(3)], ids=["deep", "plain"])
def test_a_value_that_slipped_in_spoils_its_own_client_alone(part: str, value: float, model: Any) -> None:
    batch = federation(3)
    spoilt = getattr(batch, part).clone()
    spoilt[1, 3] = value
    particles = model.location() + torch.linspace(-0.3, 0.3, 2).view(-1, 1).double() * torch.ones(model.dim)
    good, bad = round_at(model, particles, batch), round_at(model, particles, replace(batch, **{part: spoilt}))
    assert tensors.finite(bad).tolist() == [True, False, True, True]
    rest = torch.tensor([0, 2, 3])
    assert_close(tensors.select(bad, rest), tensors.select(good, rest), 1e-12)


# 5 and 6: clients of no row and of one --------------------------------------------------------------------------


@pytest.mark.law
@every_federated
def test_a_client_without_rows_is_refused_for_training_and_welcome_to_join(case: Case) -> None:
    none = (torch.zeros(0, 1), torch.zeros(0))
    with pytest.raises(DataError, match=r"client 'x':? has no samples"):
        ClientBatch.pad([*unpadded(federation(1)), none], [*"abcdex"])
    method = case.build(1)
    server = federation_state.start(method, federation(1), FederationPlan()).server
    new = ClientBatch.pad([none], ["x"], allow_empty=True)
    predictive = personalisation.join(method, server, new, 0).predict(torch.linspace(-1, 1, 4).double().view(1, 4, 1))
    assert predictive.mean.isfinite().all() and (predictive.variance > 0).all()


@pytest.mark.law
@every_federated
def test_clients_of_a_single_row_train_and_predict(case: Case) -> None:
    one = (torch.full((1, 1), 0.3), torch.full((1,), -0.2))
    method = case.build(1)
    for clients in ([one], [one, one], [*unpadded(federation(1)), one]):
        batch, plan = ClientBatch.pad(clients), FederationPlan(rounds=2, noise=case.noise)
        records: list[RoundRecord] = []
        state = engine.run_rounds(method, batch, plan, records.append)
        assert all(not r.dropped and all(map(math.isfinite, r.values.values())) for r in records)
        for index, posterior in personalisation.personalise(method, state, batch, plan):
            predictive = posterior.predict(batch.x[index])
            assert predictive.log_prob(batch.y[index]).isfinite().all() and (predictive.variance > 0).all()


# 8 and 9: columns and dtypes ------------------------------------------------------------------------------------


def test_clients_of_other_columns_are_refused_by_name() -> None:
    rows = unpadded(federation(3))
    with pytest.raises(DataError, match="client 'odd': x has 2 features, expected 3"):
        ClientBatch.pad([rows[0], (rows[1][0][:, :2], rows[1][1])], ["even", "odd"])
    method = from_recipe(METHODS["pac-pfl"], 3)
    server = federation_state.start(method, federation(3), FederationPlan()).server
    odd = ClientBatch.pad([(rows[1][0][:, :2], rows[1][1])], ["odd"])
    with pytest.raises(DataError, match="client 'odd'"):
        personalisation.join(method, server, odd, 0, like=federation(3))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool, torch.float16])
def test_whole_numbers_and_halves_are_converted_with_one_warning(dtype: torch.dtype) -> None:
    rows = [((x * 2).round().abs().to(dtype), y) for x, y in unpadded(federation(3))]
    with pytest.warns(UserWarning, match="were converted to torch.float64") as caught:
        batch = ClientBatch.pad(rows)
    assert len(caught) == 1
    ((record, _),) = engine.rounds(from_recipe(METHODS["pac-pfl"], 3), batch, FederationPlan(rounds=1))
    assert record.dropped == ()


# 10: kernels that cannot be factored ----------------------------------------------------------------------------


def test_fifty_equal_rows_pass() -> None:
    x, y = unpadded(federation(3))[1]
    batch = ClientBatch.pad([(x[:1].expand(50, -1), y[:1].expand(50)), (x, y)])
    for noise_std in (1.0, 1e-2, 1e-9):
        update = round_at(plain(3), particle(noise_std), batch)
        assert tensors.finite(update).all()
    method, plan = from_recipe(METHODS["pac-pfl"], 3), FederationPlan(rounds=5, on_bad_client="stop")
    state = engine.run_rounds(method, batch, plan)
    ((_, posterior),) = personalisation.personalise(method, state, batch.select(torch.tensor([0])), plan)
    predictive = posterior.predict(batch.x[:1, :1])
    assert abs(predictive.mean.item() - y[0].item()) < 0.2


def test_a_kernel_beyond_repair_costs_its_own_client_only() -> None:
    kernel = gpytorch.kernels.LinearKernel()
    model = GPyTorchPrior(gpytorch.means.ConstantMean(), kernel, 1)
    method = PacPFL(model, GaussianHyperPrior(model.location(), 0.1), particles=2)
    rows = unpadded(federation(1))
    huge = (rows[0][0] * 1e200, rows[0][1])  # finite, but its square is not
    batch = ClientBatch.pad([rows[0], huge, rows[2]])
    plan = FederationPlan(rounds=1, waste=100.0)
    ((record, state),) = engine.rounds(method, batch, plan)
    assert record.dropped == ("client_01",)
    whole = method.personalise(method.broadcast(state.server), Nothing(), batch, Noise(0, 0, batch.ids))
    predictive = whole.predict(batch.x)
    assert predictive.mean[1].isnan().all()
    alone = method.personalise(
        method.broadcast(state.server), Nothing(), batch.select(torch.tensor([2])), Noise(0, 0, [0])
    )
    assert_close(predictive.mean[2:], alone.predict(batch.x[2:]).mean, 1e-9)
    assert predictive.mean[[0, 2]].isfinite().all()


# 29: another set of clients -------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [[4, 2, 0, 1, 3], [3, 1], [2, 0, 4, 3, 1]], ids=str)
def test_clients_are_matched_by_id_when_a_run_goes_on(order: list[int], tmp_path: Any) -> None:
    method, batch, plan = Toy(1), federation(1), FederationPlan(rounds=3, seed=5)
    states = [state for _, state in engine.rounds(method, batch, plan)]
    saved = {"server": states[1].server, "clients": states[1].clients}
    checkpoint.save(tmp_path, 2, tensors.leaves(saved), {"ids": list(batch.ids)})
    loaded = checkpoint.load(tmp_path)
    assert loaded is not None

    today = batch.select(torch.tensor(order))
    like = tensors.tree_map(lambda leaf: leaf, saved)
    back = tensors.unleaves(like, loaded.tensors)
    match = checkpoint.match_clients(loaded.meta["ids"], today.ids)
    fresh = federation_state.start(method, today, plan).clients
    target, known = torch.tensor(match.target), tensors.select(back["clients"], match.source)
    clients = tensors.tree_map(lambda leaf, own: leaf.index_copy(0, target, own), fresh, known)
    ((_, resumed),) = engine.rounds(method, today, plan, FederationState(back["server"], clients, 2))
    assert_close(resumed.clients, tensors.select(states[2].clients, torch.tensor(order)), 1e-12)
    assert resumed.clients.seen.tolist() == [3] * len(order)


@pytest.mark.law
@every_federated
def test_the_order_of_clients_does_not_matter_over_a_run(case: Case) -> None:
    method, batch = case.build(1), federation(1)
    plan = FederationPlan(rounds=1, seed=5, noise=case.noise)
    shuffled = torch.tensor([4, 2, 0, 1, 3])
    one, other = engine.run_rounds(method, batch, plan), engine.run_rounds(method, batch.select(shuffled), plan)
    assert_close(other.clients, tensors.select(one.clients, shuffled), 1e-9)
    assert_close(other.server, one.server, 1e-8)


# 30: anything at all --------------------------------------------------------------------------------------------


@st.composite
def federations(draw: st.DrawFn, huge: tuple[float, ...] = ()) -> Rows:
    d, random = draw(st.integers(1, 3)), torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    scales, clients = st.sampled_from([1.0, 1.0, 1e-9, 1e4, *huge]), []
    for m in draw(st.lists(st.integers(1, 20), min_size=1, max_size=4)):
        x = torch.randn(m, d, generator=random, dtype=torch.float64) * draw(scales)
        y = torch.randn(m, generator=random, dtype=torch.float64) * draw(scales)
        oddities = draw(st.sets(st.sampled_from(["constant column", "constant target", "duplicates", "offset"])))
        if "constant column" in oddities:
            x[:, 0] = 3.0
        if "constant target" in oddities:
            y[:] = y[0]
        if "duplicates" in oddities:
            x[m // 2 :] = x[: m - m // 2].clone()
        if "offset" in oddities:
            x, y = x + 1e6, y - 1e6
        clients.append((x, y))
    return clients


@pytest.mark.slow
@settings(max_examples=60)
@given(
    clients=federations(huge=(1e60,)),
    minibatch=st.none() | st.integers(1, 10),
    optimiser=st.sampled_from(["adam", "ascent"]),
    cohort=st.none() | st.integers(1, 4),
    learned=st.booleans(),
    scale=st.sampled_from(["inside", "outside"]),
)
def test_a_round_gives_finite_numbers_or_a_named_error(
    clients: Rows, minibatch: int | None, optimiser: Any, cohort: int | None, learned: bool, scale: str
) -> None:
    d = clients[0][0].shape[1]
    options = {"minibatch": minibatch, "minibatch_scale": scale, "optimiser": optimiser}
    method = from_recipe(METHODS["pac-pfl"], d, options, plain if learned else deep)
    plan = FederationPlan(rounds=2, cohort=cohort)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", r"round \d undone|client '.*' sent a step")
        batch = ClientBatch.pad(clients)
        try:
            for record, state in engine.rounds(method, batch, plan):
                assert all(leaf.isfinite().all() for leaf in tensors.leaves(state.server).values())
                assert all(math.isfinite(value) for value in record.values.values())
                assert set(record.dropped) <= set(batch.names)
                assert record.clients + len(record.dropped) == min(cohort or 9, len(clients))
        except PacBayesFLError as error:
            event(type(error).__name__)
            assert error.round is not None and (error.client is not None or "learning rates" in str(error))
            return
        kept = bits(state.server)
        for index, posterior in personalisation.personalise(method, state, batch, plan):
            predictive = posterior.predict(batch.x[index])
            fine = predictive.mean.isfinite().all(1)
            assert (predictive.variance[fine] > 0).all()
            if not record.dropped and cohort is None and minibatch is None:
                assert fine.all()
        assert bits(state.server) == kept
    event("finite")


@pytest.mark.slow
@settings(max_examples=40)
@given(clients=federations(), case=st.sampled_from(ALL))
def test_every_method_predicts_finitely_on_ugly_rows(clients: Rows, case: Case) -> None:
    batch, plan = ClientBatch.pad(clients), FederationPlan(rounds=1, noise=case.noise, on_bad_client="stop")
    method = case.build(batch.x.shape[2])
    optimisers = getattr(method, "optimiser", None), getattr(getattr(method, "local", None), "optimiser", None)
    plain = optimisers[0] == "ascent" or optimisers[1] == "sgd"
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "round 1 undone")
            state = engine.run_rounds(method, batch, plan)
    except NumericalError as error:  # steps at a fixed rate may diverge on rows of 1e4 and beyond, and then say so
        named = error.client is not None or "came from 'client" in str(error)
        assert (plain or "sent a step" in str(error)) and (named or "lower the learning rates" in str(error))
        return
    if plain:
        return
    for index, posterior in personalisation.personalise(method, state, batch, plan):
        predictive = posterior.predict(batch.x[index])
        assert predictive.mean.isfinite().all() and predictive.variance.isfinite().all()
        assert (predictive.variance > 0).all()
