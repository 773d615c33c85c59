"""A user's own table, CSV or Parquet, with a row per observation and a client column."""

from __future__ import annotations

import csv
import math
import unicodedata
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from pacbayes_fl.data import memory, times
from pacbayes_fl.errors import DataError, caller_stacklevel, shown

TABLES = (".csv", ".parquet")
"""How the names of users' tables end."""
_CLASSES = 20  # distinct whole numbers that may be labels
_PER_BYTE = 15  # bytes that a table takes in memory for each byte of its CSV
_PER_CELL = 100  # and for each cell of a Parquet table, whose bytes say little of it
Task = Literal["regression", "classification"]


class Table(NamedTuple):
    """A user's table by client.

    Args:
        clients: name -> (x [m, d], y [m]), float64; y is NaN where the table has no target.
        features: names of the d feature columns.
        split: name -> bool [m], True on test rows; None when the table has no `split` column.
        new: names of clients marked as new.
        times: name -> [m], as `data.times` reads them; None when the table has no such column.
        time_kind: of all these times.
    """

    clients: dict[str, tuple[Tensor, Tensor]]
    features: tuple[str, ...]
    split: dict[str, Tensor] | None
    new: tuple[str, ...]
    times: dict[str, Tensor] | None = None
    time_kind: str = ""


def check_names(names: Sequence[str]) -> None:
    """Refuse names that look alike: a blank at the end, or an accent written in two ways, makes no other client.

    Args:
        names: of clients, each once.

    Raises:
        DataError: naming the second of two that look alike.
    """
    seen: dict[str, str] = {}
    for name in names:
        first = seen.setdefault(unicodedata.normalize("NFC", name).strip(), name)
        if first != name:
            raise DataError(f"its name differs from {first!r} by what nobody sees", client=name, hint="write it alike")


def read_table(
    path: Path,
    client: str = "client",
    target: str = "y",
    features: Sequence[str] | None = None,
    need_target: bool = True,
    default_client: str | None = None,
    blank_target: bool = True,
    task: Task = "regression",
    time: str | None = None,
    need_time: bool = False,
    read: tuple[Mapping[str, list[Any]], list[str]] | None = None,
) -> Table:
    """Read a CSV (or Parquet) table with one row per observation.

    Columns: the client's name, the target, optionally a time, `split` ("train" or "test") and `group` ("existing" or
    "new"); every other column is a feature unless `features` names them. A target that is blank or NaN is one to
    predict.

    Args:
        path: the file; `.parquet` needs the extra `tables`.
        client: name of the client column.
        target: name of the target column.
        features: names of the feature columns, in the model's order.
        need_target: False for a table to predict on.
        default_client: owner of all rows of a table without a client column.
        blank_target: False when every row must have its target.
        task: "classification" when targets must be labels 0, 1, 2, ...
        time: name of the column of times, if there is one.
        need_time: whether it must not be missing.
        read: what `read_columns` gave of the file; it is read when None.

    Returns:
        The table by client, in the order of first appearance; rows keep the order of the file.

    Raises:
        DataError: when the file or a column is missing, or a value is not a finite number or a target not a label
            (naming the column and the line), a client's name is blank, times are none or of several kinds, or a word is
            not one of those above.
    """
    path = Path(path)
    given, places = read_columns(path) if read is None else read
    columns = dict(given)
    if client not in columns and default_client is not None:
        columns[client] = [default_client] * len(places)
    reserved = {client, target, time, "split", "group"}
    wanted = tuple(features) if features is not None else tuple(name for name in columns if name not in reserved)
    for name in (client, *([target] if need_target else []), *([time] if time and need_time else []), *wanted):
        if name not in columns:
            raise DataError(f"{path} has no column {name!r}", hint=f"it has {shown(', '.join(columns), 500)[1:-1]}")
    if not wanted or not places:
        raise DataError(f"{path} has no {'rows' if wanted else 'feature columns'}")
    named = (client, *wanted, target, *([time] if time in columns else []))
    where = {name: [f"{path} {place}, column {name!r}" for place in places] for name in named}
    owners = _owners(where[client], columns[client])
    numbers = [_numbers(where[name], owners, columns[name], blank=False) for name in wanted]
    blank = blank_target or target not in columns
    numbers.append(_numbers(where[target], owners, columns.get(target, [None] * len(places)), blank))
    if task == "classification":
        _check_labels(where[target], owners, numbers[-1])
    when = times.parse(where[time], owners, columns[time]) if time in columns else None
    values = torch.tensor(numbers, dtype=torch.float64).T
    owned: dict[str, list[int]] = {}
    for i, owner in enumerate(owners):
        owned.setdefault(owner, []).append(i)
    for name, allowed in (("split", ("train", "test")), ("group", ("existing", "new"))):
        for value, place in zip(columns.get(name, ()), places, strict=False):
            if value not in allowed:
                raise DataError(f"{path} {place}: {name} must be {allowed[0]!r} or {allowed[1]!r}, got {shown(value)}")
    clients = {name: (values[rows, :-1], values[rows, -1]) for name, rows in owned.items()}
    split = None
    if "split" in columns:
        split = {name: torch.tensor([columns["split"][i] == "test" for i in rows]) for name, rows in owned.items()}
    new = _new(columns["group"], owned) if "group" in columns else []
    by_time = None if when is None else {name: when[rows] for name, rows in owned.items()}
    first = times.read(columns[time][0]) if time in columns else None
    return Table(clients, wanted, split, tuple(new), by_time, first.kind if first else "")


def read_columns(path: Path) -> tuple[dict[str, list[Any]], list[str]]:
    """Read the columns of a table as they stand there, of which nothing is asked yet.

    Args:
        path: .csv or .parquet.

    Returns:
        Values by column, texts where the file is CSV, and where each row stands.

    Raises:
        DataError: when there is no such file, or it is no table.
    """
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    if path.suffix.lower() not in TABLES:
        raise DataError(f"{path} is not {' or '.join(TABLES)}", hint="a spreadsheet can be saved as CSV")
    return _read_parquet(path) if path.suffix.lower() == ".parquet" else _read_csv(path)


def _read_csv(path: Path) -> tuple[dict[str, list[Any]], list[str]]:
    """Return the columns, and where each row stands."""
    rows, places = [], []
    memory.require(_PER_BYTE * path.stat().st_size, f"{path}, read,", "keep fewer rows or columns", DataError)
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:  # without the mark that Excel puts first
            reader = csv.DictReader(stream)
            names = _distinct(path, reader.fieldnames or [])
            if len(names) == 1 and (";" in names[0] or "\t" in names[0]):
                raise DataError(f"{path} has only the column {shown(names[0])}", hint="is the separator a comma?")
            for row in reader:
                places.append(f"line {reader.line_num}")
                if None in row or None in row.values():
                    hint = "is a comma missing or one too many?"
                    raise DataError(f"{path} {places[-1]}: expected {len(names)} values", hint=hint)
                rows.append(row)
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is not a CSV table in UTF-8: {error}") from error
    return {name: [row[name] for row in rows] for name in names}, places


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
        names = _distinct(path, table.column_names)
        return {name: table[name].to_pylist() for name in names}, [f"row {i}" for i in range(table.num_rows)]
    except DataError:
        raise
    except Exception as error:  # whatever pyarrow meets in a damaged file
        raise DataError(f"{path} is not a Parquet table: {error}") from error


def _distinct(path: Path, names: Sequence[str]) -> list[str]:
    if not names:
        raise DataError(f"{path} has no columns")
    for name in names:
        if list(names).count(name) > 1:
            raise DataError(f"{path} has two columns {name!r}")
    return list(names)


def _numbers(where: Sequence[str], owners: Sequence[str], values: Sequence[object], blank: bool) -> list[float]:
    """Return the numbers of a column, finite or, where they may be blank, NaN."""
    numbers = []
    for place, owner, value in zip(where, owners, values, strict=True):
        try:
            numbers.append(float("nan" if blank and value in ("", None) else _plain(value)))
        except (TypeError, ValueError, OverflowError):
            hint = "data.time names a column of times" if times.read(value) else None
            raise DataError(f"{place}: {shown(value)} is not a number", hint=hint) from None
        if not math.isfinite(numbers[-1]) and not (blank and math.isnan(numbers[-1])):
            raise DataError(f"{place}: {numbers[-1]} is not a finite number", client=owner)
    return numbers


def _plain(value: object) -> Any:
    """Refuse a text that Python takes for a number, and a table does not mean as one: 1_000, or any script's digits."""
    if isinstance(value, str) and ("_" in value or not value.isascii()):
        raise ValueError
    return value


def _check_labels(where: Sequence[str], owners: Sequence[str], numbers: Sequence[float]) -> None:
    """Check that the targets that are given are whole and not negative."""
    for place, owner, number in zip(where, owners, numbers, strict=True):
        if not math.isnan(number) and (number < 0 or number != round(number)):
            hint = "number the classes 0, 1, 2, ..."
            raise DataError(f"{place}: {number:g} is not a label", client=owner, hint=hint)


def _owners(where: Sequence[str], values: Sequence[object]) -> list[str]:
    """Return the name of each row's client."""
    for place, value in zip(where, values, strict=True):
        if value is None or not str(value).strip():
            raise DataError(f"{place}: the client's name is blank")
    owners = [str(value) for value in values]
    check_names(list(dict.fromkeys(owners)))
    return owners


def _new(marks: Sequence[str], owned: Mapping[str, Sequence[int]]) -> list[str]:
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
    order = {name: when.argsort(stable=True) for name, when in times.items()}
    sorted_times = {name: times[name][at] for name, at in order.items()}
    alike = {name: int((when[1:] == when[:-1]).sum()) for name, when in sorted_times.items()}
    if several := [name for name, count in alike.items() if count]:
        names = ", ".join(several[:5]) + (f" and {len(several) - 5} more" if len(several) > 5 else "")
        count = sum(alike.values())
        what = (
            f"{count} row{'s' if count > 1 else ''} of {names} come at the time of the row before, by column {time!r}"
        )
        warnings.warn(f"{what}: they stay in the order of the file", stacklevel=caller_stacklevel())
    return table._replace(
        clients={name: (x[order[name]], y[order[name]]) for name, (x, y) in table.clients.items()},
        split=None if table.split is None else {name: own[order[name]] for name, own in table.split.items()},
        times=sorted_times,
    )


def like_labels(values: Iterable[Any]) -> bool:
    """Say whether targets look like labels: whole numbers 0, 1, ..., C-1, each of which comes twice on average.

    Args:
        values: of the column.

    Returns:
        Whether they do, for C of at most 20.
    """
    try:
        numbers = [float(value) for value in values]
    except (TypeError, ValueError):
        return False
    kinds = set(numbers)
    return 2 <= len(kinds) <= min(_CLASSES, len(numbers) // 2) and kinds == set(map(float, range(len(kinds))))


def held_out(table: Table, name: str, share: float) -> Tensor:
    """Mark the test rows of a client: as its table says, or the last ones, at least one and not all of two.

    Args:
        table: as read, in the order of time.
        name: of the client.
        share: of its rows, where the table does not say it.

    Returns:
        bool [m], True on test rows.

    Raises:
        DataError: when all rows have one time, so that none comes last.
    """
    if table.split is not None:
        return table.split[name]
    rows = len(table.clients[name][1])
    first = rows - min(max(round(share * rows), 1), rows - 1)
    if table.times is not None and rows > 1:  # rows of one time are on one side
        when = table.times[name]
        cuts = (when[1:] != when[:-1]).nonzero().flatten() + 1
        if not len(cuts):
            what = f"all of its {rows} rows have one time, so that none comes last"
            raise DataError(what, client=name, hint="a column 'split' says which are test rows")
        first = int(cuts[(cuts - first).abs().argmin()])
    return torch.arange(rows) >= first
