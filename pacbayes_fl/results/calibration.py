"""Where test rows fall in their predictive distributions: PIT histograms, and coverage of intervals by parts of rows.

Both are read off the predictions that a run keeps. Every share stands beside the band in which it lies if the
predictive distributions are right and rows independent; rows of a series are not, and leave it more often.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import IO, TYPE_CHECKING, Final, NamedTuple, Protocol

from pacbayes_fl import files, names
from pacbayes_fl.files import JsonMapping
from pacbayes_fl.results.client_rows import GROUPS, ClientRows
from pacbayes_fl.results.metrics import COVERAGE

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from torch import Tensor

    Array = npt.NDArray[np.float64]

FILE: Final = "calibration.csv"
"""What a run folder calls the table."""

PIT_BINS: Final = 20
HELD: Final = 0.95
"""Nominal coverage of the intervals that a run keeps, and probability of a band."""

_SELDOM: Final = 0.85  # coverage of such intervals, below which they are said to be too narrow
_FEW: Final = 24  # values of a column that are a part of rows each
_PARTS: Final = 10  # of a column that has more
_COLUMNS: Final = ("group", "by", "low", "high", "client", "rows", "share", "expected", "band_low", "band_high")


class Result(Protocol):
    """What is read of a finished run, `results.records.Result`."""

    @property
    def method(self) -> str:
        """Its name."""

    @property
    def rows(self) -> ClientRows:
        """Clients, in the order of the rows of predictions in each group."""

    @property
    def predictions(self) -> Mapping[str, Tensor]:
        """Predictions of test rows by flat names."""

    @property
    def labels(self) -> JsonMapping:
        """What numbers are."""


class Shares(NamedTuple):
    """Shares of rows, part by part.

    Args:
        low: where a part begins [H]; empty of clients.
        high: where it ends [H]; `low` where it is a single value.
        rows: test rows that it is of [H].
        share: that was seen [H], NaN without rows.
        expected: of a predictive that is right.
        band: ends [2, H] between which all shares of such a predictive lie with probability .95, rows being
            independent.
        names: of clients; empty of other parts.
    """

    low: Array
    high: Array
    rows: npt.NDArray[np.int64]
    share: Array
    expected: float
    band: Array
    names: tuple[str, ...] = ()


def band(rows: npt.NDArray[np.int64], probability: float) -> Array:
    """Give shares between which those of independent rows lie, all at once, with probability .95.

    Quantiles of Binomial(n_h, p) / n_h at .025 / H and 1 - .025 / H (Bonferroni's inequality over H parts).

    Args:
        rows: n [H].
        probability: p, of a row to count.

    Returns:
        Lower and upper ends [2, H]; NaN where there is no row.

    Example:
        >>> import numpy as np
        >>> from pacbayes_fl.results.calibration import band
        >>> band(np.array([10, 1000]), 0.95).round(3).tolist()  # coverage of few rows can be far from .95 by chance
        [[0.8, 0.934], [1.0, 0.965]]
    """
    import numpy as np

    ends = np.full((2, len(rows)), math.nan)
    known = rows > 0
    tail = (1.0 - HELD) / 2 / max(1, int(known.sum()))
    for end, level in zip(ends, (tail, 1.0 - tail), strict=True):
        end[known] = _binomial_quantile(level, rows[known], probability) / rows[known]
    return ends


def _binomial_quantile(level: float, rows: npt.NDArray[np.int64], probability: float) -> Array:
    """Smallest count whose distribution function reaches a level."""
    import numpy as np
    from scipy import special

    count = np.ceil(special.bdtrik(level, rows, probability))
    before = np.maximum(count - 1, 0)  # `bdtrik` may round up over a whole number
    smallest: Array = np.where(special.bdtr(before, rows, probability) >= level, before, count)
    return smallest


def pit_histogram(result: Result, group: str, bins: int = PIT_BINS) -> Shares | None:
    """Count where the targets of a group fall in their predictive distributions, F(y), by equal bins.

    Where a target has a probability of its own, F jumps from F(y-) to F(y) and the row is spread evenly over that
    (Czado, Gneiting and Held 2009, eq. 2), so that the histogram is flat where the predictive is right.

    Args:
        result: a finished run.
        group: "existing" or "new".
        bins: H, on [0, 1].

    Returns:
        Shares of all test rows [H]; None where there are no predictive probabilities.
    """
    import numpy as np

    from pacbayes_fl.tensors import client_blocks

    arrays = _arrays(result, group, "pit", "mask_test")
    if not arrays:
        return None
    below = _arrays(result, group, "pit_below").get("pit_below", arrays["pit"])
    edges, reached, count = np.linspace(0.0, 1.0, bins + 1), np.zeros(bins - 1), 0
    for own in client_blocks(len(below)):
        real = arrays["mask_test"][own] & np.isfinite(arrays["pit"][own])
        upper, lower = arrays["pit"][own][real], below[own][real]
        jump, count = upper - lower, count + upper.size
        for at, edge in enumerate(edges[1:-1]):  # all edges at once would take as many times the memory
            with np.errstate(invalid="ignore", divide="ignore"):
                part = np.clip((edge - lower) / jump, 0.0, 1.0)  # of every row, below the edge
            reached[at] += np.where(jump > 0, part, upper <= edge).sum()
    if not count:
        return None
    share = np.diff(np.concatenate([[0.0], reached, [count]])) / count
    rows = np.full(bins, count)
    return Shares(edges[:-1], edges[1:], rows, share, 1.0 / bins, band(rows, 1.0 / bins))


def rows_below(result: Result, group: str, levels: Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Count the test rows of every client whose target lies below the predicted quantiles of some levels.

    Args:
        result: a finished run.
        group: "existing" or "new".
        levels: of the quantiles [H].

    Returns:
        Rows of each client [K], and how many of them lie below [H, K]; none where there are no probabilities.
    """
    import numpy as np

    from pacbayes_fl.tensors import client_blocks

    arrays = _arrays(result, group, "pit", "mask_test")
    pit, mask = (arrays.get(name, np.zeros((0, 0))) for name in ("pit", "mask_test"))
    rows, below = np.zeros(len(pit), np.int64), np.zeros((len(levels), len(pit)), np.int32)
    for own in client_blocks(len(pit)):
        real = (mask[own] != 0) & np.isfinite(pit[own])
        rows[own] = real.sum(1)
        for counts, level in zip(below, levels, strict=True):
            counts[own] = ((pit[own] <= level) & real).sum(1)
    return rows, below


def coverage_by(result: Result, group: str) -> Shares | None:
    """Count how often 95 % intervals hold their targets, by the column that `report.coverage_by` names.

    A column of up to 24 values has a part for each; another is cut at its deciles.

    Args:
        result: a finished run.
        group: "existing" or "new".

    Returns:
        Shares [H]; None where no column was named, or there are no intervals.
    """
    import numpy as np

    arrays = _arrays(result, group, "coverage_by", "mask_test")
    inside = _inside(result, group)
    if not arrays or inside is None:
        return None
    held, real = inside
    values, held = arrays["coverage_by"][real], held[real]
    low = high = np.unique(values)
    place = np.searchsorted(low, values)
    if low.size > _FEW:
        inner = np.unique(np.quantile(values, np.arange(1, _PARTS) / _PARTS))
        place = np.searchsorted(inner, values)  # (a, b]
        parts = np.unique(place)
        place = np.searchsorted(parts, place)
        low, high = (np.array([end(values[place == h]) for h in range(parts.size)]) for end in (np.min, np.max))
    rows = np.bincount(place, minlength=low.size)
    return Shares(low, high, rows, np.bincount(place, held, low.size) / rows, HELD, band(rows, HELD))


def coverage_by_client(result: Result, group: str) -> Shares | None:
    """Count how often 95 % intervals hold the targets of every client.

    Args:
        result: a finished run.
        group: "existing" or "new".

    Returns:
        Shares [K], with the clients' names; None where there are no intervals.
    """
    import numpy as np

    inside = _inside(result, group)
    if inside is None:
        return None
    held, real = inside
    rows = real.sum(1)
    with np.errstate(invalid="ignore"):
        share = (held & real).sum(1) / rows
    named = tuple(result.rows.names(group))
    none = np.empty(0)
    return Shares(none, none, rows, share, HELD, band(rows, HELD), named)


def _inside(result: Result, group: str) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]] | None:
    """Which test rows lie in their intervals, and which rows have one [K, M]; None without any."""
    import numpy as np

    from pacbayes_fl.tensors import client_blocks

    arrays = _arrays(result, group, "lower", "upper", "y_test", "mask_test")
    if not arrays:
        return None
    held, real = np.empty(arrays["lower"].shape, dtype=bool), np.empty(arrays["lower"].shape, dtype=bool)
    for own in client_blocks(len(held)):
        lower, upper, y = (arrays[name][own] for name in ("lower", "upper", "y_test"))
        real[own] = arrays["mask_test"][own] & np.isfinite(lower) & np.isfinite(upper)
        held[own] = (lower <= y) & (y <= upper)
    return (held, real) if real.any() else None


def _arrays(result: Result, group: str, *wanted: str) -> dict[str, npt.NDArray[np.float64]]:
    """Take predictions of a group as arrays, none where one is missing."""
    if any(f"{group}.{name}" not in result.predictions for name in wanted):
        return {}
    return {name: result.predictions[f"{group}.{name}"].detach().cpu().numpy() for name in wanted}


def tables(result: Result, group: str) -> Mapping[str, Shares]:
    """Give all shares of a group.

    Args:
        result: a finished run.
        group: "existing" or "new".

    Returns:
        By "pit", the name of the column that `report.coverage_by` names, and "client"; what there is nothing for is
        left out.
    """
    column = str(result.labels.get("coverage_by", {}).get("name", "coverage_by"))
    every = {
        "pit": pit_histogram(result, group),
        column: coverage_by(result, group),
        "client": coverage_by_client(result, group),
    }
    return {name: shares for name, shares in every.items() if shares is not None}


def every_table(result: Result, groups: Sequence[str]) -> list[tuple[str, str, Shares]]:
    """Give all shares of a result.

    Args:
        result: a finished run.
        groups: of clients.

    Returns:
        Group, what they are by, and the shares.
    """
    return [(group, by, one) for group in groups for by, one in tables(result, group).items()]


def write_csv(file: IO[bytes], tables: Sequence[tuple[str, str, Shares]]) -> None:
    """Write shares as a table, a line per group and part of the rows.

    Args:
        file: to write to.
        tables: from `every_table`.
    """
    files.write_csv(file, chain([_COLUMNS], (line for one in tables for line in _lines(*one))))


def _lines(group: str, by: str, one: Shares) -> Iterator[list[str]]:
    """A line of the table per part."""

    def number(value: float) -> str:
        return repr(float(value)) if math.isfinite(value) else ""

    for h in range(len(one.rows)):
        ends = ["", "", names.to_cell(one.names[h])] if one.names else [number(one.low[h]), number(one.high[h]), ""]
        numbers = [number(value) for value in (one.share[h], one.expected, *one.band[:, h])]
        yield [group, names.to_cell(by), *ends, str(int(one.rows[h])), *numbers]


def too_seldom(results: Sequence[Result]) -> list[str]:
    """Say whose 95 % intervals hold for far fewer of the test rows.

    Args:
        results: of any methods and seeds.

    Returns:
        A sentence for each method and group of clients of whom it is so, by the mean over clients and runs.
    """
    lines = []
    for method in dict.fromkeys(result.method for result in results):
        for group in GROUPS:
            own = [result.rows.column(group, COVERAGE) for result in results if result.method == method]
            known = [share for shares in own for share in shares if math.isfinite(share)]
            if known and (mean := sum(known) / len(known)) < _SELDOM:
                what = f"95 % intervals of {method} hold for {mean:.0%} of the test rows of {group} clients"
                lines.append(f"{what}, in the mean over clients")
    return lines
