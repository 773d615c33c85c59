"""check_loss passes losses that keep the laws, and names the law that a loss breaks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from pacbayes_fl.bounds import ClippedNLL, SaturatingSquare, ZeroOne
from pacbayes_fl.errors import StudyError
from pacbayes_fl.testing import LawError, check_loss


@dataclass(frozen=True)
class Absolute:
    """Absolute error that stops growing at 1, with an upper bound for its average."""

    name: str = "capped absolute error"
    low: float = 0.0
    high: float = 1.0
    convex: bool = False

    def __call__(self, prediction: Tensor, y: Tensor) -> Tensor:
        return (prediction - y).abs().clamp_max(1.0)

    def expected(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        return ((mean - y).square() + variance).sqrt().clamp_max(1.0)


class Unclipped(Absolute):
    def __call__(self, prediction: Tensor, y: Tensor) -> Tensor:
        return (prediction - y).abs()


class Averaged(Absolute):
    def __call__(self, prediction: Tensor, y: Tensor) -> Tensor:
        return super().__call__(prediction, y).mean()


class Scaled(Absolute):
    """Errors by the largest of the call."""

    def __call__(self, prediction: Tensor, y: Tensor) -> Tensor:
        error = (prediction - y).abs()
        return error / error.max().clamp_min(1e-12)


class Noisy(Absolute):
    def __call__(self, prediction: Tensor, y: Tensor) -> Tensor:
        return super().__call__(prediction, y) * torch.rand(y.shape).to(prediction)


class Spoiling(Absolute):
    def __call__(self, prediction: Tensor, y: Tensor) -> Tensor:
        return prediction.sub_(y).abs().clamp_max(1.0)


class AtTheMean(Absolute):
    """The loss of the mean, which is below the mean of the loss."""

    def expected(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        return (mean - y).abs().clamp_max(1.0)


class OfNothing(Absolute):
    """No number where prediction and target are equal."""

    def __call__(self, prediction: Tensor, y: Tensor) -> Tensor:
        error = (prediction - y).abs()
        return error / error * super().__call__(prediction, y)


class Holding(Absolute):
    """A loss that holds the number of an object, which no copy has."""

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "own", id(self))

    def __deepcopy__(self, memo: Any) -> Holding:
        return Holding()


class Confident:
    """Probability of the most probable class where it is wrong: no convex function of the probabilities."""

    name, low, high, convex = "confident", 0.0, 1.0, True

    def __call__(self, log_probs: Tensor, y: Tensor) -> Tensor:
        top = log_probs.max(-1)
        return torch.where(top.indices == y, 0.0, top.values.exp())


BROKEN: dict[str, tuple[object, str]] = {
    "unclipped": (Unclipped(), "range"),
    "averaged": (Averaged(), "range"),
    "scaled": (Scaled(), "rows"),
    "noisy": (Noisy(), "repeats"),
    "spoiling": (Spoiling(), "repeats"),
    "at the mean": (AtTheMean(), "average"),
    "of nothing": (OfNothing(), "range"),
    "says it is convex": (Absolute(convex=True), "convex"),
    "labels, says it is convex": (Confident(), "convex"),
    "holding": (Holding(), "counted"),
    "no range": (Absolute(high=float("inf")), "parts"),
    "the library's name": (type("Sub", (SaturatingSquare,), {})(), "parts"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_loss_that_breaks_a_law_is_told_which(name: str) -> None:
    loss, law = BROKEN[name]
    with pytest.raises(LawError) as caught:
        check_loss(loss)  # type: ignore[arg-type]
    assert law in caught.value.laws, caught.value
    assert str(caught.value).startswith(f"{type(loss).__name__} breaks ")


def test_losses_pass_and_laws_can_be_left_out() -> None:
    for loss in (Absolute(), ZeroOne(), ClippedNLL(), type("Convex", (Confident,), {"convex": False})()):
        check_loss(loss)
    check_loss(AtTheMean(), without=["average"])
    with pytest.raises(StudyError, match=r"no law is called 'mean' \(laws: parts, range, rows"):
        check_loss(Absolute(), without=["mean"])
    with pytest.raises(StudyError, match=r"check_loss takes a loss of predictions and targets, got a class \(such as"):
        check_loss(Absolute)  # type: ignore[arg-type]
    with pytest.raises(StudyError, match="which cannot be called"):
        check_loss("0-1")  # type: ignore[arg-type]
