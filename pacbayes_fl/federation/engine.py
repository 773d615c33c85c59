"""Rounds on one device: all clients of a chunk in one call of the method."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch, group_by_size, same_schema
from pacbayes_fl.errors import ClientError, NumericalError, PrivacyError, StudyError, outside
from pacbayes_fl.federation import cohort, reduction
from pacbayes_fl.federation.guard import (
    IN_A_ROW,
    STANDS_OUT,
    Culprit,
    Start,
    Told,
    divergence,
    dominant,
    far_out,
    lengths,
    listed,
    outlier,
    overlong,
)
from pacbayes_fl.federation.kept import Kept, Writing
from pacbayes_fl.federation.memory import Memory
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.federation.private import PrivateAggregator
from pacbayes_fl.federation.reduction import Reduction, RobustAccumulator, UpdateAccumulator
from pacbayes_fl.federation.watch import Watch
from pacbayes_fl.methods.base import Method, slowed
from pacbayes_fl.models.base import WeightModel
from pacbayes_fl.models.weights import program
from pacbayes_fl.noise import Engine, Noise
from pacbayes_fl.posteriors.predictive import Posterior
from pacbayes_fl.posteriors.weights.family import check_families
from pacbayes_fl.results.rounds import RoundRecord

AnyMethod = Method[Any, Any, Any, Any]
Then = Callable[[Tensor, Any], Any]
Made = TypeVar("Made")
_TIRES_AFTER = 3
_HALVINGS = 3
_FRACTIONS = ("all", "a half", "a quarter", "an eighth")
_ALMOST_NONE = 1e-30
_SLOWER = "lower the learning rates, and start anew"
_SMALLER = (1e-3, 1e-6, 1e-9, 1e-12)  # factors of learning rates; where steps are of no length they say nothing


class FederationState(NamedTuple):
    """Everything that a later round depends on.

    Args:
        server: of the method.
        kept: of the method's clients: a `Kept`, or leaves [K, *].
        round: rounds finished.
        watch: what the engine itself remembers of them.
    """

    server: Any
    kept: Any
    round: int
    watch: Watch = Watch()

    @property
    def clients(self) -> Any:
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


def check(method: AnyMethod, batch: ClientBatch, plan: FederationPlan, state: FederationState) -> None:
    """Refuse a plan that a federation cannot follow, before anything is trained.

    Args:
        method: the algorithm.
        batch: rows of all clients.
        plan: how to run.
        state: before the first round.

    Raises:
        StudyError: naming the option.
    """
    if plan.min_clients > batch.clients:
        raise StudyError(f"min_clients is {plan.min_clients}, and there are {batch.clients} clients")
    reduction.check(method, method.broadcast(state.server), batch.clients, plan)


def _prepared(method: AnyMethod, batch: ClientBatch) -> ClientBatch:
    """Check a user's program before anything is trained; see `program.prepared`."""
    while hasattr(method, "inner"):  # a temperature or folds around it
        method = method.inner
    model = getattr(method, "model", None)
    return program.prepared(model, batch) if isinstance(model, WeightModel) else batch


def parts(method: AnyMethod, sizes: list[int], positions: list[int], plan: FederationPlan) -> list[list[int]]:
    """Cut clients into calls: alike in size, and small enough for the memory that `plan.chunk` grants.

    Args:
        method: says what a client costs.
        sizes: real rows of every client of the federation.
        positions: clients that take part.
        plan: gives chunk and waste.

    Returns:
        Positions by call, together all of them.
    """
    if not method.federated:
        return [positions]
    calls = []
    for group in group_by_size([sizes[k] for k in positions], plan.waste):
        largest = max(sizes[positions[i]] for i in group)
        step = max(1, plan.chunk // method.footprint(largest))
        calls += [[positions[i] for i in group[at : at + step]] for at in range(0, len(group), step)]
    return calls


def rounds(
    method: AnyMethod,
    batch: ClientBatch,
    plan: FederationPlan,
    state: FederationState | None = None,
    room: PrivateAggregator | None = None,
) -> Iterator[tuple[RoundRecord, FederationState]]:
    """Run the rounds that are left, one at a time.

    A round after which the federation has diverged is undone, as if it had never been, and played again with all
    learning rates halved, for good and up to three times in a run; then there is an error. Diverged means: no client
    gave a finite update; the server's state or the mean objective of the clients is not finite; the root mean square of
    the server's parameters is above diverges_at max(1, that of the start); or the objective is worse than that of the
    start theta^0 by more than diverges_at max(1 nat per row, that of the start); or, where the server takes a mean, one
    client's step is longer than diverges_at times the median of the others' and of every round before, or 30 times that
    of the others in three rounds in a row (by as much more as it has more rows than the median client). Of a method
    without a learning rate only finite numbers are asked for. In private rounds only the server's state is looked at,
    which is known from what was released; an undone round has been paid for all the same.

    Args:
        method: the algorithm.
        batch: training rows of all clients [K, N, *].
        plan: how to run.
        state: where to go on; the start when None.
        room: makes the rounds private (see `federation.private`), with cohorts of its own. Their records tell how many
            clients were expected, and of all numbers only those that follow from what was released.

    Yields:
        After each round its record and the state to go on from.

    Raises:
        ClientError: when fewer than `min_clients` were good; the last state that was yielded still holds.
        NumericalError: when a client fails and `on_bad_client` is "stop", or the federation diverges at an eighth of
            its learning rates too; it names the client whose step was far longer than others', if there is one.
        PrivacyError: when the budget does not allow another round.
    """
    federation = _Federation(method, _prepared(method, batch), plan, room)
    state = start(method, federation.batch, plan) if state is None else state
    check(method, batch, plan, state)
    if room is not None:
        halved = max(state.watch.halved, room.halved(state.round + 1))
        state = state._replace(watch=state.watch._replace(halved=halved))
    said = set[str]()
    while state.round < plan.rounds:
        begun, t = time.perf_counter(), state.round + 1
        played, undone = federation.play(state), list[str]()
        while (trouble := federation.trouble(state, played)) is not None:
            told = played.told
            del played  # the next one needs the memory of its states
            state = federation.undo(state, told, trouble)
            undone.append(trouble)
            played = federation.again(state, trouble)
        state, told = played
        del played
        if room is not None:
            record = room.record(t, told.values)
        else:
            _judge(plan, t, told)
            values = {**told.values, "seconds": time.perf_counter() - begun}
            _say(method, plan, t, values, state.watch, told.dropped, said)
            record = RoundRecord(t, len(told.present), told.dropped, values, steps=state.watch.steps)
        yield replace(record, undone=tuple(undone), rates=0.5**state.watch.halved), state


def at_rates(method: AnyMethod, state: FederationState) -> AnyMethod:
    """Give a method the learning rates to which a federation had to come; everything after the rounds is done at these.

    Args:
        method: the algorithm.
        state: after some round.

    Returns:
        The method with its rates halved as often as rounds were undone; the very same where none was.
    """
    return slowed(method, 0.5**state.watch.halved) if state.watch.halved else method


class _Played(NamedTuple):
    """A round that holds as soon as somebody takes its state for the federation's; until then nothing has changed."""

    state: FederationState
    told: Told


class _Federation:
    """What all rounds of a run have in common, and one round of it."""

    def __init__(
        self, method: AnyMethod, batch: ClientBatch, plan: FederationPlan, room: PrivateAggregator | None
    ) -> None:
        self.method, self.batch, self.plan, self.room = method, batch, plan, room
        self._sizes = [int(m) for m in batch.size.tolist()]
        self._rows = dict(zip(batch.names, self._sizes, strict=True))
        some = (plan.cohort is not None if room is None else room.draws) and plan.train == "cohort"
        self._everyone = None if some else self._parts(list(range(batch.clients)))
        self._steps = slowed(method, 0.5) is not method  # without a learning rate, what is finite has not diverged
        self._start: Start | None = None
        self._memory = Memory()

    def play(self, state: FederationState, without: str | None = None, method: AnyMethod | None = None) -> _Played:
        """Play the round after a state, which stays as it is.

        A client may be left out as if it had failed, and the method be another one than at the federation's rates.
        """
        method, plan, t = at_rates(self.method, state) if method is None else method, self.plan, state.round + 1
        drawn = self._drawn(t, state.watch.halved)
        heard = tuple(self.batch.names[k] for k in drawn)
        asked = set(heard)
        message = method.broadcast(state.server)
        kept = Kept.of(state.kept, self.batch.clients)
        writing = Writing(kept, everybody=self._everyone is not None)
        joining = self._joining(message, state)
        notes = _Notes()

        def work(positions: Sequence[int], rows: ClientBatch) -> _Note | None:
            before = kept.select(positions)
            noise = Noise(plan.seed, t, rows.ids, rows.x.device, plan.noise)
            sent, after = method.client(message, before, rows, noise)
            update = method.registered(sent, rows.size, rows.ids)
            good = tensors.finite({"update": sent, "state": after})
            if self.room is None:
                good = good & tensors.same(sent, update)
            if without in rows.names:
                good[rows.names.index(without)] = False
            note = _note(method, message, update, good) if self.room is None else None
            writing.put(positions, after, good, before)
            _hear(joining, update, good, [name in asked for name in rows.names])  # at last: it is done or not at all
            return note

        for call in self._calls(self._parts(drawn) if self._everyone is None else self._everyone):
            for _, rows, note in self._memory.calls(*call, work):
                if note is not None:
                    notes.add(rows.names, note)
        joined = joining.release()
        server = method.server(state.server, joined, self.batch.clients)
        report = {**method.report(server, joined), **joining.numbers}
        told = notes.read(heard, server, _size(method, server), report)
        watch = state.watch if self.room is not None else self._watched(state.watch, told)
        return _Played(FederationState(server, writing.done(), t, watch), told)

    def _watched(self, watch: Watch, told: Told) -> Watch:
        return watch.after(told.members, told.dropped, told.norms, dominant(told.norms, self._rows))

    def again(self, state: FederationState, trouble: str) -> _Played:
        """Play a round that was undone; what no budget is left for has diverged for good."""
        try:
            return self.play(state)
        except PrivacyError as error:
            if error.cause != "budget spent":
                raise
            what, t = f"{trouble}, and {error}", state.round + 1
            raise NumericalError(what, round=t, cause=error.cause, hint=_SLOWER) from error

    def trouble(self, before: FederationState, played: _Played) -> str | None:
        """Say how the federation has diverged in a round, if so, or who would steer it alone."""
        told, most = played.told, self.plan.diverges_at
        if self.room is None and not told.present:
            return f"0 of {len(told.heard)} clients gave a finite update"
        if self.plan.aggregate == "mean" and most is not None:  # the other rules bound what one step does
            steered = overlong(told.norms, before.watch.usual, most)
            if steered is not None:
                return steered
            watch = played.state.watch
            if watch.times >= IN_A_ROW and watch.steps is not None and watch.steps.whose == watch.alone:
                return f"client {watch.alone!r} sent a step {lengths(watch.steps)}, for the {IN_A_ROW}rd round in a row"
        return self._divergence(told)

    def _divergence(self, told: Told) -> str | None:
        name = self.method.objective if self.room is None else None
        rows = sum(self._sizes) / max(1, len(self._sizes))
        most = self.plan.diverges_at if self._steps else None
        return divergence(told, name, rows, most, self._at_start)

    def undo(self, state: FederationState, told: Told, trouble: str) -> FederationState:
        """Go back to before a round, with learning rates halved; raise where that is to no purpose any more."""
        t, times = state.round + 1, state.watch.halved
        if self._steps and times < _HALVINGS:
            paid = "" if self.room is None else ", and its release is paid for all the same"
            what = f"round {t} undone: {trouble}; learning rates halved, {times + 1} of at most {_HALVINGS} times{paid}"
            warnings.warn(what, stacklevel=outside())
            return state._replace(watch=state.watch._replace(halved=times + 1))
        what = f"{trouble}, at {_FRACTIONS[times]} of the learning rates too" if times else trouble
        culprit = None if self.room is not None else self._culprit(state, told)
        if culprit is not None:
            hint = "look at its rows, or bound what one client can do: federation.aggregate = 'clipped'"
            raise NumericalError(f"{what}; {culprit.words}", client=culprit.client, round=t, hint=hint)
        hint = _SLOWER if self._steps else "nothing was changed; the last round's state holds"
        raise NumericalError(what, round=t, hint=hint)

    def _culprit(self, state: FederationState, told: Told) -> Culprit | None:
        """Find the one client without whom a round would hold, or whose step in the round before it stands out."""
        found, before = outlier(told.norms), state.watch.steps
        if found is not None and self._divergence(told) is not None:
            without = self.play(state, found.whose).told
            if without.present and self._divergence(without) is None:
                return Culprit(found.whose, f"without its step, {lengths(found)}, the round would hold")
        if before is not None and far_out(before):
            return Culprit(before.whose, f"its step in round {state.round} was {lengths(before)}")
        if found is not None and far_out(found, before) and self._at_any_rate(state, found.whose):
            return Culprit(found.whose, "its steps stand out at small learning rates too")
        return None

    def _at_any_rate(self, state: FederationState, whose: str) -> bool:
        """Say whether a client's step stands out at small learning rates too, where parameters have not run away."""
        origins = [start(self.method, self.batch, self.plan)]
        if float(_size(self.method, state.server)) <= STANDS_OUT * max(1.0, self._at_start().size):
            origins.append(state)
        slow = [slowed(self.method, factor) for factor in _SMALLER]
        return any(all(self._stands_out(origin, method, whose) for method in slow) for origin in origins)

    def _stands_out(self, state: FederationState, method: AnyMethod, whose: str) -> bool:
        norms = self.play(state, method=method).told.norms
        found = outlier(norms)
        return not any(norms.values()) or (found is not None and found.whose == whose)

    def _at_start(self) -> Start:
        """Measure the parameters before the first round, and how well they fit every client: by almost no step."""
        if self._start is None:
            fresh, name = start(self.method, self.batch, self.plan), self.method.objective
            fits: dict[str, float] = {}
            if self.room is None and name is not None:
                method, everybody = slowed(self.method, _ALMOST_NONE), list(range(self.batch.clients))
                message = method.broadcast(fresh.server)
                kept = Kept.of(fresh.kept, self.batch.clients)

                def work(positions: Sequence[int], rows: ClientBatch) -> Any:
                    noise = Noise(self.plan.seed, 1, rows.ids, rows.x.device, self.plan.noise)
                    return method.client(message, kept.select(positions), rows, noise)[0]

                calls = chain.from_iterable(
                    self._memory.calls(*call, work) for call in self._calls(self._parts(everybody))
                )
                for positions, rows, update in calls:
                    each = [tensors.tree_map(lambda leaf, k=k: leaf[k : k + 1], update) for k in range(len(positions))]
                    told = [method.report(fresh.server, method.reduce(one))[name].double() for one in each]
                    fits |= dict(zip(rows.names, torch.stack(told).tolist(), strict=True))
            self._start = Start(float(_size(self.method, fresh.server)), fits)
        return self._start

    def _joining(self, message: Any, state: FederationState) -> Reduction:
        if self.room is not None:
            return self.room.noisy_sum(self.method, message, state.round + 1)
        if self.plan.aggregate == "mean":
            return UpdateAccumulator(self.method)
        return RobustAccumulator(self.method, message, self.plan, state.watch.medians)

    def _drawn(self, t: int, halved: int) -> list[int]:
        if self.room is not None:
            drawn: list[int] = self.room.draw(self.batch.ids, t, halved).tolist()
            return drawn
        return cohort.draw(self.plan.seed, t, self.batch.ids, self.plan.cohort).tolist()

    def _parts(self, positions: list[int]) -> list[list[int]]:
        return parts(self.method, self._sizes, positions, self.plan)

    def _calls(self, cut: Sequence[list[int]]) -> Iterator[tuple[list[int], ClientBatch]]:
        return _calls(self.batch, self._sizes, cut)


class _Note(NamedTuple):
    """Of the clients of a call: whether they are good [k], and the norms of their steps [k], NaN where none counts."""

    good: Tensor
    norm: Tensor


def _note(method: AnyMethod, message: Any, update: Any, good: Tensor) -> _Note:
    norm = tensors.norm(method.client_steps(message, update))
    counts = good & (update.weight > 0)
    return _Note(good, torch.where(counts, torch.nan if norm is None else norm, torch.nan))


class _Notes:
    """What the host is to learn of a round, left on the device until all of it is read at once."""

    def __init__(self) -> None:
        self._members, self._flags, self._norms = list[str](), list[Tensor](), list[Tensor]()

    def add(self, names: Sequence[str], note: _Note) -> None:
        """Take what is noted of the clients of a call."""
        self._members += names
        self._flags.append(note.good)
        self._norms.append(note.norm)

    def read(self, heard: tuple[str, ...], server: Any, size: Tensor, values: Mapping[str, Tensor]) -> Told:
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
        return Told(heard, tuple(self._members), dropped, norms_heard, bool(finite), reported, rms)


def _size(method: AnyMethod, server: Any) -> Tensor:
    """Root mean square of what training moves [], float64."""
    position = method.position(method.broadcast(server))
    count = sum(leaf.numel() for leaf in tensors.leaves(position).values())
    norm = tensors.norm(tensors.expand(position, 1))
    return torch.zeros((), dtype=torch.float64) if norm is None or not count else norm[0] / math.sqrt(count)


def _calls(
    batch: ClientBatch, sizes: Sequence[int], cut: Sequence[list[int]]
) -> Iterator[tuple[list[int], ClientBatch]]:
    """Give positions and rows of every call when it is due: a copy of all rows would take as much again."""
    for part in cut:
        yield part, batch.select(torch.tensor(part)).trim(max(1, max(sizes[k] for k in part)))


def _hear(joining: Reduction, update: Any, good: Tensor, heard: list[bool]) -> None:
    """Let the cohort's clients of a call join; what the others did stays with them."""
    if all(heard):
        joining.add(update, good)
    elif any(heard):
        index = torch.tensor(heard).nonzero().squeeze(1).to(good.device)
        joining.add(tensors.select(update, index), good[index])


def _judge(plan: FederationPlan, t: int, told: Told) -> None:
    """Raise when the round must not count."""
    dropped, present = told.dropped, len(told.present)
    one = dropped[0] if len(dropped) == 1 else None
    if dropped and plan.on_bad_client == "stop":
        raise NumericalError(
            "its update is not finite, or not weighed by its rows"
            if one
            else f"updates that cannot count came from {listed(dropped)}",
            client=one,
            round=t,
            hint="on_bad_client = 'drop' goes on",
        )
    if present < plan.min_clients:
        raise ClientError(
            f"{present} of {len(told.heard)} clients gave a finite update, {plan.min_clients} are needed"
            + ("" if one else f"; not so {listed(dropped)}"),
            round=t,
            client=one,
            hint="nothing was changed; the last round's state holds",
        )


def _say(
    method: AnyMethod,
    plan: FederationPlan,
    t: int,
    values: Mapping[str, float],
    watch: Watch,
    dropped: tuple[str, ...],
    said: set[str],
) -> None:
    """Warn of what the method remarks and of clients whose steps stand out, once, and of three failures in a row."""
    for name in dropped:
        if watch.failures[name] == _TIRES_AFTER:
            what = f"client {name!r} was dropped {_TIRES_AFTER} times in a row (round {t})"
            warnings.warn(what, stacklevel=outside())
    steps = watch.steps if plan.aggregate == "mean" else None  # the other rules are the remedy
    if steps is not None and steps.whose == watch.alone and steps.whose not in said:
        said.add(steps.whose)
        hint = "federation.aggregate = 'clipped' bounds what one client can do"
        warnings.warn(f"client {steps.whose!r} sent a step {lengths(steps)} (round {t}); {hint}", stacklevel=outside())
    remark = method.remark(values)
    if remark is not None and remark not in said:
        said.add(remark)
        warnings.warn(f"{remark} (round {t})", stacklevel=outside())


def run_rounds(
    method: AnyMethod,
    batch: ClientBatch,
    plan: FederationPlan,
    on_round: Callable[[RoundRecord], None] | None = None,
) -> FederationState:
    """Run a federation from its start to its last round.

    Args:
        method: the algorithm.
        batch: training rows of all clients [K, N, *].
        plan: how to run.
        on_round: called with the record of every round.

    Returns:
        The state after the last round.

    Raises:
        ClientError, NumericalError: as `rounds`.
    """
    last = start(method, batch, plan)
    for record, state in rounds(method, batch, plan):
        last = state
        if on_round is not None:
            on_round(record)
    return last


def personalise(
    method: AnyMethod, state: FederationState, batch: ClientBatch, plan: FederationPlan, then: Then | None = None
) -> Iterator[tuple[Tensor, Any]]:
    """Give every client of a federation its own posterior, a few at a time.

    Args:
        method: the algorithm.
        state: after the last round.
        batch: the clients' rows, in the order of `state.kept`.
        plan: gives chunk, waste and seed.
        then: what is made of the posteriors of some clients at once, from their positions [k] and these; predictions,
            which may need more memory than all else.

    Returns:
        Yields positions [k] of the clients and their posterior, or what `then` has made of it.
    """

    def work(index: Tensor, *call: Any) -> Any:
        posterior = posteriors(method, *call)
        return posterior if then is None else then(index, posterior)

    return personal_calls(method, state, batch, plan, work)


def posteriors(method: AnyMethod, message: Any, state: Any, batch: ClientBatch, noise: Noise) -> Posterior:
    """Let the clients of a call personalise; a device is asked once whether some of them never trained.

    Args:
        method: the algorithm.
        message: of the server.
        state: of the clients, leaves [K, *].
        batch: their rows.
        noise: their streams of round 0.

    Returns:
        The posterior of the K clients.
    """
    fresh = method.never_trained(state)
    trained = fresh is not None and not bool(fresh.any())
    found = (method.personalise_trained if trained else method.personalise)(message, state, batch, noise)
    warn_of(found)
    return found


def warn_of(posterior: Posterior) -> None:
    """Warn of clients whom few draws of a posterior stand for, where a device is to be asked who they are.

    Args:
        posterior: of the clients of a call.
    """
    doubts = getattr(getattr(posterior, "inner", posterior), "doubts", None)
    if doubts is not None:
        doubts()


def global_models(
    method: AnyMethod, state: FederationState, batch: ClientBatch, plan: FederationPlan, then: Then | None = None
) -> Iterator[tuple[Tensor, Any]]:
    """Give what the server itself would predict for every client, a few at a time.

    Args:
        method: the algorithm.
        state: after some round.
        batch: the clients' rows, in the order of `state.kept`.
        plan: gives chunk, waste and seed.
        then: as `personalise` has it.

    Yields:
        Positions [k] of the clients and the global model's posterior for them, or what `then` has made of it; nothing
        where there is no global model.
    """

    def work(index: Tensor, *call: Any) -> tuple[Any] | None:
        posterior = method.global_model(*call)
        return None if posterior is None else (posterior if then is None else then(index, posterior),)

    for index, found in personal_calls(method, state, batch, plan, work):
        if found is None:
            return
        yield index, found[0]


def personal_calls(
    method: AnyMethod,
    state: FederationState,
    batch: ClientBatch,
    plan: FederationPlan,
    work: Callable[[Tensor, Any, Any, ClientBatch, Noise], Made],
    more: Sequence[int] | None = None,
) -> Iterator[tuple[Tensor, Made]]:
    """Cut clients into the calls that come after the rounds, such as `Method.personalise`, and make them.

    A call that exhausts a GPU's memory is made again, on fewer clients.

    Args:
        method: the algorithm.
        state: after some round.
        batch: the clients' rows, in the order of `state.kept`.
        plan: gives chunk, waste and seed.
        work: takes positions [k] of the clients, and message, state, rows and noise of round 0; it changes nothing.
        more: rows of every client that a call needs memory for beside those of the batch.

    Yields:
        Positions [k] of the clients, and what the work gave.
    """
    batch = _prepared(method, batch)
    sizes = [int(m) for m in batch.size.tolist()]
    message = method.broadcast(state.server)
    room = sizes if more is None else [own + other for own, other in zip(sizes, more, strict=True)]
    kept = Kept.of(state.kept, batch.clients)
    memory = Memory()

    def called(positions: Sequence[int], rows: ClientBatch) -> tuple[Tensor, Made]:
        noise = Noise(plan.seed, 0, rows.ids, rows.x.device, plan.noise)
        index = torch.tensor(positions).to(batch.x.device)
        own = rows if more is None else rows.trim()
        return index, work(index, message, kept.select(positions), own, noise)

    for call in _calls(batch, room, parts(method, room, list(range(batch.clients)), plan)):
        for *_, found in memory.calls(*call, called):
            yield found


def join(
    method: AnyMethod,
    server: Any,
    batch: ClientBatch,
    seed: int,
    like: ClientBatch | None = None,
    engine: Engine = "philox",
) -> Posterior:
    """Let clients personalise that never trained; the federation learns nothing from them.

    Args:
        method: the algorithm.
        server: its state after the last round.
        batch: the new clients' rows [K, N, *]; a client without rows gets the prior's prediction.
        seed: of the personalisation's random draws.
        like: a batch of the federation whose columns the new ones must match.
        engine: of the personalisation's random draws, as in the federation's plan.

    Returns:
        The posterior of the K clients.

    Raises:
        DataError: when the columns differ.
    """
    if like is not None:
        same_schema(like, batch)
    batch = _prepared(method, batch)
    message = method.broadcast(server)
    noise = Noise(seed, 0, batch.ids, batch.x.device, engine)
    return posteriors(method, message, method.init_clients(message, batch), batch, noise)
