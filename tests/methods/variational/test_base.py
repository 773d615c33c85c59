"""What the variational methods share: refused hyper-parameters, and clients that never trained."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import StudyError
from pacbayes_fl.inference.svi import LocalInference
from pacbayes_fl.methods.variational.base import PriorTracking, Variational, towards
from pacbayes_fl.methods.variational.pfedbayes import PFedBayes
from pacbayes_fl.models.likelihoods import Gaussian
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.weights.mean_field import MeanField
from pacbayes_fl.server.moments import Moments

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
    assert isinstance(method, Variational)
    generator = torch.Generator().manual_seed(3)
    rows = [(torch.randn(5, 2, generator=generator).double(), torch.randn(5, generator=generator).double())] * 3
    batch = ClientBatch.pad(rows)
    q = MeanField(torch.randn(3, MODEL.dim, generator=generator).double(), torch.full((3, MODEL.dim), -2.0).double())
    w = MeanField(torch.zeros_like(q.loc), q.rho)
    fresh = torch.tensor([False, True, False])
    noise = Noise(1, 0, batch.ids)
    got = method.fit_new_clients(q, fresh, w, batch, noise)
    assert torch.equal(got.loc[~fresh], q.loc[~fresh]) and torch.equal(got.rho[~fresh], q.rho[~fresh])
    moved = got.loc[1] - w.loc[1]
    assert (moved != 0).all() and (moved.abs() < 0.01).all()  # four Adam steps of 1e-3 from w, not from q
    assert method.fit_new_clients(q, torch.zeros(3, dtype=torch.bool), w, batch, noise) is q
    free = torch.arange(MODEL.dim) >= 9
    bound = method.fit_new_clients(q, torch.ones(3, dtype=torch.bool), w, batch, noise, free)
    assert torch.equal(bound.loc[:, :9], w.loc[:, :9]) and (bound.loc[:, 9:] != w.loc[:, 9:]).all()


@pytest.mark.parametrize("beta", [1.0, 0.5])
def test_weights_without_uncertainty_go_towards_a_mean_alone(beta: float) -> None:
    old = MeanField(torch.zeros(2, dtype=torch.float64), torch.full((2,), -1.0, dtype=torch.float64))
    result = Moments(torch.tensor([1.0, 2.0]).double(), torch.tensor([4.0, 9.0]).double())
    new = towards(old, result, beta, torch.tensor([True, False]))
    torch.testing.assert_close(new.loc, beta * result.mean)
    variance = (1 - beta) * float(old.scale[0]) ** 2 + beta * 4.0 + beta * (1 - beta) * 1.0  # about the new mean
    assert float(new.scale[0]) == pytest.approx(variance**0.5, rel=1e-12)
    assert float(new.rho[1]) == -1.0
