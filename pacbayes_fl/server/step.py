"""The step that a server takes along its clients' mean step: plain, with momentum, or adaptive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from pacbayes_fl.errors import StudyError
from pacbayes_fl.options import check, option

ServerOptimiser = Literal["sgd", "adagrad", "yogi", "adam"]


class Memoryless(NamedTuple):
    """State of a server that follows the mean of this round alone."""


class Moments(NamedTuple):
    """State of the server's optimiser: m and v [*] of earlier mean steps; v is 0 with "sgd"."""

    first: Tensor
    second: Tensor


State = Memoryless | Moments


@dataclass(frozen=True)
class ServerStep:
    """How far the server goes along the clients' mean step Delta, and along those of the rounds before.

    "sgd": m <- momentum m + Delta, theta <- theta + eta m, FedAvgM (Hsu, Qi and Brown 2019); with momentum 0 and
    eta = 1 the clients' mean. Others (Reddi et al., ICLR 2021, Algorithm 2): m <- beta_1 m + (1 - beta_1) Delta,
    theta <- theta + eta m / (sqrt(v) + tau) from v = tau^2, without a correction of the bias, with

    - "adagrad": v <- v + Delta^2,
    - "yogi": v <- v - (1 - beta_2) Delta^2 sign(v - Delta^2),
    - "adam": v <- beta_2 v + (1 - beta_2) Delta^2.

    Args:
        optimiser: of the server: "sgd" takes the clients' mean, or FedAvgM with momentum; "adagrad", "yogi" and "adam"
            are FedAdagrad, FedYogi and FedAdam.
        rate: of the server's step; 1 with "sgd" and 0.01 with the others when None.
        momentum: of the server's "sgd".
        beta1: share of the mean steps before in the first moment of the server's adaptive steps.
        beta2: share of the squares before in the second moment of the server's "yogi" and "adam".
        tau: how adaptive the server's adaptive steps are; the smaller the more, in units of a weight.
    """

    optimiser: ServerOptimiser = "sgd"
    rate: float | None = option(None, above=0, symbol="eta")
    momentum: float = option(0.0, low=0, below=1)
    beta1: float = option(0.9, low=0, below=1, symbol="beta_1")
    beta2: float = option(0.99, low=0, below=1, symbol="beta_2")
    tau: float = option(1e-3, above=0, symbol="tau")

    def __post_init__(self) -> None:
        """Check the ranges, and that momentum is not added to that of another optimiser."""
        check(self)
        if self.momentum and self.optimiser != "sgd":
            what = f"server_momentum = {self.momentum:g} is of server = 'sgd', and server is {self.optimiser!r}"
            raise StudyError(what, hint="server_beta1 is the momentum of adaptive steps")

    @property
    def eta(self) -> float:
        """Rate of the server's step."""
        return self.rate if self.rate is not None else 1.0 if self.optimiser == "sgd" else 0.01

    def start(self, theta: Tensor) -> State:
        """Initial state of the optimiser.

        Args:
            theta: the server's weights [*].

        Returns:
            Its state.
        """
        if self.optimiser == "sgd":
            return Moments(torch.zeros_like(theta), torch.zeros_like(theta)) if self.momentum else Memoryless()
        return Moments(torch.zeros_like(theta), torch.full_like(theta, self.tau**2))

    def __call__(self, theta: Tensor, mean: Tensor, state: State) -> tuple[Tensor, State]:
        """Step from the server's weights along the way to the clients' mean.

        Args:
            theta: the server's weights [*].
            mean: of the clients' weights [*], Delta = mean - theta.
            state: of `start` or of the last step.

        Returns:
            The weights [*] and the state after the step; the mean itself where nothing else is asked for.
        """
        if not isinstance(state, Moments):
            return torch.lerp(theta, mean, self.eta) if self.eta != 1.0 else mean, state
        delta = mean - theta
        if self.optimiser == "sgd":
            first = self.momentum * state.first + delta
            return theta + self.eta * first, Moments(first, state.second)
        first = torch.lerp(delta, state.first, self.beta1)
        second = self._second(state.second, delta.square())
        return theta + self.eta * first / (second.sqrt() + self.tau), Moments(first, second)

    def _second(self, v: Tensor, square: Tensor) -> Tensor:
        if self.optimiser == "adagrad":
            return v + square
        if self.optimiser == "yogi":
            return v - (1 - self.beta2) * square * torch.sign(v - square)
        return torch.lerp(square, v, self.beta2)
