"""GP posteriors: against worked examples, GPyTorch without padding, and what must hold when data or a factor fail."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import gpytorch
import pytest
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean
from gpytorch.models import ExactGP
from torch import Tensor

from pacbayes_fl import bounds
from pacbayes_fl.bounds.divergence import full_gaussian_kl, gp_posterior_kl
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import ShapeError
from pacbayes_fl.models.base import FunctionModel
from pacbayes_fl.models.functions.deep_kernel_gp import DeepKernelGP
from pacbayes_fl.models.functions.gpytorch_prior import GPyTorchPrior
from pacbayes_fl.models.likelihoods import inverse_softplus
from pacbayes_fl.posteriors.functions import gaussian_process
from pacbayes_fl.posteriors.functions.conditioning import refined
from pacbayes_fl.posteriors.functions.gaussian_process import (
    JITTERS,
    Factor,
    GPPosterior,
    add_noise,
    condition,
    factorise,
    function_kl,
    gaussian_log_evidence,
    inverse,
)
from pacbayes_fl.posteriors.predictive import FunctionPosterior
from pacbayes_fl.posteriors.weights.mixture import log_mixture_kl

SIZES = (5, 1, 12, 3)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def numbers(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def clients(d: int, sizes: tuple[int, ...] = SIZES) -> ClientBatch:
    x, y = draw(sum(sizes), d, seed=1), draw(sum(sizes), seed=2)
    return ClientBatch.pad(list(zip(x.split(sizes), y.split(sizes), strict=True)), allow_empty=True)


@cache
def models() -> dict[str, FunctionModel]:
    return {
        "deep": DeepKernelGP(2),
        "learned scales": DeepKernelGP(2, (8,), (8,), learn_lengthscale=True, learn_outputscale=True),
        "no networks": DeepKernelGP(2, None, None, learn_outputscale=True, linear_kernel=True),
        "noise and slopes": DeepKernelGP(2, (8,), (8,), learn_outputscale=True, noise_widths=(4,), linear_kernel=True),
        "gpytorch": GPyTorchPrior(ConstantMean(), ScaleKernel(RBFKernel()), 2),
    }


def particles(model: FunctionModel, *shape: int) -> Tensor:
    return model.location() + 0.4 * draw(*shape, model.dim, seed=3)


every_model = pytest.mark.parametrize("name", models())


# Worked example: X = (0, 1, 2.5), two hyper-parameters, prediction at 1.7; all numbers by numpy.


def worked_example(embedded: bool, **options: Any) -> GPPosterior:
    batch = ClientBatch.pad([(numbers([[0.0], [1.0], [2.5]]), numbers([0.3, -0.2, 1.1]))])
    raw_noise = numbers([inverse_softplus(0.5), inverse_softplus(0.3)])
    means, lengths, zero = numbers([0.0, 0.2]), numbers([1.0, 0.5]), numbers([0.0, 0.0])
    if embedded:  # a linear mean 0 x + b and a linear feature x / l
        model: FunctionModel = DeepKernelGP(1, mean_widths=(), kernel_widths=(), feature_dim=1)
        theta = torch.stack((raw_noise, zero, means, 1 / lengths, zero), -1)
    else:
        model = GPyTorchPrior(ConstantMean(), RBFKernel(), 1)
        theta = torch.stack((raw_noise, means, lengths.expm1().log()), -1)
    return condition(model, theta.unsqueeze(0), batch, **options)


@pytest.mark.quick
@pytest.mark.parametrize("embedded", [True, False])
def test_posterior_of_the_worked_example(embedded: bool) -> None:
    mixture = worked_example(embedded).predict(numbers([[[1.7]]]))
    exact = {"rtol": 1e-8, "atol": 0.0}
    torch.testing.assert_close(mixture.means[0, :, 0], numbers([0.341279759386652, 0.28366870284781337]), **exact)
    torch.testing.assert_close(mixture.variances[0, :, 0], numbers([0.5161959576354638, 0.8900450512855985]), **exact)
    torch.testing.assert_close(mixture.weights[0], numbers([0.4251141621, 0.5748858379]), rtol=1e-9, atol=0)
    half = numbers([[0.5]])
    assert mixture.mean.item() == pytest.approx(0.30815997887655733, rel=1e-8)
    assert mixture.variance.item() == pytest.approx(0.7319276527696585, rel=1e-8)
    assert mixture.cdf(half).item() == pytest.approx(0.5892967236534183, rel=1e-8)
    assert -mixture.log_prob(half).item() == pytest.approx(0.7610952967261092, rel=1e-8)
    assert mixture.quantile(numbers([0.1])).item() == pytest.approx(-0.779073626432134, rel=1e-8)


@pytest.mark.parametrize("embedded", [True, False])
def test_equal_weights_are_another_mixture(embedded: bool) -> None:
    mixture = worked_example(embedded, weighting="equal").predict(numbers([[[1.7]]]))
    half = numbers([[0.5]])
    assert mixture.weights.dtype == torch.float64
    assert mixture.mean.item() == pytest.approx(0.3124742311172327, rel=1e-8)
    assert mixture.cdf(half).item() == pytest.approx(0.589052342775024, rel=1e-8)
    assert -mixture.log_prob(half).item() == pytest.approx(0.7404721006424908, rel=1e-8)


# Against GPyTorch, client by client, without padding.


class Reference(ExactGP):
    def __init__(self, x: Tensor, y: Tensor, theta: dict[str, Tensor], noise: Tensor) -> None:
        likelihood = GaussianLikelihood(noise_constraint=gpytorch.constraints.Positive()).double()
        likelihood.noise = noise
        super().__init__(x, y, likelihood)
        self.mean, self.kernel = ConstantMean().double(), ScaleKernel(RBFKernel()).double()
        with torch.no_grad():
            for name, value in theta.items():
                if name != "raw_noise":
                    self.get_parameter(name).copy_(value)

    def forward(self, x: Tensor) -> MultivariateNormal:
        return MultivariateNormal(self.mean(x), self.kernel(x))


@pytest.mark.quick
def test_equals_exact_gps_in_evaluation_mode() -> None:
    model, batch, x = GPyTorchPrior(ConstantMean(), ScaleKernel(RBFKernel()), 2), clients(2), draw(4, 7, 2, seed=5)
    theta = particles(model, 4, 3)
    mixture = condition(model, theta, batch).predict(x)
    for k, m in enumerate(SIZES):
        for p in range(3):
            named = model.unflatten(theta[k, p])
            gp = Reference(
                batch.x[k, :m], batch.y[k, :m], named, model.noise(theta[k : k + 1, p : p + 1], x[:1])[0, 0, 0]
            )
            gp.eval()
            with torch.no_grad():
                predictive = gp.likelihood.eval()(gp(x[k]))
            torch.testing.assert_close(mixture.means[k, p], predictive.mean, rtol=1e-9, atol=1e-10)
            torch.testing.assert_close(mixture.variances[k, p], predictive.variance, rtol=1e-9, atol=1e-10)


def test_joint_values_are_those_of_exact_gps_and_their_mixture() -> None:
    model, batch, x = GPyTorchPrior(ConstantMean(), ScaleKernel(RBFKernel()), 2), clients(2), draw(4, 5, 2, seed=5)
    theta, y = particles(model, 4, 3), draw(4, 5, seed=6)
    posterior = condition(model, theta, batch)
    joint = posterior.joint(x)
    assert joint.batch_shape == (4,) and joint.event_shape == (5,)
    for k, m in enumerate(SIZES):
        each = []
        for p in range(3):
            named, noise = model.unflatten(theta[k, p]), model.noise(theta[k : k + 1, p : p + 1], x[:1])[0, 0, 0]
            gp = Reference(batch.x[k, :m], batch.y[k, :m], named, noise).eval()
            with torch.no_grad(), gpytorch.settings.fast_pred_var(False):
                function = gp(x[k])
            torch.testing.assert_close(posterior.covariance(x)[k, p], function.covariance_matrix, rtol=1e-8, atol=1e-9)
            dense = torch.distributions.MultivariateNormal(function.mean, function.covariance_matrix)
            each.append(posterior.log_weights[k, p] + dense.log_prob(y[k]))
        torch.testing.assert_close(joint.log_prob(y)[k], torch.stack(each).logsumexp(0), rtol=1e-6, atol=1e-6)
    with pytest.raises(ShapeError, match="x must be"):
        posterior.joint(x[..., :1])
    known = replace(posterior, whitener=100 * posterior.whitener)
    assert bool(known.joint(x).sample().isnan().any(-1).all()), "no factor stands in for one of no covariance"


@every_model
def test_draws_of_the_joint_have_its_marginals_and_equal_values_at_equal_inputs(name: str) -> None:
    model, batch = models()[name], clients(2)
    x = draw(4, 1, 2, seed=5).expand(4, 3, 2)
    posterior = condition(model, particles(model, 4, 3), batch)
    torch.testing.assert_close(
        posterior.covariance(x).diagonal(dim1=-2, dim2=-1), posterior.function(x).variances, rtol=1e-9, atol=1e-10
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        drawn = posterior.joint(x).sample((4000,))
    marginal = posterior.function(x)
    assert drawn.shape == (4000, 4, 3)
    spread = marginal.variance.sqrt()
    assert bool(((drawn.mean(0) - marginal.mean).abs() < 5 * spread / 4000**0.5).all())
    assert bool(((drawn - drawn[..., :1]).abs() < 0.02 * spread).all()), "one function has one value at one input"


@every_model
def test_equals_the_conditional_of_the_joint_prior(name: str) -> None:
    model, batch, x = models()[name], clients(2), draw(4, 7, 2, seed=5)
    theta = particles(model, 4, 3)
    mixture = condition(model, theta, batch).predict(x)
    for k, m in enumerate(SIZES):
        joint, noise = model.prior(theta[k : k + 1], torch.cat((batch.x[k, :m], x[k]))[None])
        for p in range(3):
            covariance = joint.covariance_matrix[0, p] + noise[0, p].diag()
            gain = torch.linalg.solve(covariance[:m, :m], covariance[:m, m:]).mT
            mean = joint.mean[0, p, m:] + gain @ (batch.y[k, :m] - joint.mean[0, p, :m])
            variance = covariance.diagonal()[m:] - (gain * covariance[m:, :m]).sum(-1)
            torch.testing.assert_close(mixture.means[k, p], mean, rtol=1e-9, atol=1e-10)
            torch.testing.assert_close(mixture.variances[k, p], variance, rtol=1e-9, atol=1e-10)


@every_model
def test_weights_are_shares_of_the_evidence(name: str) -> None:
    model, batch = models()[name], clients(2)
    theta = particles(model, 4, 3)
    posterior = condition(model, theta, batch)
    value, _ = gaussian_log_evidence(*model.prior(theta, batch.x), batch.y, batch.mask)
    torch.testing.assert_close(posterior.log_evidence, value, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(posterior.log_weights.exp(), value.softmax(1), rtol=1e-10, atol=1e-12)


@every_model
def test_points_and_clients_do_not_see_each_other(name: str) -> None:
    model, batch, x = models()[name], clients(2), draw(4, 7, 2, seed=5)
    theta = particles(model, 4, 3)
    whole = condition(model, theta, batch).predict(x)
    for k in range(4):
        alone = condition(model, theta[k : k + 1], batch.select(torch.tensor([k])).trim())
        for n in range(7):
            point = alone.predict(x[k : k + 1, n : n + 1])
            torch.testing.assert_close(point.means[0, :, 0], whole.means[k, :, n], rtol=1e-10, atol=1e-11)
            torch.testing.assert_close(point.variances[0, :, 0], whole.variances[k, :, n], rtol=1e-10, atol=1e-11)


@every_model
def test_a_client_without_rows_predicts_by_the_prior(name: str) -> None:
    model, batch, x = models()[name], clients(2, (5, 0)), draw(2, 7, 2, seed=5)
    theta = particles(model, 2, 3)
    mixture = condition(model, theta, batch).predict(x)
    torch.testing.assert_close(mixture.weights[1], numbers([1 / 3] * 3), rtol=1e-14, atol=0)
    torch.testing.assert_close(mixture.means[1], model.mean(theta, x)[1], rtol=1e-12, atol=1e-13)
    prior = model.variance(theta, x) + model.noise(theta, x)
    torch.testing.assert_close(mixture.variances[1], prior[1], rtol=1e-12, atol=0)


@every_model
def test_variance_never_falls_below_the_noise(name: str) -> None:
    model, batch = models()[name], clients(2)
    theta = particles(model, 4, 3)
    theta[..., 0] = inverse_softplus(1e-6)  # its floor: at training points nothing but the noise is left
    mixture = condition(model, theta, batch).predict(batch.x)
    assert (mixture.variances >= model.noise(theta, batch.x)).all()


@every_model
def test_float32_is_float32_and_near(name: str) -> None:
    model, batch, x = models()[name], clients(2), draw(4, 7, 2, seed=5)
    theta = particles(model, 4, 3)
    for weighting in ("evidence", "equal"):
        double = condition(model, theta, batch, weighting).predict(x)
        single = condition(model, theta.float(), batch.to(dtype=torch.float32), weighting).predict(x.float())
        for part in ("log_weights", "means", "variances"):
            assert getattr(single, part).dtype == torch.float32
            torch.testing.assert_close(getattr(single, part).double(), getattr(double, part), rtol=1e-3, atol=1e-4)


# Factors.


def with_smallest_eigenvalue(value: float, size: int = 6) -> Tensor:
    basis = torch.linalg.qr(draw(size, size)).Q
    spectrum = torch.cat((numbers([value]), torch.linspace(0.5, 1.5, size - 1, dtype=torch.float64)))
    symmetric = (basis * spectrum) @ basis.mT
    return 0.5 * (symmetric + symmetric.mT)


def test_every_covariance_climbs_its_own_ladder() -> None:
    smallest = [0.1, -5e-9, -3e-7, -3e-5, -3e-3]
    matrix = torch.stack([with_smallest_eigenvalue(value) for value in smallest]).unsqueeze(1)
    mask = torch.ones(5, 6, dtype=torch.bool)
    factor = factorise(matrix, mask)
    assert factor.ok.flatten().tolist() == [True, True, True, True, False]
    level = matrix.diagonal(dim1=-2, dim2=-1).mean(-1)
    rungs = numbers([0.0, *JITTERS]).unsqueeze(-1)
    torch.testing.assert_close(factor.jitter[:4], rungs * level[:4], rtol=1e-14, atol=0)
    identity = torch.eye(6, dtype=torch.float64)
    rebuilt = factor.cholesky @ factor.cholesky.mT
    torch.testing.assert_close(
        rebuilt[:4], (matrix + factor.jitter[..., None, None] * identity)[:4], rtol=0, atol=1e-14
    )
    assert torch.equal(factor.cholesky[4, 0], identity)


def test_jitter_is_measured_by_real_rows_and_goes_to_them_alone() -> None:
    mask = torch.tensor([[True] * 50 + [False] * 3])
    matrix = torch.zeros(1, 2, 53, 53, dtype=torch.float64)
    matrix[:, :, :50, :50] = numbers([1.0, 4.0]).view(2, 1, 1)
    factor = factorise(add_noise(matrix, torch.zeros(1, 2, 53, dtype=torch.float64), mask), mask)
    torch.testing.assert_close(factor.jitter, numbers([[1e-8, 4e-8]]), rtol=1e-14, atol=0)
    log_determinant = 2 * factor.cholesky.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    assert float(log_determinant[0, 0]) == pytest.approx(49 * math.log(1e-8) + math.log(50 + 1e-8), rel=1e-8)
    assert float(log_determinant[0, 0]) == pytest.approx(-898.70, abs=0.01)
    assert torch.equal(factor.cholesky[0, 0, 50:], torch.eye(53, dtype=torch.float64)[50:])


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_is_marked(value: float) -> None:
    matrix = torch.eye(3, dtype=torch.float64).repeat(2, 1, 1, 1)
    matrix[0, 0, 1, 1] = value
    factor = factorise(matrix, torch.ones(2, 3, dtype=torch.bool))
    assert factor.ok.tolist() == [[False], [True]] and factor.cholesky.isfinite().all()


def test_inverse_is_symmetric_and_right() -> None:
    matrix = torch.stack([with_smallest_eigenvalue(0.1), with_smallest_eigenvalue(0.4)]).unsqueeze(0)
    inverted = inverse(factorise(matrix, torch.ones(1, 6, dtype=torch.bool)))
    torch.testing.assert_close(inverted, torch.linalg.inv(matrix), rtol=1e-12, atol=1e-13)
    assert torch.equal(inverted, inverted.mT) and inverted.is_contiguous()


# What fails, fails alone.


class Choice(DeepKernelGP):  # type: ignore[misc]  # final, but here only one answer is changed
    """Some particles have no covariance."""

    def embedding(self, theta: Tensor, x: Tensor) -> None:
        return None

    def bind(self, theta: Tensor) -> Any:
        return lambda x: (self.mean(theta, x), None)

    def covariance(self, theta: Tensor, x: Tensor, other: Tensor | None = None) -> Tensor:
        covariance = super().covariance(theta, x, other)
        return torch.where(theta[..., -1, None, None] > 100.0, -covariance, covariance)


@pytest.mark.parametrize("weighting", ["evidence", "equal"])
def test_a_particle_that_cannot_be_factored_fails_alone(weighting: Any) -> None:
    model, batch, x = Choice(2, (4,), (4,)), clients(2, (5, 3)), draw(2, 7, 2, seed=5)
    theta = particles(model, 2, 3)
    theta[0, 1, -1] += 1e6  # the last bias moves all features alike: nothing but the sign changes
    mixture = condition(model, theta, batch, weighting).predict(x)
    rest = condition(model, theta[:, [0, 2]], batch, weighting).predict(x)
    assert mixture.weights[0, 1] == 0 and mixture.weights[1].gt(0).all()
    assert mixture.mean.isfinite().all() and mixture.variance.isfinite().all()
    torch.testing.assert_close(mixture.mean[0], rest.mean[0], rtol=1e-10, atol=1e-12)
    theta[0, :, -1] += 1e6  # now no particle of the first client is left
    mixture = condition(model, theta, batch, weighting).predict(x)
    assert mixture.mean[0].isnan().all() and mixture.mean[1].isfinite().all()


@every_model
def test_a_client_that_is_not_finite_fails_alone(name: str) -> None:
    model, batch, x = models()[name], clients(2), draw(4, 7, 2, seed=5)
    theta = particles(model, 4, 3)
    clean = condition(model, theta, batch).predict(x)
    faulty = batch.x.clone()
    faulty[2, 4] = torch.nan
    mixture = condition(model, theta, replace(batch, x=faulty)).predict(x)
    others = [0, 1, 3]
    assert mixture.mean[2].isnan().all()
    torch.testing.assert_close(mixture.mean[others], clean.mean[others], rtol=1e-12, atol=1e-13)


# KL divergences --------------------------------------------------------------------------------------------------


def test_kl_of_known_normals() -> None:
    one = [numbers([0.5]), numbers([[0.04]]), numbers([0.0]), numbers([[1.0]])]
    assert full_gaussian_kl(*one).item() == pytest.approx(1.2544379124341003, rel=1e-12)
    assert full_gaussian_kl(*one[2:], *one[:2]).item() == pytest.approx(13.515562087565897, rel=1e-12)
    a, b = numbers([0.5, -1.0]), numbers([0.0, 0.0])
    cov_a, cov_b = numbers([[0.5, 0.2], [0.2, 0.4]]), numbers([[1.0, 0.3], [0.3, 2.0]])
    assert full_gaussian_kl(a, cov_a, b, cov_b).item() == pytest.approx(1.0461250754165132, rel=1e-12)
    assert full_gaussian_kl(b, cov_b, a, cov_a).item() == pytest.approx(4.260157647096576, rel=1e-12)
    assert full_gaussian_kl(a, cov_a, a, cov_a).item() == pytest.approx(0.0, abs=1e-15)


@pytest.mark.parametrize("name", list(models()))
def test_kl_of_the_posterior_is_that_at_the_rows_and_makes_the_elbo_tight(name: str) -> None:
    """ln Z = E_q ln N(y | f, s^2) - KL(q || p): an exact posterior leaves no gap."""
    model, batch = models()[name], clients(2)
    theta = particles(model, batch.clients, 3)
    posterior = condition(model, theta, batch)
    got = posterior.kl()
    for k in range(batch.clients):
        rows = int(batch.size[k])
        one = batch.select(torch.tensor([k])).trim(rows)
        noise = model.noise(theta[k : k + 1], one.x)[0]
        mean, covariance = model.mean(theta[k : k + 1], one.x)[0], model.covariance(theta[k : k + 1], one.x)[0]
        for p in range(3):
            gain = torch.linalg.solve(covariance[p] + noise[p].diag(), covariance[p]).mT
            q_mean = mean[p] + gain @ (one.y[0] - mean[p])
            q_covariance = covariance[p] - gain @ covariance[p]
            residual = (one.y[0] - q_mean).square() + q_covariance.diagonal()
            likelihood = -0.5 * (residual / noise[p] + (2 * math.pi * noise[p]).log()).sum()
            tight = likelihood - posterior.log_evidence[k, p]
            assert got[k, p].item() == pytest.approx(tight.item(), rel=1e-9, abs=1e-9)
            jitter = 1e-10 * torch.eye(rows).double()  # only for the dense check: a smooth kernel is nearly singular
            if name != "deep":
                dense = full_gaussian_kl(q_mean, q_covariance + jitter, mean[p], covariance[p] + jitter)
                assert got[k, p].item() == pytest.approx(dense.item(), rel=1e-4)


def test_kl_of_a_client_without_rows_is_zero() -> None:
    model, batch = models()["deep"], clients(2, (0, 4))
    assert condition(model, particles(model, 2, 3), batch).kl()[0].tolist() == [0.0, 0.0, 0.0]


# more rows -------------------------------------------------------------------------------------------------------


def spread_clients(sizes: tuple[int, ...], seed: int = 1) -> ClientBatch:
    """Return clients whose inputs are far enough apart for covariances that a dense check can invert."""
    rows = []
    for k, m in enumerate(sizes):
        corner = torch.arange(m).double().view(-1, 1)
        at = (
            torch.cat((corner, 0.5 * corner), 1) + 0.1 * draw(m, 2, seed=10 * seed + k) - 0.5 * seed
        )  # between the others
        rows.append((at, draw(m, seed=20 * seed + k)))
    return ClientBatch.pad(rows, allow_empty=True)


def joined(first: ClientBatch, second: ClientBatch) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Return rows (x_a, y_a, x_b, y_b) of every client."""
    return [
        (a.x[k][a.mask[k]], a.y[k][a.mask[k]], b.x[k][b.mask[k]], b.y[k][b.mask[k]])
        for a, b in [(first, second)]
        for k in range(a.clients)
    ]


def dense(
    model: FunctionModel, theta: Tensor, x: Tensor, y: Tensor, at: Tensor, jitter: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Mean and covariance of the function at inputs, given rows, under one particle."""
    one, both = theta.view(1, 1, -1), torch.cat((x, at)).unsqueeze(0)
    mean, covariance, m = model.mean(one, both)[0, 0], model.covariance(one, both)[0, 0], len(x)
    noisy = covariance[:m, :m] + (model.noise(one, x.unsqueeze(0))[0, 0] + jitter).diag()
    gain = torch.linalg.solve(noisy, covariance[:m, m:]).mT
    return mean[m:] + gain @ (y - mean[:m]), covariance[m:, m:] - gain @ covariance[:m, m:]


@every_model
def test_the_function_is_the_prediction_without_noise(name: str) -> None:
    model, batch, x = models()[name], clients(2), draw(4, 7, 2, seed=5)
    theta = particles(model, 4, 3)
    posterior = condition(model, theta, batch)
    function, prediction = posterior.function(x), posterior.predict(x)
    assert isinstance(posterior, FunctionPosterior)
    assert torch.equal(function.means, prediction.means) and torch.equal(function.log_weights, prediction.log_weights)
    assert torch.equal(function.variances + model.noise(theta, x), prediction.variances)
    for k, (a, y, _, _) in enumerate(joined(batch, batch)):
        mean, covariance = dense(model, theta[k, 1], a, y, x[k])
        torch.testing.assert_close(function.means[k, 1], mean, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(function.variances[k, 1], covariance.diagonal(), rtol=1e-9, atol=1e-9)
    certain = condition(model, theta, replace(batch, x=batch.x[:, :1].expand_as(batch.x))).function(batch.x[:, :1])
    assert (certain.variances >= 0).all()


def short(seed: int = 3, *shape: int) -> tuple[FunctionModel, Tensor]:
    """Return a prior with lengthscales below the distance of inputs."""
    model = models()["gpytorch"]
    return model, model.location() + 0.3 * draw(*shape, model.dim, seed=seed)


def short_with_noise_and_slopes() -> tuple[FunctionModel, Tensor]:
    """Return the like, whose features are the inputs, every row with its noise and every client with its slopes."""
    model = DeepKernelGP(2, (3,), (), noise_widths=(3,), linear_kernel=True)
    theta = model.location() + 0.5 * draw(4, 3, model.dim, seed=3)
    model.unflatten(theta)["kernel.network.weights.0"].copy_(2.0 * torch.eye(2, dtype=torch.float64))
    return model, theta


@pytest.mark.parametrize("weighting", ["evidence", "equal"])
@pytest.mark.parametrize(
    "prior_of", [lambda: short(3, 4, 3), short_with_noise_and_slopes], ids=["plain", "noise and slopes"]
)
def test_the_divergence_of_refined_posteriors_is_that_at_all_inputs(weighting: Any, prior_of: Any) -> None:
    early, late = spread_clients((5, 0, 3, 1)), spread_clients((2, 4, 0, 6), seed=2)
    model, theta = prior_of()
    assert (model.noise(theta, early.x).std(-1) > 0.01).any() == isinstance(model, DeepKernelGP)
    prior = condition(model, theta, early, weighting)
    posterior, kl = refined(prior, early, late, weighting)
    by_particle = function_kl(posterior, prior, early)
    assert kl.dtype == torch.float64 and kl.shape == (4,)
    for k, (x_a, y_a, x_b, y_b) in enumerate(joined(early, late)):
        x, y = torch.cat((x_a, x_b)), torch.cat((y_a, y_b))
        for p in range(3):
            q = dense(model, theta[k, p], x, y, x)
            expected = full_gaussian_kl(*q, *dense(model, theta[k, p], x_a, y_a, x))
            assert by_particle[k, p].item() == pytest.approx(expected.item(), rel=1e-9, abs=1e-9)
    weights = [one.log_weights.exp() for one in (posterior, prior)]
    torch.testing.assert_close(kl, bounds.mixture_kl(weights[0], by_particle, weights[1]), rtol=1e-9, atol=1e-9)
    assert (kl[[0, 1, 3]] > 0.01).all() and kl[2] < 1e-12
    whole = condition(model, theta, early.extend(late), weighting)
    assert isinstance(posterior, GPPosterior) and isinstance(whole, GPPosterior)
    for ours, theirs in zip(posterior.alpha, whole.alpha, strict=True):  # padding of each set stands behind it
        torch.testing.assert_close(ours[ours != 0], theirs[theirs != 0], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(posterior.log_weights, whole.log_weights, rtol=1e-9, atol=1e-9)


@every_model
def test_from_no_rows_the_divergence_is_that_from_the_prior(name: str) -> None:
    model, batch = models()[name], clients(2)
    theta, none = particles(model, 4, 3), clients(2, (0, 0, 0, 0))
    posterior, kl = refined(condition(model, theta, none), none, batch)
    torch.testing.assert_close(kl, gp_posterior_kl(condition(model, theta, batch)), rtol=1e-9, atol=1e-9)
    by_particle = function_kl(posterior, condition(model, theta, none), none)
    assert torch.equal(by_particle, posterior.kl().clamp_min(0.0))


@every_model
def test_refining_does_not_depend_on_padding_or_on_other_clients(name: str) -> None:
    model, early, late = models()[name], clients(2, (4, 0, 7, 2)), clients(2)
    theta = particles(model, 4, 3)
    _, whole = refined(condition(model, theta, early), early, late)
    for k in range(4):
        index = torch.tensor([k])
        one, more = early.select(index).trim(), late.select(index).trim()
        _, alone = refined(condition(model, theta[k : k + 1], one), one, more)
        torch.testing.assert_close(alone, whole[k : k + 1], rtol=1e-9, atol=1e-9)
    turned = late.select(torch.tensor([2, 0, 3, 1]))  # clients are told apart by their ids
    torch.testing.assert_close(refined(condition(model, theta, early), early, turned)[1], whole, rtol=1e-9, atol=1e-9)


def test_no_more_rows_change_nothing() -> None:
    model, batch = models()["deep"], clients(2)
    prior = condition(model, particles(model, 4, 3), batch)
    posterior, kl = refined(prior, batch, clients(2, (0, 0, 0, 0)))
    assert torch.equal(posterior.alpha[..., : prior.alpha.shape[2]], prior.alpha) and (kl < 1e-11).all()


def test_in_float32_the_divergence_is_still_that_in_float64() -> None:
    model, early, late = models()["deep"], clients(2, (4, 0, 7, 2)).to(dtype=torch.float32), clients(2)
    late = late.to(dtype=torch.float32)
    theta = particles(model, 4, 3).float()
    posterior, kl = refined(condition(model, theta, early), early, late)
    first, then = (batch.to(dtype=torch.float64) for batch in (early, late))
    _, expected = refined(condition(model, theta.double(), first), first, then)
    assert posterior.alpha.dtype == torch.float32
    torch.testing.assert_close(kl, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("first", "then"), [(0.0, 0.3), (0.3, 0.0), (0.2, 0.2)])
def test_jitter_is_noise_of_the_rows(first: float, then: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever jitter P and Q needed, the divergence is that of the two posteriors that predict."""
    early, late = spread_clients((4, 3)), spread_clients((2, 3), seed=2)
    model, theta = short(4, 2, 2)

    def jittered(batch: ClientBatch, jitter: float) -> GPPosterior:
        def climb(matrix: Tensor, mask: Tensor) -> Factor:
            more = jitter * torch.diag_embed(mask.to(matrix).unsqueeze(1).expand(matrix.shape[:-1]))
            return factorise(matrix + more, mask)._replace(jitter=matrix.new_full(matrix.shape[:2], jitter))

        with monkeypatch.context() as patch:
            patch.setattr(gaussian_process, "factorise", climb)
            return condition(model, theta, batch)

    everything = early.extend(late)
    posterior, prior = jittered(everything, then), jittered(early, first)
    got = function_kl(posterior, prior, early)
    for k, (x_a, y_a, x_b, y_b) in enumerate(joined(early, late)):
        x, y = torch.cat((x_a, x_b)), torch.cat((y_a, y_b))
        for p in range(2):
            q, w = dense(model, theta[k, p], x, y, x, then), dense(model, theta[k, p], x_a, y_a, x, first)
            assert got[k, p].item() == pytest.approx(full_gaussian_kl(*q, *w).item(), rel=1e-9, abs=1e-9)


def test_what_cannot_be_factored_is_infinitely_far_where_it_counts() -> None:
    model, early, late = Choice(2, (4,), (4,)), clients(2, (5, 3)), clients(2, (2, 2))
    none, theta = clients(2, (0, 0)), particles(Choice(2, (4,), (4,)), 2, 3)
    theta[0, 1, -1] += 1e6
    kept = theta[:, [0, 2]]
    rest = refined(condition(model, kept, early), early, late)[1]
    result = refined(condition(model, theta, early), early, late)[1]  # neither P nor Q has the particle
    torch.testing.assert_close(result[0], rest[0], rtol=1e-9, atol=1e-9)
    result = refined(condition(model, theta, none), none, early)[1]  # P has it, and Q has not
    fewer = refined(condition(model, kept, none), none, early)[1]
    torch.testing.assert_close(result[0], fewer[0] + math.log(3 / 2), rtol=1e-9, atol=1e-9)
    prior = condition(model, theta, early)
    only = replace(prior, log_weights=torch.tensor([[0.0, 0.0, -torch.inf]]).double().log_softmax(1).expand(2, -1))
    kl = log_mixture_kl(prior.log_weights, only.log_weights, torch.zeros(2, 3))
    assert kl.tolist() == [math.inf, math.inf]  # Q has what P has not
    theta[0, :, -1] += 1e6
    assert refined(condition(model, theta, early), early, late)[1][0] == math.inf


@pytest.mark.parametrize("name", [*models()])
def test_leave_one_out_residuals_are_those_of_refits_without_the_row(name: str) -> None:
    """Rasmussen and Williams, eqs. 5.10 to 5.12, against as many posteriors as there are rows."""
    model = models()[name]
    batch = clients(model.input_dim, (5, 1, 7))
    theta = model.location() + 0.3 * draw(3, 2, model.dim, seed=5)
    residuals = condition(model, theta, batch).leave_one_out()
    assert torch.equal(residuals.mask, batch.mask)
    for k, m in enumerate((5, 1, 7)):
        for i in range(m):
            rest = [j for j in range(m) if j != i]
            x, y = batch.x[k], batch.y[k]
            alone = ClientBatch.pad([(x[rest], y[rest])], allow_empty=True)
            known = condition(model, theta[k : k + 1], alone).predict(x[i].view(1, 1, -1))
            z = (y[i] - known.means[0, :, 0]) / known.stds[0, :, 0]
            torch.testing.assert_close(residuals.z[k, :, i], z, rtol=1e-7, atol=1e-9)
