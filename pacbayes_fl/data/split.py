"""Splits of rows inside clients, and the check that none stands on both sides."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import DataError

_DIGITS: Final = 20  # of a number in a client's name

Array = npt.NDArray[np.float64]
Told = Callable[[int, Tensor], Tensor]
"""Finds the rows [m] of the client at a position that are told the targets of its held-out rows [m], both bool."""


def assert_disjoint(
    train: ClientBatch, test: ClientBatch, what: str = "test", times: tuple[Tensor, Tensor] | None = None
) -> None:
    """Refuse a test row that is also a training row of the same client.

    Args:
        train: training rows [K, N].
        test: test rows of the same clients, in the same order [K, M].
        what: what errors call the latter.
        times: of the training rows [K, N] and the others [K, M], where they are known: equal rows of different times
            are different rows.

    Raises:
        DataError: naming the first client, one of its rows and the number of such rows, or that the clients differ.
    """
    if train.ids != test.ids:
        raise DataError(f"training and {what} rows must be of the same clients, got {train.names} and {test.names}")
    result = shared(train, test, times)
    if not result:
        return
    (name, rows), others = next(iter(result.items())), sum(map(len, result.values()))
    k = train.names.index(name)
    *x, y = next(rows_of(test.select(torch.tensor([k]))))[rows[0]].tolist()
    shown = ", ".join(f"{value:g}" for value in x[:_SHOWN]) + (", ..." if len(x) > _SHOWN else "")
    more = f", of {others} in {len(result)} clients" if len(result) > 1 else ""
    raise DataError(
        f"{what} row {rows[0]} is also a training row (x = {shown}; y = {y:g}), the first of {len(rows)} such rows "
        f"among its {int(test.size[k])}{more}",
        client=name,
        hint="split the rows again; or, where rows are alike by chance, as nights are, data.time = 'COLUMN' tells them "
        "apart by their times, and data.duplicate_rows = 'allow' keeps them",
    )


def shared(train: ClientBatch, test: ClientBatch, times: tuple[Tensor, Tensor] | None = None) -> dict[str, list[int]]:
    """Find test rows that are also training rows of the same client.

    Args:
        train: training rows [K, N].
        test: test rows of the same clients, in the same order [K, M].
        times: as for `assert_disjoint`.

    Returns:
        Their positions by client, of the clients that have some.
    """
    old, new = (None, None) if times is None else times
    result = {}
    for name, learned, scored in zip(train.names, _keys(train, old), _keys(test, new), strict=True):
        seen = set(learned)
        if both := [row for row, values in enumerate(scored) if values in seen]:
            result[name] = both
    return result


def _keys(batch: ClientBatch, times: Tensor | None) -> Iterator[list[bytes]]:
    """Yield keys of each client's real rows, equal for equal rows: all numbers, and the time where it is known."""
    for k, own in enumerate(rows_of(batch)):
        rows = [row.tobytes() for row in own]
        if times is not None:
            taken = times[k][: len(rows)].numpy() + 0  # -0 becomes 0
            rows = [row + time.tobytes() for row, time in zip(rows, taken, strict=True)]
        yield rows


_SHOWN = 4  # features of a row in an error
_BLOCK = 2**18  # numbers that are copied at once


def rows_of(batch: ClientBatch) -> Iterator[Array]:
    """Give the rows of one client after another, features and target beside each other.

    Args:
        batch: x [K, N, *feature], y [K, N].

    Yields:
        [m_k, d + 1], float64.
    """
    width = batch.x[0].numel() + batch.y.shape[1]
    step = max(1, _BLOCK // width)
    for at in range(0, batch.clients, step):
        part = slice(at, at + step)
        mask = batch.mask[part].cpu()
        x, y = batch.x[part].cpu()[mask], batch.y[part].cpu()[mask]
        rows = torch.cat((x.flatten(1).double(), y.unsqueeze(-1).double()), 1) + 0.0  # -0 becomes 0
        yield from np.split(rows.numpy(), mask.sum(1).cumsum(0)[:-1].numpy())
        tensors.release_mapped()


def split_hash(*batches: ClientBatch) -> str:
    """Fingerprint of which rows went where, for the run folder.

    Args:
        *batches: any batches; names, masks and values enter.

    Returns:
        SHA-256, hexadecimal.
    """
    digest = hashlib.sha256()
    for batch in batches:
        for name, rows in zip(batch.names, rows_of(batch), strict=True):
            digest.update(_entry(len(batch.names), name, rows))
    return digest.hexdigest()


def client_hashes(*batches: ClientBatch) -> dict[str, str]:
    """Fingerprint of every client's rows: that which `split_hash` gives of the client alone.

    Args:
        *batches: rows of the same clients, in the same order.

    Returns:
        SHA-256, hexadecimal, by name.
    """
    clients = zip(batches[0].names, *map(rows_of, batches), strict=True)
    return {
        name: hashlib.sha256(b"".join(_entry(1, name, rows) for rows in parts)).hexdigest() for name, *parts in clients
    }


def _entry(clients: int, name: str, rows: Array) -> bytes:
    """What a fingerprint is taken of: of how many clients this is one, its name, and its rows."""
    return f"{clients} {name!r} {rows.shape}\n".encode() + rows.tobytes()


def folds(batch: ClientBatch, count: int, told: Told | None = None) -> list[tuple[ClientBatch, ClientBatch]]:
    """Cut every client's rows into contiguous blocks for cross-validation inside clients.

    Blocks, not shuffled rows: in a series neighbouring rows share their lags, so a shuffled fold would be tested on
    what it was trained on.

    Args:
        batch: training rows, in time order for a series.
        count: number of folds, at least 2.
        told: finds the rows that belong to neither side: their lags are held-out targets.

    Returns:
        For each fold the batches (rest, held out), of all clients.

    Raises:
        DataError: when a client has fewer rows than folds, or is left without any beside a fold, or there are fewer
            than two folds.

    Example:
        >>> import torch
        >>> from pacbayes_fl import ClientBatch
        >>> from pacbayes_fl.data.split import folds
        >>> batch = ClientBatch.pad([(torch.arange(6.0).unsqueeze(1), torch.arange(6.0))])
        >>> [held.y.tolist() for _, held in folds(batch, 3)]
        [[[0.0, 1.0]], [[2.0, 3.0]], [[4.0, 5.0]]]
    """
    sizes = _enough(batch, count)
    return _with_rest(_by_fold(batch, [_blocks(m, count) for m in sizes], range(count), told))


def stratified_folds(batch: ClientBatch, count: int, told: Told | None = None) -> list[tuple[ClientBatch, ClientBatch]]:
    """Deal every client's rows to folds label by label, so that no fold is left without one that the client has often.

    Args:
        batch: training rows with labels y [K, N], in any order that says nothing within a label.
        count: number of folds, at least 2.
        told: as for `folds`.

    Returns:
        For each fold the batches (rest, held out), of all clients.

    Raises:
        DataError: as `folds`.
    """
    sizes = _enough(batch, count)
    dealt = [_labelled(batch.y[k, :m], count) for k, m in enumerate(sizes)]
    return _with_rest(_by_fold(batch, dealt, range(count), told))


def held_out(batch: ClientBatch, count: int, told: Told | None = None) -> tuple[ClientBatch, ClientBatch]:
    """Hold the first of `count` parts of every client's rows out: a block of a series, or of labels some of each.

    Args:
        batch: training rows, as for `folds` or, with labels, `stratified_folds`.
        count: number of parts, at least 2.
        told: as for `folds`.

    Returns:
        The rest and what is held out, of all clients: one row of a client with fewer rows than parts, and none of a
        single one, or where no row is beside it that is not told its target. Labels that are held out are among the
        rest too; of a client that has one row of each it is one of them, another from client to client.
    """
    dealt = []
    for k, m in enumerate(int(size) for size in batch.size.tolist()):
        real = batch.y.is_floating_point()
        held = held_block(m, count, 0) if real else held_labels(batch.y[k, :m].cpu(), count, 0, batch.ids[k])
        dealt.append((~held).long())
        if told is not None and bool((told(k, dealt[k] == 0) | (dealt[k] == 0)).all()):
            dealt[k] += 1
    return _by_fold(batch, dealt, [0], told)[0]


def shuffled(batch: ClientBatch, generator: torch.Generator) -> Tensor:
    """Draw an order of the clients that is the same in whatever order the table has them.

    Args:
        batch: of one group, whose names are different.
        generator: of the draw.

    Returns:
        Positions of the clients in the batch [K].
    """
    by_name = torch.tensor(sorted(range(batch.clients), key=lambda k: _numbered(batch.names[k])))
    return by_name[torch.randperm(batch.clients, generator=generator)]


def _numbered(name: str) -> tuple[str, str]:
    """Order names as people do, "house 2" before "house 10": so tables mostly have them."""
    return re.sub(r"\d+", lambda digits: digits[0].zfill(_DIGITS), name), name


def _blocks(m: int, count: int) -> Tensor:
    """The fold of every row of a series [m]."""
    first = torch.tensor([m * fold // count for fold in range(count)])
    return torch.bucketize(torch.arange(m), first, right=True) - 1


def _labelled(y: Tensor, count: int) -> Tensor:
    """The fold of every row with a label [m]."""
    fold = torch.empty(len(y), dtype=torch.int64)
    fold[y.cpu().argsort(stable=True)] = torch.arange(len(y)) % count
    return fold


def held_block(m: int, count: int, block: int) -> Tensor:
    """Hold a block of one client's series out.

    Args:
        m: its rows.
        count: number of blocks, at least 2; of fewer rows each is one.
        block: which one, from 0; from -1 counted from the end.

    Returns:
        bool [m]: the rows that are held out; none of a single one.
    """
    blocks = min(count, m)
    return torch.zeros(m, dtype=torch.bool) if blocks < 2 else _blocks(m, blocks) == block % blocks


def held_labels(y: Tensor, count: int, fold: int, client: int) -> Tensor:
    """Hold a part of one client's labelled rows out, some of each label: no model knows a label that it never saw.

    Args:
        y: labels [m] on the CPU, in any order that says nothing within a label.
        count: number of parts, at least 2; of fewer rows one is held out.
        fold: which part, in 0..count-1.
        client: any number of the client's own: where every label has one row, it says of which that is held out.

    Returns:
        bool [m]: rows whose label has another row that is not held out, or a single row; none of a single one.
    """
    parts = min(count, len(y))
    if parts < 2:
        return torch.zeros(len(y), dtype=torch.bool)
    _, kind, times = y.unique(return_inverse=True, return_counts=True)
    held = _labelled(y, parts) == fold % parts
    held &= (times - kind[held].bincount(minlength=len(times)))[kind] > 0
    if not held.any():
        again = (times[kind] > 1).nonzero().squeeze(1)
        held[again[fold % len(again)] if len(again) else y.argsort(stable=True)[(client + fold) % len(y)]] = True
    return held


def _enough(batch: ClientBatch, count: int) -> list[int]:
    """Check that every client has a row for every fold, and return their sizes."""
    if count < 2:
        raise DataError(f"needs at least 2 folds, got {count}")
    sizes = [int(m) for m in batch.size.tolist()]
    for name, m in zip(batch.names, sizes, strict=True):
        if m < count:
            raise DataError(f"needs at least {count} rows for {count} folds, has {m}", client=name)
    return sizes


def _by_fold(
    batch: ClientBatch, dealt: Sequence[Tensor], wanted: Sequence[int], told: Told | None = None
) -> list[tuple[ClientBatch, ClientBatch]]:
    """Cut a batch by the fold [m_k] of every row of each client, for each of the wanted ones."""
    pairs = []
    for fold in wanted:
        rest, held = [], []
        for k, folds in enumerate(dealt):
            x, y = batch.x[k, : len(folds)], batch.y[k, : len(folds)]
            out = folds == fold
            left = (~out if told is None else ~out & ~told(k, out)).to(x.device)
            out = out.to(x.device)
            rest.append((x[left], y[left]))
            held.append((x[out], y[out]))
        pairs.append((ClientBatch.stack(rest, batch.names, batch.ids), ClientBatch.stack(held, batch.names, batch.ids)))
    return pairs


def _with_rest(pairs: list[tuple[ClientBatch, ClientBatch]]) -> list[tuple[ClientBatch, ClientBatch]]:
    """Refuse a client that a fold leaves without rows."""
    for fold, (rest, _) in enumerate(pairs):
        if alone := [name for name, rows in zip(rest.names, rest.size.tolist(), strict=True) if not rows]:
            what = f"all of its rows beside fold {fold + 1} of {len(pairs)} have lags or rolling means of targets in it"
            raise DataError(what, client=alone[0], hint="fewer folds; or leave the client or these features out")
    return pairs
