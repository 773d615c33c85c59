"""Features of a user's table, row by row: its columns, and what is derived of them and of the time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pacbayes_fl.data import cells, clock, lags, times
from pacbayes_fl.data.cells import Cells, Numbers
from pacbayes_fl.data.history import History
from pacbayes_fl.data.lags import Times
from pacbayes_fl.data.layout import DERIVED, Feature, Layout
from pacbayes_fl.errors import DataError, shown

_COLUMNS_HINT: Final = "data.categorical names columns of words, data.features the columns that are used"


@dataclass(frozen=True)
class Raw:
    """A table of which the clients, targets and times are read.

    Args:
        path: of the file.
        columns: as they stand there, R values each.
        places: where each row stands [R].
        owners: whose each row is [R].
        owned: rows of every client.
        layout: roles of the columns.
        y: targets [R], NaN where they are missing.
        when: times [R], None where the table has none.
        kind: of the times.
        unclear: rows whose local time is none or two [R].
    """

    path: Path
    columns: Mapping[str, Sequence[object]]
    places: Sequence[str]
    owners: Sequence[str]
    owned: Mapping[str, npt.NDArray[np.int64]]
    layout: Layout
    y: Numbers
    when: Times | None
    kind: str
    unclear: npt.NDArray[np.bool_]

    def cells(self, name: str) -> Cells:
        """Give a column."""
        return Cells(self.path, name, self.columns[name], self.places, self.owners)

    @property
    def gaps(self) -> frozenset[str]:
        """What may stand for a missing value."""
        return frozenset() if self.layout.missing == "refuse" else cells.GAPS

    def numbers(self, name: str) -> Numbers:
        """Read a column of numbers [R]."""
        if name == self.layout.target:
            return self.y
        column = self.cells(name)
        try:
            return cells.numbers(column, self.gaps)
        except DataError:  # to be raised again, with what to do about such a column
            blank = [value is None or not str(value).strip() for value in column.values]
            missing = any(blank) and not cells.mostly_words(column.values)
            return cells.numbers(column, self.gaps, cells.MISSING_HINT if missing else _COLUMNS_HINT)


class Made(NamedTuple):
    """Features of R rows.

    Args:
        x: [R, w], NaN where one is missing; of a categorical feature the number of its word.
        names: of the w columns.
        words: of every categorical feature, sorted.
        history: of the columns of which lags and rolling means are made; None without any.
    """

    x: Numbers
    names: tuple[str, ...]
    words: dict[str, tuple[str, ...]]
    history: History | None


def make(raw: Raw, wanted: Sequence[Feature], past: History | None = None) -> Made:
    """Make the features of a table.

    Args:
        raw: the table.
        wanted: the features.
        past: what is known of the clients beside the table, whose own values count first.

    Returns:
        The features of its rows, in their order.

    Raises:
        DataError: when a value is no number, a derived feature needs what the table does not have, or times of a client
            with lags repeat.
    """
    for feature in wanted:
        if feature.kind in DERIVED and raw.when is None:
            raise DataError(f"data.features: {feature.name!r} needs times", hint="data.time names their column")
    history = _history(raw, wanted, past)
    words: dict[str, tuple[str, ...]] = {}
    parts = []
    for feature in wanted:
        if feature.kind == "categorical":
            own = cells.words(raw.cells(feature.source), raw.gaps)
            words[feature.name] = tuple(sorted({word for word in own if word is not None}))
            place = {word: float(k) for k, word in enumerate(words[feature.name])}
            parts.append(np.array([[np.nan if word is None else place[word]] for word in own]))
        else:
            parts.append(_MAKERS[feature.kind](raw, feature, wanted, past).reshape(len(raw.owners), -1))
    x = np.concatenate(parts, 1)
    x[raw.unclear] = np.nan
    return Made(x, tuple(name for feature in wanted for name in feature.names), words, history)


def _column(raw: Raw, feature: Feature, wanted: Sequence[Feature], past: History | None) -> Numbers:
    return raw.numbers(feature.source)


def _cyclic(raw: Raw, feature: Feature, wanted: Sequence[Feature], past: History | None) -> Numbers:
    if raw.when is None:
        raise ValueError("cyclic features of rows without times")
    return clock.cyclic(raw.when.astype(np.int64), raw.kind, raw.layout.zone, feature.cycle)


def _clear_sky(raw: Raw, feature: Feature, wanted: Sequence[Feature], past: History | None) -> Numbers:
    from pacbayes_fl.data.clear_sky import clear_sky

    position = []
    for key, value in (("latitude", raw.layout.latitude), ("longitude", raw.layout.longitude)):
        if value is None:
            raise DataError(f"data.features: 'clear-sky' needs data.{key}", hint="degrees, or a column of the table")
        if isinstance(value, str) and value not in raw.columns:
            raise DataError(f"{raw.path} has no column {value!r}", hint=f"data.{key} names it")
        position.append(raw.numbers(value) if isinstance(value, str) else np.full(len(raw.owners), float(value)))
    if raw.when is None or any(np.isnan(degrees).any() for degrees in position):
        raise DataError("data.features: 'clear-sky' needs every row's position", hint="fill in its column")
    return clear_sky(raw.when.astype(np.int64), raw.kind, *position)


def _past(raw: Raw, feature: Feature, wanted: Sequence[Feature], past: History | None) -> Numbers:
    """Look up or average what came before, client after client."""
    if raw.when is None or feature.span is None:
        raise ValueError("lags of rows without times")
    least = raw.layout.ends_before(feature, wanted)
    for length in (feature.span, least):
        if length is not None and length.plain != (raw.kind == "number"):
            what = f"data.features: {feature.name!r} and data.horizon are lengths of time, as 24h is, where times are"
            raise DataError(f"{what} dates or datetimes, and numbers without a unit where times are numbers")
    before_row = None if feature.source == raw.layout.target else 0
    ahead = before_row if least is None else least.amount
    values = raw.numbers(feature.source) if feature.source in raw.columns else np.full(len(raw.owners), np.nan)
    values = np.where(raw.unclear, np.nan, values)
    result = np.full(len(raw.owners), np.nan)
    for client, rows in raw.owned.items():
        when, known = raw.when[rows], values[rows]
        more = () if past is None else tuple(part.numpy() for part in past.of(client, feature.source))
        if more:
            series = lags.Series.of(np.concatenate((when, more[0])), np.concatenate((known, more[1])))
        else:
            series = lags.Series.of(when, known)
        amount = feature.span.amount
        result[rows] = (
            lags.lag(series, when, amount) if feature.kind == "lag" else lags.roll(series, when, amount, ahead)
        )
    return result


_MAKERS: Final[Mapping[str, Callable[[Raw, Feature, Sequence[Feature], History | None], Numbers]]] = MappingProxyType(
    {"column": _column, "cyclic": _cyclic, "clear-sky": _clear_sky, "lag": _past, "roll": _past}
)


def _history(raw: Raw, wanted: Sequence[Feature], past: History | None) -> History | None:
    """Keep what lags and rolling means of later rows are made of."""
    columns = tuple(dict.fromkeys(feature.source for feature in wanted if feature.known_later))
    if not columns or raw.when is None:
        return None
    first = next(feature.name for feature in wanted if feature.known_later)
    if raw.when.dtype != np.int64:
        raise DataError(f"data.features: {first!r} needs times that are whole numbers", hint="count in smaller units")
    if past is not None and past.kind != raw.kind:
        what = f"{raw.path}: its times are of the kind {raw.kind!r}, and those of the run of {past.kind!r}"
        raise DataError(what, hint="write all times in one way")
    values = [raw.numbers(name) if name in raw.columns else np.full(len(raw.y), np.nan) for name in columns]
    table, clients = np.stack(values, 1), dict[str, tuple[Tensor, Tensor]]()
    for client, rows in raw.owned.items():
        rows = rows[~raw.unclear[rows]]
        when, at, count = np.unique(raw.when[rows], return_index=True, return_counts=True)
        if (count > 1).any():
            row = int(rows[np.flatnonzero(raw.when[rows] == when[count > 1][0])[1]])
            place = raw.cells(str(raw.layout.time)).at(row)
            what = f"{place}: {shown(raw.columns[str(raw.layout.time)][row])} comes twice"
            hint = f"{first!r} needs one row a time: drop or average the others; data.zone knows when clocks go back"
            raise DataError(what, client=client, hint=hint)
        clients[client] = torch.from_numpy(raw.when[rows][at]), torch.from_numpy(table[rows][at])
    return History(columns, raw.kind, clients)


def read_times(given: Cells, layout: Layout) -> tuple[Times, str, npt.NDArray[np.bool_]]:
    """Read a column of times, local ones by their zone.

    Args:
        given: the column.
        layout: has the zone, and says what becomes of rows whose local time is none or two.

    Returns:
        Times [R], their kind, and which rows' local times are none or two, bool [R].

    Raises:
        DataError: naming the place of a value that is no time, or of a local time that is none or two.
    """
    where = _Places(given)
    when = times.parse(where, given.owners, given.values).numpy()
    first = times.read(given.values[0])
    kind, unclear = first.kind if first else "", np.zeros(len(when), dtype=bool)
    if layout.zone is None or kind == clock.ZONED:
        return when, kind, unclear
    if kind != "datetime":
        raise DataError(f"data.zone is for local datetimes, and column {given.name!r} holds {kind}s", hint="drop it")
    local = clock.localise(when, layout.zone)
    unclear = local.missing | local.twice
    if unclear.any() and layout.missing == "refuse":
        row = int(np.flatnonzero(unclear)[0])
        why = "is skipped" if local.missing[row] else "comes twice"
        count = f", the first of {int(unclear.sum())} such rows" if unclear.sum() > 1 else ""
        what = f"{given.at(row)}: {shown(given.values[row])} {why} in {layout.zone}, where clocks change{count}"
        hint = (
            "write its offset, as in 2024-10-27T02:30+02:00; or data.missing = 'drop' or 'median' leaves such rows out"
        )
        raise DataError(what, client=given.owners[row], hint=hint)
    return local.times, clock.ZONED, unclear


class _Places(Sequence[str]):
    """Where each value of a column stands, written when it is asked for."""

    def __init__(self, column: Cells) -> None:
        self._column = column

    def __len__(self) -> int:
        return len(self._column.values)

    def __getitem__(self, row: int) -> str:  # type: ignore[override]
        return self._column.at(row)
