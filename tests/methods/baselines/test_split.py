"""FedPer, FedRep, LG-FedAvg and FedBABU as arithmetic on products of two numbers, and their limits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from pacbayes_fl.errors import AssumptionError
from pacbayes_fl.federation import engine
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.inference.map_estimate import LocalDescent
from pacbayes_fl.inference.parts import Personal
from pacbayes_fl.inference.svi import LocalInference
from pacbayes_fl.methods import METHODS
from pacbayes_fl.methods.base import Nothing
from pacbayes_fl.methods.baselines.fedavg import FedAvg
from pacbayes_fl.methods.baselines.local import LocalOnly
from pacbayes_fl.methods.baselines.split import Client, Split
from pacbayes_fl.methods.fedsi import FedSI
from pacbayes_fl.methods.variational.bpfed import BPFed
from pacbayes_fl.models.likelihoods import Categorical
from pacbayes_fl.models.weights.convolutional import BayesianVGG
from pacbayes_fl.noise import Noise
from tests.methods.by_hand import MODEL, SIZES, clients
from tests.worlds import TARGETS, Product, after, descent, numbers, personal, products, rounds

BODY, HEAD = 1.0, 0.5
TWO, HEADS, BODIES = descent(2, 0.1), Personal(1, "last"), Personal(1, "first")
close = pytest.approx


def split(local: LocalDescent = TWO, own: Personal = HEADS, **options: Any) -> Split:
    return Split(Product(), local, own=own, weighting="uniform", **options)


def steps(body: float, head: float, y: float, count: int, of: str = "both") -> tuple[float, float]:
    """Descend (body head - y)^2 / 2 by hand."""
    for _ in range(count):
        error = body * head - y
        body, head = (
            body - 0.1 * error * head * (of != "head"),
            head - 0.1 * error * body * (of != "body"),
        )
    return body, head


def columns(theta: list[float]) -> tuple[list[float], list[float]]:
    return theta[::2], theta[1::2]


def test_fedper_trains_both_parts_together_and_averages_the_body() -> None:
    batch, played = products(), rounds(split(), products(), BODY, HEAD)
    first = next(played)
    by_hand = [steps(BODY, HEAD, y, 2) for y in TARGETS]
    assert numbers(first.update.theta) == close([w for w, _ in by_hand], abs=1e-14)
    assert numbers(first.update.theta) == close([1.04899375, 0.87866875, 1.15958125], abs=1e-10)
    assert numbers(first.clients.own) == close([0.594715625, 0.227553125, 0.789884375], abs=1e-10)
    assert numbers(first.server.theta) == close([1.02908125, HEAD], abs=1e-10), "the head stays the common start"
    second = next(played)
    assert numbers(second.update.theta) == close([1.073242031019, 0.989930640474, 1.211859177969], abs=1e-10)
    assert numbers(second.clients.own) == close([0.669601477554, -0.009627553093, 1.021630511605], abs=1e-10)
    assert numbers(second.server.theta) == close([1.091677283154, HEAD], abs=1e-10)
    body, heads = columns(personal(split(), second, batch))
    assert body == numbers(second.server.theta)[:1] * 3 and heads == numbers(second.clients.own)


def test_fedrep_trains_the_head_first_and_then_the_body() -> None:
    method = split(descent(1, 0.1), schedule="shared-last", own_passes=2)
    last = after(1, method, products(), BODY, HEAD)
    heads = [steps(BODY, HEAD, y, 2, "head")[1] for y in TARGETS]
    bodies = [steps(BODY, head, y, 1, "body")[0] for head, y in zip(heads, TARGETS, strict=True)]
    assert numbers(last.clients.own) == close(heads, abs=1e-14)
    assert numbers(last.update.theta) == close(bodies, abs=1e-14)
    assert (heads, bodies) == (close([0.595, 0.215, 0.785]), close([1.0240975, 0.9738775, 1.0953775], abs=1e-10))
    assert numbers(last.server.theta) == close([1.0311175, HEAD], abs=1e-10)
    tuned = columns(personal(replace(method, finetune=3), last, products()))
    assert tuned[1] == close([steps(1.0311175, h, y, 3, "head")[1] for h, y in zip(heads, TARGETS, strict=True)])


def test_lg_fedavg_averages_the_head() -> None:
    last = after(1, split(own=BODIES), products(), BODY, HEAD)
    assert numbers(last.server.theta) == close([BODY, 0.537384375], abs=1e-10)
    assert numbers(last.clients.own) == close([1.04899375, 0.87866875, 1.15958125], abs=1e-10)


def test_fedbabu_trains_the_body_under_the_head_of_the_start() -> None:
    method, batch = split(schedule="shared"), products()
    last = after(1, method, batch, BODY, HEAD)
    assert numbers(last.update.theta) == close([1.049375, 0.851875, 1.148125], abs=1e-10)
    assert numbers(last.server.theta) == close([1.016458333333, HEAD], abs=1e-10) and last.clients == Nothing()
    body = numbers(last.server.theta)[0]
    for fresh in (False, True):  # nobody keeps anything: new clients are like the others
        head = columns(personal(split(descent(1, 0.1), schedule="shared", finetune=3), last, batch, fresh))
        assert head == ([body] * 3, close([steps(body, HEAD, y, 3, "head")[1] for y in TARGETS], abs=1e-14))
        assert head[1] == close([0.634999347008, 0.085965781544, 0.909516129740], abs=1e-10)
        whole = split(descent(1, 0.1), schedule="shared", finetune=3, finetune_part="all")
        result = columns(personal(whole, last, batch, fresh))
        assert result[0] == close([1.086381199584, 0.868470691089, 1.259742235289], abs=1e-10)
        assert result[1] == close([0.633568663531, 0.114604845698, 0.917889950191], abs=1e-10)
        kept = columns(personal(split(schedule="shared", finetune=1, finetune_part="shared"), last, batch, fresh))
        assert kept[1] == [HEAD] * 3 and kept[0] == close([steps(body, HEAD, y, 2, "body")[0] for y in TARGETS])


@pytest.mark.parametrize("own", [HEADS, BODIES])
def test_a_new_client_trains_its_own_part_alone(own: Personal) -> None:
    method = split(descent(1, 0.1), own, join_passes=4)
    last = after(2, method, products(), BODY, HEAD)
    body, head = numbers(last.server.theta)
    which = "head" if own is HEADS else "body"
    by_hand = [steps(body, head, y, 4, which) for y in TARGETS]
    result = columns(personal(method, last, products(), fresh=True))
    assert list(zip(*result, strict=True)) == [close(pair, abs=1e-14) for pair in by_hand]
    assert columns(personal(method, last, products()))[own is BODIES] == [(body, head)[own is BODIES]] * 3


PLAN, LOCAL = FederationPlan(rounds=3, seed=3), LocalDescent(3, 4, 1e-2)
NETWORK = clients(*SIZES)


def test_without_own_weights_it_is_fedavg_bit_by_bit() -> None:
    expected = engine.run_rounds(FedAvg(MODEL, LOCAL), NETWORK, PLAN)
    for own in (Personal(0), Personal(which="normalisation")):  # the network normalises nothing
        result = engine.run_rounds(Split(MODEL, LOCAL, own=own), NETWORK, PLAN)
        assert torch.equal(result.server.theta, expected.server.theta) and result.clients == Nothing()


def test_with_all_weights_its_own_every_client_is_alone() -> None:
    """With plain descent, whose steps remember nothing; Local-only keeps its Adam's moments."""
    local = LocalDescent(3, 4, 1e-2, "sgd")
    alone: Any = engine.run_rounds(LocalOnly(MODEL, local), NETWORK, PLAN)
    result: Any = engine.run_rounds(Split(MODEL, local, own=Personal(4)), NETWORK, PLAN)
    assert torch.equal(result.clients.own, alone.clients.theta)


def test_the_first_round_s_body_of_fedper_is_that_of_fedavg() -> None:
    plan, own = FederationPlan(rounds=1, seed=3), Personal().mask(MODEL)
    theta = engine.run_rounds(FedAvg(MODEL, LOCAL), NETWORK, plan).server.theta
    result: Any = engine.run_rounds(Split(MODEL, LOCAL), NETWORK, plan)
    assert torch.equal(result.server.theta[~own], theta[~own])


def test_bpfed_without_uncertainty_is_fedper() -> None:
    """Its remark in section IV: sigma -> 0 and no weight of the KL divergence; on one minibatch of all rows."""
    batch = products()
    local = LocalInference(2, minibatch=50, rate=0.1, zeta=1e-300, data_scale="mean", optimiser="sgd")
    bayes = BPFed(Product(), local, weighting="uniform", personal_sites=1, init_rho=-40.0)
    state = bayes.init_server(torch.Generator().manual_seed(0))
    body, head = numbers(state.w.loc)
    kept = bayes.init_clients(state, batch)
    update, kept = bayes.client(state, kept, batch, Noise(0, 1, batch.ids))
    last = after(1, split(), batch, body, head)
    assert numbers(update.w.loc) == close(numbers(last.update.theta), abs=1e-12)
    assert numbers(kept.personal.loc) == close(numbers(last.clients.own), abs=1e-12)


def test_fedsi_without_a_prior_is_fedbabu() -> None:
    local = LocalDescent(3, 50, 1e-2)  # of all rows: FedSI draws more than minibatches
    bayes = FedSI(MODEL, local, prior_weight=0.0, predictive="map", weighting="rows", finetune=2)
    plain = Split(MODEL, local, schedule="shared", finetune=2)
    plan = FederationPlan(rounds=2, seed=3)
    one: Any = engine.run_rounds(bayes, NETWORK, plan)
    other: Any = engine.run_rounds(plain, NETWORK, plan)
    shared = ~Personal().mask(MODEL)
    assert torch.allclose(one.server.moments.mean[shared], other.server.theta[shared], rtol=0, atol=1e-12)


def test_the_own_weights_of_fedbn_are_scales_and_shifts_of_batch_norms() -> None:
    model = BayesianVGG((1, 2, 2), Categorical(2))
    method = METHODS["fedbn"].make(model)
    names = {name for name in model.shapes if name.startswith(("gamma_", "beta_"))}
    assert names and method.own.mask(model).sum() == sum(model.span(n).stop - model.span(n).start for n in names)
    assert not any(bool(method.own.mask(model)[model.span(name)].any()) for name in model.shapes.keys() - names)


def test_labels_say_how_many_weights_are_a_client_s_own() -> None:
    assert split().about()["own_weights"] == "1 of 2 weights stay with their client"


def test_there_is_no_certificate() -> None:
    batch = products()
    last = after(1, split(), batch, BODY, HEAD)
    posterior = split().personalise(last.server, last.clients, batch, Noise(0, 0, batch.ids))
    with pytest.raises(AssumptionError, match="Split has no posterior over hypotheses"):
        split().refine(posterior, batch, batch, Noise(0, 0, batch.ids))


def test_who_never_trained_is_known_by_rounds() -> None:
    last = after(1, split(), products(), BODY, HEAD)
    assert isinstance(last.clients, Client) and split().is_new(last.clients).tolist() == [False] * 3  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["fedper", "fedrep", "lg-fedavg", "fedbabu", "fedbn"])
def test_the_papers_have_the_settings_of_the_comparison_that_printed_them(name: str) -> None:
    paper: Any = METHODS[name].make(MODEL, **METHODS[name].presets["paper"]["method"])
    assert paper.local == LocalDescent(None, 50, 1e-3, "adam", 10)
    assert paper.weighting == ("uniform" if name == "fedrep" else "rows")
