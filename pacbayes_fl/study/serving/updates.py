"""Rows that came after a run's training: `update` adds them to its folder, and all predictions learn from them.

An update is one more file of the folder, written as a whole, and no other file changes. Scores and certificates of the
run therefore stay those of its models before, also where later rows are rows of a bound, from which predictions learn.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import safetensors.torch
import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.user_tables import Table
from pacbayes_fl.errors import DataError, ShapeError, StudyError, caller_stacklevel, kinds_checked, listed
from pacbayes_fl.federation.client_states import Kept
from pacbayes_fl.federation.lock import RunLock
from pacbayes_fl.results import updates
from pacbayes_fl.results.manifest import put
from pacbayes_fl.study.evaluate.regression import FAR, distance
from pacbayes_fl.study.run import Trained
from pacbayes_fl.study.serving.arrivals import (
    Count,
    NewRows,
    extended,
    members_of,
    new_rows,
    read,
    taken,
    with_rows,
)
from pacbayes_fl.study.serving.release import served


@dataclass(frozen=True)
class Update:
    """What a table of later rows brought.

    Args:
        number: of the update in its run folder, from 1; None where no row was new, and nothing is written.
        found: rows by client.
    """

    number: int | None
    found: Mapping[str, Count]


class _Saved(NamedTuple):
    """An update as its file has it.

    Args:
        number: from 1.
        round: of the models that learned.
        rows: of every client that had new ones.
        stateful: clients whose states follow, in their order.
        state: what `personalise` is given of them from then on, flat names with leaves [k, *].
        past: what lags of later rows are made of, as `History.clients`.
    """

    number: int
    round: int
    rows: Mapping[str, NewRows]
    stateful: Sequence[str]
    state: Mapping[str, Tensor]
    past: Mapping[str, tuple[Tensor, Tensor]]


@kinds_checked
def update(trained: Trained, path: Path | str, clients: Sequence[str] = ()) -> Update:
    r"""Let clients of a run learn from rows that came after its training, and keep these in its folder.

    Rows that a client has learned from already are counted and left out; see `study.serving.arrivals.new_rows`.
    Gaussian processes condition on old and new rows under the same priors, in the units of the training; variational
    posteriors are filtered: q' = argmin E_q[-ln p(new rows)] + max(zeta, 1) KL(q || q before). Nothing is sent to
    anybody.
    Shapes of errors and conformal intervals take a client's own leave-one-out residuals of all its rows, and the
    federation's as the training left them.

    Args:
        trained: as `open_run` gives it.
        path: CSV or Parquet with the client column, the run's features and the target, or .npz of a run on images;
            without a client column all rows are those of the one client that is named.
        clients: whose rows are taken; all of the table when empty.

    Returns:
        What came; later calls of `predict`, `forecast` and `score` of this run use it.

    Raises:
        StudyError: when the run is in no folder or keeps no rows, or its method does not learn from later rows.
        DataError: when a client is not known, or rows cannot be used.
        CheckpointError: when the folder is in use, or cannot be written.

    Example:
        >>> import pacbayes_fl as fl
        >>> study = fl.Study.from_toml("polynomial", ["federation.rounds=2", "method.particles=2"])
        >>> _ = fl.run(study, "updated_run")
        >>> _ = open("december.csv", "w").write("client,x,y\npoly_00,0.1,0.3\npoly_00,0.2,0.1\n")
        >>> trained = fl.open_run("updated_run")
        >>> fl.update(trained, "december.csv").found
        {'poly_00': Count(new=2, repeats=0, twins=0)}
        >>> fl.update(trained, "december.csv").found
        {'poly_00': Count(new=0, repeats=2, twins=0)}
    """
    if trained.folder is None:
        raise StudyError("an update is kept in the run's folder, and this run has none", hint="open_run")
    if trained.study.report.keep == "no-rows":
        what = f"{trained.folder} keeps no rows (report.keep = 'no-rows'), and an update is made of rows"
        raise StudyError(what, hint="predict --later takes them at every call")
    with RunLock(trained.folder):
        number = len(updates.paths(trained.folder)) + 1
        now = updated(trained)
        known = served(now)
        table = read(known, path, True, clients[0] if len(clients) == 1 else None, now.groups.values())
        clients = taken(now, path, table.clients, clients)
        found: dict[str, Count] = {}
        saved = _Saved(number, now.state.round, {}, (), {}, _past(table, clients))
        for group, scaled in now.groups.items():
            asked = [name for name in scaled.train.names if name in clients]
            if asked and scaled.raw.times is not None and table.times is None:
                what = f"{path} has no column {known.study.data.time!r}, which tells rows apart"
                raise DataError(what, client=asked[0], hint="give every row its time")
            every = {name: new_rows(known, members_of(now, group, [name])[0], table, path) for name in asked}
            found |= {name: one.found for name, one in every.items()}
            if rows := {name: one for name, one in every.items() if one.found.new}:
                _say_far(now, group, rows)
                part, state = members_of(now, group, [*rows])
                _, after = extended(known, part, state, rows, number)
                saved = saved._replace(rows={**saved.rows, **rows})
                if group == "existing":
                    flat = tensors.leaves(Kept.of(after.kept, len(rows)).together())
                    saved = saved._replace(stateful=tuple(rows), state=flat)
        if saved.rows:
            put(trained.folder, {updates.name_of(number): _content(saved)}, last=True)
    return Update(number if saved.rows else None, found)


def _say_far(trained: Trained, group: str, rows: Mapping[str, NewRows]) -> None:
    """Warn of targets that are as far from those that their client has learned from as ones in another unit."""
    train = trained.groups[group].raw.train
    if not train.y.is_floating_point():
        return
    own = {name: y[mask] for name, y, mask in zip(train.names, train.y, train.mask, strict=True) if name in rows}
    far = {name: distance(one.y, own[name].to(one.y.device)) for name, one in rows.items()}
    if those := [name for name, away in far.items() if away > FAR]:
        what = (
            f"later targets of {listed(those)} are up to {max(far.values()):.2g} standard deviations of their own "
            "targets away from these: all later predictions learn from them"
        )
        hint = "in another unit? nothing takes an update back but a copy of the folder from before"
        warnings.warn(f"{what} ({hint})", stacklevel=caller_stacklevel())


def updated(trained: Trained) -> Trained:
    """Give a run as its updates have left it: with all rows that clients have learned from, and their states.

    Certificates and scores of the training are not made of it, but of the run itself.

    Args:
        trained: as `open_run` gives it.

    Returns:
        The run with later rows behind the training rows; itself without any.

    Raises:
        DataError: when an update was altered or lost.
    """
    for path in updates.paths(trained.folder) if trained.folder is not None else ():
        trained = _with(trained, _read(path))
    return trained


def rows_since(trained: Trained) -> dict[str, ClientBatch]:
    """Collect the rows of all updates, which the training and its scores have not seen.

    Args:
        trained: as `open_run` gives it.

    Returns:
        By group, those of its clients that have some, raw [k, N, *feature], in the data's own units.

    Raises:
        DataError: when an update was altered or lost.
    """
    saved = [_read(path) for path in updates.paths(trained.folder)] if trained.folder is not None else []
    result = {}
    for name, group in trained.groups.items():
        every = {client: [one.rows[client] for one in saved if client in one.rows] for client in group.train.names}
        at = [k for k, client in enumerate(group.train.names) if every[client]]
        if at:
            names, ids = [group.train.names[k] for k in at], [group.train.ids[k] for k in at]
            rows = [(torch.cat([one.x for one in every[i]]), torch.cat([one.y for one in every[i]])) for i in names]
            result[name] = ClientBatch.stack(rows, names, ids)
    return result


def _with(trained: Trained, saved: _Saved) -> Trained:
    """Let one update follow; where the run has gone on since, its clients learn again from where they are."""
    groups, state, dataset = {**trained.groups}, trained.state, trained.dataset
    if dataset.history is not None:
        dataset = replace(dataset, history=dataset.history.extended(dataset.history._replace(clients=saved.past)))
    for name, group in trained.groups.items():
        members = [client for client in group.train.names if client in saved.rows]
        if not members:
            continue
        rows = {client: saved.rows[client] for client in members}
        groups[name] = with_rows(group, rows)
        if name != "existing":
            continue
        kept, at = Kept.of(state.kept, group.train.clients), [group.train.names.index(client) for client in members]
        like = kept.select(at)
        if saved.round == state.round and tuple(members) == tuple(saved.stateful):
            device = group.train.x.device
            try:
                block = tensors.unleaves(like, {one: leaf.to(device) for one, leaf in saved.state.items()})
            except ShapeError as error:
                raise DataError(f"update {saved.number} is of another method: {error}", hint=updates.COPY) from error
        else:
            part, before = members_of(trained, name, members)
            _, after = extended(served(trained), part, before, rows, saved.number)
            block = Kept.of(after.kept, len(members)).together()
        state = state._replace(kept=kept.after([(at, block)]))
    return replace(trained, groups=groups, state=state, dataset=dataset)


def _past(table: Table, clients: Sequence[str]) -> Mapping[str, tuple[Tensor, Tensor]]:
    """Give what lags of rows after those of a table are made of."""
    known = {} if table.history is None else table.history.clients
    return {name: own for name, own in known.items() if name in clients}


def _content(saved: _Saved) -> bytes:
    """Serialise an update."""
    rows, sizes = list(saved.rows.values()), [one.found.new for one in saved.rows.values()]
    flat = {"x": torch.cat([one.x for one in rows]), "y": torch.cat([one.y for one in rows])}
    times = [one.times for one in rows if one.times is not None]
    if len(times) == len(rows):
        flat["time"] = torch.cat(times)
    if saved.past:
        flat |= {"past.time": torch.cat([one for one, _ in saved.past.values()])}
        flat |= {"past.values": torch.cat([one for _, one in saved.past.values()])}
    flat |= {f"state.{name}": leaf for name, leaf in saved.state.items()}
    about = {"round": saved.round, "clients": [*saved.rows], "rows": sizes, "stateful": [*saved.stateful]}
    about["past"] = {name: len(times) for name, (times, _) in saved.past.items()}
    every = {name: leaf.detach().cpu().contiguous().clone() for name, leaf in flat.items()}
    return safetensors.torch.save(every, {updates.KEY: json.dumps(about)})


def _read(path: Path) -> _Saved:
    """Read an update."""
    about = updates.about(path)
    flat = safetensors.torch.load(path.read_bytes())
    sizes = list(about.rows)
    x, y = flat["x"].split(sizes), flat["y"].split(sizes)
    times: Sequence[Tensor | None] = flat["time"].split(sizes) if "time" in flat else [None] * len(sizes)
    each = zip(about.clients, x, y, times, sizes, strict=True)
    rows = {name: NewRows(own_x, own_y, when, Count(size)) for name, own_x, own_y, when, size in each}
    state = {name.removeprefix("state."): leaf for name, leaf in flat.items() if name.startswith("state.")}
    past = {}
    if about.past:
        cut = [flat[f"past.{name}"].split([*about.past.values()]) for name in ("time", "values")]
        past = dict(zip(about.past, zip(*cut, strict=True), strict=True))
    return _Saved(int(path.stem), about.round, rows, tuple(about.stateful), state, past)
