"""Clients that never trained, whose columns are in other units than those by which the run scales them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.far_clients import beyond, those_in
from pacbayes_fl.data.moments import moments_of
from pacbayes_fl.data.scaling import FEDERATED, Shared, columns_of
from pacbayes_fl.data.shrinkage import Population
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
    zero = torch.zeros_like(shared.std)
    between, spread = (zero if leaf is None else leaf for leaf in (shared.between, shared.spread))
    federated = torch.tensor([kind in FEDERATED for kind in shared.kinds])
    if batch.x.dim() > 3 or not bool(federated.any()):
        return
    moments = moments_of(columns_of(batch), batch.mask)
    away = beyond(moments, Population(shared.mean, shared.std, between, spread)).cpu() & federated
    away &= batch.mask.any(1).cpu().unsqueeze(-1)
    if bool(away.any()):
        who, where = those_in(away, batch.names, names)
        pooled = any(shared.kinds[j] == "pooled" for j in away.any(0).nonzero().flatten().tolist())
        how = "by whose moments it is scaled" if pooled else "so that its own moments alone scale it"
        what = f"{listed(who)}: far in {listed(where)} from what the clients of the training have, {how}"
        warnings.warn(f"{what}; check units, and single values", stacklevel=caller_stacklevel())
