"""What laws of methods look at: a tiny federation after two rounds, its clients in other orders, calls and paddings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.federation import engine
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.methods.base import AnyMethod
from pacbayes_fl.methods.pac_pfl.gp import PacPFL
from pacbayes_fl.models.functions.deep_kernel_gp import DeepKernelGP
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.hyper_posterior import FlatHyperPrior
from pacbayes_fl.posteriors.predictive import ClassPredictive, RegressionPredictive
from pacbayes_fl.tensors import AnyTree

SIZES: Final = MappingProxyType({1: (7, 1, 4, 12, 5), 3: (3, 9, 1, 6)})
CLASSES: Final = 3
_CUTS: Final = (-0.4, 0.5)  # between the labels


class Part(NamedTuple):
    """A call of some clients.

    Args:
        positions: of the clients, in the order of the call.
        padded: cuts padding from their rows, adds some, or leaves it.
    """

    positions: list[int]
    padded: Callable[[ClientBatch], ClientBatch]


Arrangement = Callable[[int], list[Part]]


def widen(batch: ClientBatch, columns: int = 3) -> ClientBatch:
    """Add padding.

    Args:
        batch: rows [K, N, *feature].
        columns: how many rows of padding every client gets.

    Returns:
        The rows [K, N + columns, *feature].
    """
    more = [torch.nn.functional.pad(t, (0, 0) * (t.dim() - 2) + (0, columns)) for t in (batch.x, batch.y, batch.mask)]
    return replace(batch, x=more[0], y=more[1], mask=more[2])


def unchanged(batch: ClientBatch) -> ClientBatch:
    """Leave padding as it is.

    Args:
        batch: rows.

    Returns:
        The same.
    """
    return batch


ARRANGEMENTS: Final[Mapping[str, Arrangement]] = MappingProxyType(
    {
        "one by one": lambda k: [Part([i], ClientBatch.trim) for i in range(k)],
        "padded": lambda k: [Part(list(range(k)), widen)],
        "permuted": lambda k: [Part(list(range(k))[::-1], unchanged)],
        "in two calls": lambda k: [
            Part([1, 2], unchanged),
            Part([i for i in range(k) if i not in (1, 2)], ClientBatch.trim),
        ],
        "without the others": lambda k: [Part([2, 0], unchanged)],
    }
)
"""How the same clients may come to a method: calls of some positions, each with padding cut or added."""


class Scene(NamedTuple):
    """A federation after two rounds: everything that one more round needs.

    Args:
        method: the algorithm.
        batch: rows of the clients that train, three at least.
        strangers: rows of two clients that never trained, the second without any.
        server: its state.
        clients: their states, leaves [K, *].
        plan: of the two rounds.
    """

    method: AnyMethod
    batch: ClientBatch
    strangers: ClientBatch
    server: AnyTree
    clients: AnyTree
    plan: FederationPlan

    @property
    def message(self) -> AnyTree:
        """What the next round sends down."""
        return self.method.broadcast(self.server)

    @property
    def whole(self) -> Part:
        """The call of all clients."""
        return Part(list(range(self.batch.clients)), unchanged)

    @property
    def points(self) -> Tensor:
        """Inputs to predict [K, 5, *feature], the same for every client."""
        k, *shape = self.batch.x.shape[:1] + self.batch.x.shape[2:]
        line = torch.linspace(-2, 2, 5, dtype=torch.float64).view(1, -1, *[1] * len(shape))
        return line.expand(k, -1, *shape).to(self.batch.x.dtype)

    def noise(self, ids: tuple[int, ...], round: int = 3) -> Noise:
        """Give the random numbers of clients in a round.

        Args:
            ids: of the clients.
            round: 3 is the next one, 0 that of personalisation.

        Returns:
            The streams.
        """
        return Noise(self.plan.seed, round, ids, engine=self.plan.noise)

    def rows(self, part: Part) -> tuple[Tensor, ClientBatch]:
        """Give what a call is about.

        Args:
            part: of the clients.

        Returns:
            Their positions [k], and their rows.
        """
        index = torch.tensor(part.positions)
        return index, part.padded(self.batch.select(index))

    def play(self, part: Part) -> tuple[AnyTree, AnyTree]:
        """Let some clients do their half of the third round.

        Args:
            part: which.

        Returns:
            Their updates and their new states.
        """
        index, rows = self.rows(part)
        return self.method.client(self.message, tensors.select(self.clients, index), rows, self.noise(rows.ids))


def played(method: AnyMethod, batch: ClientBatch, strangers: ClientBatch, plan: FederationPlan) -> Scene:
    """Play the rounds of a plan.

    Args:
        method: the algorithm.
        batch: rows of the clients that train.
        strangers: rows of clients that do not.
        plan: of the rounds.

    Returns:
        The federation after them.
    """
    state = engine.run_rounds(method, batch, plan)
    return Scene(method, batch, strangers, state.server, state.clients, plan)


def federation(d: int, labelled: bool = False) -> ClientBatch:
    """Make ragged clients, one of them of a single row.

    Args:
        d: number of features.
        labelled: whether targets are labels instead of numbers.

    Returns:
        Their rows.
    """
    random = np.random.default_rng(d)
    rows = [random.normal(size=(m, d + 1)) for m in SIZES.get(d, SIZES[3])]
    clients = [(torch.tensor(r[:, :d]), torch.tensor(np.sin(2 * r[:, 0]) + 0.3 * r[:, d])) for r in rows]
    if not labelled:
        return ClientBatch.pad(clients)
    cuts = torch.tensor(_CUTS)
    return ClientBatch.pad([(x, torch.bucketize(y, cuts)) for x, y in clients], classes=CLASSES)


def strangers_of(batch: ClientBatch, classes: int | None = None) -> ClientBatch:
    """Make clients that never trained.

    Args:
        batch: rows of those that did.
        classes: of labels.

    Returns:
        Two clients: the rows of the first one elsewhere, and none.
    """
    x, y = batch.x[0][batch.mask[0]], batch.y[0][batch.mask[0]]
    rows = [(2.0 * x - 1.0, y), (x[:0], y[:0])]
    return ClientBatch.pad(rows, ["stranger", "empty"], allow_empty=True, classes=classes, dtype=x.dtype)


def numbers(predictive: RegressionPredictive | ClassPredictive) -> dict[str, Tensor]:
    """Give what a predictive distribution says.

    Args:
        predictive: of numbers or labels.

    Returns:
        Tensors that begin with K, by name.
    """
    probs: Tensor | None = getattr(predictive, "probs", None)
    names = ("mean", "variance") if probs is None else ("probs",)
    return {name: getattr(predictive, name) for name in names}


def assert_close(actual: AnyTree, expected: AnyTree, tolerance: float = 1e-9) -> None:
    """Compare trees leaf by leaf, whole numbers exactly.

    Args:
        actual: a tree.
        expected: another.
        tolerance: relative and absolute, of floating numbers.

    Raises:
        AssertionError: naming the first leaf that differs, and by how much.
    """
    mine, other = tensors.leaves(actual), tensors.leaves(expected)
    if mine.keys() != other.keys():
        raise AssertionError(f"leaves are {', '.join(mine)}, expected {', '.join(other)}")
    for name, leaf in mine.items():
        slack = tolerance if leaf.is_floating_point() else 0.0
        torch.testing.assert_close(leaf, other[name], rtol=slack, atol=slack, msg=partial("{}: {}".format, name))


def require(holds: object, what: str) -> None:
    """Ask that a law holds.

    Args:
        holds: whether it does.
        what: what is wrong where it does not.

    Raises:
        AssertionError: saying so.
    """
    if not holds:
        raise AssertionError(what)


def identified(method: AnyMethod, server: AnyTree) -> AnyTree:
    """Blank what nothing holds: the last bias of a deep kernel's network under a flat hyper-prior.

    Features enter the kernel by their differences, so that this bias has gradient 0 but for rounding, which Adam turns
    into steps. Predictions do not depend on it.

    Args:
        method: the algorithm.
        server: its server's state.

    Returns:
        The state.
    """
    if not isinstance(method, PacPFL) or not isinstance(method.hyper_prior, FlatHyperPrior):
        return server
    if not isinstance(method.model, DeepKernelGP):
        return server
    names = [name for name, shape in method.model.shapes.items() for _ in range(shape.numel())]
    last = max(name for name in names if name.startswith("kernel.network.biases"))
    held = torch.tensor([name != last for name in names])
    return tensors.tree_map(lambda leaf: leaf * held if leaf.shape[-1:] == held.shape else leaf, server)


def bits(tree: AnyTree) -> dict[str, bytes]:
    """Give the bytes of every leaf.

    Args:
        tree: any.

    Returns:
        By name.
    """
    return {name: leaf.contiguous().numpy().tobytes() for name, leaf in tensors.leaves(tree).items()}
