"""Where a federation stands between two rounds, and where it begins."""

from __future__ import annotations

from typing import NamedTuple

import torch

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.federation.kept import Kept
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.federation.watch import Watch
from pacbayes_fl.methods.base import AnyMethod, slowed
from pacbayes_fl.posteriors.weights.family import check_families
from pacbayes_fl.tensors import AnyTree


class FederationState(NamedTuple):
    """Everything that a later round depends on.

    Args:
        server: of the method.
        kept: of the method's clients: a `Kept`, or leaves [K, *].
        round: rounds finished.
        watch: the engine's own records of them.
    """

    server: AnyTree
    kept: AnyTree
    round: int
    watch: Watch = Watch()

    @property
    def clients(self) -> AnyTree:
        """States of all clients together, leaves [K, *]: as much memory as if all had taken part."""
        return self.kept.together() if isinstance(self.kept, Kept) else self.kept


def start(method: AnyMethod, batch: ClientBatch, plan: FederationPlan) -> FederationState:
    """Begin: the state before the first round.

    Args:
        method: the algorithm.
        batch: rows of all clients.
        plan: gives the seed.

    Returns:
        Round 0, on the batch's device.
    """
    server = method.init_server(torch.Generator().manual_seed(plan.seed))
    check_families(server)
    server = tensors.tree_map(lambda leaf: leaf.to(batch.x.device), server)
    return FederationState(server, Kept.start(method, method.broadcast(server), batch), 0)


def at_rates(method: AnyMethod, state: FederationState) -> AnyMethod:
    """Give a method the learning rates to which a federation had to come; everything after the rounds is done at these.

    Args:
        method: the algorithm.
        state: after some round.

    Returns:
        The method with its rates halved as often as rounds were undone; the very same where none was.
    """
    return slowed(method, 0.5**state.watch.halved) if state.watch.halved else method
