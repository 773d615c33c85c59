"""The rounds of a run as its folder sees them: recorded, told of, saved, and ended in good order whatever ends them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import ClientError, NumericalError
from pacbayes_fl.federation.federation_state import FederationState
from pacbayes_fl.federation.private import PrivateAggregator
from pacbayes_fl.federation.stop import StopSignal
from pacbayes_fl.results.rounds import RoundRecord
from pacbayes_fl.study import privacy
from pacbayes_fl.study.callbacks import Told
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.storage.rank_folder import AnyFolder, CommonStop
from pacbayes_fl.study.storage.run_folder import StopRequest

Scored = Callable[[RoundRecord, FederationState, bool], RoundRecord]
"""Adds scores to the record of a round, from its state and whether it is the last."""


@dataclass(frozen=True)
class Listeners:
    """Who hears of a round.

    Args:
        scored: adds scores to its record.
        on_round: is told of it.
        callbacks: are told of it too, and may end the run.
    """

    scored: Scored
    on_round: Callable[[RoundRecord], None]
    callbacks: Told


class Training:
    """A run between its first round and its last, wherever its clients are.

    Args:
        study: what is run.
        clients: rows of all clients, or their roster.
        folder: of the run.
        aggregator: makes the rounds private; None where they are not.
        every: rounds between checkpoints.
        state: before the rounds.
        records: of the rounds that are finished; those to come are added.
        listeners: who hears of them.
    """

    def __init__(
        self,
        study: Study,
        clients: ClientBatch,
        folder: AnyFolder,
        aggregator: PrivateAggregator | None,
        every: int,
        state: FederationState,
        records: list[RoundRecord],
        listeners: Listeners,
    ) -> None:
        """Begin where the state is."""
        self.study, self.clients, self.folder, self.aggregator, self.every = study, clients, folder, aggregator, every
        self.state, self.records, self.listeners = state, records, listeners
        self._released = None if aggregator is None else folder.released

    @contextmanager
    def open(self) -> Iterator[Callable[[RoundRecord, FederationState], bool]]:
        """Save the last good round whatever ends the rounds inside.

        Yields:
            To be called after each round with its record and the state after it: tells of the round, saves it where
            that is due, and says whether the run ends there.

        Raises:
            ClientError, NumericalError: as the rounds.
            KeyboardInterrupt: after a signal, when the state has been saved.
        """
        with self.folder.listen() as stop, privacy.stop_when_spent():
            try:
                yield partial(self._after, stop)
            except (ClientError, NumericalError) as error:
                self._save()  # nothing is lost: the last good round is on disk
                self.folder.end(self.state.round, error)
                raise
        if self.state.round == 0 or self.state.round < self.study.plan.rounds:
            self._save()

    def _after(self, stop: StopSignal | StopRequest | CommonStop, record: RoundRecord, state: FederationState) -> bool:
        self.state, self._released = state, None if self.aggregator is None else len(self.aggregator.ledger)
        last = record.round == self.study.plan.rounds
        record = self.listeners.scored(record, state.used, last)
        self.records.append(record)
        self.listeners.on_round(record)
        self.folder.append(record)
        stopping = stop.requested
        if stopping or last or record.round % self.every == 0:
            self._save()
        if stopping:
            raise KeyboardInterrupt
        if self.listeners.callbacks.on_round(record):
            privacy.refuse_choice(self.study, "federation.rounds")
            return True
        return False

    def _save(self) -> None:
        self.folder.save(self.study, self.clients, self.state, self._released)
