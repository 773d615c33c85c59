"""Base of the centralised baselines: clients send their rows and the server fits one model on all of them."""

from __future__ import annotations

from typing import ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import PrivacyError
from pacbayes_fl.methods.base import Method, Nothing
from pacbayes_fl.models.base import default
from pacbayes_fl.noise import Noise
from pacbayes_fl.tensors import AnyTree

Model = TypeVar("Model")


class Rows(NamedTuple):
    """Rows of clients as an update.

    Args:
        x: inputs [K, N, d].
        y: targets [K, N].
        mask: [K, N] bool.
        weight: [K], 0 for a client to be left out.
    """

    x: Tensor
    y: Tensor
    mask: Tensor
    weight: Tensor

    @property
    def real(self) -> Tensor:
        """Rows that are no padding, of clients that take part [K, N], bool."""
        return self.mask & (self.weight > 0).unsqueeze(-1)


def send(batch: ClientBatch) -> Rows:
    """Send everything.

    Args:
        batch: x [K, N, d], y [K, N].

    Returns:
        The update.
    """
    return Rows(batch.x, batch.y, batch.mask, torch.ones_like(batch.size))


def pool(update: Rows) -> tuple[Tensor, Tensor]:
    """Join the real rows of all clients that take part.

    Args:
        update: x [K, N, d], y [K, N], mask [K, N], weight [K].

    Returns:
        x [R, d] and y [R].
    """
    return update.x[update.real], update.y[update.real]


POOLING = "pooled rows stand without padding, and how many there are the host must know"
"""Why a round of pooled rows reads numbers on the CPU."""


def rows_leave_error(name: str) -> PrivacyError:
    """The error of a method whose clients send their rows.

    Args:
        name: of the method.

    Returns:
        The error, to be raised.
    """
    what = f"{name} has no private release: its clients send their rows"
    return PrivacyError(what, hint="train it without [privacy]")


class CentralisedMethod(Method[Model, Model, Nothing, Rows]):
    """A method whose clients send all rows to the server, which fits one model for everybody."""

    federated: ClassVar[bool] = False
    host_bound: ClassVar[str | None] = POOLING

    def init_clients(self, message: Model, batch: ClientBatch) -> Nothing:
        """No client state."""
        return Nothing()

    def broadcast(self, server: Model) -> Model:
        """Send the whole model."""
        return server

    def client(self, message: Model, state: Nothing, batch: ClientBatch, noise: Noise) -> tuple[Rows, Nothing]:
        """Send all rows."""
        return send(batch), state

    @default
    def position(self, message: Model) -> AnyTree:
        """Nothing to watch: the fit is not iterative."""
        return Nothing()

    def check_private(self) -> None:
        """Nothing private: the rows themselves leave."""
        raise rows_leave_error(type(self).__name__)
