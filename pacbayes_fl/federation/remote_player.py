"""Rounds of clients on other machines: requests go out, and what comes back is judged, counted and joined."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch, client_id
from pacbayes_fl.errors import ClientError
from pacbayes_fl.federation import arrays, wire
from pacbayes_fl.federation.federation_state import FederationState, start
from pacbayes_fl.federation.messages import Refused, Reply, members
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.federation.player import Asked, Notes, Player, Trained, hear
from pacbayes_fl.federation.private import PrivateAggregator
from pacbayes_fl.federation.reduction import Reduction
from pacbayes_fl.federation.transport import Transport
from pacbayes_fl.methods.base import AnyMethod
from pacbayes_fl.tensors import AnyTree


class Elsewhere(NamedTuple):
    """Clients whose rows are elsewhere.

    Args:
        batch: names and ids; one row of zeros stands for all rows of each, so that their number takes no memory.
        sizes: number of rows of each, in the same order.
    """

    batch: ClientBatch
    sizes: tuple[int, ...]


def roster(clients: Mapping[str, int], like: ClientBatch) -> Elsewhere:
    """Stand in for the rows of clients that are elsewhere: names, ids and numbers of rows are theirs, all else is 0.

    Args:
        clients: number of training rows by name, in the order of the federation.
        like: rows with the columns and dtypes of the federation's [*, *, *feature]; the numbers are not used.

    Returns:
        Rows [K, 1, *feature] and the true sizes.
    """
    x = like.x.new_zeros(()).expand(len(clients), 1, *like.x.shape[2:])
    y = like.y.new_zeros(len(clients), 1)
    ids, there = tuple(map(client_id, clients)), torch.ones_like(y, dtype=torch.bool)
    return Elsewhere(ClientBatch(x, y, there, ids, tuple(clients)), tuple(clients.values()))


class RemotePlayer(Player):
    """Plays rounds of clients that are elsewhere, and keep their own states.

    Args:
        method: the algorithm, at the study's learning rates.
        clients: their roster.
        plan: how to run.
        aggregator: makes the rounds private; None where they are not.
        transport: reaches the clients.
        run: random identifier of the run.
        compress: how floating-point numbers travel, both ways.
    """

    def __init__(
        self,
        method: AnyMethod,
        clients: Elsewhere,
        plan: FederationPlan,
        aggregator: PrivateAggregator | None,
        transport: Transport,
        run: str,
        compress: arrays.Compress = "none",
    ) -> None:
        """Find the structure of what clients send."""
        super().__init__(method, clients.batch, plan, aggregator, clients.sizes)
        self._transport, self._run, self._compress = transport, run, compress
        self._members = members(self.batch, self.sizes)
        self._expected = wire.expected_update(method, start(method, self.batch, plan).server, self.batch)

    def sent(self, message: AnyTree) -> AnyTree:
        """Round the server's message as clients receive it."""
        return arrays.rounded(message, self._compress)

    def train(self, asked: Asked, message: AnyTree, reduction: Reduction, notes: Notes) -> Trained:
        """Ask the clients of a round for their updates; one that does not reply in time counts as one that failed.

        Nobody is asked where a crash came after the release of a private round: it says who is in it.

        Raises:
            ClientError: when not a single client has replied; not in a private round, whose release is due.
        """
        names, heard = self.batch.names if self.everybody else asked.heard, set(asked.heard)
        ids = dict(zip(self.batch.names, self.batch.ids, strict=True))
        private = self.aggregator
        if private is not None and (missed := private.uncounted(asked.state.round + 1)) is not None:
            return Trained(asked.state.kept, {}, {name: ids[name] not in missed for name in names})
        opened = self._opened(asked.state, [name for name in names if name != asked.without], asked.rates, asked.trial)
        collected = wire.collect(opened, self._exchanged(opened))
        if private is None and opened.asked and not collected.present and not collected.came:
            name = opened.asked[0]
            what = f"none of {len(opened.asked)} clients gave an update ({name}: {collected.reasons[name]})"
            hint = "nothing was changed; look whether nodes are up, and go on with --resume"
            raise ClientError(what, round=opened.number, hint=hint)
        place = {name: k for k, name in enumerate(collected.present)}
        for name in names:  # one after the other, as an engine does that calls them so: sums have its order
            there = name in place
            update = tensors.select(collected.update, torch.tensor([place[name]])) if there else self._expected
            update = tensors.tree_map(lambda leaf: leaf.to(self.batch.x.device), update)
            good = torch.tensor([there], device=self.batch.x.device)
            note = self.note(opened.method, message, update, good)
            if note is not None:
                notes.add([name], note)
            hear(reduction, update, good, [name in heard])
        if private is not None:
            private.ledger.leave_out([ids[name] for name in names if name not in place])
        return Trained(asked.state.kept, collected.reasons, {name: name in place for name in names})

    def updates(self, start: FederationState, rates: float) -> Iterator[tuple[Sequence[str], AnyTree]]:
        """Ask all clients for their first step, of which they keep nothing."""
        opened = self._opened(start, self.batch.names, rates, trial=True)
        collected = wire.collect(opened, self._exchanged(opened))
        if collected.present:
            yield collected.present, collected.update

    def _opened(self, state: FederationState, names: Sequence[str], rates: float, trial: bool) -> wire.Round:
        common = self.method, state.server, self.plan, self._run, state.round + 1, self._members, self._expected
        opened = wire.open_round(*common, names, rates, not trial, self._compress)
        return replace(opened, uncounted=state.watch.since)

    def _exchanged(self, opened: wire.Round) -> Iterator[tuple[str, Reply | Refused]]:
        return self._transport.exchange({name: opened.request(name) for name in opened.asked})
