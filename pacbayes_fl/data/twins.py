"""Rows that are copies of one another, to the bit or but for jitter: found in sorted order and never by all pairs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import torch

from pacbayes_fl.data.archives import Array
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.tensors import client_blocks

_KEYS: Final = 8  # random projections of a row
_COLUMNS: Final = 32  # of a table whose columns are tried as keys too
_SAMPLE: Final = 2048  # rows by which the key is chosen that sorts them best
_BLOCK: Final = 2**20  # pairs, or numbers, that are compared in one go
_PAIRS: Final = 2**27  # of candidates, beyond which whatever is near by its key counts as one
GRIDS: Final = 4
"""In which a row is named that is not kept."""
_ROUND_SHIFTS: Final = (0.0, 0.5)  # of the grids of rounded rows, in cells
_ROUNDING: Final = 2.0**-18  # octaves by which a cell is wider for each column: 2.6e-6 of a value


def stacked(batch: ClientBatch) -> tuple[Array, Array]:
    """Put the rows of all clients below one another.

    Args:
        batch: x [K, N, *feature], y [K, N].

    Returns:
        Features and target of every row [R, d + 1], in the dtype of x, and the position of its client [R].
    """
    mask, x, y = (part.cpu().numpy() for part in (batch.mask, batch.x, batch.y))
    x = x.reshape(*mask.shape, -1)
    rows = np.empty((np.count_nonzero(mask), x.shape[-1] + 1), dtype=x.dtype)
    real = slice(None) if mask.all() else mask.ravel()  # a mask would copy the table once more
    rows[:, :-1], rows[:, -1] = x.reshape(-1, x.shape[-1])[real], y.ravel()[real]
    rows += rows.dtype.type(0.0)  # -0 becomes 0
    return rows, mask.nonzero()[0]


def together(batches: Sequence[ClientBatch | None]) -> tuple[Array, Array]:
    """Put the rows of several batches of the same clients below one another, client after client.

    Args:
        batches: some may be None, not all.

    Returns:
        As `stacked`.
    """
    parts = [stacked(batch) for batch in batches if batch is not None]
    rows, owner = (np.concatenate(each) for each in zip(*parts, strict=True))
    order = owner.argsort(kind="stable")
    return rows[order], owner[order]


def spread(batches: Sequence[ClientBatch]) -> Array:
    """Measure how far the rows of a client lie apart, by column.

    That is the median over clients of a column's standard deviation within a client, of those in which it varies, so
    that neither one client with an outlier nor clients that lie far from each other widen it. A column that varies
    between clients alone has its standard deviation over all rows. The numbers of an image have one spread together.

    Args:
        batches: rows of all clients, in one unit.

    Returns:
        By feature, with the target last [d + 1], in the units of the columns; 0 for one that is constant.
    """
    numbers = [
        (np.stack([part.std(0, dtype=np.float64) for part in parts]), np.array([np.abs(part).max(0) for part in parts]))
        for batch in batches
        for parts in _by_client(batch)
        if parts
    ]
    within, size = (np.concatenate(each) for each in zip(*numbers, strict=True))
    if batches[0].x.dim() > 3:
        pixels = np.sqrt(np.square(within[:, :-1]).mean(1, keepdims=True))
        within = np.concatenate((np.broadcast_to(pixels, within[:, :-1].shape), within[:, -1:]), 1)
    within = np.where(within > 1e-12 * size, within, np.nan)  # rounding of a large constant is no spread
    flat = np.isnan(within).all(0)
    result = np.zeros(within.shape[1])
    result[~flat] = np.nanmedian(within[:, ~flat], 0)
    if flat.any():
        rows = [part[:, flat] for batch in batches for parts in _by_client(batch) for part in parts]
        rest = np.concatenate(rows).astype(np.float64)
        between = rest.std(0)
        result[flat] = np.where(between > 1e-12 * np.abs(rest).max(0), between, 0.0)
    return result


def _by_client(batch: ClientBatch) -> Iterator[list[Array]]:
    """Give the rows of each client that has any, a block of clients at a time."""
    for own in client_blocks(batch.clients):
        rows, owner = stacked(batch.select(torch.arange(own.start, own.stop)))
        yield [part for part in np.split(rows, np.flatnonzero(np.diff(owner)) + 1) if len(part)]


def clusters(rows: Array, width: Array, seed: int = 0) -> Array:
    """Tell which rows are one row: those within the width of each other in every column, and of one another by turns.

    Whatever is closer than that is found. Twins differ by at most 1 in every projection sum_j w_j x_j / width_j with
    sum_j |w_j| = 1: only neighbours in the order of one such key, which also agree in the others, are compared. Memory
    grows with the rows, time with the pairs that are near by their key; where these are too many, whoever is linked by
    that key alone counts as one, which makes the clusters fewer and never more.

    Args:
        rows: [R, c], finite.
        width: by column [c], at least 0; rows must agree exactly in a column of width 0.
        seed: of the projections, which no result depends on but in the case above.

    Returns:
        Number of each row's cluster [R], int64, from 0 without gaps.
    """
    _, first, which = np.unique(_digest(rows), return_index=True, return_inverse=True)
    which = which.reshape(-1)
    varying = width > 0
    if not varying.any() or len(first) < 2:
        return which.astype(np.int64)
    keys, reach = _keys(rows, first, width, varying, seed)
    order = np.argsort(keys[:, 0], kind="stable")
    labels = _linked(rows, first[order], keys[order], width, reach)
    by_row = np.empty(len(labels), dtype=np.int64)
    by_row[order] = labels
    return by_row[which]


def distinct(rows: Array) -> int:
    """Count the rows that differ from one another to the bit.

    Args:
        rows: [R, c].

    Returns:
        Their number; two that differ count as one with a chance of 2^-64.
    """
    return len(np.unique(_digest(rows + rows.dtype.type(0.0))))  # -0 becomes 0


def _digest(rows: Array, salt: int = 0) -> Array:
    """Mix the bits of every row into 64 [R], uint64."""
    bits = np.ascontiguousarray(rows).view(f"u{rows.dtype.itemsize}")
    mixed = np.full(len(rows), (salt + rows.shape[1]) & (2**64 - 1), dtype=np.uint64)
    for column in bits.T:  # the finaliser of SplitMix64 (Steele, Lea & Flood 2014), one column after another
        mixed = (mixed ^ column) + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    return mixed


def _keys(rows: Array, at: Array, width: Array, varying: Array, seed: int) -> tuple[Array, float]:
    """Project the rows at [R1] so that twins differ by at most `reach` in each key [R1, P]; the first sorts best."""
    used = np.flatnonzero(varying)
    weights = np.random.default_rng(seed).normal(size=(len(used), _KEYS))
    weights /= np.abs(weights).sum(0)
    if len(used) <= _COLUMNS:
        weights = np.concatenate((weights, np.eye(len(used))), 1)
    keys, largest = np.empty((len(at), weights.shape[1])), 0.0
    step = max(1, _BLOCK // len(used))
    for block in (slice(begin, begin + step) for begin in range(0, len(at), step)):
        scaled = rows[at[block]][:, used] / width[used]
        keys[block], largest = scaled @ weights, max(largest, float(scaled.max()), -float(scaled.min()))
    reach = 1.0 + 1e-9 + 1e-15 * len(used) * largest
    sample = np.sort(keys[np.linspace(0, len(keys) - 1, min(len(keys), _SAMPLE)).astype(int)], axis=0)
    window = reach * max(1.0, len(keys) / len(sample))  # as many as a window holds among all rows
    near = [int((np.searchsorted(key, key + window, side="right") - np.arange(len(key))).sum()) for key in sample.T]
    best = np.argsort(near, kind="stable")[:_KEYS]
    return keys[:, best], reach


def _linked(rows: Array, at: Array, keys: Array, width: Array, reach: float) -> Array:
    """Number the connected components [R1] of the distinct rows at [R1], in the order of their first key [R1, P]."""
    first = keys[:, 0]
    here = np.arange(len(first))
    ahead = np.searchsorted(first, first + reach, side="right") - here - 1
    if int(ahead.sum()) > _PAIRS:
        return np.concatenate(([0], np.cumsum(np.diff(first) > reach)))
    labels = here
    until = np.cumsum(ahead)
    begin = 0
    while begin < len(at):
        end = max(begin + 1, int(np.searchsorted(until, until[begin] - ahead[begin] + _BLOCK, side="right")))
        count = ahead[begin:end]
        left = np.repeat(here[begin:end], count)
        right = left + 1 + np.arange(len(left)) - np.repeat(np.cumsum(count) - count, count)
        for key in keys.T[1:]:
            near = np.abs(key[left] - key[right]) <= reach
            left, right = left[near], right[near]
        twins = _agree(rows, at[left], at[right], width)
        if twins.any():
            labels = _joined(labels, left[twins], right[twins])
        begin = end
    return np.unique(labels, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _agree(rows: Array, left: Array, right: Array, width: Array) -> Array:
    """Compare pairs of rows in every column: bool [pairs]."""
    step = max(1, _BLOCK // rows.shape[1])
    result = [
        (np.abs(rows[left[at : at + step]].astype(np.float64) - rows[right[at : at + step]]) <= width).all(1)
        for at in range(0, len(left), step)
    ]
    return np.concatenate(result) if result else np.zeros(0, dtype=bool)


def _joined(labels: Array, left: Array, right: Array) -> Array:
    """Join the components [R] of pairs."""
    from scipy.sparse import coo_array  # only tables with twins need it
    from scipy.sparse.csgraph import connected_components

    size = len(labels)
    one, other = np.concatenate((left, np.arange(size))), np.concatenate((right, labels))
    graph = coo_array((np.ones(len(one), dtype=bool), (one, other)), shape=(size, size))
    _, result = connected_components(graph, directed=False)
    _, first = np.unique(result, return_index=True)
    return np.asarray(first[result])


def cells(rows: Array, width: Array, salt: int, grids: int = GRIDS) -> Array:
    """Name the cells of several grids that every row lies in, by which it is recognised where it is not kept.

    Of G grids each is a G-th of a cell from the next. With c < G columns cells are G widths wide: a twin is over an
    edge of one grid at most in each column, and so of none in one grid at least. With more columns they are 2 G c
    widths wide, so that a twin is over any edge of a column with a chance of 1 / (2 c) at most, and over one of every
    grid with less than 3e-4. Rows that share a cell are taken for one another.

    Args:
        rows: [R, c].
        width: by column [c]; 0 where rows must agree exactly.
        salt: of the run, without which names say nothing across runs.
        grids: G; 2 are of earlier versions, whose cells are one width wide, with many a twin over the edges of both.

    Returns:
        Names [R, G], uint64.
    """
    columns = rows.shape[1]
    side = width * (1 if grids == 2 else grids if columns < grids else 2 * grids * columns)
    scaled = np.where(side > 0, rows / np.where(side > 0, side, 1.0), rows).astype(np.float64)
    named = (np.where(side > 0, np.floor(scaled + at / grids), scaled) + 0.0 for at in range(grids))
    return np.stack([_digest(grid, grids * salt + at) for at, grid in enumerate(named)], 1)


def rounding_cells(rows: Array) -> Array:
    """Number the cells of two grids, half a cell apart, in which rows stay that are rounded.

    Cells are as wide as a value is large, so that their edges depend on nothing but the value itself, and any two who
    hold the row agree on them. They widen with the number of columns c, by which the chance that an edge lies between a
    row and its twin is the same for any: where values change by a share s of themselves, about s / 2.6e-6 in one grid.
    In both it is below 1e-4 for single precision, .002 for seven digits and a tenth for six. Rows share a cell where
    all values agree in sign and to 2.6e-6 c of them.

    Args:
        rows: [R, c], finite.

    Returns:
        Numbers of the cells, by grid [2, R, c], int64.
    """
    with np.errstate(divide="ignore"):
        scaled = np.log2(np.abs(rows.astype(np.float64))) / (_ROUNDING * rows.shape[1])
    scaled = np.where(rows == 0, -(2.0**40), scaled)  # below the smallest number there is
    at = [
        np.floor(scaled + shift + 0.25).astype(np.int64) for shift in _ROUND_SHIFTS
    ]  # round numbers are off the edges
    return np.stack([2 * cells + (rows < 0) for cells in at])
