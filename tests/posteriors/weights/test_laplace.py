"""Gaussian weights of a subnetwork: covariances of draws and of outputs, and distances between Gaussians."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import linalg
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.inference import curvature
from pacbayes_fl.inference.subnetwork import curved
from pacbayes_fl.models.likelihoods import Categorical
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP
from pacbayes_fl.models.weights.jacobian import DenseJacobian, linearise
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.weights.laplace import DiagonalGaussian, SubnetworkGaussian, wasserstein
from tests import laplace
from tests.laplace import float64, randn

D, INDEX, ALONE, KNOWN = 7, [5, 0, 3], [2], [1, 4, 6]
DRAWS = 40_000
# Far from symmetric, so that L^-1 L^-T, the transposed mistake, is another covariance than L^-T L^-1.
FACTOR = float64([[1.0, 0.0, 0.0], [2.0, 0.5, 0.0], [-1.0, 1.5, 2.0]])


def gaussian(clients: int) -> SubnetworkGaussian:
    variance = torch.zeros(clients, D, dtype=torch.float64)
    variance[:, ALONE] = 0.3
    index = torch.tensor(INDEX).expand(clients, -1)
    return SubnetworkGaussian(randn(1, D).expand(clients, -1), index, FACTOR.expand(clients, -1, -1), variance)


def standard_errors(sample: Tensor, exact: Tensor) -> float:
    """Return by how many standard errors the covariance of draws [S, B] around 0 is off at worst."""
    result = sample.T @ sample / len(sample)
    error = ((exact.diagonal().outer(exact.diagonal()) + exact.square()) / len(sample)).sqrt()
    return float(((result - exact).abs() / error).max())


@pytest.mark.parametrize("engine", ["philox", "generators"])
def test_draws_have_the_inverse_precision_as_covariance(engine: str) -> None:
    q = gaussian(DRAWS)
    theta = q.weights(q.draw(Noise(0, 1, range(DRAWS), engine=engine)))  # type: ignore[arg-type]
    moved = theta - q.mean()
    exact = torch.linalg.inv(FACTOR @ FACTOR.T)
    torch.testing.assert_close(q.covariance()[0], exact, rtol=1e-12, atol=1e-13)
    assert standard_errors(moved[:, INDEX], exact) < 4.5
    transposed = torch.linalg.inv(FACTOR) @ torch.linalg.inv(FACTOR).T
    assert standard_errors(moved[:, INDEX], transposed) > 20
    assert standard_errors(moved[:, ALONE], float64([[0.3]])) < 4.5
    across = moved[:, INDEX].T @ moved[:, ALONE] / DRAWS
    assert (across.flatten().abs() < 4.5 * (0.3 * exact.diagonal() / DRAWS).sqrt()).all()
    assert (moved.mean(0)[INDEX].abs() < 4.5 * (exact.diagonal() / DRAWS).sqrt()).all()
    assert torch.equal(theta[:, KNOWN], q.loc[:, KNOWN])  # weights outside never move


def test_independent_weights_have_their_variances() -> None:
    variance = float64([0.5, 0.0, 2.0, 1e-6, 0.0, 0.1, 0.7])
    q = DiagonalGaussian(randn(1, D).expand(DRAWS, -1), variance.expand(DRAWS, -1))
    moved = q.weights(q.draw(Noise(0, 1, range(DRAWS)))) - q.mean()
    some = variance > 0
    assert standard_errors(moved[:, some], torch.diag(variance[some])) < 4.5
    assert not moved[:, ~some].any() and q.held == 0


def test_outputs_spread_as_the_weights_do() -> None:
    """J Sigma J' with the covariance of all weights written out."""
    clients, rows, outputs = 2, 4, 3
    q, entries = gaussian(clients), randn(3, clients, rows, outputs, D)
    whole = torch.diag_embed(q.variance)
    for k in range(clients):
        whole[k][np.ix_(INDEX, INDEX)] = torch.linalg.inv(FACTOR @ FACTOR.T)
    exact = torch.einsum("kncd,kde,knfe->kncf", entries, whole, entries)
    torch.testing.assert_close(q.output_covariance(DenseJacobian(entries)), exact, rtol=1e-12, atol=1e-12)
    independent = DiagonalGaussian(q.loc, randn(4, clients, D).square())
    exact = torch.einsum("kncd,kd,knfd->kncf", entries, independent.variance, entries)
    torch.testing.assert_close(independent.output_covariance(DenseJacobian(entries)), exact, rtol=1e-12, atol=1e-12)
    single = DiagonalGaussian(q.loc.float(), independent.variance.float())
    assert single.output_covariance(DenseJacobian(entries.float())).dtype == torch.float64


def test_weights_without_curvature_may_be_held_by_their_variances_alone() -> None:
    """The whole subnetwork as correlated is the same Gaussian as the curved part of it with variances beside."""
    model = BayesianMLP((6, 8, 3), Categorical(3), torch.float64)
    x = randn(1, 2, 4, 6)
    x[0, :, [1, 4]], x[1, :, 2] = 0.0, 0.0  # inputs that are 0 at every row
    batch = ClientBatch.pad([(rows, torch.tensor([0, 1, 2, 0])) for rows in x], classes=3)
    theta, prior = randn(2, 2, model.dim), 0.1 + randn(3, 2, model.dim).square()
    ggn = curvature.diagonal_ggn(model, theta, batch)
    index = torch.stack([torch.arange(0, 40), torch.arange(5, 45)])
    some = curved(index, ggn)
    assert 8 < some.shape[1] < 40
    whole = curvature.precision(model, theta, batch, index, prior)
    part = curvature.precision(model, theta, batch, some, prior)
    beside = torch.zeros_like(theta).scatter(1, index, prior.gather(1, index)).scatter(1, part.chosen, 0.0)
    large = SubnetworkGaussian(theta, *whole, torch.zeros_like(theta))
    small = SubnetworkGaussian(theta, *part, beside)
    assert (small.held, large.held) == (some.shape[1], 40)
    result = linearise(model, theta, laplace.clients(model, 5, 5, feature=(6,))).jacobian
    torch.testing.assert_close(small.output_covariance(result), large.output_covariance(result), rtol=1e-10, atol=1e-12)

    def variances(q: SubnetworkGaussian) -> Tensor:
        return q.variance.scatter(1, q.chosen, q.covariance().diagonal(dim1=-2, dim2=-1))

    torch.testing.assert_close(variances(small), variances(large), rtol=1e-10, atol=1e-12)
    by_part = curvature.marginal_variance(model, theta, batch, some, prior)
    by_whole = curvature.marginal_variance(model, theta, batch, index, prior)
    found_variance = beside.scatter(1, some, by_part).gather(1, index)
    torch.testing.assert_close(found_variance, by_whole, rtol=1e-10, atol=1e-12)


# distances --------------------------------------------------------------------------------------------------------


def test_a_published_distance() -> None:
    result = wasserstein(
        float64([1.0, -1.0]),
        float64([[2.0, 0.3], [0.3, 1.0]]),
        float64([0.0, 0.0]),
        float64([[1.0, -0.2], [-0.2, 0.5]]),
    )
    assert result.item() == pytest.approx(2.3746281113712535, rel=1e-12)


def test_distances_are_symmetric_and_scipy_s() -> None:
    means, roots = randn(1, 2, 5, 4), randn(2, 2, 5, 4, 4)
    one, other = roots @ roots.mT
    result = wasserstein(means[0], one, means[1], other)
    torch.testing.assert_close(result, wasserstein(means[1], other, means[0], one), rtol=1e-10, atol=0)
    for k in range(5):
        root = linalg.sqrtm(other[k].numpy())
        middle = linalg.sqrtm(root @ one[k].numpy() @ root).real
        exact = float((means[0, k] - means[1, k]).square().sum()) + np.trace((one[k] + other[k]).numpy() - 2 * middle)
        assert result[k].item() == pytest.approx(float(exact), rel=1e-9)
    assert wasserstein(means[0], one, means[0], one).abs().max() < 1e-10


def test_independent_weights_and_points_have_closed_forms() -> None:
    """Eq. 14 is eq. 13 without covariances: what is left out is the variance of the weights outside."""
    mean, variance = randn(1, 6), randn(2, 6).square()
    inside = torch.tensor([True, False, True, True, False, False])
    whole, part = torch.diag(variance), torch.diag(variance * inside)
    assert wasserstein(mean, whole, mean, part).item() == pytest.approx(variance[~inside].sum().item(), rel=1e-12)
    point = torch.zeros(6, 6, dtype=torch.float64)
    assert wasserstein(mean, whole, mean + 2.0, point).item() == pytest.approx(24 + variance.sum().item(), rel=1e-12)
    other = float64([0.2]) ** 2 * torch.eye(6, dtype=torch.float64)
    exact = sum((math.sqrt(v) - 0.2) ** 2 for v in variance.tolist())
    assert wasserstein(mean, whole, mean, other).item() == pytest.approx(exact, rel=1e-12)


def test_the_distance_of_a_subnetwork_to_the_whole_posterior() -> None:
    """The network of two units: eq. 13 exactly, and eq. 14, which left out the covariances."""
    model = laplace.TanhNetwork((2, 2, 2), Categorical(2))
    theta = float64([laplace.THETA])[:, list(laplace.OURS)]
    batch = ClientBatch.pad([(float64(laplace.X), torch.tensor(laplace.LABELS))], classes=2)
    prior, order = torch.ones_like(theta), list(laplace.OURS)[:6]
    variance = (1.0 / (curvature.diagonal_ggn(model, theta, batch) + 1.0))[0, :6]
    chosen = variance.argsort(descending=True)[:2].sort().values
    assert sorted(order.index(one) for one in chosen.tolist()) == [1, 4]
    assert (variance.sum() - variance[chosen].sum()).item() == pytest.approx(2.8766127642016364, rel=1e-13)
    covariances = []
    for index in (torch.arange(6), chosen):
        arranged, factor = curvature.precision(model, theta, batch, index[None], prior)
        padded = torch.zeros(6, 6, dtype=torch.float64)
        padded[np.ix_(arranged[0], arranged[0])] = torch.cholesky_inverse(factor)[0]
        covariances.append(padded)
    result = wasserstein(theta[0, :6], covariances[0], theta[0, :6], covariances[1])
    assert result.item() == pytest.approx(3.0648782226354188, abs=1e-8)
