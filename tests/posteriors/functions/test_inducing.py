"""Posteriors through inducing points: the exact one where all rows are points, and numpy's where they are not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.posteriors.functions import gaussian_process, pivoted
from pacbayes_fl.posteriors.functions.inducing import InducingPosterior, condition_on_points
from tests.inference.test_evidence import SIZES, clients, draw, every_model, models, particles

NEW = draw(len(SIZES), 6, 3, seed=11)


@pytest.fixture(autouse=True)
def to_the_last_point(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pivoted, "SLACK", 0.0)


def posterior(name: str, count: int = 4, batch: ClientBatch | None = None) -> InducingPosterior:
    model, batch = models()[name], batch or clients()
    return condition_on_points(model, particles(model, batch.clients, 2), batch, count)


def close(found: Tensor, expected: Tensor, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.quick
@every_model
def test_with_all_rows_as_points_it_is_the_exact_posterior(name: str) -> None:
    batch, found = clients(), posterior(name, 12)
    exact = gaussian_process.condition(found.model, found.theta, batch)
    for ours, theirs in ((found.predict(NEW), exact.predict(NEW)), (found.function(NEW), exact.function(NEW))):
        close(ours.means, theirs.means, 1e-8)
        close(ours.variances, theirs.variances, 1e-8)
    close(found.covariance(NEW), exact.covariance(NEW), 1e-8)
    close(found.log_weights, exact.log_weights, 1e-8)
    close(found.kl(), exact.kl(), 1e-8)
    real = batch.mask.unsqueeze(1)
    residuals = [torch.where(real, one.leave_one_out().z, 0.0) for one in (found, exact)]
    close(*residuals, 1e-7)


def dense(found: InducingPosterior, k: int, p: int, x: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance at inputs [N, d] of one client under one particle, from q(u) in its textbook form."""
    model, theta = found.model, found.theta[k : k + 1, p : p + 1]
    rows = found.mask[k]
    x_k, z = found.x[k, rows], found.inducing[k, p][found.used[k, p]]

    def cov(a: Tensor, b: Tensor) -> np.ndarray:
        return np.asarray(model.covariance(theta, a.unsqueeze(0), b.unsqueeze(0))[0, 0])

    noise = model.noise(theta, x_k.unsqueeze(0))[0, 0].numpy()
    k_zz, k_zx, k_zs = cov(z, z), cov(z, x_k), cov(z, x)
    sigma = np.linalg.inv(k_zz + k_zx / noise @ k_zx.T)
    mean = k_zs.T @ sigma @ k_zx @ (found.residual[k, p, rows].numpy() / noise)
    covariance = cov(x, x) - k_zs.T @ (np.linalg.inv(k_zz) - sigma) @ k_zs
    return mean + model.mean(theta, x.unsqueeze(0))[0, 0].numpy(), covariance


@pytest.mark.parametrize("name", ["all of it", "deep", "matern"])
def test_it_predicts_as_titsias_and_its_divergence_is_that_of_the_points_values(name: str) -> None:
    found, predicted = posterior(name), posterior(name).function(NEW)
    for k in range(len(SIZES)):
        for p in range(2):
            mean, covariance = dense(found, k, p, NEW[k])
            np.testing.assert_allclose(predicted.means[k, p], mean, rtol=1e-8, atol=1e-8)
            np.testing.assert_allclose(predicted.variances[k, p], covariance.diagonal(), rtol=1e-7, atol=1e-8)
            np.testing.assert_allclose(found.covariance(NEW)[k, p], covariance, rtol=1e-7, atol=1e-8)
            assert found.kl()[k, p].item() == pytest.approx(divergence(found, k, p), abs=1e-7)


def divergence(q: InducingPosterior, k: int, p: int, prior: InducingPosterior | None = None) -> float:
    """KL(Q || P) in numpy at the points of both and two inputs more; P is what Q was before its rows by default."""
    points = [one.inducing[k, p][one.used[k, p]] for one in (q, prior) if one is not None]
    x = torch.unique(torch.cat((*points, NEW[k, :2])), dim=0)
    mean, covariance = dense(q, k, p, x)
    theta = q.theta[k : k + 1, p : p + 1]
    if prior is None:
        moments = q.model.mean(theta, x.unsqueeze(0)), q.model.covariance(theta, x.unsqueeze(0))
        other_mean, other = (np.asarray(part[0, 0]) for part in moments)
    else:
        other_mean, other = dense(prior, k, p, x)
    solved, step = np.linalg.solve(other, covariance), other_mean - mean
    log_ratio = np.linalg.slogdet(other)[1] - np.linalg.slogdet(covariance)[1]
    return float(0.5 * (np.trace(solved) - len(x) + step @ np.linalg.solve(other, step) + log_ratio))


@pytest.mark.parametrize("name", ["all of it", "matern"])
def test_the_divergence_from_an_earlier_posterior_is_that_at_the_points_of_both(name: str) -> None:
    batch = clients()
    early = batch.rows(torch.arange(5).expand(batch.clients, -1))
    q, p = posterior(name, 4), posterior(name, 2, early)
    found = q.kl_from(p)
    for k in range(len(SIZES)):
        for particle in range(2):
            assert found[k, particle].item() == pytest.approx(divergence(q, k, particle, p), rel=1e-6, abs=1e-6)
    close(q.kl_from(q), torch.zeros(len(SIZES), 2, dtype=torch.float64), 1e-8)


@every_model
def test_with_all_rows_as_points_the_divergence_from_an_earlier_posterior_is_the_exact_one(name: str) -> None:
    batch = clients()
    early = batch.rows(torch.arange(3).expand(batch.clients, -1))
    q, p = posterior(name, 12), posterior(name, 12, early)
    exact = [gaussian_process.condition(q.model, q.theta, rows) for rows in (batch, early)]
    close(q.kl_from(p), gaussian_process.function_kl(exact[0], exact[1], early), 1e-7)


def test_a_left_out_row_is_one_that_was_never_there() -> None:
    """The posterior of the other rows, with the same points."""
    found, k = posterior("all of it"), 2  # a client of twelve rows
    z, without = found.leave_one_out().z, found.mask.clone()
    without[k, 3] = False
    rest, x = replace(found, mask=without), found.x[k, 3:4]
    for p in range(2):
        mean, covariance = dense(rest, k, p, x)
        theta = found.theta[k : k + 1, p : p + 1]
        prior_mean, noise = (part(theta, x.unsqueeze(0)).item() for part in (found.model.mean, found.model.noise))
        missed = found.residual[k, p, 3].item() + prior_mean - mean.item()
        assert z[k, p, 3].item() == pytest.approx(missed / (covariance.item() + noise) ** 0.5, rel=1e-8)


def test_clients_without_rows_have_the_prior_and_bad_particles_no_weight() -> None:
    model, batch = models()["all of it"], clients((4, 1))
    batch = replace(batch, mask=batch.mask & torch.tensor([[True], [False]]))
    theta = particles(model, 2, 2)
    theta[0, 1] = torch.nan
    found = condition_on_points(model, theta, batch, 3)
    assert found.log_weights.exp().tolist() == [[1.0, 0.0], [0.5, 0.5]]
    assert float(found.kl()[1].abs().max()) == 0.0
    predicted = found.function(NEW[:2])
    close(predicted.means[1], model.mean(theta, NEW[:2])[1])
    close(predicted.variances[1], model.variance(theta, NEW[:2])[1])
    theta[0, 0] = torch.nan
    assert condition_on_points(model, theta, batch, 3).predict(NEW[:2]).mean[0].isnan().all()


def test_padding_changes_nothing() -> None:
    model, batch = models()["all of it"], clients()
    theta = particles(model, len(SIZES), 2)
    whole = condition_on_points(model, theta, batch, 4).predict(NEW)
    for k, m in enumerate(SIZES):
        one = ClientBatch.pad([(batch.x[k, :m], batch.y[k, :m])])
        alone = condition_on_points(model, theta[k : k + 1], one, 4).predict(NEW[k : k + 1])
        close(alone.means, whole.means[k : k + 1])
        close(alone.variances, whole.variances[k : k + 1])
