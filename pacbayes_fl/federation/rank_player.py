"""Rounds of clients that are dealt among several processes: each trains its own, and one sum tells all of them all."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import caller_stacklevel
from pacbayes_fl.federation.federation_state import FederationState, start
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.federation.player import Asked, Note, Notes, Player, RoundPlayer, Trained
from pacbayes_fl.federation.ranks import Ranks
from pacbayes_fl.federation.reduction import Reduction, UpdateAccumulator
from pacbayes_fl.federation.wire import expected_update
from pacbayes_fl.methods.base import AnyMethod
from pacbayes_fl.tensors import AnyTree

_WORD = 8  # bytes of an int64, in which everything is sent: sums of bits with zeros are the bits, of any dtype


class _Outbox:
    """Updates of the clients of this process: one row where the method reduces, else one a client, in their order."""

    def __init__(self, method: AnyMethod, reduces: bool) -> None:
        self.numbers = dict[str, Tensor]()
        self._reduced = UpdateAccumulator(method) if reduces else None
        self._method, self._rows = method, list[AnyTree]()

    def add(self, update: AnyTree, good: Tensor) -> None:
        """Take the clients of a call; one that failed weighs nothing."""
        if self._reduced is not None:
            self._reduced.add(update, good)
        else:
            self._rows.append(tensors.where(good, update, tensors.tree_map(torch.zeros_like, update)))
        self.empty = False

    empty = True

    def release(self) -> AnyTree:
        """The rows to be sent, leaves [n, *]."""
        if self._reduced is not None:
            return self._method.reduce(self._reduced.release())
        return tensors.cat(self._rows)


class RankPlayer(Player):
    """Plays rounds of which every process trains its own clients.

    Positions, cohorts and random draws are those of one process. Where the method reduces, every process adds one row
    to the sum of a round, and else one for each of its clients: the server then needs them all.

    Args:
        method: the algorithm, at the study's learning rates.
        batch: training rows of all clients [K, N, *].
        plan: how to run.
        ranks: the processes.
    """

    def __init__(self, method: AnyMethod, batch: ClientBatch, plan: FederationPlan, ranks: Ranks) -> None:
        """Deal the clients, and find out what an update is."""
        super().__init__(method, batch, plan, None)
        self._ranks, self._owner = ranks, ranks.deal(self.sizes)
        own = self._mine(range(batch.clients)) if method.federated else None
        self._here = RoundPlayer(method, batch, plan, None, own)
        if not method.federated:
            return
        self._all = self._here.parts(range(batch.clients)) if self.everybody else None
        self._like = expected_update(method, start(method, batch, plan).server, batch)
        two = method.reduce(tensors.cat([self._like, self._like]))
        self._reduces = plan.aggregate == "mean" and len(two.weight) == 1
        if not self._reduces:
            drawn = min(batch.clients, plan.cohort or batch.clients)
            size = _bytes(self._like) * drawn / 2**20
            what = f"the server needs the update of every client: each of {ranks.world} processes holds those of all"
            warnings.warn(f"{what} {drawn} of a round, {size:.3g} MiB", stacklevel=caller_stacklevel())

    def train(self, asked: Asked, message: AnyTree, reduction: Reduction, notes: Notes) -> Trained:
        """Train the clients of this process, and hear of all others'.

        A method that is no federation trains as a whole in every process.

        Raises:
            DeployError: when a process has ended.
        """
        if not self.method.federated:
            trained = self._here.train(asked, message, reduction, notes)
            self._ranks.total(torch.zeros(0, dtype=torch.int64))
            return trained
        box, own = _Outbox(self.method, self._reduces), _OwnNotes()
        trained = self._here.train(asked._replace(drawn=self._mine(asked.drawn)), message, box, own)
        calls = self._here.parts(asked.drawn) if self._all is None else self._all
        members, heard = [k for call in calls for k in call], set(asked.drawn)
        self._tell(members, [k for k in members if k in heard], box, own, reduction, notes)
        return trained

    def _tell(
        self, members: list[int], heard: list[int], box: _Outbox, own: _OwnNotes, reduction: Reduction, notes: Notes
    ) -> None:
        """Add the numbers of all processes: of members, whether they are good and how long their steps are; updates."""
        rank, device = self._ranks.rank, self.batch.x.device
        rows = sorted({self._owner[k] for k in heard}) if self._reduces else heard  # who sends each row
        width = _bytes(self._like) // _WORD
        flags = torch.zeros(len(members), 2, dtype=torch.int64, device=device)
        if mine := [at for at, k in enumerate(members) if self._owner[k] == rank]:
            flags[torch.tensor(mine, device=device)] = own.numbers()
        sent = torch.zeros(len(rows), width, dtype=torch.int64, device=device)
        places = [at for at, who in enumerate(rows) if (who if self._reduces else self._owner[who]) == rank]
        if places:
            sent[torch.tensor(places, device=device)] = _packed(box.release(), len(places))
        joined = self._ranks.total(torch.cat((flags.flatten(), sent.flatten())))
        flags, sent = joined[: flags.numel()].view(-1, 2), joined[flags.numel() :].view(len(rows), width)
        names = [self.batch.names[k] for k in members]
        notes.add(names, Note(flags[:, 0] > 0, flags[:, 1].contiguous().view(torch.float64)))
        if rows:
            reduction.add(_unpacked(sent, self._like), torch.ones(len(rows), dtype=torch.bool, device=device))

    def updates(self, start: FederationState, rates: float) -> Iterator[tuple[Sequence[str], AnyTree]]:
        """Let every client make its first step, in every process: it is asked for once in a run, if ever."""
        return self._here.updates(start, rates)

    def _mine(self, positions: Sequence[int]) -> list[int]:
        return [k for k in positions if self._owner[k] == self._ranks.rank]


class _OwnNotes(Notes):
    """Notes on the clients of this process, until they are told."""

    def numbers(self) -> Tensor:
        """Flags and the bits of norms [k, 2], int64."""
        good, norm = torch.cat(self._flags), torch.cat(self._norms).double()
        return torch.stack((good.long(), norm.view(torch.int64)), 1)


def _bytes(like: AnyTree) -> int:
    """Bytes of one row of a tree, in whole words."""
    return sum(_padded(leaf[:1].numel() * leaf.element_size()) for leaf in tensors.leaves(like).values())


def _padded(size: int) -> int:
    return -(-size // _WORD) * _WORD


def _packed(tree: AnyTree, rows: int) -> Tensor:
    """Give the bits of leaves [rows, *] as int64 [rows, words]."""
    parts = []
    for leaf in tensors.leaves(tree).values():
        flat = leaf.detach().contiguous().view(rows, -1)
        raw = flat.view(torch.uint8) if flat.numel() else flat.new_empty((rows, 0), dtype=torch.uint8)
        parts.append(torch.nn.functional.pad(raw, (0, _padded(raw.shape[1]) - raw.shape[1])))
    return torch.cat(parts, 1).contiguous().view(torch.int64)


def _unpacked(words: Tensor, like: AnyTree) -> AnyTree:
    """Give leaves [n, *] back from the result of `_packed`."""
    raw, at = words.contiguous().view(torch.uint8), 0
    flat = {}
    for name, leaf in tensors.leaves(like).items():
        size = leaf[:1].numel() * leaf.element_size()
        part = raw[:, at : at + size].contiguous()
        shape = (len(words), *leaf.shape[1:])
        flat[name] = part.view(leaf.dtype).view(shape) if size else leaf.new_empty(shape)
        at += _padded(size)
    return tensors.unleaves(like, flat, exact=False)
