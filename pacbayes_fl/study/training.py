"""The rounds of a run as its folder sees them: recorded, told of, saved, and ended in good order whatever ends them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import ClientError, NumericalError
from pacbayes_fl.federation.federation_state import FederationState
from pacbayes_fl.federation.private import PrivateAggregator
from pacbayes_fl.results.rounds import RoundRecord
from pacbayes_fl.study import privacy
from pacbayes_fl.study.callbacks import Told
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.folder import Folder

Scored = Callable[[RoundRecord, FederationState, bool], RoundRecord]
"""Adds scores to the record of a round, from its state and whether it is the last."""


@dataclass(frozen=True)
class Going:
    """A run whose rounds are about to be trained, wherever its clients are.

    Args:
        study: what is run.
        clients: rows of all clients, or their roster.
        folder: of the run.
        aggregator: makes the rounds private; None where they are not.
        every: rounds between checkpoints.
    """

    study: Study
    clients: ClientBatch
    folder: Folder
    aggregator: PrivateAggregator | None
    every: int

    def train(
        self,
        rounds: Iterator[tuple[RoundRecord, FederationState]],
        state: FederationState,
        records: list[RoundRecord],
        scored: Scored,
        on_round: Callable[[RoundRecord], None],
        callbacks: Told,
    ) -> FederationState:
        """Run the rounds that are left and add their records; whatever ends them, the last good round is saved.

        Args:
            rounds: gives the record of each and the state after it.
            state: before them.
            records: of the rounds that are finished.
            scored: adds scores.
            on_round: told of every record.
            callbacks: told of it too, and may end the run.

        Returns:
            The state after the last round.

        Raises:
            ClientError, NumericalError: as the rounds.
            KeyboardInterrupt: after a signal, when the state has been saved.
        """
        study, folder, last_round = self.study, self.folder, self.study.plan.rounds
        released = None if self.aggregator is None else folder.released
        with folder.listen() as stop, privacy.stop_when_spent():
            try:
                for record, after in rounds:
                    state, released = after, None if self.aggregator is None else len(self.aggregator.ledger)
                    last = record.round == last_round
                    record = scored(record, state, last)
                    records.append(record)
                    on_round(record)
                    folder.append(record)
                    stopping = stop.requested
                    if stopping or last or record.round % self.every == 0:
                        folder.save(study, self.clients, state, released)
                    if stopping:
                        raise KeyboardInterrupt
                    if callbacks.on_round(record):
                        privacy.refuse_choice(study, "federation.rounds")
                        break
            except (ClientError, NumericalError) as error:
                folder.save(study, self.clients, state, released)  # nothing is lost: the last good round is on disk
                folder.end(state.round, error)
                raise
        if state.round == 0 or state.round < last_round:
            folder.save(study, self.clients, state, released)
        return state
