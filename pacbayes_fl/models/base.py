"""What a method asks of a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch
from gpytorch.distributions import MultivariateNormal
from linear_operator import to_linear_operator
from torch import Tensor

Pullback = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Takes a number's gradients by the mean [K, P, N], the noise [K, P] and the kernel (see `PriorValues`), and gives its
gradient by theta [K, P, D], client by client."""


class PriorValues(NamedTuple):
    """A prior at some inputs.

    Args:
        mean: [K, P, N], in units of y.
        noise: observation variance [K, P], in squared units of y.
        kernel: the embedding [K, P, N, F] of a prior that has one; else the covariance [K, P, N, N], in squared units.
        embedded: whether `kernel` is an embedding.
    """

    mean: Tensor
    noise: Tensor
    kernel: Tensor
    embedded: bool


class FunctionModel(ABC):
    """A Gaussian-process prior over functions whose hyper-parameters theta are given at call time.

    Nothing is stored: all hyper-parameters of all particles and clients are one tensor theta [K, P, D], flat in an
    order that the model chooses.
    """

    @property
    @abstractmethod
    def dim(self) -> int:
        """Number of hyper-parameters, D."""

    @property
    @abstractmethod
    def input_dim(self) -> int:
        """Number of input features, d."""

    @abstractmethod
    def location(self) -> Tensor:
        """Centre of the default hyper-prior [D]: 0, and for the raw noise softplus^-1(0.4) (PAC-PFL section 8.6.2)."""

    @abstractmethod
    def noise(self, theta: Tensor) -> Tensor:
        """Observation noise variance.

        Args:
            theta: hyper-parameters [K, P, D].

        Returns:
            [K, P], in squared units of y.
        """

    @abstractmethod
    def mean(self, theta: Tensor, x: Tensor) -> Tensor:
        """Prior mean.

        Args:
            theta: hyper-parameters [K, P, D].
            x: inputs [K, N, d].

        Returns:
            [K, P, N], in units of y.
        """

    @abstractmethod
    def covariance(self, theta: Tensor, x: Tensor, other: Tensor | None = None) -> Tensor:
        """Prior covariance of function values, without the noise.

        Args:
            theta: hyper-parameters [K, P, D].
            x: inputs [K, N, d].
            other: inputs [K, M, d]; x itself when not given.

        Returns:
            [K, P, N, M], in squared units of y.
        """

    @abstractmethod
    def variance(self, theta: Tensor, x: Tensor) -> Tensor:
        """Diagonal of the prior covariance.

        Args:
            theta: hyper-parameters [K, P, D].
            x: inputs [K, N, d].

        Returns:
            [K, P, N], in squared units of y.
        """

    @abstractmethod
    def embedding(self, theta: Tensor, x: Tensor) -> Tensor | None:
        """Features whose squared distance alone decides the covariance, exp(-|z - z'|^2 / 2), if it is of that kind.

        Args:
            theta: hyper-parameters [K, P, D].
            x: inputs [K, N, d].

        Returns:
            z [K, P, N, F] for the closed-form path, None for a covariance of any other form.
        """

    def bind(self, theta: Tensor) -> Callable[[Tensor], tuple[Tensor, Tensor | None]]:
        """Fix the hyper-parameters, so that many evaluations share what depends on them alone.

        Args:
            theta: hyper-parameters [K, P, D].

        Returns:
            A function of inputs [K, N, d] that gives the prior mean [K, P, N] and the embedding [K, P, N, F] or None.
        """
        return lambda x: (self.mean(theta, x), self.embedding(theta, x))

    def with_pullback(self, theta: Tensor, x: Tensor) -> tuple[PriorValues, Pullback]:
        """Evaluate the prior and keep the way back to the hyper-parameters; here by autograd.

        Args:
            theta: hyper-parameters [P, D], the same for all clients, or [K, P, D].
            x: inputs [K, N, d].

        Returns:
            Values without autograd, and the function that turns gradients by them into one by theta.
        """
        with torch.enable_grad():
            shared = theta if theta.dim() == 3 else theta.expand(len(x), *theta.shape)
            leaf = shared.detach().clone().requires_grad_(True)  # a copy per client: a gradient per client
            embedding = self.embedding(leaf, x)
            kernel = self.covariance(leaf, x) if embedding is None else embedding
            outputs = self.mean(leaf, x), self.noise(leaf), kernel

        def pullback(by_mean: Tensor, by_noise: Tensor, by_kernel: Tensor) -> Tensor:
            gradients = zip(outputs, (by_mean, by_noise, by_kernel), strict=True)
            reached = [(output, gradient) for output, gradient in gradients if output.requires_grad]
            return torch.autograd.grad([out for out, _ in reached], leaf, [by for _, by in reached])[0]

        mean, noise, kernel = (output.detach() for output in outputs)
        return PriorValues(mean, noise, kernel, embedding is not None), pullback

    def prior(self, theta: Tensor, x: Tensor) -> tuple[MultivariateNormal, Tensor]:
        """Prior at some inputs as GPyTorch's distribution: the definition that every faster path is held to.

        Args:
            theta: hyper-parameters [K, P, D].
            x: inputs [K, N, d].

        Returns:
            N with batch [K, P] and event [N], and the noise variance [K, P].
        """
        # An operator, not a tensor: GPyTorch factors a dense covariance at once and raises for all if one client fails.
        covariance = to_linear_operator(self.covariance(theta, x))
        return MultivariateNormal(self.mean(theta, x), covariance), self.noise(theta)
