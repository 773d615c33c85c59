"""Rows that come after a run's training: which of a table's are new to their clients, whoever asks."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from pacbayes_fl import settings, tensors
from pacbayes_fl.data import twins, user_images, user_tables
from pacbayes_fl.data.archives import Array
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.history import History
from pacbayes_fl.data.image_files import Look
from pacbayes_fl.errors import DataError, caller_stacklevel, listed
from pacbayes_fl.federation import personalisation
from pacbayes_fl.federation.client_states import Kept
from pacbayes_fl.federation.federation_state import FederationState
from pacbayes_fl.names import apart
from pacbayes_fl.noise import Noise
from pacbayes_fl.study.config import sources
from pacbayes_fl.study.config.parts import DataPart
from pacbayes_fl.study.data import ScaledGroup, check_targets
from pacbayes_fl.study.evaluate.report import state_of
from pacbayes_fl.study.method_names import as_named
from pacbayes_fl.study.run import Trained
from pacbayes_fl.study.serving import user_rows
from pacbayes_fl.study.serving.release import Served

_STREAM: Final = 2**31
"""Round of the noise of the first batch of later rows, plus its number: no run gets there."""


class Count(NamedTuple):
    """What a table of later rows holds of a client.

    Args:
        new: rows that it has not learned from.
        repeats: rows that it has, or that stand in the table before, equal in the model's units.
        twins: rows that differ from one of these by no more than `report.certify.twins` of a column's spread.
    """

    new: int
    repeats: int = 0
    twins: int = 0


class NewRows(NamedTuple):
    """Rows of one client that it has not learned from, in the data's own units.

    Args:
        x: [m, *feature].
        y: [m].
        times: [m]; None where they are not known.
        found: in the table.
    """

    x: Tensor
    y: Tensor
    times: Tensor | None
    found: Count


def read(
    known: Served,
    path: Path | str,
    need_target: bool,
    default: str | None,
    groups: Iterable[ScaledGroup] = (),
    past: History | None = None,
    excluded: bool = True,
) -> user_tables.Table:
    """Read a table of a run's columns, or images.

    Args:
        known: the run.
        path: CSV or Parquet, or of a run on images a folder or .npz.
        need_target: whether it must have the target.
        default: owner of all rows of a table without a client column.
        groups: of the run, whose training rows' medians fill in what is missing, where the study says so.
        past: what is known of the clients' past, the run's own rows when None.
        excluded: whether rows of `data.exclude_clients` are left unread here too.

    Returns:
        The rows by client.

    Raises:
        DataError: when it cannot be read, or a column is missing.
    """
    if known.schema.feature_shape:
        return user_images.by_client(*images_of(known, path, default, need_target))
    own = known.study.data, known.schema, path
    return user_rows.read(*own, need_target=need_target, default=default, groups=groups, past=past, excluded=excluded)


def past_of(known: Served, later: Path | str | None, default: str | None = None) -> History | None:
    """Give what is known of the clients' past, also by rows that came later.

    Args:
        known: the run.
        later: a table of these rows, None for none.
        default: owner of all of them where the table names no client.

    Returns:
        The history, None where no feature is made of it.

    Raises:
        DataError: as `read`.
    """
    own = known.schema.history
    if own is None or later is None:
        return own
    return own.extended(read(known, later, need_target=True, default=default).history)


def images_of(
    known: Served, path: Path | str, default: str | None, labelled: bool = True
) -> tuple[user_images.Brought, Tensor]:
    """Read images as a run sees them.

    Args:
        known: the run.
        path: a folder or an .npz.
        default: owner of all images where nothing else says it.
        labelled: whether the classes that folders name, or the labels of the .npz, count.

    Returns:
        The R images in the order of the file, and their labels [R], NaN where they have none.

    Raises:
        DataError: naming the file or the row that cannot be used.
    """
    shape = known.schema.feature_shape
    brought = user_images.to_predict(Path(path), shape, default, _look_of(known.study.data, shape))
    names = known.schema.provenance.get("class_names", ())
    return brought, user_images.numbered(brought if labelled else brought._replace(label=[""] * len(brought.x)), names)


def _look_of(data: DataPart, shape: tuple[int, ...]) -> Look:
    """What a run brings image files to: what it brought those to that it learned from."""
    size, colour = (data.options.get(name) not in (None, settings.NONE) for name in ("size", "colour"))
    source = sources.find(data.source)
    colour = colour or (source is not None and not source.own)  # whose images were no files, and have no such option
    return Look(shape[-1] if size else None, ("grey" if shape[0] == 1 else "rgb") if colour else None)


def pad(known: Served, client: str, x: Tensor, y: Tensor) -> ClientBatch:
    """Check the rows of one client as those of the run's own were checked.

    Args:
        known: the run.
        client: its name.
        x: rows [m, *feature], in the data's own units.
        y: targets [m].

    Returns:
        The batch of that client.

    Raises:
        DataError: when a value cannot be used.
    """
    return ClientBatch.pad([(x, y)], [client], dtype=known.raw, classes=known.schema.classes, allow_empty=True)


def new_rows(known: Served, group: ScaledGroup, table: user_tables.Table, path: Path | str) -> NewRows:
    """Find the rows of a table that its client has not learned from.

    Where times are known, and each row has one of its own, it says whether a row is known: what is made of other rows
    may have changed since. Else rows are compared in the model's units, and by their times: equal rows of different
    times are different rows. With `data.duplicate_rows` = "refuse" a row counts once, with "allow" as often as the
    table has it more often than the client.

    Args:
        known: the run.
        group: the one client, with all rows that it has learned from.
        table: rows with targets, as `read` gives them.
        path: of the table.

    Returns:
        The new rows, in the order of the table.

    Raises:
        DataError: when targets are missing or out of bounds, or times of another kind.

    Warns:
        UserWarning: of known times with other targets than were learned.
    """
    client = group.train.names[0]
    table = user_rows.without_gaps(table, client)
    if known.study.data.missing != "refuse":
        table = table.select({name: ~own_y.isnan() for name, (_, own_y) in table.clients.items()})
    x, y = table.clients[client]
    if bool((blank := y.isnan()).any()):
        place = table.place(client, int(blank.nonzero()[0]))
        what = f"{path} {place}: column {known.study.data.target!r} has no value, from which nothing can be learned"
        raise DataError(what, client=client, hint="fill it in, or leave the row out")
    more = pad(known, client, x, y)
    check_targets(more, known.shared, table.place)
    times = None if table.times is None else table.times[client]
    exact, near, by_time = _numbers(known, group, more, times, table.time_kind, path)
    once, had = known.study.data.duplicate_rows == "refuse", len(exact) - len(y)
    fresh = torch.tensor(_unseen(near, had, once), dtype=torch.bool)
    if by_time:
        learned = dict(zip(near[:had].tolist(), group.raw.train.y[0, :had].tolist(), strict=True))
        user_rows.say_corrected(table, client, [learned.get(number) for number in near[had:].tolist()], path)
    seen = set(exact[:had].tolist())
    repeats = 0
    for number, is_new in zip(exact[had:].tolist(), fresh.tolist(), strict=True):
        repeats += not is_new and number in seen
        seen.add(number)
    count = Count(int(fresh.sum()), repeats, int((~fresh).sum()) - repeats)
    rows = more.x[0][more.mask[0]], more.y[0][more.mask[0]]
    return NewRows(rows[0][fresh], rows[1][fresh], None if times is None else times[fresh], count)


def learned_from(known: Served, group: ScaledGroup, more: ClientBatch, times: Tensor | None, kind: str) -> Tensor:
    """Say which rows a client has learned from, by the rules of `new_rows`.

    Args:
        known: the run.
        group: the one client, with all rows that it has learned from.
        more: rows [1, N] of the same client, in the data's own units.
        times: of these rows [m]; None where they are not known.
        kind: of these times.

    Returns:
        bool [m].

    Raises:
        DataError: when times are of another kind.
    """
    _, near, _ = _numbers(known, group, more, times, kind, "the table")
    had = len(near) - int(more.mask.sum())
    return torch.from_numpy(np.isin(near[had:], near[:had]))


def _numbers(
    known: Served, group: ScaledGroup, more: ClientBatch, times: Tensor | None, kind: str, path: Path | str
) -> tuple[Array, Array, bool]:
    """Number a client's rows and, behind them, others: equal rows alike, and near-twins, or if so said equal times."""
    own = group.raw.times
    if own is not None and times is not None and known.schema.time_kind not in ("", kind):  # no row would be known
        what = f"{path}: its times are of the kind {kind!r}, and those of the run of {known.schema.time_kind!r}"
        raise DataError(what, client=group.train.names[0], hint="write all times in one way")
    (old, _), (new, _) = twins.stacked(group.train), twins.stacked(group.bring(more.to(group.train.x.device)))
    rows = np.concatenate((old, new)).astype(np.float64)
    width = known.study.report.certify.twins * twins.spread([group.train])
    if own is not None and times is not None:
        when = torch.cat((own.train[0][: len(old)].double(), times.double())).numpy()
        rows, width = np.column_stack((rows, when)), np.append(width, 0.0)
        if all(len(np.unique(part)) == len(part) for part in (when[: len(old)], when[len(old) :])):
            return twins.clusters(rows, np.zeros_like(width)), np.unique(when, return_inverse=True)[1], True
    return twins.clusters(rows, np.zeros_like(width)), twins.clusters(rows, width), False


def _unseen(numbers: Array, had: int, once: bool) -> list[bool]:
    """Mark the rows behind the first `had` that these do not account for."""
    left, result = Counter(numbers[:had].tolist()), []
    for number in numbers[had:].tolist():
        result.append(left[number] <= 0)
        left[number] += 1 if once else -1
    return result


def extended(
    known: Served, group: ScaledGroup, state: FederationState, rows: Mapping[str, NewRows], number: int = 0
) -> tuple[ScaledGroup, FederationState]:
    """Let clients learn from later rows: those that condition get them, those that keep a posterior filter it.

    Args:
        known: the run.
        group: the clients, each of which has new rows.
        state: in which they personalise.
        rows: of these clients.
        number: of the batch, for its random draws.

    Returns:
        The clients with all their rows, in the units that their training rows gave them, and their new states.

    Raises:
        StudyError: when the method does not learn from later rows.
    """
    _, brought = _brought(group, rows)
    plan, kept = known.study.plan, Kept.of(state.kept, group.train.clients)

    def work(index: Tensor, message: object, own: object, seen: ClientBatch, noise: Noise) -> object:
        fresh = known.method.is_new(own)
        if fresh is not None and bool(fresh.all()):
            return own  # `personalise` fits them to all rows
        drawn = Noise(plan.seed, _STREAM + number, noise.ids, noise.device, plan.noise)
        with as_named(known.study):
            new = known.method.absorb(message, own, seen, brought.select(index.cpu()).trim(), drawn)
        return new if fresh is None else tensors.where(fresh, own, new)

    more = [int(m) for m in brought.size.tolist()]
    calls = personalisation.personal_calls(known.method, state, group.train, plan, work, more)
    written = [(index.tolist(), block) for index, block in calls]
    return with_rows(group, rows), state._replace(kept=kept.after(written))


def with_rows(group: ScaledGroup, rows: Mapping[str, NewRows]) -> ScaledGroup:
    """Put later rows behind those that clients have learned from.

    Args:
        group: K clients.
        rows: of some of them.

    Returns:
        The clients with all their rows, in the units that their training rows gave them.
    """
    later, brought = _brought(group, rows)
    times = group.raw.times
    if times is not None and all(one.times is not None for one in rows.values()):
        none = times.train.new_zeros(0)
        more = [rows[name].times if name in rows else none for name in group.train.names]
        every = zip(times.train, group.raw.train.mask.cpu(), more, strict=True)
        own = [torch.cat((one[real], none if new is None else new.to(one))) for one, real, new in every]
        times = times._replace(train=pad_sequence(own, batch_first=True))
    raw = replace(group.raw, train=group.raw.train.extend(later), times=times)
    return replace(group, train=group.train.extend(brought), raw=raw)


def _brought(group: ScaledGroup, rows: Mapping[str, NewRows]) -> tuple[ClientBatch, ClientBatch]:
    """Rows of those clients of a group that have some, in the data's own units and in the method's."""
    at = [k for k, name in enumerate(group.train.names) if name in rows]
    part = group.select(torch.tensor(at))
    names, ids = part.train.names, part.train.ids
    later = ClientBatch.stack([(rows[name].x, rows[name].y) for name in names], names, ids).to(part.train.x.device)
    return later, part.bring(later)


def members_of(trained: Trained, group: str, names: Sequence[str]) -> tuple[ScaledGroup, FederationState]:
    """Take some clients of a group, and the state in which they personalise.

    Args:
        trained: the run.
        group: "existing" or "new".
        names: of its clients.

    Returns:
        These clients in that order, and their state.
    """
    scaled = trained.groups[group]
    place = {name: k for k, name in enumerate(scaled.train.names)}
    at = [place[name] for name in names]
    part = scaled.select(torch.tensor(at))
    state = state_of(trained.method, trained.state, group, part)
    if group == "existing":
        state = state._replace(kept=Kept.of(trained.state.kept, scaled.train.clients).subset(at))
    return part, state


def say_repeats(client: str, count: Count) -> None:
    """Warn of rows that a client has learned from already.

    Args:
        client: its name.
        count: of its rows.
    """
    if old := count.repeats + count.twins:
        near = f" ({count.twins} but for rounding)" if count.twins else ""
        what = f"{old} of {old + count.new} later rows of {client} are training rows of its or given twice{near}"
        warnings.warn(f"{what}: each is conditioned on once", stacklevel=caller_stacklevel())


def from_table(
    known: Served, group: ScaledGroup, state: FederationState, path: Path | str
) -> tuple[ScaledGroup, FederationState]:
    """Let one client learn from those rows of a table that are new to it.

    Args:
        known: the run.
        group: the client alone.
        state: in which it personalises.
        path: of the table, with targets.

    Returns:
        The client with the new rows, and its state.

    Raises:
        DataError: when there are no rows of it, or they cannot be used.
        StudyError: when the method does not learn from later rows.

    Warns:
        UserWarning: of rows that it had already.
    """
    client = group.train.names[0]
    table = read(known, path, need_target=True, default=client, groups=[group])
    if client not in table.clients:
        raise DataError(f"{path} has no rows of it", client=client)
    rows = new_rows(known, group, table, path)
    say_repeats(client, rows.found)
    return extended(known, group, state, {client: rows}) if rows.found.new else (group, state)


def taken(trained: Trained, path: Path | str, there: Collection[str], clients: Sequence[str] = ()) -> list[str]:
    """Choose the clients whose rows of a table are taken.

    Args:
        trained: the run.
        path: of the table.
        there: clients of which it has rows.
        clients: that are asked for; all that the run knows when empty.

    Returns:
        Their names.

    Raises:
        DataError: naming a client that is asked for and that the run does not know or the table has no rows of; and the
            first of the table, where the run knows none of them.

    Warns:
        UserWarning: of clients of the table that the run does not know.
    """
    known = [name for group in trained.groups.values() for name in group.train.names]
    strange = [name for name in clients or there if name not in known]
    if strange and (clients or len(strange) == len(there)):
        hint = f"it knows {listed(known)}; join is for clients that never trained"
        raise DataError("the run does not know it", client=strange[0], hint=hint)
    if missing := [name for name in clients if name not in there]:
        raise DataError(f"{path} has no rows of it", client=missing[0])
    if strange:
        what = f"{path} has rows of clients that the run does not know, {listed(strange)}"
        hint = "nothing is done with them; join is for clients that never trained"
        warnings.warn(f"{what}: {hint}", stacklevel=caller_stacklevel())
    return [name for name in clients or there if name in known]


def named(trained: Trained, words: Sequence[str]) -> list[str]:
    """Take the names of clients apart at commas, but for a name that has some.

    Args:
        trained: the run.
        words: as they were given, such as "house_05,house_06".

    Returns:
        The names, known or not.
    """
    known = {name for group in trained.groups.values() for name in group.train.names}
    return apart(words, known)
