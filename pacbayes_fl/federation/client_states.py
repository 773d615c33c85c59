"""States of clients between rounds: stored for those that took part, initial for the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.federation.state_memory import Place, Shelves, copy_rows, room, rows
from pacbayes_fl.methods.base import AnyMethod
from pacbayes_fl.tensors import AnyTree

Made = Callable[[Sequence[int]], AnyTree]
AT_HAND = 2**26
"""Bytes of states that a round supersedes and that stay in memory all the same: of small federations, all."""


class _Part(NamedTuple):
    """A client's state in a block that is not written to any more, leaves [n, *]."""

    block: AnyTree
    row: int


class Kept:
    """Immutable states of K clients: a round makes a new object, which shares the unchanged states.

    A client that never took part takes no memory: its state is made when it is asked for, from the parameters with
    which the federation began.

    Args:
        clients: K.
        made: gives the states of clients that never took part, leaves [k, *], from their positions.
        at: where the state of each client is that did, by position.
        shelves: room for states.
    """

    def __init__(
        self,
        clients: int,
        made: Made,
        at: Mapping[int, Place | _Part] = MappingProxyType({}),
        shelves: Shelves | None = None,
    ) -> None:
        """Store the states."""
        self.clients, self._made, self._at = clients, made, at
        self.shelves = Shelves() if shelves is None else shelves

    @classmethod
    def start(cls, method: AnyMethod, message: AnyTree, batch: ClientBatch) -> Kept:
        """Start a federation: all clients have their initial state.

        Args:
            method: gives the initial state of a client.
            message: of the server before the first round.
            batch: rows of all clients.

        Returns:
            States that take no memory.
        """

        def made(positions: Sequence[int]) -> AnyTree:
            return method.init_clients(message, batch.select(torch.tensor(positions, dtype=torch.int64)))

        return cls(batch.clients, made)

    @classmethod
    def of(cls, states: AnyTree, clients: int) -> Kept:
        """Wrap states that are in one piece.

        Args:
            states: leaves [K, *], or a `Kept`, which is given back.
            clients: K.

        Returns:
            The states.
        """
        if isinstance(states, Kept):
            return states
        return cls(clients, lambda positions: states, {k: _Part(states, k) for k in range(clients)})

    @property
    def present(self) -> tuple[int, ...]:
        """Positions of the clients whose states take memory."""
        return tuple(sorted(self._at))

    @property
    def bytes(self) -> int:
        """Memory that these states take: blocks as a whole and rows of shelves; states in the file take none."""
        blocks = {id(place.block): place.block for place in self._at.values() if isinstance(place, _Part)}
        own = sum(leaf.nbytes for block in blocks.values() for leaf in tensors.leaves(block).values())
        return own + sum(place.bytes for place in self._at.values() if isinstance(place, Place))

    def select(self, positions: Sequence[int]) -> AnyTree:
        """The states of some clients, read-only: they may be views.

        Args:
            positions: k of them, in any order, at least one.

        Returns:
            Leaves [k, *].
        """
        absent = [k for k in positions if k not in self._at]
        made = self._made(absent) if absent else None
        new = iter(range(len(absent)))
        places = [self._at[k] if k in self._at else _Part(made, next(new)) for k in positions]
        groups = [list(group) for _, group in groupby(places, key=_storage_key)]
        if len(groups) == 1 and isinstance(first := places[0], _Part):
            at = [place.row for place in places if isinstance(place, _Part)]
            if at == list(range(at[0], at[0] + len(at))):
                return rows(first.block, at[0], len(at))
        first = places[0]
        into = first.room(len(places)) if isinstance(first, Place) else room(first.block, len(places))
        done = 0
        for group in groups:
            _copy(group, rows(into, done, len(group)))
            done += len(group)
        return into

    def gathered(self, positions: Sequence[int]) -> AnyTree:
        """Copy the states of some clients into tensors that are files where they are large.

        Args:
            positions: k of them, in any order, at least one.

        Returns:
            Leaves [k, *].
        """
        like = self.select(positions[:1])
        into = tensors.tree_map(
            lambda leaf: tensors.mapped_zeros((len(positions), *leaf.shape[1:]), leaf.dtype, leaf.device), like
        )
        for own in tensors.client_blocks(len(positions)):
            part = self.select(positions[own])
            tensors.tree_map(lambda leaf, new: leaf.copy_(new), rows(into, own.start, own.stop - own.start), part)
        return into

    def together(self) -> AnyTree:
        """Give the states of all clients: memory as if all had taken part.

        Returns:
            Leaves [K, *].
        """
        return self.select(range(self.clients))

    def after(self, written: Iterable[tuple[Sequence[int], AnyTree]]) -> Kept:
        """Give the states after a round; these stay as they are.

        Args:
            written: positions of the clients of a call and their new states, leaves [k, *].

        Returns:
            The states.
        """
        writing = Writing(self)
        for positions, block in written:
            writing.put(positions, block)
        return writing.done()

    def only(self, positions: Sequence[int]) -> Kept:
        """Forget the states of all others, which are elsewhere: asked for, they are as if they had never taken part.

        Args:
            positions: of the clients whose states stay.

        Returns:
            States of as many clients.
        """
        stay = set(positions)
        return Kept(self.clients, self._made, {k: at for k, at in self._at.items() if k in stay}, self.shelves)

    def subset(self, positions: Sequence[int]) -> Kept:
        """Select some of the clients.

        Args:
            positions: of the clients, in their new order.

        Returns:
            Their states, which share memory with these.
        """
        chosen = list(positions)
        at = {new: self._at[old] for new, old in enumerate(chosen) if old in self._at}
        return Kept(len(chosen), lambda asked: self._made([chosen[k] for k in asked]), at, self.shelves)


class Writing:
    """States after a round, taken call by call. Earlier ones do not change; most of them are in a temporary file.

    A round can be undone, bit by bit, until its successor holds; that need not cost the memory of all states twice.

    Args:
        before: the states before the round.
        everybody: the same clients are in the same calls in every round: where all states are small, blocks are kept
            as they come.
    """

    def __init__(self, before: Kept, everybody: bool = False) -> None:
        """Start from the earlier states."""
        self._before, self._everybody = before, everybody
        self._new, self._at_hand = dict[int, Place | _Part](), 0

    def put(
        self, positions: Sequence[int], block: AnyTree, good: Tensor | None = None, selected: AnyTree = None
    ) -> None:
        """Take the states of a call.

        Args:
            positions: of its clients.
            block: their new states, leaves [k, *], not to be changed later.
            good: bool [k], False for a client whose state stays as it was; True for all when None.
            selected: their states before, as `Kept.select` gives them.
        """
        if not positions or not (leaves := tensors.leaves(block)):
            return
        size = sum(leaf.nbytes for leaf in leaves.values()) // len(positions)
        places: Sequence[Place | _Part]
        if self._everybody and size * self._before.clients <= AT_HAND:
            block = block if good is None else tensors.where(good, block, selected)
            places = [_Part(block, row) for row in range(len(positions))]
        else:
            self._make_room(positions)
            places = self._before.shelves.put(block, good, selected)
        self._new.update(zip(positions, places, strict=True))

    def _make_room(self, positions: Sequence[int]) -> None:
        """Move earlier states beyond the limit of memory to the file."""
        known = [self._before._at.get(k) for k in positions]
        superseded = []
        for place in known:
            if isinstance(place, Place) and place.bytes:
                if self._at_hand + place.bytes > AT_HAND:
                    superseded.append(place)
                else:
                    self._at_hand += place.bytes
        if superseded:
            Place.to_file(superseded)

    def done(self) -> Kept:
        """Give the states after the round."""
        before = self._before
        return Kept(before.clients, before._made, {**before._at, **self._new}, before.shelves)


def _storage_key(place: Place | _Part) -> tuple[bool, int]:
    """Key of states that are read in one operation."""
    return (True, place.block) if isinstance(place, Place) else (False, id(place.block))


def _copy(group: Sequence[Place | _Part], into: AnyTree) -> None:
    """Copy states of one block into leaves [k, *]."""
    places = [place for place in group if isinstance(place, Place)]
    if places:
        Place.copy(places, into)
        return
    parts = [place for place in group if isinstance(place, _Part)]
    copy_rows(parts[0].block, [part.row for part in parts], into)
