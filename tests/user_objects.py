"""Files that a user brings to a study: a method, a metric, a model, a source, a bound, a loss and a rule."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from pacbayes_fl.models.base import FunctionModel, WeightModel
from pacbayes_fl.posteriors.hyper_posterior import GaussianHyperPrior
from pacbayes_fl.server.aggregations import AggregationRule

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

MODEL = '''
"""A kind of model of one's own: a network with one narrow layer."""
import math

from pacbayes_fl.models.weights.bayesian_network import BayesianMLP
from pacbayes_fl.study.config.models import ModelKind, NetworkModel


def narrow(table, shape, likelihood, dtype):
    return BayesianMLP((math.prod(shape), 2, likelihood.outputs), likelihood, dtype)


NARROW = ModelKind("narrow", "one layer of two units", "weights", NetworkModel, narrow)
'''

SOURCE = '''
"""A source of data of one's own: lines with a slope per client."""
from dataclasses import dataclass

import numpy as np

from pacbayes_fl.data import tables
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.study.config.sources import Source


@dataclass(frozen=True)
class Options:
    clients: int = 3


def lines(given):
    random, k = np.random.default_rng(5), int(given.get("clients", 3))
    parts = []
    for rows in (9, 4):
        x = [random.normal(size=(rows, 1)) for _ in range(k)]
        names = [f"line_{i}" for i in range(k)]
        import torch

        pairs = [(torch.from_numpy(one), torch.from_numpy(one[:, 0] * (i + 1))) for i, one in enumerate(x)]
        parts.append(ClientBatch.pad(pairs, names))
    group = tables.Group(parts[0], parts[1])
    return tables.Dataset({"existing": group}, (tables.Column("x"),), tables.Column("y"), {"source": "lines"})


LINES = Source("lines", "lines with a slope per client", lines, Options, rows_independent=True)
'''

BOUND = '''
"""A bound of one's own: Seeger's, under another name."""
from dataclasses import replace

from pacbayes_fl.bounds import BOUNDS

MINE = replace(BOUNDS["seeger"], name="mine")
'''


LOSS = '''
"""A loss of one's own."""
from dataclasses import dataclass


@dataclass(frozen=True)
class CappedAbsolute:
    """Absolute error that stops growing, min(|e|, limit) / limit.

    Args:
        limit: error at which it is 1.
    """

    limit: float = 2.0
    low = 0.0
    high = 1.0
    convex = False

    @property
    def name(self):
        return f"absolute error capped at {self.limit:g}"

    def __call__(self, prediction, y):
        return ((prediction - y).abs() / self.limit).clamp_max(1.0)

    def expected(self, mean, variance, y):
        """Bound the average by that of the square: E min(|e|, l) <= min((E e^2)^(1/2), l)."""
        return (((mean - y).square() + variance).sqrt() / self.limit).clamp_max(1.0)


NARROW = CappedAbsolute(0.5)
'''

RULE = '''
"""A rule of aggregation of one's own."""
from pacbayes_fl.server.aggregations import AggregationRule


def without_farthest(steps, weight, faulty):
    """Mean of the steps [n, D] without the f that are farthest from the median of every coordinate."""
    far = (steps - steps.median(0).values).abs().amax(1)
    kept = len(steps) - min(faulty, (len(steps) - 1) // 2)
    return steps[far <= far.sort().values[kept - 1]].mean(0)


RULE = AggregationRule(
    "without-farthest", "mean without the f steps that are farthest from the median", without_farthest,
    weighted=False, robust=True,
)
'''


def without_farthest(steps: Tensor, weight: Tensor, faulty: int) -> Tensor:
    """Mean of the steps [n, D] without the f that are farthest from the median of every coordinate."""
    far = (steps - steps.median(0).values).abs().amax(1)
    kept = len(steps) - min(faulty, (len(steps) - 1) // 2)
    return steps[far <= far.sort().values[kept - 1]].mean(0)


WITHOUT_FARTHEST = AggregationRule("without-farthest", "mean without the farthest", without_farthest, False, True)


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


def any_hyper_prior(model: FunctionModel | WeightModel) -> GaussianHyperPrior:
    """Make a hyper-prior of any model."""
    return GaussianHyperPrior(torch.zeros(model.dim, dtype=torch.float64), 0.3)
