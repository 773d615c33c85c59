"""Rows of many clients, from their long form and back, a block of clients at a time: see `tensors.client_blocks`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data import long_arrays, padding
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import DataError

Batches = tuple[ClientBatch, ClientBatch, ClientBatch | None]
"""Training, test and validation rows of the same clients."""


class Pieces:
    """Rows of one part of every client, found when they are asked for.

    Args:
        x: inputs of all rows [R, *feature].
        y: targets [R].
        owners: whose each row is.
        part: which rows are of the part, bool [R].
    """

    def __init__(self, x: Tensor, y: Tensor, owners: Owners, part: Tensor) -> None:
        """Count the rows of each client."""
        self._x, self._y, self._owners, self._part = x, y, owners, part
        self.counts = owners.counts(part)

    def of(self, client: int) -> tuple[Tensor, Tensor]:
        """Rows of a client.

        Args:
            client: its number.

        Returns:
            (x [m, *feature], y [m]).
        """
        at = self._at(client)
        return self._x[at], self._y[at]

    def _at(self, client: int) -> Tensor:
        at = self._owners.rows(client)
        return at[self._part[at]]

    def padded(self, column: Tensor, clients: Sequence[int]) -> Tensor:
        """Put what is known of the rows of some clients into one tensor.

        Args:
            column: such as the times of all rows [R].
            clients: their numbers [K].

        Returns:
            [K, N], 0 in padding.
        """
        result = tensors.mapped_zeros((len(clients), max(int(self.counts[k]) for k in clients)), column.dtype)
        for own in tensors.client_blocks(len(clients)):
            for k in range(own.start, own.stop):
                rows = column[self._at(clients[k])]
                result[k, : len(rows)] = rows
        return result


class Owners:
    """Where the rows of every client are, in their order.

    Args:
        owner: number of each row's client [R], whole numbers.
        clients: how many there are.
    """

    def __init__(self, owner: np.ndarray[Any, Any], clients: int) -> None:
        """Sort the rows by client, unless they lie so already."""
        self._owner, self._clients = owner, clients
        self._order: Tensor | None = None
        sizes, rising, last = np.zeros(clients, dtype=np.int64), True, -1
        for own in long_arrays.row_blocks(len(owner)):
            part = owner[own]
            if part.size:
                rising = rising and part[0] >= last and bool((part[1:] >= part[:-1]).all())
                sizes += np.bincount(part, minlength=clients)
                last = int(part[-1])
        self._ends = np.cumsum(sizes)
        if not rising:
            self._order = tensors.mapped_zeros((len(owner),), torch.int64)
            self._order.copy_(torch.from_numpy(np.argsort(owner, kind="stable")))

    def rows(self, client: int) -> Tensor:
        """Give the positions of a client's rows [m], in their order."""
        begin, end = int(self._ends[client - 1]) if client else 0, int(self._ends[client])
        return torch.arange(begin, end) if self._order is None else self._order[begin:end]

    def counts(self, part: Tensor) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Count rows by client.

        Args:
            part: which rows count, bool [R].

        Returns:
            How many each client has [C].
        """
        result = np.zeros(self._clients, dtype=np.int64)
        for own in long_arrays.row_blocks(len(self._owner)):
            result += np.bincount(self._owner[own][part[own].numpy()], minlength=self._clients)
        return result


def joined(part_of: Callable[[slice], Batches], counts: Sequence[Sequence[int]]) -> Batches:
    """Make the batches of many clients, a block at a time: all at once would take memory twice.

    Args:
        part_of: makes those of the clients at some positions.
        counts: rows of every client, of each of the three parts.

    Returns:
        The batches of all, the same numbers as in one block.

    Raises:
        DataError: when a name or an id is used twice.
    """
    clients = len(counts[0])
    if clients <= tensors.BLOCK:
        return part_of(slice(0, clients))
    whole: list[tuple[Tensor, Tensor, Tensor] | None] = [None, None, None]
    ids, names = list[int](), list[str]()
    for own in tensors.client_blocks(clients):
        block = part_of(own)
        ids += block[0].ids
        names += block[0].names
        for at, batch in enumerate(block):
            if batch is not None:
                whole[at] = known = whole[at] or _room(batch, torch.as_tensor(counts[at]), max(1, *counts[at]))
                _write(batch, known, own.start)
    if len(set(ids)) < len(ids):
        count = Counter(ids)
        double = next(name for name, i in zip(names, ids, strict=True) if count[i] > 1)
        raise DataError("its name or id is used twice", client=double, hint="clients are told apart by name")
    train, test, validation = (None if one is None else ClientBatch(*one, tuple(ids), tuple(names)) for one in whole)
    return cast(ClientBatch, train), cast(ClientBatch, test), validation


def _room(like: ClientBatch, sizes: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Make room for x, y and mask of all clients, of so many rows each [K]."""
    shape, x = (len(sizes), width), like.x
    if padding.groups(sizes, (*shape, *x.shape[2:]), x.dtype) is None:
        whole = tensors.mapped_zeros((*shape, *x.shape[2:]), x.dtype)
        return whole, tensors.mapped_zeros(shape, like.y.dtype), tensors.mapped_zeros(shape, torch.bool)
    held = int(sizes.sum())
    kinds = ((x.shape[2:], x.dtype), ((), like.y.dtype), ((), torch.bool))
    whole, y, mask = (padding.room((*shape, *feature), dtype, held) for feature, dtype in kinds)
    return whole, y, mask


def _write(block: ClientBatch, into: tuple[Tensor, Tensor, Tensor], before: int) -> None:
    """Write rows of consecutive clients, but for the padding of groups, into those of all."""
    groups = block.groups() or [(torch.arange(block.clients), block.mask.shape[1])]
    for at, rows in groups:
        part = block.select(at, rows)
        for room, leaf in zip(into, (part.x, part.y, part.mask), strict=True):
            room[at + before, :rows] = leaf


def by_block(batch: ClientBatch, make: Callable[[ClientBatch, slice | Tensor], ClientBatch]) -> ClientBatch:
    """Make new rows of the same clients, such as scaled ones, a block of clients, or those of a size, at a time.

    Args:
        batch: rows [K, N, *feature].
        make: takes rows of some clients and their positions, and gives as many rows of as many clients.

    Returns:
        The new rows [K, N, *].
    """
    clients, width = batch.mask.shape
    if batch.x.device.type != "cpu":
        return make(batch, slice(0, clients))
    groups = batch.groups()
    if clients <= tensors.BLOCK and groups is None:
        return make(batch, slice(0, clients))
    known: tuple[Tensor, Tensor, Tensor] | None = None
    blocks = ((torch.arange(own.start, own.stop), width, own) for own in tensors.client_blocks(clients))
    for at, rows, own in blocks if groups is None else ((at, rows, at) for at, rows in _pieces(groups)):
        part = make(batch.select(at, rows), own)
        known = known or _room(part, padding.sizes(batch.mask), width)
        for into, leaf in zip(known, (part.x, part.y, part.mask), strict=True):
            into[own, :rows] = leaf
    return ClientBatch(*cast(tuple[Tensor, Tensor, Tensor], known), batch.ids, batch.names)


def by_size(batch: ClientBatch, find: Callable[[ClientBatch], Sequence[Tensor]]) -> list[Tensor]:
    """Find what depends on each client's rows alone, those of clients of similar sizes together.

    Args:
        batch: rows [K, N, *feature].
        find: takes rows of some clients [k, n, *feature], and gives tensors [k, *].

    Returns:
        The tensors of all clients [K, *], as those that it gives of the whole batch.
    """
    groups = batch.groups()
    if groups is None:
        return [*find(batch)]
    made = list[Tensor]()
    for at, rows in _pieces(groups):
        found = find(batch.select(at, rows))
        made = made or [leaf.new_zeros(batch.clients, *leaf.shape[1:]) for leaf in found]
        for into, leaf in zip(made, found, strict=True):
            into[at] = leaf
    return made


def _pieces(groups: Sequence[tuple[Tensor, int]]) -> Iterator[tuple[Tensor, int]]:
    """Cut groups of clients into blocks, and release tensors in files after each."""
    for at, rows in groups:
        for piece in at.split(tensors.BLOCK):
            yield piece, rows
            tensors.release_mapped()


class LongRows(NamedTuple):
    """Rows of some clients, client after client, each with its training, test and validation rows.

    Args:
        x: inputs [R, d].
        y: targets [R].
        owner: number of each row's client [R].
        part: 0 of training, 1 of test, 2 of validation rows [R].
        times: [R], where they are known; else nothing.
    """

    x: Tensor
    y: Tensor
    owner: Tensor
    part: Tensor
    times: list[Tensor]


def long_rows(batches: Batches, times: Sequence[Tensor] | None, before: int) -> LongRows:
    """Bring clients into the long form.

    Args:
        batches: their rows.
        times: of the training and test rows, where they are known.
        before: number of the first client.

    Returns:
        Their real rows.
    """
    x, y, owner, part, when = list[Tensor](), list[Tensor](), list[Tensor](), list[Tensor](), list[Tensor]()
    for number, batch in enumerate(batches):
        if batch is None:
            continue
        mask = batch.mask.cpu()
        x.append(batch.x.cpu()[mask].flatten(1))
        y.append(batch.y.cpu()[mask])
        owner.append(mask.nonzero()[:, 0] + before)
        part.append(torch.full(y[-1].shape, number))
        if times is not None:  # those of validation rows are not kept
            taken = times[number] if number < 2 else times[0].new_zeros(mask.shape)
            when.append(taken.cpu()[mask[:, : taken.shape[1]]])
    clients = torch.cat(owner)
    order = clients.argsort(stable=True)
    found = [torch.cat(when)[order]] if when else []
    return LongRows(torch.cat(x)[order], torch.cat(y)[order], clients[order], torch.cat(part)[order], found)
