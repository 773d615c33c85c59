"""Base of the local baselines: every client is fitted alone, and rounds change nothing."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.methods import private_steps
from pacbayes_fl.methods.base import Method, Nothing
from pacbayes_fl.noise import Noise

Start = TypeVar("Start")


class Took(NamedTuple):
    """Nothing but the fact of taking part, weight [K]."""

    weight: Tensor


class LocalMethod(Method[Start, Start, Nothing, Took]):
    """A method whose whole work is `personalise`, from a starting point that all clients share."""

    def init_clients(self, message: Start, batch: ClientBatch) -> Nothing:
        """No client state."""
        return Nothing()

    def broadcast(self, server: Start) -> Start:
        """Send the starting point."""
        return server

    def client(self, message: Start, state: Nothing, batch: ClientBatch, noise: Noise) -> tuple[Took, Nothing]:
        """The message is empty."""
        return Took(torch.ones_like(batch.size)), state

    def server(self, server: Start, update: Took, n_clients: int) -> Start:
        """The server state does not change."""
        return server

    def absorb(self, message: Start, state: Nothing, seen: ClientBatch, rows: ClientBatch, noise: Noise) -> Nothing:
        """`personalise` fits all rows."""
        return state

    def check_private(self) -> None:
        """Nothing to release: no number leaves its client."""
        raise private_steps.no_release_error(type(self).__name__)
