"""Ridge regression against scikit-learn, by client and pooled."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.linear_model import Ridge, RidgeCV

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.federation import engine, federation_state, personalisation
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.methods.base import Nothing
from pacbayes_fl.methods.baselines.centralised import pool, send
from pacbayes_fl.methods.baselines.ridge import LocalRidge, PooledRidge, fit
from pacbayes_fl.noise import Noise
from tests.laws.cases import federation, strangers

ALPHAS = np.logspace(-3, 3, 7)
BATCH = federation(3)
POOLED = pool(send(BATCH))


def left_out(x: NDArray[np.float64], y: NDArray[np.float64], alpha: float) -> float:
    """Return the mean squared error of each row under a fit to the others."""
    errors = []
    for i in range(len(y)):
        rest = np.arange(len(y)) != i
        errors.append(y[i] - Ridge(alpha=alpha).fit(x[rest], y[rest]).predict(x[[i]])[0])
    return float(np.mean(np.square(errors)))


@pytest.mark.parametrize("x_y", [POOLED, (BATCH.x[1], BATCH.y[1])], ids=["pooled", "nine rows"])
def test_a_fit_is_that_of_scikit_learn(x_y: tuple[torch.Tensor, torch.Tensor]) -> None:
    x, y = (t.numpy() for t in x_y)
    line, theirs = fit(*x_y), RidgeCV(alphas=ALPHAS).fit(x, y)
    np.testing.assert_allclose(line.weight, theirs.coef_, rtol=1e-12)
    assert line.bias.item() == pytest.approx(theirs.intercept_, rel=1e-12)
    errors = [left_out(x, y, alpha) for alpha in ALPHAS]
    assert ALPHAS[np.argmin(errors)] == pytest.approx(theirs.alpha_)
    assert line.variance.item() == pytest.approx(min(errors), rel=1e-8)
    assert line.weight.dtype == line.bias.dtype == line.variance.dtype == torch.float64


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_too_few_rows_give_a_constant(rows: int) -> None:
    line = fit(BATCH.x[1, :rows], BATCH.y[1, :rows])
    assert not line.weight.any() and line.variance.item() == 1.0
    assert line.bias.item() == pytest.approx(BATCH.y[1, :rows].mean().item() if rows else 0.0)


def test_each_client_is_fitted_alone() -> None:
    posterior = LocalRidge().personalise(Nothing(), Nothing(), BATCH, Noise(0, 0, BATCH.ids))
    predictive = posterior.predict(BATCH.x)
    assert predictive.means.shape == (4, 1, 9)
    for k in (0, 1, 3):
        x, y = BATCH.x[k][BATCH.mask[k]], BATCH.y[k][BATCH.mask[k]]
        theirs = RidgeCV(alphas=ALPHAS).fit(x.numpy(), y.numpy())
        np.testing.assert_allclose(predictive.mean[k], theirs.predict(BATCH.x[k].numpy()), rtol=1e-10, atol=1e-12)
        assert torch.equal(predictive.variance[k], fit(x, y).variance.expand(9))


def test_a_perfect_line_keeps_some_variance() -> None:
    x = torch.linspace(0, 1, 9, dtype=torch.float64).unsqueeze(1)
    batch = ClientBatch.pad([(x, 0 * x[:, 0])])
    posterior = LocalRidge().personalise(Nothing(), Nothing(), batch, Noise(0, 0, batch.ids))
    assert posterior.variance.item() == 1e-8
    assert posterior.predict(batch.x).log_prob(batch.y).isfinite().all()


def test_the_pooled_line_is_everybodys() -> None:
    method = PooledRidge(("a", "b", "c"))
    start = federation_state.start(method, BATCH, FederationPlan())
    assert not method.federated
    assert not personalisation.join(method, start.server, BATCH, 0).predict(BATCH.x).mean.any()
    server = engine.run_rounds(method, BATCH, FederationPlan(rounds=1)).server
    theirs = RidgeCV(alphas=ALPHAS).fit(POOLED[0].numpy(), POOLED[1].numpy())
    for batch in (BATCH, strangers(3)):
        mean = personalisation.join(method, server, batch, 0).predict(batch.x).mean
        for k in range(batch.clients):
            np.testing.assert_allclose(mean[k], theirs.predict(batch.x[k].numpy()), rtol=1e-10, atol=1e-12)
