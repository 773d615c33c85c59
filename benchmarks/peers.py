"""The same numbers through GPyTorch alone, in the ways that its users would write them: what `speed` compares with."""

from __future__ import annotations

from collections.abc import Sequence

import gpytorch
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import RBFKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.models import ExactGP
from torch import Tensor, nn

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.models.functions.deep_kernel_gp import DeepKernelGP


class DeepGP(ExactGP):  # type: ignore[misc]  # GPyTorch is untyped
    """GPs under given networks as an ordinary GPyTorch model: network mean, squared-exponential kernel on features.

    Args:
        x: training inputs [*, N, d].
        y: targets [*, N].
        noise: observation variance [*].
        mean: network to [*, N, 1].
        features: network to [*, N, F].
    """

    def __init__(self, x: Tensor, y: Tensor, noise: Tensor, mean: nn.Module, features: nn.Module) -> None:
        """Fix the noise and a lengthscale of 1."""
        likelihood = GaussianLikelihood(batch_shape=noise.shape).to(x)
        likelihood.noise = noise.unsqueeze(-1)
        super().__init__(x, y, likelihood)
        self.mean_network, self.features = mean, features
        self.covar_module = RBFKernel().to(x)
        self.covar_module.lengthscale = 1.0
        self.covar_module.raw_lengthscale.requires_grad_(False)

    @property
    def last_gradient(self) -> Tensor:
        """Gradient by the last weight [in, out] of a feature network that consists of `torch.nn.Linear` layers."""
        gradient = list(self.features.parameters())[-2].grad
        if gradient is None:
            raise ValueError("there is no gradient before `looped_gradient`")
        return gradient.mT

    def forward(self, x: Tensor) -> MultivariateNormal:
        """Prior at x [*, N, d]."""
        return MultivariateNormal(self.mean_network(x).squeeze(-1), self.covar_module(self.features(x)))


def _layers(model: DeepKernelGP, theta: Tensor, prefix: str) -> list[tuple[Tensor, Tensor]]:
    """Weights [*, in, out] and biases [*, out] of one of the two networks."""
    named = model.unflatten(theta)
    depth = sum(name.startswith(f"{prefix}.network.weights") for name in named)
    return [tuple(named[f"{prefix}.network.{part}.{i}"] for part in ("weights", "biases")) for i in range(depth)]  # type: ignore[misc]


def _linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    layer = nn.Linear(weight.shape[0], weight.shape[1], dtype=weight.dtype, device=weight.device)
    layer.weight.data.copy_(weight.mT)
    layer.bias.data.copy_(bias)
    return layer


class _Network(nn.Module):
    """Tanh network whose parameters have a particle dimension."""

    def __init__(self, layers: Sequence[tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self.weights, self.biases = (nn.ParameterList(t.clone() for t in part) for part in zip(*layers, strict=True))

    def forward(self, x: Tensor) -> Tensor:
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = (x.tanh() if layer else x) @ weight + bias.unsqueeze(-2)
        return x


def separate_gps(model: DeepKernelGP, particles: Tensor, batch: ClientBatch) -> list[DeepGP]:
    """Build one GPyTorch model with `torch.nn.Linear` layers per client and particle, clients first.

    Args:
        model: the prior.
        particles: [P, D].
        batch: clients that all have N rows.

    Returns:
        K * P models.
    """

    def network(theta: Tensor, prefix: str) -> nn.Module:
        pairs = _layers(model, theta, prefix)
        return nn.Sequential(*[m for pair in pairs for m in (nn.Tanh(), _linear(*pair))][1:])

    return [
        DeepGP(
            x,
            y,
            model.noise(theta.view(1, 1, -1), x[None, :1]).view(()),
            network(theta, "mean"),
            network(theta, "kernel"),
        )
        for x, y in zip(batch.x, batch.y, strict=True)
        for theta in particles
    ]


def joint_gp(model: DeepKernelGP, particles: Tensor, batch: ClientBatch) -> DeepGP:
    """Build one GPyTorch model whose batch dimension is the particles of a single client.

    Args:
        model: the prior.
        particles: [P, D].
        batch: one client.

    Returns:
        A model with batch shape [P].
    """
    x, y = (t.expand(len(particles), *t.shape[1:]) for t in (batch.x, batch.y))
    networks = (_Network(_layers(model, particles, prefix)) for prefix in ("mean", "kernel"))
    gp = DeepGP(x, y, model.noise(particles.unsqueeze(0), batch.x)[0, :, 0], *networks)
    gp.eval()
    return gp


def batched_gradient(model: DeepKernelGP, particles: Tensor, batch: ClientBatch) -> tuple[Tensor, Tensor]:
    """Differentiate `MultivariateNormal.log_prob` of all clients and particles at once by autograd.

    Args:
        model: the prior; its GPyTorch modules are called.
        particles: [P, D].
        batch: clients that all have N rows.

    Returns:
        Gradient summed over clients [P, D] and log evidence [P], in nats.
    """
    theta = particles.clone().requires_grad_(True)
    prior, noise = model.prior(theta.expand(batch.clients, *theta.shape), batch.x)
    noisy = MultivariateNormal(prior.mean, prior.lazy_covariance_matrix.add_diagonal(noise))
    value = noisy.log_prob(batch.y.unsqueeze(1)).sum(0)
    (gradient,) = torch.autograd.grad(value.sum(), theta)
    return gradient, value.detach()


def looped_gradient(gps: Sequence[DeepGP], particles: int) -> Tensor:
    """Differentiate `ExactMarginalLogLikelihood` model by model; gradients go to the models' parameters.

    Args:
        gps: models in training mode, as `separate_gps` gives them.
        particles: P.

    Returns:
        Log evidence summed over clients [P], in nats.
    """
    values = []
    for gp in gps:
        gp.zero_grad(set_to_none=True)
        per_row = gpytorch.mlls.ExactMarginalLogLikelihood(gp.likelihood, gp)
        value = per_row(gp(*gp.train_inputs), gp.train_targets) * len(gp.train_targets)
        value.backward()
        values.append(value.detach())
    return torch.stack(values).view(-1, particles).sum(0)


def predict(gp: DeepGP, x: Tensor) -> tuple[Tensor, Tensor]:
    """Predict new targets with GPyTorch's caches, warm after the first call.

    Args:
        gp: a model in evaluation mode.
        x: inputs [*, M, d].

    Returns:
        Mean and variance [*, M], noise included.
    """
    with torch.no_grad(), gpytorch.settings.fast_pred_var():
        predictive = gp.likelihood(gp(x))
        return predictive.mean, predictive.variance
