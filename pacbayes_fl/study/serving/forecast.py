"""Predictions for a whole table, of all clients of a run at once, beside the table's own columns."""

from __future__ import annotations

import csv
import io
import itertools
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import torch
from torch import Tensor

from pacbayes_fl.data import user_images, user_tables
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import DataError, NumericalError, StudyError, caller_stacklevel, counted, kinds_checked, listed
from pacbayes_fl.federation.federation_state import FederationState
from pacbayes_fl.files import JsonTable
from pacbayes_fl.names import as_html, to_cell, told_apart
from pacbayes_fl.results.folder import write_atomic
from pacbayes_fl.results.frames import frame
from pacbayes_fl.study.data import ScaledGroup
from pacbayes_fl.study.evaluate.regression import distance, not_finite, say_far
from pacbayes_fl.study.rows.target_power import check_moments
from pacbayes_fl.study.run import Trained
from pacbayes_fl.study.serving import user_rows
from pacbayes_fl.study.serving.arrivals import from_table, images_of, members_of, past_of, taken
from pacbayes_fl.study.serving.predict import answers, levels_of, probabilities
from pacbayes_fl.study.serving.release import Served, served
from pacbayes_fl.study.serving.updates import updated

if TYPE_CHECKING:
    from pandas import DataFrame

_CLASSES: Final = ("label", "probability", "entropy")
_EACH: Final = 100  # classes whose probabilities still make a table


@dataclass(frozen=True, repr=False)
class Forecast:
    """A table and, row by row, what a run predicts for it.

    Args:
        columns: of the table, as they stand there: R values each.
        clients: whose each row is [R].
        predicted: "mean", "std" and quantiles, in the data's own units, observation noise included; or "label",
            "probability" and "entropy", and "probability_CLASS" of every class where there are at most 100: [R] each.
        round: of the models that predict.
        classes: names of the classes by number; labels are the numbers when empty.

    Example:
        >>> import torch, pacbayes_fl as fl
        >>> columns, mean = {"house": ["north", "south"], "hour": [7, 8]}, torch.tensor([1.5, 2.5])
        >>> print(fl.Forecast(columns, ["north", "south"], {"mean": mean}, round=10).to_csv())
        house,hour,mean,round
        north,7,1.5,10
        south,8,2.5,10
    """

    columns: Mapping[str, Sequence[object]]
    clients: Sequence[str]
    predicted: Mapping[str, Tensor]
    round: int
    classes: Sequence[str] = ()

    def __repr__(self) -> str:
        """How many rows there are, and what is predicted, in one line."""
        names = ", ".join(self.predicted)
        return f"Forecast({self.counts}: {names}; round {self.round})"

    @property
    def counts(self) -> str:
        """How many rows there are, of how many clients."""
        return f"{counted(len(self.clients), 'row')} of {counted(len(set(self.clients)), 'client')}"

    def _repr_html_(self) -> str:
        """The first rows, for notebooks."""
        columns = {"client": self.clients} | self.table()
        return as_html(repr(self), [*columns], [*zip(*columns.values(), strict=True)])

    def to_pandas(self) -> DataFrame:
        """Give all columns of `table` as a data frame.

        Returns:
            A row per row of the table.

        Raises:
            PacBayesFLError: when pandas is not installed.
        """
        return frame(self.table())

    def table(self) -> dict[str, list[object]]:
        """Give all columns: the table's own, those predicted, and the round.

        A predicted column whose name the table has already is called "predicted_" and that name.
        """
        rows = len(self.clients)
        new = self._values() | {"round": [self.round] * rows}
        named = {f"predicted_{name}" if name in self.columns else name: values for name, values in new.items()}
        return {**{name: list(values) for name, values in self.columns.items()}, **named}

    def by_client(self) -> JsonTable:
        """Give the predicted columns of every client, as JSON can hold them: None where there is no prediction."""
        rows: dict[str, list[int]] = {}
        for row, owner in enumerate(self.clients):
            rows.setdefault(owner, []).append(row)
        every = {
            name: [None if value != value else value for value in values]  # NaN is not itself
            for name, values in self._values().items()
        }
        return {
            owner: {**{name: [values[row] for row in own] for name, values in every.items()}, "round": self.round}
            for owner, own in rows.items()
        }

    def _values(self) -> dict[str, list[object]]:
        """The predicted columns as plain values, with names of classes where they have some."""
        every: dict[str, list[object]] = {name: values.tolist() for name, values in self.predicted.items()}
        if self.classes:
            numbers = self.predicted["label"].tolist()
            every["label"] = [None if number != number else self.classes[int(number)] for number in numbers]
        return every

    def to_csv(self) -> str:
        """Write all columns as CSV, a row a line; own numbers as they were read, others by `names.told_apart`."""
        table, own, unknown = self.table(), len(self.columns), torch.full((len(self.clients),), math.nan)
        writer = csv.writer(stream := io.StringIO(), lineterminator="\n")
        writer.writerow([to_cell(name) for name in table])
        for spread, *row in zip(self.predicted.get("std", unknown).tolist(), *table.values(), strict=True):
            writer.writerow([*map(_cell, row[:own]), *(_cell(value, spread) for value in row[own:])])
        return stream.getvalue()

    @kinds_checked
    def save(self, path: Path | str) -> None:
        """Write all columns to a file.

        Args:
            path: .csv, or .parquet, which needs the extra `tables`.

        Raises:
            DataError: when it ends otherwise, or pyarrow is missing.
            CheckpointError: when it cannot be written.
        """
        path = Path(path)
        check_out(path)
        if path.suffix.lower() == ".csv":
            write_atomic(path, self.to_csv().encode())
            return
        import pyarrow
        from pyarrow import parquet

        stream = io.BytesIO()
        parquet.write_table(pyarrow.table(self.table()), stream)
        write_atomic(path, stream.getvalue())


def check_out(path: Path) -> None:
    """Refuse a file that a forecast cannot be written to.

    Args:
        path: of the file.

    Raises:
        DataError: when it ends neither in .csv nor in .parquet, or pyarrow is missing for the latter.
    """
    if path.suffix.lower() not in user_tables.TABLES:
        raise DataError(f"predictions are written to .csv or .parquet, got {path}")
    if path.suffix.lower() == ".parquet":
        try:
            import pyarrow as pyarrow
        except ImportError as error:
            raise DataError("writing Parquet needs pyarrow", hint="pip install 'pacbayes_fl[tables]'") from error


def _cell(value: object, spread: float | None = None) -> object:
    if isinstance(value, float):  # without a spread as it was read
        return "" if math.isnan(value) else repr(float(value)) if spread is None else told_apart(value, spread)
    return to_cell(value) if isinstance(value, str) else value


@kinds_checked
def forecast(
    trained: Trained,
    path: Path | str,
    clients: Sequence[str] = (),
    quantiles: Sequence[float] = (),
    later: Path | str | None = None,
) -> Forecast:
    r"""Predict the rows of a table for all their clients at once.

    Args:
        trained: as `open_run` gives it.
        path: CSV or Parquet with the client column and the run's features; other columns are passed through. Of a run
            on images an .npz, or a folder CLIENT/*.png, whose files are named in a column. Without a client column all
            rows are those of the one client that is named, and so are all files below the folder.
        clients: whose rows are predicted; all of the table when empty.
        quantiles: levels of the predicted quantiles in (0, 1); 2.5 and 97.5 % when empty. Labels have none.
        later: rows of these clients with targets that came after the training; see `predict`.

    Returns:
        The rows of these clients in the order of the file; NaN where one lacks a value or its client is not known.

    Raises:
        DataError: when a client that is named, or every one of the table, is not known, one that is named has no rows,
            or a column is missing.
        StudyError: when a quantile is no level.
        NumericalError: when a prediction is not finite, naming its client and place.

    Example:
        >>> import pacbayes_fl as fl
        >>> study = fl.Study.from_toml("polynomial", ["federation.rounds=2", "method.particles=2"])
        >>> _ = fl.run(study, "forecast_run")
        >>> table = "client,x,hour\npoly_00,0.1,7\npoly_01,0.2,7\n"
        >>> _ = open("ask.csv", "w").write(table)
        >>> result = fl.forecast(fl.open_run("forecast_run"), "ask.csv", quantiles=[0.1, 0.9])
        >>> list(result.table())
        ['client', 'x', 'hour', 'mean', 'std', 'q0.1', 'q0.9', 'round']
    """
    trained = updated(trained)
    known, levels = served(trained), levels_of(quantiles)
    names, classes = predicted_columns(known, levels)
    check_moments(known.study, known.shared.transform)
    asked = _read(trained, known, path, clients, later)
    rows = asked.rows(clients)
    predicted = {name: torch.full((len(asked.owners),), torch.nan, dtype=torch.float64) for name in names}
    for group in trained.groups:
        for client, values in _predicted(trained, known, group, asked, list(rows), [*levels.values()], later):
            for column, numbers in zip(names, values, strict=True):
                predicted[column][rows[client]] = numbers[: len(rows[client])].double()
    kept = sorted(row for own in rows.values() for row in own)
    predicted = {column: numbers[kept] for column, numbers in predicted.items()}
    owners = [asked.owners[row] for row in kept]
    blank = torch.tensor([row in asked.blank for row in kept], dtype=torch.bool)
    finite = {column: numbers.masked_fill(blank, 0.0) for column, numbers in predicted.items()}
    _require_finite(finite, owners, [asked.places[row] for row in kept], not_finite(known.shared.transform))
    if "label" in predicted and not asked.blank:
        predicted["label"] = predicted["label"].long()
    if asked.blank:
        predicted = {column: numbers.masked_fill(blank, torch.nan) for column, numbers in predicted.items()}
    if "mean" in predicted:
        _say_far(trained, owners, predicted["mean"])
    columns = {column: [values[row] for row in kept] for column, values in asked.columns.items()}
    return Forecast(columns, owners, predicted, trained.state.round, classes)


def _say_far(trained: Trained, owners: Sequence[str], mean: Tensor) -> None:
    """Warn of predictions [M] that cannot have been learned from the targets of their clients."""
    rows: dict[str, list[int]] = {}
    for row, owner in enumerate(owners):
        rows.setdefault(owner, []).append(row)
    far: dict[str, float] = {}
    for train in (group.raw.train for group in trained.groups.values()):
        for y, mask, name in zip(train.y, train.mask, train.names, strict=True):
            if name in rows:
                far[name] = distance(mean[rows[name]], y[mask])
    say_far([*far], [*far.values()])


def predicted_columns(known: Served, levels: Iterable[str]) -> tuple[tuple[str, ...], Sequence[str]]:
    """Name what a run predicts.

    Args:
        known: the run.
        levels: names of the quantiles.

    Returns:
        Names of the columns; and of the classes, by number, where they have names.

    Raises:
        StudyError: when quantiles are asked for, and the run predicts labels.
    """
    if known.schema.classes is None:
        return ("mean", "std", *levels), ()
    if [*levels] != [*levels_of(())]:
        raise StudyError("quantiles are of numbers, and the run predicts labels", hint="leave them out")
    classes = known.schema.provenance.get("class_names", ())
    each = (classes or range(known.schema.classes)) if _has_each(known) else ()
    return (*_CLASSES, *(f"probability_{name}" for name in each)), classes


def _has_each(known: Served) -> bool:
    """Whether every class has a column of its own."""
    return known.schema.classes is not None and known.schema.classes <= _EACH


class _Asked(NamedTuple):
    """A table to predict.

    Args:
        path: of the file.
        columns: as they stand there.
        owners: whose each row is.
        features: x [m, *feature] of every client.
        places: where each row stands, such as "line 4".
        blank: rows that lack a feature, or whose client the run does not know.
    """

    path: Path
    columns: dict[str, list[object]]
    owners: list[str]
    features: dict[str, Tensor]
    places: Sequence[str]
    blank: frozenset[int] = frozenset()

    def rows(self, clients: Sequence[str]) -> dict[str, list[int]]:
        """Positions of the rows of some clients, all where none is named."""
        rows: dict[str, list[int]] = {name: [] for name in clients}
        for row, owner in enumerate(self.owners):
            if not clients or owner in rows:
                rows.setdefault(owner, []).append(row)
        return rows


def _read(
    trained: Trained, known: Served, path: Path | str, clients: Sequence[str], later: Path | str | None
) -> _Asked:
    path, schema, client = Path(path), known.schema, known.study.data.client
    default = clients[0] if len(clients) == 1 else None
    if schema.feature_shape:
        brought, labels = images_of(known, path, default, labelled=False)
        images, owners = user_images.by_client(brought, labels).clients, list(brought.client)
        columns = image_columns(path, brought)
        known_ones = taken(trained, path, images, clients)
        blank = {row for row, owner in enumerate(owners) if owner not in known_ones}
        return _Asked(
            path, columns, owners, {name: x for name, (x, _) in images.items()}, brought.where, frozenset(blank)
        )
    own, groups = (known.study.data, schema), [*trained.groups.values()]
    columns, places = read = user_rows.read_columns(*own, path, groups)
    past = past_of(known, later, default)
    table = user_rows.read(*own, path, need_target=False, default=default, groups=groups, past=past, columns=read)
    count = len(next(iter(columns.values())))
    owners = [str(value) for value in columns.get(client, [default] * count)]
    known_ones = taken(trained, path, dict.fromkeys(owners), clients)
    features = {name: x for name, (x, _) in table.clients.items()}
    blank, said = set[int](), list[str]()
    whole = user_rows.gap_free(table)
    for name in known_ones:
        if name in whole and not bool(whole[name].all()):
            gaps = torch.where(~whole[name])[0]
            rows = [row for row, owner in enumerate(owners) if owner == name]
            blank |= {rows[k] for k in gaps.tolist()}
            features[name] = features[name].nan_to_num(0.0)
            said.append(f"{name} {user_rows.lacks(table, name, gaps)}")
    if said:
        lack = "row lacks a value and has" if len(blank) == 1 else "rows lack a value and have"
        what = f"{len(blank)} {lack} no prediction: {listed(said)}"
        warnings.warn(user_rows.with_lags(what), stacklevel=caller_stacklevel())
    blank |= {row for row, owner in enumerate(owners) if owner not in known_ones}
    return _Asked(path, columns, owners, features, places, frozenset(blank))


def image_columns(path: Path, brought: user_images.Brought) -> dict[str, list[object]]:
    """Name images in columns.

    Args:
        path: of the folder, or of the .npz.
        brought: what was read there.

    Returns:
        Their clients; and their files, or their numbers among their client's images of the .npz.
    """
    columns: dict[str, list[object]] = {"client": [*brought.client]}
    if path.is_dir():
        columns["file"] = [str(Path(file).relative_to(path)) for file in brought.where]
    else:
        counts = {name: itertools.count() for name in brought.client}
        columns["row"] = [next(counts[owner]) for owner in brought.client]
    return columns


def _predicted(
    trained: Trained,
    known: Served,
    group: str,
    asked: _Asked,
    clients: Sequence[str],
    levels: Sequence[float],
    later: Path | str | None,
) -> Iterator[tuple[str, Sequence[Tensor]]]:
    """Predict the rows of some clients of a group, all at once unless later rows make each another client."""
    there = set(trained.groups[group].train.names)
    own = [name for name in clients if name in there]
    for members in [[name] for name in own] if later is not None else [own] if own else []:
        part, state = members_of(trained, group, members)
        if later is not None:
            part, state = from_table(known, part, state, later)
        rows = [(asked.features[name], torch.zeros(len(asked.features[name]), dtype=torch.float64)) for name in members]
        batch = ClientBatch.pad(rows, members, dtype=known.raw, classes=known.schema.classes)
        for index, values in all_answers(known, state, part, batch, levels):
            for i, k in enumerate(index.tolist()):
                yield members[k], [one[i] for one in values]


def all_answers(
    known: Served, state: FederationState, part: ScaledGroup, asked: ClientBatch, levels: Sequence[float]
) -> Iterator[tuple[Tensor, tuple[Tensor, ...]]]:
    """Predict rows as `predict.answers` does, with the probability of every class where there are not too many.

    Args:
        known: as there.
        state: as there.
        part: training rows of the clients.
        asked: as there.
        levels: as there.

    Yields:
        As there; the probabilities [k, M] of the classes come after the entropy.
    """
    if not _has_each(known):
        yield from answers(known, state, part, asked, levels)
        return
    for index, probs in probabilities(known, state, part, asked):
        top = probs.max(-1)
        yield index, (top.indices, top.values, torch.special.entr(probs).sum(-1), *probs.unbind(-1))


def _require_finite(predicted: Mapping[str, Tensor], owners: Sequence[str], places: Sequence[str], hint: str) -> None:
    """Refuse predictions that are no numbers, by the first client and row."""
    bad = ~torch.stack([values.isfinite() for values in predicted.values()]).all(0)
    if not bool(bad.any()):
        return
    first = int(bad.nonzero()[0])
    values = ", ".join(f"{name} {float(numbers[first]):g}" for name, numbers in predicted.items())
    others = ", ".join(dict.fromkeys(owner for owner, no in zip(owners, bad.tolist(), strict=True) if no))
    what = f"its prediction of {places[first]} is not finite ({values}); rows of {others} are not"
    raise NumericalError(what, client=owners[first], hint=hint)
