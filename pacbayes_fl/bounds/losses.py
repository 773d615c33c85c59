"""Losses that a certificate can speak of: bounded ones, with their range.

The negative log likelihood of a density and the squared error are unbounded: no bound here holds for them but that
under a constant which is stated, not measured (`unbounded`). Train on them, and certify the same posterior with one of
these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Final, NamedTuple, Protocol, cast

import torch
from torch import Tensor

from pacbayes_fl.bounds.clipped import mean_clipped_square
from pacbayes_fl.errors import AssumptionError

PARTS: Final = ("name", "low", "high", "convex")
"""What a loss says of itself."""


class BoundedLoss(Protocol):
    """A loss with values in [low, high] for every hypothesis and every row."""

    @property
    def name(self) -> str:
        """Name for certificates."""

    @property
    def low(self) -> float:
        """Smallest value, a."""

    @property
    def high(self) -> float:
        """Largest value, b."""

    @property
    def convex(self) -> bool:
        """Whether it is convex in the prediction, so that it is no larger for an average of predictions."""


@dataclass(frozen=True)
class LossRange:
    """A loss of which only the range is known: enough where the empirical risk is given as a number.

    Args:
        name: for certificates.
        low: a.
        high: b, in the same unit.
        convex: whether it is convex in the prediction.
    """

    name: str
    low: float
    high: float
    convex: bool = False

    def __post_init__(self) -> None:
        """Check that the range is finite."""
        require_bounded(self)


@dataclass(frozen=True)
class UnboundedLoss:
    """A loss without a range, such as a negative log density, for the one bound that takes it (`sub_gamma`).

    Args:
        name: for certificates.
        convex: whether it is convex in the prediction.
    """

    name: str
    convex: bool = False
    low: ClassVar[float] = -math.inf
    high: ClassVar[float] = math.inf


@dataclass(frozen=True)
class ZeroOne:
    """1 where the most probable class is not the label, else 0.

    Example:
        >>> import torch
        >>> from pacbayes_fl.bounds import ZeroOne
        >>> log_probs = torch.tensor([[0.7, 0.3], [0.4, 0.6]]).log()
        >>> ZeroOne()(log_probs, torch.tensor([0, 0])).tolist()
        [0.0, 1.0]
    """

    name: ClassVar[str] = "0-1 loss"
    low: ClassVar[float] = 0.0
    high: ClassVar[float] = 1.0
    convex: ClassVar[bool] = False

    def trivial(self, classes: int) -> float:
        """Risk of the uniform guess, (C - 1) / C.

        Args:
            classes: C.

        Returns:
            The risk.
        """
        return (classes - 1) / classes

    def __call__(self, log_probs: Tensor, y: Tensor) -> Tensor:
        """Loss by row.

        Args:
            log_probs: log probabilities, or any scores of the classes, [*, C]; the lower of two equal classes counts.
            y: integer labels [*].

        Returns:
            [*], float64.
        """
        return (log_probs.argmax(-1) != y).double()


@dataclass(frozen=True)
class ClippedNLL:
    """Negative log likelihood of the label, clipped and scaled to [0, 1] (Perez-Ortiz et al. 2021).

    -ln max(p(y), p_min) / ln(1 / p_min)

    Clipping makes it non-convex: an average of predictions may lose more than its parts on average.

    Args:
        p_min: probability below which nothing gets worse.

    Example:
        >>> import torch
        >>> from pacbayes_fl.bounds import ClippedNLL
        >>> log_probs = torch.tensor([[1.0, 0.0], [0.5, 0.5]]).log()
        >>> ClippedNLL(p_min=1e-4)(log_probs, torch.tensor([1, 0])).numpy().round(4).tolist()
        [1.0, 0.0753]
    """

    p_min: float = 1e-5
    low: ClassVar[float] = 0.0
    high: ClassVar[float] = 1.0
    convex: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Check that the clip is finite."""
        if not 0 < self.p_min < 1:
            raise AssumptionError(
                f"p_min must lie strictly between 0 and 1, got {self.p_min:g}", hint="without it the loss is unbounded"
            )

    @property
    def name(self) -> str:
        """Name with the clip, which is its unit."""
        return f"NLL clipped at p = {self.p_min:g} and scaled to [0, 1]"

    def trivial(self, classes: int) -> float:
        """Risk of the uniform guess, ln C / ln(1 / p_min), at most 1.

        Args:
            classes: C.

        Returns:
            The risk.
        """
        return min(1.0, math.log(classes) / -math.log(self.p_min))

    def __call__(self, log_probs: Tensor, y: Tensor) -> Tensor:
        """Loss by row.

        Args:
            log_probs: normalised log probabilities [*, C], in nats.
            y: integer labels [*].

        Returns:
            [*], float64.
        """
        floor = math.log(self.p_min)
        chosen = log_probs.double().gather(-1, y.long().unsqueeze(-1)).squeeze(-1)
        return chosen.clamp(floor, 0.0) / floor


@dataclass(frozen=True)
class ClippedSquare:
    """Squared error that stops growing, min(e^2, limit).

    Args:
        limit: in squared units of y.

    Example:
        >>> import torch
        >>> from pacbayes_fl.bounds import ClippedSquare
        >>> ClippedSquare(limit=4.0)(torch.tensor([0.0, 0.0]), torch.tensor([1.0, 9.0])).tolist()
        [1.0, 4.0]
    """

    limit: float
    low: ClassVar[float] = 0.0
    convex: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Check that the limit is finite."""
        _positive("limit", self.limit)

    @property
    def name(self) -> str:
        """Name with the limit."""
        return f"squared error clipped at {self.limit:g}"

    @property
    def high(self) -> float:
        """The limit, in squared units of y."""
        return self.limit

    def trivial(self, variance: float = 1.0) -> float:
        """Bound the risk of the mean of y as the only prediction, by Jensen's inequality.

        E min((y - E y)^2, limit) <= min(var y, limit)

        Args:
            variance: of y, in its squared units; 1 for standardised targets.

        Returns:
            The risk, in squared units of y.
        """
        return min(variance, self.limit)

    def __call__(self, prediction: Tensor, y: Tensor) -> Tensor:
        """Loss by row.

        Args:
            prediction: [*], in units of y.
            y: targets [*].

        Returns:
            [*], in squared units of y, float64.
        """
        return (prediction.double() - y).square().clamp_max(self.limit)

    def expected(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        """Average the loss over a Gaussian prediction: the Gibbs risk of a GP by row, without sampling.

        Args:
            mean: of the function value [*], in units of y.
            variance: of the function value, noise left out, [*], in squared units of y.
            y: targets [*].

        Returns:
            [*], in squared units of y, float64.
        """
        residual, std = mean.double() - y, variance.double().sqrt()
        spread = torch.where(std > 0, std, 1.0)
        return torch.where(std > 0, mean_clipped_square(residual, spread, self.limit), self(mean, y))


@dataclass(frozen=True)
class SaturatingSquare:
    """1 - exp(-e^2 / scale^2): the squared error, in units of scale^2, while it is small, and at most 1.

    Args:
        scale: error at which the loss is 1 - 1/e, in units of y.

    Example:
        >>> import torch
        >>> from pacbayes_fl.bounds import SaturatingSquare
        >>> SaturatingSquare()(torch.zeros(2), torch.tensor([0.1, 5.0])).numpy().round(4).tolist()
        [0.01, 1.0]
    """

    scale: float = 1.0
    low: ClassVar[float] = 0.0
    high: ClassVar[float] = 1.0
    convex: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Check that the scale is positive."""
        _positive("scale", self.scale)

    @property
    def name(self) -> str:
        """Name with the scale."""
        return f"1 - exp(-(error / {self.scale:g})^2)"

    def trivial(self, variance: float = 1.0) -> float:
        """Bound the risk of the mean of y as the only prediction, by Jensen's inequality.

        E[1 - exp(-(y - E y)^2 / scale^2)] <= 1 - exp(-var y / scale^2)

        Args:
            variance: of y, in its squared units; 1 for standardised targets.

        Returns:
            The risk.
        """
        return -math.expm1(-variance / self.scale**2)

    def __call__(self, prediction: Tensor, y: Tensor) -> Tensor:
        """Loss by row.

        Args:
            prediction: [*], in units of y.
            y: targets [*].

        Returns:
            [*], float64.
        """
        return -torch.expm1(-((prediction.double() - y) / self.scale).square())

    def expected(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        """Average the loss over a Gaussian prediction: the Gibbs risk of a GP by row, without sampling.

        1 - (1 + 2 v)^(-1/2) exp(-(m - y)^2 / (1 + 2 v)), with m, y in units of scale and v in units of scale^2

        Args:
            mean: of the function value [*], in units of y.
            variance: of the function value, noise left out, [*], in squared units of y.
            y: targets [*].

        Returns:
            [*], float64.
        """
        wide = 2.0 * variance.double() / self.scale**2
        square = ((mean.double() - y) / self.scale).square()
        return -torch.expm1(-square / (1.0 + wide) - 0.5 * torch.log1p(wide))


LOSSES: Mapping[str, type[ZeroOne] | type[ClippedNLL] | type[ClippedSquare] | type[SaturatingSquare]] = (
    MappingProxyType(
        {
            "0-1": ZeroOne,
            "clipped-nll": ClippedNLL,
            "clipped-square": ClippedSquare,
            "saturating-square": SaturatingSquare,
        }
    )
)
"""Every loss under the name that a command or a study uses."""


class _Squared(NamedTuple):
    """The square of a loss, in its squared unit."""

    loss: BoundedLoss

    @property
    def name(self) -> str:
        return f"square of {self.loss.name}"

    @property
    def low(self) -> float:
        return 0.0

    @property
    def high(self) -> float:
        return max(self.loss.low**2, self.loss.high**2)

    @property
    def convex(self) -> bool:
        return False

    def __call__(self, prediction: Tensor, y: Tensor) -> Tensor:
        return cast(Callable[[Tensor, Tensor], Tensor], self.loss)(prediction, y).double().square()


class _SquaredOfFunctions(_Squared):
    """The square of a loss of real targets, with its average over Gaussian predictions, or an upper bound of that."""

    def expected(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        loss: Any = self.loss
        once: Tensor = loss.expected(mean, variance, y)
        if type(loss) is SaturatingSquare:  # (1 - u)^2 = 2 (1 - u) - (1 - u^2), and u^2 has the scale over sqrt(2)
            twice = SaturatingSquare(loss.scale / math.sqrt(2.0)).expected(mean, variance, y)
            return (2.0 * once - twice).clamp_min(0.0)
        chord: Tensor = (loss.low + loss.high) * once - loss.low * loss.high  # l^2 is convex, and lies below it
        return chord


def squared(loss: BoundedLoss) -> BoundedLoss:
    """The square of a loss, whose mean gives the variance; of a Gaussian prediction an upper bound may stand for it.

    Args:
        loss: bounded.

    Returns:
        A loss in the squared unit.
    """
    return _SquaredOfFunctions(loss) if hasattr(loss, "expected") else _Squared(loss)


def require_parts(loss: object) -> None:
    """Refuse what is no loss, such as a function, a class of losses or the name of one.

    Args:
        loss: any.

    Raises:
        AssumptionError: naming what a loss has and this one has not.
    """
    if isinstance(loss, str):
        raise AssumptionError(f"loss must be a loss, got {loss!r}", hint="loss_named makes one of a name")
    if isinstance(loss, type):
        raise AssumptionError(f"loss must be a loss, got the class {loss.__name__}", hint=f"{loss.__name__}(...)")
    if missing := [part for part in PARTS if not hasattr(loss, part)]:
        what = f"loss must have {', '.join(PARTS)}, and this {type(loss).__name__} has no {', '.join(missing)}"
        raise AssumptionError(what, hint="of a class with these and a __call__(prediction, y) for each row")


def require_bounded(loss: BoundedLoss) -> None:
    """Refuse a loss without a finite range.

    Args:
        loss: says its range.

    Raises:
        AssumptionError: when the range is not finite or empty.
    """
    if not (math.isfinite(loss.low) and math.isfinite(loss.high)):
        raise AssumptionError(
            f"loss {loss.name!r} must be bounded, got the range [{loss.low:g}, {loss.high:g}]",
            hint=f"certify the same posterior with one of {', '.join(LOSSES)}",
        )
    if not loss.low < loss.high:
        raise AssumptionError(f"loss {loss.name!r} must have low < high, got [{loss.low:g}, {loss.high:g}]")


def _positive(name: str, value: float) -> None:
    if not (value > 0 and math.isfinite(value)):
        raise AssumptionError(f"{name} must be positive and finite, got {value:g}", hint="it is what bounds the loss")
