"""Gaussians with any covariance: torch's divergence and draws, the mean field inside, and the exact posterior."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence

from pacbayes_fl.errors import StudyError
from pacbayes_fl.models.likelihoods import Gaussian
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.weights.full_rank import MOST, FullRank, FullRankNormal
from pacbayes_fl.posteriors.weights.mean_field import MeanField, initial_mean_field
from tests.posteriors.weights.linear import K, best_fit, points, problem

D = 4


def some(seed: int, *leading: int, dtype: torch.dtype = torch.float64) -> FullRankNormal:
    generator = torch.Generator().manual_seed(seed)
    shapes = (D,), (D,), (D * (D - 1) // 2,)
    leaves = [torch.randn(*leading, *shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]
    return FullRankNormal(*leaves)


def torch_s(q: FullRankNormal) -> MultivariateNormal:
    return MultivariateNormal(q.loc, scale_tril=q.factor)


def test_the_factor_is_lower_triangular_row_by_row() -> None:
    leaves = [torch.arange(1.0, n + 1) for n in (3, 3, 3)]
    factor = FullRankNormal(*leaves).factor
    assert factor.tril(-1).tolist() == [[0, 0, 0], [1, 0, 0], [2, 3, 0]]
    assert torch.equal(factor.diagonal(), torch.nn.functional.softplus(leaves[1])) and not factor.triu(1).any()


@pytest.mark.parametrize("leading", [(K,), ()], ids=["a prior each", "one prior"])
def test_the_divergence_is_torch_s(leading: tuple[int, ...]) -> None:
    q, w = some(0, K), some(1, *leading)
    result = q.kl(w)
    assert result.dtype == torch.float64 and result.shape == (K,)
    torch.testing.assert_close(result, kl_divergence(torch_s(q), torch_s(w)), rtol=1e-12, atol=0)
    torch.testing.assert_close(q.kl(q), torch.zeros(K, dtype=torch.float64), rtol=0, atol=1e-12)


def test_the_divergence_of_float32_parameters_is_computed_in_float64() -> None:
    q, w = some(0, K, dtype=torch.float32), some(1, K, dtype=torch.float32)
    doubled = [FullRankNormal(*(leaf.double() for leaf in one)) for one in (q, w)]
    assert q.kl(w).dtype == torch.float64 and torch.equal(q.kl(w), doubled[0].kl(doubled[1]))


def test_draws_have_its_mean_and_covariance() -> None:
    q = some(0, 1)
    many = FullRankNormal(*(leaf.expand(40_000, *leaf.shape[1:]) for leaf in q))
    theta = many.weights(many.draw(Noise(0, 1, range(40_000))))
    torch.testing.assert_close(theta.mean(0), q.loc[0], rtol=0.03, atol=0.03)
    torch.testing.assert_close(theta.T.cov(), torch_s(q).covariance_matrix[0], rtol=0.05, atol=0.05)
    assert torch.equal(q.mean(), q.loc)


def test_without_correlations_it_is_the_mean_field() -> None:
    (q, w), noise = (some(0, K), some(1, K)), Noise(0, 1, range(K))
    alone = [one._replace(lower=torch.zeros_like(one.lower)) for one in (q, w)]
    fields = [MeanField(one.loc, one.rho) for one in (q, w)]
    torch.testing.assert_close(alone[0].kl(alone[1]), fields[0].kl(fields[1]), rtol=1e-12, atol=0)
    draw = alone[0].draw(noise.copy())
    assert torch.equal(draw, fields[0].draw(noise.copy()))
    torch.testing.assert_close(alone[0].weights(draw), fields[0].weights(draw), rtol=1e-13, atol=1e-15)


def test_the_mean_of_its_parameters_is_one_again() -> None:
    """What the server averages: the diagonal stays positive."""
    mean = FullRankNormal(*(leaf.mean(0) for leaf in some(0, 50)))
    assert (mean.factor.diagonal() > 0).all() and torch_s(mean).covariance_matrix.isfinite().all()


def test_the_diagonal_is_kept_where_softplus_is_exact() -> None:
    q = some(0, K)
    q.rho[0] = 1000.0
    assert q.bounded() is q and q.rho.max() == 40.0


def test_it_begins_as_the_mean_field_does() -> None:
    model = BayesianMLP((2, 3, 1), Gaussian(), torch.float64)
    result = FullRank().initial(model, 0.1, -2.5, torch.Generator().manual_seed(3))
    field = initial_mean_field(model, 0.1, -2.5, torch.Generator().manual_seed(3))
    assert torch.equal(result.loc, field.loc) and torch.equal(result.rho, field.rho) and not result.lower.any()
    assert len(result.lower) == FullRank().held(model.dim) == 13 * 12 // 2


def test_more_weights_than_a_device_holds_are_refused() -> None:
    large = BayesianMLP((784, 100, 10), Gaussian())
    with pytest.raises(StudyError, match=r"79510 weights has 3.2e\+09 numbers per client; at most 8192") as caught:
        FullRank().check(large)
    assert "LowRank" in str(caught.value) and MOST == 8192


def test_a_long_fit_of_a_linear_model_is_the_exact_posterior() -> None:
    """Where the best mean field is not: its variances are those with all other weights known."""
    model, batch, prior, exact = problem()
    lower = torch.zeros(K, 3, dtype=torch.float64)
    full = best_fit(model, batch, FullRankNormal(prior.loc, prior.rho, lower), points(3))
    torch.testing.assert_close(full.loc, exact.loc, rtol=1e-5, atol=1e-6)
    covariance: Tensor = full.factor @ full.factor.mT
    torch.testing.assert_close(covariance, exact.covariance_matrix, rtol=1e-5, atol=1e-6)
    field = best_fit(model, batch, prior, points(3))
    torch.testing.assert_close(field.loc, exact.loc, rtol=1e-5, atol=1e-6)
    precision = exact.precision_matrix
    torch.testing.assert_close(field.scale.square(), 1 / precision.diagonal(dim1=1, dim2=2), rtol=1e-5, atol=1e-6)
    gap = kl_divergence(MultivariateNormal(field.loc, torch.diag_embed(field.scale.square())), exact)
    assert (gap > 0.1).all()
    assert (kl_divergence(MultivariateNormal(full.loc, scale_tril=full.factor), exact) < 1e-8).all()
