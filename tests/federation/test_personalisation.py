"""After the rounds: posteriors of clients that took part, of new ones, and of the server."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from pacbayes_fl.errors import DataError, ShapeError, StudyError
from pacbayes_fl.federation import engine, federation_state, personalisation
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.methods import METHODS
from pacbayes_fl.noise import Engine, Noise
from pacbayes_fl.posteriors.point import LinearPoint
from pacbayes_fl.posteriors.predictive import NormalMixture
from tests.federating import bits, pac_pfl
from tests.laws.cases import Toy, assert_close, deep, federation, from_recipe, strangers


@pytest.mark.parametrize("method", [Toy(3), pac_pfl(3)], ids=["toy", "pac-pfl"])
def test_personalise_gives_every_client_its_own_posterior(method: Any) -> None:
    batch, plan = federation(3), FederationPlan(rounds=2, chunk=1)
    state = engine.run_rounds(method, batch, plan)
    parts = list(personalisation.personalise(method, state, batch, plan))
    index = torch.cat([part for part, _ in parts])
    mean = torch.cat([posterior.predict(batch.x[part]).mean for part, posterior in parts])
    whole = method.personalise(method.broadcast(state.server), state.clients, batch, Noise(0, 0, batch.ids))
    assert_close(mean, whole.predict(batch.x).mean[index], 1e-9)


def test_joining_compares_the_columns_and_names_the_client() -> None:
    batch, plan = federation(3), FederationPlan(rounds=1)
    state = engine.run_rounds(pac_pfl(3), batch, plan)
    with pytest.raises(DataError, match=r"client 'stranger': x has \[1\] features, the model was trained on \[3\]"):
        personalisation.join(pac_pfl(3), state.server, strangers(1), 0, like=batch)
    labels = replace(strangers(3), y=strangers(3).y.long())
    with pytest.raises(ValueError, match=r"client 'stranger': y must be torch.float64, got torch.int64"):
        personalisation.join(pac_pfl(3), state.server, labels, 0, like=batch)


def test_the_state_of_a_federation_is_not_taken_for_its_server_s() -> None:
    state = engine.run_rounds(Toy(3), federation(3), FederationPlan(rounds=1))
    with pytest.raises(StudyError, match=r"got the state of the federation \(state\.server\)"):
        personalisation.join(Toy(3), state, strangers(3), 0)


@pytest.mark.parametrize("name", ["pac-pfl", "pfedgp", "pfedbayes", "fedavg", "fedsi", "cfedbayes", "pac-pfl-bnn"])
def test_inputs_of_another_shape_are_refused(name: str) -> None:
    """A kernel takes any number of features, and would say nothing."""
    method, batch, plan = from_recipe(METHODS[name], 3), federation(3), FederationPlan(rounds=1)
    with pytest.raises(ShapeError, match="x must "):
        engine.run_rounds(method, federation(2), plan)
    server = engine.run_rounds(method, batch, plan).server
    with pytest.raises(ShapeError, match="x must "):
        personalisation.join(method, server, strangers(2), 0).predict(strangers(2).x)
    posterior, x = personalisation.join(method, server, batch, 0), batch.x
    assert len(posterior.predict(x).log_prob(batch.y)) == len(x)
    for wrong in (x[0], x[:2], x[..., :2]):
        with pytest.raises(ShapeError, match=r"x must .*, got"):
            posterior.predict(wrong)


def test_joining_without_rows_predicts_the_prior() -> None:
    method, batch = pac_pfl(3), strangers(3)
    server = engine.run_rounds(method, federation(3), FederationPlan(rounds=2)).server
    predictive = personalisation.join(method, server, batch, 0).predict(batch.x[[0, 0]])
    assert isinstance(predictive, NormalMixture)
    theta, x = server.particles.unsqueeze(0), batch.x[:1]
    prior, noise = deep(3).prior(theta, x)
    assert_close(predictive.weights[1], torch.full((3,), 1 / 3, dtype=torch.float64), 1e-14)
    assert_close(predictive.means[1:], prior.mean, 1e-12)
    assert_close(predictive.variances[1:], prior.variance + noise, 1e-12)
    assert not torch.allclose(predictive.means[0], predictive.means[1])


def test_joining_changes_nothing_and_draws_by_seed() -> None:
    new, server = strangers(1), engine.run_rounds(Toy(1), federation(1), FederationPlan(rounds=1)).server
    kept = bits(server)

    def bias(seed: int, streams: Engine = "philox") -> torch.Tensor:
        posterior = personalisation.join(Toy(1), server, new, seed, engine=streams)
        assert isinstance(posterior, LinearPoint)
        return posterior.bias

    assert torch.equal(bias(4), bias(4))
    assert not torch.equal(bias(4), bias(5))
    assert not torch.equal(bias(4), bias(4, "generators"))
    assert bits(server) == kept


@pytest.mark.parametrize("chunk", [1, 2**20])
def test_the_global_model_is_given_to_every_client(chunk: int) -> None:
    batch, plan = federation(1), FederationPlan(rounds=2, chunk=chunk)
    method: Any = from_recipe(METHODS["fedavg"], 1, {"steps": 2})
    state = engine.run_rounds(method, batch, plan)
    result = list(personalisation.global_models(method, state, batch, plan))
    assert sorted(k for index, _ in result for k in index.tolist()) == list(range(batch.clients))
    for index, posterior in result:
        assert torch.equal(posterior.family.loc, state.server.theta.expand(len(index), -1))  # type: ignore[attr-defined]
    assert len(result) > 1 if chunk == 1 else len(result) <= batch.clients
    assert list(personalisation.global_models(Toy(1), federation_state.start(Toy(1), batch, plan), batch, plan)) == []
