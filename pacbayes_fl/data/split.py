"""Splits of rows inside clients, and the check that none stands on both sides."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import DataError


def assert_disjoint(train: ClientBatch, test: ClientBatch, what: str = "test") -> None:
    """Refuse a test row that is also a training row of the same client.

    Args:
        train: training rows.
        test: test rows of the same clients, in the same order.
        what: what errors call the latter.

    Raises:
        DataError: naming the client and the row, or that the clients differ.
    """
    if train.ids != test.ids:
        raise DataError(f"training and {what} rows must be of the same clients, got {train.names} and {test.names}")
    for k, name in enumerate(train.names):
        seen = {row.tobytes() for row in _stacked(train, k).numpy()}
        for row, values in enumerate(_stacked(test, k).numpy()):
            if values.tobytes() in seen:
                raise DataError(f"{what} row {row} is also a training row", client=name, hint="split the rows again")


def _stacked(batch: ClientBatch, k: int) -> Tensor:
    x, y = batch.x[k][batch.mask[k]], batch.y[k][batch.mask[k]]
    return torch.cat((x.flatten(1).double(), y.unsqueeze(-1).double()), 1).cpu().contiguous() + 0.0  # -0 becomes 0


def split_hash(*batches: ClientBatch) -> str:
    """Fingerprint of which rows went where, for the run folder.

    Args:
        *batches: any batches; names, masks and values enter.

    Returns:
        SHA-256, hexadecimal.
    """
    digest = hashlib.sha256()
    for batch in batches:
        for k, name in enumerate(batch.names):
            rows = _stacked(batch, k).numpy()
            digest.update(f"{len(batch.names)} {name!r} {rows.shape}\n".encode())
            digest.update(rows.tobytes())
    return digest.hexdigest()


def folds(batch: ClientBatch, count: int) -> list[tuple[ClientBatch, ClientBatch]]:
    """Cut every client's rows into contiguous blocks for cross-validation inside clients.

    Blocks, not shuffled rows: in a series neighbouring rows share their lags, so a shuffled fold would be tested on
    what it was trained on.

    Args:
        batch: training rows, in time order for a series.
        count: number of folds, at least 2.

    Returns:
        For each fold the batches (rest, held out), of all clients.

    Raises:
        DataError: when a client has fewer rows than folds, or there are fewer than two folds.
    """
    sizes = _enough(batch, count)
    starts = [torch.tensor([m * fold // count for fold in range(count)]) for m in sizes]
    dealt = [torch.bucketize(torch.arange(m), first, right=True) - 1 for m, first in zip(sizes, starts, strict=True)]
    return _by_fold(batch, dealt, count)


def stratified_folds(batch: ClientBatch, count: int) -> list[tuple[ClientBatch, ClientBatch]]:
    """Deal every client's rows to folds label by label, so that no fold is left without one that the client has often.

    Args:
        batch: training rows with labels y [K, N], in any order that says nothing within a label.
        count: number of folds, at least 2.

    Returns:
        For each fold the batches (rest, held out), of all clients.

    Raises:
        DataError: when a client has fewer rows than folds, or there are fewer than two folds.
    """
    sizes = _enough(batch, count)
    dealt = []
    for k, m in enumerate(sizes):
        fold = torch.empty(m, dtype=torch.int64)
        fold[batch.y[k, :m].cpu().argsort(stable=True)] = torch.arange(m) % count
        dealt.append(fold)
    return _by_fold(batch, dealt, count)


def _enough(batch: ClientBatch, count: int) -> list[int]:
    """Check that every client has a row for every fold, and return their sizes."""
    if count < 2:
        raise DataError(f"needs at least 2 folds, got {count}")
    sizes = [int(m) for m in batch.size.tolist()]
    for name, m in zip(batch.names, sizes, strict=True):
        if m < count:
            raise DataError(f"needs at least {count} rows for {count} folds, has {m}", client=name)
    return sizes


def _by_fold(batch: ClientBatch, dealt: Sequence[Tensor], count: int) -> list[tuple[ClientBatch, ClientBatch]]:
    """Cut a batch by the fold [m_k] of every row of each client."""
    pairs = []
    for fold in range(count):
        rest, held = [], []
        for k, folds in enumerate(dealt):
            x, y = batch.x[k, : len(folds)], batch.y[k, : len(folds)]
            out = (folds == fold).to(x.device)
            rest.append((x[~out], y[~out]))
            held.append((x[out], y[out]))
        pairs.append((ClientBatch.stack(rest, batch.names, batch.ids), ClientBatch.stack(held, batch.names, batch.ids)))
    return pairs
