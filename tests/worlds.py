"""Worlds of a few numbers, as Pyro programs in float64, in which every local step of a method is exact arithmetic.

All rows of a client are alike and minibatches hold them all, so that no random number is drawn: with plain descent a
round is a formula. `tests/inference/test_map_estimate.py` holds the worlds to closed forms.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyro
import torch
from pyro import distributions, poutine
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.inference.map_estimate import LocalDescent
from pacbayes_fl.methods.base import AnyMethod
from pacbayes_fl.methods.baselines.averaging import Server
from pacbayes_fl.models.base import WeightModel, WeightPrior
from pacbayes_fl.noise import Noise

A, B, ROWS, START = (1.0, 4.0, 2.5), (0.0, 1.0, -2.0), (1, 3, 2), 2.0
"""Three clients f_k = a_k (w - b_k)^2 / 2, their rows, and where descent starts."""

TARGETS = (1.0, -1.0, 2.0)
"""Three clients f_k = (body head - y_k)^2 / 2."""


class World(WeightModel):
    """A Pyro program in which the clients' weights give the mean of their targets."""

    dtype = torch.float64
    sites: tuple[str, ...] = ("w",)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: () for name in self.sites}

    def mean(self, x: Tensor, **weights: Tensor) -> Tensor:
        """Give the mean of the targets [K, N] for weights [K, 1]."""
        raise NotImplementedError

    def model(self, batch: ClientBatch, prior: WeightPrior, zeta: float, scale: Tensor) -> None:
        with pyro.plate("clients", batch.clients, dim=-1):
            with poutine.scale(scale=zeta):
                weights = {name: pyro.sample(name, prior.site(name)).unsqueeze(-1) for name in self.sites}
            mean = self.mean(batch.x[..., 0], **weights).expand_as(batch.y)
            with poutine.scale(scale=scale):
                pyro.sample("y", distributions.Normal(mean, 1.0).mask(batch.mask).to_event(1), obs=batch.y)

    def log_likelihood_by_row(self, weights: Tensor, batch: ClientBatch) -> Tensor:
        """Say it without Pyro, ten times as fast."""
        by_site = {name: weights[:, at : at + 1] for at, name in enumerate(self.sites)}
        return -0.5 * ((batch.y - self.mean(batch.x[..., 0], **by_site)).square() + math.log(2 * math.pi))


class Quadratic(World):
    """-ln p = a (w - b)^2 / 2 up to a constant, with x = sqrt(a) and y = sqrt(a) b in every row."""

    def mean(self, x: Tensor, **weights: Tensor) -> Tensor:
        return x * weights["w"]


class Quartic(World):
    """-ln p = w^4 / 4 up to a constant, with x = 1 and y = 0: its second derivative is not constant."""

    def mean(self, x: Tensor, **weights: Tensor) -> Tensor:
        return x * weights["w"].square() * math.sqrt(0.5)


class Product(World):
    """-ln p = (body head - y)^2 / 2 up to a constant, with x = 1."""

    sites = ("body", "head")

    def mean(self, x: Tensor, **weights: Tensor) -> Tensor:
        return x * weights["body"] * weights["head"]


def clients(x: Sequence[float], y: Sequence[float], rows: Sequence[int]) -> ClientBatch:
    """Repeat a row of one feature and a target for every client."""
    pairs = zip(x, y, rows, strict=True)
    double = torch.float64
    return ClientBatch.pad(
        [(torch.full((m, 1), a, dtype=double), torch.full((m,), b, dtype=double)) for a, b, m in pairs]
    )


def quadratics(a: Sequence[float] = A, b: Sequence[float] = B, rows: Sequence[int] = ROWS) -> ClientBatch:
    """Return the rows of clients f_k = a_k (w - b_k)^2 / 2."""
    roots = [value**0.5 for value in a]
    return clients(roots, [root * at for root, at in zip(roots, b, strict=True)], rows)


def products(y: Sequence[float] = TARGETS) -> ClientBatch:
    """Return the rows of clients f_k = (body head - y_k)^2 / 2."""
    return clients([1.0] * len(y), y, [1] * len(y))


def descent(steps: int, rate: float, **options: Any) -> LocalDescent:
    """Plain descent by all rows."""
    return LocalDescent(steps, 50, rate, "sgd", **options)


class Round(NamedTuple):
    """What a round left: the server's state, the clients' states and what these sent."""

    server: Any
    clients: Any
    update: Any


def rounds(method: AnyMethod, batch: ClientBatch, *start: float, server: Any = None) -> Iterator[Round]:
    """Play a method round by round, all clients in each, from global weights or from another state of its server."""
    state = method.init_server(torch.Generator().manual_seed(0)) if server is None else server
    if start:
        state = state._replace(theta=torch.tensor(start, dtype=torch.float64))
    kept, t = method.init_clients(method.broadcast(state), batch), 0
    while True:
        t += 1
        update, kept = method.client(method.broadcast(state), kept, batch, Noise(0, t, batch.ids))
        state = method.server(state, method.reduce(update), batch.clients)
        yield Round(state, kept, update)


def after(count: int, method: AnyMethod, batch: ClientBatch, *start: float) -> Round:
    """Give what the last of some rounds left."""
    played = rounds(method, batch, *start)
    return [next(played) for _ in range(count)][-1]


def personal(method: AnyMethod, last: Round, batch: ClientBatch, fresh: bool = False) -> list[float]:
    """Give the weights of the clients' personal models, one number each; as of clients that never trained if asked."""
    message = method.broadcast(last.server)
    kept = method.init_clients(message, batch) if fresh else last.clients
    posterior: Any = method.personalise(message, kept, batch, Noise(0, 0, batch.ids))
    return numbers(posterior.family.loc)


def numbers(leaf: Tensor) -> list[float]:
    """List the numbers of a tensor."""
    return [float(value) for value in leaf.double().flatten()]


def at(theta: float) -> Server:
    """Global weights of one number."""
    return Server(torch.tensor([theta], dtype=torch.float64))
