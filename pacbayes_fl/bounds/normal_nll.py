"""The negative log density of normal targets around clipped functions: a loss without a range, for `sub_gamma`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import torch
from torch import Tensor

from pacbayes_fl.errors import AssumptionError

_ROOT = math.sqrt(2.0 * math.pi)


@dataclass(frozen=True)
class NormalNLL:
    """-ln N(y; f, std^2), the function's value f clipped to [-limit, limit]: without a range, for `sub_gamma` alone.

    l(f, y) = ln(2 pi std^2) / 2 + (y - min(max(f, -limit), limit))^2 / (2 std^2)

    It is never below ln(2 pi std^2) / 2, and so sub-gamma with scale 0 and any variance factor that is at least

        E (|y| + limit)^4 / (4 std^4) <= 2 (E y^4 + limit^4) / std^4

    whatever the function is, which is why functions are clipped: of a Gaussian process over functions of any size no
    factor is. By Jensen's inequality the NLPD of the averaged density is below this loss, averaged over the functions.

    Args:
        std: of the noise, fixed before the rows of the bound, in units of y.
        limit: where functions end, in units of y.

    Example:
        >>> import torch
        >>> from pacbayes_fl.bounds import NormalNLL
        >>> NormalNLL(std=1.0, limit=3.0)(torch.tensor([0.0, 9.0]), torch.tensor([1.0, 3.0])).numpy().round(4).tolist()
        [1.4189, 0.9189]
    """

    std: float
    limit: float = 4.0
    high: ClassVar[float] = math.inf
    convex: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Check that both are positive."""
        for name in ("std", "limit"):
            if not (value := getattr(self, name)) > 0 or not math.isfinite(value):
                raise AssumptionError(f"{name} must be positive and finite, got {value:g}", hint="in units of y")

    @property
    def name(self) -> str:
        """Name with both settings."""
        return f"-ln N(y; f, {self.std:g}^2), f clipped at {self.limit:g}"

    @property
    def low(self) -> float:
        """Its least value, ln(2 pi std^2) / 2, in nats."""
        return math.log(_ROOT * self.std)

    def trivial(self, variance: float = 1.0) -> float:
        """Give the risk of the mean of y as the only prediction, where that is below the limit.

        ln(2 pi std^2) / 2 + var y / (2 std^2)

        Args:
            variance: of y, in its squared units; 1 for standardised targets.

        Returns:
            The risk, in nats.
        """
        return self.low + 0.5 * variance / self.std**2

    def __call__(self, prediction: Tensor, y: Tensor) -> Tensor:
        """Loss by row.

        Args:
            prediction: [*], in units of y.
            y: targets [*].

        Returns:
            [*], in nats, float64.
        """
        away = prediction.double().clamp(-self.limit, self.limit) - y
        return self.low + 0.5 * (away / self.std).square()

    def expected(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        """Average the loss over a Gaussian prediction: the Gibbs risk of a GP by row, without sampling.

        Args:
            mean: of the function value [*], in units of y.
            variance: of the function value, noise left out, [*], in squared units of y.
            y: targets [*].

        Returns:
            [*], in nats, float64.
        """
        m, y = mean.double(), y.double()
        wide = variance.double().sqrt()
        s = torch.where(wide > 0, wide, 1.0)
        a, b = (-self.limit - m) / s, (self.limit - m) / s
        below, above = torch.special.ndtr(a), torch.special.ndtr(-b)
        inside = (1.0 - below - above).clamp_min(0.0)
        at_a, at_b = ((-0.5 * end.square()).exp() / _ROOT for end in (a, b))
        away = m - y
        middle = away.square() * inside + 2.0 * away * s * (at_a - at_b) + s.square() * (inside + a * at_a - b * at_b)
        square = (self.limit + y).square() * below + (self.limit - y).square() * above + middle.clamp_min(0.0)
        return torch.where(wide > 0, self.low + 0.5 * square / self.std**2, self(mean, y))


UNBOUNDED: Mapping[str, type[NormalNLL]] = MappingProxyType({"normal-nll": NormalNLL})
"""Losses without a range under the names that commands use."""
