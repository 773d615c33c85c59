"""The vanilla GP: every client climbs its own log evidence and knows nothing of the others."""

from __future__ import annotations

from dataclasses import replace

import torch

from pacbayes_fl.bounds.divergence import gp_posterior_kl
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.federation import engine, personalisation
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.inference.evidence import particle_scores
from pacbayes_fl.methods.base import Nothing
from pacbayes_fl.methods.baselines.vanilla_gp import VanillaGP
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.functions.gaussian_process import GPPosterior, condition
from pacbayes_fl.posteriors.predictive import NormalMixture
from tests.laws.cases import assert_close, bits, deep, federation, strangers

BATCH = federation(3)
METHOD = VanillaGP(deep(3), init_std=0.4, rate=0.02, steps=40)
SERVER = METHOD.init_server(torch.Generator().manual_seed(1))


def fit(batch: ClientBatch = BATCH, method: VanillaGP = METHOD) -> GPPosterior:
    return method.personalise(SERVER, Nothing(), batch, Noise(0, 0, BATCH.ids))


def test_every_client_raises_its_own_evidence() -> None:
    start = fit(method=replace(METHOD, steps=0))
    assert torch.equal(start.theta, SERVER.theta.expand(4, 1, -1))
    some, more = fit(method=replace(METHOD, steps=10)), fit()
    assert (some.log_evidence > start.log_evidence + 1e-3).all()
    assert (more.log_evidence > some.log_evidence + 1e-3).all()
    assert torch.pdist(more.theta[:, 0]).min() > 1e-2


def test_the_search_is_adam_on_each_client_alone() -> None:
    for k in range(BATCH.clients):
        one = BATCH.select(torch.tensor([k])).trim()
        theta = SERVER.theta.clone().requires_grad_(True)
        adam = torch.optim.Adam([theta], lr=0.02)
        for _ in range(5):
            theta.grad = -particle_scores(deep(3), theta.detach().view(1, -1), one).score[0, 0]
            adam.step()
        mine = fit(method=replace(METHOD, steps=5)).theta[k, 0]
        torch.testing.assert_close(mine, theta.detach(), rtol=0, atol=1e-6)


def test_others_do_not_matter() -> None:
    whole = fit().predict(BATCH.x)
    wild = replace(BATCH, y=torch.cat((BATCH.y[:1], 100.0 * BATCH.y[1:] + 7.0)))
    changed = fit(wild).predict(BATCH.x)
    assert_close(changed.mean[0], whole.mean[0], 1e-9)
    assert not torch.allclose(changed.mean[1], whole.mean[1])


def test_rounds_teach_the_server_nothing() -> None:
    state = engine.run_rounds(METHOD, BATCH, FederationPlan(rounds=2, seed=1))
    assert bits(state.server) == bits(SERVER)


def test_a_client_without_rows_gets_the_starting_prior() -> None:
    new = strangers(3)
    predictive = personalisation.join(METHOD, SERVER, new, 0).predict(new.x[[0, 0]])
    assert isinstance(predictive, NormalMixture)
    theta = SERVER.theta.view(1, 1, -1)
    prior, noise = deep(3).prior(theta, new.x[:1])
    assert_close(predictive.means[1:], prior.mean, 1e-12)
    assert_close(predictive.variances[1:], prior.variance + noise, 1e-12)


def test_more_rows_do_not_move_the_hyper_parameters_of_the_prior() -> None:
    seen, rows = (BATCH.rows(torch.arange(at, 9, 2).expand(4, -1)) for at in (0, 1))
    prior = fit(seen)
    result, kl = METHOD.refine(prior, seen, rows, Noise(0, 0, BATCH.ids))
    assert isinstance(result, GPPosterior) and torch.equal(result.theta, prior.theta)
    assert_close(result.log_evidence, condition(METHOD.model, prior.theta, BATCH).log_evidence, 1e-9)
    assert (kl[rows.mask.any(1)] > 1e-3).all() and (kl[~rows.mask.any(1)] < 1e-9).all()
    none = BATCH.rows(torch.empty(4, 0, dtype=torch.int64))
    start = fit(none)
    assert torch.equal(start.theta, SERVER.theta.expand(4, 1, -1))
    fresh = METHOD.refine(start, none, BATCH, Noise(0, 0, BATCH.ids))
    assert_close(fresh.kl, gp_posterior_kl(condition(METHOD.model, start.theta, BATCH)), 1e-9)
