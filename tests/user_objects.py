"""Files that a user brings to a study: a method, a model, a source, a partition, a metric and a bound of one's own."""

from __future__ import annotations

from pathlib import Path

METHOD = '''
"""A method of one's own."""
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pacbayes_fl.methods.base import Method, Nothing
from pacbayes_fl.options import option
from pacbayes_fl.posteriors.point import LinearPoint


class Mean(NamedTuple):
    """Mean target, and the number of clients behind it."""

    value: Tensor


class Update(NamedTuple):
    """A client's mean target [K], and its weight [K]."""

    value: Tensor
    weight: Tensor


@dataclass(frozen=True)
class MeanTarget(Method[Mean, Mean, Nothing, Update]):
    """The mean of all clients' means, shrunk towards zero.

    Args:
        shrink: factor of the mean.
    """

    shrink: float = option(0.5, low=0, high=1)

    def init_server(self, generator):
        return Mean(torch.zeros((), dtype=torch.float64))

    def init_clients(self, message, batch):
        return Nothing()

    def broadcast(self, server):
        return server

    def client(self, message, state, batch, noise):
        total = torch.where(batch.mask, batch.y, 0.0).sum(1)
        return Update(total / batch.size.clamp_min(1), torch.ones_like(batch.size)), state

    def server(self, server, update, n_clients):
        return Mean((update.value * update.weight).sum() / update.weight.sum() * self.shrink)

    def personalise(self, message, state, batch, noise):
        zero = batch.x.new_zeros(batch.clients, batch.x.shape[-1])
        mean = message.value.expand(batch.clients)
        return LinearPoint(zero, mean, torch.ones_like(mean))
'''

METRIC = '''
"""A metric of one's own."""
import torch

from pacbayes_fl.metrics import Metric


def largest(predictive, y, mask):
    """Largest absolute error [K]."""
    return torch.where(mask, (predictive.mean - y).abs(), 0.0).amax(1)


LARGEST = Metric(
    name="largest_error",
    label="largest error",
    unit="",
    function=largest,
    better="lower",
    tasks=("regression",),
    meaning="largest absolute error",
)
'''


def write(folder: Path, name: str, text: str) -> Path:
    """Write a file of the user's.

    Args:
        folder: where it goes.
        name: of the file.
        text: its content.

    Returns:
        Its path.
    """
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path
