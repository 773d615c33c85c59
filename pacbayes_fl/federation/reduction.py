"""Aggregation of a round's updates before the server's step: a mean call by call, or a robust aggregate."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.errors import PrivacyError, StudyError
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.methods.base import AnyMethod
from pacbayes_fl.server.aggregations import Rule, majority
from pacbayes_fl.tensors import AnyTree, Tree

_MERGE_EVERY = 32  # calls
_COPIES = 4  # of all steps in float64: what came, the steps, their matrix, and one in which it is sorted


class Reduction(Protocol):
    """Accumulator of the updates of a round, call by call; its result is the server's update.

    Args:
        numbers: for the record of the round, by name, scalars [].
    """

    numbers: dict[str, Tensor]

    def add(self, update: AnyTree, good: Tensor) -> None:
        """Add the clients of a call, leaves [k, *]; one that failed, `good` [k] False, weighs nothing."""

    def release(self) -> AnyTree:
        """The aggregated update of the server's step, leaves [n, *]."""


class UpdateAccumulator:
    """Updates of a round whose aggregate is a mean; where they add up, memory does not grow with the number of calls.

    Args:
        method: the algorithm, whose `reduce` shrinks the updates of a call.
    """

    def __init__(self, method: AnyMethod) -> None:
        """Start without updates."""
        self._reduce, self._updates = method.reduce, list[AnyTree]()
        self.numbers = dict[str, Tensor]()

    def add(self, update: AnyTree, good: Tensor) -> None:
        """Add the clients of a call.

        Args:
            update: of k clients, leaves [k, *].
            good: bool [k], False for a client that failed: it weighs nothing.
        """
        reduced = self._reduce(_counted(update, good))
        updates = [*self._updates, reduced]
        self._updates = [self._reduce(tensors.cat(updates))] if len(updates) == _MERGE_EVERY else updates

    def release(self) -> AnyTree:
        """The updates over which the server averages, leaves [n, *]."""
        return tensors.cat(self._updates)


class RobustAccumulator:
    """Updates of a round, kept until all are there; memory grows with the number of clients, whatever the chunk.

    Args:
        method: the algorithm.
        message: of the server.
        plan: says how steps are joined.
        known: median norm of the steps of each round before, oldest first.
    """

    def __init__(self, method: AnyMethod, message: AnyTree, plan: FederationPlan, known: Sequence[float]) -> None:
        """Start without updates."""
        self._method, self._message, self._plan, self._known = method, message, plan, known
        self._updates = list[AnyTree]()
        self.numbers = dict[str, Tensor]()

    def add(self, update: AnyTree, good: Tensor) -> None:
        """Add the clients of a call.

        Args:
            update: of k clients, leaves [k, *].
            good: bool [k], False for a client that failed: it weighs nothing.
        """
        self._updates.append(_counted(update, good))

    def release(self) -> AnyTree:
        """Aggregate the steps of all clients, and count in `numbers` how many were shortened.

        Returns:
            The update that the method makes of it.
        """
        update = tensors.cat(self._updates)
        steps = self._method.client_deltas(self._message, update)
        plan, weight = self._plan, update.weight
        rule = Rule.of(plan.rule, plan.suspects, plan.multiple, steps, weight, self._known)
        if rule.factor is not None:
            self.numbers["clipped"] = ((rule.factor < 1) & (weight > 0)).sum()
        return self._method.aggregated(self._message, update, rule)


def _counted(update: Tree, good: Tensor) -> Tree:
    """Put zeros, weights among them, in place of the updates of clients that failed; without any there is no copy."""
    if tensors.on_host(good) and bool(good.all()):
        return update
    return tensors.where(good, update, tensors.tree_map(torch.zeros_like, update))


def check(method: AnyMethod, message: AnyTree, clients: int, plan: FederationPlan) -> None:
    """Refuse an aggregate that a federation cannot have, before anything is trained.

    Args:
        method: the algorithm.
        message: of the server before the first round.
        clients: of the federation.
        plan: says how steps are joined.

    Raises:
        StudyError: when the method has no steps to join, a round has too few clients for as many faults, or the steps
            of all clients of a round do not fit into memory.
    """
    if plan.aggregate == "mean":
        return
    method.check_robust(plan.rule)
    drawn = min(clients, plan.cohort or clients)
    if (wanting := _wanting(plan, clients, method.fewest_joined(drawn))) is not None:
        hint = "lower federation.faulty"
        if plan.rule.clips:
            hint = f"{hint}: of half of the clients or more no median is the others'"
        elif clients >= majority(plan.suspects):
            hint = f"{hint}, or take federation.aggregate = 'clipped'"
        what = f"aggregate = {plan.rule.name!r} with {plan.suspects} faulty {wanting}"
        raise StudyError(what, hint=hint)
    leaves = list(tensors.leaves(message).values())
    needed = _COPIES * 8 * drawn * sum(leaf.numel() for leaf in leaves)
    if needed > (there := _memory(leaves[0].device)):
        what = f"aggregate = {plan.rule.name!r} keeps the steps of all {drawn} clients of a round at once"
        raise StudyError(
            f"{what}, about {needed / 1e9:.3g} GB of {there / 1e9:.3g}, which federation.chunk does not divide",
            hint="lower federation.cohort, or take federation.aggregate = 'mean'",
        )


def _wanting(plan: FederationPlan, clients: int, joined: int) -> str | None:
    """Say how many clients an aggregate needs for its faulty ones that a federation, or a round of it, has not."""
    if plan.rule.clips and plan.faulty is not None and clients < (least := majority(plan.faulty)):
        return f"needs {least} clients, got {clients}"  # rounds before count too, so that a round may have fewer
    if joined < (least := plan.rule.needs(plan.suspects)):
        return f"needs {least} clients in a round, got {joined}"
    return None


def affordable(method: AnyMethod, clients: int, plan: FederationPlan) -> FederationPlan:
    """Let fewer clients than a run has, as the federations of trials have, tolerate fewer of them.

    Args:
        method: the algorithm.
        clients: of the federation.
        plan: of the run.

    Returns:
        The plan with as many faults as the rule takes among these, and with the mean where it takes none.
    """
    joined = method.fewest_joined(min(clients, plan.cohort or clients))
    for faulty in range(plan.suspects, -1, -1):
        lowered = plan if faulty == plan.suspects else replace(plan, faulty=faulty)
        if _wanting(lowered, clients, joined) is None:
            return lowered
    return replace(plan, aggregate="mean", faulty=None, clip_multiple=None)


def check_private(plan: FederationPlan) -> None:
    """Refuse to release a robust aggregate: noise is accounted for a sum of clipped steps.

    Args:
        plan: says how steps are joined.

    Raises:
        PrivacyError: naming the option.
    """
    if plan.aggregate != "mean":
        what = f"aggregate = {plan.rule.name!r} is no sum of clipped steps, and noise is accounted for such a sum"
        raise PrivacyError(what, hint="federation.aggregate = 'mean'; privacy.clip bounds every client's step already")


def _memory(device: torch.device) -> int:
    """Bytes of a device, used or not."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
