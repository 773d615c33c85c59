"""States of clients that are dealt among processes: each saves its own, and all are brought together on demand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import torch

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import CheckpointError
from pacbayes_fl.federation import checkpoint
from pacbayes_fl.federation.client_states import Kept
from pacbayes_fl.federation.federation_state import FederationState
from pacbayes_fl.federation.ranks import Ranks
from pacbayes_fl.files import JsonTable
from pacbayes_fl.results.folder import sync_folder
from pacbayes_fl.results.manifest import Print
from pacbayes_fl.tensors import AnyTree

Made = TypeVar("Made")
_HINT = "all processes must reach the run folder: put it where every machine sees it, and go on with --resume"


def own_positions(ranks: Ranks, clients: ClientBatch) -> list[int]:
    """Positions of the clients of this process.

    Args:
        ranks: the processes.
        clients: of the federation.
    """
    return ranks.own([int(m) for m in clients.size.tolist()])


def save(
    folder: Path,
    clients: ClientBatch,
    state: FederationState,
    meta: Callable[[Sequence[int] | None], JsonTable],
    ranks: Ranks,
) -> None:
    """Save a round: every process writes the states of its clients, the first one the rest and the final name.

    Args:
        folder: the run folder.
        clients: of the federation.
        state: after the round, with the states of the clients of this process.
        meta: gives what is saved beside the tensors, from the positions of the clients whose states are saved; None
            for all of them.
        ranks: the processes.

    Raises:
        CheckpointError: in every process, when one of them cannot write.
        DeployError: when one has ended.
    """
    kept, own = Kept.of(state.kept, clients.clients), set(own_positions(ranks, clients))
    known = [k for k in kept.present if k in own]
    if not any(ranks.share(len(known))) and ranks.first:
        known = [0]  # whatever a client keeps, a checkpoint says what it is
    states = kept.gathered(known) if known else None
    flat = tensors.leaves(state.server_side)
    if not any(ranks.share(bool(known) and bool(tensors.leaves(states)))):
        _together(ranks, lambda: _whole(folder, state, flat, meta, ranks))
        return
    half = _together(ranks, lambda: checkpoint.begin(folder, state.round) if ranks.first else None)[0]
    name = f"{checkpoint.PART}{ranks.rank:04d}.safetensors"
    found = _together(ranks, lambda: _written(half, name, states) if known and half is not None else None)
    parts = {f"{checkpoint.PART}{rank:04d}.safetensors": one for rank, one in enumerate(found) if one is not None}
    saved = [k for part in ranks.share(known) for k in part]
    everybody = len(saved) == clients.clients and saved == sorted(saved)

    def finished() -> None:
        if ranks.first and half is not None:
            if missing := [each for each in parts if not (half / each).is_file()]:
                raise OSError(f"{missing[0]}, which another process has written, is not in {half}")
            sync_folder(half)
            checkpoint.save(folder, state.round, flat, meta(None if everybody else saved), parts=parts)

    _together(ranks, finished)


def _whole(
    folder: Path,
    state: FederationState,
    flat: dict[str, torch.Tensor],
    meta: Callable[[Sequence[int] | None], JsonTable],
    ranks: Ranks,
) -> None:
    """Save a round of clients that keep nothing, as one process does."""
    if ranks.first:
        checkpoint.save(folder, state.round, flat, meta(None))


def _written(half: Path, name: str, states: AnyTree) -> Print:
    return checkpoint.write_tensors(half / name, tensors.leaves({"clients": states}))


def _together(ranks: Ranks, work: Callable[[], Made]) -> list[Made]:
    """Do a step in every process; where it fails in one, none goes on."""
    made, error = None, None
    try:
        made = work()
    except (OSError, CheckpointError) as failed:
        error = str(failed)
    told = ranks.share((made, error))
    for rank, (_, text) in enumerate(told):
        if text is not None:
            raise CheckpointError(f"process {rank} of {ranks.world}: {text}", cause=text, hint=_HINT)
    return [one for one, _ in told]  # type: ignore[misc]


def whole(state: FederationState, clients: ClientBatch, ranks: Ranks) -> FederationState:
    """Bring the states of all clients into every process: memory as in one.

    Args:
        state: with the states of the clients of this process.
        clients: of the federation.
        ranks: the processes.

    Returns:
        The state, with those of all that took part.

    Raises:
        DeployError: when a process has ended.
    """
    kept, own = Kept.of(state.kept, clients.clients), set(own_positions(ranks, clients))
    known = [k for k in kept.present if k in own]
    flat = {name: leaf.cpu() for name, leaf in tensors.leaves(kept.select(known)).items()} if known else {}
    written, like = [], kept.select((0,))
    for positions, leaves in ranks.share((known, flat)):
        if positions and leaves:
            moved = {name: leaf.to(clients.x.device) for name, leaf in leaves.items()}
            written.append((positions, tensors.unleaves(like, moved, exact=False)))
    return state._replace(kept=kept.after(written))
