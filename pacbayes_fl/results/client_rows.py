"""Rows of clients with their metrics, a column a metric: an object a client would take a hundred times the memory."""

from __future__ import annotations

import csv
import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, compress
from typing import IO, Final, NamedTuple, overload

from pacbayes_fl.errors import StudyError
from pacbayes_fl.files import write_csv
from pacbayes_fl.names import from_cell, to_cell

GROUPS: Final = ("existing", "new")
FIXED: Final = ("id", "group", "name", "m")
"""The columns of `clients.csv` before those of metrics."""
RESERVED: Final = (*FIXED, "n_clients")
"""What no number of a client may be called."""


def members(sizes: Mapping[str, int]) -> str:
    """Count the clients of groups; those without any are left out.

    Args:
        sizes: number of clients by group.

    Returns:
        Such as "24 existing and 6 new clients".
    """
    counts = [f"{size} {group}" for group, size in sizes.items() if size]
    return f"{' and '.join(counts) or '0'} client{'' if sum(sizes.values()) == 1 else 's'}"


@dataclass(frozen=True)
class ClientRow:
    """One line of `clients.csv`: a client's metrics in one group.

    Args:
        id: the stable client number.
        name: what tables call it.
        group: "existing" (took part in training) or "new" (never trained).
        m: its training rows.
        metrics: numbers by name; NaN says that the metric does not apply, absence that it was not taken. Classifiers
            have pm.accuracy, pm.nll, pm.brier, pm.ece and pm.mce of the personal model, averaged over draws of its
            weights, pm.mean_weights.accuracy and so on of its mean weights, and the same with gm. for a global model.
    """

    id: int
    name: str
    group: str
    m: int
    metrics: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check that the table can hold the values."""
        _check(self.group, self.metrics, self.name)


def _check(group: str, metrics: Iterable[str], client: str | None = None) -> None:
    if group not in GROUPS:
        raise StudyError(f"group must be one of {', '.join(GROUPS)}, got {group!r}", client=client)
    if taken := [name for name in metrics if name in (*RESERVED, "")]:
        raise StudyError(f"metrics cannot be called {', '.join(map(repr, taken))}", client=client)


class _Column(NamedTuple):
    """A metric [K]: NaN, and 0 in `taken`, where a row has none."""

    values: array[float]
    taken: bytearray

    def to(self, rows: int) -> _Column:
        """Say that the rows up to a number have none."""
        self.values.extend([math.nan] * (rows - len(self.values)))
        self.taken.extend(bytes(rows - len(self.taken)))
        return self

    def add(self, row: int, value: float) -> None:
        self.to(row)
        self.values.append(value)
        self.taken.append(1)

    def same(self, other: _Column) -> bool:
        equal = (a == b or (a != a and b != b) for a, b in zip(self.values, other.values, strict=True))
        return self.taken == other.taken and all(equal)


class ClientRows(Sequence[ClientRow]):
    """Rows of K clients; a `ClientRow` is made when it is asked for.

    Args:
        ids: of the clients [K].
        names: what tables call them [K].
        groups: theirs [K].
        sizes: training rows of each [K].
        columns: metrics in the order in which the rows first mention them.
    """

    def __init__(
        self,
        ids: Sequence[int],
        names: Sequence[str],
        groups: Sequence[str],
        sizes: Iterable[int],
        columns: Mapping[str, _Column],
    ) -> None:
        """Store the columns."""
        self._ids, self._names, self._groups, self._columns = ids, names, groups, columns
        self._sizes = array("q", sizes)

    @classmethod
    def of(cls, rows: Iterable[ClientRow]) -> ClientRows:
        """Take rows apart.

        Args:
            rows: of clients; a `ClientRows` is given back.

        Returns:
            The same rows.
        """
        if isinstance(rows, ClientRows):
            return rows
        ids, names, groups, sizes, columns = list[int](), list[str](), list[str](), array("q"), dict[str, _Column]()
        for at, row in enumerate(rows):
            ids.append(row.id)
            names.append(row.name)
            groups.append(GROUPS[GROUPS.index(row.group)])
            sizes.append(row.m)
            for name, value in row.metrics.items():
                columns.setdefault(name, _Column(array("d"), bytearray())).add(at, value)
        return cls(ids, names, groups, sizes, {name: column.to(len(ids)) for name, column in columns.items()})

    @classmethod
    def of_group(
        cls,
        group: str,
        ids: Sequence[int],
        names: Sequence[str],
        sizes: Iterable[int],
        metrics: Mapping[str, Iterable[float]],
    ) -> ClientRows:
        """Put columns of one group together.

        Args:
            group: "existing" or "new".
            ids: of the clients [K].
            names: what tables call them [K].
            sizes: training rows of each [K].
            metrics: by name, of every client [K].

        Returns:
            The rows.

        Raises:
            StudyError: of another group, or a metric that has a name of the table's.
        """
        _check(group, metrics)
        return cls(ids, names, [group] * len(ids), sizes, {}).plus(metrics)

    @classmethod
    def joined(cls, parts: Sequence[ClientRows]) -> ClientRows:
        """Put rows behind one another.

        Args:
            parts: any.

        Returns:
            All of them, in their order.
        """
        if len(parts) == 1:
            return parts[0]
        columns, done = dict[str, _Column](), 0
        for part in parts:
            for name, column in part._columns.items():
                known = columns.setdefault(name, _Column(array("d"), bytearray())).to(done)
                known.values.extend(column.values)
                known.taken.extend(column.taken)
            done += len(part)
        whole = {name: column.to(done) for name, column in columns.items()}
        ids, names = [i for part in parts for i in part._ids], [name for part in parts for name in part._names]
        groups = [group for part in parts for group in part._groups]
        return cls(ids, names, groups, (m for part in parts for m in part._sizes), whole)

    def plus(self, metrics: Mapping[str, Iterable[float]]) -> ClientRows:
        """Add metrics, in place of those of the same names.

        Args:
            metrics: by name, of every client [K].

        Returns:
            The rows with them.
        """
        more = {name: _Column(array("d", values), bytearray(b"\1") * len(self)) for name, values in metrics.items()}
        return ClientRows(self._ids, self._names, self._groups, self._sizes, {**self._columns, **more})

    def __len__(self) -> int:
        """K."""
        return len(self._ids)

    @overload
    def __getitem__(self, at: int) -> ClientRow: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[ClientRow, ...]: ...

    def __getitem__(self, at: int | slice) -> ClientRow | tuple[ClientRow, ...]:
        """Make a row, or several."""
        if isinstance(at, slice):
            return tuple(self[k] for k in range(*at.indices(len(self))))
        metrics = {name: column.values[at] for name, column in self._columns.items() if column.taken[at]}
        return ClientRow(self._ids[at], self._names[at], self._groups[at], self._sizes[at], metrics)

    def __iter__(self) -> Iterator[ClientRow]:
        """Make one row after another."""
        return (self[k] for k in range(len(self)))

    def __eq__(self, other: object) -> bool:
        """Compare with rows of any kind, numbers bit by bit; NaN equals NaN, whatever the order of the metrics."""
        if not isinstance(other, Sequence):
            return NotImplemented
        rows = ClientRows.of(other)
        own, others = (
            (*map(list, (one._ids, one._names, one._groups, one._sizes)),)  # whatever holds them
            for one in (self, rows)
        )
        alike = own == others and self._columns.keys() == rows._columns.keys()
        return alike and all(self._columns[name].same(column) for name, column in rows._columns.items())

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """How many, and the first of them."""
        return f"ClientRows({len(self)} rows: {', '.join(map(repr, self[:2]))}{', ...' if len(self) > 2 else ''})"

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of all metrics, in the order in which the rows first mention them."""
        return tuple(name for name, column in self._columns.items() if any(column.taken))

    def size_of(self, group: str) -> int:
        """Count the clients of a group."""
        return self._groups.count(group)

    def names(self, group: str) -> list[str]:
        """Names of the clients of a group, in the order of the rows."""
        return list(compress(self._names, self._of(group)))

    def sizes(self, group: str) -> list[int]:
        """Training rows of the clients of a group, in the order of the rows."""
        return list(compress(self._sizes, self._of(group)))

    def column(self, group: str, metric: str) -> list[float]:
        """Give a metric of every client of a group, in the order of the rows; NaN where a client has none."""
        if metric not in self._columns:
            return [math.nan] * self.size_of(group)
        return list(compress(self._columns[metric].values, self._of(group)))

    def taken(self, group: str, metric: str) -> list[bool]:
        """Tell which clients of a group have a metric, in the order of the rows."""
        if metric not in self._columns:
            return [False] * self.size_of(group)
        return [bool(one) for one in compress(self._columns[metric].taken, self._of(group))]

    def _of(self, group: str) -> Iterator[bool]:
        return (one == group for one in self._groups)

    def write_csv(self, file: IO[bytes]) -> None:
        """Write `clients.csv`, some rows at a time.

        Args:
            file: to write to.
        """
        metrics = self.metrics

        def cells(row: ClientRow) -> list[object]:  # repr of a float reads back as the same float
            known = [repr(float(row.metrics[name])) if name in row.metrics else "" for name in metrics]
            return [row.id, row.group, to_cell(row.name), row.m, *known]  # empty is a metric that was not taken

        write_csv(file, chain([[*FIXED, *map(to_cell, metrics)]], map(cells, self)))


def read_csv(file: IO[str]) -> ClientRows:
    """Read `clients.csv`.

    Args:
        file: open for reading, with newlines as they are.

    Returns:
        The rows.

    Raises:
        ValueError: when it has other columns.
    """
    lines = csv.reader(file)
    first = next(lines, [])
    if tuple(first[:4]) != FIXED:
        raise ValueError(f"expected columns {', '.join(FIXED)}, got {', '.join(first[:4])}")
    metrics = [*map(from_cell, first[4:])]
    return ClientRows.of(
        ClientRow(
            int(client),
            from_cell(name),
            group,
            int(m),
            {metric: float(cell) for metric, cell in zip(metrics, cells, strict=True) if cell},
        )
        for client, group, name, m, *cells in lines
    )
