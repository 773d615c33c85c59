"""The Matern 5/2 prior with a linear term against scikit-learn's kernels, values and slopes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, DotProduct, Matern, WhiteKernel
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.inference.evidence import particle_scores
from pacbayes_fl.models.functions.ard import ARDMatern
from pacbayes_fl.models.likelihoods import gaussian_noise
from pacbayes_fl.posteriors.functions.gaussian_process import condition
from tests.methods.by_hand import randn

SIZES, D = (7, 12, 5), 3
MODEL = ARDMatern(D)
THETA = MODEL.location() + 0.4 * randn(3, len(SIZES), 1, MODEL.dim)
BATCH = ClientBatch.pad([(randn(k, m, D), randn(10 + k, m)) for k, m in enumerate(SIZES)])


def theirs(theta: Tensor) -> GaussianProcessRegressor:
    """Return scikit-learn's regressor with the same kernel; b (1 + x'x / d) is b/d times its DotProduct."""
    a, b, *lengths = theta[1:].exp().tolist()
    linear = ConstantKernel(b / D) * DotProduct(math.sqrt(D))
    kernel = ConstantKernel(a) * Matern(lengths, nu=2.5) + linear + WhiteKernel(gaussian_noise(theta[0]).item())
    return GaussianProcessRegressor(kernel, optimizer=None, alpha=0.0)


@pytest.mark.quick
@pytest.mark.parametrize("k", range(len(SIZES)))
def test_evidence_slopes_and_predictions_are_scikit_learn_s(k: int) -> None:
    x, y = (rows[k][BATCH.mask[k]].numpy() for rows in (BATCH.x, BATCH.y))
    regressor = theirs(THETA[k, 0]).fit(x, y)
    value, slope = regressor.log_marginal_likelihood(regressor.kernel_.theta, eval_gradient=True)
    mine = particle_scores(MODEL, THETA, BATCH)
    assert mine.log_evidence[k, 0].item() == pytest.approx(value, rel=1e-11)
    # of their logarithms: of a, the lengthscales, b / d, the offset sqrt(d) (left out) and the noise
    np.testing.assert_allclose(mine.score[k, 0, [1, *range(3, 3 + D), 2]], slope[: D + 2], rtol=1e-7, atol=1e-9)
    raw = THETA[k, 0, 0].clone().requires_grad_()
    (by_raw,) = torch.autograd.grad(gaussian_noise(raw).log(), raw)
    assert mine.score[k, 0, 0].item() == pytest.approx(slope[-1] * by_raw.item(), rel=1e-8)
    new = randn(20, 6, D)
    mean, std = regressor.predict(new.numpy(), return_std=True)
    predicted = condition(MODEL, THETA, BATCH).predict(new.expand(len(SIZES), -1, -1))
    np.testing.assert_allclose(predicted.mean[k], mean, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(predicted.variance[k].sqrt(), std, rtol=1e-8)


def test_the_variance_is_the_diagonal_of_the_covariance() -> None:
    diagonal = MODEL.covariance(THETA, BATCH.x).diagonal(dim1=-2, dim2=-1)
    torch.testing.assert_close(MODEL.variance(THETA, BATCH.x), diagonal, rtol=1e-12, atol=1e-12)


def test_equal_rows_have_finite_slopes() -> None:
    x = torch.zeros(4, D, dtype=torch.float64)
    score = particle_scores(MODEL, MODEL.location().view(1, 1, -1), ClientBatch.pad([(x, randn(1, 4))])).score
    assert score.isfinite().all() and not score[0, 0, 3:].any(), "no lengthscale matters"
