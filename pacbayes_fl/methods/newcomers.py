"""Methods whose clients keep what they learned in rounds, so that new ones are trained when they personalise."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.models.base import default
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.predictive import Posterior

Message = TypeVar("Message")
State = TypeVar("State")
Made = TypeVar("Made", bound=Posterior)


class TrainsNewcomers(ABC, Generic[Message, State, Made]):
    """Half of a method: personalisation from a client's state, which stands before `Method` among its bases."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        """Refuse another `personalise`, which clients that have trained would never come to.

        Raises:
            TypeError: saying what to define in its place.
        """
        super().__init_subclass__(**kwargs)
        if "personalise" in vars(cls):
            instead = (
                "personalise_trained, which all clients come to, and train_newcomers, which new ones come to first"
            )
            raise TypeError(f"{cls.__name__} replaces personalise, which is made of two others: define {instead}")

    @abstractmethod
    def train_newcomers(self, message: Message, state: State, batch: ClientBatch, noise: Noise) -> State:
        """Give the states [K, *] that all clients would have as new ones; those of the others are left aside.

        Where predictions draw numbers it takes a fork of `noise`, so that nobody's later draws change.
        """

    @abstractmethod
    def personalise_trained(self, message: Message, state: State, batch: ClientBatch, noise: Noise) -> Made:
        """As `personalise`, for clients that have all been trained."""

    @default
    def is_new(self, state: State) -> Tensor | None:
        """Which clients have taken part in no round: bool [K]; None for clients without a state."""
        counted: Any = state
        fresh: Tensor = counted.rounds == 0
        return fresh

    def personalise(self, message: Message, state: State, batch: ClientBatch, noise: Noise) -> Made:
        """Give each client's own posterior; one that never took part is trained first."""
        fresh = self.is_new(state)
        if fresh is not None and not tensors.known_false(fresh):
            state = tensors.where(fresh, self.train_newcomers(message, state, batch, noise), state)
        return self.personalise_trained(message, state, batch, noise)
