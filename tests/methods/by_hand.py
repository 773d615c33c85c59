"""The variational methods' local rounds in plain torch: autograd, torch's Adam, one client, no padding, no Pyro."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Normal, kl_divergence
from torch.nn.functional import cross_entropy, softplus

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.inference.svi import LocalInference
from pacbayes_fl.models.likelihoods import Categorical
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP
from pacbayes_fl.noise import Noise

INPUTS, HIDDEN, CLASSES = 2, 3, 3
MODEL = BayesianMLP((INPUTS, HIDDEN, CLASSES), Categorical(CLASSES), torch.float64)
D, SHARED = MODEL.dim, INPUTS * HIDDEN + HIDDEN
SIZES = (5, 2, 7)
K = len(SIZES)


def randn(seed: int, *shape: int) -> Tensor:
    """Return normals of a seed."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def clients(*sizes: int) -> ClientBatch:
    """Return ragged clients with labels."""
    rows = [(randn(k, m, INPUTS), (3 * randn(10 + k, m)).long().abs() % CLASSES) for k, m in enumerate(sizes)]
    return ClientBatch.pad(rows, classes=CLASSES, allow_empty=True)


def alive(theta: Tensor) -> Tensor:
    """Lift the hidden units' biases, so that none is dead and no slope is rounding alone: Adam would follow that."""
    lifted = theta.clone()
    lifted[..., INPUTS * HIDDEN : SHARED] += 2.0
    return lifted


def logits(theta: Tensor, x: Tensor) -> Tensor:
    """Apply the network with flat weights [D] to rows [N, d]."""
    first, bias, second, last = theta.split([INPUTS * HIDDEN, HIDDEN, HIDDEN * CLASSES, CLASSES])
    return torch.relu(x @ first.view(INPUTS, HIDDEN) + bias) @ second.view(HIDDEN, CLASSES) + last


def divergence(q: Sequence[Tensor], w: Sequence[Tensor]) -> Tensor:
    """KL(q || w) of (mu, rho) or (mu, rho, logit)."""
    slab: Tensor = kl_divergence(Normal(q[0], softplus(q[1])), Normal(w[0], softplus(w[1])))
    if len(q) == 2:
        return slab.sum()
    return (kl_divergence(Bernoulli(logits=q[2]), Bernoulli(logits=w[2])) + torch.sigmoid(q[2]) * slab).sum()


def drawn(q: Sequence[Tensor], noise: Noise, std: float, temperature: float) -> Tensor:
    """Draw weights, gates hard forward and relaxed backward."""
    like = torch.empty(1, len(q[0]), dtype=torch.float64)
    slab = q[0] + softplus(q[1]) * std * noise.weights(like)[0]
    if len(q) == 2:
        return slab
    eta = q[2] + torch.logit(noise.weights(like, "uniform")[0])
    relaxed = torch.sigmoid(eta / temperature)
    return ((eta > 0).to(eta.dtype) + relaxed - relaxed.detach()) * slab


class Client:
    """One client: q, w and torch's optimisers on them."""

    def __init__(self, q: Sequence[Tensor], w: Sequence[Tensor], rates: tuple[float, float]) -> None:
        """Begin with fresh moments."""
        self.q, self.w = ([torch.nn.Parameter(leaf.clone()) for leaf in family] for family in (q, w))
        self.rates, self.held = rates, slice(0)  # weights whose w stays
        self.rest()

    def rest(self) -> None:
        """Forget all moments."""
        self.adams = [torch.optim.Adam(own, lr) for own, lr in zip((self.q, self.w), self.rates, strict=True)]

    def play(
        self, local: LocalInference, x: Tensor, y: Tensor, noise: Noise, temperature: float = 0.5
    ) -> tuple[float, float]:
        """Play a round; return its mean scaled log likelihood and the last divergence."""
        total, m = 0.0, len(y)
        for _ in range(local.steps):
            at = noise.rows(torch.ones(1, m, dtype=torch.bool), local.minibatch)[0]
            scale = {"rows": m / len(at), "sum": 1.0, "mean": 1.0 / len(at)}[local.data_scale]
            for _ in range(local.inner):
                fit = torch.zeros((), dtype=torch.float64)
                for _ in range(local.draws):
                    theta = drawn(self.q, noise, local.noise_std, temperature)
                    fit = fit - scale * cross_entropy(logits(theta, x[at]), y[at], reduction="sum") / local.draws
                self.adams[0].zero_grad()
                (local.zeta * self.towards(local, self.q, [leaf.detach() for leaf in self.w]) - fit).backward()
                self.adams[0].step()
                total += fit.item() / local.inner / local.steps
            self.adams[1].zero_grad()
            self.towards(local, [leaf.detach() for leaf in self.q], self.w).backward()
            for leaf in self.w:
                leaf.grad[self.held] = 0.0  # type: ignore[index]
            self.adams[1].step()
        return total, divergence(self.q, self.w).item()

    @staticmethod
    def towards(local: LocalInference, q: Sequence[Tensor], w: Sequence[Tensor]) -> Tensor:
        """Divergence in the direction that is asked for."""
        return divergence(q, w) if local.divergence == "forward" else divergence(w, q)

    def get(self, other: Sequence[Tensor]) -> None:
        """Take a global distribution that comes from the server."""
        self.put(self.w, other)

    def start(self, other: Sequence[Tensor]) -> None:
        """Begin q anew."""
        self.put(self.q, other)

    @staticmethod
    def put(own: Sequence[Tensor], other: Sequence[Tensor]) -> None:
        """Copy values, moments stay."""
        for leaf, value in zip(own, other, strict=True):
            leaf.data.copy_(value)


def close(got: Any, expected: Sequence[Tensor], tolerance: float = 1e-9) -> None:
    """Compare leaves."""
    for mine, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(mine, theirs.detach(), rtol=tolerance, atol=tolerance)
