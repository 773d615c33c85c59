"""Networks with random weights: torch's own layers, Pyro's trace and the plain likelihood agree."""

from __future__ import annotations

import pyro
import pytest
import torch
from pyro import poutine
from torch import Tensor, nn

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.models.fixed_weights import FixedWeights
from pacbayes_fl.models.likelihoods import Categorical, Gaussian, Likelihood
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP

SIZES = (5, 2, 7)
K = len(SIZES)


def randn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def clients(classes: int | None, *feature: int) -> ClientBatch:
    rows = []
    for k, m in enumerate(SIZES):
        y = randn(10 + k, m)
        rows.append((randn(k, m, *feature), y if classes is None else (3 * y).long().abs() % classes))
    return ClientBatch.pad(rows, classes=classes)


def torch_s(model: BayesianMLP, theta: Tensor, x: Tensor) -> Tensor:
    """Apply torch's own layers with one client's flat weights."""
    layers: list[nn.Module] = []
    for layer, (n_in, n_out) in enumerate(zip(model.sizes, model.sizes[1:], strict=False)):
        linear = nn.Linear(n_in, n_out, dtype=theta.dtype)
        weight, bias = theta[: n_in * n_out], theta[n_in * n_out : (n_in + 1) * n_out]
        linear.weight.data, linear.bias.data = weight.view(n_in, n_out).T, bias
        theta = theta[(n_in + 1) * n_out :]
        layers += [nn.ReLU(), linear] if layer else [linear]
    assert len(theta) == 0
    out: Tensor = nn.Sequential(nn.Flatten(), *layers)(x).detach()
    return out


def test_sites_stand_in_the_order_of_the_layers_and_count_as_in_the_papers() -> None:
    model = BayesianMLP((784, 100, 10), Categorical(10))
    assert dict(model.shapes) == {"weight_0": (784, 100), "bias_0": (100,), "weight_1": (100, 10), "bias_1": (10,)}
    assert model.dim == 79_510 and model.dtype == torch.float32
    assert model.span("weight_0") == slice(0, 78_400) and model.span("bias_1") == slice(79_500, 79_510)
    with pytest.raises(TypeError):
        model.shapes["mine"] = (1,)  # type: ignore[index]


@pytest.mark.parametrize("sizes", [(2, 1), (2, 4, 3), (2, 5, 4, 3)])
def test_outputs_are_those_of_torch_s_layers(sizes: tuple[int, ...]) -> None:
    model = BayesianMLP(sizes, Categorical(sizes[-1]), torch.float64)
    batch, theta = clients(None, 2), randn(30, K, model.dim)
    outputs = model.forward(model.unflatten(theta), batch)
    assert outputs.shape == (K, max(SIZES), sizes[-1])
    for k in range(K):
        torch.testing.assert_close(outputs[k], torch_s(model, theta[k], batch.x[k]), rtol=1e-12, atol=1e-13)


def test_images_are_flattened_and_inputs_take_the_weights_dtype() -> None:
    model = BayesianMLP((12, 4, 3), Categorical(3))
    batch, theta = clients(None, 3, 2, 2), randn(30, K, model.dim).float()
    outputs = model.forward(model.unflatten(theta), batch)
    assert outputs.dtype == torch.float32
    torch.testing.assert_close(outputs[1], torch_s(model, theta[1], batch.x[1].float()), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("likelihood", [Gaussian(0.3), Categorical(3)], ids=["gaussian", "categorical"])
def test_the_likelihood_is_what_the_program_observes_and_what_pyro_s_distribution_says(likelihood: Likelihood) -> None:
    model = BayesianMLP((2, 4, likelihood.outputs), likelihood, torch.float64)
    batch, theta = clients(likelihood.classes, 2), randn(30, K, model.dim)
    value = model.log_likelihood(theta, batch)
    scale = torch.tensor([2.0, 0.5, 3.0], dtype=torch.float64)
    with pyro.validation_enabled(True):
        trace = poutine.trace(model.model).get_trace(batch, FixedWeights(model.unflatten(theta)), 0.7, scale)
        trace.compute_log_prob()
    torch.testing.assert_close(trace.nodes["y"]["log_prob"], scale * value, rtol=1e-12, atol=0)
    observation = model.observation(theta, batch)
    assert observation.batch_shape == (K, max(SIZES))
    for k, m in enumerate(SIZES):
        alone = model.log_likelihood(theta[k : k + 1], batch.select(torch.tensor([k])).trim())
        torch.testing.assert_close(value[k], alone[0], rtol=1e-12, atol=0)
        torch.testing.assert_close(value[k], observation.log_prob(batch.y)[k, :m].sum(), rtol=1e-12, atol=0)
    assert not pyro.get_param_store().keys()


def test_padding_reaches_neither_value_nor_gradient() -> None:
    model = BayesianMLP((2, 4, 3), Categorical(3), torch.float64)
    batch, theta = clients(3, 2), randn(30, K, model.dim).requires_grad_(True)
    (slope,) = torch.autograd.grad(model.log_likelihood(theta, batch).sum(), theta)
    far = ClientBatch(torch.where(batch.mask.unsqueeze(-1), batch.x, 1e3), batch.y, batch.mask, batch.ids, batch.names)
    (other,) = torch.autograd.grad(model.log_likelihood(theta, far).sum(), theta)
    assert torch.equal(slope, other)
