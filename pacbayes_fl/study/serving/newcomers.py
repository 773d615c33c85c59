"""Predictions for a whole table of clients that never trained, beside the table's own columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from pacbayes_fl import settings
from pacbayes_fl.data import user_images, user_tables
from pacbayes_fl.errors import DataError, NumericalError, kinds_checked
from pacbayes_fl.names import apart
from pacbayes_fl.study.evaluate.regression import not_finite
from pacbayes_fl.study.rows.target_power import check_moments
from pacbayes_fl.study.run import Trained
from pacbayes_fl.study.serving import user_rows
from pacbayes_fl.study.serving.arrivals import images_of
from pacbayes_fl.study.serving.forecast import Forecast, all_answers, image_columns, predicted_columns
from pacbayes_fl.study.serving.predict import joined, levels_of, seen_by
from pacbayes_fl.study.serving.release import Served, served


class Newcomers(NamedTuple):
    """What a run predicts for clients that never trained.

    Args:
        forecast: of all but those of `refused`.
        refused: names a client of which a number is not finite, and its row; None where all are.
    """

    forecast: Forecast
    refused: NumericalError | None = None


@kinds_checked
def forecast_newcomers(
    trained: Trained | Served, path: Path | str, quantiles: Sequence[float] = (), clients: Sequence[str] = ()
) -> Forecast:
    r"""Let all clients of a table personalise that never trained, and predict the rows of theirs that have no target.

    Args:
        trained: a run, as `open_run` gives it, or a release, as `open_release` does.
        path: CSV or Parquet with a client column, the run's features and the target; other columns are passed through.
            Rows to predict have an empty (or nan) target, or `test` in a column `split`. Of a run on images an .npz,
            where they have the label -1, or a folder, where they lie below CLIENT/test/, or in no folder of a class.
        quantiles: levels of the predicted quantiles in (0, 1); 2.5 and 97.5 % when empty. Nothing for labels.
        clients: those of the file that join, in texts of one or, between commas, of several; all when empty.

    Returns:
        The rows that are predicted, in the order of the file: of a client without any those that it learns from. NaN
        where a row lacks a feature. A client without any target gets the prior's prediction, with the existing clients'
        average standardisation.

    Raises:
        DataError: when columns are missing, rows cannot be used, a client took part in the training, or the file has
            none of a name.
        StudyError: when a quantile is no level.
        NumericalError: when a prediction is not finite, naming its client and row.

    Warns:
        UserWarning: of rows that lack a feature, and of clients without a row to predict.

    Example:
        >>> import pacbayes_fl as fl
        >>> study = fl.Study.from_toml("polynomial", ["federation.rounds=2", "method.particles=2"])
        >>> _ = fl.run(study, "joined_run")
        >>> _ = open("newcomer.csv", "w").write("client,x,y,hour\nshed,0.1,0.3,7\nshed,0.2,,8\n")
        >>> result = fl.forecast_newcomers(fl.open_run("joined_run"), "newcomer.csv", quantiles=[0.1, 0.9])
        >>> list(result.table()), result.table()["hour"]
        (['client', 'x', 'y', 'hour', 'mean', 'std', 'q0.1', 'q0.9', 'round'], ['8'])
    """
    found = newcomers(trained, path, quantiles, clients)
    if found.refused is not None:
        raise found.refused
    return found.forecast


def newcomers(
    trained: Trained | Served, path: Path | str, quantiles: Sequence[float] = (), clients: Sequence[str] = ()
) -> Newcomers:
    """Do as `forecast_newcomers`, and say what is known of the others where one client's numbers are not finite.

    Args:
        trained: as there.
        path: as there.
        quantiles: as there.
        clients: as there.

    Returns:
        The predictions, and the error that is left.

    Raises:
        DataError, StudyError: as there.
    """
    known, levels, path = trained if isinstance(trained, Served) else served(trained), levels_of(quantiles), Path(path)
    names, classes = predicted_columns(known, levels)
    check_moments(known.study, known.shared.transform)
    columns, places, owners, table = _read(known, path)
    if clients:
        table = _some(table, clients, path)
    where: dict[str, list[int]] = {name: [] for name in table.clients}
    for row, owner in enumerate(owners):
        if owner in where:
            where[owner].append(row)
    predicted = {name: torch.full((len(owners),), torch.nan, dtype=torch.float64) for name in names}
    kept, blank, refused = [], False, []
    for one in joined(known, table, seen_by(trained), all_answers, [*levels.values()]):
        rows = torch.tensor(where[one.client])[one.rows]
        values = dict(zip(names, (value.double() for value in one.values), strict=True))
        bad = ~torch.stack([value.isfinite() for value in values.values()]).all(0) & ~one.blank
        if bool(bad.any()):
            place = places[int(rows[bad][0])]
            refused.append((one.client, place, {name: value[bad][0] for name, value in values.items()}))
            continue
        for name, value in values.items():
            predicted[name][rows] = value.masked_fill(one.blank, torch.nan)
        kept += rows.tolist()
        blank = blank or bool(one.blank.any())
    kept.sort()
    chosen = {name: values[kept] for name, values in predicted.items()}
    if "label" in chosen and not blank:
        chosen["label"] = chosen["label"].long()
    own = {name: [values[row] for row in kept] for name, values in columns.items()}
    at = known.round if isinstance(trained, Served) else trained.state.round
    result = Forecast(own, [owners[row] for row in kept], chosen, at, classes)
    return Newcomers(result, _refusal(refused, known))


def _read(
    known: Served, path: Path
) -> tuple[Mapping[str, Sequence[object]], Sequence[str], list[str], user_tables.Table]:
    """Read a file's columns, where each row stands and whose it is, and the rows by client."""
    if known.schema.feature_shape:
        brought, labels = images_of(known, path, None)
        return image_columns(path, brought), brought.where, list(brought.client), user_images.by_client(brought, labels)
    data = known.study.data
    read = user_rows.read_columns(data, known.schema, path)
    table = user_rows.read(data, known.schema, path, need_target=True, columns=read, excluded=False)
    return *read, [str(value) for value in read[0][data.client]], table


def _some(table: user_tables.Table, clients: Sequence[str], path: Path) -> user_tables.Table:
    """Leave all other clients out."""
    asked = apart(clients, table.clients)
    for name in asked:
        if name not in table.clients:
            raise DataError(f"{path} has no client {name!r}", hint=settings.nearest(name, table.clients))
    return table._replace(clients={name: rows for name, rows in table.clients.items() if name in asked})


def _refusal(refused: Sequence[tuple[str, str, Mapping[str, Tensor]]], known: Served) -> NumericalError | None:
    """Name the first client whose numbers are not finite, where it stands and the numbers, and the other clients."""
    if not refused:
        return None
    client, place, numbers = refused[0]
    values = ", ".join(f"{name} {float(value):g}" for name, value in numbers.items())
    others = f"; nor are those of {', '.join(name for name, *_ in refused[1:6])}" if len(refused) > 1 else ""
    what = f"its prediction of {place} is not finite ({values}){others}"
    return NumericalError(what, client=client, hint=not_finite(known.shared.transform))
