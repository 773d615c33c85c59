"""The paper's prior: deep mean and deep kernel, as GPyTorch modules and, beside them, with the gradient written out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import final

import torch
from gpytorch.kernels import Kernel, RBFKernel, ScaleKernel
from gpytorch.means import Mean, ZeroMean
from torch import Tensor
from torch.func import functional_call

from pacbayes_fl.models.base import FunctionModel, PriorValues, Pullback
from pacbayes_fl.models.functions.gpytorch_prior import GPyTorchPrior as GPyTorchPrior
from pacbayes_fl.models.functions.networks import BatchedMLP, Layers, activations, layer_gradients, shared_outputs
from pacbayes_fl.models.likelihoods import NOISE_STD, gaussian_noise, gaussian_noise_slope


class DeepMean(Mean):
    """Network mean m(x) (PAC-PFL section 8.3.2).

    Args:
        sizes: numbers of units from d inputs to 1 output.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        """Make the network."""
        super().__init__()
        self.network = BatchedMLP(sizes)

    def forward(self, x: Tensor) -> Tensor:
        """Mean at inputs.

        Args:
            x: [*, N, d].

        Returns:
            [*, N].
        """
        mean: Tensor = self.network(x).squeeze(-1)
        return mean


class DeepKernel(Kernel):
    """Kernel on a network's features, k(x, x') = k_base(f(x), f(x')) (PAC-PFL section 8.3.2; Wilson et al. 2016).

    Args:
        sizes: numbers of units from d inputs to the features.
        base: kernel on the features.
    """

    def __init__(self, sizes: Sequence[int], base: Kernel) -> None:
        """Make the network."""
        super().__init__()
        self.network = BatchedMLP(sizes)
        self.base = base

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **_: object) -> Tensor:
        """Covariance between inputs.

        Args:
            x1: [*, N, d].
            x2: [*, M, d].
            diag: give the diagonal only.
            **_: GPyTorch's other options, which do not matter here.

        Returns:
            [*, N, M], or [*, N] with `diag`.
        """
        kernel = self.base(self.network(x1), self.network(x2), diag=diag)
        dense: Tensor = kernel if diag else kernel.to_dense()
        return dense


@final
class DeepKernelGP(FunctionModel):
    """The paper's prior: tanh mean network, squared-exponential kernel on a tanh network, Gaussian noise.

    k(x, x') = exp(-|f(x) - f(x')|^2 / 2), f to 2 dimensions (PAC-PFL section 8.3.2). Lengthscale and outputscale are 1,
    as in the paper, or learned.

    Args:
        input_dim: number of input features, d.
        mean_widths: hidden units of the mean network; None for a zero mean, () for a linear one.
        kernel_widths: hidden units of the kernel network.
        feature_dim: number of features that the kernel network gives.
        learn_lengthscale: make the lengthscale a hyper-parameter.
        learn_outputscale: make the outputscale a hyper-parameter.
        noise_std: centre of the hyper-prior of the noise standard deviation, in units of y.
    """

    def __init__(
        self,
        input_dim: int,
        mean_widths: Sequence[int] | None = (32, 32),
        kernel_widths: Sequence[int] = (32, 32),
        feature_dim: int = 2,
        learn_lengthscale: bool = False,
        learn_outputscale: bool = False,
        noise_std: float = NOISE_STD,
    ) -> None:
        """Build the GPyTorch modules."""
        base = RBFKernel().double()
        base.lengthscale = 1.0
        base.raw_lengthscale.requires_grad_(learn_lengthscale)
        kernel = DeepKernel((input_dim, *kernel_widths, feature_dim), ScaleKernel(base) if learn_outputscale else base)
        mean = ZeroMean() if mean_widths is None else DeepMean((input_dim, *mean_widths, 1))
        self._definition = GPyTorchPrior(mean, kernel, input_dim, noise_std)
        self._closed_form = not (learn_lengthscale or learn_outputscale)
        self._network = kernel.network

    @property
    def dim(self) -> int:
        """Number of hyper-parameters, D."""
        return self._definition.dim

    @property
    def input_dim(self) -> int:
        """Number of input features, d."""
        return self._definition.input_dim

    @property
    def shapes(self) -> Mapping[str, torch.Size]:
        """Names and shapes of the hyper-parameters, in theta's order."""
        return self._definition.shapes

    def location(self) -> Tensor:
        """Centre of the default hyper-prior [D]; see the base class."""
        return self._definition.location()

    def unflatten(self, theta: Tensor) -> dict[str, Tensor]:
        """Cut theta [*, D] into views [*, *shape] by name; see `GPyTorchPrior.unflatten`."""
        return self._definition.unflatten(theta)

    def noise(self, theta: Tensor) -> Tensor:
        """Observation noise variance [K, P] of hyper-parameters theta [K, P, D]; see the base class."""
        return self._definition.noise(theta)

    def mean(self, theta: Tensor, x: Tensor) -> Tensor:
        """Prior mean [K, P, N] under theta [K, P, D] at x [K, N, d]; see the base class."""
        return self._definition.mean(theta, x)

    def covariance(self, theta: Tensor, x: Tensor, other: Tensor | None = None) -> Tensor:
        """Covariance [K, P, N, M] under theta [K, P, D] between x [K, N, d] and other [K, M, d]; see the base class."""
        return self._definition.covariance(theta, x, other)

    def variance(self, theta: Tensor, x: Tensor) -> Tensor:
        """Prior variance [K, P, N] under theta [K, P, D] at x [K, N, d]; see the base class."""
        return self._definition.variance(theta, x)

    def embedding(self, theta: Tensor, x: Tensor) -> Tensor | None:
        """Network features z [K, P, N, F] under theta [K, P, D] at x [K, N, d]; None when a scale is learned."""
        if not self._closed_form:
            return None
        prefix = "kernel.network."
        weights = {
            n.removeprefix(prefix): p for n, p in self._definition.unflatten(theta).items() if n.startswith(prefix)
        }
        z: Tensor = functional_call(self._network, weights, (x.unsqueeze(1),))
        return z

    def bind(self, theta: Tensor) -> Callable[[Tensor], tuple[Tensor, Tensor | None]]:
        """Mean and embedding as a function of x [K, N, d] for fixed theta [K, P, D]; see the base class."""
        if not self._closed_form:
            return self.bind_slowly(theta)
        if len(theta) > 1 and theta.stride(0) == 0 and not theta.is_cuda:
            return self._bind_shared(theta[0])
        mean, kernel = self._networks(theta.flatten(0, 1))
        particles = theta.shape[1]

        def evaluate(x: Tensor) -> tuple[Tensor, Tensor | None]:
            rows = _by_network(x.unsqueeze(1).expand(-1, particles, -1, -1), 1)
            values = [_by_client(activations(layers, rows)[-1], particles, 1) for layers in (mean, kernel) if layers]
            return values[0].squeeze(-1) if mean else x.new_zeros(len(x), particles, x.shape[1]), values[-1]

        return evaluate

    def _bind_shared(self, theta: Tensor) -> Callable[[Tensor], tuple[Tensor, Tensor | None]]:
        """Do as `bind` for particles [P, D] that all clients share, without a copy of them for every client."""
        mean, kernel = self._networks(theta)

        def evaluate(x: Tensor) -> tuple[Tensor, Tensor | None]:
            location = shared_outputs(mean, x).squeeze(-1) if mean else x.new_zeros(len(x), len(theta), x.shape[1])
            return location, shared_outputs(kernel, x)

        return evaluate

    def with_vjp(self, theta: Tensor, x: Tensor) -> tuple[PriorValues, Pullback]:
        """Prior at x [K, N, d] and its vjp to theta [P, D] or [K, P, D], written out; see the base class.

        Particles that all clients share make P networks with K * N rows each, whose gradients are kept apart by client;
        otherwise there are K * P networks with N rows each.
        """
        if not self._closed_form:
            return self.with_vjp_by_autograd(theta, x)
        particles, groups = theta.shape[-2], len(x) if theta.dim() == 2 else 1
        flat = theta.detach().flatten(0, -2)
        rows = _by_network(x.unsqueeze(1).expand(-1, particles, -1, -1), groups)
        networks = {
            name: layers for name, layers in zip(("mean", "kernel"), self._networks(flat), strict=True) if layers
        }
        values = {name: activations(layers, rows) for name, layers in networks.items()}
        outputs = {name: _by_client(value[-1], particles, groups) for name, value in values.items()}
        mean = outputs["mean"].squeeze(-1) if "mean" in outputs else x.new_zeros(outputs["kernel"].shape[:-1])
        noise = gaussian_noise(theta[..., 0]).expand(len(x), particles)

        def vjp(grad_mean: Tensor, grad_noise: Tensor, grad_embedding: Tensor) -> Tensor:
            score = flat.new_empty(len(flat), groups, self.dim)
            named = self.unflatten(score)
            raw_slope = gaussian_noise_slope(flat[:, :1])
            named["raw_noise"].copy_(raw_slope * _by_network(grad_noise[..., None, None], groups).squeeze(-1))
            for name, layers in networks.items():
                grad_output = _by_network(grad_embedding if name == "kernel" else grad_mean.unsqueeze(-1), groups)
                gradients = layer_gradients(layers, values[name], grad_output, groups)
                for part, tensors in zip(Layers._fields, gradients, strict=True):
                    for layer, gradient in enumerate(tensors):
                        named[f"{name}.network.{part}.{layer}"].copy_(gradient)
            return _by_client(score, particles, groups).squeeze(-2)

        return PriorValues(mean, noise, outputs["kernel"], True), vjp

    def _networks(self, flat: Tensor) -> tuple[Layers | None, Layers]:
        """Cut hyper-parameters [B, D] into the layers of the mean network, if there is one, and of the kernel's."""
        named = self.unflatten(flat)

        def layers(prefix: str) -> Layers:
            return Layers(
                *([v for n, v in named.items() if n.startswith(f"{prefix}.network.{f}")] for f in Layers._fields)
            )

        mean, kernel = layers("mean"), layers("kernel")
        return mean if mean.weights else None, kernel


def _by_network(values: Tensor, groups: int) -> Tensor:
    """Bring values [K, P, N, F] to networks [B, groups * N, F]; groups = K where particles are shared, else 1."""
    batched: Tensor = values.unflatten(0, (-1, groups)).transpose(1, 2).flatten(2, 3).flatten(0, 1)
    return batched


def _by_client(values: Tensor, particles: int, groups: int) -> Tensor:
    """Undo `_by_network`: [B, groups * N, F] to [K, P, N, F]."""
    split: Tensor = values.unflatten(0, (-1, particles)).unflatten(2, (groups, -1))  # [*, P, groups, N, F]
    return split.transpose(1, 2).flatten(0, 1)
