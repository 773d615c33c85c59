"""What PAC-PFL on functions and on networks share; the formulas themselves are in the tests of the two."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import StudyError
from pacbayes_fl.inference.optim import adam_init
from pacbayes_fl.inference.svi import LocalInference
from pacbayes_fl.methods.base import Nothing
from pacbayes_fl.methods.pac_pfl import bnn, gp
from pacbayes_fl.methods.pac_pfl.bnn import PacPFLBNN
from pacbayes_fl.methods.pac_pfl.gp import FederatedSVGD, Message, PacPFL, Server
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.hyper_posterior import GaussianHyperPrior
from tests.laws.cases import assert_close, deep, federation, network
from tests.methods.by_hand import randn

HYPER_PRIOR = GaussianHyperPrior(torch.zeros(5, dtype=torch.float64), 0.5)
both = pytest.mark.parametrize("kind", [PacPFL, PacPFLBNN])


def method(kind: Any, **options: Any) -> FederatedSVGD[Any, Any]:
    made: FederatedSVGD[Any, Any] = kind(deep(1) if kind is PacPFL else network(1), HYPER_PRIOR, **options)
    return made


def update(kind: Any, score: Tensor) -> Any:
    ones = torch.ones(len(score), dtype=torch.float64)
    values = torch.zeros(score.shape[:2], dtype=torch.float64)
    return gp.Update(score, values, ones, ones) if kind is PacPFL else bnn.Update(score, values, ones, values)


@pytest.mark.parametrize(
    "options",
    [
        {"rate": 1e-2},
        {"optimiser": "ascent", "rate": 1e-3},
        {"rate": 1e-2, "tau": 0.3, "cohort_scale": "mean"},
        {"rate": 1e-2, "bandwidth": 2.0, "particles": 3},
    ],
    ids=str,
)
def test_the_servers_half_is_the_same(options: dict[str, Any]) -> None:
    particles, score = randn(1, 3, 5), randn(2, 4, 3, 5)
    start = Server(particles, adam_init(particles))
    moved = [method(kind, **options).server(start, update(kind, score), 7) for kind in (PacPFL, PacPFLBNN)]
    assert_close(moved[0], moved[1], 0.0)
    assert (moved[0].particles != particles).all()


@both
def test_reports_say_how_the_particles_do(kind: Any) -> None:
    m, score = method(kind), randn(2, 4, 3, 5)
    server = Server(randn(1, 3, 5), adam_init(randn(1, 3, 5)))
    result = m.report(server, update(kind, score))
    assert {"log_evidence", "score_norm", "spread"} < set(result)
    assert result["score_norm"].item() == pytest.approx(score.sum(0).norm().item())
    assert_close(dict(m.report(server, m.reduce(update(kind, score)))), dict(result), 1e-12)


@both
def test_a_minibatch_does_not_depend_on_padding_and_nor_do_later_draws(kind: Any) -> None:
    m, batch = method(kind, minibatch=4), federation(1)
    alone = batch.select(torch.tensor([1])).trim()  # one row, and nothing to choose from
    for engine in ("philox", "generators"):
        streams = [Noise(3, 1, batch.ids, engine=engine), Noise(3, 1, alone.ids, engine=engine)]
        rows = [m.drawn_rows(one, noise) for one, noise in zip((batch, alone), streams, strict=True)]
        assert rows[0].mask.sum(1).tolist() == [4, 1, 4, 4, 4] and rows[1] is alone
        later = [noise.normal(torch.empty(len(noise.ids), 2)) for noise in streams]
        assert torch.equal(later[0][1], later[1][0])


@both
def test_all_rows_are_taken_unless_a_minibatch_is_asked_for(kind: Any) -> None:
    batch: ClientBatch = federation(1)
    assert method(kind).drawn_rows(batch, Noise(3, 1, batch.ids)) is batch


def test_beta_beside_tau_counts_where_it_tempers_alone() -> None:
    with pytest.raises(StudyError, match="lam and beta would not count"):
        method(PacPFL, beta=3.0)
    assert method(PacPFLBNN, beta=3.0).beta == 3.0
    for kind in (PacPFL, PacPFLBNN):
        with pytest.raises(StudyError, match="lam and beta would not count"):
            method(kind, lam=3.0)
        with pytest.raises(StudyError, match="lam and beta are needed"):
            method(kind, tau=None, lam=3.0)
        assert method(kind, tau=None, lam=3.0, beta=2.0).tau is None


@pytest.mark.parametrize("options", [{}, {"minibatch": 3}, {"weighting": "equal"}], ids=str)
@both
def test_particles_may_differ_between_clients(kind: Any, options: dict[str, Any]) -> None:
    m, batch = method(kind, **options), federation(1)
    if kind is PacPFLBNN:
        m = replace(m, importance_draws=5, draws=2, local=LocalInference(steps=2))  # type: ignore[call-arg]
    assert m.personal_messages
    particles = randn(1, batch.clients, 2, m.model.dim * (2 if kind is PacPFLBNN else 1))
    result, _ = m.client(Message(particles), Nothing(), batch, Noise(3, 1, batch.ids))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        predicted = m.personalise(Message(particles), Nothing(), batch, Noise(3, 0, batch.ids)).predict(batch.x)
        for k in range(batch.clients):
            one = batch.select(torch.tensor([k])).trim()
            alone, _ = m.client(Message(particles[k]), Nothing(), one, Noise(3, 1, one.ids))
            assert_close(alone, tensors.select(result, torch.tensor([k])))
            posterior = m.personalise(Message(particles[k]), Nothing(), one, Noise(3, 0, one.ids))
            assert_close(posterior.predict(batch.x[k : k + 1]).mean[0], predicted.mean[k])
