"""Data sets on disk: the .npz of `data_gen`, and a user's own CSV or Parquet table with a client column."""

from __future__ import annotations

import csv
import math
import unicodedata
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from pacbayes_fl.data import memory, times
from pacbayes_fl.data.archives import read_npz
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import DataError, outside, shown

Array = np.ndarray[Any, Any]
Rows = list[tuple[Tensor, Tensor]]  # (x [m, d], y [m]) of each client

_LONG_FORM = MappingProxyType(  # R rows, d features, C clients
    {"x": "Rd", "y": "R", "client": "R", "test": "R", "client_name": "C", "client_new": "C"}
    | {"feature_name": "f", "feature_unit": "f", "target_name": "", "target_unit": ""}  # f is d, or 1 for images
)
_OPTIONAL = MappingProxyType({"validation": "R", "classes": "", "feature_shape": "s", "time": "R", "time_kind": ""})
TABLES = (".csv", ".parquet")
"""How the names of users' tables end."""
_PER_BYTE = 15  # bytes that a table takes in memory for each byte of its CSV
_PER_CELL = 100  # and for each cell of a Parquet table, whose bytes say little of it
_CLASSES = 1000  # that a table may have with fewer rows
Task = Literal["regression", "classification"]


class Column(NamedTuple):
    """Name and unit of a feature or target; the unit is empty when unknown."""

    name: str
    unit: str = ""


class Times(NamedTuple):
    """When the rows of a group were taken: seconds of the epoch or whatever numbers the column holds, 0 in padding.

    Args:
        train: [K, N], int64 microseconds since 1970 or float64.
        test: [K, M], alike.
    """

    train: Tensor
    test: Tensor


@dataclass(frozen=True)
class Group:
    """Clients that are evaluated together: their training and test rows, in the data's own units.

    Args:
        train: rows to learn from and to personalise with.
        test: rows to be scored on, of the same clients in the same order.
        validation: rows of the same clients in the same order that are neither learned from nor scored on at the end,
            but choose among models and rounds; some clients may have none.
        times: of the training and the test rows, where a column says when they were taken.
    """

    train: ClientBatch
    test: ClientBatch
    validation: ClientBatch | None = None
    times: Times | None = None

    def select(self, index: Tensor) -> Group:
        """Take clients.

        Args:
            index: positions [k], int64, on the CPU.

        Returns:
            The group of those k clients.
        """
        times = None if self.times is None else Times(*(one[index] for one in self.times))
        validation = None if self.validation is None else self.validation.select(index)
        return Group(self.train.select(index), self.test.select(index), validation, times)


@dataclass(frozen=True)
class Dataset:
    """Groups of clients ("existing" take part in the training, "new" never do) over the same columns.

    Args:
        groups: by name.
        features: columns of x; the one column "image" where an input has a shape.
        target: column of y.
        provenance: where the rows come from.
        classes: number C of classes where y holds labels 0..C-1; None for regression.
        feature_shape: shape of one input that is no flat row of named features: [channels, H, W] of an image.
        rows: which rows of a published data set went where; see `to_positions`.
        time_kind: of the times of a user's table, as `data.times` calls it; empty where it is not known.
    """

    groups: Mapping[str, Group]
    features: tuple[Column, ...]
    target: Column
    provenance: Mapping[str, Any]
    classes: int | None = None
    feature_shape: tuple[int, ...] = ()
    rows: Mapping[str, Array] | None = None
    time_kind: str = ""


def from_arrays(arrays: Mapping[str, Array], provenance: Mapping[str, Any]) -> Dataset:
    """Build a data set from the long form that `data_gen` writes.

    Args:
        arrays: `x` [R, d], `y` [R], `client` [R], `test` [R] bool, `client_name` [C], `client_new` [C] bool,
            `feature_name` [d], `feature_unit` [d], `target_name` [], `target_unit` []. Optional: `validation` [R] bool,
            True on rows of neither training nor test; `classes` [], the number of classes of labels y;
            `feature_shape` [s], the shape of one input, whose rows are then read as float32 and have one name;
            `time` [R], when each row was taken, and `time_kind` [], how that was written (see `data.times`).
        provenance: what is known of the data: the manifest.

    Returns:
        The data set, with a group "new" only when there are new clients.

    Raises:
        DataError: when an array is missing or does not fit the others, or a client's rows cannot be used.
    """
    shape, classes = _check_long_form(arrays)
    names, new = [str(name) for name in arrays["client_name"]], np.asarray(arrays["client_new"], dtype=bool)
    test, owner = torch.from_numpy(np.asarray(arrays["test"], dtype=bool)), arrays["client"]
    apart = torch.from_numpy(np.asarray(arrays.get("validation", np.zeros(len(owner))), dtype=bool))
    if owner.dtype.kind not in "iu" or not np.isin(owner, np.arange(len(names))).all():
        raise DataError(f"array 'client' must hold whole numbers in 0..{len(names) - 1}")
    if len(set(names)) < len(names):
        raise DataError("its name is used twice", client=next(name for name in names if names.count(name) > 1))
    _check_names(names)
    if (test & apart).any():
        raise DataError(
            "a row is both a test and a validation row", client=names[int(owner[(test & apart).numpy()][0])]
        )
    try:
        x, y = (torch.from_numpy(_known(arrays[name])) for name in ("x", "y"))
    except TypeError as error:
        raise DataError(f"arrays 'x' and 'y' must hold numbers: {error}") from error
    x = x.reshape(-1, *shape) if shape else x
    rows = _rows_of(owner, len(names))
    when = None if "time" not in arrays else torch.from_numpy(np.ascontiguousarray(arrays["time"]))
    groups = {}
    for label, wanted_ones in (("existing", ~new), ("new", new)):
        members = np.flatnonzero(wanted_ones).tolist()
        if members:
            mine = [rows[c] for c in members]
            parts = ([(x[at[part[at]]], y[at[part[at]]]) for at in mine] for part in (~test & ~apart, test, apart))
            dtype = torch.float32 if shape else torch.float64
            made = _group(label, [names[c] for c in members], *parts, classes=classes, dtype=dtype)
            groups[label] = made if when is None else replace(made, times=_times(when, mine, test, apart))
    if "existing" not in groups:
        raise DataError("there is no existing client", hint="at least one client must take part in the training")
    columns = zip(arrays["feature_name"], arrays["feature_unit"], strict=True)
    target = Column(str(arrays["target_name"]), str(arrays["target_unit"]))
    features = tuple(Column(str(name), str(unit)) for name, unit in columns)
    kind = str(arrays.get("time_kind", ""))
    return Dataset(groups, features, target, dict(provenance), classes, shape, time_kind=kind)


def _rows_of(owner: Array, clients: int) -> list[torch.Tensor]:
    """Positions of every client's rows, in their order: one sort, where a mask a client would be clients times rows."""
    order = np.argsort(owner, kind="stable")
    return list(torch.from_numpy(order).split(np.bincount(owner, minlength=clients).tolist()))


def _known(numbers: Array) -> Array:
    """Give unsigned numbers, of which torch knows bytes alone, as float64."""
    unsigned = numbers.dtype.kind == "u" and numbers.dtype.itemsize > 1
    return np.ascontiguousarray(numbers, dtype=np.float64 if unsigned else None)


def _check_names(names: Sequence[str]) -> None:
    """Refuse names that look alike: a blank at the end, or an accent written in two ways, makes no other client."""
    seen: dict[str, str] = {}
    for name in names:
        first = seen.setdefault(unicodedata.normalize("NFC", name).strip(), name)
        if first != name:
            raise DataError(f"its name differs from {first!r} by what nobody sees", client=name, hint="write it alike")


def _check_classes(where: str, largest: float, rows: int) -> int:
    """Count the classes 0..largest, of which there cannot be many more than rows."""
    limit = max(_CLASSES, rows)
    if largest + 1 > limit:
        what = f"{where}: label {largest:g} would be one of {largest + 1:g} classes of {rows} rows"
        raise DataError(f"{what}, and the limit is {limit}", hint="number the classes 0, 1, 2, ...")
    return int(largest) + 1


def _times(when: Tensor, rows: Sequence[Tensor], test: Tensor, apart: Tensor) -> Times:
    """Pad the times [R] of each client's training and test rows, whose positions [m] are given."""
    parts = (~test & ~apart, test)
    return Times(*(pad_sequence([when[own[part[own]]] for own in rows], batch_first=True) for part in parts))


def _check_long_form(arrays: Mapping[str, Array]) -> tuple[tuple[int, ...], int | None]:
    """Check that the arrays fit each other, and return the shape of one input and the number of classes."""
    for name in _LONG_FORM:
        if name not in arrays:
            raise DataError(f"array {name!r} is missing", hint="is this file one of data_gen's?")
    for name, least in (("classes", 2), ("feature_shape", 1)):
        given = np.asarray(arrays.get(name, least))
        if given.dtype.kind not in "iu" or (given < least).any():
            raise DataError(f"array {name!r} must hold whole numbers of at least {least}, got {shown(given.tolist())}")
    if "time" in arrays and arrays["time"].dtype not in (np.int64, np.float64):
        raise DataError(f"array 'time' must hold int64 or float64, got {arrays['time'].dtype}")
    shape = tuple(int(size) for size in np.ravel(arrays.get("feature_shape", ())))
    sizes = {"d": math.prod(shape), "f": 1} if shape else {}
    for name, letters in {**_LONG_FORM, **_OPTIONAL}.items():
        if name not in arrays:
            continue
        if not shape:
            letters = letters.replace("f", "d")
        got = np.shape(arrays[name])
        fits = [sizes.setdefault(letter, size) == size for letter, size in zip(letters, got, strict=False)]
        if len(got) != len(letters) or not all(fits):
            wanted = ", ".join(f"{letter}={sizes[letter]}" if letter in sizes else letter for letter in letters)
            raise DataError(f"array {name!r} must be [{wanted}], got {list(got)}")
    return shape, _check_classes(
        "array 'classes'", int(arrays["classes"]) - 1, sizes["R"]
    ) if "classes" in arrays else None


def _group(
    label: str,
    names: Sequence[str],
    train: Rows,
    test: Rows,
    validation: Rows | None = None,
    *,
    classes: int | None = None,
    dtype: torch.dtype = torch.float64,
) -> Group:
    for name, (_, learned), (_, scored) in zip(names, train, test, strict=True):
        if not len(learned) and label == "existing":
            raise DataError("has no training samples", client=name, hint="drop it, or let it join as a new client")
        if not len(scored):
            raise DataError("has no test samples", client=name, hint="hold some of its rows out, or drop it")
    apart = None
    if validation and any(len(y) for _, y in validation):
        apart = ClientBatch.pad(validation, names, dtype=dtype, classes=classes, allow_empty=True)
    return Group(
        ClientBatch.pad(train, names, dtype=dtype, classes=classes, allow_empty=label == "new"),
        ClientBatch.pad(test, names, dtype=dtype, classes=classes),
        apart,
    )


def to_arrays(dataset: Dataset) -> dict[str, Array]:
    """Turn a data set back into the long form that `from_arrays` reads.

    Args:
        dataset: any data set.

    Returns:
        The arrays named there.
    """
    x, y, owner, part, when = [], [], [], [], list[Array]()
    names: list[str] = []
    new: list[bool] = []
    for label, group in dataset.groups.items():
        for k, name in enumerate(group.train.names):
            for number, batch in enumerate((group.train, group.test, group.validation)):
                if batch is None:
                    continue
                rows = batch.mask[k]
                x.append(batch.x[k][rows].flatten(1).cpu().numpy())
                y.append(batch.y[k][rows].cpu().numpy())
                owner.append(np.full(len(y[-1]), len(names)))
                part.append(np.full(len(y[-1]), number))
                if group.times is not None and number < len(group.times):
                    when.append(group.times[number][k][: len(y[-1])].cpu().numpy())
            names.append(name)
            new.append(label == "new")
    parts = np.concatenate(part)
    arrays = {
        "x": np.concatenate(x),
        "y": np.concatenate(y),
        "client": np.concatenate(owner),
        "test": parts == 1,
        "client_name": np.array(names),
        "client_new": np.array(new),
        "feature_name": np.array([column.name for column in dataset.features]),
        "feature_unit": np.array([column.unit for column in dataset.features]),
        "target_name": np.array(dataset.target.name),
        "target_unit": np.array(dataset.target.unit),
    }
    optional = {  # left out where there is nothing to say, as in files of regression
        "validation": parts == 2 if any(group.validation is not None for group in dataset.groups.values()) else None,
        "classes": None if dataset.classes is None else np.array(dataset.classes),
        "feature_shape": np.array(dataset.feature_shape) if dataset.feature_shape else None,
        "time": np.concatenate(when) if when else None,
        "time_kind": np.array(dataset.time_kind) if when and dataset.time_kind else None,
    }
    return arrays | {name: array for name, array in optional.items() if array is not None}


def to_positions(dataset: Dataset) -> dict[str, Array]:
    """Say which rows of a published data set went where, so that a run can keep positions instead of pixels.

    Args:
        dataset: a data set with `rows`.

    Returns:
        `client_name` [C], `client_new` [C] bool, `client_domain` [C] (which data set, changed how); and by row
        `position` [R] in that data set, `owner` [R] (number of the client), `part` [R]: 0 train, 1 test, 2 validation.

    Raises:
        DataError: when the data set has no positions, or its clients are not those that the positions are of.
    """
    if dataset.rows is None:
        raise DataError("this data set does not know the positions of its rows", hint="keep its rows with to_arrays")
    names = [name for group in dataset.groups.values() for name in group.train.names]
    if list(dataset.rows["client_name"]) != names:
        raise DataError("the positions are of other clients", hint="make the data set again")
    return dict(dataset.rows)


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


def _numbers(where: Sequence[str], owners: Sequence[str], values: Sequence[Any], blank: bool) -> list[float]:
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


def _plain(value: Any) -> Any:
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


def _owners(where: Sequence[str], values: Sequence[Any]) -> list[str]:
    """Return the name of each row's client."""
    for place, value in zip(where, values, strict=True):
        if value is None or not str(value).strip():
            raise DataError(f"{place}: the client's name is blank")
    owners = [str(value) for value in values]
    _check_names(list(dict.fromkeys(owners)))
    return owners


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

    Returns:
        The table by client, in the order of first appearance; rows keep the order of the file.

    Raises:
        DataError: when the file or a column is missing, or a value is not a finite number or a target not a label
            (naming the column and the line), a client's name is blank, times are none or of several kinds, or a word is
            not one of those above.
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    if path.suffix.lower() not in TABLES:
        raise DataError(f"{path} is not {' or '.join(TABLES)}", hint="a spreadsheet can be saved as CSV")
    columns, places = _read_parquet(path) if path.suffix.lower() == ".parquet" else _read_csv(path)
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
    for name, words in (("split", ("train", "test")), ("group", ("existing", "new"))):
        for value, place in zip(columns.get(name, ()), places, strict=False):
            if value not in words:
                raise DataError(f"{path} {place}: {name} must be {words[0]!r} or {words[1]!r}, got {shown(value)}")
    clients = {name: (values[rows, :-1], values[rows, -1]) for name, rows in owned.items()}
    split = None
    if "split" in columns:
        split = {name: torch.tensor([columns["split"][i] == "test" for i in rows]) for name, rows in owned.items()}
    new = _new(columns["group"], owned) if "group" in columns else []
    by_time = None if when is None else {name: when[rows] for name, rows in owned.items()}
    first = times.read(columns[time][0]) if time in columns else None
    return Table(clients, wanted, split, tuple(new), by_time, first.kind if first else "")


def _new(marks: Sequence[str], owned: Mapping[str, Sequence[int]]) -> list[str]:
    """Return the names of clients whose rows are all marked as those of a new one."""
    new = []
    for name, rows in owned.items():
        own = {marks[i] for i in rows}
        if len(own) > 1:
            raise DataError("is marked both as existing and as new", client=name)
        new += [name] if "new" in own else []
    return new


def read(
    path: Path,
    client: str = "client",
    target: str = "y",
    test_share: float = 0.25,
    task: Task = "regression",
    time: str | None = None,
) -> Dataset:
    """Read a data set: an .npz of `data_gen`, or a user's table.

    Args:
        path: .npz, .csv or .parquet.
        client: name of the table's client column.
        target: name of the table's target column.
        test_share: share of each client's last rows, of two or more at least one, held out when the table has no
            `split` column.
        task: "classification" when the table's targets are labels 0..C-1, C - 1 being the largest; an .npz says itself
            what it holds.
        time: name of the table's column of times, by which rows are sorted within clients; the order of the file is
            taken for that of time when None.

    Returns:
        The data set.

    Raises:
        DataError: as `from_arrays` and `read_table`; also when there is no such column, or all rows of a client that is
            to be cut by it have one time.
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    if path.suffix.lower() == ".npz":
        dataset = from_arrays(read_npz(path), {"source": path.name})
        if task == "classification" and dataset.classes is None:
            raise DataError(f"{path} holds no labels: array 'classes' is missing", hint="is it a regression?")
        return dataset
    table = read_table(path, client, target, blank_target=False, task=task, time=time, need_time=True)
    if table.times is not None:
        table = _sorted(table, table.times, time)
    classes = _count_classes(path, table) if task == "classification" else None
    if table.split is None and not 0 < test_share < 1:
        raise DataError(f"test_share must be between 0 and 1, got {test_share:g}", hint="or give a column 'split'")
    groups, new = {}, set(table.new)
    for label in ("existing", "new"):
        members = [name for name in table.clients if (name in new) == (label == "new")]
        if members:
            held = {name: _held_out(table, name, test_share) for name in members}
            rows = [(*table.clients[name], held[name]) for name in members]
            train, test = ([(x[own == part], y[own == part]) for x, y, own in rows] for part in (False, True))
            groups[label] = _group(label, members, train, test, classes=classes)
            if table.times is not None:
                cut = ([table.times[name][held[name] == part] for name in members] for part in (False, True))
                groups[label] = replace(groups[label], times=Times(*(pad_sequence(p, batch_first=True) for p in cut)))
    if "existing" not in groups:
        raise DataError(f"{path} has no existing client", hint="at least one client must take part in the training")
    by = f"by column {time!r}" if time is not None else "in the order of the file, which was taken for that of time"
    how = f"last {test_share:g} of each client {by}" if table.split is None else "column split"
    source = {"source": path.name, "test_rows": how}
    features = tuple(Column(name) for name in table.features)
    return Dataset(groups, features, Column(target), source, classes, time_kind=table.time_kind)


def _count_classes(path: Path, table: Table) -> int:
    largest, rows = (
        max(float(y.max()) for _, y in table.clients.values()),
        sum(len(y) for _, y in table.clients.values()),
    )
    classes = _check_classes(str(path), largest, rows)
    if classes < 2:
        raise DataError(f"{path} has only the label 0", hint="a classification needs two classes at least")
    return classes


def _sorted(table: Table, times: Mapping[str, Tensor], time: str | None) -> Table:
    """Sort the rows of every client by time, those of one time as in the file, and warn of these."""
    order = {name: when.argsort(stable=True) for name, when in times.items()}
    sorted_times = {name: times[name][at] for name, at in order.items()}
    alike = {name: int((when[1:] == when[:-1]).sum()) for name, when in sorted_times.items()}
    if several := [name for name, count in alike.items() if count]:
        names = ", ".join(several[:5]) + (f" and {len(several) - 5} more" if len(several) > 5 else "")
        count = sum(alike.values())
        what = (
            f"{count} row{'s' if count > 1 else ''} of {names} come at the time of the row before, by column {time!r}"
        )
        warnings.warn(f"{what}: they stay in the order of the file", stacklevel=outside())
    return table._replace(
        clients={name: (x[order[name]], y[order[name]]) for name, (x, y) in table.clients.items()},
        split=None if table.split is None else {name: own[order[name]] for name, own in table.split.items()},
        times=sorted_times,
    )


def _held_out(table: Table, name: str, share: float) -> Tensor:
    """Mark the test rows [m] of a client: as its table says, or the last ones, at least one and not all of two."""
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
