"""Data sets by client, in memory and on disk: the .npz of `data_gen`, or a user's table (`user_tables`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from pacbayes_fl import tensors
from pacbayes_fl.data import division, history, long_arrays, user_tables
from pacbayes_fl.data.archives import Array, read_npz
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.cells import array_of, check_names
from pacbayes_fl.data.client_blocks import Batches, Owners, Pieces, joined, long_rows
from pacbayes_fl.data.encoding import check_client_features, encoded
from pacbayes_fl.data.history import History
from pacbayes_fl.data.layout import Layout, Span
from pacbayes_fl.data.leaks import check_leaks
from pacbayes_fl.data.long_form import check_arrays, check_learned, known_numbers, stated_or_counted
from pacbayes_fl.errors import DataError

Rows = list[tuple[Tensor, Tensor]]  # (x [m, d], y [m]) of each client


class Column(NamedTuple):
    """Name and unit of a feature or target; the unit is empty when unknown."""

    name: str
    unit: str = ""


class Times(NamedTuple):
    """When the rows of a group were taken, 0 in padding.

    Args:
        train: [K, N], of a user's table as `data.times` reads it: int64 microseconds since 1970, or the column's own
            numbers, int64 or float64; of PV rows that `data_gen` makes, int64 UTC seconds since 1970.
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
        history: of a user's table, of which lags and rolling means of later rows are made.
    """

    groups: Mapping[str, Group]
    features: tuple[Column, ...]
    target: Column
    provenance: Mapping[str, Any]
    classes: int | None = None
    feature_shape: tuple[int, ...] = ()
    rows: Mapping[str, Array] | None = None
    time_kind: str = ""
    history: History | None = None

    @property
    def task(self) -> user_tables.Task:
        """What is learned: "regression", or "classification" of labels."""
        return "regression" if self.classes is None else "classification"


def from_arrays(arrays: Mapping[str, Array], provenance: Mapping[str, Any]) -> Dataset:
    """Build a data set from the long form that `data_gen` writes.

    Args:
        arrays: `x` [R, d], `y` [R], `client` [R], `test` [R] bool, `client_name` [C], `client_new` [C] bool,
            `feature_name` [d], `feature_unit` [d], `target_name` [], `target_unit` []. Optional: `validation` [R] bool,
            True on rows of neither training nor test; `classes` [], the number of classes of labels y;
            `feature_shape` [s], the shape of one input, whose rows are then read as float32 and have one name;
            `time` [R], when each row was taken, and `time_kind` [], how that was written (see `data.times`); those of
            `data.history`.
        provenance: what is known of the data: the manifest.

    Returns:
        The data set, with a group "new" only when there are new clients.

    Raises:
        DataError: when an array is missing or does not fit the others, or a client's rows cannot be used.
    """
    shape, classes = check_arrays(arrays)
    names, new = [str(name) for name in arrays["client_name"]], np.asarray(arrays["client_new"], dtype=bool)
    test, owner = torch.from_numpy(np.asarray(arrays["test"], dtype=bool)), arrays["client"]
    validation = torch.from_numpy(np.asarray(arrays.get("validation", np.zeros(len(owner), dtype=bool)), dtype=bool))
    for array in arrays.values():
        long_arrays.adopt(array)
    known = (owner[own] for own in long_arrays.row_blocks(len(owner)))
    if owner.dtype.kind not in "iu" or any((part < 0).any() or (part >= len(names)).any() for part in known):
        raise DataError(f"array 'client' must hold whole numbers in 0..{len(names) - 1}")
    if len(set(names)) < len(names):
        raise DataError("its name is used twice", client=next(name for name in names if names.count(name) > 1))
    check_names(names)
    if (test & validation).any():
        raise DataError(
            "a row is both a test and a validation row", client=names[int(owner[(test & validation).numpy()][0])]
        )
    try:
        x, y = (torch.from_numpy(known_numbers(arrays[name])) for name in ("x", "y"))
    except TypeError as error:
        raise DataError(f"arrays 'x' and 'y' must hold numbers: {error}") from error
    x = x.reshape(-1, *shape) if shape else x
    owners, parts = Owners(owner, len(names)), (~test & ~validation, test, validation)
    pieces = [Pieces(x, y, owners, part) for part in parts]
    when = None if "time" not in arrays else torch.from_numpy(np.ascontiguousarray(arrays["time"]))
    groups = {}
    for label, wanted_ones in (("existing", ~new), ("new", new)):
        members = np.flatnonzero(wanted_ones).tolist()
        if members:
            dtype = torch.float32 if shape else torch.float64

            def part_of(own: slice, members: list[int] = members, label: str = label, dtype: Any = dtype) -> Batches:
                chosen = members[own]
                given = ([part.of(c) for c in chosen] for part in pieces)
                one = _group(label, [names[c] for c in chosen], *given, classes=classes, dtype=dtype)
                return one.train, one.test, one.validation

            made = Group(*joined(part_of, [part.counts[members].tolist() for part in pieces]))
            own = when if when is None else Times(*(part.padded(when, members) for part in pieces[:2]))
            groups[label] = replace(made, times=own)
    if "existing" not in groups:
        raise DataError("there is no existing client", hint="at least one client must take part in the training")
    columns = zip(arrays["feature_name"], arrays["feature_unit"], strict=True)
    target = Column(str(arrays["target_name"]), str(arrays["target_unit"]))
    features = tuple(Column(str(name), str(unit)) for name, unit in columns)
    kind = str(arrays.get("time_kind", ""))
    past = history.from_arrays(arrays, names, kind)
    return Dataset(groups, features, target, dict(provenance), classes, shape, time_kind=kind, history=past)


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
    validated = None
    if validation and any(len(y) for _, y in validation):
        validated = ClientBatch.pad(validation, names, dtype=dtype, classes=classes, allow_empty=True)
    return Group(
        ClientBatch.pad(train, names, dtype=dtype, classes=classes, allow_empty=label == "new"),
        ClientBatch.pad(test, names, dtype=dtype, classes=classes),
        validated,
    )


def to_arrays(dataset: Dataset) -> dict[str, Array]:
    """Turn a data set back into the long form that `from_arrays` reads.

    Args:
        dataset: any data set.

    Returns:
        The arrays named there.
    """
    names = [name for group in dataset.groups.values() for name in group.train.names]
    new = [label == "new" for label, group in dataset.groups.items() for _ in group.train.names]
    every = [batch for group in dataset.groups.values() for batch in (group.train, group.test, group.validation)]
    count = sum(int(batch.size.sum()) for batch in every if batch is not None)
    first = dataset.groups["existing"].train
    x = tensors.mapped_zeros((count, first.x[0, 0].numel()), first.x.dtype)
    y, clients, parts = (tensors.mapped_zeros((count,), dtype) for dtype in (first.y.dtype, torch.int64, torch.int64))
    timed = any(group.times is not None for group in dataset.groups.values())
    when = list[Tensor]()
    done = before = 0
    for group in dataset.groups.values():
        for own in tensors.client_blocks(group.train.clients):
            part = group.select(torch.arange(own.start, own.stop))
            found = long_rows((part.train, part.test, part.validation), part.times, before)
            rows = slice(done, done + len(found.y))
            x[rows], y[rows], clients[rows], parts[rows] = found.x, found.y, found.owner, found.part
            when += found.times
            done, before = rows.stop, before + own.stop - own.start
    arrays = {
        "x": x.numpy(),
        "y": y.numpy(),
        "client": clients.numpy(),
        "test": parts.numpy() == 1,
        "client_name": np.array(names),
        "client_new": np.array(new),
        "feature_name": np.array([column.name for column in dataset.features]),
        "feature_unit": np.array([column.unit for column in dataset.features]),
        "target_name": np.array(dataset.target.name),
        "target_unit": np.array(dataset.target.unit),
    }
    optional = {  # left out where there is nothing to say, as in files of regression
        "validation": parts.numpy() == 2
        if any(group.validation is not None for group in dataset.groups.values())
        else None,
        "classes": None if dataset.classes is None else np.array(dataset.classes),
        "feature_shape": np.array(dataset.feature_shape) if dataset.feature_shape else None,
        "time": torch.cat(when).numpy() if timed else None,
        "time_kind": np.array(dataset.time_kind) if timed and dataset.time_kind else None,
    }
    arrays |= history.to_arrays(dataset.history, names)
    return arrays | {name: array for name, array in optional.items() if array is not None}


def restricted(dataset: Dataset, groups: Mapping[str, Group]) -> Dataset:
    """Leave clients out of a data set.

    Args:
        dataset: rows of all clients.
        groups: those of the clients that are left, in the data set's order.

    Returns:
        Their data set, which knows the positions of their rows alone.
    """
    if dataset.rows is None:
        return replace(dataset, groups=groups)
    names = [name for group in groups.values() for name in group.train.names]
    before = dataset.rows["client_name"].tolist()
    at = np.array([before.index(name) for name in names])
    number = np.full(len(before), -1)
    number[at] = np.arange(len(at))
    owner = number[dataset.rows["owner"]]
    rows = {
        name: column[at] if name.startswith("client_") else column[owner >= 0] for name, column in dataset.rows.items()
    }
    return replace(dataset, groups=groups, rows=rows | {"owner": owner[owner >= 0]})


def to_positions(dataset: Dataset) -> dict[str, Array]:
    """Positions of the clients' rows in a published data set, so that a run keeps them instead of pixels.

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


def read(
    path: Path,
    layout: Layout | None = None,
    test_share: float = 0.25,
    task: user_tables.Task = "regression",
    last: Span | None = None,
    check: Callable[[user_tables.Table], None] | None = None,
) -> Dataset:
    """Read a data set: an .npz of `data_gen`, or a user's table.

    Args:
        path: .npz, .csv or .parquet.
        layout: roles of the table's columns, and the features that are made of them; rows are sorted by its time within
            clients, and the order of the file is taken for that of time where it has none.
        test_share: share of each client's last rows, of two or more at least one, held out when the table has no
            `split` column.
        task: "classification" when the table's targets are labels 0..C-1, of as many classes C as the layout says or,
            where it does not, with C - 1 the largest; an .npz says itself what it holds.
        last: how long before each client's last row its test rows begin, in place of a share.
        check: refuses rows of the table, of which it still says where they stand in the file.

    Returns:
        The data set.

    Raises:
        DataError: as `check`, `from_arrays` and `user_tables.read_table`; also when there is no such column, or all
            rows of a client that is to be cut by it have one time.
    """
    path = Path(path)
    user_tables.require_file(path)
    if path.suffix.lower() == ".npz":
        dataset = from_arrays(read_npz(path), {"source": path.name})
        if task == "classification" and dataset.classes is None:
            raise DataError(f"{path} holds no labels: array 'classes' is missing", hint="is it a regression?")
        return dataset
    layout = Layout() if layout is None else layout
    table, left = user_tables.read_rows(path, layout, task), layout.exclude_clients
    if check is not None:
        check(table)
    source = {"source": path.name} | ({"excluded": ", ".join(left)} if left else {})
    return _of_table(str(path), table, layout, (test_share, last), task, source)


def of_clients(
    clients: Mapping[str, Sequence[object]],
    test_share: float = 0.25,
    task: user_tables.Task = "regression",
    classes: int | None = None,
) -> Dataset:
    """Build a data set from the rows that a program holds of every client.

    Args:
        clients: by name (x [m, d], y [m]) or (x [m, d], y [m], test x [n, d], test y [n]), as tensors, arrays, or
            tables and columns of pandas.
        test_share: share of each client's last rows, of two or more at least one, held out where no test rows are
            given.
        task: "classification" when y holds labels 0..C-1.
        classes: C; the largest label and 1 when None.

    Returns:
        The data set, with the columns x_1 to x_d, y, and a group "existing" alone.

    Raises:
        DataError: when there is no client, one has other columns than the first, rows or labels cannot be used, or test
            rows are given of some clients alone.
    """
    rows, split = dict[str, tuple[Tensor, Tensor]](), dict[str, Tensor]()
    for name, parts in clients.items():
        if not isinstance(name, str):
            raise DataError(f"names of clients are texts, got {name!r} of type {type(name).__name__}", hint="str(name)")
        whole = [array_of(part, name) for part in parts]
        if len(whole) not in (2, 4):
            what = f"must have (x, y) or (x, y, test x, test y), got {len(whole)} parts"
            raise DataError(what, client=name, hint="a tables.Dataset can hold everything else")
        try:
            cells = [torch.as_tensor(part).detach().to("cpu", torch.float64) for part in whole]
        except (TypeError, ValueError, RuntimeError) as error:
            raise DataError(f"its rows are no numbers: {error}", client=name) from error
        for x, y in zip(cells[::2], cells[1::2], strict=True):
            if x.dim() != 2 or y.shape != x.shape[:1] or x.shape[1:] != cells[0].shape[1:]:
                raise DataError(f"must have x [m, d] and y [m], got {list(x.shape)} and {list(y.shape)}", client=name)
        rows[name] = torch.cat(cells[::2]), torch.cat(cells[1::2])
        if len(whole) == 4:
            split[name] = torch.arange(len(rows[name][1])) >= len(cells[1])
    widths = {name: x.shape[1] for name, (x, _) in rows.items()}
    first = next(iter(widths.values()), 0)
    for name, width in widths.items():
        if width != first:
            raise DataError(f"has {width} features, and the client before it {first}", client=name)
        if split and name not in split:
            raise DataError("has no test rows, and other clients have", client=name, hint="give all of them, or none")
    if not first:
        raise DataError("there is no existing client", hint="give at least one, with at least one feature")
    table = user_tables.Table(rows, tuple(f"x_{i + 1}" for i in range(first)), split or None, ())
    if task == "classification":
        for name, (_, y) in rows.items():
            if not bool(((y >= 0) & (y == y.round())).all()):
                raise DataError("y must hold labels", client=name, hint="number the classes 0, 1, 2, ...")
    check_names(list(rows))
    source = {"source": "rows of a program"}
    return _of_table("the data", table, Layout(classes=classes), (test_share, None), task, source, "rows")


def _of_table(
    where: str,
    table: user_tables.Table,
    layout: Layout,
    test: tuple[float, Span | None],
    task: user_tables.Task,
    source: Mapping[str, str],
    order: Literal["file", "rows"] = "file",
) -> Dataset:
    """Divide the rows of a table into training and test rows."""
    classes = None
    if task == "classification":
        classes = stated_or_counted(where, {name: y for name, (_, y) in table.clients.items()}, layout.classes)
    if table.split is None and not 0 < test[0] < 1:
        raise DataError(f"test_share must be between 0 and 1, got {test[0]:g}", hint="or give a column 'split'")
    held = division.divided(table, *test)
    check_leaks(table, held, layout)
    table = encoded(table, {name: ~own for name, own in held.items()}, layout)
    check_client_features(table, layout)
    groups, new = {}, set(table.new)
    for label in ("existing", "new"):
        members = [name for name in table.clients if (name in new) == (label == "new")]
        if members:
            rows = [(*table.clients[name], held[name]) for name in members]
            train, scored = ([(x[own == part], y[own == part]) for x, y, own in rows] for part in (False, True))
            groups[label] = _group(label, members, train, scored, classes=classes)
            if table.times is not None:
                cut = ([table.times[name][held[name] == part] for name in members] for part in (False, True))
                groups[label] = replace(groups[label], times=Times(*(pad_sequence(p, batch_first=True) for p in cut)))
    if "existing" not in groups:
        raise DataError(f"{where} has no existing client", hint="at least one client must take part in the training")
    if classes is not None and layout.classes is None:  # where they are stated, nothing is told of the labels
        parts = [batch for group in groups.values() for batch in (group.train, group.test)]
        trains = groups["existing"].train
        others = torch.cat([batch.y[batch.mask] for batch in parts if batch is not trains])
        check_learned(where, classes, trains.y[trains.mask], others)
    how = division.cut_of(table, layout, order, *test)
    provenance: dict[str, Any] = {**source, "cut": how, "test_rows": division.said(how)}
    if table.left_out:
        provenance["left_out"] = {name: dict(own) for name, own in table.left_out.items()}
    features, target = tuple(Column(name) for name in table.features), Column(layout.target)
    past = table.history
    return Dataset(groups, features, target, provenance, classes, time_kind=table.time_kind, history=past)
