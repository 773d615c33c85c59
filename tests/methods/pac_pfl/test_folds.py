"""Folds of clients against one run a fold, and what a client's rows must never reach."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch, client_id
from pacbayes_fl.errors import AssumptionError, StudyError
from pacbayes_fl.federation import engine, federation_state
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.inference.svi import LocalInference
from pacbayes_fl.methods.base import Nothing
from pacbayes_fl.methods.pac_pfl.bnn import PacPFLBNN
from pacbayes_fl.methods.pac_pfl.folds import CrossFitted, balanced_folds
from pacbayes_fl.methods.pac_pfl.gp import FederatedSVGD, Message, PacPFL
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.hyper_posterior import GaussianHyperPrior, NetworkHyperPrior
from tests.laws import test_method_laws as laws
from tests.laws import test_wire_laws as wire_laws
from tests.laws.cases import Case, assert_close, bits, deep, federation, network

BATCH = federation(1)  # 5 clients
FOLDS = 3
FOLD_OF = dict(zip(BATCH.ids, (0, 1, 2, 0, 1), strict=True))
LOCAL = LocalInference(steps=3, minibatch=3)


def functions(d: int = 1, **options: Any) -> PacPFL:
    model = deep(d)
    return PacPFL(model, GaussianHyperPrior(model.location(), 0.5), **({"particles": 3, "rate": 0.05} | options))


def networks(d: int = 1, **options: Any) -> PacPFLBNN:
    model = network(d)
    usual: dict[str, Any] = {"particles": 2, "train_draws": 3, "importance_draws": 6, "draws": 3, "local": LOCAL}
    return PacPFLBNN(model, NetworkHyperPrior(-2.0, 1.5, 0.7, 0.4)(model), **(usual | options))


def cross_fitted(inner: FederatedSVGD[Any, Any], **changes: Any) -> CrossFitted:
    return CrossFitted(**({"inner": inner, "folds": FOLDS, "fold_of": FOLD_OF} | changes))


def outside(fold: int) -> ClientBatch:
    return BATCH.select(torch.tensor([k for k, i in enumerate(BATCH.ids) if FOLD_OF[i] != fold]))


def part(tree: Any, fold: int) -> Any:
    return tensors.tree_map(lambda leaf: leaf[fold], tree)


INNER: dict[str, Any] = {
    "functions": functions,
    "functions, minibatch": partial(functions, minibatch=3, minibatch_scale="outside"),
    "functions, tau of lambda": partial(functions, tau=None, lam=10.0, beta=20.0),
    "functions, ascent": partial(functions, optimiser="ascent", rate=1e-3, cohort_scale="mean"),
    "networks": networks,
    "networks, minibatch": partial(networks, minibatch=3, beta=2.0),
}
every_inner = pytest.mark.parametrize("name", INNER)


# one run a fold -------------------------------------------------------------------------------------------------


@pytest.mark.law
@every_inner
@pytest.mark.parametrize("plan", [{}, {"chunk": 1, "noise": "generators"}], ids=str)
def test_every_fold_is_the_run_without_its_clients(name: str, plan: dict[str, Any]) -> None:
    inner = INNER[name]()
    given = FederationPlan(**({"rounds": 3, "seed": 7} | plan))
    records = []
    state = engine.run_rounds(cross_fitted(inner), BATCH, given, lambda record: records.append(record.values))
    reports = []
    for fold in range(FOLDS):
        alone: list[Any] = []
        plain = engine.run_rounds(inner, outside(fold), given, lambda record, alone=alone: alone.append(record.values))
        assert_close(part(state.server, fold), plain.server)
        reports.append(alone)
    first = federation_state.start(inner, BATCH, given).server
    assert (state.server.particles - first.particles).abs().amax((1, 2)).min() > 1e-3
    for t, values in enumerate(records):
        for key in set(values) - {"seconds"}:
            assert values[key] == pytest.approx(sum(alone[t][key] for alone in reports) / FOLDS, rel=1e-9, abs=1e-12)


def test_every_fold_starts_from_the_same_draw() -> None:
    server = cross_fitted(functions()).init_server(torch.Generator().manual_seed(4))
    plain = functions().init_server(torch.Generator().manual_seed(4))
    assert [bits(part(server, fold)) for fold in range(FOLDS)] == [bits(plain)] * FOLDS


@pytest.mark.parametrize("inner", [functions(), networks()], ids=["functions", "networks"])
@pytest.mark.parametrize("wild", ["numbers", "nan"])
def test_rows_never_reach_the_fold_of_their_client(inner: Any, wild: str) -> None:
    m, plan = cross_fitted(inner), FederationPlan(rounds=3, seed=7)
    before = engine.run_rounds(m, BATCH, plan).server
    for k, client in enumerate(BATCH.ids):
        y = BATCH.y.clone()
        y[k] = torch.nan if wild == "nan" else 3.0 - 2.0 * y[k]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a client that was dropped
            after = engine.run_rounds(m, replace(BATCH, y=y), plan).server
        for fold in range(FOLDS):
            same = bits(part(after, fold)) == bits(part(before, fold))
            assert same == (fold == FOLD_OF[client])


def test_what_a_client_sends_to_its_own_fold_is_nothing() -> None:
    m = cross_fitted(functions())
    message = m.broadcast(m.init_server(torch.Generator().manual_seed(4)))
    update, _ = m.client(message, Nothing(), BATCH, Noise(3, 1, BATCH.ids))
    for leaf in tensors.leaves(update.by_fold).values():
        assert leaf.shape[:2] == (5, FOLDS)
        assert not any(leaf[k, FOLD_OF[i]].any() for k, i in enumerate(BATCH.ids))
    assert update.by_fold.weight.tolist() == [[float(FOLD_OF[i] != fold) for fold in range(3)] for i in BATCH.ids]
    assert update.weight.tolist() == [1.0] * 5


# personal posteriors --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "inner",
    [functions(), networks(posterior="importance"), networks(), networks(posterior="svgd", svgd_particles=2)],
    ids=["functions", "importance", "svi", "svgd"],
)
def test_clients_get_the_priors_of_their_fold_and_new_ones_those_of_the_first(inner: Any) -> None:
    m = cross_fitted(inner)
    server = engine.run_rounds(m, BATCH, FederationPlan(rounds=2, seed=7)).server
    new = ClientBatch.pad([(BATCH.x[3], BATCH.y[3])], ["new"])
    for batch in (BATCH, new):
        streams = Noise(5, 0, batch.ids)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = m.personalise(m.broadcast(server), Nothing(), batch, streams).predict(batch.x)
            for k, client in enumerate(batch.ids):
                message = Message(server.particles[FOLD_OF.get(client, 0)])
                one = batch.select(torch.tensor([k])).trim()
                alone = inner.personalise(message, Nothing(), one, Noise(5, 0, one.ids)).predict(batch.x[k : k + 1])
                assert_close(alone.mean[0], result.mean[k])
                assert_close(alone.variance[0], result.variance[k])


@pytest.mark.parametrize(
    "inner", [functions(), networks(posterior="importance"), networks()], ids=["functions", "importance", "svi"]
)
def test_refining_is_that_of_the_method_that_is_folded(inner: Any) -> None:
    m = cross_fitted(inner)
    server = engine.run_rounds(m, BATCH, FederationPlan(rounds=2, seed=7)).server
    none = BATCH.rows(torch.empty(5, 0, dtype=torch.int64))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        prior = m.personalise(m.broadcast(server), Nothing(), none, Noise(5, 0, BATCH.ids))
        result, kl = m.refine(prior, none, BATCH, Noise(6, 0, BATCH.ids))
        for k, client in enumerate(BATCH.ids):
            one, empty = (batch.select(torch.tensor([k])) for batch in (BATCH, none))
            message = Message(server.particles[FOLD_OF[client]])
            alone = inner.personalise(message, Nothing(), empty, Noise(5, 0, one.ids))
            again, single = inner.refine(alone, empty, one.trim(), Noise(6, 0, one.ids))
            assert_close(single, kl[k : k + 1])
            assert_close(again.predict(one.x).mean[0], result.predict(BATCH.x).mean[k])
    assert (kl > 0).all()
    with pytest.raises(AssumptionError, match="svi"):
        cross_fitted(networks(posterior="svgd")).refine(prior, none, BATCH, Noise(6, 0, BATCH.ids))


def test_the_global_model_is_that_of_the_fold() -> None:
    m = cross_fitted(networks())
    server = engine.run_rounds(m, BATCH, FederationPlan(rounds=2, seed=7)).server
    result = m.global_model(m.broadcast(server), Nothing(), BATCH, Noise(5, 0, BATCH.ids))
    assert result is not None
    for k, client in enumerate(BATCH.ids):
        one = BATCH.select(torch.tensor([k]))
        message = Message(server.particles[FOLD_OF[client]])
        alone = networks().global_model(message, Nothing(), one, Noise(5, 0, one.ids)).predict(one.x)
        assert_close(alone.mean[0], result.predict(BATCH.x).mean[k])
    assert cross_fitted(functions()).global_model(m.broadcast(server), Nothing(), BATCH, Noise(5, 0, BATCH.ids)) is None


# laws -----------------------------------------------------------------------------------------------------------


def build(kind: Any, d: int) -> CrossFitted:
    ids = federation(d).ids
    return CrossFitted(kind(d), 2, balanced_folds(ids, 2, seed=5))


def law_cases() -> Iterator[Case]:
    yield Case("functions", partial(build, functions))
    yield Case("minibatch", partial(build, partial(functions, minibatch=4)), "generators")
    yield Case("networks", partial(build, partial(networks, posterior="importance")))


law = pytest.mark.parametrize(("case", "d"), [pytest.param(case, 3, id=str(case)) for case in law_cases()])


@law
@pytest.mark.filterwarnings("ignore:.*one draw of")
def test_the_laws_of_calls_hold(case: Case, d: int) -> None:
    laws.test_a_round_does_not_depend_on_how_clients_are_called(case, d)
    laws.test_personalisation_does_not_depend_on_how_clients_are_called(case, d)


@law
@pytest.mark.filterwarnings("ignore:.*one draw of")
def test_the_laws_of_methods_hold(case: Case, d: int) -> None:
    wire_laws.test_remote_clients_and_one_device_agree(case, d)
    wire_laws.test_what_an_honest_client_sends_is_possible_and_what_the_server_knows_of_it(case, d)
    wire_laws.test_weights_are_those_of_the_registered_rows_whatever_a_reply_says(case, d)
    wire_laws.test_a_reply_that_is_refused_touches_nobody_else(case, d)
    laws.test_the_same_seed_gives_the_same_run_bit_by_bit(case, d)
    laws.test_the_default_dtype_of_torch_changes_nothing(case, d)
    laws.test_inputs_are_left_as_they_are(case, d)
    laws.test_states_survive_being_laid_out_flat(case, d)
    laws.test_states_are_finite_from_the_start_and_leaves_of_clients_begin_with_them(case, d)
    laws.test_clients_that_never_trained_can_predict(case, d)
    laws.test_how_the_engine_cuts_clients_into_calls_changes_nothing(case, d)


def test_nothing_of_a_remote_client_reaches_its_own_fold() -> None:
    method = cross_fitted(functions())
    server = method.init_server(torch.Generator().manual_seed(0))
    message = method.broadcast(server)
    update, _ = method.client(message, method.init_clients(message, BATCH), BATCH, Noise(0, 1, BATCH.ids))
    lie = tensors.tree_map(torch.clone, update)
    for k, client in enumerate(BATCH.ids):
        tensors.tree_map(lambda leaf, at=(k, FOLD_OF[client]): leaf[at].fill_(7.0), lie.by_fold)
    assert bits(method.registered(lie, BATCH.size, BATCH.ids)) == bits(update) != bits(lie)


# folds and options ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("clients", "folds"), [(12, 5), (5, 5), (24, 2)])
def test_folds_are_of_one_size_and_depend_on_the_clients_alone(clients: int, folds: int) -> None:
    ids = [client_id(f"house_{k}") for k in range(clients)]
    result = balanced_folds(ids, folds, 3)
    sizes = Counter(result.values())
    assert set(sizes) == set(range(folds)) and max(sizes.values()) - min(sizes.values()) <= 1
    assert set(result) == set(ids) and balanced_folds(ids[::-1], folds, 3) == result
    assert clients == 5 or any(balanced_folds(ids, folds, seed) != result for seed in range(4, 8))


def test_clients_meet_in_a_fold_as_often_as_any_others() -> None:
    draws, together = 2000, torch.zeros(6, 6, dtype=torch.float64)
    for seed in range(draws):
        result = balanced_folds(range(6), 2, seed)
        fold = torch.tensor([result[k] for k in range(6)])
        together += fold.unsqueeze(1) == fold
    share = 2 / 5  # of the 5 others 2 are in a client's fold
    apart = (together / draws - share)[~torch.eye(6, dtype=torch.bool)].abs().max()
    assert apart < 4.5 * (share * (1 - share) / draws) ** 0.5


@pytest.mark.parametrize("folds", [0, 1, 6])
def test_a_number_of_folds_out_of_range_is_refused(folds: int) -> None:
    with pytest.raises(StudyError, match="folds must be between 2 and the number of clients, 5"):
        balanced_folds(BATCH.ids, folds, 0)


class Shared(FederatedSVGD[Any, Any]):
    """A method whose clients all get the same particles."""

    client = personalise = None  # type: ignore[assignment]


def test_folds_out_of_range_are_refused() -> None:
    with pytest.raises(StudyError, match="at least 2"):
        cross_fitted(functions(), folds=1)
    with pytest.raises(StudyError, match=r"folds from 0 to 2.*3"):
        cross_fitted(functions(), fold_of={**FOLD_OF, 4: 3})
    with pytest.raises(StudyError, match="Shared cannot give clients of one call different priors"):
        cross_fitted(Shared(deep(1), functions().hyper_prior))
    m = cross_fitted(functions(), fold_of={i: fold for i, fold in FOLD_OF.items() if fold})
    with pytest.raises(StudyError, match="all 5 clients of the federation, got 3"):
        engine.run_rounds(m, BATCH, FederationPlan(rounds=1))


def test_it_says_and_costs_what_the_folded_method_does() -> None:
    inner = networks()
    m = cross_fitted(inner)
    assert m.about() == inner.about() | {"folds": 3}
    assert m.footprint(9) == 2 * inner.footprint(9)
    few = {"effective_samples": 1.2}
    assert m.remark(few) == inner.remark(few) and m.remark(few) is not None


def test_a_client_keeps_its_fold_whoever_comes_and_goes() -> None:
    ids = [client_id(f"client {k}") for k in range(9)]
    before = balanced_folds(ids, 3, 5)
    joined = [*ids[2:], *(client_id(f"joiner {k}") for k in range(4))]
    after = balanced_folds(joined, 3, 5, before)
    assert {i: after[i] for i in ids[2:]} == {i: before[i] for i in ids[2:]}
    assert after.keys() == set(joined)
    sizes = Counter(after.values())
    assert max(sizes.values()) - min(sizes.values()) <= 1
    assert balanced_folds(joined[::-1], 3, 5, before) == after


def test_what_fails_in_one_fold_leaves_the_others_alone() -> None:
    """A client whose update is not finite under the priors of one fold is left out of that fold alone."""
    method = cross_fitted(functions())
    generator = torch.Generator().manual_seed(0)
    message = method.broadcast(method.init_server(generator))
    broken = Message(message.particles.clone())
    broken.particles[1] = torch.nan  # fold 1's priors give nothing finite
    whole, _ = method.client(message, Nothing(), BATCH, Noise(0, 1, BATCH.ids))
    update, _ = method.client(broken, Nothing(), BATCH, Noise(0, 1, BATCH.ids))
    mine = torch.tensor([FOLD_OF[i] for i in BATCH.ids])
    for name, leaf in tensors.leaves(update.by_fold).items():
        assert bool(leaf.isfinite().all()), name
        assert not bool(leaf[:, 1].any()), name
        for fold in (0, 2):
            assert torch.equal(leaf[:, fold], tensors.leaves(whole.by_fold)[name][:, fold]), name
    assert bool((update.by_fold.weight[mine != 0, 0] == 1).all())
    broken.particles[:] = torch.nan
    update, _ = method.client(broken, Nothing(), BATCH, Noise(0, 1, BATCH.ids))
    assert not bool(tensors.finite(update).any())  # who fails for all folds is for the engine to see


def test_a_client_s_prior_has_seen_the_rows_of_all_other_folds_and_of_nobody_s_own() -> None:
    method = cross_fitted(functions())
    assert list(method.prior_groups(BATCH.ids)) == [0, 1, 2, 0, 1]
    assert list(functions().prior_groups(BATCH.ids)) == [0, 1, 2, 3, 4]
    server = functions().init_server(torch.Generator().manual_seed(0))
    learned = functions().learned_priors(server)
    assert torch.equal(learned.particles, server.particles) and method.learned_priors(server) is None
    assert (
        cross_fitted(networks(posterior="importance")).finite_posterior
        and not cross_fitted(networks()).finite_posterior
    )
