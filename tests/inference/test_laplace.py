"""Laplace approximations against their formulas; `tests/methods/test_fedsi.py` holds them to dense matrices."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import AssumptionError
from pacbayes_fl.inference import curvature, subnetwork
from pacbayes_fl.inference.laplace import (
    add_rows,
    candidates,
    choose,
    diagonal,
    infer,
    only,
    reached,
    shrinking_kl,
)
from pacbayes_fl.inference.subnetwork import LargestCurvature
from pacbayes_fl.models.likelihoods import Categorical
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.point import PointMass
from pacbayes_fl.posteriors.weights.laplace import DiagonalGaussian, SubnetworkGaussian

MODEL = BayesianMLP((2, 3, 2), Categorical(2), dtype=torch.float64)


def float64(values: list[list[float]]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_diagonal_variances_and_their_subnetwork() -> None:
    ggn, prior = float64([[0.0, 1.0, 3.0]]), float64([[0.5, 1.0, 2.0]])
    assert diagonal(ggn, prior).tolist() == [[0.5, 0.5, pytest.approx(1 / 3.5)]]
    assert only(prior, torch.tensor([[2, 0]])).tolist() == [[0.5, 0.0, 2.0]]


def test_a_variance_that_does_not_change_adds_exactly_nothing() -> None:
    prior = float64([[0.5, 0.0, 2.0]])
    assert shrinking_kl(prior, prior).item() == 0.0
    result = shrinking_kl(float64([[0.25, 0.0, 2.0]]), prior)
    assert result.item() == pytest.approx(0.5 * (0.5 - 1 + math.log(2)), rel=1e-14)
    assert shrinking_kl(float64([[0.25, 0.0, 2.0]]), float64([[0.5, torch.nan, 2.0]])).isnan().all()


def test_a_full_covariance_has_larger_variances_than_its_diagonal_approximation() -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 4, 2, generator=generator, dtype=torch.float64)
    batch = ClientBatch.pad([(each, torch.tensor([0, 1, 1, 0])) for each in x], classes=2)
    theta = torch.randn(2, MODEL.dim, generator=generator, dtype=torch.float64)
    prior = torch.full_like(theta, 0.5)
    ggn, index = choose(LargestCurvature(0.5), MODEL, theta, batch, prior, 9, Noise(1, 1, batch.ids))
    assert torch.equal(ggn, curvature.diagonal_ggn(MODEL, theta, batch)) and index.max() < 9
    full = infer(MODEL, theta, batch, index, ggn, prior, "full")
    assert isinstance(full, SubnetworkGaussian)
    held = torch.zeros_like(theta).scatter(1, full.chosen, full.covariance().diagonal(dim1=1, dim2=2)) + full.variance
    some = subnetwork.curved(index, ggn)
    alone = curvature.marginal_variance(MODEL, theta, batch, some, prior)
    torch.testing.assert_close(held.gather(1, some), alone)
    factorised = infer(MODEL, theta, batch, index, ggn, prior, "diagonal")
    assert isinstance(factorised, DiagonalGaussian)
    assert torch.equal(factorised.variance, only(diagonal(ggn, prior), index))
    assert (held >= factorised.variance * (1 - 1e-12)).all() and (held > factorised.variance + 1e-4).any()


def test_candidates_are_split_into_representation_and_decision_layers() -> None:
    ggn = prior = torch.ones(1, MODEL.dim, dtype=torch.float64)
    result = candidates(MODEL, ggn, ggn, prior, 9)
    assert result.representation.tolist() == [True] * 9 + [False] * (MODEL.dim - 9)
    assert torch.equal(result.decision, ~result.representation) and torch.equal(result.variance, 0.5 * prior)


def test_weights_apart_are_reached_by_rows_that_depend_on_them() -> None:
    nothing = torch.zeros(1, 0, dtype=torch.int64)
    gaussian = SubnetworkGaussian(
        float64([[0, 0, 0, 0]]), nothing, torch.zeros(1, 0, 0, dtype=torch.float64), float64([[0, 1, 0, 1]])
    )
    assert reached(gaussian, float64([[1, 0, 1, 2]])).tolist() == [[3]]


def test_more_rows_are_added_to_gaussians_alone() -> None:
    batch = ClientBatch.pad([(torch.zeros(1, 2, dtype=torch.float64), torch.tensor([0]))], classes=2)
    with pytest.raises(AssumptionError, match="one that `personalise` gave, got PointMass"):
        add_rows(MODEL, PointMass(torch.zeros(1, MODEL.dim)), batch)  # type: ignore[arg-type]
