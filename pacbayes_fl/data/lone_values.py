"""Columns in which a few values are so far from all others that scaling makes nearly one value of the rest."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.client_blocks import by_size
from pacbayes_fl.data.far_clients import those_in
from pacbayes_fl.data.moments import columns_of
from pacbayes_fl.errors import caller_stacklevel, listed
from pacbayes_fl.tensors import client_blocks

_SHARE: Final = 0.8  # of a client's rows that are nearest to its median
_LEAST: Final = 0.01  # standard deviations in which these lie, at least
_ROUNDING: Final = 500.0  # of the least relative step of numbers: distances below are none


def lone(columns: Tensor, mask: Tensor) -> Tensor:
    """Say which columns of which clients a few values stretch.

    With the median m_k of a client's n_k values v_i and the ceil(.8 n_k)-th smallest distance |v_i - m_k|, called d_k,
    0 < d_k < .01 std_k; so one value among n stretches a column from about 100 d_k sqrt(n) on. Where d_k is 0 most
    values are equal, as where it seldom rains, and nothing is said.

    Args:
        columns: [K, N, c], in units of each.
        mask: rows that there are [K, N] bool.

    Returns:
        [K, c] bool; False of clients with fewer than five rows.
    """
    rows = mask.sum(1)
    at = ((_SHARE * rows).ceil().long() - 1).clamp_min(0)
    middle = ((rows - 1) // 2).clamp_min(0)
    empty = ~mask.unsqueeze(-1)
    ordered = columns.double().masked_fill(empty, torch.inf).sort(1).values
    median = _nth(ordered, middle)
    away = (columns.double() - median.unsqueeze(1)).abs().masked_fill(empty, torch.inf).sort(1).values
    inner, farthest = _nth(away, at), _nth(away, (rows - 1).clamp_min(0))
    scale = torch.where(farthest > 0, farthest, 1.0)
    square = torch.where(away.isfinite(), away / scale.unsqueeze(1), 0.0).square().sum(1) / rows.clamp_min(1)[:, None]
    some = inner > _ROUNDING * torch.finfo(columns.dtype).eps * median.abs()
    return some & (inner / scale < _LEAST * square.sqrt()) & (rows >= 5).unsqueeze(-1)


def say_lone(batch: ClientBatch, names: Sequence[str]) -> None:
    """Warn of columns that a few values stretch; see `lone`.

    Args:
        batch: training rows of K clients, x [K, N, d], y [K, N].
        names: of the d features and the target.

    Warns:
        UserWarning: naming the clients, and the columns.
    """
    found = by_size(batch, _lone_blocks)[0].cpu()
    if not bool(found.any()):
        return
    who, where = those_in(found, batch.names, names)
    what = (
        f"{listed(who)}: a few values of {listed(where)} are so far from the others that four fifths of the rows lie "
        "within a hundredth of a standard deviation, nearly one value once they are scaled"
    )
    warnings.warn(f"{what}; mend these rows, or leave them out", stacklevel=caller_stacklevel())


def _lone_blocks(batch: ClientBatch) -> list[Tensor]:
    """Look at a block of clients at a time."""
    columns = columns_of(batch)
    return [torch.cat([lone(columns[own], batch.mask[own]) for own in client_blocks(batch.clients)])]


def _nth(ordered: Tensor, at: Tensor) -> Tensor:
    """Take a row [K] of each client of [K, N, c]."""
    index = at.view(-1, 1, 1).expand(-1, 1, ordered.shape[2])
    return ordered.gather(1, index).squeeze(1)
