"""Gaussians of low rank: torch's divergence and draws, the mean field inside, and the exact posterior."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.distributions import LowRankMultivariateNormal, MultivariateNormal, kl_divergence

from pacbayes_fl.errors import StudyError
from pacbayes_fl.models.likelihoods import Gaussian
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.weights.low_rank import SPREAD, LowRank, LowRankDraw, LowRankNormal
from pacbayes_fl.posteriors.weights.mean_field import MeanField, initial_mean_field
from tests.posteriors.weights.linear import K, best_fit, points, problem

D, R = 5, 2


def some(seed: int, *leading: int, dtype: torch.dtype = torch.float64, rank: int = R) -> LowRankNormal:
    generator = torch.Generator().manual_seed(seed)
    leaves = [
        torch.randn(*leading, *shape, generator=generator, dtype=torch.float64) for shape in ((D,), (D,), (D, rank))
    ]
    return LowRankNormal(*(leaf.to(dtype) for leaf in leaves))


def torch_s(q: LowRankNormal) -> LowRankMultivariateNormal:
    return LowRankMultivariateNormal(q.loc, q.factor, q.scale.square())


def covariance(q: LowRankNormal) -> Tensor:
    return torch.diag_embed(q.scale.square()) + q.factor @ q.factor.mT


@pytest.mark.parametrize("leading", [(K,), ()], ids=["a prior each", "one prior"])
@pytest.mark.parametrize("rank", [1, 2, 5])
def test_the_divergence_is_torch_s_and_that_of_dense_matrices(leading: tuple[int, ...], rank: int) -> None:
    q, w = some(0, K, rank=rank), some(1, *leading, rank=rank)
    result = q.kl(w)
    assert result.dtype == torch.float64 and result.shape == (K,)
    torch.testing.assert_close(result, kl_divergence(torch_s(q), torch_s(w)), rtol=1e-9, atol=1e-9)
    dense = [MultivariateNormal(one.loc, covariance(one)) for one in (q, w)]
    torch.testing.assert_close(result, kl_divergence(*dense), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(q.kl(q), torch.zeros(K, dtype=torch.float64), rtol=0, atol=1e-12)


def test_the_divergence_of_float32_parameters_is_computed_in_float64() -> None:
    q, w = some(0, K, dtype=torch.float32), some(1, K, dtype=torch.float32)
    doubled = [LowRankNormal(*(leaf.double() for leaf in one)) for one in (q, w)]
    assert q.kl(w).dtype == torch.float64 and torch.equal(q.kl(w), doubled[0].kl(doubled[1]))


def test_draws_have_its_mean_and_covariance() -> None:
    q = some(0, 1)
    many = LowRankNormal(*(leaf.expand(40_000, *leaf.shape[1:]) for leaf in q))
    theta = many.weights(many.draw(Noise(0, 1, range(40_000))))
    torch.testing.assert_close(theta.mean(0), q.loc[0], rtol=0.03, atol=0.03)
    torch.testing.assert_close(theta.T.cov(), covariance(q)[0], rtol=0.05, atol=0.06)
    assert torch.equal(q.mean(), q.loc)


def test_without_directions_it_is_the_mean_field() -> None:
    alone = [one._replace(factor=torch.zeros_like(one.factor)) for one in (some(0, K), some(1, K))]
    fields = [MeanField(one.loc, one.rho) for one in alone]
    torch.testing.assert_close(alone[0].kl(alone[1]), fields[0].kl(fields[1]), rtol=1e-12, atol=0)
    draw = alone[0].draw(Noise(0, 1, range(K)))
    torch.testing.assert_close(alone[0].weights(draw), fields[0].weights(draw.eps), rtol=1e-13, atol=1e-15)


def test_the_diagonal_is_kept_where_softplus_is_exact() -> None:
    q = some(0, K)
    q.rho[0] = 1000.0
    assert q.bounded() is q and q.rho.max() == 40.0


def test_it_begins_as_the_mean_field_does_with_weak_directions() -> None:
    model = BayesianMLP((2, 3, 1), Gaussian(), torch.float64)
    result = LowRank(4).initial(model, 0.1, -2.5, torch.Generator().manual_seed(3))
    field = initial_mean_field(model, 0.1, -2.5, torch.Generator().manual_seed(3))
    assert torch.equal(result.loc, field.loc) and torch.equal(result.rho, field.rho)
    assert result.factor.shape == (model.dim, 4) and result.factor.numel() == LowRank(4).held(model.dim)
    assert 0.5 * SPREAD < float((result.factor / field.scale[0]).std()) < 1.5 * SPREAD


def test_ranks_out_of_range_are_refused() -> None:
    with pytest.raises(StudyError, match="rank must be at least 1, got 0"):
        LowRank(0)
    with pytest.raises(StudyError, match="rank must be at most the 13 weights of the model, got 14"):
        LowRank(14).check(BayesianMLP((2, 3, 1), Gaussian()))


@pytest.mark.slow
def test_a_long_fit_of_a_linear_model_is_the_exact_posterior() -> None:
    """With as many directions as weights; with one it is nearer than the mean field."""
    model, batch, prior, exact = problem()
    gaps = []
    for rank in (1, 3):
        factor = 0.1 * torch.randn(K, 3, rank, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        draws = [LowRankDraw(point[:, :3], point[:, 3:]) for point in points(3 + rank)]
        start = LowRankNormal(prior.loc, prior.rho, torch.zeros_like(factor))
        q = best_fit(model, batch, start, draws, LowRankNormal(prior.loc, prior.rho, factor))
        gaps.append(kl_divergence(MultivariateNormal(q.loc, covariance(q)), exact))
    field = best_fit(model, batch, prior, points(3))
    apart = kl_divergence(MultivariateNormal(field.loc, torch.diag_embed(field.scale.square())), exact)
    assert (gaps[1] < 1e-6).all() and (gaps[0] < 0.9 * apart).all() and (apart > 0.1).all()
