"""A user's own table, CSV or Parquet, with a row per observation and a client column."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pacbayes_fl import settings
from pacbayes_fl.data import cells, class_labels, csv_text, memory, user_features
from pacbayes_fl.data.cells import Cells
from pacbayes_fl.data.history import History
from pacbayes_fl.data.layout import DERIVED, Feature, Layout
from pacbayes_fl.data.target_bounds import Place
from pacbayes_fl.data.user_features import Raw
from pacbayes_fl.errors import DataError, caller_stacklevel, counted, listed, shown

TABLES = (".csv", ".parquet")
"""How the names of users' tables end."""
_PER_CELL = 100  # bytes in memory for each cell of a Parquet table, whose own bytes say little of it
_MADE = 'data.features = ["lag:24h", "hour:cyclic"] makes some of the past and of the times that data.time names'
_NONE: Mapping[str, Any] = MappingProxyType({})
Task = Literal["regression", "classification"]


class Table(NamedTuple):
    """A user's table by client.

    Args:
        clients: name -> (x [m, d], y [m]), float64; y is NaN where the table has no target, x where a feature is
            missing.
        features: names of the d feature columns.
        split: name -> bool [m], True on test rows; None when the table has no `split` column.
        new: names of clients marked as new.
        times: name -> [m], as `data.times` reads them; None when the table has no such column.
        time_kind: of all these times.
        words: of every feature that is categorical, whose column of x holds numbers of words; see `encoding.encoded`.
        history: of what lags and rolling means of later rows are made; None without any.
        left_out: client -> number of rows that were left out, by the feature that they lack.
        made_of: the features as the layout has them.
        unclear: name -> bool [m], rows whose local time is none or two, and which lack all features; None without any.
        places: where each row of the file stands, such as "line 4"; none of a table that is no file.
        rows: name -> positions [m] of its rows in the file; None of a table that is no file.
    """

    clients: dict[str, tuple[Tensor, Tensor]]
    features: tuple[str, ...]
    split: dict[str, Tensor] | None
    new: tuple[str, ...]
    times: dict[str, Tensor] | None = None
    time_kind: str = ""
    words: Mapping[str, tuple[str, ...]] = _NONE
    history: History | None = None
    left_out: Mapping[str, Mapping[str, int]] = _NONE
    made_of: tuple[Feature, ...] = ()
    unclear: Mapping[str, Tensor] | None = None
    places: Sequence[str] = ()
    rows: Mapping[str, Tensor] | None = None

    def place(self, client: str, row: int) -> str:
        """Say where a client's row stands in the file, or which it is."""
        return f"row {row}" if self.rows is None else self.places[int(self.rows[client][row])]

    def among(self, taken: Tensor) -> Place:
        """Say where those of a client's rows stand that are taken.

        Args:
            taken: bool [m], of all its rows.

        Returns:
            What says it of the client's name and a row's number among these.
        """
        stand = taken.nonzero().flatten().tolist()
        return lambda client, row: self.place(client, stand[row])

    def select(self, rows: Mapping[str, Tensor]) -> Table:
        """Take rows of every client.

        Args:
            rows: positions or bool [m] by client.

        Returns:
            The table of these rows, in that order.
        """

        def taken(own: Mapping[str, Tensor] | None) -> dict[str, Tensor] | None:
            return None if own is None else {name: own[name][rows[name]] for name in self.clients}

        clients = {name: (x[rows[name]], y[rows[name]]) for name, (x, y) in self.clients.items()}
        split, times, unclear, own = (taken(one) for one in (self.split, self.times, self.unclear, self.rows))
        return self._replace(clients=clients, split=split, times=times, unclear=unclear, rows=own)

    def gaps(self, client: str) -> Tensor:
        """Find what rows of a client lack: whether a clear time, and which features, bool [m, 1 + d]."""
        x, _ = self.clients[client]
        unclear = torch.zeros(len(x), dtype=torch.bool) if self.unclear is None else self.unclear[client]
        return torch.cat((unclear.unsqueeze(1), x.flatten(1).isnan()), 1)


def read_table(
    path: Path,
    layout: Layout | None = None,
    made: Sequence[str] | None = None,
    *,
    need_target: bool = True,
    default_client: str | None = None,
    blank_target: bool = True,
    task: Task = "regression",
    past: History | None = None,
    read: tuple[Mapping[str, Sequence[object]], list[str]] | None = None,
) -> Table:
    """Read a CSV (or Parquet) table with one row per observation.

    Columns: the client's name, the target, optionally a time, `split` ("train" or "test") and a group ("existing" or
    "new"); every other column is a feature unless the layout or a run says which are. A target that is blank or NaN is
    one to predict.

    Args:
        path: the file; `.parquet` needs the extra `tables`.
        layout: roles of the columns; a client column, a target y and features when None.
        made: names of the columns of x of a run, which the features are to become.
        need_target: False for a table to predict on.
        default_client: owner of all rows of a table without a client column.
        blank_target: False when every row must have its target.
        task: "classification" when targets must be labels 0, 1, 2, ...
        past: what is known of the clients' past, for lags and rolling means.
        read: what `read_columns` gave of the file; it is read when None.

    Returns:
        The table by client, in the order of first appearance; rows keep the order of the file, and `encoding.encoded`
        makes models' columns of the features.

    Raises:
        DataError: when the file or a column is missing, or a value is not a finite number or a target not a label
            (naming the column and the line), a client's name is blank, times are none or of several kinds, or a word is
            not one of those above.
    """
    path, layout = Path(path), Layout() if layout is None else layout
    given, places = read_columns(path) if read is None else read
    columns = dict(given)
    if layout.client not in columns and default_client is not None:
        columns[layout.client] = [default_client] * len(places)
    wanted = layout.wanted([*columns], made, () if made is not None else _empty(path, columns, layout))
    known = () if past is None else [one for one in wanted if one.kind in DERIVED and one.source in past.columns]
    needed = [one.source for one in wanted if not one.of_time and one not in known]
    roles = [layout.client, *([layout.target] if need_target else [])]
    roles += [layout.time] if layout.time and (made is None or any(one.kind in DERIVED for one in wanted)) else []
    for name in (*roles, *needed):
        if name not in columns and (name != layout.target or need_target):
            raise DataError(f"{path} has no column {name!r}", hint=f"it has {shown(', '.join(columns), 500)[1:-1]}")
    if not wanted:
        raise DataError(f"{path} has no feature columns", hint=_MADE)
    if not places:
        raise DataError(f"{path} has no rows")
    owners = cells.owners(Cells(path, layout.client, columns[layout.client], places))
    owned = _owned(owners)
    target = Cells(path, layout.target, columns.get(layout.target, [None] * len(places)), places, owners)
    gaps = cells.BLANK if blank_target or layout.target not in columns else frozenset[str]()
    y = cells.numbers(target, gaps if layout.missing == "refuse" else cells.GAPS, _advice(target, layout))
    if task == "classification":
        cells.check_labels(target, y)
    when, kind, unclear = None, "", np.zeros(len(places), dtype=bool)
    if layout.time in columns:
        name = str(layout.time)
        when, kind, unclear = user_features.read_times(Cells(path, name, columns[name], places, owners), layout)
    result = user_features.make(Raw(path, columns, places, owners, owned, layout, y, when, kind, unclear), wanted, past)
    _check_marks(path, columns, places, layout)
    x, targets = torch.from_numpy(result.x), torch.from_numpy(y)
    clients = {name: (x[rows], targets[rows]) for name, rows in owned.items()}
    split = None
    if layout.split is not None and layout.split in columns:
        marks = columns[layout.split]
        split = {name: torch.tensor([marks[i] == "test" for i in rows]) for name, rows in owned.items()}
    new = _new(columns[layout.group], owned) if layout.group is not None and layout.group in columns else []
    by_time = None if when is None else {name: torch.from_numpy(when[rows]) for name, rows in owned.items()}
    dark = {name: torch.from_numpy(unclear[rows]) for name, rows in owned.items()} if unclear.any() else None
    table = Table(clients, result.names, split, tuple(new), by_time, kind, result.words, result.history)
    stand = {name: torch.from_numpy(rows) for name, rows in owned.items()}
    return table._replace(made_of=wanted, unclear=dark, places=places, rows=stand)


def _check_marks(path: Path, columns: Mapping[str, Sequence[object]], places: Sequence[str], layout: Layout) -> None:
    """Refuse words that mark nothing."""
    for key, name in (("split", layout.split), ("group", layout.group)):
        for value, place in zip(columns.get(name or "", ()) if name is not None else (), places, strict=False):
            if value not in (allowed := layout.marks[str(name)]):
                what = f"{path} {place}: {name} must be {allowed[0]!r} or {allowed[1]!r}, got {shown(value)}"
                raise DataError(what, hint=f"data.{key} = 'none' where it is a column like others")


def _empty(path: Path, columns: Mapping[str, Sequence[object]], layout: Layout) -> list[str]:
    """Find columns without any value that no role names, such as remarks that nobody made, and warn of them."""
    if layout.features:
        return []
    named = {layout.client, layout.target, layout.time, *layout.marks, layout.latitude, layout.longitude}
    named |= {*layout.categorical, *layout.client_features}
    empty = [name for name, values in columns.items() if name not in named and cells.is_empty(values)]
    if empty:
        what = f"{path}: no row has a value of {listed(empty)}, which becomes no feature"
        warnings.warn(what, stacklevel=caller_stacklevel())
    return empty


def _owned(owners: Sequence[str]) -> dict[str, npt.NDArray[np.int64]]:
    """Find the rows of every client."""
    rows: dict[str, list[int]] = {}
    for i, owner in enumerate(owners):
        rows.setdefault(owner, []).append(i)
    return {name: np.array(own, dtype=np.int64) for name, own in rows.items()}


def without_gaps(table: Table, layout: Layout, need_target: bool = True, least: int = 1) -> Table:
    """Leave out rows that lack a value which is not filled in, and clients of which too few are left, and warn of them.

    Args:
        table: as read.
        layout: says which values are filled in.
        need_target: whether rows without a target are left out too.
        least: rows that have to be left of a client that lacks some: two, where one is to be held out.

    Returns:
        The table without these rows, and what they lacked.
    """
    left_out: dict[str, dict[str, int]] = {}
    kept = {}
    for name, (_, y) in table.clients.items():
        gaps = table.gaps(name)
        if layout.missing == "median":  # which a time has not
            gaps[:, 1:] = False
        gaps = torch.cat((gaps, (y.isnan() & need_target).unsqueeze(1)), 1)
        kept[name] = ~gaps.any(1)
        first = gaps.int().argmax(1)[~kept[name]]
        columns = (str(layout.time), *table.features, layout.target)
        if len(first):
            left_out[name] = {columns[j]: int((first == j).sum()) for j in first.unique().tolist()}
    if not left_out:
        return table
    rows, count = sum(len(y) for _, y in table.clients.values()), sum(sum(one.values()) for one in left_out.values())
    each = [f"{name} {', '.join(f'{n} ({column})' for column, n in own.items())}" for name, own in left_out.items()]
    what = f"{count} of {rows} rows lack a value and are left out: {listed(each)}"
    costs = Counter[str]()
    for own in left_out.values():
        costs.update(own)
    column, most = costs.most_common(1)[0]
    if 2 * most > rows and column not in (layout.time, layout.target):
        what += f"; {column} alone costs {most}: data.features names the columns that are used"
    rest = {name: int(kept[name].sum()) for name in left_out} if layout.missing != "refuse" else {}
    empty = [name for name, rows in rest.items() if rows < least]
    for rows, words in ((0, "nothing is"), (1, "a single row is")):
        if few := [name for name in empty if rest[name] == rows]:
            what += f"; {words} left of {listed(few)}, left out as clients"
    warnings.warn(what, stacklevel=caller_stacklevel())
    clients = {name: own for name, own in table.clients.items() if name not in empty}
    return table._replace(clients=clients).select(kept)._replace(left_out=left_out)


def _advice(target: Cells, layout: Layout) -> str | None:
    """What the error of a target that is no number advises."""
    first = target.values[:100]  # which say it as well as all, and most tables have no such error
    if 2 * sum(isinstance(value, str) and value.strip()[:1].isalpha() for value in first) > len(first):
        return (
            f"{class_labels.numbered({str(one).strip() for one in target.values if not cells.is_gap(one)})}, as "
            f"pandas.factorize(table[{target.name!r}], sort=True)[0] does; then `init --method pfedbayes` writes their "
            f"study, or data.task = 'classification' says that they are labels, {class_labels.LEARN_LABELS}"
        )
    return cells.MISSING_HINT if layout.missing == "refuse" and "" in target.values else None


def require_file(path: Path) -> None:
    """Refuse a path at which there is no file.

    Args:
        path: of a table or an archive.

    Raises:
        DataError: when there is nothing, or a folder.
    """
    if path.is_dir():
        raise DataError(f"{path} is a folder, and no file", hint="name the file in it")
    if not path.is_file():
        raise DataError(f"there is no file {path}")


def read_columns(path: Path) -> tuple[dict[str, list[Any]], list[str]]:
    """Read the columns of a table as they stand there, of which nothing is asked yet.

    Args:
        path: .csv or .parquet.

    Returns:
        Values by column, texts where the file is CSV, and where each row stands.

    Raises:
        DataError: when there is no such file, or it is no table.
    """
    require_file(path)
    if path.suffix.lower() not in TABLES:
        raise DataError(f"{path} is not {' or '.join(TABLES)}", hint="a spreadsheet can be saved as CSV")
    return _read_parquet(path) if path.suffix.lower() == ".parquet" else csv_text.read(path)


def read_rows(path: Path, layout: Layout, task: Task = "regression") -> Table:
    """Read the rows that a run takes of a table: without those that lack a value, in the order of time.

    Args:
        path: .csv or .parquet.
        layout: roles of the columns, and the clients that are not read.
        task: as for `read_table`.

    Returns:
        The table.

    Raises:
        DataError: as `read_table`; or when there is no client that is to be left out.
    """
    found, own = read_columns(path), (path, layout.client, layout.exclude_clients)
    check_clients(*own, found[0])
    table = read_table(path, layout, blank_target=False, task=task, read=without_clients(*own, found))
    table = without_gaps(table, layout, least=2 if table.split is None else 1)
    return table if table.times is None else sorted_by_time(table, table.times, layout.time)


def without_clients(
    path: Path, client: str, names: Sequence[str], read: tuple[Mapping[str, Sequence[object]], Sequence[str]]
) -> tuple[dict[str, Sequence[object]], list[str]]:
    """Leave out the rows of some clients, of which nothing is read.

    Args:
        path: of the table.
        client: name of its client column.
        names: of these clients; those that the table does not have are ignored.
        read: what `read_columns` gave of the file.

    Returns:
        The columns without these rows, and where the others stand.
    """
    columns, places = read
    if client not in columns:
        return {**columns}, [*places]
    kept = [row for row, value in enumerate(columns[client]) if str(value) not in names]
    return {name: [values[row] for row in kept] for name, values in columns.items()}, [places[row] for row in kept]


def check_clients(path: Path, client: str, names: Sequence[str], columns: Mapping[str, Sequence[object]]) -> None:
    """Refuse names of clients that a table does not have.

    Args:
        path: of the table.
        client: name of its client column.
        names: that a study says.
        columns: as `read_columns` gave them.

    Raises:
        DataError: naming the first, and the client that is called most alike.
    """
    known = [*dict.fromkeys(map(str, columns.get(client, ())))]
    for name in names:
        if name not in known and known:
            hint = settings.nearest(name, known)
            raise DataError(f"data.exclude_clients: {path} has no client {shown(name)}", hint=hint)


def _read_parquet(path: Path) -> tuple[dict[str, list[Any]], list[str]]:
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise DataError("reading Parquet needs pyarrow", hint="pip install 'pacbayes_fl[tables]'") from error
    try:
        size = parquet.ParquetFile(path).metadata
        cells = size.num_rows * (size.num_columns + 1)
        memory.require(_PER_CELL * cells, f"{path} of {cells} cells, read,", "keep fewer rows or columns", DataError)
        table = parquet.read_table(path)
        names = csv_text.distinct(path, table.column_names)
        return {name: table[name].to_pylist() for name in names}, [f"row {i + 1}" for i in range(table.num_rows)]
    except DataError:
        raise
    except Exception as error:  # whatever pyarrow meets in a damaged file
        raise DataError(f"{path} is not a Parquet table: {error}") from error


def _new(marks: Sequence[str], owned: Mapping[str, npt.NDArray[np.int64]]) -> list[str]:
    """Return the names of clients whose rows are all marked as those of a new one."""
    new = []
    for name, rows in owned.items():
        own = {marks[i] for i in rows}
        if len(own) > 1:
            raise DataError("is marked both as existing and as new", client=name)
        new += [name] if "new" in own else []
    return new


def sorted_by_time(table: Table, times: Mapping[str, Tensor], time: str | None) -> Table:
    """Sort the rows of every client by time, those of one time as in the file, and warn of these.

    Args:
        table: as read.
        times: of its rows, by client [m].
        time: name of the column of times.

    Returns:
        The table in the order of time.
    """
    result = table.select({name: when.argsort(stable=True) for name, when in times.items()})
    alike = {name: int((when[1:] == when[:-1]).sum()) for name, when in (result.times or {}).items()}
    if several := [name for name, count in alike.items() if count]:
        rows = f"{counted(sum(alike.values()), 'row')} of {listed(several)}"
        what = f"{rows} come at the time of the row before, by column {time!r}"
        warnings.warn(f"{what}: they stay in the order of the file", stacklevel=caller_stacklevel())
    return result
