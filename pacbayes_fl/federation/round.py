"""One round on one device: all clients of a call at once; numbers for the host are read once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.federation import cohort
from pacbayes_fl.federation.client_calls import CallSplitter, cut_calls, parts
from pacbayes_fl.federation.federation_state import FederationState, at_rates
from pacbayes_fl.federation.guard import Outcome, dominant
from pacbayes_fl.federation.kept import Kept, Writing
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.federation.private import PrivateAggregator
from pacbayes_fl.federation.reduction import Reduction, RobustAccumulator, UpdateAccumulator
from pacbayes_fl.federation.watch import Watch
from pacbayes_fl.methods.base import AnyMethod
from pacbayes_fl.noise import Noise
from pacbayes_fl.tensors import AnyTree


class Played(NamedTuple):
    """A round that takes effect once its state becomes the federation's; until then nothing has changed.

    Args:
        state: after the round.
        outcome: its numbers on the host.
    """

    state: FederationState
    outcome: Outcome


class RoundPlayer:
    """The common state of all rounds of a run, and one round of it.

    Args:
        method: the algorithm, at the study's learning rates.
        batch: training rows of all clients [K, N, *].
        plan: how to run.
        aggregator: makes the rounds private; None where they are not.
    """

    def __init__(
        self, method: AnyMethod, batch: ClientBatch, plan: FederationPlan, aggregator: PrivateAggregator | None
    ) -> None:
        """Cut clients into calls, where all of them make a step in every round."""
        self.method, self.batch, self.plan, self.aggregator = method, batch, plan, aggregator
        self.sizes = [int(m) for m in batch.size.tolist()]
        self._rows = dict(zip(batch.names, self.sizes, strict=True))
        sampled = (plan.cohort is not None if aggregator is None else aggregator.draws) and plan.train == "cohort"
        self._everyone = None if sampled else self.parts(list(range(batch.clients)))
        self.splitter = CallSplitter()

    def play(
        self,
        state: FederationState,
        undone: Sequence[str] = (),
        without: str | None = None,
        method: AnyMethod | None = None,
    ) -> Played:
        """Play the round after a state, which stays as it is.

        Args:
            state: before the round.
            undone: why it was undone before.
            without: a client that is left out as if it had failed.
            method: instead of the one at the federation's rates.

        Returns:
            The round.
        """
        method, plan, t = at_rates(self.method, state) if method is None else method, self.plan, state.round + 1
        drawn = self._drawn(t, state.watch.halved, undone)
        heard = tuple(self.batch.names[k] for k in drawn)
        asked = set(heard)
        message = method.broadcast(state.server)
        kept = Kept.of(state.kept, self.batch.clients)
        writing = Writing(kept, everybody=self._everyone is not None)
        reduction = self._reduction(message, state)
        notes = _Notes()

        def work(positions: Sequence[int], rows: ClientBatch) -> _Note | None:
            before = kept.select(positions)
            noise = Noise(plan.seed, t, rows.ids, rows.x.device, plan.noise)
            sent, after = method.client(message, before, rows, noise)
            update = method.registered(sent, rows.size, rows.ids)
            good = tensors.finite({"update": sent, "state": after})
            if self.aggregator is None:
                good = good & tensors.same(sent, update)
            if without in rows.names:
                good[rows.names.index(without)] = False
            note = _note(method, message, update, good) if self.aggregator is None else None
            writing.put(positions, after, good, before)
            _hear(reduction, update, good, [name in asked for name in rows.names])  # at last: it is done or not at all
            return note

        for call in self.calls(self.parts(drawn) if self._everyone is None else self._everyone):
            for _, rows, note in self.splitter.calls(*call, work):
                if note is not None:
                    notes.add(rows.names, note)
        update = reduction.release()
        server = method.server(state.server, update, self.batch.clients)
        report = {**method.report(server, update), **reduction.numbers}
        outcome = notes.read(heard, server, parameter_size(method, server), report)
        watch = state.watch if self.aggregator is not None else self._watched(state.watch, outcome)
        return Played(FederationState(server, writing.done(), t, watch), outcome)

    def _watched(self, watch: Watch, outcome: Outcome) -> Watch:
        return watch.after(outcome.members, outcome.dropped, outcome.norms, dominant(outcome.norms, self._rows))

    def _reduction(self, message: AnyTree, state: FederationState) -> Reduction:
        if self.aggregator is not None:
            return self.aggregator.noisy_sum(self.method, message, state.round + 1)
        if self.plan.aggregate == "mean":
            return UpdateAccumulator(self.method)
        return RobustAccumulator(self.method, message, self.plan, state.watch.medians)

    def _drawn(self, t: int, halved: int, undone: Sequence[str]) -> list[int]:
        if self.aggregator is not None:
            drawn: list[int] = self.aggregator.draw(self.batch.ids, t, halved, undone).tolist()
            return drawn
        return cohort.draw(self.plan.seed, t, self.batch.ids, self.plan.cohort).tolist()

    def parts(self, positions: list[int]) -> list[list[int]]:
        """Cut clients into calls; see `client_calls.parts`."""
        return parts(self.method, self.sizes, positions, self.plan)

    def calls(self, cut: Sequence[list[int]]) -> Iterator[tuple[list[int], ClientBatch]]:
        """Give positions and rows of every call; see `client_calls.cut_calls`."""
        return cut_calls(self.batch, self.sizes, cut)


class _Note(NamedTuple):
    """Of the clients of a call: whether they are good [k], and the norms of their steps [k], NaN where none counts."""

    good: Tensor
    norm: Tensor


def _note(method: AnyMethod, message: AnyTree, update: AnyTree, good: Tensor) -> _Note:
    norm = tensors.norm(method.client_deltas(message, update))
    counts = good & (update.weight > 0)
    return _Note(good, torch.where(counts, torch.nan if norm is None else norm, torch.nan))


class _Notes:
    """Numbers of a round for the host, on the device until they are read together."""

    def __init__(self) -> None:
        self._members, self._flags, self._norms = list[str](), list[Tensor](), list[Tensor]()

    def add(self, names: Sequence[str], note: _Note) -> None:
        """Store the numbers of a call's clients."""
        self._members += names
        self._flags.append(note.good)
        self._norms.append(note.norm)

    def read(self, heard: tuple[str, ...], server: AnyTree, size: Tensor, values: Mapping[str, Tensor]) -> Outcome:
        """Look at the device, for the only time in a round."""
        sound = [leaf.isfinite().all() for leaf in tensors.leaves(server).values()]
        device = sound[0].device if sound else self._flags[0].device
        whole = torch.stack(sound).all() if sound else torch.ones((), dtype=torch.bool, device=device)
        scalars = [value.view(1).to(device) for value in (whole, size, *values.values())]
        host: list[float] = torch.cat([part.double() for part in (*self._flags, *self._norms, *scalars)]).tolist()
        many = len(self._members)
        good, norms, (finite, rms, *numbers) = host[:many], host[many : 2 * many], host[2 * many :]
        dropped = tuple(name for name, whole in zip(self._members, good, strict=True) if not whole)
        lengths = {name: norm for name, norm in zip(self._members, norms, strict=True) if not math.isnan(norm)}
        norms_heard = {name: lengths[name] for name in heard if name in lengths}
        reported = dict(zip(values, numbers, strict=True))
        return Outcome(heard, tuple(self._members), dropped, norms_heard, bool(finite), reported, rms)


def parameter_size(method: AnyMethod, server: AnyTree) -> Tensor:
    """Root mean square of the trained parameters.

    Args:
        method: the algorithm.
        server: its state.

    Returns:
        [], float64; 0 where it moves nothing.
    """
    position = method.position(method.broadcast(server))
    count = sum(leaf.numel() for leaf in tensors.leaves(position).values())
    norm = tensors.norm(tensors.expand(position, 1))
    return torch.zeros((), dtype=torch.float64) if norm is None or not count else norm[0] / math.sqrt(count)


def _hear(reduction: Reduction, update: AnyTree, good: Tensor, heard: list[bool]) -> None:
    """Add the updates of a call's clients in the cohort; the others' are not sent."""
    if all(heard):
        reduction.add(update, good)
    elif any(heard):
        index = torch.tensor(heard).nonzero().squeeze(1).to(good.device)
        reduction.add(tensors.select(update, index), good[index])
