"""Predictions of a finished run: for its own clients, and for clients that never trained."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data import scaling, tables
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import DataError
from pacbayes_fl.federation import engine
from pacbayes_fl.federation.engine import FederationState
from pacbayes_fl.study import Trained, device_of
from pacbayes_fl.study_data import ScaledGroup, match_columns, scale
from pacbayes_fl.study_report import BAND, state_of, units_of


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


def predict(trained: Trained, client: str, path: Path | str, later: Path | str | None = None) -> Prediction:
    """Predict rows of a table for a client that the run knows.

    Args:
        trained: as `open_run` gives it.
        client: name of an existing or new client of the run.
        path: CSV or Parquet with the run's feature columns; other clients' rows in it are ignored, a missing client
            column means that all rows are this client's.
        later: rows with targets that came after the training (the paper's S~_i); they are conditioned on too.

    Returns:
        One number a row and kind.

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


def join(trained: Trained, path: Path | str) -> dict[str, Prediction]:
    """Let clients personalise that never trained, and predict the rows of theirs that have no target.

    Args:
        trained: as `open_run` gives it.
        path: CSV or Parquet with a client column, the run's features and the target; rows to predict have an empty (or
            nan) target, or `test` in a `split` column.

    Returns:
        Predictions by client; of its training rows where it has no rows to predict. A client without any target gets
        the prior's prediction, with the existing clients' average standardisation.

    Raises:
        DataError: when columns are missing or rows cannot be used.
    """
    table = _table(trained, path, need_target=True, default=None)
    out = {}
    for name, (x, y) in table.clients.items():
        ask = y.isnan() if table.split is None else table.split[name]
        own = ClientBatch.pad([(x[~ask], y[~ask])], [name], allow_empty=True)
        group = scale(tables.Group(own, own), trained.method.raw_units, device_of(trained.study))
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
    data = trained.study.data
    table = tables.read_table(
        Path(path), data.client, trained.dataset.target.name, need_target=need_target, default_client=default
    )
    return match_columns(table, trained.dataset.features)


def _extend(trained: Trained, group: ScaledGroup, client: str, path: Path | str) -> ScaledGroup:
    """Add later rows of one client, in the units that its training rows gave it."""
    table = _table(trained, path, need_target=True, default=client)
    if client not in table.clients:
        raise DataError(f"{path} has no rows of it", client=client)
    more = ClientBatch.pad([table.clients[client]], [client], dtype=group.train.x.dtype).to(group.train.x.device)
    return replace(group, train=group.train.extend(group.used.apply(more)))


def _predict(trained: Trained, state: FederationState, group: ScaledGroup, client: str, x: Tensor) -> Prediction:
    asked = ClientBatch.pad([(x, torch.zeros(len(x), dtype=x.dtype))], [client]).to(group.train.x.device)
    index, posterior = next(engine.personalise(trained.method, state, group.train, trained.study.plan))
    _, own = units_of(posterior.predict(group.used.apply(asked).x), group, index, trained.method.raw_units)
    lower, upper = own.quantile(asked.x.new_tensor(BAND))
    return Prediction(client, *(t[0].cpu() for t in (own.mean, own.variance.sqrt(), lower, upper)))
