"""Trial of a prior's modules at a few inputs: whether each row has values of its own, whatever rows stand beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from pacbayes_fl.errors import ShapeError, StudyError

_OTHERS: Final = nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd, parametrizations._SpectralNorm
"""Layers that a row does not pass alone, or not twice alike, while they are in training mode."""

_NOT_ALONE: Final = "and predictions, evidences and certificates are of rows that stand for themselves"


def inputs(rows: int, features: int) -> Tensor:
    """Inputs to try modules at, spread as those of standardised rows are.

    Args:
        rows: N.
        features: d.

    Returns:
        [N, d].
    """
    return 3.0 * torch.arange(float(rows * features), dtype=torch.float64).cos().view(rows, features)


def check_rows(
    modules: nn.Module, call: Callable[[str, Tensor, Tensor], Tensor], parts: Sequence[str], features: int
) -> None:
    """Refuse modules of which a row has other values at another call, beside other rows or alone.

    Args:
        modules: what is tried, to name a layer in it.
        call: gives a part, [N] or, of "covariance", [N, M], at inputs [N, d] and [M, d].
        parts: such as "mean".
        features: d.

    Raises:
        StudyError: naming the part or the layer.
        ShapeError: when a part drops the dimension of a single row.
    """
    for name, module in modules.named_modules():
        if module.training and isinstance(module, _OTHERS):
            what = f"{name} ({type(module).__name__}) is in training mode: what it gives for a row depends on others"
            what = what if isinstance(module, _OTHERS[0]) else f"{what.split(':')[0]}: it gives other values every time"
            raise StudyError(f"{what}, {_NOT_ALONE}", hint="leave it out, take LayerNorm, or call eval() on it before")
    x, other = inputs(9, features).split((5, 4))
    for part in parts:
        whole = _tried(call, part, x, other)
        if not bool(whole.isfinite().all()):
            what = f"{part} is no finite number at some inputs as standardised rows have them, from -3 to 3"
            raise StudyError(what, hint="take a part that is one everywhere")
        if not _close(_tried(call, part, x, other), whole):
            raise StudyError(f"{part} gives other values every time that it is called, {_NOT_ALONE}")
        for rows, columns in ((slice(1, 3), slice(2, 4)), (slice(0, 1), slice(0, 1))):
            expected = whole[rows, columns] if part == "covariance" else whole[rows]
            alone = _tried(call, part, x[rows], other[columns])
            if alone.shape != expected.shape:
                what = f"{part} must give {list(expected.shape)} at {list(x[rows].shape)}, got {list(alone.shape)}"
                raise ShapeError(what, hint="squeeze(-1), of the last dimension alone, keeps a single row")
            if not _close(alone, expected):
                what = f"{part} gives a row another value beside other rows than alone, {_NOT_ALONE}"
                raise StudyError(what, hint="standardise by numbers that are fixed before, not by the rows of a call")


def _tried(call: Callable[[str, Tensor, Tensor], Tensor], part: str, x: Tensor, other: Tensor) -> Tensor:
    try:
        return call(part, x, other).detach()
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        shapes = f"{list(x.shape)} and {list(other.shape)}" if part == "covariance" else str(list(x.shape))
        raise StudyError(f"{part} cannot be taken at inputs {shapes}: {str(error).splitlines()[0]}") from error


def _close(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, atol=1e-6 * float(other.abs().max()))


def check_constraints(prefix: str, part: nn.Module) -> None:
    """Refuse constraints that hold nothing, and values at an end of one, from which no step leads away.

    Args:
        prefix: such as "kernel".
        part: a mean, a kernel or a likelihood of GPyTorch.

    Raises:
        StudyError: naming the parameter.
    """
    named: Any = part
    for name, parameter, constraint in named.named_parameters_and_constraints():
        if constraint is None or not parameter.requires_grad:
            continue
        if not constraint.enforced:
            what = f"{prefix}.{name} has a constraint without a transform, which holds nothing while theta is learned"
            raise StudyError(what, hint=f"{type(constraint).__name__} with its usual transform")
        if not bool(parameter.isfinite().all()):
            value, said = constraint.transform(parameter.detach()).flatten()[0], str(constraint)
            what = f"{prefix}.{name} holds {float(value):g}, an end of its constraint {said}, which no step leaves"
            raise StudyError(what, hint="start inside, or keep the value: requires_grad_(False) on this parameter")
