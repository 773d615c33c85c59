"""The step that a server takes along its clients' mean step: plain, with momentum, or adaptive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.errors import StudyError
from pacbayes_fl.options import check, option
from pacbayes_fl.tensors import AnyTree, Tree

ServerOptimiser = Literal["sgd", "adagrad", "yogi", "adam"]


class Memoryless(NamedTuple):
    """State of a server that follows the mean of this round alone."""


class Moments(NamedTuple):
    """State of the server's optimiser: m and v of earlier mean steps, leaves [*]; v is 0 with "sgd"."""

    first: AnyTree
    second: AnyTree


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

    Of distributions theta are their unconstrained parameters: mu and rho of a mean field, whose standard deviation
    softplus(rho) is positive wherever a step leads, and the logit of an inclusion. Delta is the way to what the server
    would take without an optimiser: the clients' mean, what matches their moments, or beyond either where it
    extrapolates.

    Args:
        optimiser: of the server: "sgd" takes the clients' mean, or FedAvgM with momentum; "adagrad", "yogi" and "adam"
            are FedAdagrad, FedYogi and FedAdam.
        rate: of the server's step; 1 with "sgd", the clients' mean, and 0.01 with the others when None.
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
        if self.rate is None and self.optimiser != "sgd":  # a number, so that it is halved as all learning rates are
            object.__setattr__(self, "rate", 0.01)

    @property
    def eta(self) -> float:
        """Rate of the server's step."""
        return 1.0 if self.rate is None else self.rate

    def start(self, theta: AnyTree) -> State:
        """Initial state of the optimiser.

        Args:
            theta: the server's weights, leaves [*].

        Returns:
            Its state.
        """
        zero = tensors.tree_map(torch.zeros_like, theta)
        if self.optimiser == "sgd":
            return Moments(zero, zero) if self.momentum else Memoryless()
        return Moments(zero, tensors.tree_map(lambda leaf: torch.full_like(leaf, self.tau**2), theta))

    def __call__(self, theta: Tree, mean: Tree, state: State, moved: Tensor | None = None) -> tuple[Tree, State]:
        """Step from the server's weights along the way to the clients' mean.

        Args:
            theta: the server's weights, leaves [*].
            mean: of the clients' weights, leaves [*], Delta = mean - theta.
            state: of `start` or of the last step.
            moved: which clusters have a mean, bool [J]; the others and what is known of them stay. All when None.

        Returns:
            The weights, leaves [*], and the state after the step; the mean itself where nothing else is asked for.
        """
        if not isinstance(state, Moments):
            return (self._to(theta, mean) if self.eta != 1.0 else mean), state
        delta = tensors.tree_map(torch.sub, mean, theta)
        first, second = tensors.tree_map(self._first, delta, state.first), state.second
        if self.optimiser == "sgd":
            after = tensors.tree_map(lambda at, m: at + self.eta * m, theta, first)
        else:
            second = tensors.tree_map(lambda v, d: self._second(v, d.square()), second, delta)
            after = tensors.tree_map(lambda at, m, v: at + self.eta * m / (v.sqrt() + self.tau), theta, first, second)
        new = Moments(first, second)
        if moved is not None:
            after, new = tensors.where(moved, after, theta), tensors.where(moved, new, state)
        return after, new

    def _to(self, theta: Tree, mean: Tree) -> Tree:
        return tensors.tree_map(lambda at, to: torch.lerp(at, to, self.eta), theta, mean)

    def _first(self, delta: Tensor, m: Tensor) -> Tensor:
        return self.momentum * m + delta if self.optimiser == "sgd" else torch.lerp(delta, m, self.beta1)

    def _second(self, v: Tensor, square: Tensor) -> Tensor:
        if self.optimiser == "adagrad":
            return v + square
        if self.optimiser == "yogi":
            return v - (1 - self.beta2) * square * torch.sign(v - square)
        return torch.lerp(square, v, self.beta2)


SERVER_STEP: Mapping[str, str] = MappingProxyType(
    {field: "server" if field == "optimiser" else f"server_{field}" for field in ServerStep.__dataclass_fields__}
)
"""Names of the fields where they are options of a method."""
