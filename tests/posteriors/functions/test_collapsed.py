"""The collapsed bound: a worked example by numpy, GPyTorch's, and what holds of every bound."""

from __future__ import annotations

import math

import gpytorch
import pytest
import torch
from gpytorch.kernels import InducingPointKernel, RBFKernel
from gpytorch.means import ZeroMean
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.models.functions.gpytorch_prior import GPyTorchPrior
from pacbayes_fl.models.likelihoods import inverse_softplus
from pacbayes_fl.posteriors.functions.collapsed import collapse, collapsed_bound

X = torch.tensor([[-1.0], [-0.2], [0.5], [1.3]], dtype=torch.float64)
Y = torch.tensor([0.3, -0.1, 0.8, 0.4], dtype=torch.float64)
Z = torch.tensor([[-0.5], [0.9]], dtype=torch.float64)
BATCH = ClientBatch.pad([(X, Y)])
VARIANCE = 0.1
PRIOR = GPyTorchPrior(ZeroMean(), RBFKernel(), 1)
THETA = torch.tensor([inverse_softplus(VARIANCE**0.5), math.log(math.expm1(1.0))], dtype=torch.float64)
EXACT = -4.085692257428


def bound(inducing: Tensor) -> Tensor:
    return collapsed_bound(PRIOR, THETA.view(1, 1, -1), inducing.unsqueeze(0), BATCH)


@pytest.mark.quick
def test_the_worked_example_is_numpy_s() -> None:
    """Four rows and points that are none of them; with every row a point the bound is the evidence."""
    assert bound(Z).item() == pytest.approx(-5.696971797164, abs=1e-9)
    assert bound(X).item() == pytest.approx(EXACT, abs=1e-9)


@pytest.mark.quick
def test_the_values_of_the_points_have_the_posterior_of_numpy() -> None:
    theta = THETA.view(1, 1, -1)
    lower = torch.linalg.cholesky(PRIOR.covariance(theta, Z.unsqueeze(0)))
    factor = torch.linalg.solve_triangular(lower, PRIOR.covariance(theta, Z.unsqueeze(0), X.unsqueeze(0)), upper=False)
    noise = torch.full((1, 1, len(X)), VARIANCE, dtype=torch.float64)
    found = collapse(factor, 1 - factor.square().sum(-2), Y.view(1, 1, -1), noise, torch.ones(1, 4, dtype=torch.bool))
    values = (lower @ found.mean.unsqueeze(-1)).flatten()
    torch.testing.assert_close(
        values, torch.tensor([0.184655583224, 0.521646666958], dtype=torch.float64), rtol=0, atol=1e-9
    )
    precision = found.inner @ found.inner.mT
    trace = torch.linalg.inv(precision).diagonal(dim1=-2, dim2=-1).sum()
    kl = 0.5 * (trace + found.mean.square().sum() - 2 + precision.logdet())
    assert kl.item() == pytest.approx(2.053026327297, abs=1e-9)


def test_it_is_that_of_gpytorch() -> None:
    class Sparse(gpytorch.models.ExactGP):
        def __init__(self, likelihood: gpytorch.likelihoods.GaussianLikelihood) -> None:
            super().__init__(X, Y, likelihood)
            base = RBFKernel().double()
            base.lengthscale = 1.0
            self.mean_module = ZeroMean()
            self.covar_module = InducingPointKernel(base, Z.clone(), likelihood)

        def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    likelihood.noise = VARIANCE
    model = Sparse(likelihood)
    with gpytorch.settings.fast_computations(False, False, False):
        value = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)(model(X), Y) * len(X)
    assert bound(Z).item() == pytest.approx(value.item(), abs=1e-5)  # GPyTorch adds 1e-6 or so to the points


def test_a_point_more_never_lowers_it_and_none_takes_it_above_the_evidence() -> None:
    points = torch.linspace(-2.0, 2.0, 7, dtype=torch.float64)[[3, 0, 5, 1, 6]].unsqueeze(-1)
    values = [bound(points[:count]).item() for count in range(1, 6)]
    assert values == sorted(values) and values[-1] < EXACT + 1e-9 < values[0] + 10


def test_noise_of_the_points_lowers_it() -> None:
    args = PRIOR, THETA.view(1, 1, -1), Z.unsqueeze(0), BATCH
    assert collapsed_bound(*args, jitter=0.1) < collapsed_bound(*args)


def test_padding_changes_nothing() -> None:
    batch = ClientBatch.pad([(X, Y), (X[:2], Y[:2])])
    both = collapsed_bound(PRIOR, THETA.expand(2, 1, -1), Z.expand(2, -1, -1), batch)
    alone = collapsed_bound(PRIOR, THETA.view(1, 1, -1), Z.unsqueeze(0), ClientBatch.pad([(X[:2], Y[:2])]))
    torch.testing.assert_close(both, torch.cat((bound(Z), alone)), rtol=1e-12, atol=0)
