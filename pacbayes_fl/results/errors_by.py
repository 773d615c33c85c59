"""Errors of numbers by a column of their rows: where a column is cut, and residuals and coverage of its parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from pacbayes_fl.tensors import client_blocks, mapped_zeros, release_mapped

Array = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
Mask = npt.NDArray[Any]

_PIECE: Final = 2**17  # rows that are looked at together
_VALUES: Final = 24  # of a column, that are a part each
_PARTS: Final = 12  # of a column that has more


def edges(parts: Sequence[tuple[Array, Mask]]) -> Array:
    """Cut a column into parts: between single values where there are few, at quantiles where there are many.

    Args:
        parts: values of the rows of a group [K, M], and which of them are real, bool [K, M].

    Returns:
        Ends of the parts [H + 1]; fewer than 3 where there is only one value.
    """
    kind = np.result_type(*(values for values, _ in parts))
    finite, count, known = _room(sum(values.size for values, _ in parts), kind), 0, np.empty(0, kind)
    for values, real in parts:
        for own in client_blocks(len(values)):
            some = values[own][real[own]]
            some = some[np.isfinite(some)]
            finite[count : count + some.size] = some
            count += some.size
            if known.size <= _VALUES:
                known = np.unique(np.concatenate([known, some]))
    if known.size < 2:
        return known
    if known.size <= _VALUES:
        inner = (known[1:] + known[:-1]) / 2
        return np.concatenate([[2 * known[0] - inner[0]], inner, [2 * known[-1] - inner[-1]]])
    return np.unique(np.quantile(finite[:count], np.linspace(0, 1, _PARTS + 1), overwrite_input=True))


def residuals(
    values: Array, ends: Array, rows: Mask, y: Array, mean: Array, lower: Array, upper: Array
) -> tuple[Array, Array, Counts]:
    """Look at the residuals y - mean of the parts of a column, and how often intervals hold targets.

    Args:
        values: of the column [K, M].
        ends: of its parts [H + 1].
        rows: which are real, bool [K, M].
        y: targets [K, M].
        mean: predicted [K, M].
        lower: end of their 95 % interval [K, M].
        upper: its other end [K, M].

    Returns:
        Quartiles of residuals [3, H], shares of rows in intervals [H], and rows that have one [H].
    """
    parts = ends.size - 1
    residual, place = (
        _room(values.size, y.dtype),
        np.empty(values.size, np.int8),
    )  # of the rows that count
    many, counts, held = 0, np.zeros(parts, np.int64), np.zeros(parts)
    for own in client_blocks(len(values)):
        real = rows[own] & np.isfinite(values[own])
        low, high, target = lower[own][real], upper[own][real], y[own][real]
        new = slice(many, many + target.size)
        place[new] = np.clip(np.searchsorted(ends, values[own][real], side="right") - 1, 0, parts - 1)
        residual[new], many = target - mean[own][real], new.stop
        known = np.isfinite(low) & np.isfinite(high)
        counts += np.bincount(place[new][known], minlength=parts)
        held += np.bincount(place[new][known], ((low <= target) & (target <= high))[known], parts)
    quartiles = np.full((3, parts), np.nan)
    for part in range(parts):
        found = [residual[own][place[own] == part] for own in _pieces(many)]
        some = np.concatenate([one[np.isfinite(one)] for one in found]) if found else residual[:0]
        if some.size:
            quartiles[:, part] = np.quantile(some, [0.25, 0.5, 0.75])
    with np.errstate(invalid="ignore", divide="ignore"):
        return quartiles, held / counts, counts


def _room(size: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Make an array that is in a file where it is large."""
    return mapped_zeros((size,), torch.from_numpy(np.empty(0, dtype)).dtype).numpy()


def _pieces(many: int) -> Iterator[slice]:
    """Cut rows into pieces, and release arrays in files after each."""
    for at in range(0, many, _PIECE):
        yield slice(at, min(at + _PIECE, many))
        release_mapped()
