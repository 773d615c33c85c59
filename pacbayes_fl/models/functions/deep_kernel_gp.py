"""The paper's prior, of GPyTorch modules (`deep_parts`) and, beside them, with the gradient written out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, NamedTuple, final

import torch
from gpytorch.kernels import RBFKernel
from gpytorch.means import ZeroMean
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import softplus

from pacbayes_fl.data.linear_start import LinearStart
from pacbayes_fl.errors import StudyError
from pacbayes_fl.models.base import FunctionModel
from pacbayes_fl.models.functions.deep_parts import DeepKernel, DeepMean, DeepNoise, Scaled, linear_term
from pacbayes_fl.models.functions.gpytorch_prior import GPyTorchPrior
from pacbayes_fl.models.functions.networks import (
    BatchedMLP,
    Layers,
    activations,
    by_client,
    by_network,
    layer_gradients,
    shared_outputs,
)
from pacbayes_fl.models.likelihoods import NOISE_STD, gaussian_noise, gaussian_noise_slope, inverse_softplus
from pacbayes_fl.models.prior_values import PriorGradients, PriorValues, Pullback, Spreads

LINEAR: Final = "mean.linear"
"""Coefficients (w, b) of the linear term among the hyper-parameters."""

OUTPUTSCALE: Final = "kernel.base.raw_outputscale"
"""What `softplus` makes the outputscale of."""

SLOPES: Final = "kernel.slope_std"
"""Standard deviation of clients' own slopes, whose sign is idle: where it is not needed it can go to 0."""

RAW_DOF: Final = "likelihood.raw_dof"
"""Raw degrees of freedom r of Student-t noise, nu = 2 + e^r, where they are learned."""

_NOISE: Final = "likelihood"
_LENGTHSCALE: Final = ("kernel.base.raw_lengthscale", "kernel.base.base_kernel.raw_lengthscale")  # and scaled
_RAW_NOISE: Final = ("raw_noise", "likelihood.raw_noise")  # without a noise network, and with one
_STD: Final = 0.3  # of the default hyper-prior, to which spreads are relative
_OUTPUT: Final = 0.01  # of the last layer of a network beside a start
_DOF: Final = 4.0  # of Student-t noise at the start


class _Own(NamedTuple):
    """Where what clients have of their own starts.

    Args:
        outputscale: variance beside a linear model.
        slopes: standard deviation of slopes.
    """

    outputscale: float
    slopes: float


_BESIDE_NETWORKS: Final = _Own(math.exp(-2.0), 0.1)
_BESIDE_LINES: Final = _Own(math.exp(-4.0), 0.05)


@final
class DeepKernelGP(FunctionModel):
    """The paper's prior: tanh mean network, squared-exponential kernel on a tanh network, Gaussian noise.

    k(x, x') = exp(-|f(x) - f(x')|^2 / 2), f to 2 dimensions (PAC-PFL section 8.3.2). Lengthscale and outputscale are 1,
    as in the paper, or learned. The noise has one variance, as in the paper, or that of `DeepNoise`; it is normal, or
    Student-t.

    Learning may start at a linear model of all clients' rows: the mean gets a term w' x + b, the hyper-prior is centred
    there, w ~ N(w_0, (std / 3)^2 I) and the noise at what that model leaves, the outputscale is learned, from e^-2, and
    the networks' weights have standard deviations 1 / sqrt(fan-in) where the hyper-prior's is .3, so that what is
    learned from few rows is not lost to that linear model. Without networks learning starts at that model itself, which
    no network's symmetry forbids: at its coefficients, an outputscale of e^-4 and slopes of .05, in units of spreads.

    Args:
        input_dim: number of input features, d.
        mean_widths: hidden units of the mean network; None for a zero mean, () for a linear one.
        kernel_widths: hidden units of the kernel network; None for a constant kernel: offsets of clients' own.
        feature_dim: number of features that the kernel network gives.
        learn_lengthscale: make the lengthscale a hyper-parameter.
        learn_outputscale: make the outputscale a hyper-parameter.
        noise_std: centre of the hyper-prior of the noise standard deviation, in units of y.
        linear: the linear model that learning starts at, such as `linear_start.pooled_ridge`; None, as in the paper,
            for no such term. It says the centre of the noise too.
        noise_widths: hidden units of the noise network, which starts close to 0; None for one variance, () for a linear
            one.
        noise_spread: standard deviation of the noise network's weights, relative to that of the hyper-prior.
        linear_kernel: add s^2 (x' x + 1) to the kernel, s a hyper-parameter: slopes of every client's own, from .1.
        dof: degrees of freedom of Student-t noise, above 2; "learned" makes them a hyper-parameter, from 4. Gaussian
            noise when None.

    Example:
        >>> from pacbayes_fl import DeepKernelGP
        >>> DeepKernelGP(2, (8,), (8,)).dim  # hyper-parameters of mean and kernel networks
        76
    """

    def __init__(
        self,
        input_dim: int,
        mean_widths: Sequence[int] | None = (32, 32),
        kernel_widths: Sequence[int] | None = (32, 32),
        feature_dim: int = 2,
        learn_lengthscale: bool = False,
        learn_outputscale: bool = False,
        noise_std: float = NOISE_STD,
        linear: LinearStart | None = None,
        noise_widths: Sequence[int] | None = None,
        noise_spread: float = 0.5,
        linear_kernel: bool = False,
        dof: float | Literal["learned"] | None = None,
    ) -> None:
        """Build the GPyTorch modules."""
        if isinstance(dof, float | int) and not dof > 2.0:
            raise StudyError(f"degrees of freedom must be above 2, where the noise has a variance, got {dof:g}")
        scaled, some = learn_outputscale or linear is not None, mean_widths is not None or linear is not None
        base = RBFKernel().double()
        base.lengthscale = 1.0
        base.raw_lengthscale.requires_grad_(learn_lengthscale)
        sizes = None if kernel_widths is None else (input_dim, *kernel_widths, feature_dim)
        kernel = DeepKernel(sizes, Scaled(base) if scaled else base, linear_kernel)
        mean = DeepMean(input_dim, mean_widths, linear is not None) if some else ZeroMean()
        std = noise_std if linear is None else linear.noise_std
        learned, self._dof = dof == "learned", None if isinstance(dof, str) else dof
        widths = None if noise_widths is None else (input_dim, *noise_widths, 1)
        noise = DeepNoise(widths, std, _DOF if learned else None) if widths is not None or learned else None
        self._definition = GPyTorchPrior(mean, kernel, input_dim, NOISE_STD if noise else std, noise, trial=False)
        self._noise_network: BatchedMLP | None = None if noise is None else noise.network
        self._noise_spread = noise_spread
        self._raw_noise = _RAW_NOISE[noise is not None]
        self._lengthscale = _LENGTHSCALE[scaled] if learn_lengthscale else None
        self._network, self._linear = kernel.network, linear
        self._lines = linear is not None and mean_widths is None and kernel_widths is None
        self._own = _BESIDE_LINES if self._lines else _BESIDE_NETWORKS
        self._spreads = self._relative_spreads()  # which every round asks for

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
        centre = self._definition.location()
        if self._linear is not None:
            named = self.unflatten(centre)
            named[LINEAR][:-1] = self._linear.weight
            named[LINEAR][-1] = self._linear.bias
            named[OUTPUTSCALE].fill_(inverse_softplus(self._own.outputscale))
        if SLOPES in self.shapes:
            self.unflatten(centre)[SLOPES].fill_(self._own.slopes)
        return centre

    def spreads(self) -> Spreads | None:
        """How far the default hyper-prior lets each hyper-parameter go; see the base class."""
        return self._spreads

    def _relative_spreads(self) -> Spreads | None:
        if self._linear is None and self._noise_network is None and not {SLOPES, RAW_DOF} & self.shapes.keys():
            return None
        prior = torch.ones_like(self.location())
        named = self.unflatten(prior)
        if self._linear is not None:
            for name, values in named.items():
                if ".weights." in name:
                    values.fill_(len(values) ** -0.5 / _STD)
            named[LINEAR].fill_(1 / 3)
            named[OUTPUTSCALE].fill_(1 / _STD)
        for name, values in named.items():
            if name.startswith(f"{_NOISE}.network."):
                values.fill_(self._noise_spread)
        if RAW_DOF in named:
            named[RAW_DOF].fill_(1 / _STD)
        start = prior.clone()
        first = self.unflatten(start)
        resting = {SLOPES, RAW_DOF} & first.keys() | ({OUTPUTSCALE} if self._linear is not None else set())
        for name in resting | {LINEAR} if self._lines else resting:
            first[name].zero_()
        for network in [_NOISE] if self._linear is None else ["mean", _NOISE]:
            for last in [name for name in first if name.startswith(f"{network}.network.")][-1:]:
                depth = last.rsplit(".", 1)[1]
                for part in Layers._fields:  # starts as if it were not there; its last layer alone need not be 0
                    first[f"{network}.network.{part}.{depth}"].mul_(_OUTPUT)
        return Spreads(prior, start, prior if self._lines else torch.ones_like(prior))

    def unflatten(self, theta: Tensor) -> dict[str, Tensor]:
        """Cut theta [*, D] into views [*, *shape] by name; see `GPyTorchPrior.unflatten`."""
        return self._definition.unflatten(theta)

    def noise(self, theta: Tensor, x: Tensor) -> Tensor:
        """Observation noise variance [K, P, N] under theta [K, P, D] at x [K, N, d]; see the base class."""
        if self._noise_network is None:
            return self._definition.noise(theta, x)
        raw = self._definition.part(theta, self._raw_noise).unsqueeze(-1)
        return gaussian_noise(raw + self._outputs(_NOISE, self._noise_network, theta, x).squeeze(-1))

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
        """Network features over the lengthscale [K, P, N, F] under theta [K, P, D] at x [K, N, d]."""
        return self._in_lengths(self._outputs("kernel", self._network, theta, x), theta)

    def _in_lengths(self, features: Tensor, theta: Tensor) -> Tensor:
        """Divide features [K, P, N, F] by the lengthscale under theta [P, D] or [K, P, D], if it is learned."""
        if self._lengthscale is None:
            return features
        return features / softplus(self._definition.part(theta, self._lengthscale))

    def _outputs(self, name: str, network: BatchedMLP | None, theta: Tensor, x: Tensor) -> Tensor:
        """Outputs [K, P, N, *] of a network under theta [K, P, D] at x [K, N, d]; of no network one that is 0."""
        prefix = f"{name}.network."
        weights = {n.removeprefix(prefix): p for n, p in self.unflatten(theta).items() if n.startswith(prefix)}
        if network is None:
            return x.new_zeros(*theta.shape[:2], x.shape[1], 1)
        outputs: Tensor = functional_call(network, weights, (x.unsqueeze(1),))
        return outputs

    def outputscale(self, theta: Tensor) -> Tensor | None:
        """Factor [K, P] of the embedding's covariance under theta [K, P, D]; None where it is fixed at 1."""
        return softplus(self._definition.part(theta, OUTPUTSCALE)) if OUTPUTSCALE in self.shapes else None

    def degrees_of_freedom(self, theta: Tensor) -> Tensor | None:
        """Degrees of freedom [K, P] of Student-t noise under theta [K, P, D]; None of Gaussian noise."""
        if RAW_DOF in self.shapes:
            return 2.0 + self._definition.part(theta, RAW_DOF).exp()
        return None if self._dof is None else theta.new_full(theta.shape[:-1], self._dof)

    def linear_features(self, theta: Tensor, x: Tensor) -> Tensor | None:
        """Features s (x, 1) [K, P, N, d + 1] under theta [K, P, D] at x [K, N, d]; None without linear kernel."""
        if SLOPES not in self.shapes:
            return None
        return self._definition.part(theta, SLOPES)[..., None, None] * _with_one(x).unsqueeze(1)

    def bind(self, theta: Tensor) -> Callable[[Tensor], tuple[Tensor, Tensor | None]]:
        """Mean and embedding as a function of x [K, N, d] for fixed theta [K, P, D]; see the base class."""
        shared = len(theta) > 1 and theta.stride(0) == 0 and not theta.is_cuda  # no copy of particles for every client
        at, particles = theta[0] if shared else theta, theta.shape[1]
        networks = self._networks(at if shared else at.flatten(0, 1))

        def outputs(part: str, x: Tensor, rows: Tensor) -> Tensor:
            if part not in networks:
                return x.new_zeros(len(x), particles, x.shape[1], 1)
            layers = networks[part]
            return shared_outputs(layers, x) if shared else by_client(activations(layers, rows)[-1], particles, 1)

        def evaluate(x: Tensor) -> tuple[Tensor, Tensor | None]:
            rows = x if shared else by_network(x.unsqueeze(1).expand(-1, particles, -1, -1), 1)
            mean = self._with_linear_term(outputs("mean", x, rows).squeeze(-1), at, x)
            return mean, self._in_lengths(outputs("kernel", x, rows), at)

        return evaluate

    def with_vjp(self, theta: Tensor, x: Tensor) -> tuple[PriorValues, Pullback]:
        """Prior at x [K, N, d] and its vjp to theta [P, D] or [K, P, D], written out; see the base class.

        Particles that all clients share make P networks with K * N rows each, whose gradients are kept apart by client;
        otherwise there are K * P networks with N rows each.
        """
        theta, particles, groups = theta.detach(), theta.shape[-2], len(x) if theta.dim() == 2 else 1
        flat = theta.flatten(0, -2)
        rows = by_network(x.unsqueeze(1).expand(-1, particles, -1, -1), groups)
        networks = self._networks(flat)
        values = {name: activations(layers, rows) for name, layers in networks.items()}
        outputs = {name: by_client(value[-1], particles, groups) for name, value in values.items()}
        nothing = x.new_zeros(len(x), particles, x.shape[1], 1)
        mean = self._with_linear_term(outputs.get("mean", nothing).squeeze(-1), theta, x)
        raw_noise = self._definition.part(theta, self._raw_noise).unsqueeze(-1)
        if _NOISE in outputs:
            raw_noise = raw_noise + outputs[_NOISE].squeeze(-1)
        noise = gaussian_noise(raw_noise).expand_as(mean)
        scale, linear = self.outputscale(theta), self.linear_features(theta, x)
        embedding = self._in_lengths(outputs.get("kernel", nothing), theta)

        def vjp(gradients: PriorGradients) -> Tensor:
            grad_mean, grad_noise, grad_embedding, grad_scale, grad_linear, grad_dof = gradients
            score = flat.new_empty(len(flat), groups, self.dim)
            named = self.unflatten(score)
            by_row = grad_noise if _NOISE in networks else grad_noise.sum(-1, keepdim=True)
            grad_raw = gaussian_noise_slope(raw_noise) * by_row
            by_features = self._in_lengths(grad_embedding, theta)
            by_output = {"mean": grad_mean.unsqueeze(-1), "kernel": by_features, _NOISE: grad_raw.unsqueeze(-1)}
            for name, layers in networks.items():
                grad_output = by_network(by_output[name], groups)
                by_layer = layer_gradients(layers, values[name], grad_output, groups)
                for part, tensors in zip(Layers._fields, by_layer, strict=True):
                    for layer, gradient in enumerate(tensors):
                        named[f"{name}.network.{part}.{layer}"].copy_(gradient)
            result = by_client(score, particles, groups).squeeze(-2)
            beside = self.unflatten(result)
            beside[self._raw_noise].copy_(grad_raw.sum(-1))
            if LINEAR in beside:
                beside[LINEAR].copy_(torch.cat((grad_mean @ x, grad_mean.sum(-1, keepdim=True)), -1))
            if self._lengthscale is not None:
                by_length = -(by_features * embedding).sum((-2, -1), keepdim=True)
                beside[self._lengthscale].copy_(by_length * self._definition.part(theta, self._lengthscale).sigmoid())
            if grad_scale is not None:
                beside[OUTPUTSCALE].copy_(grad_scale * self._definition.part(theta, OUTPUTSCALE).sigmoid())
            if grad_dof is not None and RAW_DOF in beside:
                beside[RAW_DOF].copy_(grad_dof * self._definition.part(theta, RAW_DOF).exp())
            if grad_linear is not None:
                beside[SLOPES].copy_((grad_linear * _with_one(x).unsqueeze(1)).sum((-2, -1)))
            return result

        beside = scale, self.degrees_of_freedom(theta)
        scale, dof = (None if one is None else one.expand(mean.shape[:2]) for one in beside)
        return PriorValues(mean, noise, embedding, True, scale, linear, dof), vjp

    def _with_linear_term(self, mean: Tensor, theta: Tensor, x: Tensor) -> Tensor:
        """Add w' x to a mean [K, P, N] under theta [P, D] or [K, P, D] at x [K, N, d], if there is such a term."""
        return mean + linear_term(self._definition.part(theta, LINEAR), x) if LINEAR in self.shapes else mean

    def _networks(self, flat: Tensor) -> dict[str, Layers]:
        """Cut hyper-parameters [B, D] into the layers of every network that there is: of mean, kernel and noise."""
        named = self.unflatten(flat)
        networks = {
            part: Layers(
                *([v for n, v in named.items() if n.startswith(f"{part}.network.{f}")] for f in Layers._fields)
            )
            for part in ("mean", "kernel", _NOISE)
        }
        return {part: layers for part, layers in networks.items() if layers.weights}


def _with_one(x: Tensor) -> Tensor:
    """Append a 1 to inputs: [*, N, d + 1] of [*, N, d]."""
    return torch.cat((x, torch.ones_like(x[..., :1])), -1)
