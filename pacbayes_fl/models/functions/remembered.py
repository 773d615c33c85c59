"""A prior whose values are asked for again and again, by many posteriors of the same rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from torch import Tensor

from pacbayes_fl.models.base import FunctionModel
from pacbayes_fl.models.prior_values import PriorValues, Pullback, Spreads, embedded_covariance, embedded_variance

Value = TypeVar("Value")

_MOST: Final = 2**22
"""Numbers of a value that is kept: what is larger, of many new rows, takes memory, and is seldom asked for twice."""


class Remembered(FunctionModel):
    """A prior that computes the values at given hyper-parameters and inputs once.

    They are known by the tensors themselves, theta, x and other, which nobody is to write to. It keeps them as long as
    it lives: one is made for a piece of work, such as the certificates of some clients.

    Args:
        inner: the prior.

    Example:
        >>> import torch
        >>> from pacbayes_fl.models.functions.deep_kernel_gp import DeepKernelGP
        >>> from pacbayes_fl.models.functions.remembered import Remembered
        >>> prior = Remembered(DeepKernelGP(input_dim=1))
        >>> theta, x = torch.zeros(1, 1, prior.dim).double(), torch.zeros(1, 3, 1).double()
        >>> prior.mean(theta, x) is prior.mean(theta, x)
        True
    """

    def __init__(self, inner: FunctionModel) -> None:
        """Remember nothing yet."""
        self.inner, self.inducing = inner, inner.inducing
        self._kept: dict[tuple[object, ...], tuple[tuple[Tensor, ...], Any]] = {}

    @property
    def dim(self) -> int:
        """Number of hyper-parameters, D."""
        return self.inner.dim

    @property
    def input_dim(self) -> int:
        """Number of input features, d."""
        return self.inner.input_dim

    def location(self) -> Tensor:
        """Centre of the default hyper-prior [D]."""
        return self.inner.location()

    def spreads(self) -> Spreads | None:
        """How far the default hyper-prior lets each hyper-parameter go."""
        return self.inner.spreads()

    def noise(self, theta: Tensor, x: Tensor) -> Tensor:
        """Variance of the observation noise [K, P, N] under theta [K, P, D] at x [K, N, d]."""
        return self._once(self.inner.noise, theta, x)

    def mean(self, theta: Tensor, x: Tensor) -> Tensor:
        """Prior mean [K, P, N] under theta [K, P, D] at x [K, N, d]."""
        return self._once(self.inner.mean, theta, x)

    def covariance(self, theta: Tensor, x: Tensor, other: Tensor | None = None) -> Tensor:
        """Covariance [K, P, N, M] under theta [K, P, D] between x [K, N, d] and other [K, M, d]."""
        return self._once(self._covariance, theta, x, *(() if other is None else (other,)))

    def _covariance(self, theta: Tensor, x: Tensor, other: Tensor | None = None) -> Tensor:
        if (features := self.embedding(theta, x)) is None:
            return self.inner.covariance(theta, x, other)
        if other is None or (others := self.embedding(theta, other)) is None:
            other, others = x, features
        linear = (self.linear_features(theta, inputs) for inputs in (x, other))
        return embedded_covariance(features, others, self.outputscale(theta), *linear)

    def variance(self, theta: Tensor, x: Tensor) -> Tensor:
        """Prior variance [K, P, N] under theta [K, P, D] at x [K, N, d]."""
        return self._once(self._variance, theta, x)

    def _variance(self, theta: Tensor, x: Tensor) -> Tensor:
        if (features := self.embedding(theta, x)) is None:
            return self.inner.variance(theta, x)
        return embedded_variance(features, self.outputscale(theta), self.linear_features(theta, x))

    def embedding(self, theta: Tensor, x: Tensor) -> Tensor | None:
        """Features [K, P, N, F] under theta [K, P, D] at x [K, N, d], or None."""
        return self._bound(theta, x)[1]

    def outputscale(self, theta: Tensor) -> Tensor | None:
        """Factor [K, P] of the covariance that the embedding gives under theta [K, P, D], or None."""
        return self._once(self.inner.outputscale, theta)

    def linear_features(self, theta: Tensor, x: Tensor) -> Tensor | None:
        """Features [K, P, N, R] of the linear kernel under theta [K, P, D] at x [K, N, d], or None."""
        return self._once(self.inner.linear_features, theta, x)

    def degrees_of_freedom(self, theta: Tensor) -> Tensor | None:
        """Degrees of freedom [K, P] of the noise under theta [K, P, D], or None."""
        return self._once(self.inner.degrees_of_freedom, theta)

    def bind(self, theta: Tensor) -> Callable[[Tensor], tuple[Tensor, Tensor | None]]:
        """Mean as a function of x [K, N, d] for fixed theta [K, P, D], and None: covariances are what is kept."""
        return lambda x: (self._bound(theta, x)[0], None)

    def _bound(self, theta: Tensor, x: Tensor) -> tuple[Tensor, Tensor | None]:
        bound = self._once(self.inner.bind, theta)
        return self._known(("bound", id(theta), id(x)), (theta, x), lambda: bound(x))

    def with_vjp(self, theta: Tensor, x: Tensor) -> tuple[PriorValues, Pullback]:
        """Prior at x [K, N, d] and its vjp to theta [P, D] or [K, P, D]: anew at each call."""
        return self.inner.with_vjp(theta, x)

    def _once(self, compute: Callable[..., Value], *at: Tensor) -> Value:
        same = len(at) == 3 and at[1] is at[2]  # rows and themselves
        return self._known((compute.__name__, *map(id, at[:2] if same else at)), at, lambda: compute(*at))

    def _known(self, key: tuple[object, ...], at: tuple[Tensor, ...], compute: Callable[[], Value]) -> Value:
        if key not in self._kept:
            value = compute()
            parts = value if isinstance(value, tuple) else (value,)
            if any(isinstance(one, Tensor) and one.numel() > _MOST for one in parts):
                return value
            self._kept[key] = at, value  # the tensors too, whose ids nothing else is to get
        kept: Value = self._kept[key][1]
        return kept
