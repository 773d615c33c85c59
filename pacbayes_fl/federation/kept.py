"""What clients keep between rounds: states of those that took part, and of the others nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.methods.base import Method

Made = Callable[[Sequence[int]], Any]


class Kept:
    """States of K clients that never change: a round makes another of them, which shares what was not written.

    A client that never took part takes no memory: its state is made when it is asked for, from the parameters with
    which the federation began.

    Args:
        clients: K.
        made: gives the states of clients that never took part, leaves [k, *], from their positions.
        at: block, leaves [n, *], and row of each client that did, by position.
    """

    def __init__(self, clients: int, made: Made, at: Mapping[int, tuple[Any, int]] = MappingProxyType({})) -> None:
        """Begin with what is known."""
        self.clients, self._made, self._at = clients, made, at

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
        return cls(clients, lambda positions: states, {k: (states, k) for k in range(clients)})

    @property
    def present(self) -> tuple[int, ...]:
        """Positions of the clients whose states take memory."""
        return tuple(sorted(self._at))

    @property
    def bytes(self) -> int:
        """Memory that all states take."""
        blocks = {id(block): block for block, _ in self._at.values()}
        return sum(leaf.nbytes for block in blocks.values() for leaf in tensors.leaves(block).values())

    def select(self, positions: Sequence[int]) -> Any:
        """Give the states of some clients, to be read only: they may be views of what is kept.

        Args:
            positions: k of them, in any order, at least one.

        Returns:
            Leaves [k, *].
        """
        absent = [k for k in positions if k not in self._at]
        made = self._made(absent) if absent else None
        places = iter(range(len(absent)))
        where = [self._at[k] if k in self._at else (made, next(places)) for k in positions]
        runs: list[tuple[Any, int, int]] = []  # block, first row, rows
        for block, row in where:
            if runs and runs[-1][0] is block and row == runs[-1][1] + runs[-1][2]:
                runs[-1] = (block, runs[-1][1], runs[-1][2] + 1)
            else:
                runs.append((block, row, 1))
        parts = [tensors.tree_map(lambda leaf, at=row, n=n: leaf.narrow(0, at, n), block) for block, row, n in runs]
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
            if not tensors.leaves(block):
                continue
            for row, k in enumerate(positions):
                at[k] = (_row(block, row), 0) if apart else (block, row)
        return Kept(self.clients, self._made, at)

    def some(self, positions: Sequence[int]) -> Kept:
        """Give a federation of some of the clients.

        Args:
            positions: of the clients, in their new order.

        Returns:
            Their states, which share memory with these.
        """
        chosen = list(positions)
        at = {new: self._at[old] for new, old in enumerate(chosen) if old in self._at}
        return Kept(len(chosen), lambda asked: self._made([chosen[k] for k in asked]), at)


def _row(block: Any, row: int) -> Any:
    def own(leaf: Tensor) -> Tensor:
        return leaf.narrow(0, row, 1).clone(memory_format=torch.contiguous_format)

    return tensors.tree_map(own, block)
