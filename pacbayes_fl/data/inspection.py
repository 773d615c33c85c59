"""What a data set looks like before anything is run: lengths, gaps, repeats, constants, outliers, labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from pacbayes_fl.data import cells, class_labels, clock, twins
from pacbayes_fl.data.archives import Array
from pacbayes_fl.data.far_clients import far
from pacbayes_fl.data.moments import client_moments
from pacbayes_fl.data.tables import Dataset
from pacbayes_fl.errors import counted, listed

_SHOWN: Final = 5  # columns in a line
_GAP: Final = 1.5  # of a client's usual step, beyond which one is a gap
_FAR: Final = 6.0  # interquartile ranges beyond the quartiles
_TELLING: Final = 3  # different rows, from which on clients that have the same are copies
_EXACT: Final = 1e-6  # of the target's range, up to which a line gives it exactly: units are rounded
_ENOUGH: Final = 20  # rows, from which on no line gives the target of all by chance


@dataclass(frozen=True)
class Finding:
    """One thing that is worth knowing of a data set.

    Args:
        topic: "rows", "gaps", "repeats", "constants", "outliers", "labels", ...
        text: what it is, in words.
        advice: what may be done about it, with the key of a study; empty where nothing need be.
        clients: number by client that the text sums up.
    """

    topic: str
    text: str
    advice: str = ""
    clients: Mapping[str, float] = field(default_factory=dict)


class _Rows(NamedTuple):
    """All rows of one client in the order of time: x and y [m, d + 1], bool [m] on test rows, times [m]."""

    values: Array
    test: Array
    times: Array | None


def inspect(dataset: Dataset, near: float = 1e-4, allowed: bool = False, whole: Dataset | None = None) -> list[Finding]:
    """Look at a data set of numbers.

    Args:
        dataset: in its own units.
        near: share of a column's spread within clients by which near-twins differ at most (`report.certify.twins`).
        allowed: whether repeats on both sides of the split are.
        whole: the same data with rows that lack a value, whose times leave no gap; None where there are none.

    Returns:
        Findings, rows and lengths first; topics of which there is nothing to say are left out.
    """
    rows = _by_client(dataset)
    columns = [column.name for column in (*dataset.features, dataset.target)]
    found = [*_lengths(dataset, rows), *_gaps(rows if whole is None else _by_client(whole), dataset.time_kind)]
    if dataset.feature_shape:
        return found
    found += _row_names(columns, rows)
    found += [*_repeats(dataset, rows, near, allowed), *_constants(columns, rows, dataset.classes is not None)]
    if copies := same_rows(dataset):
        found.append(Finding("copied clients", *same_rows_said(copies)))
    if copied := target_copies(dataset):
        found.append(Finding("target", *target_copies_said(copied, dataset.target.name)))
    found += [*_units(dataset, columns), *_outliers(columns, rows, dataset.classes is not None)]
    return [*found, *_labels(dataset, rows)]


def same_rows(dataset: Dataset) -> tuple[tuple[str, ...], ...]:
    """Find clients that are copies of one another: their rows are the same, each as often, in any order.

    They have three different rows or more, which no client beside them has: few rows of few values agree by chance.

    Args:
        dataset: of numbers, in its own units; a row is its features and target.

    Returns:
        Names of the clients that are one, the first in order first; empty where there are none.
    """
    names, parts, owners = list[str](), list[Array](), list[Array]()
    for group in dataset.groups.values():
        rows, owner = twins.together((group.train, group.validation, group.test))
        parts.append(rows)
        owners.append(owner + len(names))
        names += group.train.names
    whole = np.concatenate(parts)
    label = twins.clusters(whole, np.zeros(whole.shape[1]))
    kinds = int(label.max()) + 1
    pairs, often = np.unique(np.concatenate(owners) * kinds + label, return_counts=True)
    who, which = np.divmod(pairs, kinds)
    holders = np.bincount(which)
    alike: dict[bytes, tuple[int, list[str]]] = {}
    for k, (begin, end) in enumerate(pairwise(np.searchsorted(who, np.arange(len(names) + 1)).tolist())):
        if end - begin >= _TELLING:
            own = which[begin:end]
            key, most = own.tobytes() + often[begin:end].tobytes(), int(holders[own].max())
            alike.setdefault(key, (most, []))[1].append(names[k])
    return tuple(tuple(same) for most, same in alike.values() if 1 < len(same) == most)


def same_rows_said(copies: Sequence[Sequence[str]]) -> tuple[str, str]:
    """Say which clients are copies, and what may be done about it.

    Args:
        copies: one or more, as `same_rows` gives them.

    Returns:
        A text and an advice.
    """
    each = "; ".join(f"{first} and {listed(others)}" for first, *others in copies[:_SHOWN])
    more = f"; and {len(copies) - _SHOWN} more" if len(copies) > _SHOWN else ""
    left = [name for _, *others in copies for name in others]
    some = "the copies" if len(left) <= _SHOWN else f"{_SHOWN} of the {len(left)} copies"
    text = f"{each}{more}: the same rows under several names, which each count as a client"
    return text, f"data.exclude_clients = {left[:_SHOWN]} leaves {some} out"


def target_copies(dataset: Dataset) -> tuple[str, ...]:
    """Find features of which the target is one and the same line in all rows: it, or it in another unit.

    Args:
        dataset: of numbers, in its own units.

    Returns:
        Names of the features; empty where there are none, or too few rows to tell.
    """
    if dataset.feature_shape:
        return ()
    parts = [twins.together((group.train, group.validation, group.test))[0] for group in dataset.groups.values()]
    rows = np.concatenate(parts)
    away = rows - rows.mean(0)
    y, spread = away[:, -1], float(np.ptp(away[:, -1]))
    if len(rows) < _ENOUGH or not spread:
        return ()
    found = []
    for column, x in zip(dataset.features, away.T, strict=False):
        size = float(np.abs(x).max())
        if size > 0:
            x = x / size  # squares of it are numbers
            if float(np.abs(y - (x @ y) / (x @ x) * x).max()) <= _EXACT * spread:
                found.append(column.name)
    return tuple(found)


def target_copies_said(names: Sequence[str], target: str) -> tuple[str, str]:
    """Say which features give the target away, and what may be done about it.

    Args:
        names: one or more, as `target_copies` gives them.
        target: its name.

    Returns:
        A text and an advice.
    """
    which = f"{listed([repr(name) for name in names])} {'gives' if len(names) == 1 else 'each give'}"
    text = f"{which} the target {target!r} of every row exactly, itself or in another unit"
    return text, "what is known only with the target is no feature: take it out, or data.features names what is used"


def _by_client(dataset: Dataset) -> dict[str, _Rows]:
    """Join every client's training, validation and test rows."""
    result = {}
    for group in dataset.groups.values():
        batches = [one for one in (group.train, group.validation, group.test) if one is not None]
        timed = group.times is not None and group.validation is None
        for k, name in enumerate(group.train.names):
            values, test, times = list[Array](), list[Array](), list[Array]()
            for batch in batches:
                mask = batch.mask[k].cpu()
                x, y = batch.x[k].cpu()[mask].flatten(1).double().numpy(), batch.y[k].cpu()[mask].double().numpy()
                values.append(np.column_stack((x, y)))
                test.append(np.full(len(y), batch is group.test))
                if timed and group.times is not None:
                    taken = group.times.test if batch is group.test else group.times.train
                    times.append(taken[k].cpu().numpy()[: len(y)])
            when = np.concatenate(times) if timed else None
            order = np.arange(sum(map(len, test))) if when is None else np.argsort(when, kind="stable")
            result[name] = _Rows(
                np.concatenate(values)[order], np.concatenate(test)[order], None if when is None else when[order]
            )
    return result


def _lengths(dataset: Dataset, rows: Mapping[str, _Rows]) -> Iterator[Finding]:
    size = {name: len(one.test) for name, one in rows.items()}
    order = sorted(size, key=lambda name: size[name])
    low, middle, high = order[0], order[(len(order) - 1) // 2], order[-1]
    new = sum(group.train.clients for label, group in dataset.groups.items() if label == "new")
    held = sum(int(one.test.sum()) for one in rows.values())
    kinds = f" ({new} of them new)" if new else ""
    text = (
        f"{counted(sum(size.values()), 'row')} of {counted(len(size), 'client')}{kinds}, {held} of them test rows; "
        f"smallest {low} {size[low]}, median {middle} {size[middle]}, largest {high} {size[high]}"
    )
    yield Finding("rows", text, "", {name: float(size[name]) for name in rows})


def _gaps(rows: Mapping[str, _Rows], kind: str) -> Iterator[Finding]:
    count, longest, plain = dict[str, float](), (0.0, "", "", ""), kind in ("number", "")
    for name, one in rows.items():
        if one.times is None or len(one.times) < 3:
            continue
        step = np.diff(one.times)
        kinds, often = np.unique(step[step > 0], return_counts=True)
        if not len(kinds):
            continue
        usual = kinds[often.argmax()]
        if number := int((step > _GAP * usual).sum()):
            count[name] = number
            at = int(step.argmax())
            if float(step[at]) > longest[0]:
                longest = float(step[at]), name, _moment(one.times[at], plain), _length(step[at], usual, plain)
    if count:
        of = listed([f"{name} {int(number)}" for name, number in _largest(count)])
        text = f"{counted(int(sum(count.values())), 'gap')} in time: {of}; the longest, {longest[3]}, of {longest[1]}"
        advice = (
            "rows before and after a gap are neighbours to models; lags across it are missing values (data.missing)"
        )
        zone = " UTC" if kind == clock.ZONED else ""
        yield Finding("gaps", f"{text} from {longest[2]}{zone} on", advice, count)


def _largest(count: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(count.items(), key=lambda one: -one[1])


def _moment(time: np.generic, plain: bool) -> str:
    """Write a time: a plain number, or microseconds since 1970."""
    return str(time.item()) if plain else str(np.datetime64(int(time), "us").astype("datetime64[s]"))


def _length(step: np.generic, usual: np.generic, plain: bool) -> str:
    """Write a length of time: how many usual steps it has, where times are plain numbers, or in a unit."""
    if plain:
        return f"{float(step) / float(usual):.3g} steps"
    seconds = int(step) / 10**6
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} seconds"


def _repeats(dataset: Dataset, rows: Mapping[str, _Rows], near: float, allowed: bool) -> Iterator[Finding]:
    """Count rows that their client has before, to the bit or nearly, and test rows that are training rows."""
    width = near * twins.spread([group.train for group in dataset.groups.values()])
    exact, close, across = dict[str, float](), dict[str, float](), dict[str, float]()
    timed = all(one.times is not None for one in rows.values())
    for name, one in rows.items():
        label, wide = twins.clusters(one.values, np.zeros_like(width)), twins.clusters(one.values, width)
        exact[name] = len(label) - len(np.unique(label))
        close[name] = len(wide) - len(np.unique(wide)) - exact[name]
        if timed and one.times is not None:
            label = twins.clusters(
                np.column_stack((one.values, one.times.astype(np.float64))), np.zeros(len(width) + 1)
            )
        across[name] = int(np.isin(label[one.test], label[~one.test]).sum())
    exact, close, across = ({name: n for name, n in one.items() if n} for one in (exact, close, across))
    if exact:
        of = listed([f"{name} {int(number)}" for name, number in _largest(exact)])
        rows_equal = counted(int(sum(exact.values())), "row")
        text = f"{rows_equal} equal to another of the client in every number, as nights: {of}"
        advice = "" if timed else "data.time = 'COLUMN' tells them apart; without it equal rows count as one row"
        yield Finding("repeats", text, advice, exact)
    if across:
        of = listed([f"{name} {int(number)}" for name, number in _largest(across)])
        text = f"{counted(int(sum(across.values())), 'test row')} equal to a training row: {of}"
        advice = "data.duplicate_rows = 'allow' takes them, which are refused otherwise; data.time may tell them apart"
        yield Finding("repeats across the split", text, "" if allowed else advice, across)
    if close:
        of = listed([f"{name} {int(number)}" for name, number in _largest(close)])
        text = f"{counted(int(sum(close.values())), 'row')} but for a {near:g} of the spread equal to another: {of}"
        yield Finding(
            "near-twins",
            text,
            "resampled, joined, or in a larger unit than others' rows? they count as one row in certificates",
            close,
        )


def _constants(columns: Sequence[str], rows: Mapping[str, _Rows], labels: bool) -> Iterator[Finding]:
    low, high = (np.stack([f(one.values, axis=0) for one in rows.values()]) for f in (np.min, np.max))
    flat = high - low <= 1e-12 * np.maximum(np.abs(low), np.abs(high))
    alone = np.array([len(one.test) < 2 for one in rows.values()])
    names = np.array([*rows])
    between = np.ptp(low, axis=0) > 1e-12 * np.abs(low).max(0)
    *features, target = range(len(columns))
    apart = [columns[j] for j in features if (flat | alone[:, None])[:, j].all() and between[j]]
    if apart:
        text = f"{listed(apart)}: constant inside clients and different between them"
        advice = "scaled across clients, where moments of all rows may be; data.client_features names such columns"
        yield Finding("client features", text, advice)
    if same := [columns[j] for j in features if flat[:, j].all() and not between[j]]:
        yield Finding("constants", f"{listed(same)}: the same number in all rows", "drop them: they tell nothing")
    some = {}
    for j in features:
        if flat[~alone, j].any() and columns[j] not in (*apart, *same):
            some[columns[j]] = [str(name) for name in names[flat[:, j] & ~alone]]
    if some:
        text = "; ".join(f"{column} in {listed(who)}" for column, who in [*some.items()][:_SHOWN])
        yield Finding("constants", f"do not vary inside some clients, and are 0 there: {text}")
    if not labels and (still := [str(name) for name in names[flat[:, target] & ~alone]]):
        yield Finding(
            "constants",
            f"targets of {listed(still)} do not vary",
            "such clients have no scale of their own",
        )


def _row_names(columns: Sequence[str], rows: Mapping[str, _Rows]) -> Iterator[Finding]:
    """Name features that number the rows of the file."""
    for j, name in enumerate(columns[:-1]):
        if cells.names_rows(name, np.concatenate([one.values[:, j] for one in rows.values()]).tolist()):
            text = f"{name!r} numbers the rows of the file, as R and pandas write them, and is a feature"
            yield Finding("row numbers", text, "take the column out; or data.features names those that are used")


def _units(dataset: Dataset, columns: Sequence[str]) -> Iterator[Finding]:
    """Name clients of which a column is far from that of all others, as in another unit; see `far_clients.far`."""
    train = dataset.groups["existing"].train
    away = far(client_moments(train), train.mask.any(1)).cpu()
    for j, column in enumerate(columns):
        if who := [name for name, one in zip(train.names, away[:, j].tolist(), strict=True) if one]:
            text = f"{column} of {listed(who)} is far from that of all other clients"
            yield Finding("units", text, "another unit, or a wrong value? mend it, or leave such clients out")


def _outliers(columns: Sequence[str], rows: Mapping[str, _Rows], labels: bool) -> Iterator[Finding]:
    """Count numbers more than six interquartile ranges beyond the quartiles of their client."""
    for j, column in enumerate(columns[:-1] if labels else columns):
        count, worst = dict[str, float](), (0.0, "", 0.0)
        for name, one in rows.items():
            values = one.values[:, j]
            first, third = np.quantile(values, (0.25, 0.75))
            if third <= first:
                continue
            beyond = np.maximum(first - values, values - third) / (third - first)
            if number := int((beyond > _FAR).sum()):
                count[name] = number
                at = int(beyond.argmax())
                worst = max(worst, (float(beyond[at]), name, float(values[at])))
        if count:
            of = listed([name for name, _ in _largest(count)])
            text = (
                f"{column}: {counted(int(sum(count.values())), 'number')} more than {_FAR:g} interquartile ranges "
                f"beyond the quartiles of their client ({of}); the farthest {worst[2]:g} of {worst[1]}"
            )
            yield Finding("outliers", text, "a wrong unit or a code for a missing value? nothing is left out", count)


def _labels(dataset: Dataset, rows: Mapping[str, _Rows]) -> Iterator[Finding]:
    values = np.concatenate([one.values[:, -1] for one in rows.values()])
    if dataset.classes is None and (labels := class_labels.like_labels(values.tolist())):
        yield Finding("labels", *class_labels.labels_said(dataset.target.name, labels))
