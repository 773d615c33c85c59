"""Anybody's GPyTorch modules as a prior: hyper-parameters from outside, batched or one by one."""

from __future__ import annotations

import itertools
from typing import Any

import gpytorch
import pytest
import torch
from gpytorch.kernels import LinearKernel, MaternKernel, RBFKernel, ScaleKernel
from gpytorch.means import ConstantMean, LinearMean, Mean
from torch import Tensor, nn

from pacbayes_fl.errors import ShapeError, StudyError
from pacbayes_fl.models.functions.gpytorch_prior import GPyTorchPrior
from pacbayes_fl.models.prior_values import PriorGradients


class NetworkMean(Mean):
    """What a user may write: a plain torch layer, which does not broadcast over batches of weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        mean: Tensor = self.layer(x).squeeze(-1)
        return mean


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
