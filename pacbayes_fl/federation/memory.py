"""Clients in as many calls as a GPU's memory asks for: a call that exhausts it is made again on halves of its clients.

A client's numbers do not depend on who is in its call, so that they stay what they are.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import ClientError, outside

Found = TypeVar("Found")


class Memory:
    """How many clients have fitted into one call so far; who keeps it does not try the same number again."""

    def __init__(self) -> None:
        """Begin without a limit."""
        self.most: int | None = None

    def calls(
        self, positions: Sequence[int], rows: ClientBatch, work: Callable[[Sequence[int], ClientBatch], Found]
    ) -> Iterator[tuple[Sequence[int], ClientBatch, Found]]:
        """Do a call's work, on fewer clients at a time where all of them are too many.

        Args:
            positions: of the clients [k].
            rows: theirs [k, N, *].
            work: takes positions and rows of clients; where it raises torch's OutOfMemoryError, it has done nothing.

        Yields:
            Positions and rows of the clients of a call, and what was found: together all clients, in their order.

        Raises:
            ClientError: when one client alone is too much.
        """
        fits = self.most is None or len(positions) <= self.most
        found = _tried(positions, rows, work) if fits else None
        if found is not None:
            yield positions, rows, found[0]
            return
        half = (len(positions) + 1) // 2
        if fits:
            if len(positions) == 1:
                hint = "federation.device = 'cpu', or a smaller model, minibatch or number of draws"
                raise ClientError(
                    "the GPU has too little memory for this client alone", client=rows.names[0], hint=hint
                )
            self.most = half
            what = f"GPU memory exhausted by {len(positions)} clients in one call: from here on {half} at a time"
            warnings.warn(what, stacklevel=outside())
            if torch.cuda.is_initialized():
                torch.cuda.empty_cache()
        for part in (range(half), range(half, len(positions))):
            some = rows.select(torch.tensor(part)).trim()
            yield from self.calls([positions[k] for k in part], some, work)


def _tried(
    positions: Sequence[int], rows: ClientBatch, work: Callable[[Sequence[int], ClientBatch], Found]
) -> tuple[Found] | None:
    """Return what was found, or None; the error, whose frames hold tensors, is gone by then."""
    try:
        return (work(positions, rows),)
    except torch.cuda.OutOfMemoryError:  # torch.OutOfMemoryError, by the name that all versions know
        return None
