"""Methods whose personal models may be fine-tuned on a client's rows after the rounds."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.methods.base import no_later_rows
from pacbayes_fl.noise import Noise

State = TypeVar("State")


class FineTuned(Generic[State]):
    """Half of a method: what later rows mean to it, which stands before `Method` among its bases.

    Args:
        finetune: times the minibatches of a round on the client's rows at personalisation; 0 for none.
    """

    finetune: int

    def absorb(self, message: Any, state: State, seen: ClientBatch, rows: ClientBatch, noise: Noise) -> State:
        """Fine-tuning takes all rows; without it estimates would stay where they are, and that is refused."""
        if not self.finetune:
            method: Any = self
            raise no_later_rows(method, "method.finetune")
        return state
