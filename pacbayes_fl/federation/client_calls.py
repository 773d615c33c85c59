"""Clients in calls: alike in size, as many as the memory takes, and fewer where a GPU's is exhausted.

A client's numbers do not depend on the other clients of its call, so that splitting changes nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

import torch

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch, group_by_size
from pacbayes_fl.errors import ClientError, caller_stacklevel
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.methods.base import AnyMethod, unwrapped
from pacbayes_fl.models.base import FunctionModel, WeightModel
from pacbayes_fl.models.weights import program

Found = TypeVar("Found")
_CACHED: Final = 1 << 20
"""Numbers of a call on a CPU: more of them leave its caches."""
_BYTES: Final = 512
"""Of a GPU's memory for each number of a call: some ten copies live at once, and a card is not ours alone."""


def prepared(method: AnyMethod, batch: ClientBatch) -> ClientBatch:
    """Check a user's model or program before anything is trained; see `program.prepared`.

    Args:
        method: the algorithm.
        batch: rows of clients.

    Returns:
        The rows that the program is given.

    Raises:
        ShapeError: when rows have other features than a model of functions takes.
    """
    model = getattr(unwrapped(method), "model", None)
    if isinstance(model, FunctionModel):
        model.check_inputs(batch.x, batch.clients)
    return program.prepared(model, batch) if isinstance(model, WeightModel) else batch


def chunk_of(plan: FederationPlan, device: torch.device) -> int:
    """Give the numbers that the clients of one call may hold.

    Args:
        plan: gives chunk.
        device: of the call.

    Returns:
        `plan.chunk`, or where it is None what suits the device: a GPU is idle between calls that fit the caches of a
        CPU.
    """
    if plan.chunk is not None:
        return plan.chunk
    if device.type != "cuda":
        return _CACHED
    return max(_CACHED, torch.cuda.get_device_properties(device).total_memory // _BYTES)


def parts(
    method: AnyMethod, sizes: list[int], positions: list[int], plan: FederationPlan, device: torch.device
) -> list[list[int]]:
    """Cut clients into calls: alike in size, and small enough for the memory that `plan.chunk` grants.

    Args:
        method: gives the memory per client.
        sizes: real rows of every client of the federation.
        positions: clients that take part.
        plan: gives chunk and waste.
        device: of the calls.

    Returns:
        Positions by call, together all of them.
    """
    if not method.federated:
        return [positions]
    calls, chunk = [], chunk_of(plan, device)
    for group in group_by_size([sizes[k] for k in positions], plan.waste):
        largest = max(sizes[positions[i]] for i in group)
        step = max(1, chunk // method.footprint(largest))
        calls += [[positions[i] for i in group[at : at + step]] for at in range(0, len(group), step)]
    return calls


def cut_calls(
    batch: ClientBatch, sizes: Sequence[int], cut: Sequence[list[int]]
) -> Iterator[tuple[list[int], ClientBatch]]:
    """Give positions and rows of every call when it is due: a copy of all rows would take as much again.

    Args:
        batch: rows of all clients.
        sizes: real rows that a call needs memory for, of every client.
        cut: positions by call, see `parts`.

    Yields:
        Positions and rows of the clients of a call.
    """
    for part in cut:
        yield part, batch.select(torch.tensor(part)).trim(max(1, max(sizes[k] for k in part)))
        tensors.release_mapped()


class CallSplitter:
    """Largest number of clients per call so far, so that a failed size is not tried again."""

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
            Positions and rows of the clients of a call, and its result: together all clients, in their order.

        Raises:
            ClientError: when one client alone is too much.
        """
        fits = self.most is None or len(positions) <= self.most
        result = _attempted(positions, rows, work) if fits else None
        if result is not None:
            yield positions, rows, result[0]
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
            warnings.warn(what, stacklevel=caller_stacklevel())
            if torch.cuda.is_initialized():
                torch.cuda.empty_cache()
        for part in (range(half), range(half, len(positions))):
            subset = rows.select(torch.tensor(part)).trim()
            yield from self.calls([positions[k] for k in part], subset, work)


def _attempted(
    positions: Sequence[int], rows: ClientBatch, work: Callable[[Sequence[int], ClientBatch], Found]
) -> tuple[Found] | None:
    """Return the result, or None when memory ran out; the error, whose frames hold tensors, is released."""
    try:
        return (work(positions, rows),)
    except torch.cuda.OutOfMemoryError:  # torch.OutOfMemoryError, by the name that all versions know
        return None
