"""Predictions of a finished run: for its own clients, and for clients that never trained."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pacbayes_fl.data import tables, user_tables
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.foreign_units import say_foreign
from pacbayes_fl.data.scaling import Scaling
from pacbayes_fl.data.transforms import Transform
from pacbayes_fl.errors import DataError, NumericalError, StudyError, caller_stacklevel, kinds_checked, listed
from pacbayes_fl.federation import personalisation
from pacbayes_fl.federation.federation_state import FederationState
from pacbayes_fl.files import JsonTable
from pacbayes_fl.study.data import ScaledGroup, check_targets, scale
from pacbayes_fl.study.evaluate.classification import predictive
from pacbayes_fl.study.evaluate.regression import BAND, distance, not_finite, say_far
from pacbayes_fl.study.evaluate.report import state_of
from pacbayes_fl.study.evaluate.units import units_of
from pacbayes_fl.study.prepare import device_of
from pacbayes_fl.study.rows import scaling
from pacbayes_fl.study.run import Trained
from pacbayes_fl.study.serving import user_rows
from pacbayes_fl.study.serving.arrivals import from_table, members_of, pad, past_of, read
from pacbayes_fl.study.serving.release import Served, served
from pacbayes_fl.study.serving.updates import updated


@dataclass(frozen=True)
class Prediction:
    """Predicted targets of one client, in the data's own units.

    Args:
        client: its name.
        mean: [M].
        std: [M], observation noise included.
        lower: 2.5 % quantile [M].
        upper: 97.5 % quantile [M].
    """

    client: str
    mean: Tensor
    std: Tensor
    lower: Tensor
    upper: Tensor


@dataclass(frozen=True)
class ClassPrediction:
    """Predicted labels of one client, by probabilities averaged over draws of its weights.

    Args:
        client: its name.
        label: the most probable one [M], int64.
        probability: of that label [M].
        entropy: of all probabilities [M], in nats.
    """

    client: str
    label: Tensor
    probability: Tensor
    entropy: Tensor


AnyPrediction = Prediction | ClassPrediction


@kinds_checked
def predict(trained: Trained, client: str, path: Path | str | Tensor, later: Path | str | None = None) -> AnyPrediction:
    """Predict rows of a table for a client that the run knows.

    Args:
        trained: as `open_run` gives it.
        client: name of an existing or new client of the run.
        path: CSV or Parquet with the run's feature columns, or images (see `user_images.to_predict`); other
            columns and other clients' rows are ignored, a missing client column means that all rows are this client's.
            Or the rows themselves [M, *feature], in the run's order of columns and the data's own units.
        later: rows with targets that came after the training (the paper's S~_i), for this call alone (`update` keeps
            them); they are conditioned on too, but for those that the client has been conditioned on already: with
            `data.duplicate_rows` = "refuse" a row counts once, with "allow" as often as the table has it more often
            than the client.

    Returns:
        A `Prediction`, or a `ClassPrediction` of a run on labels: one number a row and kind.

    Raises:
        DataError: when the client or a column is not known.
        NumericalError: when a prediction is not finite, naming its row.

    Example:
        >>> import torch, pacbayes_fl as fl
        >>> study = fl.Study.from_toml("polynomial", ["federation.rounds=2", "method.particles=2"])
        >>> _ = fl.run(study, "predicted_run")
        >>> trained = fl.open_run("predicted_run")
        >>> client = trained.groups["existing"].train.names[0]
        >>> prediction = fl.predict(trained, client, torch.tensor([[0.1], [0.2]]))
        >>> prediction.mean.shape, bool((prediction.lower < prediction.upper).all())
        (torch.Size([2]), True)
    """
    trained = updated(trained)
    known = served(trained)
    for name, group in trained.groups.items():
        if client in group.train.names:
            part, state = members_of(trained, name, [client])
            x = path if isinstance(path, Tensor) else _rows_of(known, part, path, later)
            if later is not None:
                part, state = from_table(known, part, state, later)
            answer = _predict(known, state, part, client, _checked(known, client, x))
            (result,) = _require_finite([answer], known.shared.transform)
            if isinstance(result, Prediction):
                say_far([client], [distance(result.mean, part.raw.train.y[part.raw.train.mask])])
            return result
    names = [name for group in trained.groups.values() for name in group.train.names]
    raise DataError("the run does not know it", client=client, hint=f"it knows {listed(names)}")


@kinds_checked
def join(trained: Trained | Served, path: Path | str) -> JsonTable:
    """Let clients personalise that never trained, and predict the rows of theirs that have no target.

    Args:
        trained: a run, as `open_run` gives it, or a release, as `open_release` does.
        path: CSV or Parquet with a client column, the run's features and the target, or .npz of a run on images; rows
            to predict have an empty (or nan) target, or `test` in a `split` column, or the label -1 in an .npz; images
            in a folder lie below CLIENT/test/, or in no folder of a class.

    Returns:
        Predictions as of `predict` by client; of its training rows where it has no rows to predict. A client without
        any target gets the prior's prediction, with the existing clients' average standardisation. Rows to predict that
        lack a feature, such as a lag into what nobody knows, are NaN; rows to learn from that lack one are left out.

    Raises:
        DataError: when columns are missing, rows cannot be used, or a client took part in the training.
        NumericalError: when a prediction is not finite, naming the client and its row.

    Warns:
        UserWarning: of rows that lack a feature.
    """
    known = trained if isinstance(trained, Served) else served(trained)
    table = read(known, path, need_target=True, default=None, excluded=False)
    kind = Prediction if known.schema.classes is None else ClassPrediction
    found: JsonTable = {}
    refused = []
    for one in joined(known, table, seen_by(trained), answers, BAND):
        result = kind(one.client, *one.values)
        if _first_bad(result, ~one.blank) is None:
            found[one.client] = _blanked(result, one.blank)
        else:
            refused.append(result)
    _require_finite(refused, known.shared.transform)
    return found


class Joined(NamedTuple):
    """What is predicted of a client that never trained.

    Args:
        client: its name.
        rows: positions [M] of these rows among its rows of the table.
        blank: those that lack a feature [M], whose numbers mean nothing.
        values: as `answers` gives them, [M] each.
    """

    client: str
    rows: Tensor
    blank: Tensor
    values: tuple[Tensor, ...]


Answers = Callable[
    [Served, FederationState, ScaledGroup, ClientBatch, Sequence[float]], Iterator[tuple[Tensor, tuple[Tensor, ...]]]
]
"""What predicts as `answers` does."""


def seen_by(trained: Trained | Served) -> Collection[str]:
    """Give the names of clients that cannot join, as they took part in the training; none where nobody knows."""
    return () if isinstance(trained, Served) else trained.history.clients


def joined(
    known: Served, table: user_tables.Table, seen: Collection[str], answer: Answers, levels: Sequence[float]
) -> Iterator[Joined]:
    """Let clients personalise that never trained, one after another.

    Args:
        known: the run.
        table: their rows.
        seen: names of clients that took part in the training.
        answer: what predicts.
        levels: of the quantiles, numbers in (0, 1).

    Yields:
        Of each client its rows to predict, or, where it has none, those that it learns from. Numbers that are not
        finite are left to who asks.

    Raises:
        DataError: as `join`.

    Warns:
        UserWarning: of rows that lack a feature, and of clients without a row to predict.
    """
    whole = user_rows.gap_free(table)
    for name in table.clients:
        if name in seen:
            hint = "ask for its predictions with predict; where a file has others too, --client names who joins"
            raise DataError("it took part in the training", client=name, hint=hint)
    split = table.split or {}
    asks = {name: y.isnan() | split.get(name, False) for name, (_, y) in table.clients.items()}
    _say_learned([name for name, ask in asks.items() if not bool(ask.any())])
    for name, (x, y) in table.clients.items():
        ask = asks[name]
        user_rows.say_gaps(table, name, ask)
        own = ~ask & whole[name]
        check_targets(pad(known, name, x[own], y[own]), known.shared, table.among(own))
        group, state = newcomer(known, name, x[own], y[own])
        wanted = ask if bool(ask.any()) else own if bool(own.any()) else ~ask  # blank, rather than nothing
        filled = x[wanted].where(_like(whole[name][wanted], x), 0.0)
        asked = pad(known, name, filled, torch.zeros(len(filled), dtype=torch.float64))
        _, values = next(answer(known, state, group, asked, levels))
        blank = ~whole[name][wanted]
        if known.schema.classes is None:
            say_far([name], [distance(values[0][0].masked_fill(blank, torch.nan), y[own])], known.shared.transform)
        yield Joined(name, torch.where(wanted)[0], blank, tuple(one[0] for one in values))


def _say_learned(learned: Sequence[str]) -> None:
    """Warn of clients whose predictions are of the rows that they learn from: they have no others."""
    if learned:
        what = f"every row of {listed(learned)} has a target, so that the rows just learned from are predicted"
        hint = "leave the target of rows to predict empty, or mark them as test in a column split"
        warnings.warn(f"{what}, better than others would be ({hint})", stacklevel=caller_stacklevel())


def newcomer(known: Served, name: str, x: Tensor, y: Tensor) -> tuple[ScaledGroup, FederationState]:
    """Take a client that never trained.

    Args:
        known: the run.
        name: of the client.
        x: its rows [M, *feature], in the data's own units; M may be 0, of a client that has the prior's prediction.
        y: its targets [M].

    Returns:
        The client, and the state in which it personalises.

    Raises:
        DataError: when rows cannot be used, or there are none and no average units that it may know.

    Warns:
        UserWarning: of a client without rows.
    """
    group = _scaled(known, pad(known, name, x, y), not len(y))
    return group, newcomer_state(known, group)


def newcomer_state(known: Served, group: ScaledGroup) -> FederationState:
    """Give the state in which clients personalise that never trained.

    Args:
        known: the run.
        group: the clients.

    Returns:
        The server's, and the initial states of these clients.
    """
    return state_of(known.method, FederationState(known.server, (), known.round), "new", group)


def _scaled(known: Served, own: ClientBatch, empty: bool) -> ScaledGroup:
    """Scale a client that joins by its own rows, or as the average client where it has none."""
    columns = scaling.names(known.schema)
    group = scale(tables.Group(own, own), known.shared, device_of(known.study), known.dtype, columns)
    if not empty:
        say_foreign(known.shared.learned(own), known.shared, columns)
        return group
    name, average = own.names[0], known.shared.average
    if average is None and not known.schema.feature_shape:
        what = "has no rows with a target, and the average units of others are nothing that it may know"
        raise DataError(what, client=name, hint="give it rows with targets")
    warnings.warn(f"{name} has no rows with a target: the prior's prediction, in average units", stacklevel=2)
    if average is None:  # images are left as they are
        return group
    average = Scaling(*(leaf.to(group.train.x.device) for leaf in average))
    return replace(group, units=average, used=known.shared.impose(average))


def _like(rows: Tensor, x: Tensor) -> Tensor:
    """Give what is said of rows [M] a shape that x [M, *feature] takes."""
    return rows.reshape(-1, *[1] * (x.dim() - 1))


def _blanked(prediction: AnyPrediction, blank: Tensor) -> AnyPrediction:
    """Make what is predicted of some rows [M] NaN."""
    if not bool(blank.any()):
        return prediction
    numbers = {field.name: getattr(prediction, field.name) for field in fields(prediction) if field.name != "client"}
    blanked = {name: values.double().masked_fill(blank, torch.nan) for name, values in numbers.items()}
    return replace(prediction, **blanked)


def _first_bad(prediction: AnyPrediction, asked: Tensor | None = None) -> int | None:
    """Return the first row of which a number is not finite, of those that are asked for [M]."""
    numbers = [getattr(prediction, field.name) for field in fields(prediction) if field.name != "client"]
    bad = ~torch.stack([one.double().isfinite() for one in numbers]).all(0)
    bad = bad if asked is None else bad & asked
    return int(bad.nonzero()[0]) if bool(bad.any()) else None


def _require_finite(predictions: Sequence[AnyPrediction], transform: Transform | None) -> Sequence[AnyPrediction]:
    """Refuse predictions that are no numbers, by their first client and row."""
    bad = [(one, row) for one in predictions if (row := _first_bad(one)) is not None]
    if not bad:
        return predictions
    one, row = bad[0]
    values = ", ".join(f"{f.name} {float(getattr(one, f.name)[row]):g}" for f in fields(one) if f.name != "client")
    others = f"; nor are those of {', '.join(other.client for other, _ in bad[1:6])}" if len(bad) > 1 else ""
    what = f"its prediction of row {row} is not finite ({values}){others}"
    raise NumericalError(what, client=one.client, hint=not_finite(transform))


def _rows_of(known: Served, group: ScaledGroup, path: Path | str, later: Path | str | None) -> Tensor:
    """Read the features [M, *feature] of one client."""
    client = group.train.names[0]
    past = past_of(known, later, client)
    table = read(known, path, need_target=False, default=client, groups=[group], past=past)
    if client not in table.clients:
        raise DataError(f"{path} has no rows of it", client=client)
    x = table.clients[client][0]
    user_rows.require_all(table, client, torch.ones(len(x), dtype=torch.bool))
    return x


def _checked(known: Served, client: str, x: Tensor) -> Tensor:
    """Refuse rows [M, *feature] of other columns or shape than the run's."""
    shape = known.schema.feature_shape or (len(known.schema.features),)
    if tuple(x.shape[1:]) != shape:
        expected = ", ".join(map(str, shape))
        raise DataError(f"rows to predict must be [M, {expected}], got {list(x.shape)}", client=client)
    if not len(x):
        raise DataError("there is no row to predict", client=client, hint="was a filter meant to leave some?")
    return x


def _predict(known: Served, state: FederationState, group: ScaledGroup, client: str, x: Tensor) -> AnyPrediction:
    """Predict rows x [M, *feature] of the one client of a group."""
    asked = pad(known, client, x, torch.zeros(len(x), dtype=torch.float64))
    _, result = next(answers(known, state, group, asked, BAND))
    kind = Prediction if known.schema.classes is None else ClassPrediction
    return kind(client, *(values[0] for values in result))


def levels_of(quantiles: Sequence[float]) -> dict[str, float]:
    """Name quantiles as columns: "q0.05" of the level .05.

    Args:
        quantiles: levels in (0, 1); none for "lower" and "upper", at 2.5 and 97.5 %.

    Returns:
        Level by column, in the order given.

    Raises:
        StudyError: when a level is not in (0, 1), or given twice.
    """
    if not quantiles:
        return dict(zip(("lower", "upper"), BAND, strict=True))
    for level in quantiles:
        if not (math.isfinite(level) and 0 < level < 1):
            raise StudyError(f"quantiles are between 0 and 1, got {level:g}", hint="such as .05,.5,.95")
    named = {f"q{level:g}": level for level in quantiles}
    if len(named) < len(quantiles):
        raise StudyError(f"a quantile is given twice: {', '.join(f'{level:g}' for level in quantiles)}")
    return named


def answers(
    known: Served, state: FederationState, group: ScaledGroup, asked: ClientBatch, levels: Sequence[float]
) -> Iterator[tuple[Tensor, tuple[Tensor, ...]]]:
    """Predict rows of all clients of a group, a few clients at a time.

    Args:
        known: the run.
        state: in which these K clients personalise.
        group: their training rows.
        asked: rows to predict x [K, M, *feature], in the data's own units.
        levels: of the quantiles, L numbers in (0, 1).

    Yields:
        Positions [k] of clients; and of their rows [k, M], on the CPU, mean, std and L quantiles in the data's own
        units, observation noise included; or, of a run on labels, the most probable label, its probability, and the
        entropy of all probabilities in nats.
    """
    rows = group.bring(asked.to(group.train.x.device)).x

    def predicted(index: Tensor, posterior: Any) -> tuple[Tensor, ...]:
        here = rows[index.to(rows.device)]
        if known.schema.classes is not None:
            mixture = predictive(posterior, here)
            top = mixture.probs.max(-1)
            return tuple(values.cpu() for values in (top.indices, top.values, mixture.entropy))
        own_rows = asked.x[index.to(asked.x.device)]
        _, own, unit = units_of(known.errors.around(posterior).predict(here), group, index, own_rows)
        quantiles = own.quantile(group.units.y_mean.new_tensor(list(levels)))
        scale = unit.unsqueeze(-1)
        return tuple((values * scale).cpu() for values in (own.mean, own.variance.sqrt(), *quantiles))

    return personalisation.personalise(known.method, state, group.train, known.study.plan, predicted)


def probabilities(
    known: Served, state: FederationState, group: ScaledGroup, asked: ClientBatch
) -> Iterator[tuple[Tensor, Tensor]]:
    """Predict the probabilities of all labels, of a run on labels.

    Args:
        known: the run.
        state: in which these K clients personalise.
        group: their training rows.
        asked: rows to predict x [K, M, *feature], in the data's own units.

    Yields:
        Positions [k] of clients, and probabilities [k, M, C] averaged over draws of their weights, on the CPU.
    """
    rows = group.bring(asked.to(group.train.x.device)).x

    def predicted(index: Tensor, posterior: Any) -> Tensor:
        return predictive(posterior, rows[index.to(rows.device)]).probs.cpu()

    return personalisation.personalise(known.method, state, group.train, known.study.plan, predicted)
