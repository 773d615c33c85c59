"""What clients keep between rounds: states of those that took part, and of the others nothing."""

from __future__ import annotations

import contextlib
import mmap
import weakref
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.methods.base import Method

Made = Callable[[Sequence[int]], Any]
_SHELF = 2**26  # bytes
_LARGE = 2**22
_LINE = 64


class _Place(NamedTuple):
    """Where a client's state is: a row of a block, leaves [n, *], which may be a shelf's."""

    block: Any
    row: int
    slot: _Slot | None = None


class _Slot:
    """A row of a shelf; others may have it when nobody refers to it any more."""


class _Shelves:
    """Room for states one by one: rows of large blocks, used again when nobody's state is in them.

    Among the large temporaries of a round a heap would keep as much again from being given back.
    """

    def __init__(self) -> None:
        self._free: dict[Any, list[tuple[Any, int]]] = {}
        self._rows: dict[Any, int] = {}

    def put(self, block: Any) -> list[_Place]:
        """Copy the rows of a block, leaves [k, *]."""
        leaves = tensors.leaves(block)
        form = tuple((name, leaf.shape[1:], leaf.dtype, leaf.device) for name, leaf in leaves.items())
        free, wanted = self._free.setdefault(form, []), len(next(iter(leaves.values())))
        while len(free) < wanted:
            size = sum(leaf.nbytes for leaf in leaves.values()) // wanted
            rows = max(wanted - len(free), min(self._rows.get(form, 16), _SHELF // max(1, size)))
            self._rows[form] = self._rows.get(form, 0) + rows
            shelf = _shelf(block, rows)
            free += [(shelf, row) for row in reversed(range(rows))]
        taken = sorted((free.pop() for _ in range(wanted)), key=lambda place: (id(place[0]), place[1]))
        places, at = [], 0
        for _, group in groupby(taken, key=lambda place: id(place[0])):
            some = list(group)
            _write(some[0][0], [row for _, row in some], _rows(block, at, len(some)))
            at += len(some)
            for shelf, row in some:
                slot = _Slot()
                weakref.finalize(slot, free.append, (shelf, row))
                places.append(_Place(shelf, row, slot))
        return places


def _shelf(block: Any, rows: int) -> Any:
    """Make room for so many rows like those of a block, leaves [k, *]; on the CPU in large pages where there are some.

    A page of 4 KB that is touched for the first time costs microseconds, and a state of a network has hundreds.
    """
    leaves = tensors.leaves(block).values()
    sizes = [-(-(leaf.nbytes // len(leaf) * rows) // _LINE) * _LINE for leaf in leaves]
    if sum(sizes) < _LARGE or any(leaf.device.type != "cpu" for leaf in leaves):
        return tensors.tree_map(lambda leaf: leaf.new_empty(rows, *leaf.shape[1:]), block)
    pages = mmap.mmap(-1, sum(sizes))
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            pages.madvise(mmap.MADV_HUGEPAGE)
    parts = iter(torch.frombuffer(pages, dtype=torch.uint8).split(sizes))

    def room(leaf: Tensor) -> Tensor:
        part: Tensor = next(parts)[: leaf.nbytes // len(leaf) * rows]
        return part.view(leaf.dtype).view(rows, *leaf.shape[1:])

    return tensors.tree_map(room, block)


def _rows(block: Any, first: int, count: int) -> Any:
    return tensors.tree_map(lambda leaf: leaf.narrow(0, first, count), block)


def _write(shelf: Any, at: list[int], rows: Any) -> None:
    index = torch.tensor(at)
    tensors.tree_map(lambda leaf, new: leaf.index_copy_(0, index.to(leaf.device), new), shelf, rows)


class Kept:
    """States of K clients that never change: a round makes another of them, which shares what was not written.

    A client that never took part takes no memory: its state is made when it is asked for, from the parameters with
    which the federation began.

    Args:
        clients: K.
        made: gives the states of clients that never took part, leaves [k, *], from their positions.
        at: where the state of each client is that did, by position.
        shelves: room for states that are kept apart.
    """

    def __init__(
        self,
        clients: int,
        made: Made,
        at: Mapping[int, _Place] = MappingProxyType({}),
        shelves: _Shelves | None = None,
    ) -> None:
        """Begin with what is known."""
        self.clients, self._made, self._at = clients, made, at
        self._shelves = _Shelves() if shelves is None else shelves

    @classmethod
    def start(cls, method: Method[Any, Any, Any, Any], message: Any, batch: ClientBatch) -> Kept:
        """Begin a federation, in which nobody has taken part.

        Args:
            method: says with what a client begins.
            message: what the server sends before the first round.
            batch: rows of all clients.

        Returns:
            States that take no memory.
        """

        def made(positions: Sequence[int]) -> Any:
            return method.init_clients(message, batch.select(torch.tensor(positions, dtype=torch.int64)))

        return cls(batch.clients, made)

    @classmethod
    def of(cls, states: Any, clients: int) -> Kept:
        """Take states in one piece for what they are.

        Args:
            states: leaves [K, *], or a `Kept`, which is given back.
            clients: K.

        Returns:
            The states.
        """
        if isinstance(states, Kept):
            return states
        return cls(clients, lambda positions: states, {k: _Place(states, k) for k in range(clients)})

    @property
    def present(self) -> tuple[int, ...]:
        """Positions of the clients whose states take memory."""
        return tuple(sorted(self._at))

    @property
    def bytes(self) -> int:
        """Memory that these states take: whole blocks, and of shelves their own rows."""
        blocks = {id(place.block): place.block for place in self._at.values() if place.slot is None}
        own = [leaf for block in blocks.values() for leaf in tensors.leaves(block).values()]
        shelved = {(id(place.block), place.row): place.block for place in self._at.values() if place.slot is not None}
        return sum(leaf.nbytes for leaf in own) + sum(
            leaf.nbytes // len(leaf) for shelf in shelved.values() for leaf in tensors.leaves(shelf).values()
        )

    def select(self, positions: Sequence[int]) -> Any:
        """Give the states of some clients, to be read only: they may be views of what is kept.

        Args:
            positions: k of them, in any order, at least one.

        Returns:
            Leaves [k, *].
        """
        absent = [k for k in positions if k not in self._at]
        made = self._made(absent) if absent else None
        new = iter(range(len(absent)))
        places = [self._at[k] if k in self._at else _Place(made, next(new)) for k in positions]
        parts = []
        for _, group in groupby(places, key=lambda place: id(place.block)):
            some = list(group)
            block, rows = some[0].block, [place.row for place in some]
            if some[0].slot is None and rows == list(range(rows[0], rows[0] + len(rows))):
                parts.append(_rows(block, rows[0], len(rows)))
            else:  # of a shelf a copy: its rows may be used again
                index = torch.tensor(rows)
                parts.append(tensors.tree_map(lambda leaf, i=index: leaf.index_select(0, i.to(leaf.device)), block))
        return parts[0] if len(parts) == 1 else tensors.cat(parts)

    def together(self) -> Any:
        """Give the states of all clients: memory as if all had taken part.

        Returns:
            Leaves [K, *].
        """
        return self.select(range(self.clients))

    def after(self, written: Sequence[tuple[Sequence[int], Any]], apart: bool) -> Kept:
        """Give the states after a round; these stay as they are.

        Args:
            written: positions of the clients of a call and their new states, leaves [k, *], which nobody changes later.
            apart: keep a copy of every client's state of its own: clients that are written together now will not be
                another time, and a block stays as long as any of its rows is somebody's state.

        Returns:
            The states.
        """
        at = dict(self._at)
        for positions, block in written:
            if tensors.leaves(block):
                places = self._shelves.put(block) if apart else [_Place(block, row) for row in range(len(positions))]
                at.update(zip(positions, places, strict=True))
        return Kept(self.clients, self._made, at, self._shelves)

    def some(self, positions: Sequence[int]) -> Kept:
        """Give a federation of some of the clients.

        Args:
            positions: of the clients, in their new order.

        Returns:
            Their states, which share memory with these.
        """
        chosen = list(positions)
        at = {new: self._at[old] for new, old in enumerate(chosen) if old in self._at}
        return Kept(len(chosen), lambda asked: self._made([chosen[k] for k in asked]), at, self._shelves)
