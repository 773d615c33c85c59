"""Clients that never trained, whose columns are in other units than those by which the run scales them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.far_clients import beyond, those_in
from pacbayes_fl.data.moments import client_moments
from pacbayes_fl.data.scaling import Shared
from pacbayes_fl.errors import caller_stacklevel, listed


def say_foreign(batch: ClientBatch, shared: Shared, names: Sequence[str]) -> None:
    """Warn of clients whose rows are none of the federation's, in columns that its moments scale; see `beyond`.

    Columns that are scaled by each client's own moments may be in any unit, and of columns in their own units nothing
    is known.

    Args:
        batch: rows that new clients learn from, targets as a method learns them, x [K, N, d].
        shared: what the scaling of all clients has in common.
        names: of the d features and the target.

    Warns:
        UserWarning: naming the clients, and the columns.
    """
    if batch.x.dim() > 3 or not bool(shared.federated.any()):
        return
    moments = client_moments(batch)
    away = beyond(moments, shared.population).cpu() & shared.federated
    away &= batch.mask.any(1).cpu().unsqueeze(-1)
    if bool(away.any()):
        who, where = those_in(away, batch.names, names)
        what = f"{listed(who)}: far in {listed(where)} from what the clients of the training have"
        what = f"{what}, so that its own moments alone scale it"
        warnings.warn(f"{what}; check units, and single values", stacklevel=caller_stacklevel())
