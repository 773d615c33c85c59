"""The Laplace approximation by its definition, one client at a time: networks in plain torch, dense Jacobians.

The curvature of a likelihood is the Hessian that torch.func finds of torch's own losses; nothing here knows of factors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pyro
import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, conv2d, cross_entropy, max_pool2d, softplus

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.models.base import WeightModel
from pacbayes_fl.models.likelihoods import Categorical, Gaussian, Likelihood
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP, BayesianNetwork
from pacbayes_fl.models.weights.convolutional import BayesianCNN, BayesianVGG, ImageNetwork
from pacbayes_fl.models.weights.layers import LayerTrace, Traces

Network = Callable[[Tensor, Tensor], Tensor]  # flat weights [D], rows [N, *feature] -> outputs [N, C]

# The network on which the oracles of the subnetwork were computed: 2-2(tanh)-2, its weights written [out, in].
X = ((1.0, 0.5), (-1.0, 2.0), (0.3, -0.7), (2.0, 1.0))
LABELS = (0, 1, 0, 1)
THETA = (0.5, -0.4, 0.3, 0.8, 0.1, -0.2, 1.0, -0.7, 0.6, 0.9, 0.0, 0.1)
OURS = (0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11)  # weights are [in, out] here: the same permutation to and fro


def float64(values: Any) -> Tensor:
    """Make a tensor of numbers."""
    return torch.tensor(values, dtype=torch.float64)


def randn(seed: int, *shape: int) -> Tensor:
    """Return normals of a seed."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class TanhNetwork(BayesianNetwork):
    """Layers with a tanh between, as a user would write them.

    Args:
        sizes: numbers of units from input to output.
        likelihood: of the targets given the outputs.
        recorded: whether it records its layers.
    """

    def __init__(self, sizes: tuple[int, ...], likelihood: Likelihood, recorded: bool = True) -> None:
        super().__init__(likelihood, torch.float64)
        self.sizes, self.recorded = sizes, recorded

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return BayesianMLP(self.sizes, self.likelihood).shapes

    def forward(
        self,
        weights: Mapping[str, Tensor],
        rows: ClientBatch,
        reference: ClientBatch | None = None,
        traces: Traces | None = None,
    ) -> Tensor:
        x = rows.x
        for layer in range(len(self.sizes) - 1):
            taken = torch.tanh(x) if layer else x
            weight, bias = f"weight_{layer}", f"bias_{layer}"
            x = taken @ weights[weight] + weights[bias].unsqueeze(-2)
            if traces is not None and self.recorded:
                traces.append(LayerTrace(weight, bias, taken, x))
        return x


class NoisyCurve(WeightModel):
    """A Pyro program whose layers nobody records: mean and noise of a curve."""

    shapes = {"hidden": (1, 5), "bias": (5,), "out": (5, 2)}  # type: ignore[assignment]  # noqa: RUF012
    dtype = torch.float64

    def model(self, batch: ClientBatch, prior: Any, zeta: float, scale: Tensor) -> None:
        with pyro.plate("clients", batch.clients, dim=-1):
            with pyro.poutine.scale(scale=zeta):
                w = self.draw_weights(prior)
            mean, raw = (torch.tanh(batch.x @ w["hidden"] + w["bias"].unsqueeze(-2)) @ w["out"]).unbind(-1)
            with pyro.poutine.scale(scale=scale):
                rows = pyro.distributions.Normal(mean, 0.05 + softplus(raw)).mask(batch.mask).to_event(1)
                pyro.sample("y", rows, obs=batch.y)


class Program(WeightModel):
    """A network behind the interface of a Pyro program: nobody records its layers."""

    def __init__(self, network: BayesianNetwork) -> None:
        self.network, self.dtype = network, network.dtype

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self.network.shapes

    def model(self, batch: ClientBatch, prior: Any, zeta: float, scale: Tensor) -> None:
        self.network.model(batch, prior, zeta, scale)


# networks in plain torch ------------------------------------------------------------------------------------------


def sites(model: WeightModel, theta: Tensor) -> dict[str, Tensor]:
    """Cut flat weights [D] into sites, in the order of the shapes."""
    result, start = {}, 0
    for name, shape in model.shapes.items():
        size = math.prod(shape)
        result[name] = theta[start : start + size].view(shape)
        start += size
    return result


def plain(model: WeightModel, reference: Tensor | None = None, theta: Tensor | None = None) -> Network:
    """Write a network in plain torch; a VGG's statistics are those of reference rows [M, *] at theta [D]."""
    if isinstance(model, NoisyCurve):
        return lambda at, x: _curve(model, at, x)[..., :1]
    if isinstance(model, Program):
        return plain(model.network)
    if isinstance(model, BayesianVGG):
        assert reference is not None and theta is not None
        statistics = _vgg_statistics(model, theta, reference)
        return lambda at, x: _head(model, at, _vgg(model, at, x, statistics)[0])
    if isinstance(model, BayesianCNN):
        return lambda at, x: _head(model, at, _cnn(model, at, x))
    assert isinstance(model, BayesianMLP | TanhNetwork)
    return lambda at, x: _head(model, at, x)


def _curve(model: NoisyCurve, theta: Tensor, x: Tensor) -> Tensor:
    w = sites(model, theta)
    return torch.tanh(x @ w["hidden"] + w["bias"]) @ w["out"]


def _head(model: WeightModel, theta: Tensor, x: Tensor) -> Tensor:
    w, x = sites(model, theta), x.flatten(1)
    for layer in range(sum(name.startswith("weight_") for name in w)):
        x = (torch.tanh(x) if isinstance(model, TanhNetwork) else x.relu()) if layer else x
        x = x @ w[f"weight_{layer}"] + w[f"bias_{layer}"]
    return x


def _cnn(model: ImageNetwork, theta: Tensor, x: Tensor) -> Tensor:
    w = sites(model, theta)
    for layer in range(2):
        x = max_pool2d(conv2d(x, w[f"conv_{layer}"], w[f"conv_bias_{layer}"]).relu(), 2)
    return x


def _vgg(model: ImageNetwork, theta: Tensor, x: Tensor, known: list[Any]) -> tuple[Tensor, list[Any]]:
    w, used = sites(model, theta), []
    side = (32 - x.shape[-1]) // 2
    x = nn.functional.pad(x, (side, side, side, side))
    for layer in range(5):
        x = conv2d(x, w[f"conv_{layer}"], w[f"conv_bias_{layer}"], padding=1)
        used.append((x.mean((0, 2, 3)).detach(), x.var((0, 2, 3), correction=0).detach()))
        mean, variance = known[layer] if known else used[layer]
        x = batch_norm(x, mean, variance, w[f"gamma_{layer}"], w[f"beta_{layer}"], eps=1e-5)
        x = max_pool2d(x.relu(), 2)
    return x, used


def _vgg_statistics(model: ImageNetwork, theta: Tensor, rows: Tensor) -> list[Any]:
    return _vgg(model, theta, rows, [])[1]


# curvature by its definition --------------------------------------------------------------------------------------


def jacobian(network: Network, theta: Tensor, x: Tensor) -> Tensor:
    """Return J [N, C, D] by torch.func."""
    return torch.func.jacrev(network)(theta, x)  # type: ignore[no-any-return]


def loss_curvature(outputs: Tensor, noise_std: float | Tensor | None) -> Tensor:
    """Return Lambda [N, C, C]: the Hessian of torch's losses by the outputs; no noise for labels."""
    if noise_std is None:
        label = torch.zeros((), dtype=torch.int64)  # the Hessian does not depend on it
        return torch.func.vmap(torch.func.hessian(lambda f: cross_entropy(f, label)))(outputs)  # type: ignore[no-any-return]
    return (torch.as_tensor(noise_std, dtype=outputs.dtype) ** -2).expand(len(outputs))[:, None, None]


def noise_std(model: WeightModel, theta: Tensor, x: Tensor) -> float | Tensor | None:
    """Return the noise of a likelihood, None for labels."""
    if isinstance(model, NoisyCurve):
        return 0.05 + softplus(_curve(model, theta, x)[..., 1])
    network = model.network if isinstance(model, Program) else model
    likelihood = getattr(network, "likelihood")  # noqa: B009
    return likelihood.noise_std if isinstance(likelihood, Gaussian) else None


def ggn(model: WeightModel, theta: Tensor, x: Tensor, index: Tensor | None = None) -> Tensor:
    """Return J' Lambda J [B, B] of one client's rows and some weights [B], all when None."""
    network = plain(model, x, theta)
    curvature = loss_curvature(network(theta, x), noise_std(model, theta, x))
    result = jacobian(network, theta, x)
    result = result if index is None else result[..., index]
    return torch.einsum("ncd,nce,nef->df", result, curvature, result)


def ggn_diagonal(model: WeightModel, theta: Tensor, x: Tensor) -> Tensor:
    """Return the diagonal of J' Lambda J [D]."""
    network = plain(model, x, theta)
    curvature = loss_curvature(network(theta, x), noise_std(model, theta, x))
    result = jacobian(network, theta, x)
    return torch.einsum("ncd,nce,ned->d", result, curvature, result)


def posterior(model: WeightModel, theta: Tensor, x: Tensor, prior: Tensor, index: Tensor) -> Tensor:
    """Return the covariance [B, B] of some weights, prior variances [D] given."""
    return torch.linalg.inv(ggn(model, theta, x, index) + torch.diag(1.0 / prior[index]))


# federations ------------------------------------------------------------------------------------------------------


def clients(model: WeightModel, *sizes: int, feature: tuple[int, ...] = (2,)) -> ClientBatch:
    """Return ragged clients with labels or numbers, whatever the model wants."""
    network = model.network if isinstance(model, Program) else model
    likelihood = getattr(network, "likelihood", Gaussian())
    rows = []
    for k, m in enumerate(sizes):
        x, y = randn(50 + k, m, *feature), randn(70 + k, m)
        rows.append((x, (3 * y).long().abs() % likelihood.classes if isinstance(likelihood, Categorical) else y))
    return ClientBatch.pad(rows, classes=likelihood.classes, allow_empty=True)


def own(batch: ClientBatch, k: int) -> tuple[Tensor, Tensor]:
    """Return one client's real rows."""
    return batch.x[k][batch.mask[k]], batch.y[k][batch.mask[k]]


# torch.nn modules for libraries that want them --------------------------------------------------------------------


def torch_positions(model: WeightModel) -> Tensor:
    """Return where each parameter of `torch_module`, flat, stands among our flat weights [D]."""
    flat = sites(model, torch.arange(model.dim))
    return torch.cat([(t.T if name.startswith("weight_") else t).flatten() for name, t in flat.items()])


def torch_module(model: BayesianNetwork, theta: Tensor) -> nn.Sequential:
    """Write an MLP or CNN in `torch.nn`, with weights theta [D]."""
    layers: list[nn.Module] = []
    if isinstance(model, BayesianCNN):
        for n_out, n_in, size, _ in model.kernels:
            layers += [nn.Conv2d(n_in, n_out, size), nn.ReLU(), nn.MaxPool2d(2)]
    layers.append(nn.Flatten())
    first = len(layers)
    for name, shape in model.shapes.items():
        if name.startswith("weight_"):
            layers += [nn.ReLU()] if len(layers) > first else []
            layers.append(nn.Linear(*shape))
    module = nn.Sequential(*layers).double()
    nn.utils.vector_to_parameters(theta[torch_positions(model)], module.parameters())
    return module
