"""Rows of a user's table as a run takes them: with the features, categories and medians of its training."""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from pacbayes_fl.data import user_tables
from pacbayes_fl.data.encoding import encoded
from pacbayes_fl.data.history import History
from pacbayes_fl.data.tables import Dataset
from pacbayes_fl.errors import DataError, caller_stacklevel, counted
from pacbayes_fl.names import meant_by
from pacbayes_fl.study.config.parts import DataPart
from pacbayes_fl.study.data import ScaledGroup
from pacbayes_fl.study.rows.scaling import bounds_of


def read(
    data: DataPart,
    schema: Dataset,
    path: Path | str,
    *,
    need_target: bool,
    default: str | None = None,
    groups: Iterable[ScaledGroup] = (),
    past: History | None = None,
    columns: tuple[Mapping[str, Sequence[object]], list[str]] | None = None,
    excluded: bool = True,
) -> user_tables.Table:
    """Read rows to predict, or to condition on.

    Args:
        data: of the run's study.
        schema: the run's columns, and its clients' past.
        path: CSV or Parquet.
        need_target: whether there must be a column of targets.
        default: owner of all rows of a table without a client column.
        groups: of the run, whose training rows' medians fill in what is missing; of any other client it is those of its
            rows with a target in the table.
        past: what is known of the clients' past, the run's own when None.
        columns: what `read_columns` gave of the file; it is read when None.
        excluded: whether rows of `data.exclude_clients` are left unread here too.

    Returns:
        The table, in the order of the file; x is NaN where a feature is missing and not filled in.

    Raises:
        DataError: as `user_tables.read_table`; or when a row's bounds of the target are not in order, or its
            label is none of the run's.
    """
    made, path, groups = [column.name for column in schema.features], Path(path), [*groups]
    medians = _medians(groups) if data.missing == "median" else {}
    columns = read_columns(data, schema, path, groups) if columns is None else columns
    if excluded and data.exclude_clients:
        columns = user_tables.without_clients(path, data.client, data.exclude_clients, columns)
    try:
        table = user_tables.read_table(
            path,
            data,
            made,
            need_target=need_target,
            default_client=default,
            task=schema.task,
            past=schema.history if past is None else past,
            read=columns,
        )
        learned = {name: ~y.isnan() for name, (_, y) in table.clients.items()}
        if table.split is not None:
            learned = {name: own & ~table.split[name] for name, own in learned.items()}
        table = encoded(table, learned, data, made, medians)
    except DataError as error:
        if error.hint is None or "data." not in error.hint:
            raise
        hint = f"mend the row or leave it out: this run keeps the [data] of its training; of another, {error.hint}"
        raise DataError(error.message, client=error.client, hint=hint) from error
    if schema.classes is not None:
        _check_known(table, schema.classes)
    bounds = bounds_of(data, made)
    for name, (x, _) in table.clients.items():
        bounds.check_rows(name, x, table.place)
    return table


def read_columns(
    data: DataPart, schema: Dataset, path: Path, groups: Iterable[ScaledGroup] = ()
) -> tuple[dict[str, list[object]], list[str]]:
    """Read a table as it stands there, with the names of a run's columns and clients also as `names.to_cell` has them.

    A forecast or a table of scores that was written for a spreadsheet is read as the table that it was made of.

    Args:
        data: of the run's study.
        schema: the run's columns, and its clients' past.
        path: CSV or Parquet.
        groups: of the run.

    Returns:
        Values by column, and where each row stands.

    Raises:
        DataError: as `user_tables.read_columns`.
    """
    columns, places = user_tables.read_columns(path)
    own = {data.column_of(column.name) for column in schema.features} | {*data.marks}
    own |= {name for name in (data.client, data.target, data.time) if name is not None}
    renamed = _meant(columns, own)
    columns = {renamed.get(name, name): values for name, values in columns.items()}
    clients = {name for group in groups for name in group.train.names}
    clients |= set() if schema.history is None else {*schema.history.clients}
    if data.client in columns and (meant := _meant(columns[data.client], clients)):
        columns[data.client] = [meant.get(cell, cell) for cell in columns[data.client]]
    return columns, places


def _meant(cells: Iterable[object], known: Collection[str]) -> dict[object, str]:
    """Find which cells are those of a known name that is not there itself."""
    there = {*cells}
    return {cell: name for cell, name in meant_by(there, known).items() if name not in there}


def _check_known(table: user_tables.Table, classes: int) -> None:
    """Refuse a label that is none of the run's, by its place in the file."""
    for name, (_, y) in table.clients.items():
        for row in (y >= classes).nonzero().flatten().tolist():  # NaN is at least nothing
            what = f"{table.place(name, row)}: label {y[row]:g} is none of the {classes} classes 0 to {classes - 1}"
            hint = "leave the row out, or train a run on rows of that class too"
            raise DataError(f"{what} that the run knows", client=name, hint=hint)


_LAGS: Final = "; a lag needs the value that long before, in this table or in the rows that the run has"


def with_lags(said: str) -> str:
    """Add to a message what values a lag or a rolling mean needs, where it names one.

    Args:
        said: such as "2 rows lack a value: lag:24h (2 rows)".

    Returns:
        The message.
    """
    return said + (_LAGS if "lag:" in said or "roll:" in said else "")


def _medians(groups: Iterable[ScaledGroup]) -> dict[str, Tensor]:
    """Give the medians of clients' training rows: those of before anything was filled in, which these do not move."""
    return {
        name: group.raw.train.x[k][group.raw.train.mask[k]].cpu().double().quantile(0.5, 0)
        for group in groups
        for k, name in enumerate(group.raw.train.names)
        if bool(group.raw.train.mask[k].any())
    }


def gap_free(table: user_tables.Table) -> dict[str, Tensor]:
    """Find the rows that lack no feature.

    Args:
        table: as read.

    Returns:
        bool [m] by client.
    """
    return {name: ~table.gaps(name).any(1) for name in table.clients}


def without_gaps(table: user_tables.Table, client: str) -> user_tables.Table:
    """Leave out a client's rows that lack a feature, as rows to learn from, and warn of them.

    Args:
        table: as read.
        client: its name.

    Returns:
        The table without them.
    """
    whole = gap_free(table)
    if bool(whole[client].all()):
        return table
    gaps = torch.where(~whole[client])[0]
    what = f"{len(gaps)} of {len(whole[client])} later rows of {client} lack a value and are left out"
    warnings.warn(f"{what}: {lacks(table, client, gaps)}", stacklevel=caller_stacklevel())
    return table.select({name: own if name == client else own | True for name, own in whole.items()})


def lacks(table: user_tables.Table, client: str, rows: Tensor) -> str:
    """Say what rows of a client lack.

    Args:
        table: as read.
        client: its name.
        rows: of it [n], each with a gap.

    Returns:
        Such as "lag:24h (5 rows), cloud (1 row)".
    """
    first = table.gaps(client)[rows].int().argmax(1)
    columns = ("a clear time", *table.features)
    counts = [(columns[j], int((first == j).sum())) for j in first.unique().tolist()]
    return ", ".join(f"{name} ({counted(count, 'row')})" for name, count in counts)


def say_gaps(table: user_tables.Table, client: str, ask: Tensor) -> None:
    """Warn of a client's rows that lack a feature: those to learn from are left out, those to predict stay blank.

    Args:
        table: as read.
        client: its name.
        ask: its rows to predict, bool [m].
    """
    gaps = ~gap_free(table)[client]
    for rows, what in ((~ask, "to learn from lack a value and are left out"), (ask, "to predict lack a value: blank")):
        bad = torch.where(gaps & rows)[0]
        if len(bad):
            said = f"{len(bad)} of {int(rows.sum())} rows of {client} {what}"
            warnings.warn(with_lags(f"{said}: {lacks(table, client, bad)}"), stacklevel=caller_stacklevel())


def require_all(table: user_tables.Table, client: str, ask: Tensor) -> None:
    """Refuse rows to predict that lack a feature.

    Args:
        table: as read.
        client: its name.
        ask: its rows to predict, bool [m].

    Raises:
        DataError: saying how many there are, and what they lack.
    """
    bad = torch.where(ask & ~gap_free(table)[client])[0]
    if len(bad):
        what = f"{len(bad)} of its {int(ask.sum())} rows to predict lack a value: {lacks(table, client, bad)}"
        hint = "fill them in, or leave these rows out; a forecast of a whole table leaves such predictions blank"
        raise DataError(with_lags(what), client=client, hint=hint)


def say_corrected(table: user_tables.Table, client: str, learned: Sequence[float | None], path: Path | str) -> None:
    """Warn of rows that come with another target than a client has learned at their times.

    Args:
        table: with the rows of the client.
        client: its name.
        learned: the target at the time of each of these rows [m]; None where it has learned none.
        path: of the table.

    Warns:
        UserWarning: saying how many there are, and where the first one stands.
    """
    now = table.clients[client][1].tolist()
    pairs = enumerate(zip(learned, now, strict=True))
    other = [at for at, (one, y) in pairs if one is not None and not math.isclose(one, y, rel_tol=1e-6)]
    if other:
        what = f"{client}: {counted(len(other), 'row')} of {path}, the first at {table.place(client, other[0])}"
        text = "another target than was learned at that time: left out, as what was learned stays"
        warnings.warn(f"{what}, with {text}", stacklevel=caller_stacklevel())
