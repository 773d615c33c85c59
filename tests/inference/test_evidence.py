"""Exact log evidence and its gradient, written out: against oracles, GPyTorch without padding, and the definition."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import gpytorch
import numpy as np
import pytest
import torch
from gpytorch.distributions import MultivariateNormal
from scipy import stats
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.linear_start import LinearStart
from pacbayes_fl.inference.evidence import particle_scores
from pacbayes_fl.models.base import FunctionModel
from pacbayes_fl.models.functions.deep_kernel_gp import DeepKernelGP
from pacbayes_fl.models.functions.gpytorch_prior import GPyTorchPrior
from pacbayes_fl.models.likelihoods import inverse_softplus
from pacbayes_fl.posteriors.functions.gaussian_process import gaussian_log_evidence

FEATURES, SIZES = 3, (5, 1, 12, 3)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def numbers(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def clients(sizes: tuple[int, ...] = SIZES) -> ClientBatch:
    x = draw(sum(sizes), FEATURES, seed=1)
    y = x[:, 0].sin() + 0.3 * draw(sum(sizes), seed=2)
    return ClientBatch.pad(list(zip(x.split(sizes), y.split(sizes), strict=True)))


START = LinearStart(numbers([0.5, 0.0, -1.0]), 0.1, 0.5)


@cache
def models() -> dict[str, FunctionModel]:
    matern = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(1.5, ard_num_dims=FEATURES))
    return {
        "deep": DeepKernelGP(FEATURES),
        "zero mean": DeepKernelGP(FEATURES, mean_widths=None, kernel_widths=(8,), feature_dim=3),
        "learned scales": DeepKernelGP(FEATURES, (8,), (8,), learn_lengthscale=True, learn_outputscale=True),
        "linear start": DeepKernelGP(FEATURES, (8,), (8,), linear=START),
        "noise network": DeepKernelGP(FEATURES, (8,), (8,), noise_widths=(4,)),
        "all of it": DeepKernelGP(FEATURES, None, (8,), linear=START, noise_widths=(), linear_kernel=True),
        "slow": DeepKernelGP(FEATURES, (8,), (8,), learn_lengthscale=True, noise_widths=(4,), linear_kernel=True),
        "no networks": DeepKernelGP(FEATURES, None, None, linear=START, linear_kernel=True),
        "linear kernel": DeepKernelGP(FEATURES, (8,), (8,), linear_kernel=True),
        "matern": GPyTorchPrior(gpytorch.means.LinearMean(FEATURES), matern, FEATURES),
        "fixed mean": GPyTorchPrior(gpytorch.means.ZeroMean(), gpytorch.kernels.RBFKernel(), FEATURES),
    }


def particles(model: FunctionModel, *shape: int) -> Tensor:
    return model.location() + 0.4 * draw(*shape, model.dim, seed=3)


def close(found: Tensor, expected: Tensor, tolerance: float) -> None:
    """Compare gradients [*, D] or values [*] by the norm of their last dimension."""
    if found.dim() < 3:
        found, expected = found.unsqueeze(-1), expected.unsqueeze(-1)
    error = (found - expected).norm(dim=-1) / expected.norm(dim=-1).clamp_min(1e-300)
    assert float(error.max()) < tolerance, error


every_model = pytest.mark.parametrize("name", models())


@pytest.mark.quick
@pytest.mark.parametrize("embedded", [True, False])
def test_value_and_gradient_of_the_worked_example(embedded: bool) -> None:
    """X = (0, 1, 2.5), squared-exponential kernel; all numbers by numpy and, for the value, by scikit-learn too."""
    x, y = numbers([[0.0], [1.0], [2.5]]), numbers([0.3, -0.2, 1.1])
    batch = ClientBatch.pad([(x, y)])
    means, lengths = numbers([0.0, 0.2]), numbers([1.0, 0.5])
    raw_noise = numbers([inverse_softplus(0.5), inverse_softplus(0.3)])
    zero = torch.zeros(2, dtype=torch.float64)
    if embedded:  # a linear mean 0 x + b and a linear feature x / l
        model: FunctionModel = DeepKernelGP(1, mean_widths=(), kernel_widths=(), feature_dim=1)
        theta = torch.stack((raw_noise, zero, means, 1 / lengths, zero), -1)
        constant, length, by_length = 2, 3, -1.0  # d(1 / l) / dl at l = 1
    else:
        model = GPyTorchPrior(gpytorch.means.ConstantMean(), gpytorch.kernels.RBFKernel(), 1)
        theta = torch.stack((raw_noise, means, torch.expm1(lengths).log()), -1)
        constant, length, by_length = 1, 2, 1 / -math.expm1(-1)
    scores = particle_scores(model, theta, batch)
    expected = numbers([[-3.6390375104233623, -3.3372237817184756]])
    torch.testing.assert_close(scores.log_evidence, expected, rtol=1e-8, atol=0)
    score = scores.score[0, 0]
    by_variance = 1 / (2 * 0.5 * float(torch.sigmoid(raw_noise[0])))
    assert float(score[constant]) == pytest.approx(0.8879910, abs=1e-6)
    assert float(score[length]) * by_length == pytest.approx(-0.0974971, abs=1e-6)
    assert float(score[0]) * by_variance == pytest.approx(-0.6038617, abs=1e-6)


@pytest.mark.quick
def test_the_evidence_of_rows_with_noise_and_clients_with_slopes_of_their_own_is_scipy_s() -> None:
    """A linear mean, a linear feature, a linear kernel and a linear raw noise, by numpy."""
    model, batch = DeepKernelGP(FEATURES, (), (), 1, noise_widths=(), linear_kernel=True), clients()
    theta = particles(model, 2)
    result = particle_scores(model, theta, batch)
    for p in range(2):
        named = {name: value.numpy() for name, value in model.unflatten(theta[p]).items()}
        (mean, kernel, noise), biases = (
            [named[f"{part}.network.{kind}.0"] for part in ("mean", "kernel", "likelihood")]
            for kind in ("weights", "biases")
        )
        for k, m in enumerate(SIZES):
            x, y = batch.x[k, :m].numpy(), batch.y[k, :m].numpy()
            std = np.log1p(np.exp(named["likelihood.raw_noise"] + x @ noise[:, 0] + biases[2]))
            covariance = np.exp(-0.5 * (x @ kernel - (x @ kernel).T) ** 2) + np.diag(std**2)
            covariance += named["kernel.slope_std"] ** 2 * (x @ x.T + 1.0)
            expected = stats.multivariate_normal(x @ mean[:, 0] + biases[0], covariance).logpdf(y)
            assert result.log_evidence[k, p].item() == pytest.approx(expected, rel=1e-10)


@pytest.mark.law
@pytest.mark.quick
@every_model
@pytest.mark.parametrize("shared", [True, False])
def test_equals_gpytorch_client_by_client_without_padding(name: str, shared: bool) -> None:
    model, batch = models()[name], clients()
    theta = particles(model, 3) if shared else particles(model, len(SIZES), 3)
    result = particle_scores(model, theta, batch)
    assert result.score.shape == (len(SIZES), 3, model.dim) and result.jitter.eq(0).all()
    for k, m in enumerate(SIZES):
        for p in range(3):
            leaf = (theta[p] if shared else theta[k, p]).clone().requires_grad_()
            prior, noise = model.prior(leaf[None, None], batch.x[k : k + 1, :m])
            covariance = prior.covariance_matrix[0, 0] + noise[0, 0].diag()
            value = MultivariateNormal(prior.mean[0, 0], covariance).log_prob(batch.y[k, :m])
            (score,) = torch.autograd.grad(value, leaf)
            close(result.log_evidence[k : k + 1, p], value.detach()[None], 1e-10)
            close(result.score[k, None, p : p + 1], score[None, None], 1e-10)


@pytest.mark.quick
@every_model
def test_equals_the_definition(name: str) -> None:
    model, batch = models()[name], clients()
    leaf = particles(model, len(SIZES), 3).requires_grad_()
    value, factor = gaussian_log_evidence(*model.prior(leaf, batch.x), batch.y, batch.mask)
    (score,) = torch.autograd.grad(value.sum(), leaf)
    result = particle_scores(model, leaf.detach(), batch)
    assert factor.ok.all()
    close(result.log_evidence, value.detach(), 1e-12)
    close(result.score, score, 1e-12)


def by_quadrature(prior: MultivariateNormal, noise: Tensor, y: Tensor, power: float) -> float:
    """ln E_f prod_i N(y_i | f_i, s^2)^c for two rows, by the trapezium rule over whitened f."""
    at = torch.linspace(-7.0, 7.0, 351, dtype=torch.float64)
    white = torch.cartesian_prod(at, at)
    f = prior.mean + white @ torch.linalg.cholesky(prior.covariance_matrix).T
    density = power * torch.distributions.Normal(f, noise.sqrt(), validate_args=False).log_prob(y).sum(-1)
    return float(
        torch.logsumexp(density - 0.5 * white.square().sum(-1), 0) + 2 * math.log(0.04) - math.log(2 * math.pi)
    )


@pytest.mark.law
@every_model
@pytest.mark.parametrize("each", [(0.5, 3.0), (12.5, 1.0)], ids=str)
def test_a_tempered_evidence_is_the_expectation_of_the_tempered_likelihood(
    name: str, each: tuple[float, float]
) -> None:
    model, batch, step = models()[name], clients((2, 2)), 1e-6
    theta = particles(model, 2)
    powers = numbers(each)
    result = particle_scores(model, theta, batch, powers)
    for k, c in enumerate(each):
        for p in range(2):
            prior, noise = model.prior(theta[p][None, None], batch.x[k : k + 1])
            one = MultivariateNormal(prior.mean[0, 0], prior.covariance_matrix[0, 0])
            expected = by_quadrature(one, noise[0, 0], batch.y[k], c)
            assert result.log_evidence[k, p].item() == pytest.approx(expected, abs=1e-8)
    entries = torch.arange(0, model.dim, max(1, model.dim // 20))
    shifts = step * torch.nn.functional.one_hot(entries, model.dim)  # [E, D]
    moved = torch.stack((theta + shifts.unsqueeze(1), theta - shifts.unsqueeze(1)))  # [2, E, P, D]
    ends = particle_scores(model, moved.flatten(0, 2), batch, powers).log_evidence.unflatten(1, moved.shape[:3])
    slope = (ends[:, 0] - ends[:, 1]) / (2 * step)  # [K, E, P]
    torch.testing.assert_close(result.score[..., entries], slope.mT, rtol=1e-6, atol=1e-6)


@every_model
def test_likelihoods_to_the_power_of_one_are_the_likelihoods(name: str) -> None:
    model, batch = models()[name], clients()
    theta = particles(model, 2)
    plain = particle_scores(model, theta, batch)
    result = particle_scores(model, theta, batch, torch.ones(len(SIZES), dtype=torch.float64))
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(result, plain, strict=True))


@every_model
def test_padding_buckets_and_chunks_change_nothing(name: str) -> None:
    model, batch = models()[name], clients()
    theta, powers = particles(model, 2), numbers([0.5, 1.0, 3.0, 2.0])
    whole = particle_scores(model, theta, batch, powers)
    wide = ClientBatch.pad(
        [(draw(20, FEATURES), draw(20)), *((x[m], y[m]) for x, y, m in zip(batch.x, batch.y, batch.mask, strict=True))]
    )
    cuts = {"alone": [[0], [1], [2], [3]], "by size": [[1, 3], [0, 2]], "backwards": [[3, 2, 1, 0]]}
    parts = [(index, batch.select(torch.tensor(index)).trim()) for cut in cuts.values() for index in cut]
    for index, part in [*parts, ([0, 1, 2, 3], wide.select(torch.tensor([1, 2, 3, 4])))]:
        result = particle_scores(model, theta, part, powers[index])
        close(result.log_evidence, whole.log_evidence[index], 1e-12)
        close(result.score, whole.score[index], 1e-12)


@every_model
def test_a_client_without_rows_has_no_say(name: str) -> None:
    model, batch = models()[name], clients()
    batch = replace(batch, mask=batch.mask & torch.tensor([True, True, False, True]).unsqueeze(1))
    result = particle_scores(model, particles(model, 2), batch)
    assert result.log_evidence[2].eq(0).all() and result.score[2].eq(0).all()
    assert result.score[3].ne(0).any(-1).all()


@every_model
@pytest.mark.parametrize("what", ["x", "y"])
def test_a_client_that_is_not_finite_stays_alone(name: str, what: str) -> None:
    model, batch = models()[name], clients()
    theta = particles(model, 2)
    clean = particle_scores(model, theta, batch)
    faulty = getattr(batch, what).clone()
    faulty[2, 4] = torch.nan
    result = particle_scores(model, theta, replace(batch, **{what: faulty}))
    others = [0, 1, 3]
    assert result.log_evidence[2].isnan().all() and result.score[2].isnan().any(-1).all()
    close(result.log_evidence[others], clean.log_evidence[others], 1e-14)
    close(result.score[others], clean.score[others], 1e-12)


@every_model
def test_rows_given_fifty_times_pass(name: str) -> None:
    model = models()[name]
    theta = particles(model, 2)
    theta[:, 0] = inverse_softplus(1e-6)  # a noise at its floor: the covariance has rank 1 but for 1e-8
    result = particle_scores(model, theta, ClientBatch.pad([(draw(1, FEATURES).expand(50, -1), torch.zeros(50))]))
    assert result.score.isfinite().all() and result.log_evidence.isfinite().all()


class Noiseless(FunctionModel):
    """Covariance theta_0 everywhere and no noise: singular, unless there is one row; negative for a negative theta."""

    dim, input_dim = 1, FEATURES

    def location(self) -> Tensor:
        return torch.zeros(1, dtype=torch.float64)

    def noise(self, theta: Tensor, x: Tensor) -> Tensor:
        return 0.0 * self.mean(theta, x)

    def mean(self, theta: Tensor, x: Tensor) -> Tensor:
        return theta.expand(-1, -1, x.shape[1]) * 0.0

    def covariance(self, theta: Tensor, x: Tensor, other: Tensor | None = None) -> Tensor:
        columns = (x if other is None else other).shape[1]
        return theta.unsqueeze(-1).expand(-1, -1, x.shape[1], columns)

    def variance(self, theta: Tensor, x: Tensor) -> Tensor:
        return theta.expand(-1, -1, x.shape[1])

    def embedding(self, theta: Tensor, x: Tensor) -> Tensor | None:
        return None


def test_jitter_goes_to_those_who_need_it_and_is_reported() -> None:
    result = particle_scores(Noiseless(), numbers([[1.0], [4.0]]), clients((1, 50)))
    torch.testing.assert_close(result.jitter, numbers([[0.0, 0.0], [1e-8, 4e-8]]))
    assert result.score.isfinite().all() and result.log_evidence.isfinite().all()


@pytest.mark.parametrize("level", [-1.0, 0.0, torch.nan, torch.inf])
def test_a_particle_that_cannot_be_factored_fails_alone(level: float) -> None:
    theta, batch = numbers([[2.0], [level]]), clients((1, 4))
    result = particle_scores(Noiseless(), theta, batch)
    expected = particle_scores(Noiseless(), theta[:1], batch)
    assert result.score[:, 1].isnan().all() and result.log_evidence[:, 1].isnan().all()
    close(result.score[:, :1], expected.score, 1e-14)
    close(result.log_evidence[:, :1], expected.log_evidence, 1e-14)


@every_model
def test_float32_is_float32_and_near(name: str) -> None:
    model, batch = models()[name], clients()
    theta = particles(model, 2)
    double, single = (particle_scores(model, theta.to(t), batch.to(dtype=t)) for t in (torch.float64, torch.float32))
    assert {t.dtype for t in single} == {torch.float32}
    close(single.log_evidence.double(), double.log_evidence, 1e-4)
    close(single.score.double(), double.score, 1e-3)


def test_the_inputs_are_left_as_they_are() -> None:
    model, batch = models()["deep"], clients()
    theta = particles(model, 2)
    kept = [t.clone() for t in (theta, batch.x, batch.y, batch.mask)]
    first = particle_scores(model, theta, batch)
    assert all(torch.equal(t, k) for t, k in zip((theta, batch.x, batch.y, batch.mask), kept, strict=True))
    again = particle_scores(model, theta.requires_grad_(), batch)
    assert not again.score.requires_grad and torch.equal(first.score, again.score)


def test_an_offset_common_to_all_features_costs_no_digits() -> None:
    """The kernel sees differences alone, so the last bias of its network may be anything."""
    model = DeepKernelGP(2, mean_widths=(4,), kernel_widths=(4,))
    generator = torch.Generator().manual_seed(11)
    theta = model.location() + 0.5 * torch.randn(2, model.dim, generator=generator, dtype=torch.float64)
    rows = [torch.randn(m, 3, generator=generator, dtype=torch.float64) for m in (4, 9)]
    batch = ClientBatch.pad([(one[:, :2], one[:, 2]) for one in rows])
    far = theta.clone()
    far[:, -2:] = 1e4
    near = theta.clone()
    near[:, -2:] = 0.0
    assert list(model.shapes)[-1].endswith("biases.1") and math.prod(model.shapes[list(model.shapes)[-1]]) == 2
    a, b = particle_scores(model, far, batch), particle_scores(model, near, batch)
    torch.testing.assert_close(a.log_evidence, b.log_evidence, rtol=1e-10, atol=0)
    torch.testing.assert_close(a.score[..., :-2], b.score[..., :-2], rtol=1e-8, atol=1e-9)
