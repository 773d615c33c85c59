"""The bound of Student-t noise against quadrature, scipy, finite differences and the Gaussian; its posteriors."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from pacbayes_fl.bounds import full_gaussian_kl
from pacbayes_fl.bounds.divergence import gp_posterior_kl
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import StudyError
from pacbayes_fl.inference.evidence import particle_scores
from pacbayes_fl.models.functions.deep_kernel_gp import DeepKernelGP
from pacbayes_fl.models.inducing import Inducing
from pacbayes_fl.posteriors.functions import gaussian_process
from pacbayes_fl.posteriors.functions.conditioning import condition, refined
from pacbayes_fl.posteriors.functions.student_noise import (
    StudentPosterior,
    expected_scales,
    over_scales,
    scale_terms,
)
from pacbayes_fl.posteriors.predictive import NormalMixture
from pacbayes_fl.posteriors.residuals import checked
from tests.inference.test_evidence import SIZES, clients, particles

MODELS = {
    "one scale": DeepKernelGP(3, (4,), (4,), dof="learned"),
    "all of it": DeepKernelGP(3, (4,), (4,), noise_widths=(3,), learn_outputscale=True, linear_kernel=True, dof=5.0),
    "no networks": DeepKernelGP(3, None, None, learn_outputscale=True, linear_kernel=True, dof=5.0),
    "autograd": DeepKernelGP(3, (4,), (4,), learn_lengthscale=True, noise_widths=(), dof="learned"),
}
BATCH = clients()


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> DeepKernelGP:
    """Every kind of prior with Student-t noise."""
    return MODELS[request.param]


def some(rows: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Make a covariance, residuals with an outlier, noise, degrees of freedom and a mask of one client."""
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(1, 1, rows, rows, generator=generator, dtype=torch.float64)
    residual = torch.randn(1, 1, rows, generator=generator, dtype=torch.float64)
    residual[..., 0] += 3.0
    noise = 0.1 + torch.rand(1, 1, rows, generator=generator, dtype=torch.float64)
    mask = torch.ones(1, rows, dtype=torch.bool)
    return root @ root.mT / rows, residual, noise, torch.full((1, 1), 3.0, dtype=torch.float64), mask


def bound(scales: Tensor, covariance: Tensor, residual: Tensor, noise: Tensor, dof: Tensor, mask: Tensor) -> float:
    """Give L(w), with scipy's normal density."""
    total = covariance[0, 0] + torch.diag((noise / scales)[0, 0])
    gaussian = stats.multivariate_normal.logpdf(residual[0, 0].numpy(), cov=total.numpy())
    return float(gaussian) + scale_terms(scales, dof, mask).item()


@pytest.mark.parametrize("rows", [1, 2])
def test_the_bound_is_below_the_evidence_and_close_to_it(rows: int) -> None:
    covariance, residual, noise, dof, mask = some(rows)
    scales = expected_scales(covariance, residual, noise, dof, mask)
    axis = np.linspace(-12, 12, 801)
    grids = np.stack(np.meshgrid(*[axis] * rows, indexing="ij"), -1).reshape(-1, rows)
    root = np.linalg.cholesky(covariance[0, 0].numpy())
    errors = (residual[0, 0].numpy() - grids @ root.T) / noise[0, 0].sqrt().numpy()
    rows_given_f = stats.t.logpdf(errors, 3.0).sum(1) - 0.5 * noise.log().sum().item()
    density = np.exp(rows_given_f + stats.norm.logpdf(grids).sum(1))
    evidence = math.log(density.sum() * (axis[1] - axis[0]) ** rows)
    value = bound(scales, covariance, residual, noise, dof, mask)
    assert evidence - 0.4 * rows < value < evidence


def test_every_step_of_the_ascent_raises_the_bound() -> None:
    parts = some(6, seed=4)
    values = [bound(expected_scales(*parts, steps=steps), *parts) for steps in range(12)]
    assert all(after >= before - 1e-12 for before, after in pairwise(values))
    assert values[-1] > values[0] + 0.1  # which the Gaussian start is not


def test_at_its_end_no_scale_can_be_moved_to_raise_it() -> None:
    covariance, residual, noise, dof, mask = some(5, seed=2)
    end = expected_scales(covariance, residual, noise, dof, mask, steps=200).requires_grad_(True)
    total = covariance + torch.diag_embed(noise / end)
    normal = torch.distributions.MultivariateNormal(torch.zeros_like(residual), total)
    value = normal.log_prob(residual).sum() + scale_terms(end, dof, mask).sum()
    (slope,) = torch.autograd.grad(value, end)
    assert slope.abs().max() < 1e-10 and end.min() < 0.3  # the outlier's


@pytest.mark.law
def test_the_score_is_the_gradient_of_the_bound(model: DeepKernelGP, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expected_scales, "__defaults__", (None, 300))
    theta = particles(model, len(SIZES), 2)
    scores = particle_scores(model, theta, BATCH)
    generator = torch.Generator().manual_seed(3)
    for _ in range(2):
        way = torch.randn(model.dim, generator=generator, dtype=torch.float64)
        ahead, behind = (particle_scores(model, theta + step * way, BATCH).log_evidence for step in (1e-5, -1e-5))
        torch.testing.assert_close((scores.score * way).sum(-1), (ahead - behind) / 2e-5, rtol=2e-5, atol=2e-5)


def test_the_score_is_that_of_autograd_through_the_ascent(model: DeepKernelGP, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expected_scales, "__defaults__", (None, 60))
    theta = particles(model, len(SIZES), 1)
    scores = particle_scores(model, theta, BATCH)
    k = 2
    rows = int(BATCH.size[k])
    leaf, x, y = theta[k : k + 1].clone().requires_grad_(True), BATCH.x[k : k + 1, :rows], BATCH.y[k : k + 1, :rows]
    dof, noise = model.degrees_of_freedom(leaf), model.noise(leaf, x).expand(1, 1, rows)
    assert dof is not None
    mask, residual = torch.ones(1, rows, dtype=torch.bool), y.unsqueeze(1) - model.mean(leaf, x)
    covariance = model.covariance(leaf, x)
    scales = expected_scales(covariance, residual, noise, dof, mask)
    normal = torch.distributions.MultivariateNormal(
        torch.zeros_like(residual), covariance + torch.diag_embed(noise / scales)
    )
    value = normal.log_prob(residual) + scale_terms(scales, dof, mask)
    (gradient,) = torch.autograd.grad(value.sum(), leaf)
    torch.testing.assert_close(value.detach(), scores.log_evidence[k : k + 1], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(gradient, scores.score[k : k + 1], rtol=1e-6, atol=1e-6)


def test_many_degrees_of_freedom_are_gaussian_noise() -> None:
    kinds = {"noise_widths": (3,), "learn_outputscale": True}
    heavy, normal = (DeepKernelGP(3, (4,), (4,), dof=dof, **kinds) for dof in (1e11, None))  # type: ignore[arg-type]
    theta = particles(normal, len(SIZES), 2)
    one, other = (particle_scores(model, theta, BATCH) for model in (heavy, normal))
    torch.testing.assert_close(one.log_evidence, other.log_evidence, rtol=0, atol=1e-8)
    torch.testing.assert_close(one.score, other.score, rtol=1e-8, atol=1e-8)
    said, known = (condition(model, theta, BATCH).predict(BATCH.x) for model in (heavy, normal))
    torch.testing.assert_close(said.mean, known.mean, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(said.log_prob(BATCH.y), known.log_prob(BATCH.y), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("dof", [2.5, 4.0, 12.0])
def test_the_terms_of_the_degrees_of_freedom_join_at_stirlings_series(dof: float) -> None:
    """Against the definition; very many degrees are those of the test above."""
    for nu in (dof, 31.9, 32.1):
        a, b = (nu + 1) / 2, nu / 2
        expected = math.lgamma(a) - a * math.log(a) + a - math.lgamma(b) + b * math.log(b) - b
        one, row = torch.ones(1, 1, 1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.bool)
        given = torch.full((1, 1), nu, dtype=torch.float64)
        assert scale_terms(one, given, row).item() == pytest.approx(expected, abs=1e-13)
        scales = torch.full((1, 1, 1), 0.4, dtype=torch.float64)
        more = nu / 2 * (math.log(0.4) - 0.4 + 1)
        assert scale_terms(scales, given, row).item() == pytest.approx(expected + more, rel=1e-12)


@pytest.mark.parametrize(("dof", "within"), [(3.0, 1e-3), (5.0, 2e-4), (30.0, 2e-4)])
def test_predictions_without_rows_are_scipys(dof: float, within: float) -> None:
    y = torch.linspace(-9, 9, 41, dtype=torch.float64).view(1, -1)
    zero = torch.zeros(1, 1, 41, dtype=torch.float64)
    function = NormalMixture(torch.zeros(1, 1, dtype=torch.float64), zero + 0.5, zero)
    predictive = over_scales(function, zero + 4.0, torch.full((1, 1), dof, dtype=torch.float64))
    exact = stats.t(dof, 0.5, 2.0)
    np.testing.assert_allclose(predictive.log_prob(y)[0], exact.logpdf(y[0]), atol=within)
    np.testing.assert_allclose(predictive.cdf(y)[0], exact.cdf(y[0]), atol=within)
    levels = torch.tensor([0.025, 0.3, 0.9], dtype=torch.float64)
    np.testing.assert_allclose(predictive.quantile(levels)[:, 0, 0], exact.ppf(levels), atol=5e-3)
    assert predictive.mean[0, 0].item() == pytest.approx(0.5)
    assert predictive.variance[0, 0].item() == pytest.approx(exact.var(), rel=0.03 if dof == 3 else 1e-3) or dof == 3


def test_a_client_without_rows_is_predicted_by_prior_and_noise() -> None:
    model = MODELS["one scale"]
    theta = particles(model, 1, 1)
    none = BATCH.select(torch.tensor([0])).rows(torch.zeros(1, 0, dtype=torch.long))
    posterior = condition(model, theta, none)
    assert isinstance(posterior, StudentPosterior) and posterior.kl().tolist() == [[0.0]]
    x = BATCH.x[:1, :3]
    dof = model.degrees_of_freedom(theta)
    assert dof is not None
    prior = NormalMixture(torch.zeros(1, 1, dtype=torch.float64), model.mean(theta, x), model.variance(theta, x))
    expected = over_scales(prior, model.noise(theta, x), dof)
    torch.testing.assert_close(posterior.predict(x).means, expected.means)
    torch.testing.assert_close(posterior.predict(x).variances, expected.variances)


def test_padding_and_company_change_nothing(model: DeepKernelGP) -> None:
    theta = particles(model, len(SIZES), 2)
    together, posterior = particle_scores(model, theta, BATCH), condition(model, theta, BATCH)
    for k in range(len(SIZES)):
        index = torch.tensor([k])
        one = BATCH.select(index).trim()
        alone = particle_scores(model, theta[index], one)
        for mine, theirs in zip(alone[:2], together[:2], strict=True):
            torch.testing.assert_close(mine, theirs[index], rtol=1e-9, atol=1e-9)
        single = condition(model, theta[index], one)
        torch.testing.assert_close(single.log_weights, posterior.log_weights[index], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(single.kl(), posterior.kl()[index], rtol=1e-8, atol=1e-8)


def test_an_outlier_moves_the_function_less_than_under_gaussian_noise() -> None:
    heavy = DeepKernelGP(1, None, (4,), dof=3.0, noise_std=0.1)
    normal = DeepKernelGP(1, None, (4,), noise_std=0.1)
    x = torch.linspace(-1, 1, 9, dtype=torch.float64).unsqueeze(1)
    y = torch.zeros(9, dtype=torch.float64)
    y[4] = 3.0
    batch, theta = ClientBatch.pad([(x, y)]), particles(normal, 1, 1)
    there = torch.tensor([[[0.05]]], dtype=torch.float64)
    moved = [condition(model, theta, batch).function(there).mean.abs().item() for model in (heavy, normal)]
    assert moved[0] < 0.2 * moved[1]


def test_divergences_are_those_of_the_normal_distributions_behind_it(model: DeepKernelGP) -> None:
    theta = particles(model, len(SIZES), 2)
    early, late = (BATCH.rows(torch.arange(*span).expand(BATCH.clients, -1)) for span in ((0, 2), (2, 5)))
    prior, everything = condition(model, theta, early, "equal"), early.extend(late)
    posterior, kl = refined(prior, early, late, "equal")
    assert isinstance(prior, StudentPosterior) and isinstance(posterior, StudentPosterior)
    torch.testing.assert_close(gp_posterior_kl(posterior), (posterior.log_weights.exp() * posterior.kl()).sum(1))
    k = 2
    x = everything.x[k : k + 1, : int(everything.size[k])]
    sides = []
    for side in (posterior, prior):  # joint normals of the function at all rows of a client, under its first particle
        inner = side.inner
        mean, cross, _ = inner.cross(everything.x)
        cross = torch.where(inner.mask[:, None, None, :], cross, 0.0)
        half = (cross @ inner.whitener.mT)[k, 0, : x.shape[1]]
        location = (mean + (cross @ inner.alpha.unsqueeze(-1)).squeeze(-1))[k, 0, : x.shape[1]]
        sides.append((location, model.covariance(theta[k : k + 1], x)[0, 0] - half @ half.T))
    jitter = 1e-10 * torch.eye(x.shape[1], dtype=torch.float64)
    (mean, covariance), (other, wider) = sides
    expected = full_gaussian_kl(mean, covariance + jitter, other, wider + jitter)
    one = gaussian_process.function_kl(posterior.inner, prior.inner, early)[k, 0]
    torch.testing.assert_close(one, expected, rtol=1e-3, atol=1e-4)
    assert kl.isfinite().all() and (kl >= 0).all()


def test_what_needs_normal_noise_is_refused_by_name() -> None:
    model = MODELS["one scale"]
    theta = particles(model, len(SIZES), 1)
    with pytest.raises(StudyError, match="no leave-one-out residuals"):
        checked(condition(model, theta, BATCH))
    with pytest.raises(StudyError, match="inducing points are for Gaussian noise"):
        condition(model.with_inducing(Inducing(3)), theta, BATCH)
    with pytest.raises(StudyError, match="inducing points are for Gaussian noise"):
        particle_scores(model.with_inducing(Inducing(3)), theta, BATCH)
    with pytest.raises(StudyError, match="above 2"):
        DeepKernelGP(3, dof=2.0)


def test_a_power_of_the_likelihood_scales_the_bound_of_its_rows() -> None:
    """With nearly certain functions ln E_f prod p^c is c times the sum of the rows' log densities."""
    model = MODELS["one scale"]
    theta = particles(model, len(SIZES), 1)
    power = torch.full((len(SIZES),), 3.0, dtype=torch.float64)
    tempered, plain = particle_scores(model, theta, BATCH, power), particle_scores(model, theta, BATCH)
    one = particle_scores(model, theta, BATCH, torch.ones_like(power))
    torch.testing.assert_close(one.log_evidence, plain.log_evidence, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(one.score, plain.score, rtol=1e-10, atol=1e-10)
    way = torch.randn(model.dim, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    sides = [particle_scores(model, theta + step * way, BATCH, power).log_evidence for step in (1e-5, -1e-5)]
    torch.testing.assert_close((tempered.score * way).sum(-1), (sides[0] - sides[1]) / 2e-5, rtol=1e-3, atol=1e-3)
