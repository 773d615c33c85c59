"""Rounds on one device: all clients of a call at once; numbers for the host are read once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from types import MappingProxyType

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.federation.client_calls import CallSplitter, cut_calls, parts
from pacbayes_fl.federation.federation_state import FederationState
from pacbayes_fl.federation.kept import Kept, Writing
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.federation.player import Asked, Note, Notes, Player, Trained, hear
from pacbayes_fl.federation.private import PrivateAggregator
from pacbayes_fl.federation.reduction import Reduction
from pacbayes_fl.methods.base import AnyMethod, slowed
from pacbayes_fl.noise import Noise
from pacbayes_fl.tensors import AnyTree


class RoundPlayer(Player):
    """Plays rounds of clients whose rows are all here.

    Args:
        method: the algorithm, at the study's learning rates.
        batch: training rows of all clients [K, N, *].
        plan: how to run.
        aggregator: makes the rounds private; None where they are not.
    """

    def __init__(
        self, method: AnyMethod, batch: ClientBatch, plan: FederationPlan, aggregator: PrivateAggregator | None
    ) -> None:
        """Cut clients into calls, where all of them make a step in every round."""
        super().__init__(method, batch, plan, aggregator)
        self._everyone = self._parts(range(batch.clients)) if self.everybody else None
        self._splitter = CallSplitter()

    def train(self, asked: Asked, message: AnyTree, reduction: Reduction, notes: Notes) -> Trained:
        """Train the clients call by call."""
        method = self.method if asked.rates == 1 else slowed(self.method, asked.rates)
        t, plan, heard = asked.state.round + 1, self.plan, set(asked.heard)
        kept = Kept.of(asked.state.kept, self.batch.clients)
        writing = Writing(kept, everybody=self.everybody)

        def work(positions: Sequence[int], rows: ClientBatch) -> Note | None:
            before = kept.select(positions)
            noise = Noise(plan.seed, t, rows.ids, rows.x.device, plan.noise)
            sent, after = method.client(message, before, rows, noise)
            update = method.registered(sent, rows.size, rows.ids)
            good = tensors.finite({"update": sent, "state": after})
            if self.aggregator is None:
                good = good & tensors.same(sent, update)
            if asked.without in rows.names:
                good[rows.names.index(asked.without)] = False
            note = self.note(method, message, update, good)
            writing.put(positions, after, good, before)
            hear(reduction, update, good, [name in heard for name in rows.names])  # at last: it is done or not at all
            return note

        for call in self._calls(self._parts(asked.drawn) if self._everyone is None else self._everyone):
            for _, rows, note in self._splitter.calls(*call, work):
                if note is not None:
                    notes.add(rows.names, note)
        return Trained(writing.done(), MappingProxyType({}))

    def updates(self, start: FederationState, rates: float) -> Iterator[tuple[Sequence[str], AnyTree]]:
        """Let every client make its first step, call by call."""
        method, kept = slowed(self.method, rates), Kept.of(start.kept, self.batch.clients)
        message = method.broadcast(start.server)

        def work(positions: Sequence[int], rows: ClientBatch) -> AnyTree:
            noise = Noise(self.plan.seed, 1, rows.ids, rows.x.device, self.plan.noise)
            return method.client(message, kept.select(positions), rows, noise)[0]

        calls = self._calls(self._parts(range(self.batch.clients)))
        for _, rows, update in chain.from_iterable(self._splitter.calls(*call, work) for call in calls):
            yield rows.names, update

    def _parts(self, positions: Sequence[int]) -> list[list[int]]:
        return parts(self.method, self.sizes, list(positions), self.plan)

    def _calls(self, cut: Sequence[list[int]]) -> Iterator[tuple[list[int], ClientBatch]]:
        return cut_calls(self.batch, self.sizes, cut)
