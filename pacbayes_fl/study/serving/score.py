"""Scores of a run on rows that came after it, by the metrics of its own table."""

from __future__ import annotations

import csv
import io
import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.user_tables import Table
from pacbayes_fl.errors import DataError, StudyError, caller_stacklevel, counted, kinds_checked
from pacbayes_fl.files import JsonTable
from pacbayes_fl.names import to_cell
from pacbayes_fl.results.client_rows import ClientRows
from pacbayes_fl.results.folder import write_atomic
from pacbayes_fl.results.records import Result
from pacbayes_fl.study.data import ScaledGroup, check_targets
from pacbayes_fl.study.evaluate import classification, regression
from pacbayes_fl.study.evaluate.report import metrics_of, notes
from pacbayes_fl.study.run import Trained
from pacbayes_fl.study.serving import user_rows
from pacbayes_fl.study.serving.arrivals import learned_from, members_of, pad, read, taken
from pacbayes_fl.study.serving.release import Served, served
from pacbayes_fl.study.serving.updates import updated

FILES = (".csv", ".json")
"""How the names of files of scores end."""


@dataclass(frozen=True)
class Score:
    """Scores of a table's rows.

    Args:
        result: a row per client with all metrics of the run, and its predictions of the rows, as `run` gives them.
        rows: that were scored, by client.
        left_out: rows of each client that it has learned from, or that lack a value.
    """

    result: Result
    rows: Mapping[str, int]
    left_out: Mapping[str, int]

    def to_json(self) -> JsonTable:
        """Give means over clients with intervals as in metrics.json, and every client's scores."""
        each = {
            row.name: {name: value if math.isfinite(value) else None for name, value in row.metrics.items()}
            for row in self.result.clients
        }
        return self.result.summary() | {"rows": {**self.rows}, "left_out": {**self.left_out}, "clients": each}

    def to_csv(self) -> str:
        """Write a line per client: its group, the rows that were scored and left out, and all metrics."""
        stream, metrics = io.StringIO(), self.result.metrics
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["client", "group", "rows", "left_out", *map(to_cell, metrics)])
        for row in self.result.clients:
            cells = [f"{row.metrics[name]:.9g}" if name in row.metrics else "" for name in metrics]
            counts = self.rows[row.name], self.left_out.get(row.name, 0)
            writer.writerow([to_cell(row.name), row.group, *counts, *cells])
        return stream.getvalue()

    def save(self, path: Path | str) -> None:
        """Write the scores to a file.

        Args:
            path: .csv, a line per client, or .json.

        Raises:
            StudyError: when it ends otherwise.
            CheckpointError: when it cannot be written.
        """
        path = Path(path)
        check_out(path)
        text = self.to_csv() if path.suffix.lower() == ".csv" else json.dumps(self.to_json(), indent=1) + "\n"
        write_atomic(path, text.encode())


def check_out(path: Path) -> None:
    """Refuse a file that scores cannot be written to.

    Args:
        path: of the file.

    Raises:
        StudyError: when it ends neither in .csv nor in .json.
    """
    if path.suffix.lower() not in FILES:
        raise StudyError(f"scores are written to .csv or .json, got {path}")


@kinds_checked
def score(trained: Trained, path: Path | str, clients: Sequence[str] = ()) -> Score:
    r"""Score a run's predictions of rows with targets, in the run's units and by the metrics of its table.

    Rows that a client has learned from, in the training or by `update`, say nothing of its predictions: they are
    counted and left out.

    Args:
        trained: as `open_run` gives it.
        path: CSV or Parquet with the client column, the run's features and the target, or .npz of a run on images;
            without a client column all rows are those of the one client that is named.
        clients: whose rows are scored; all of the table when empty.

    Returns:
        The scores of every client that has rows left.

    Raises:
        DataError: when a client is not known, rows cannot be used, or none is left.

    Warns:
        UserWarning: of rows that are left out.

    Example:
        >>> import pacbayes_fl as fl
        >>> study = fl.Study.from_toml("polynomial", ["federation.rounds=2", "method.particles=2"])
        >>> _ = fl.run(study, "scored_run")
        >>> _ = open("truth.csv", "w").write("client,x,y\npoly_00,0.1,0.3\npoly_00,0.2,0.1\n")
        >>> result = fl.score(fl.open_run("scored_run"), "truth.csv")
        >>> dict(result.rows), "rsmse" in result.result.metrics
        ({'poly_00': 2}, True)
    """
    trained = updated(trained)
    known, study = served(trained), trained.study
    table = read(known, path, True, clients[0] if len(clients) == 1 else None, trained.groups.values())
    clients = taken(trained, path, table.clients, clients)
    task = known.schema.task
    metrics = metrics_of(study, task)
    evaluate = (
        classification.evaluate if task == "classification" else partial(regression.evaluate, errors=trained.errors)
    )
    rows, left_out, reports = dict[str, int](), dict[str, int](), []
    for name, group in trained.groups.items():
        asked = [client for client in group.train.names if client in clients]
        left = {client: _left(known, members_of(trained, name, [client])[0], table) for client in asked}
        left_out |= {client: out for client, (_, out) in left.items() if out}
        if not (kept := {client: own for client, (own, _) in left.items() if int(own.mask.sum())}):
            continue
        rows |= {client: int(own.mask.sum()) for client, own in kept.items()}
        part, state = members_of(trained, name, [*kept])
        batch = ClientBatch.stack(
            [(own.x[0][own.mask[0]], own.y[0][own.mask[0]]) for own in kept.values()], part.train.names, part.train.ids
        ).to(part.train.x.device)
        scaled = replace(part, test=part.bring(batch), raw=replace(part.raw, test=batch, times=None))
        reports.append(evaluate(trained.method, state, name, scaled, study.plan, metrics))
    if left_out:
        out = ", ".join(f"{count} of {client}" for client, count in [*left_out.items()][:5])
        more = f" and of {counted(len(left_out) - 5, 'more client')}" if len(left_out) > 5 else ""
        what = f"rows that lack a value, or that clients have learned from, are left out: {out}{more}"
        warnings.warn(what, stacklevel=caller_stacklevel())
    if not reports:
        raise DataError(f"{path} has no row to score: each lacks a value, or its client has learned from it")
    lines = ClientRows.joined([one.rows for one in reports])
    flat = {name: tensor.cpu() for one in reports for name, tensor in one.predictions.items()}
    labels = {"round": trained.state.round, **notes(metrics), "test_rows": f"those of {Path(path).name}"}
    result = Result(study.name, study.method.name, study.seed, task, (), lines, flat, labels)
    return Score(result, rows, left_out)


def _left(known: Served, group: ScaledGroup, table: Table) -> tuple[ClientBatch, int]:
    """Take the rows of one client that it has not learned from and that lack nothing, and count the others."""
    client = group.train.names[0]
    x, y = table.clients[client]
    times = None if table.times is None else table.times[client]
    given = user_rows.gap_free(table)[client] & ~y.double().isnan()
    more = pad(known, client, x[given], y[given])
    check_targets(more, known.shared, table.among(given))
    if not bool(given.any()):
        return more, len(y)
    old = learned_from(known, group, more, None if times is None else times[given], table.time_kind)
    return pad(known, client, x[given][~old], y[given][~old]), int((~given).sum() + old.sum())
