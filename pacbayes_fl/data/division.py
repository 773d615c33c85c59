"""Training and test rows of the clients of a user's table, both of which every client needs."""

from __future__ import annotations

from typing import Literal, TypedDict

import torch
from torch import Tensor

from pacbayes_fl import settings
from pacbayes_fl.data.layout import Layout, Span
from pacbayes_fl.data.user_tables import Table
from pacbayes_fl.errors import DataError


class Cut(TypedDict):
    """How training and test rows of a table were told apart, as the provenance of its data set has it.

    Args:
        by: "split" where a column marks the test rows; elsewhere these are the last ones of each client in the order of
            a column of "time", of the "file", which is taken for that of time, or of the "rows" of a program.
        column: that decides; None where none does.
        last: how much of each client is held out, such as "0.25" or "14 days"; None where a column marks it.
    """

    by: Literal["split", "time", "file", "rows"]
    column: str | None
    last: str | None


def cut_of(table: Table, layout: Layout, order: Literal["file", "rows"], share: float, last: Span | None) -> Cut:
    """Say how `divided` tells rows apart.

    Args:
        table: as there.
        layout: which of its columns has the times, and which the marks.
        order: whose order its rows have where they have no times.
        share: as there.
        last: as there.

    Returns:
        What a data set remembers of it.
    """
    if table.split is not None:
        return Cut(by="split", column=layout.split, last=None)
    amount = f"{share:g}" if last is None else str(last)
    if table.times is not None:
        return Cut(by="time", column=layout.time, last=amount)
    return Cut(by=order, column=None, last=amount)


def said(cut: Cut) -> str:
    """Say in words which rows are test rows.

    Args:
        cut: of a table.

    Returns:
        A phrase, such as "last 0.25 of each client by column 'when'".
    """
    how = {
        "time": f"by column {cut['column']!r}",
        "file": "in the order of the file, which was taken for that of time",
        "rows": "in the order of its rows",
    }
    return f"column {cut['column']}" if cut["by"] == "split" else f"last {cut['last']} of each client {how[cut['by']]}"


def divided(table: Table, share: float, last: Span | None = None) -> dict[str, Tensor]:
    """Mark the test rows of every client: as its table says, or the last ones, at least one and not all of two.

    Args:
        table: as read, in the order of time.
        share: of each client's rows, where neither the table nor `last` says it.
        last: how long before the client's last row its test rows begin.

    Returns:
        bool [m] by client, True on test rows.

    Raises:
        DataError: naming all clients that have no training rows, unless they are new, or no test rows.
    """
    held = {name: _held_out(table, name, share, last) for name in table.clients}
    faults = _faults(table, held, last)
    if not faults:
        return held
    (first, (what, hint)), names = next(iter(faults.items())), settings.to_value([*faults])
    if len(faults) == 1:
        raise DataError(what, client=first, hint=f"{hint}: data.exclude_clients = {names}")
    many = f"{len(faults)} clients have no training or no test samples, such as client {first!r}: {what}"
    every = len(faults) == len(table.clients)  # there is nobody whom an exclusion would leave
    raise DataError(many, hint=_of_all(table, hint) if every else f"data.exclude_clients = {names} leaves them out")


def _of_all(table: Table, hint: str) -> str:
    """Say what is done where no client has rows for both sides, of whom the first has a hint of its own."""
    if table.split is not None:
        return "the column of marks gives no client both; data.split = 'none' holds out the last rows of each"
    if all(len(y) < 2 for _, y in table.clients.values()):
        return "data.client names the column of clients, of whom each needs two rows or more"
    return hint


def lacking(table: Table, share: float, last: Span | None = None) -> list[str]:
    """Name the clients that `divided` refuses.

    Args:
        table: as there.
        share: as there.
        last: as there.

    Returns:
        Their names, in the order of the table.
    """
    return [*_faults(table, {name: _held_out(table, name, share, last) for name in table.clients}, last)]


def _faults(table: Table, held: dict[str, Tensor], last: Span | None) -> dict[str, tuple[str, str]]:
    """Find the clients of which one side has no row, and say which and what to do."""
    result, by_time = {}, table.split is None and table.times is not None
    for name, own in held.items():
        if bool(own.all()) and name not in table.new:
            if table.split is None and last is not None:
                what = f"all of its {len(own)} rows are test rows by data.test.last"
                result[name] = what, "a shorter data.test.last; or leave it out, or mark it as a new client"
            else:
                result[name] = "has no training samples", "drop it, or let it join as a new client"
        elif not bool(own.any()):
            if by_time and last is None and len(own) > 1:
                what = f"all of its {len(own)} rows have one time, so that none comes last"
                result[name] = what, "a column 'split' says which are test rows; or leave it out"
            else:
                result[name] = "has no test samples", "hold some of its rows out, or drop it"
    return result


def _held_out(table: Table, name: str, share: float, last: Span | None) -> Tensor:
    """Mark the test rows of a client, none where all rows have one time."""
    if table.split is not None:
        return table.split[name]
    rows = len(table.clients[name][1])
    if last is not None and rows:
        return _last(table, name, last)
    first = rows - min(max(round(share * rows), 1), rows - 1)
    if table.times is not None and rows > 1:  # rows of one time are on one side
        when = table.times[name]
        cuts = (when[1:] != when[:-1]).nonzero().flatten() + 1
        first = int(cuts[(cuts - first).abs().argmin()]) if len(cuts) else rows
    return torch.arange(rows) >= first


def _last(table: Table, name: str, last: Span) -> Tensor:
    """Mark the rows that come later than `last` before the last one."""
    if table.times is None:
        raise DataError("data.test.last needs times", hint="data.time names their column, data.test.share needs none")
    if last.plain != (table.time_kind == "number"):
        unit = "a number without a unit" if table.time_kind == "number" else "a length of time, such as '14 days'"
        raise DataError(f"data.test.last must be {unit}: times are of the kind {table.time_kind!r}")
    when = table.times[name]
    return when > when[-1] - last.amount
