"""Predictions of a finished run: for its own clients, and for clients that never trained."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pacbayes_fl import study_images, tensors
from pacbayes_fl.data import scaling, tables
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import DataError
from pacbayes_fl.federation import engine
from pacbayes_fl.federation.engine import FederationState
from pacbayes_fl.study import Trained
from pacbayes_fl.study_classes import predictive
from pacbayes_fl.study_data import ScaledGroup, match_columns, scale
from pacbayes_fl.study_report import BAND, state_of, units_of
from pacbayes_fl.study_setup import device_of


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


def predict(trained: Trained, client: str, path: Path | str, later: Path | str | None = None) -> Any:
    """Predict rows of a table for a client that the run knows.

    Args:
        trained: as `open_run` gives it.
        client: name of an existing or new client of the run.
        path: CSV or Parquet with the run's feature columns, or .npz of a run on images (see `study_images.read`); other
            clients' rows in it are ignored, a missing client column means that all rows are this client's.
        later: rows with targets that came after the training (the paper's S~_i); they are conditioned on too.

    Returns:
        A `Prediction`, or a `ClassPrediction` of a run on labels: one number a row and kind.

    Raises:
        DataError: when the client or a column is not known.
    """
    for name, group in trained.groups.items():
        if client in group.train.names:
            k = group.train.names.index(client)
            table = _table(trained, path, need_target=False, default=client)
            if client not in table.clients:
                raise DataError(f"{path} has no rows of it", client=client)
            part = group.select(torch.tensor([k]))
            state = state_of(trained.method, trained.state, name, part)
            if name == "existing":
                at = torch.tensor([k], device=part.train.x.device)
                state = state._replace(clients=tensors.select(trained.state.clients, at))
            if later is not None:
                part = _extend(trained, part, client, later)
            return _predict(trained, state, part, client, table.clients[client][0])
    known = [name for group in trained.groups.values() for name in group.train.names]
    raise DataError("the run does not know it", client=client, hint=f"it knows {', '.join(known[:6])}, ...")


def join(trained: Trained, path: Path | str) -> dict[str, Any]:
    """Let clients personalise that never trained, and predict the rows of theirs that have no target.

    Args:
        trained: as `open_run` gives it.
        path: CSV or Parquet with a client column, the run's features and the target, or .npz of a run on images; rows
            to predict have an empty (or nan) target, or `test` in a `split` column, or the label -1 in an .npz.

    Returns:
        Predictions as of `predict` by client; of its training rows where it has no rows to predict. A client without
        any target gets the prior's prediction, with the existing clients' average standardisation.

    Raises:
        DataError: when columns are missing or rows cannot be used.
    """
    table = _table(trained, path, need_target=True, default=None)
    out = {}
    for name, (x, y) in table.clients.items():
        ask = y.isnan() if table.split is None else table.split[name]
        own = _pad(trained, name, x[~ask], y[~ask])
        dtype = trained.groups["existing"].train.x.dtype
        group = scale(tables.Group(own, own), trained.method.raw_units, device_of(trained.study), dtype)
        if bool(ask.all()):
            warnings.warn(f"{name} has no rows with a target: the prior's prediction, in average units", stacklevel=2)
            known = trained.groups["existing"]
            units, used = (
                scaling.Scaling(*(t.mean(0, keepdim=True) for t in one)) for one in (known.units, known.used)
            )
            group = replace(group, units=units, used=used)
        state = state_of(trained.method, trained.state, "new", group)
        out[name] = _predict(trained, state, group, name, x[ask] if bool(ask.any()) else x)
    return out


def _table(trained: Trained, path: Path | str, need_target: bool, default: str | None) -> tables.Table:
    data, dataset = trained.study.data, trained.dataset
    if dataset.feature_shape:
        return study_images.read(Path(path), dataset.feature_shape, default)
    table = tables.read_table(
        Path(path),
        data.client,
        dataset.target.name,
        need_target=need_target,
        default_client=default,
        task="regression" if dataset.classes is None else "classification",
    )
    return match_columns(table, dataset.features)


def _extend(trained: Trained, group: ScaledGroup, client: str, path: Path | str) -> ScaledGroup:
    """Add later rows of one client, in the units that its training rows gave it."""
    table = _table(trained, path, need_target=True, default=client)
    if client not in table.clients:
        raise DataError(f"{path} has no rows of it", client=client)
    more = _pad(trained, client, *table.clients[client]).to(group.train.x.device)
    return replace(group, train=group.train.extend(group.bring(more)))


def _pad(trained: Trained, client: str, x: Tensor, y: Tensor) -> ClientBatch:
    """Check the rows of one client as those of the run's own were checked."""
    raw = trained.groups["existing"].raw.train
    return ClientBatch.pad([(x, y)], [client], dtype=raw.x.dtype, classes=trained.dataset.classes, allow_empty=True)


def _predict(trained: Trained, state: FederationState, group: ScaledGroup, client: str, x: Tensor) -> AnyPrediction:
    asked = _pad(trained, client, x, torch.zeros(len(x), dtype=torch.float64)).to(group.train.x.device)
    index, posterior = next(engine.personalise(trained.method, state, group.train, trained.study.plan))
    rows = group.bring(asked).x
    if trained.dataset.classes is not None:
        mixture = predictive(posterior, rows)
        top = mixture.probs.max(-1)
        return ClassPrediction(client, *(t[0].cpu() for t in (top.indices, top.values, mixture.entropy)))
    _, own = units_of(posterior.predict(rows), group, index, trained.method.raw_units)
    lower, upper = own.quantile(group.units.y_mean.new_tensor(BAND))
    return Prediction(client, *(t[0].cpu() for t in (own.mean, own.variance.sqrt(), lower, upper)))
