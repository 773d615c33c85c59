"""Data sets on disk: the .npz of `data_gen`, and a user's own CSV or Parquet table with a client column."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import DataError

Array = np.ndarray[Any, Any]


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
        DataError: when an array is missing or a client's rows cannot be used.
    """
    needed = ("x", "y", "client", "test", "client_name", "client_new", "feature_name", "feature_unit")
    missing = [name for name in (*needed, "target_name", "target_unit") if name not in arrays]
    if missing:
        raise DataError(f"array {missing[0]!r} is missing", hint="is this file one of data_gen's?")
    x, y, owner, test = (torch.from_numpy(np.ascontiguousarray(arrays[name])) for name in ("x", "y", "client", "test"))
    names, new = [str(name) for name in arrays["client_name"]], np.asarray(arrays["client_new"], dtype=bool)
    groups = {}
    for label, wanted in (("existing", ~new), ("new", new)):
        members = np.flatnonzero(wanted)
        if len(members):
            chosen = [names[c] for c in members]
            parts = [
                [(x[rows], y[rows]) for c in members for rows in [(owner == int(c)) & (test == held)]] for held in (False, True)
            ]
            groups[label] = Group(
                ClientBatch.pad(parts[0], chosen, allow_empty=label == "new"), ClientBatch.pad(parts[1], chosen)
            )
    if "existing" not in groups:
        raise DataError("there is no existing client", hint="at least one client must take part in the training")
    columns = zip(arrays["feature_name"], arrays["feature_unit"], strict=True)
    target = Column(str(arrays["target_name"]), str(arrays["target_unit"]))
    return Dataset(groups, tuple(Column(str(name), str(unit)) for name, unit in columns), target, dict(provenance))


def to_arrays(dataset: Dataset) -> dict[str, Array]:
    """Turn a data set back into the long form that `from_arrays` reads.

    Args:
        dataset: any data set.

    Returns:
        The arrays named there.
    """
    x, y, owner, test, names, new = [], [], [], [], [], []
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


def _read_csv(path: Path) -> dict[str, list[str]]:
    with path.open(newline="", encoding="utf-8") as stream:
        reader = csv.DictReader(stream)
        names = list(reader.fieldnames or [])
        rows = list(reader)
    for number, row in enumerate(rows, start=2):
        if None in row or None in row.values():
            raise DataError(f"{path} line {number}: expected {len(names)} values", hint="is a comma missing or one too many?")
    return {name: [row[name] for row in rows] for name in names}


def _read_parquet(path: Path) -> dict[str, list[Any]]:
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise DataError("reading Parquet needs pyarrow", hint="pip install 'pacbayes_fl[tables]'") from error
    table = parquet.read_table(path)
    return {name: table[name].to_pylist() for name in table.column_names}


class Table(NamedTuple):
    """A user's table by client.

    Args:
        clients: name -> (x [m, d], y [m]); y is NaN where the table has no target column.
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
) -> Table:
    """Read a CSV (or Parquet) table with one row per observation.

    Columns: the client's name, the target, optionally `split` ("train" or "test") and `group` ("existing" or "new"); every
    other column is a feature unless `features` names them.

    Args:
        path: the file; `.parquet` needs the extra `tables`.
        client: name of the client column.
        target: name of the target column.
        features: names of the feature columns, in the model's order.
        need_target: False for a table to predict on.
        default_client: owner of all rows of a table without a client column.

    Returns:
        The table by client, in the order of first appearance; rows keep the order of the file.

    Raises:
        DataError: when the file or a column is missing, or a value is not a number (naming the column and the line).
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    columns = _read_parquet(path) if path.suffix == ".parquet" else _read_csv(path)
    if client not in columns and default_client is not None:
        columns[client] = [default_client] * len(next(iter(columns.values()), []))
    reserved = {client, target, "split", "group"}
    wanted = tuple(features) if features is not None else tuple(name for name in columns if name not in reserved)
    for name in (client, *([target] if need_target else []), *wanted):
        if name not in columns:
            raise DataError(f"{path} has no column {name!r}", hint=f"it has {', '.join(columns)}")
    if not wanted or not columns[client]:
        raise DataError(f"{path} has no {'rows' if wanted else 'feature columns'}")
    numbers = []
    for name in (*wanted, target):
        if name not in columns:
            numbers.append([float("nan")] * len(columns[client]))
            continue
        try:
            numbers.append([float(value if value not in ("", None) or name != target else "nan") for value in columns[name]])
        except (TypeError, ValueError):
            line = next(i for i, value in enumerate(columns[name]) if not _is_number(value))
            raise DataError(f"{path} line {line + 2}, column {name!r}: {columns[name][line]!r} is not a number") from None
    values = torch.tensor(numbers, dtype=torch.float64).T
    owners = [str(name) for name in columns[client]]
    rows = {name: torch.tensor([i for i, owner in enumerate(owners) if owner == name]) for name in dict.fromkeys(owners)}
    clients = {name: (values[at, :-1], values[at, -1]) for name, at in rows.items()}
    split = None
    if "split" in columns:
        for value in set(columns["split"]) - {"train", "test"}:
            raise DataError(f"{path}: split must be 'train' or 'test', got {value!r}")
        held = torch.tensor([value == "test" for value in columns["split"]])
        split = {name: held[at] for name, at in rows.items()}
    new = tuple(name for name, at in rows.items() if "group" in columns and columns["group"][int(at[0])] == "new")
    return Table(clients, wanted, split, new)


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def read(path: Path, client: str = "client", target: str = "y", test_share: float = 0.25) -> Dataset:
    """Read a data set: an .npz of `data_gen`, or a user's table.

    Args:
        path: .npz, .csv or .parquet.
        client: name of the table's client column.
        target: name of the table's target column.
        test_share: share of each client's last rows held out when the table has no `split` column.

    Returns:
        The data set.

    Raises:
        DataError: as `from_arrays` and `read_table`.
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as arrays:
            return from_arrays(dict(arrays), {"source": path.name})
    table = read_table(path, client, target)
    groups = {}
    for label in ("existing", "new"):
        members = [name for name in table.clients if (name in table.new) == (label == "new")]
        if members:
            parts: tuple[list[tuple[Tensor, Tensor]], ...] = ([], [])
            for name in members:
                x, y = table.clients[name]
                held = torch.arange(len(y)) >= len(y) - round(test_share * len(y)) if table.split is None else table.split[name]
                parts[0].append((x[~held], y[~held]))
                parts[1].append((x[held], y[held]))
            train = ClientBatch.pad(parts[0], members, allow_empty=label == "new")
            groups[label] = Group(train, ClientBatch.pad(parts[1], members))
    if "existing" not in groups:
        raise DataError(f"{path} has no existing client", hint="at least one client must take part in the training")
    source = {"source": path.name, "test_rows": "column split" if table.split else f"last {test_share:g} of each client"}
    return Dataset(groups, tuple(Column(name) for name in table.features), Column(target), source)
