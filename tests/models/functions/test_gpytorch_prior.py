"""Anybody's GPyTorch modules as a prior: hyper-parameters from outside, batched or one by one."""

from __future__ import annotations

import copy
import itertools
import pickle
from functools import cache
from typing import Any

import gpytorch
import pytest
import torch
from gpytorch.constraints import Interval
from gpytorch.kernels import CosineKernel, IndexKernel, LinearKernel, MaternKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import (
    BernoulliLikelihood,
    FixedNoiseGaussianLikelihood,
    GaussianLikelihood,
    Likelihood,
    MultitaskGaussianLikelihood,
    StudentTLikelihood,
)
from gpytorch.means import ConstantMean, LinearMean, Mean
from torch import Tensor, nn
from torch.distributions import Laplace, Normal

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import ShapeError, StudyError
from pacbayes_fl.federation.personalisation import join
from pacbayes_fl.inference.evidence import particle_scores
from pacbayes_fl.methods.pac_pfl.gp import PacPFL
from pacbayes_fl.models.functions.gpytorch_prior import GPyTorchPrior
from pacbayes_fl.models.prior_values import PriorGradients
from pacbayes_fl.posteriors.functions.gaussian_process import condition, gaussian_log_evidence


class NetworkMean(Mean):
    """What a user may write: a plain torch layer, which does not broadcast over batches of weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        mean: Tensor = self.layer(x).squeeze(-1)
        return mean


class InputNoise(Likelihood):
    """Targets whose noise grows to one side; `times` makes it something that is no likelihood of a Gaussian process."""

    def __init__(self, times: float = 0.0, moved: float = 0.0, kind: Any = Normal) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.tensor([0.3, -0.2]))
        self.times, self.moved, self.kind = times, moved, kind

    def forward(self, f: Tensor, x: Tensor) -> Any:
        std = ((x * self.slope.unsqueeze(-2)).sum(-1) + self.times * f).exp()
        return self.kind(f + self.moved, std)


class LayerNoise(InputNoise):
    """The like, with a layer that does not broadcast."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, f: Tensor, x: Tensor) -> Any:
        return Normal(f, (self.layer(x) @ self.slope[:1] + 0.1 * self.slope[1]).exp())


@cache
def priors() -> dict[str, GPyTorchPrior]:
    return {
        "constant, rbf": GPyTorchPrior(ConstantMean(), RBFKernel(), 2),
        "linear, scaled matern": GPyTorchPrior(LinearMean(2), ScaleKernel(MaternKernel(1.5, ard_num_dims=2)), 2),
        "constant, rbf plus linear": GPyTorchPrior(ConstantMean(), RBFKernel() + LinearKernel(), 2),
    }


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def one_by_one(model: GPyTorchPrior, theta: Tensor, x: Tensor) -> list[Tensor]:
    """Call the modules themselves, with one set of parameters after the other put into them."""
    mean, kernel = model._parts.mean, model._parts.kernel
    parts = [torch.zeros(*theta.shape[:2], *x.shape[1:2] * times, dtype=theta.dtype) for times in (1, 2, 1)]
    with torch.no_grad():
        for at in itertools.product(*map(range, theta.shape[:2])):
            for name, value in model.unflatten(theta[at]).items():
                model._parts.get_parameter(name).copy_(value)
            rows = x[at[0]]
            parts[0][at], parts[1][at], parts[2][at] = mean(rows), kernel(rows).to_dense(), kernel(rows, diag=True)
    return parts


@pytest.mark.parametrize("name", priors())
def test_batched_equals_one_by_one(name: str) -> None:
    model = priors()[name]
    assert model.batched
    theta, x = draw(3, 2, model.dim), draw(3, 4, 2, seed=1)
    expected = one_by_one(model, theta, x)
    for model.batched in (True, False):
        result = model.mean(theta, x), model.covariance(theta, x), model.variance(theta, x)
        for part, other in zip(result, expected, strict=True):
            torch.testing.assert_close(part, other, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", priors())
def test_a_part_of_theta_is_what_unflatten_calls_so(name: str) -> None:
    model = priors()[name]
    theta = draw(3, 2, model.dim)
    parts = model.unflatten(theta)
    assert torch.equal(torch.cat([part.reshape(3, 2, -1) for part in parts.values()], -1), theta)
    for key, part in parts.items():
        assert part.shape == (3, 2, *model.shapes[key]) and torch.equal(model.part(theta, key), part)
    model.part(theta, next(iter(parts))).zero_()
    assert not theta[..., 0].any()  # a view


def test_a_module_that_does_not_broadcast_is_called_one_by_one() -> None:
    model = GPyTorchPrior(NetworkMean(), RBFKernel(), 2)
    assert not model.batched
    theta, x = draw(3, 2, model.dim), draw(3, 4, 2, seed=1)
    named = model.unflatten(theta)
    expected = x.unsqueeze(1) @ named["mean.layer.weight"].mT
    expected = expected.squeeze(-1) + named["mean.layer.bias"]
    torch.testing.assert_close(model.mean(theta, x), expected, rtol=1e-12, atol=1e-13)
    assert model.covariance(theta, x, x[:, :3]).shape == (3, 2, 4, 3)
    prior, vjp = model.with_vjp(theta, x)
    by = torch.ones_like(prior.mean), torch.zeros_like(prior.noise), torch.zeros_like(prior.kernel)
    weight = model.unflatten(vjp(PriorGradients(*by)))["mean.layer.weight"]
    torch.testing.assert_close(weight.squeeze(-2), x.sum(1).unsqueeze(1).expand(3, 2, 2))


def test_theta_holds_what_is_free_and_nothing_else() -> None:
    kernel = ScaleKernel(RBFKernel())
    kernel.raw_outputscale.requires_grad_(False)
    kernel.outputscale = 2.5
    model = GPyTorchPrior(ConstantMean(), kernel, 2, noise_std=0.1)
    assert list(model.shapes) == ["raw_noise", "mean.raw_constant", "kernel.base_kernel.raw_lengthscale"]
    assert model.dim == 3 and model.input_dim == 2
    theta, x = draw(1, 1, 3), draw(1, 4, 2)
    torch.testing.assert_close(model.variance(theta, x), torch.full((1, 1, 4), 2.5, dtype=torch.float64))
    centre = model.location()
    assert centre[1:].eq(0).all()
    assert float(model.noise(centre.view(1, 1, -1), x[:, :1])) == pytest.approx(0.01, rel=1e-12)
    assert model.embedding(theta, x) is None


@pytest.mark.parametrize("name", priors())
def test_float32_stays_float32(name: str) -> None:
    model = priors()[name]
    theta, x = draw(3, 2, model.dim), draw(3, 4, 2, seed=1)
    for part in (model.mean, model.covariance, model.variance):
        single = part(theta.float(), x.float())
        assert single.dtype == torch.float32
        torch.testing.assert_close(single.double(), part(theta, x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [2, 4])
def test_theta_of_another_size_is_refused(size: int) -> None:
    model = GPyTorchPrior(ConstantMean(), RBFKernel(), 2)
    with pytest.raises(ShapeError, match=r"D=3, got \[1, 1, "):
        model.mean(torch.zeros(1, 1, size, dtype=torch.float64), torch.zeros(1, 4, 2, dtype=torch.float64))


def test_a_mean_of_another_shape_is_refused() -> None:
    class TwoColumns(Mean):
        def forward(self, x: Tensor) -> Tensor:
            return x

    with pytest.raises(ShapeError, match=r"must give \[N\]"):
        GPyTorchPrior(TwoColumns(), RBFKernel(), 2)


def test_the_modules_own_parameters_do_not_matter() -> None:
    mean, kernel = gpytorch.means.ConstantMean(), RBFKernel()
    model = GPyTorchPrior(mean, kernel, 1)
    theta, x = draw(1, 2, 3), draw(1, 4, 1)
    before = model.mean(theta, x), model.covariance(theta, x)
    with torch.no_grad():
        for parameter in (*mean.parameters(), *kernel.parameters()):
            parameter.fill_(7.0)
    assert torch.equal(model.mean(theta, x), before[0]) and torch.equal(model.covariance(theta, x), before[1])


def test_the_hyper_prior_is_centred_on_the_constants_that_means_hold() -> None:
    class Sum(Mean):
        def __init__(self) -> None:
            super().__init__()
            self.level, self.slope = ConstantMean(), LinearMean(2)
            self.level.constant = 3.0

        def forward(self, x: Tensor) -> Tensor:
            total: Tensor = self.level(x) + self.slope(x)
            return total

    plain = ConstantMean()
    plain.constant = -2.0
    for mean, level in ((plain, -2.0), (Sum(), 3.0), (ConstantMean(), 0.0)):
        model = GPyTorchPrior(mean, RBFKernel(), 2)
        at = model.mean(model.location().view(1, 1, -1), draw(1, 4, 2))
        assert torch.equal(at, torch.full((1, 1, 4), level, dtype=torch.float64))


def test_the_hyper_prior_is_centred_on_the_values_that_constrained_parameters_hold() -> None:
    kernel = ScaleKernel(RBFKernel(lengthscale_constraint=Interval(0.5, 3.0, initial_value=2.0))) + LinearKernel()
    kernel.kernels[0].outputscale, kernel.kernels[1].variance = 5.0, 0.1
    model = GPyTorchPrior(LinearMean(2), kernel.double(), 2)  # weights of a linear mean start anywhere
    x = draw(1, 4, 2)
    assert torch.equal(model.mean(model.location().view(1, 1, -1), x), torch.zeros(1, 1, 4))
    covariance = model.covariance(model.location().view(1, 1, -1), x)
    assert torch.allclose(covariance[0, 0], kernel(x[0]).to_dense(), rtol=1e-6)
    assert (covariance[0, 0].diagonal() > 5.0).all()
    for default in priors().values():
        assert torch.equal(default.location()[1:], torch.zeros(default.dim - 1))


@pytest.mark.parametrize("again", [copy.deepcopy, lambda made: pickle.loads(pickle.dumps(made))])
def test_priors_methods_and_posteriors_survive_a_copy_and_a_pickle(again: Any) -> None:
    method = PacPFL(GPyTorchPrior(ConstantMean(), RBFKernel(), 1), particles=2)
    batch, x = ClientBatch.pad([(draw(4, 1), draw(4))]), draw(1, 3, 1)
    posterior = join(method, method.init_server(torch.Generator().manual_seed(0)), batch, seed=1)
    mean = posterior.predict(x).mean  # before the copy, which then has no part in what is remembered
    assert torch.equal(again(posterior).predict(x).mean, mean)
    assert torch.equal(again(method).hyper_prior.loc, method.hyper_prior.loc)


def test_rows_of_other_features_than_the_prior_s_are_refused_where_the_kernel_takes_them() -> None:
    method = PacPFL(GPyTorchPrior(ConstantMean(), RBFKernel(), 2), particles=2)
    server = method.init_server(torch.Generator().manual_seed(0))
    for features in (1, 3):
        with pytest.raises(ShapeError, match=rf"x must be \[K, N, d\] with K=1, d=2, got \[1, 4, {features}\]"):
            join(method, server, ClientBatch.pad([(draw(4, features), draw(4))]), seed=1)
    posterior = join(method, server, ClientBatch.pad([(draw(4, 2), draw(4))] * 3), seed=1)
    assert posterior.predict(draw(1, 5, 2)).mean.shape == (3, 5)  # the same inputs for every client
    with pytest.raises(ShapeError, match=r"x must be \[K, N, d\] with K=3, d=2, got \[2, 5, 2\]"):
        posterior.predict(draw(2, 5, 2))


def test_a_class_instead_of_an_object_is_refused() -> None:
    with pytest.raises(
        StudyError, match=r"kernel must be an object of gpytorch's Kernel, got the class RBFKernel \(write"
    ):
        GPyTorchPrior(ConstantMean(), RBFKernel, 2)
    with pytest.raises(StudyError, match=r"mean must be an object of gpytorch's Mean, got the class ConstantMean"):
        GPyTorchPrior(ConstantMean, RBFKernel(), 2)
    with pytest.raises(StudyError, match=r"mean must be an object of gpytorch's Mean, got Linear$"):
        GPyTorchPrior(nn.Linear(2, 1), RBFKernel(), 2)  # type: ignore[arg-type]


def test_priors_that_would_count_for_nothing_are_refused() -> None:
    prior = gpytorch.priors.GammaPrior(3.0, 6.0)
    for kernel, name in (
        (RBFKernel(lengthscale_prior=prior), "kernel.lengthscale_prior"),
        (ScaleKernel(RBFKernel(lengthscale_prior=prior)), "kernel.base_kernel.lengthscale_prior"),
        (ScaleKernel(RBFKernel(), outputscale_prior=prior), "kernel.outputscale_prior"),
    ):
        with pytest.raises(StudyError, match=rf"{name} \(GammaPrior\).*GaussianHyperPrior\(prior\.location"):
            GPyTorchPrior(ConstantMean(), kernel, 2)
    mean = ConstantMean(constant_prior=gpytorch.priors.NormalPrior(0.0, 1.0))
    with pytest.raises(StudyError, match=r"mean\.mean_prior \(NormalPrior\)"):
        GPyTorchPrior(mean, RBFKernel(), 2)


@pytest.mark.parametrize("wrap", [lambda kernel: kernel, ScaleKernel])
def test_features_of_another_number_are_refused_by_the_kernel_s_name(wrap: Any) -> None:
    with pytest.raises(ShapeError, match=r"inputs \[N, 3\]: kernel(\.base_kernel)? has ard_num_dims=2"):
        GPyTorchPrior(ConstantMean(), wrap(RBFKernel(ard_num_dims=2)), 3)
    some = GPyTorchPrior(ConstantMean(), wrap(RBFKernel(ard_num_dims=2, active_dims=(0, 2))), 3)
    theta, x = draw(3, 2, some.dim), draw(3, 4, 3, seed=1)
    expected = one_by_one(some, theta, x)[1]
    torch.testing.assert_close(some.covariance(theta, x), expected, rtol=1e-12, atol=1e-13)
    with pytest.raises(ShapeError, match=r"inputs \[N, 3\]: "):
        GPyTorchPrior(LinearMean(2), RBFKernel(), 3)


@pytest.mark.parametrize("wrap", [lambda kernel: kernel, ScaleKernel, lambda kernel: RBFKernel() * kernel])
def test_a_kernel_of_whole_numbers_is_refused_by_its_name(wrap: Any) -> None:
    said = r"^kernel\S* \(IndexKernel\) must take all real numbers, as standardised rows have them: .*index"
    with pytest.raises(StudyError, match=said):
        GPyTorchPrior(ConstantMean(), wrap(IndexKernel(num_tasks=3)), 1)


@pytest.mark.parametrize("wrap", [lambda kernel: kernel, ScaleKernel, lambda kernel: LinearKernel() + kernel])
def test_a_kernel_that_is_no_covariance_of_so_many_features_is_refused_by_its_name(wrap: Any) -> None:
    """The cosine of a distance is positive definite on a line alone."""
    said = r"^kernel\S* \(CosineKernel\) gives no covariance of rows of 2 features: .* active_dims=\(0,\)"
    with pytest.raises(StudyError, match=said):
        GPyTorchPrior(ConstantMean(), wrap(CosineKernel()), 2)
    for kernel, features in ((wrap(CosineKernel()), 1), (wrap(CosineKernel(active_dims=(0,))), 2)):
        one = GPyTorchPrior(ConstantMean(), kernel, features)
        covariance = one.covariance(draw(1, 1, one.dim), draw(1, 40, features, seed=2))
        assert torch.linalg.eigvalsh(covariance).min() > -1e-9


# likelihoods ----------------------------------------------------------------------------------------------------


def test_a_gaussian_likelihood_is_the_noise_of_the_prior() -> None:
    likelihood = GaussianLikelihood()
    likelihood.noise = 0.09
    own, plain = GPyTorchPrior(ConstantMean(), RBFKernel(), 2, likelihood=likelihood), priors()["constant, rbf"]
    assert own.batched and next(iter(own.shapes)) == "likelihood.noise_covar.raw_noise" and own.dim == plain.dim
    likelihood.noise = 3.0  # afterwards: what a prior was given with is its own
    x, y = draw(3, 4, 2, seed=1), draw(3, 4, seed=2)
    centre = own.location().expand(3, 2, -1)
    torch.testing.assert_close(
        own.noise(centre, x), torch.full((3, 2, 4), 0.09, dtype=torch.float64), rtol=1e-6, atol=0
    )
    theta = draw(3, 2, own.dim)
    same = theta.clone()
    same[..., 0] = own.noise(theta, x)[..., 0].sqrt().expm1().log()  # softplus^-1 of the same std
    batch = ClientBatch(x, y, torch.ones(3, 4, dtype=torch.bool), tuple("abc"), tuple("abc"))
    mine, theirs = particle_scores(own, theta, batch), particle_scores(plain, same, batch)
    torch.testing.assert_close(mine.log_evidence, theirs.log_evidence, rtol=1e-10, atol=0)
    torch.testing.assert_close(mine.score[..., 1:], theirs.score[..., 1:], rtol=1e-9, atol=1e-11)
    ours, other = condition(own, theta, batch).predict(x), condition(plain, same, batch).predict(x)
    torch.testing.assert_close(ours.variances, other.variances, rtol=1e-10, atol=0)


@pytest.mark.parametrize("likelihood", [InputNoise(), LayerNoise()], ids=["broadcasts", "one by one"])
def test_a_likelihood_of_one_s_own_gives_every_row_its_noise(likelihood: InputNoise) -> None:
    model = GPyTorchPrior(ConstantMean(), RBFKernel(), 2, likelihood=likelihood)
    assert model.batched != isinstance(likelihood, LayerNoise)
    held = torch.cat([p.detach().flatten() for p in likelihood.parameters()])
    torch.testing.assert_close(model.location()[: len(held)], held)
    theta, x, y = draw(3, 2, model.dim), draw(3, 4, 2, seed=1), draw(3, 4, seed=2)
    noise, named = model.noise(theta, x), model.unflatten(theta)
    slope = named["likelihood.slope"]
    raw = (x.unsqueeze(1) * slope.unsqueeze(-2)).sum(-1)
    if isinstance(likelihood, LayerNoise):
        inner = x.unsqueeze(1) @ named["likelihood.layer.weight"].mT + named["likelihood.layer.bias"].unsqueeze(-2)
        raw = inner.squeeze(-1) * slope[..., :1] + 0.1 * slope[..., 1:]
    torch.testing.assert_close(noise, (2 * raw).exp(), rtol=1e-12, atol=0)
    batch = ClientBatch(x, y, torch.ones(3, 4, dtype=torch.bool), tuple("abc"), tuple("abc"))
    at = theta.clone().requires_grad_()
    value, _ = gaussian_log_evidence(*model.prior(at, x), y, batch.mask)
    (expected,) = torch.autograd.grad(value.sum(), at)
    scores = particle_scores(model, theta, batch)
    torch.testing.assert_close(scores.score, expected, rtol=1e-9, atol=1e-11)
    at_rows = condition(model, theta, batch)
    torch.testing.assert_close(at_rows.predict(x).variances, at_rows.function(x).variances + noise)


@pytest.mark.parametrize(
    ("likelihood", "got"),
    [
        (StudentTLikelihood(), "StudentTLikelihood gives a StudentT"),
        (BernoulliLikelihood(), "BernoulliLikelihood gives a Bernoulli"),
        (MultitaskGaussianLikelihood(2), "MultitaskGaussianLikelihood gives an error"),
        (FixedNoiseGaussianLikelihood(torch.ones(4)), "FixedNoiseGaussianLikelihood gives"),
        (InputNoise(kind=Laplace), "InputNoise gives a Laplace"),
        (InputNoise(moved=1.0), "InputNoise gives a normal around something else"),
        (InputNoise(times=1.0), "InputNoise gives a noise that inputs alone do not decide"),
        (nn.Linear(2, 1), "likelihood must be an object of gpytorch's Likelihood, got Linear"),
        (GaussianLikelihood, r"got the class GaussianLikelihood \(write GaussianLikelihood"),
        (GaussianLikelihood(noise_prior=gpytorch.priors.GammaPrior(3.0, 6.0)), r"noise_prior \(GammaPrior\)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_normal_with_a_noise_per_row_is_refused_by_name(likelihood: Any, got: str) -> None:
    with pytest.raises(StudyError, match=got):
        GPyTorchPrior(ConstantMean(), RBFKernel(), 2, likelihood=likelihood)


def test_one_noise_beside_a_likelihood_is_refused() -> None:
    with pytest.raises(StudyError, match=r"noise_std=0\.1 would count for nothing beside a likelihood"):
        GPyTorchPrior(ConstantMean(), RBFKernel(), 2, 0.1, GaussianLikelihood())
