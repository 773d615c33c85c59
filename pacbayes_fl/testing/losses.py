"""Laws of every loss that a certificate can speak of, for the tests of losses of one's own: `check_loss`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from pacbayes_fl.bounds import BoundedLoss
from pacbayes_fl.bounds.checks import ROUNDING, in_declared_range
from pacbayes_fl.bounds.loss_table import check_parts
from pacbayes_fl.certificates.fingerprint import fingerprint
from pacbayes_fl.errors import StudyError, kinds_checked, shown
from pacbayes_fl.testing.check import require_kept, require_known
from pacbayes_fl.testing.scene import require

LossLaw = Callable[[Any], None]

_POINTS: Final = 40_001  # of the integral over a Gaussian, to 10 standard deviations
_REACH: Final = 10.0
_INTEGRAL: Final = 1e-3  # of the range, by which a jump between two points may move it
_CLASSES: Final = (2, 3, 5)


@kinds_checked
def check_loss(loss: BoundedLoss, *, without: Collection[str] = ()) -> None:
    """Check that a loss of one's own keeps all laws that bounds ask of one: call it in a test of your own.

    It says its name, its range and whether it is convex ("parts"), gives one value a row, within its range ("range"),
    which no other row moves ("rows"), and the same one again ("repeats"). Where it is of numbers, `expected` is no less
    than its average over Gaussian predictions ("average"). Where it says that it is convex, it is ("convex"). Requests
    for certificates are counted by what it is made of, which a copy has too ("counted").

    Args:
        loss: of numbers where it has `expected(mean, variance, y)`, else of labels.
        without: names of laws that the loss does not claim to keep.

    Raises:
        LawError: naming every law that is broken, and how; an AssertionError.
        StudyError: when it is a class or cannot be called, or a name in `without` is no law.

    Example:
        >>> from pacbayes_fl.bounds import ClippedSquare
        >>> from pacbayes_fl.testing import check_loss
        >>> check_loss(ClippedSquare(4.0))
    """
    require_known(without, LOSS_LAWS)
    if isinstance(loss, type) or not callable(loss):
        what = "a class" if isinstance(loss, type) else f"{shown(loss)}, which cannot be called"
        raise StudyError(f"check_loss takes a loss of predictions and targets, got {what}", hint="such as MyLoss(2.0)")
    require_kept(type(loss).__name__, loss, LOSS_LAWS, without)


def _width(loss: BoundedLoss) -> float:
    return loss.high - loss.low


def _of_numbers(loss: object) -> bool:
    return hasattr(loss, "expected")


def _numbers(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Give predictions [K, N] and targets [K, N], of which some are equal and some very far."""
    random = np.random.default_rng(seed)
    y = torch.from_numpy(random.normal(size=(3, 40)))
    away = torch.from_numpy(random.normal(size=(3, 40)) * np.geomspace(1e-6, 1e9, 40))
    away[:, ::7] = 0.0
    return y + away, y


def _labels(classes: int) -> tuple[Tensor, Tensor]:
    """Give log probabilities [K, N, C] and labels [K, N], some of which are all but certain."""
    random = np.random.default_rng(classes)
    scores = random.normal(size=(3, 40, classes)) * np.geomspace(1e-3, 1e3, 40)[:, None]
    return torch.from_numpy(scores).log_softmax(-1), torch.from_numpy(random.integers(classes, size=(3, 40)))


def _cases(loss: object) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield predictions and targets as a loss gets them, in both precisions."""
    every = [_numbers()] if _of_numbers(loss) else [_labels(classes) for classes in _CLASSES]
    for prediction, y in every:
        yield from ((prediction, y), (prediction.float(), y))


def _values(loss: Any, prediction: Tensor, y: Tensor) -> Tensor:
    """Take the loss of rows [*], which are within its range, float64."""
    values = in_declared_range(loss, loss(prediction, y), torch.ones_like(y, dtype=torch.bool))
    require(bool(values.isfinite().all()), "it is no number where predictions and targets are finite")
    return values


def parts(loss: Any) -> None:
    """Check that a loss says its name, a finite range, and whether it is convex.

    Args:
        loss: any.
    """
    check_parts(loss, str(getattr(loss, "name", type(loss).__name__)))


def in_range(loss: Any) -> None:
    """Check that a loss gives a value for each row, within the range that it declares.

    Args:
        loss: any.
    """
    for prediction, y in _cases(loss):
        _values(loss, prediction, y)


def rows(loss: Any) -> None:
    """Check that the loss of a row is what it is alone, and in another order and shape: 1e-6 of the range.

    Args:
        loss: any.
    """
    slack = ROUNDING * _width(loss)
    for prediction, y in _cases(loss):
        together = _values(loss, prediction, y)
        flat, targets = prediction.flatten(0, 1), y.flatten()
        alone = torch.cat([_values(loss, flat[at : at + 1], targets[at : at + 1]) for at in range(len(targets))])
        backwards = _values(loss, flat.flip(0), targets.flip(0)).flip(0)
        for name, other in {"alone": alone, "in another order": backwards}.items():
            worst = int((other - together.flatten()).abs().argmax())
            one, same = together.flatten()[worst].item(), other[worst].item()
            require(abs(one - same) <= slack, f"the loss of a row is {one:g} among others and {same:g} {name}")


def repeats(loss: Any) -> None:
    """Check that a loss gives the same again, draws nothing, and changes nothing in place.

    Args:
        loss: any.
    """
    before = torch.random.get_rng_state()
    every = [*_cases(loss)]
    given = [(prediction.clone(), y.clone()) for prediction, y in every]
    first = [_values(loss, *one) for one in every]
    again = [_values(loss, *one) for one in reversed(every)][::-1]
    require(all(map(torch.equal, first, again)), "the same predictions have another loss when they come again")
    kept = [
        torch.equal(one, other) for pair in zip(every, given, strict=True) for one, other in zip(*pair, strict=True)
    ]
    require(all(kept), "it changes predictions or targets in place")
    require(torch.equal(before, torch.random.get_rng_state()), "it draws from the global generator of torch")


def average(loss: Any) -> None:
    """Check that `expected` is no less than the average over a Gaussian prediction, as an integral: .001 of the range.

    Args:
        loss: any; of labels nothing is asked.
    """
    if not _of_numbers(loss):
        return
    z = torch.linspace(-_REACH, _REACH, _POINTS, dtype=torch.float64)
    density = torch.exp(-0.5 * z.square())
    density /= density.sum()
    mean = torch.tensor([0.0, 0.1, -0.6, 1.5, 4.0, 30.0], dtype=torch.float64)
    y = torch.full_like(mean, 0.2)
    for std in (0.0, 1e-3, 0.1, 0.7, 3.0, 50.0):
        variance = torch.full_like(mean, std**2)
        got = in_declared_range(loss, loss.expected(mean, variance, y), torch.ones_like(mean, dtype=torch.bool))
        integral = (_values(loss, mean.unsqueeze(1) + std * z, y.unsqueeze(1).expand(-1, _POINTS)) * density).sum(1)
        short = integral - got
        worst = int(short.argmax())
        what = f"`expected` at a mean of {mean[worst]:g} and a standard deviation of {std:g} is {got[worst]:g}, and the"
        require(
            bool((short <= _INTEGRAL * _width(loss)).all()), f"{what} average over that Gaussian is {integral[worst]:g}"
        )


def convex(loss: Any) -> None:
    """Check that a loss that says so is no larger for an average of predictions than on average: 1e-6 of the range.

    Args:
        loss: any; one that does not say so is not looked at.
    """
    if not loss.convex:
        return
    for prediction, y in _cases(loss):
        other = prediction.roll(11, 1)
        for share in (0.1, 0.5, 0.8):
            if _of_numbers(loss):
                mixed = share * prediction + (1.0 - share) * other
            else:
                mixed = (share * prediction.exp() + (1.0 - share) * other.exp()).log()
            most = share * _values(loss, prediction, y) + (1.0 - share) * _values(loss, other, y)
            over = _values(loss, mixed, y) - most
            what = "its value at an average of two predictions is above the average of its values by"
            require(bool((over <= ROUNDING * _width(loss)).all()), f"{what} {over.max():.3g}")


def counted(loss: Any) -> None:
    """Check that a loss has a fingerprint, by which requests for certificates are counted, and a copy has the same.

    Args:
        loss: any.
    """
    one, other = fingerprint(loss), fingerprint(copy.deepcopy(loss))
    require(one == other, "a copy of it counts as another loss: it holds something without a content of its own")


LOSS_LAWS: Final[Mapping[str, LossLaw]] = MappingProxyType(
    {
        "parts": parts,
        "range": in_range,
        "rows": rows,
        "repeats": repeats,
        "average": average,
        "convex": convex,
        "counted": counted,
    }
)
"""Every law of a loss by name; one is broken where it raises anything."""
