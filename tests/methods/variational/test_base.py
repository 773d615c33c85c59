"""What the variational methods share: refused hyper-parameters, clients that never trained, and the choice of zeta."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pacbayes_fl.bounds import Premises, SaturatingSquare, seeger
from pacbayes_fl.bounds.risk import gibbs_risk
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import StudyError
from pacbayes_fl.inference.svi import LocalInference
from pacbayes_fl.methods import METHODS
from pacbayes_fl.methods.variational.base import ZETAS, PersonalPosteriors, PriorTracking, towards
from pacbayes_fl.methods.variational.pfedbayes import PFedBayes, Server, start_clients
from pacbayes_fl.models.likelihoods import Gaussian
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.weights.mean_field import MeanField
from pacbayes_fl.posteriors.weights.posterior import WeightPosterior
from pacbayes_fl.server.moments import Moments
from pacbayes_fl.study.config.choices import NOISE
from pacbayes_fl.study.data import load
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.prepare import prepare
from pacbayes_fl.study.search.held_out import choose
from tests.tiny import write_csv

MODEL = BayesianMLP((2, 3, 1), Gaussian(), torch.float64)


@pytest.mark.parametrize("wrong", [{"init_std": 0.0}, {"draws": 0}, {"join_passes": -1}])
def test_values_out_of_range_are_refused_by_name(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(StudyError, match=f"{name} must be (positive and finite|at least 1), got"):
        PFedBayes(MODEL, **wrong)


def test_a_rate_or_beta_of_zero_is_refused() -> None:
    with pytest.raises(StudyError, match="rate must be positive and finite, got 0"):
        PriorTracking(rate=0.0)
    with pytest.raises(StudyError, match="beta must be positive and finite, got -1"):
        PFedBayes(MODEL, beta=-1.0)


def test_only_newcomers_are_fitted() -> None:
    method = PFedBayes(MODEL, LocalInference(steps=2, minibatch=3), join_passes=2)
    assert isinstance(method, PersonalPosteriors)
    generator = torch.Generator().manual_seed(3)
    rows = [(torch.randn(5, 2, generator=generator).double(), torch.randn(5, generator=generator).double())] * 3
    batch = ClientBatch.pad(rows)
    q = MeanField(torch.randn(3, MODEL.dim, generator=generator).double(), torch.full((3, MODEL.dim), -2.0).double())
    w = MeanField(torch.zeros_like(q.loc), q.rho)
    fresh = torch.tensor([False, True, False])
    noise, server = Noise(1, 0, batch.ids), Server(MeanField(w.loc[0], w.rho[0]))
    start = start_clients(q, 3, "tracked")
    state = start._replace(adam_q=start.adam_q._replace(steps=(~fresh).long()))
    got: Any = method.personalise(server, state, batch, noise).family
    assert torch.equal(got.loc[~fresh], q.loc[~fresh]) and torch.equal(got.rho[~fresh], q.rho[~fresh])
    moved = got.loc[1] - w.loc[1]
    assert (moved != 0).all() and (moved.abs() < 0.01).all()  # four Adam steps of 1e-3 from w, not from q
    trained = state._replace(adam_q=state.adam_q._replace(steps=torch.ones(3)))
    assert method.personalise(server, trained, batch, noise).family is state.q
    free = torch.arange(MODEL.dim) >= 9
    bound = method.fit_against(method.refining, w, batch, noise, method.draw, free)
    assert torch.equal(bound.loc[:, :9], w.loc[:, :9]) and (bound.loc[:, 9:] != w.loc[:, 9:]).all()


FAMILY = ("pfedbayes", "sfedbayes", "cfedbayes", "bpfed")


@pytest.mark.parametrize("name", FAMILY)
def test_the_weight_of_the_divergence_is_open_on_a_file_of_ones_own_alone(name: str) -> None:
    own: dict[str, Any] = {"data": {"source": "mine.csv"}, "method": {"name": name}}
    asks, noise = Study.from_table(own).held_out
    options: Any = Study.from_table({"method": {"name": name}}).method.options
    assert asks.key == "zeta" and asks.candidates(options)[0] == options.zeta == METHODS[name].make(MODEL).local.zeta
    assert noise is NOISE and Study.from_table(own, sets=["method.zeta=0.5"]).held_out == (NOISE,)
    fixed: tuple[dict[str, Any], ...] = (
        {"privacy": {"epsilon": 2.0}},
        {"report": {"certify": {"scheme": "folds"}}},
        {"data": {"source": "polynomial"}},
        {"method": {"name": name, "preset": "paper"}},
    )
    assert all(Study.from_table({**own, **more}).method.options.zeta == options.zeta for more in fixed)


@pytest.mark.parametrize("name", ["pfedbayes", "sfedbayes", "cfedbayes", "bpfed"])
def test_how_long_to_learn_and_how_sure_to_be_of_classes_are_open_on_a_table_of_ones_own_labels(name: str) -> None:
    own: dict[str, Any] = {"data": {"source": "mine.csv", "task": "classification"}, "method": {"name": name}}
    keys = ["zeta", "federation.rounds", "model.temperature"]
    assert [one.key for one in Study.from_table(own).held_out] == keys
    for at, given in ((1, "federation.rounds=30"), (2, "model.temperature=1")):
        assert [one.key for one in Study.from_table(own, sets=[given]).held_out] == keys[:at] + keys[at + 1 :]
    fixed: tuple[dict[str, Any], ...] = (
        {"data": {"source": "mine.csv"}},
        {"privacy": {"epsilon": 2.0}},
        {"report": {"certify": {"scheme": "folds"}}},
        {"method": {"name": name, "preset": "paper"}},
    )
    models: list[Any] = [Study.from_table({**own, **more}).model for more in fixed]
    assert [model.temperature for model in models] == [1.0] * len(fixed)


@pytest.fixture(scope="module")
def labels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three clients whose labels depend on a feature, the same way for all."""
    random = np.random.default_rng(5)
    table = [
        {"client": f"c{k}", "x": (x := random.normal()), "z": random.normal(), "y": int(x > 0), "split": split}
        for k in range(3)
        for split in ["train"] * 10 + ["test"] * 4
    ]
    return write_csv(tmp_path_factory.mktemp("own") / "labels.csv", table)


@pytest.mark.slow
def test_held_out_rows_refuse_a_divergence_that_keeps_posteriors_at_their_prior(labels: Path) -> None:
    sets = [
        "method.name=pfedbayes",
        "method.rate=0.1",
        "method.steps=10",
        "method.prior_rate=1e-9",
        "method.init_rho=0.0",
    ]
    table = {"data": {"source": str(labels), "task": "classification"}}
    study = Study.from_table(table, sets=[*sets, "federation.rounds=2", "model.widths=[4]"])
    chosen, notes = choose(study, load(study))
    scores = notes["zeta"]["scores"]
    assert chosen.held_out == () and chosen.method.options.zeta == notes["zeta"]["chosen"] < 10.0
    assert scores[str(chosen.method.options.zeta)] == max(scores.values()) > scores["10.0"] + 0.02


def test_the_number_of_clusters_is_chosen_with_the_weight_that_was(labels: Path) -> None:
    sets = ["method.name=cfedbayes", "method.clusters=held-out", "method.max_clusters=2", "method.steps=1"]
    table = {"data": {"source": str(labels), "task": "classification"}}
    study = Study.from_table(table, sets=[*sets, "federation.rounds=1", "model.widths=[2]"])
    chosen, notes = choose(study, load(study))
    assert list(notes) == ["zeta", "clusters", "model.temperature"] and chosen.held_out == ()
    method: Any = prepare(chosen, load(chosen))[0]
    assert getattr(method, "inner", method).local.zeta == notes["zeta"]["chosen"]


@pytest.mark.parametrize("beta", [1.0, 0.5])
def test_weights_without_uncertainty_go_towards_a_mean_alone(beta: float) -> None:
    old = MeanField(torch.zeros(2, dtype=torch.float64), torch.full((2,), -1.0, dtype=torch.float64))
    result = Moments(torch.tensor([1.0, 2.0]).double(), torch.tensor([4.0, 9.0]).double())
    new = towards(old, result, beta, torch.tensor([True, False]))
    torch.testing.assert_close(new.loc, beta * result.mean)
    variance = (1 - beta) * float(old.scale[0]) ** 2 + beta * 4.0 + beta * (1 - beta) * 1.0  # about the new mean
    assert float(new.scale[0]) == pytest.approx(variance**0.5, rel=1e-12)
    assert float(new.rho[1]) == -1.0


@pytest.mark.slow
def test_zeta_by_the_certificate_is_each_client_s_own_of_the_grid() -> None:
    """The posterior of every client is that of one of the weights, and no other has a lower bound."""
    generator = torch.Generator().manual_seed(1)
    x = [torch.randn(m, 2, generator=generator).double() for m in (40, 4, 40)]
    batch = ClientBatch.pad([(each, torch.sign(each[:, 0]) * (2.0 if k else 0.01)) for k, each in enumerate(x)])
    w = MeanField(torch.zeros(3, MODEL.dim).double() + 0.1, torch.full((3, MODEL.dim), -1.0).double())
    noise, steps = Noise(1, 0, batch.ids), {"steps": 20, "minibatch": 20, "rate": 0.02}
    chosen = PFedBayes(MODEL, LocalInference(zeta="certificate", **steps), join_passes=3)
    got, names, values = chosen.refit(w, batch, noise), [], []
    each = [replace(chosen, local=replace(chosen.local, zeta=zeta)).refit(w, batch, noise.copy()) for zeta in ZETAS]
    for k in range(3):
        names.append(
            [torch.equal(got.loc[k], q.loc[k]) and torch.equal(got.rho[k], q.rho[k]) for q in each].index(True)
        )
    loss, streams = SaturatingSquare(), Noise(7, 7, batch.ids)
    for q in each:
        risk = gibbs_risk(WeightPosterior(MODEL, q, 1, streams, batch), batch, loss, 400, streams.copy()).risk
        values.append(seeger(risk, q.kl(w), batch.size, 0.05, Premises(loss=loss)).value)
    best = torch.stack(values)
    assert (best.gather(0, torch.tensor([names])) <= best.amin(0) + 0.02).all() and len(set(names)) > 1
    assert chosen.local.weight == 1.0
    with pytest.raises(StudyError, match="zeta must be one of 'certificate', got 'bound'"):
        LocalInference(zeta="bound")  # type: ignore[arg-type]
