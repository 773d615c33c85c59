"""Data sets on disk: the .npz of `data_gen`, and a user's own CSV or Parquet table with a client column."""

from __future__ import annotations

import csv
import math
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import DataError

Array = np.ndarray[Any, Any]
Rows = list[tuple[Tensor, Tensor]]  # (x [m, d], y [m]) of each client

_LONG_FORM = MappingProxyType(  # R rows, d features, C clients
    {"x": "Rd", "y": "R", "client": "R", "test": "R", "client_name": "C", "client_new": "C"}
    | {"feature_name": "d", "feature_unit": "d", "target_name": "", "target_unit": ""}
)


class Column(NamedTuple):
    """Name and unit of a feature or target; the unit is empty when unknown."""

    name: str
    unit: str = ""


@dataclass(frozen=True)
class Group:
    """Clients that are evaluated together: their training and test rows, in the data's own units.

    Args:
        train: rows to learn from and to personalise with.
        test: rows to be scored on, of the same clients in the same order.
    """

    train: ClientBatch
    test: ClientBatch


@dataclass(frozen=True)
class Dataset:
    """Groups of clients ("existing" take part in the training, "new" never do) over the same columns."""

    groups: Mapping[str, Group]
    features: tuple[Column, ...]
    target: Column
    provenance: Mapping[str, Any]


def from_arrays(arrays: Mapping[str, Array], provenance: Mapping[str, Any]) -> Dataset:
    """Build a data set from the long form that `data_gen` writes.

    Args:
        arrays: `x` [R, d], `y` [R], `client` [R], `test` [R] bool, `client_name` [C], `client_new` [C] bool,
            `feature_name` [d], `feature_unit` [d], `target_name` [], `target_unit` [].
        provenance: what is known of the data: the manifest.

    Returns:
        The data set, with a group "new" only when there are new clients.

    Raises:
        DataError: when an array is missing or does not fit the others, or a client's rows cannot be used.
    """
    sizes: dict[str, int] = {}
    for name, letters in _LONG_FORM.items():
        if name not in arrays:
            raise DataError(f"array {name!r} is missing", hint="is this file one of data_gen's?")
        shape = np.shape(arrays[name])
        fits = [sizes.setdefault(letter, size) == size for letter, size in zip(letters, shape, strict=False)]
        if len(shape) != len(letters) or not all(fits):
            wanted = ", ".join(f"{letter}={sizes[letter]}" if letter in sizes else letter for letter in letters)
            raise DataError(f"array {name!r} must be [{wanted}], got {list(shape)}")
    names, new = [str(name) for name in arrays["client_name"]], np.asarray(arrays["client_new"], dtype=bool)
    test, owner = torch.from_numpy(np.asarray(arrays["test"], dtype=bool)), arrays["client"]
    if owner.dtype.kind not in "iu" or not np.isin(owner, np.arange(len(names))).all():
        raise DataError(f"array 'client' must hold whole numbers in 0..{len(names) - 1}")
    if len(set(names)) < len(names):
        raise DataError("its name is used twice", client=next(name for name in names if names.count(name) > 1))
    try:
        x, y = (torch.from_numpy(np.ascontiguousarray(arrays[name])) for name in ("x", "y"))
    except TypeError as error:
        raise DataError(f"arrays 'x' and 'y' must hold numbers: {error}") from error
    groups = {}
    for label, wanted_ones in (("existing", ~new), ("new", new)):
        members = np.flatnonzero(wanted_ones).tolist()
        if members:
            rows = [torch.from_numpy(owner == c) for c in members]
            train, held = ([(x[at & part], y[at & part]) for at in rows] for part in (~test, test))
            groups[label] = _group(label, [names[c] for c in members], train, held)
    if "existing" not in groups:
        raise DataError("there is no existing client", hint="at least one client must take part in the training")
    columns = zip(arrays["feature_name"], arrays["feature_unit"], strict=True)
    target = Column(str(arrays["target_name"]), str(arrays["target_unit"]))
    return Dataset(groups, tuple(Column(str(name), str(unit)) for name, unit in columns), target, dict(provenance))


def _group(label: str, names: Sequence[str], train: Rows, test: Rows) -> Group:
    for name, (_, learned), (_, scored) in zip(names, train, test, strict=True):
        if not len(learned) and label == "existing":
            raise DataError("has no training samples", client=name, hint="drop it, or let it join as a new client")
        if not len(scored):
            raise DataError("has no test samples", client=name, hint="hold some of its rows out, or drop it")
    return Group(ClientBatch.pad(train, names, allow_empty=label == "new"), ClientBatch.pad(test, names))


def to_arrays(dataset: Dataset) -> dict[str, Array]:
    """Turn a data set back into the long form that `from_arrays` reads.

    Args:
        dataset: any data set.

    Returns:
        The arrays named there.
    """
    x, y, owner, test = [], [], [], []
    names: list[str] = []
    new: list[bool] = []
    for label, group in dataset.groups.items():
        for k, name in enumerate(group.train.names):
            for held, batch in ((False, group.train), (True, group.test)):
                rows = batch.mask[k]
                x.append(batch.x[k][rows].cpu().numpy())
                y.append(batch.y[k][rows].cpu().numpy())
                owner.append(np.full(len(y[-1]), len(names)))
                test.append(np.full(len(y[-1]), held))
            names.append(name)
            new.append(label == "new")
    return {
        "x": np.concatenate(x),
        "y": np.concatenate(y),
        "client": np.concatenate(owner),
        "test": np.concatenate(test),
        "client_name": np.array(names),
        "client_new": np.array(new),
        "feature_name": np.array([column.name for column in dataset.features]),
        "feature_unit": np.array([column.unit for column in dataset.features]),
        "target_name": np.array(dataset.target.name),
        "target_unit": np.array(dataset.target.unit),
    }


def _read_csv(path: Path) -> tuple[dict[str, list[Any]], list[str]]:
    """Return the columns, and where each row stands."""
    rows, places = [], []
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:  # without the mark that Excel puts first
            reader = csv.DictReader(stream)
            names = _distinct(path, reader.fieldnames or [])
            if len(names) == 1 and ";" in names[0]:
                raise DataError(f"{path} has only the column {names[0]!r}", hint="is the separator a comma?")
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
        table = parquet.read_table(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is not a Parquet table: {error}") from error
    names = _distinct(path, table.column_names)
    return {name: table[name].to_pylist() for name in names}, [f"row {i}" for i in range(table.num_rows)]


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
            numbers.append(float("nan" if blank and value in ("", None) else value))
        except (TypeError, ValueError):
            raise DataError(f"{place}: {value!r} is not a number") from None
        if not math.isfinite(numbers[-1]) and not (blank and math.isnan(numbers[-1])):
            raise DataError(f"{place}: {numbers[-1]} is not a finite number", client=owner)
    return numbers


def _owners(where: Sequence[str], values: Sequence[Any]) -> list[str]:
    """Return the name of each row's client."""
    for place, value in zip(where, values, strict=True):
        if value is None or not str(value).strip():
            raise DataError(f"{place}: the client's name is blank")
    return [str(value) for value in values]


class Table(NamedTuple):
    """A user's table by client.

    Args:
        clients: name -> (x [m, d], y [m]); y is NaN where the table has no target.
        features: names of the d feature columns.
        split: name -> bool [m], True on test rows; None when the table has no `split` column.
        new: names of clients marked as new.
    """

    clients: dict[str, tuple[Tensor, Tensor]]
    features: tuple[str, ...]
    split: dict[str, Tensor] | None
    new: tuple[str, ...]


def read_table(
    path: Path,
    client: str = "client",
    target: str = "y",
    features: Sequence[str] | None = None,
    need_target: bool = True,
    default_client: str | None = None,
    blank_target: bool = True,
) -> Table:
    """Read a CSV (or Parquet) table with one row per observation.

    Columns: the client's name, the target, optionally `split` ("train" or "test") and `group` ("existing" or "new");
    every other column is a feature unless `features` names them. A target that is blank or NaN is one to predict.

    Args:
        path: the file; `.parquet` needs the extra `tables`.
        client: name of the client column.
        target: name of the target column.
        features: names of the feature columns, in the model's order.
        need_target: False for a table to predict on.
        default_client: owner of all rows of a table without a client column.
        blank_target: False when every row must have its target.

    Returns:
        The table by client, in the order of first appearance; rows keep the order of the file.

    Raises:
        DataError: when the file or a column is missing, or a value is not a finite number (naming the column and the
            line), a client's name is blank, or a word is not one of those above.
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    columns, places = _read_parquet(path) if path.suffix == ".parquet" else _read_csv(path)
    if client not in columns and default_client is not None:
        columns[client] = [default_client] * len(places)
    reserved = {client, target, "split", "group"}
    wanted = tuple(features) if features is not None else tuple(name for name in columns if name not in reserved)
    for name in (client, *([target] if need_target else []), *wanted):
        if name not in columns:
            raise DataError(f"{path} has no column {name!r}", hint=f"it has {', '.join(columns)}")
    if not wanted or not places:
        raise DataError(f"{path} has no {'rows' if wanted else 'feature columns'}")
    where = {name: [f"{path} {place}, column {name!r}" for place in places] for name in (client, *wanted, target)}
    owners = _owners(where[client], columns[client])
    numbers = [_numbers(where[name], owners, columns[name], blank=False) for name in wanted]
    blank = blank_target or target not in columns
    numbers.append(_numbers(where[target], owners, columns.get(target, [None] * len(places)), blank))
    values = torch.tensor(numbers, dtype=torch.float64).T
    owned: dict[str, list[int]] = {}
    for i, owner in enumerate(owners):
        owned.setdefault(owner, []).append(i)
    for name, words in (("split", ("train", "test")), ("group", ("existing", "new"))):
        for value, place in zip(columns.get(name, ()), places, strict=False):
            if value not in words:
                raise DataError(f"{path} {place}: {name} must be {words[0]!r} or {words[1]!r}, got {value!r}")
    clients = {name: (values[rows, :-1], values[rows, -1]) for name, rows in owned.items()}
    split, new = None, []
    if "split" in columns:
        split = {name: torch.tensor([columns["split"][i] == "test" for i in rows]) for name, rows in owned.items()}
    if "group" in columns:
        for name, rows in owned.items():
            marks = {columns["group"][i] for i in rows}
            if len(marks) > 1:
                raise DataError("is marked both as existing and as new", client=name)
            new += [name] if "new" in marks else []
    return Table(clients, wanted, split, tuple(new))


def read(path: Path, client: str = "client", target: str = "y", test_share: float = 0.25) -> Dataset:
    """Read a data set: an .npz of `data_gen`, or a user's table.

    Args:
        path: .npz, .csv or .parquet.
        client: name of the table's client column.
        target: name of the table's target column.
        test_share: share of each client's last rows, of two or more at least one, held out when the table has no
            `split` column.

    Returns:
        The data set.

    Raises:
        DataError: as `from_arrays` and `read_table`.
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    if path.suffix == ".npz":
        return from_arrays(_read_npz(path), {"source": path.name})
    table = read_table(path, client, target, blank_target=False)
    if table.split is None and not 0 < test_share < 1:
        raise DataError(f"test_share must be between 0 and 1, got {test_share:g}", hint="or give a column 'split'")
    groups = {}
    for label in ("existing", "new"):
        members = [name for name in table.clients if (name in table.new) == (label == "new")]
        if members:
            train, test = [], []
            for name in members:
                x, y = table.clients[name]
                held = _last(len(y), test_share) if table.split is None else table.split[name]
                train.append((x[~held], y[~held]))
                test.append((x[held], y[held]))
            groups[label] = _group(label, members, train, test)
    if "existing" not in groups:
        raise DataError(f"{path} has no existing client", hint="at least one client must take part in the training")
    how = f"last {test_share:g} of each client" if table.split is None else "column split"
    source = {"source": path.name, "test_rows": how}
    return Dataset(groups, tuple(Column(name) for name in table.features), Column(target), source)


def _last(rows: int, share: float) -> Tensor:
    """Mark the last rows [m], at least one and not all when there are two."""
    held = min(max(round(share * rows), 1), rows - 1)
    return torch.arange(rows) >= rows - held


def _read_npz(path: Path) -> dict[str, Array]:
    if not zipfile.is_zipfile(path):
        raise DataError(f"{path} is not an .npz archive")
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return dict(arrays)
    except (OSError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
