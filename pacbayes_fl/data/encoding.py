"""The last step from a user's table to rows: what depends on which rows are for learning.

Categories become columns of 0 and 1, and missing values medians, by training rows alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from pacbayes_fl.data.layout import Layout
from pacbayes_fl.data.user_tables import Table
from pacbayes_fl.errors import DataError, caller_stacklevel, listed
from pacbayes_fl.names import meant_by


def encoded(
    table: Table,
    learned: Mapping[str, Tensor],
    layout: Layout,
    made: Sequence[str] | None = None,
    medians: Mapping[str, Tensor] | None = None,
) -> Table:
    """Turn categories into columns, and fill missing values in where the layout says so.

    Args:
        table: as read, with words in place of categories.
        learned: which rows of every client are for learning, bool [m].
        layout: has the categories where they are given.
        made: names of the columns of x of a run, whose categories count; None before there is one.
        medians: of the columns of x of a run, by client [d]; of others those of the `learned` rows.

    Returns:
        The table with the columns of x as models take them; NaN only where a value is missing and not filled in.

    Raises:
        DataError: when a client has no value of a column that is to be filled in, or a column is named as one that is
            made of the words of another.

    Warns:
        UserWarning: of words that are no category of the federation.
    """
    width, names = len(table.features), list[str]()
    for feature in table.features:  # a run finds the columns of its features again by these names
        if (of := layout.column_of(feature)) != feature:
            what = f"column {feature!r} has a name as the columns have that are made of the words of {of!r}"
            raise DataError(what, hint=f"rename it without '=', or leave it or {of!r} out of data.features")
    parts: dict[str, list[Tensor]] = {name: [] for name in table.clients}
    for j, feature in enumerate(table.features):
        if feature not in table.words:
            names.append(feature)
            for client, (x, _) in table.clients.items():
                parts[client].append(x[:, j : j + 1])
            continue
        known = _categories(table, learned, layout, j, made)
        names += [f"{feature}={word}" for word in known]
        words, unknown = table.words[feature], dict[str, list[str]]()
        if made is not None:  # a forecast that was written for a spreadsheet has the run's words as cells
            meant = meant_by(words, known)
            words = tuple(meant.get(word, word) for word in words)
        column = torch.tensor([known.index(word) if word in known else -1 for word in words], dtype=torch.int64)
        for client, (x, _) in table.clients.items():
            there = ~x[:, j].isnan()
            at = column[x[there, j].long()] if len(words) else torch.empty(0, dtype=torch.int64)
            ones = torch.zeros(len(x), len(known), dtype=torch.float64)
            ones[there] = torch.nn.functional.one_hot(at + 1, len(known) + 1)[:, 1:].double()
            if layout.missing != "median":
                ones[~there] = torch.nan
            parts[client].append(ones)
            for word in sorted({words[int(k)] for k in x[there, j][at < 0].unique().tolist()}):
                unknown.setdefault(word, []).append(client)
        _say_unknown(feature, unknown)
    clients = {name: (torch.cat(parts[name], 1) if width else x, y) for name, (x, y) in table.clients.items()}
    if layout.missing == "median":
        clients = {
            name: (_filled(name, x, learned[name], names, None if medians is None else medians.get(name)), y)
            for name, (x, y) in clients.items()
        }
    return table._replace(clients=clients, features=tuple(names), words={})


def check_client_features(table: Table, layout: Layout) -> None:
    """Refuse features that are said to tell clients apart and vary inside one.

    Args:
        table: as `encoded` gives it.
        layout: has their names.

    Raises:
        DataError: naming the client, the feature and two of its values.
    """
    for j, name in enumerate(table.features):
        column = layout.column_of(name)
        for client, (x, _) in table.clients.items() if column in layout.client_features else ():
            values = x[:, j].unique()
            if len(values) > 1:
                two = "it varies" if column in layout.categorical else f"{float(values[0]):g} and {float(values[-1]):g}"
                what = f"column {column!r} of data.client_features must be constant inside a client, got {two}"
                raise DataError(what, client=client, hint="leave it to data.features; data.column_scale scales it")


def _categories(
    table: Table, learned: Mapping[str, Tensor], layout: Layout, j: int, made: Sequence[str] | None
) -> list[str]:
    """Find the categories of a column: as given, of a run, or of the training rows of existing clients."""
    feature = table.features[j]
    if feature in layout.categories:
        return [*map(str, layout.categories[feature])]
    if made is not None:
        return [name.removeprefix(f"{feature}=") for name in made if layout.column_of(name) == feature]
    rows = [x[learned[name], j] for name, (x, _) in table.clients.items() if name not in table.new]
    seen = torch.cat(rows)
    return [table.words[feature][int(k)] for k in seen[~seen.isnan()].unique().tolist()]


def _say_unknown(feature: str, unknown: Mapping[str, Sequence[str]]) -> None:
    """Warn of words that are no category."""
    if unknown:
        said = "; ".join(f"{word!r} of {listed(clients)}" for word, clients in list(unknown.items())[:5])
        what = f"column {feature!r}: no training row of the federation has {said}"
        warnings.warn(f"{what}: a category of none, 0 in all of its columns", stacklevel=caller_stacklevel())


def _filled(client: str, x: Tensor, learned: Tensor, names: Sequence[str], medians: Tensor | None) -> Tensor:
    """Fill in the medians of a client's own training rows."""
    gaps = x.isnan()
    if not bool(gaps.any()):
        return x
    if medians is None:
        own = x[learned]
        medians = own.nanquantile(0.5, 0) if len(own) else x.new_full((x.shape[1],), torch.nan)
    unknown = gaps.any(0) & medians.isnan()
    if bool(unknown.any()):
        name = names[int(unknown.nonzero()[0])]
        what = f"column {name!r} has no value in its training rows, so that there is no median to fill in"
        raise DataError(what, client=client, hint="data.missing = 'drop'; or leave the column or the client out")
    return torch.where(gaps, medians, x)
