"""One round of a federation, wherever its clients are: who is drawn, how updates meet, and what they come to."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Final, NamedTuple

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import ShapeError, StudyError, shown
from pacbayes_fl.federation import cohort
from pacbayes_fl.federation.client_calls import CallSplitter, cut_calls, parts
from pacbayes_fl.federation.client_states import Kept, Writing
from pacbayes_fl.federation.federation_state import FederationState
from pacbayes_fl.federation.guard import Outcome, dominant
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.federation.private import PrivateAggregator
from pacbayes_fl.federation.reduction import Reduction, RobustAccumulator, UpdateAccumulator
from pacbayes_fl.federation.watch import Watch
from pacbayes_fl.methods.base import AnyMethod, slowed
from pacbayes_fl.methods.tempered import untempered
from pacbayes_fl.models.base import default
from pacbayes_fl.noise import Noise
from pacbayes_fl.results.rounds import RoundRecord
from pacbayes_fl.tensors import AnyTree

_OF_RECORDS: Final = (*RoundRecord.__dataclass_fields__, "unscored")


class Played(NamedTuple):
    """A round that takes effect once its state becomes the federation's; until then nothing has changed.

    Args:
        state: after the round.
        outcome: its numbers on the host.
    """

    state: FederationState
    outcome: Outcome


class Asked(NamedTuple):
    """A round that is about to be trained.

    Args:
        state: before it.
        drawn: positions of the clients whose updates enter the server.
        heard: their names.
        rates: factor of the study's learning rates.
        trial: whether only its numbers are wanted, and its state is not gone on from.
        without: a client that is left out as if it had failed.
    """

    state: FederationState
    drawn: Sequence[int]
    heard: tuple[str, ...]
    rates: float
    trial: bool
    without: str | None


class Trained(NamedTuple):
    """What the clients of a round have come to.

    Args:
        kept: states of all clients after it.
        reasons: why somebody was left out, by name, where that is known.
        counted: of clients that keep their own states, whether the round's answer counts, by name.
    """

    kept: AnyTree
    reasons: Mapping[str, str]
    counted: Mapping[str, bool] = MappingProxyType({})


class Player(ABC):
    """The common state of all rounds of a run, and one round of it.

    Args:
        method: the algorithm, at the study's learning rates.
        batch: training rows of all clients [K, N, *], or a roster that has their names and ids.
        plan: how to run.
        aggregator: makes the rounds private; None where they are not.
        sizes: how many rows each client has; as the batch has them when None.
    """

    def __init__(
        self,
        method: AnyMethod,
        batch: ClientBatch,
        plan: FederationPlan,
        aggregator: PrivateAggregator | None,
        sizes: Sequence[int] | None = None,
    ) -> None:
        """Take what does not change from round to round."""
        self.method, self.batch, self.plan, self.aggregator = method, batch, plan, aggregator
        self.sizes = [int(m) for m in batch.size.tolist()] if sizes is None else [*sizes]
        self._rows = dict(zip(batch.names, self.sizes, strict=True))
        sampled = (plan.cohort is not None if aggregator is None else aggregator.draws) and plan.train == "cohort"
        self.everybody = not sampled

    @abstractmethod
    def train(self, asked: Asked, message: AnyTree, reduction: Reduction, notes: Notes) -> Trained:
        """Let the clients of a round train, and add what they send to the reduction and to the notes."""

    @abstractmethod
    def updates(self, start: FederationState, rates: float) -> Iterator[tuple[Sequence[str], AnyTree]]:
        """Updates [k, *] of all clients, with their names, from the federation's start; they keep nothing of it."""

    @default
    def sent(self, message: AnyTree) -> AnyTree:
        """Give the server's message as clients receive it."""
        return message

    def play(
        self,
        state: FederationState,
        undone: Sequence[str] = (),
        without: str | None = None,
        trial_rates: float | None = None,
    ) -> Played:
        """Play the round after a state, which stays as it is.

        Args:
            state: before the round.
            undone: why it was undone before.
            without: a client that is left out as if it had failed.
            trial_rates: factor of the study's learning rates at which the round is only tried; those of the state
                when None.

        Returns:
            The round.
        """
        rates = 0.5**state.watch.halved if trial_rates is None else trial_rates
        method, t = self.method if rates == 1 else slowed(self.method, rates), state.round + 1
        drawn = self._drawn(t, state.watch.halved, undone)
        heard = tuple(self.batch.names[k] for k in drawn)
        message = self.sent(method.broadcast(state.server))
        reduction, notes = self._reduction(message, state), Notes()
        asked = Asked(state, drawn, heard, rates, trial_rates is not None, without)
        trained = self.train(asked, message, reduction, notes)
        update = reduction.release()
        server = method.server(state.server, update, self.batch.clients)
        objective = method.objective if self.aggregator is None else None  # which no private round tells
        report = {**_reported(method, objective, server, update), **reduction.numbers}
        outcome = notes.read(heard, server, parameter_size(method, server), report)._replace(reasons=trained.reasons)
        watch = self._watched(state.watch, t, outcome, trained.counted)
        return Played(FederationState(server, trained.kept, t, watch), outcome)

    def _watched(self, watch: Watch, t: int, outcome: Outcome, counted: Mapping[str, bool]) -> Watch:
        if self.aggregator is not None:
            return watch.counted(t, counted)._replace(clip=self.aggregator.following(outcome.values))
        return watch.after(t, outcome.members, outcome.dropped, outcome.norms, dominant(outcome.norms, self._rows))

    def _reduction(self, message: AnyTree, state: FederationState) -> Reduction:
        if self.aggregator is not None:
            return self.aggregator.noisy_sum(self.method, message, state.round + 1, state.watch.clip)
        if self.plan.aggregate == "mean":
            return UpdateAccumulator(self.method)
        return RobustAccumulator(self.method, message, self.plan, state.watch.medians)

    def _drawn(self, t: int, halved: int, undone: Sequence[str]) -> list[int]:
        if self.aggregator is not None:
            drawn: list[int] = self.aggregator.draw(self.batch.ids, t, halved, undone).tolist()
            return drawn
        return cohort.draw(self.plan.seed, t, self.batch.ids, self.plan.cohort).tolist()

    def note(self, method: AnyMethod, message: AnyTree, update: AnyTree, good: Tensor) -> Note | None:
        """Measure the steps of a call's clients; None in private rounds, which tell nothing else.

        Args:
            method: the algorithm.
            message: of the server.
            update: of k clients, leaves [k, *].
            good: bool [k], False for a client that failed.
        """
        if self.aggregator is not None:
            return None
        norm = tensors.norm(method.client_deltas(message, update))
        counts = good & (update.weight > 0)
        return Note(good, torch.where(counts, torch.nan if norm is None else norm, torch.nan))


def _reported(method: AnyMethod, objective: str | None, server: AnyTree, update: AnyTree) -> dict[str, Tensor]:
    """Take what a method says of a round, whose names and numbers a record and the guard can hold."""
    given, who = {**method.report(server, update)}, f"report of {type(untempered(method)).__name__}"
    for name, value in given.items():
        if name in _OF_RECORDS:
            raise StudyError(f"{who}: {name!r} is what the record of a round says itself", hint="give it another name")
        if not isinstance(value, Tensor) or value.numel() != 1:
            got = list(value.shape) if isinstance(value, Tensor) else shown(value)
            raise ShapeError(f"{who} must give {name!r} as a tensor of one number, [], got {got}")
    if objective is not None and objective not in given:
        what = f"{who} lacks {objective!r}, the clients' objective, by which a divergence is noticed"
        raise StudyError(what, hint="its mean over clients as a tensor []; or objective = None in the class")
    return given


class RoundPlayer(Player):
    """Plays rounds of clients whose rows are all here.

    Args:
        method: the algorithm, at the study's learning rates.
        batch: training rows of all clients [K, N, *].
        plan: how to run.
        aggregator: makes the rounds private; None where they are not.
        own: positions of the clients that train here; all when None.
    """

    def __init__(
        self,
        method: AnyMethod,
        batch: ClientBatch,
        plan: FederationPlan,
        aggregator: PrivateAggregator | None,
        own: Sequence[int] | None = None,
    ) -> None:
        """Cut clients into calls, where all of them make a step in every round."""
        super().__init__(method, batch, plan, aggregator)
        self._everyone = self.parts(range(batch.clients) if own is None else own) if self.everybody else None
        self._splitter = CallSplitter()

    def train(self, asked: Asked, message: AnyTree, reduction: Reduction, notes: Notes) -> Trained:
        """Train the clients call by call."""
        method = self.method if asked.rates == 1 else slowed(self.method, asked.rates)
        t, plan, heard = asked.state.round + 1, self.plan, set(asked.heard)
        kept = Kept.of(asked.state.kept, self.batch.clients)
        writing = Writing(kept, everybody=self.everybody)

        def work(positions: Sequence[int], rows: ClientBatch) -> Note | None:
            before = kept.select(positions)
            noise = Noise(plan.seed, t, rows.ids, rows.x.device, plan.noise)
            sent, after = method.client(message, before, rows, noise)
            update = method.registered(sent, rows.size, rows.ids)
            good = tensors.finite({"update": sent, "state": after})
            if self.aggregator is None:
                good = good & tensors.same(sent, update)
            if asked.without in rows.names:
                good[rows.names.index(asked.without)] = False
            note = self.note(method, message, update, good)
            writing.put(positions, after, good, before)
            hear(reduction, update, good, [name in heard for name in rows.names])  # at last: it is done or not at all
            return note

        for call in self._calls(self.parts(asked.drawn) if self._everyone is None else self._everyone):
            for _, rows, note in self._splitter.calls(*call, work):
                if note is not None:
                    notes.add(rows.names, note)
        return Trained(writing.done(), MappingProxyType({}))

    def updates(self, start: FederationState, rates: float) -> Iterator[tuple[Sequence[str], AnyTree]]:
        """Let every client make its first step, call by call."""
        method, kept = slowed(self.method, rates), Kept.of(start.kept, self.batch.clients)
        message = method.broadcast(start.server)

        def work(positions: Sequence[int], rows: ClientBatch) -> AnyTree:
            noise = Noise(self.plan.seed, 1, rows.ids, rows.x.device, self.plan.noise)
            return method.client(message, kept.select(positions), rows, noise)[0]

        calls = self._calls(self.parts(range(self.batch.clients)))
        for _, rows, update in chain.from_iterable(self._splitter.calls(*call, work) for call in calls):
            yield rows.names, update

    def parts(self, positions: Sequence[int]) -> list[list[int]]:
        """Cut clients into calls, see `client_calls.parts`."""
        return parts(self.method, self.sizes, list(positions), self.plan, self.batch.x.device)

    def _calls(self, cut: Sequence[list[int]]) -> Iterator[tuple[list[int], ClientBatch]]:
        return cut_calls(self.batch, self.sizes, cut)


class Note(NamedTuple):
    """Of the clients of a call: whether they are good [k], and the norms of their steps [k], NaN where none counts."""

    good: Tensor
    norm: Tensor


class Notes:
    """Numbers of a round for the host, on the device until they are read together."""

    def __init__(self) -> None:
        self._members, self._flags, self._norms = list[str](), list[Tensor](), list[Tensor]()

    def add(self, names: Sequence[str], note: Note) -> None:
        """Store the numbers of a call's clients."""
        self._members += names
        self._flags.append(note.good)
        self._norms.append(note.norm)

    def read(self, heard: tuple[str, ...], server: AnyTree, size: Tensor, values: Mapping[str, Tensor]) -> Outcome:
        """Look at the device, for the only time in a round.

        Args:
            heard: names of the clients whose updates enter the server.
            server: its state after the round.
            size: root mean square of its parameters, [].
            values: numbers that the method reports, [] each.

        Returns:
            All numbers, on the host.
        """
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


def hear(reduction: Reduction, update: AnyTree, good: Tensor, heard: list[bool]) -> None:
    """Add the updates of a call's clients in the cohort; the others' are not sent.

    Args:
        reduction: of the round.
        update: of k clients, leaves [k, *].
        good: bool [k], False for a client that failed.
        heard: of each of them, whether it is in the cohort.
    """
    if all(heard):
        reduction.add(update, good)
    elif any(heard):
        index = torch.tensor(heard).nonzero().squeeze(1).to(good.device)
        reduction.add(tensors.select(update, index), good[index])
