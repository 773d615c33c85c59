"""Whether a predictor is one: it says the same of a row at every call, whatever rows stand beside it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from pacbayes_fl.certificates.outputs import said_of
from pacbayes_fl.errors import AssumptionError, ShapeError

Rows: TypeAlias = Any  # an array, a tensor, a table or a sequence, as predictors take them
_ASKED, _TOGETHER = 50, 5  # rows that a predictor is asked for again, and how many at a time
_BRIEF: Final = 4  # parts, where one predictor of many is asked
_FIRST: Final = 1000  # rows of a call of several
_TURNED: Final = 20_000  # at most, in reverse
_DRAWS: Final = 30  # by which the mean of a model that draws is known
_CALLS: Final = 10  # by which a predictor that draws is told from one that looks at other rows
_FAR: Final = 1e-3
"""Of a probability, or of the spread of numbers, by which predictions of one row are two; rounding moves them less."""

_UNABLE = AssumptionError, ShapeError, ValueError, TypeError, RuntimeError, LookupError, AssertionError
_FITTED_BEFORE = "fit scalers and the like on other rows: scaler.transform in place of fit_transform"


class Again(NamedTuple):
    """Copies of rows, made before a predictor has changed any, of which each is asked once more.

    Args:
        first: the first rows.
        turned: more of them, in reverse.
        parts: the first of them, a few at a time; none of a single row.
        halves: the first of `first` and the last ones.
        rows: how many `first` are.
    """

    first: Rows
    turned: Rows
    parts: Sequence[Rows]
    halves: Sequence[Rows]
    rows: int


def asked_again(inputs: Rows) -> Again:
    """Copy what predictors will be asked for again.

    Args:
        inputs: of the rows [n], as predictors take them; a sequence of another type than numpy's, torch's and pandas'
            is asked for row by row, and predictors get lists of these.

    Returns:
        The copies.
    """
    count = len(inputs)
    rows = inputs.iloc if hasattr(inputs, "iloc") else inputs
    if not (rows is not inputs or isinstance(inputs, Tensor | np.ndarray | list | tuple)):
        rows = [inputs[at] for at in range(min(_TURNED, count))]
    size, most = min(_TOGETHER, count // 2), min(_FIRST, count)
    starts = range(0, min(_ASKED, count) - size + 1, size) if size else ()
    half = most // 2
    halves = [_copied(rows[:half]), _copied(rows[half:most])] if half else []
    parts = [_copied(rows[at : at + size]) for at in starts]
    return Again(_copied(rows[:most]), _turned(_copied(rows[: min(_TURNED, count)])), parts, halves, most)


def require_fixed(one: Callable[[Rows], object], again: Again, said: Tensor, y: Tensor, brief: bool) -> None:
    """Refuse a predictor that says something else of rows in another order, of a few of them, or at another call.

    Losses of such predictions are no independent draws, and there is no risk of a row that comes alone.

    Args:
        one: the predictor.
        again: rows to ask it for.
        said: what it has said of all rows, log probabilities [n, C], labels [n] or numbers [n].
        y: labels, int64, or real targets [n].
        brief: whether a few parts are enough, as of the later ones of many predictors.

    Raises:
        AssumptionError: when it is not fixed, or answers fewer rows than all of them with an error.
    """
    known, labels = said[: again.rows], y[: again.rows]
    rows = again.turned
    if brief:
        rows = rows.iloc[-again.rows :] if hasattr(rows, "iloc") else rows[-again.rows :]
    turned = _said(one, rows, y[: len(rows)].flip(0))
    if isinstance(turned, Tensor) and differ(said[: len(rows)], turned.flip(0)):
        raise _refusal(one, again, said, y, None)
    failed: Exception | None = None
    for pieces in (again.parts[:_BRIEF] if brief else again.parts, again.halves):
        answers = [_said(one, part, labels[at : at + len(part)]) for at, part in _placed(pieces)]
        failed = next((each for each in answers if not isinstance(each, Tensor)), None)
        if failed is not None:
            continue
        told = torch.cat([each for each in answers if isinstance(each, Tensor)]) if answers else known[:0]
        if answers and differ(known[: len(told)], told):
            raise _refusal(one, again, said, y, len(pieces[0]))
        return
    count = len(again.halves[0])
    what = f"a predictor must answer a row by itself, and of {count} of the {len(y)} rows this one gives an error"
    hint = f"{_FITTED_BEFORE}; of predictions that were made before, a bound of numbers such as bounds.holdout_binomial"
    raise AssumptionError(f"{what}: {str(failed).splitlines()[0]}", hint=hint) from failed


def _placed(pieces: Sequence[Rows]) -> Iterator[tuple[int, Rows]]:
    """Give pieces of the rows with the places of their first ones."""
    at = 0
    for part in pieces:
        yield at, part
        at += len(part)


def _refusal(
    one: Callable[[Rows], object], again: Again, said: Tensor, y: Tensor, count: int | None
) -> AssumptionError:
    """Say whether a predictor draws, or looks at other rows."""
    calls = [_said(one, again.first, y[: again.rows]) for _ in range(_CALLS)]
    if len(said) == again.rows:  # which were all rows, asked for in the same order
        calls = [said, *calls]
    told = [each for each in calls if isinstance(each, Tensor)]
    if any(differ(told[0], each) for each in told[1:]):
        what = "a predictor must say the same at every call, and this one draws whenever it is asked"
        return AssumptionError(what, hint="a posterior needs kl= (and sample=); of one draw fix the seed before")
    where = "in another order" if count is None else f"where only {count} are there"
    what = f"a predictor must answer a row by itself, and this one says something else {where}"
    return AssumptionError(what, hint=f"{_FITTED_BEFORE}; batch norms in evaluation mode")


def _said(one: Callable[[Rows], object], rows: Rows, y: Tensor) -> Tensor | Exception:
    """Ask for a copy of rows; give the error where the predictor cannot take as many."""
    try:
        return said_of(one, _copied(rows), y)
    except _UNABLE as error:
        return error


def _copied(rows: Rows) -> Rows:
    if isinstance(rows, Tensor):
        return rows.detach().clone()
    try:
        return copy.deepcopy(rows)
    except Exception:  # of whatever rows are, such as tensors with slopes
        return copy.copy(rows)


def _turned(rows: Rows) -> Rows:
    if isinstance(rows, Tensor):
        return rows.flip(0)
    if isinstance(rows, np.ndarray):
        return rows[::-1].copy()
    return rows.iloc[::-1] if hasattr(rows, "iloc") else rows[::-1]


def require_alone_on_average(one: Callable[[Rows], object], again: Again, y: Tensor) -> None:
    """Refuse a model that draws whenever it is called, and whose mean of a row depends on the other rows.

    Each row is asked for in calls of many rows and of few; means that lie apart by more than six standard errors are
    two, as by rows that are centred or scaled by those of their call.

    Args:
        one: the model.
        again: rows to ask it for.
        y: labels, int64, or real targets [n].

    Raises:
        AssumptionError: when it is so.
    """
    parts = again.parts[:_BRIEF]
    if not parts:
        return
    count = sum(map(len, parts))
    many, few = [], []
    for _ in range(_DRAWS):
        whole = _said(one, again.first, y[: again.rows])
        answers = [_said(one, part, y[at : at + len(part)]) for at, part in _placed(parts)]
        told = [each for each in (whole, *answers) if isinstance(each, Tensor)]
        if len(told) <= len(parts) or len({each.dim() for each in told}) > 1:
            return  # of errors and of shapes the losses will say
        many.append(_plain(told[0][:count]))
        few.append(_plain(torch.cat(told[1:])))
    if any(each.shape != many[0].shape for each in (*many, *few)):
        return
    one_way, other = torch.stack(many), torch.stack(few)
    error = ((one_way.var(0) + other.var(0)) / _DRAWS).sqrt()
    apart = (one_way.mean(0) - other.mean(0)).abs()
    if bool((apart > 6.0 * error + _FAR * one_way.std().nan_to_num(0.0)).any()):
        what = (
            f"a model must answer a row by itself, and its draws have other means where only {len(parts[0])} are there"
        )
        raise AssumptionError(what, hint=f"{_FITTED_BEFORE}; batch norms in evaluation mode")


def _plain(said: Tensor) -> Tensor:
    """Probabilities of log probabilities [n, C]; labels and numbers as they are, float64."""
    return said.double().exp() if said.dim() == 2 else said.double()


def differ(said: Tensor, again: Tensor) -> bool:
    """Whether predictions of the same rows differ by more than rounding, or a label at a tie.

    Args:
        said: log probabilities [n, C], labels [n] or numbers [n].
        again: likewise, [n, C] or [n].

    Returns:
        False of predictions of another shape, which are another matter.
    """
    if said.shape != again.shape:
        return False
    if said.dim() == 2:
        far = ((said.exp() - again.exp()).abs() > _FAR).any(1)
    else:
        one, other = said.double(), again.double()
        far = (one - other).abs() > _FAR * one.std(correction=0) + 1e-5 * one.abs().max()
    return int(far.sum()) > (1 + len(far) / 1000 if len(far) > 1 else 0)
