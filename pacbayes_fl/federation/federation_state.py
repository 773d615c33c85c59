"""Where a federation stands between two rounds, and where it begins."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.federation.client_states import Kept
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.federation.watch import Watch
from pacbayes_fl.files import JsonTable
from pacbayes_fl.methods.base import AnyMethod, slowed
from pacbayes_fl.posteriors.weights.family import check_families
from pacbayes_fl.tensors import AnyTree


class Average(NamedTuple):
    """Mean of the server's states after consecutive rounds.

    Args:
        server: the mean, leaves [*]; of whole numbers, such as counts of rounds, the last.
        first: number of the first of them [], int64.
    """

    server: AnyTree
    first: Tensor


class FederationState(NamedTuple):
    """Everything that a later round depends on.

    Args:
        server: of the method.
        kept: of the method's clients: a `Kept`, or leaves [K, *].
        round: rounds finished.
        watch: the engine's own records of them.
        average: of the server's states after the last rounds; None where they are not averaged, or not yet.
    """

    server: AnyTree
    kept: AnyTree
    round: int
    watch: Watch = Watch()
    average: Average | None = None

    @property
    def clients(self) -> AnyTree:
        """States of all clients together, leaves [K, *]: as much memory as if all had taken part."""
        return self.kept.together() if isinstance(self.kept, Kept) else self.kept

    @property
    def used(self) -> FederationState:
        """The state that clients are served from after this round: with the mean in the place of the server's last.

        Clients' own states are of the last round, as are whole numbers of the server's.
        """
        return self if self.average is None else self._replace(server=self.average.server, average=None)

    @property
    def server_side(self) -> dict[str, AnyTree]:
        """What the server knows, by the name under which it is saved."""
        return {"server": self.server} | ({} if self.average is None else {"average": self.average})

    def averaged(self, before: Average | None, plan: FederationPlan) -> FederationState:
        """Take this round's server into the mean.

        m_n = m_(n-1) + (theta_n - m_(n-1)) / n, the mean of n states in the memory of one

        Args:
            before: the mean after the round before.
            plan: says which rounds are averaged. Where a mean reaches farther back than these, as when a run that has
                ended goes on to more rounds, it begins anew: what it is made of cannot be taken apart.

        Returns:
            The state with its mean.
        """
        first = plan.averaged_from
        if self.round < first:
            return self._replace(average=None)
        if before is None or int(before.first) < first:
            return self._replace(average=Average(self.server, torch.tensor(self.round)))
        share = 1.0 / (self.round + 1 - int(before.first))

        def mean(known: Tensor, new: Tensor) -> Tensor:
            return torch.lerp(known, new, share) if new.is_floating_point() else new

        return self._replace(average=before._replace(server=tensors.tree_map(mean, before.server, self.server)))

    def labels(self) -> JsonTable:
        """Say what the server that clients are served from is the mean of.

        Returns:
            "averaged" in words; nothing where it is the last state.
        """
        if self.average is None:
            return {}
        return {
            "averaged": f"the server's model is the mean of those after rounds {self.average.first} to {self.round}"
        }


class Endings:
    """What runs that end after different numbers of rounds serve clients from, along the rounds of the longest.

    Args:
        plan: of one of them; all others differ from it in their rounds.
        marks: numbers of rounds.
    """

    def __init__(self, plan: FederationPlan, marks: Collection[int]) -> None:
        """Nothing is averaged yet."""
        self._plans = {mark: replace(plan, rounds=mark) for mark in marks}
        self._means = dict[int, Average | None]()

    def used(self, state: FederationState) -> FederationState:
        """Take every state in turn, and give what a run that ends there serves clients from.

        Args:
            state: after a round.

        Returns:
            The state with the mean of the last servers of such a run; the state itself after other rounds.
        """
        for mark, plan in self._plans.items():
            if state.round <= mark:
                self._means[mark] = state.averaged(self._means.get(mark), plan).average
        return state._replace(average=self._means.get(state.round)).used


def restored(like: AnyTree, flat: Mapping[str, Tensor]) -> tuple[AnyTree, Average | None]:
    """Read the server's part of a state that was saved.

    Args:
        like: a server's state of the method, leaves [*].
        flat: the leaves that were saved of `FederationState.server_side`, by name, and others.

    Returns:
        The server's state after the round, and the mean of those before it.

    Raises:
        ShapeError: when it is of another method.
    """
    tree: dict[str, AnyTree] = {"server": like}
    if any(name.startswith("average.") for name in flat):
        tree["average"] = Average(like, torch.zeros((), dtype=torch.int64))
    own = {name: leaf for name, leaf in flat.items() if name.split(".")[0] in tree}
    read = tensors.unleaves(tree, own, exact=False)
    mean: Average | None = read.get("average")
    return read["server"], None if mean is None else mean._replace(first=mean.first.cpu())


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
