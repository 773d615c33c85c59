"""What a run knows of its clients' past, of which features of later rows are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pacbayes_fl.data.archives import Array
from pacbayes_fl.errors import DataError


class History(NamedTuple):
    """Columns of which lags and rolling means are made.

    Args:
        columns: their c names.
        kind: of the times, as `data.times` calls it.
        clients: name -> (times [h], values [h, c], float64, NaN where missing).
    """

    columns: tuple[str, ...]
    kind: str
    clients: Mapping[str, tuple[Tensor, Tensor]]

    def of(self, client: str, column: str) -> tuple[Tensor, Tensor]:
        """Give what is known of a column of a client.

        Args:
            client: its name.
            column: of the table.

        Returns:
            Times and values [h]; none of a client or a column that is not known.
        """
        if client not in self.clients or column not in self.columns:
            return torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.float64)
        times, values = self.clients[client]
        return times, values[:, self.columns.index(column)]

    def extended(self, later: History | None) -> History:
        """Add what came later; of one time the later table counts.

        Args:
            later: of the same columns, None for nothing.

        Returns:
            Both.
        """
        if later is None:
            return self
        if later.columns != self.columns or later.kind != self.kind:
            raise ValueError(f"histories of {self.columns}, {self.kind} and of {later.columns}, {later.kind}")
        both = {
            name: tuple(torch.cat(parts) for parts in zip(own, self.clients[name], strict=True))
            if name in self.clients
            else own
            for name, own in later.clients.items()
        }
        return self._replace(clients={**self.clients, **both})  # type: ignore[dict-item]


def to_arrays(history: History | None, names: Sequence[str]) -> dict[str, Array]:
    """Write a history as arrays of the long form.

    Args:
        history: of a data set.
        names: of its clients, in the order of the long form.

    Returns:
        `history_client` [H], `history_time` [H], `history_values` [H, h] and `history_name` [h]; nothing of none.
    """
    if history is None:
        return {}
    there = [(k, history.clients[name]) for k, name in enumerate(names) if name in history.clients]
    return {
        "history_client": np.concatenate([np.full(len(times), k, dtype=np.int64) for k, (times, _) in there]),
        "history_time": torch.cat([times for _, (times, _) in there]).numpy(),
        "history_values": torch.cat([values for _, (_, values) in there]).numpy(),
        "history_name": np.array(history.columns),
    }


def from_arrays(arrays: Mapping[str, Array], names: Sequence[str], kind: str) -> History | None:
    """Read a history that `to_arrays` wrote.

    Args:
        arrays: of the long form, whose shapes are checked.
        names: of the clients.
        kind: of their times.

    Returns:
        The history, None where there is none.

    Raises:
        DataError: when an array is missing or not of numbers.
    """
    keys = ("history_client", "history_time", "history_values", "history_name")
    if not any(key in arrays for key in keys):
        return None
    for key, sorts in zip(keys, ("iu", "i", "f", "U"), strict=True):
        if key not in arrays or arrays[key].dtype.kind not in sorts:
            raise DataError(f"array {key!r} is missing or of another kind", hint="is this file one of a run?")
    owner, when = arrays["history_client"], torch.from_numpy(arrays["history_time"].astype(np.int64))
    values = torch.from_numpy(arrays["history_values"].astype(np.float64))
    if not np.isin(owner, np.arange(len(names))).all():
        raise DataError(f"array 'history_client' must hold whole numbers in 0..{len(names) - 1}")
    rows = {name: torch.from_numpy(np.flatnonzero(owner == k)) for k, name in enumerate(names)}
    clients = {name: (when[at], values[at]) for name, at in rows.items()}
    return History(tuple(arrays["history_name"].tolist()), kind, clients)
