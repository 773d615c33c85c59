"""Rounds on one device, one after the other: played, judged, undone where they must be, and recorded."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import ClientError, NumericalError, StudyError, caller_stacklevel
from pacbayes_fl.federation import reduction
from pacbayes_fl.federation.client_calls import prepared
from pacbayes_fl.federation.divergence import DivergenceGuard
from pacbayes_fl.federation.federation_state import FederationState, start
from pacbayes_fl.federation.guard import (
    Outcome,
    lengths,
    listed,
)
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.federation.player import Player, RoundPlayer
from pacbayes_fl.federation.private import PrivateAggregator
from pacbayes_fl.federation.rank_player import RankPlayer
from pacbayes_fl.federation.ranks import Ranks
from pacbayes_fl.federation.watch import Watch
from pacbayes_fl.methods.base import AnyMethod
from pacbayes_fl.results.rounds import RoundRecord

_WARN_AFTER_DROPS = 3


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
    if plan.average_last:
        method.check_average()
    if plan.min_clients > batch.clients:
        raise StudyError(f"min_clients is {plan.min_clients}, and there are {batch.clients} clients")
    reduction.check(method, method.broadcast(state.server), batch.clients, plan)


def rounds(
    method: AnyMethod,
    batch: ClientBatch,
    plan: FederationPlan,
    state: FederationState | None = None,
    aggregator: PrivateAggregator | None = None,
    ranks: Ranks | None = None,
) -> Iterator[tuple[RoundRecord, FederationState]]:
    """Run the rounds that are left, one at a time.

    A round after which the federation has diverged is undone, as if it had never been, and played again with all
    learning rates halved, for good and up to three times in a run; then there is an error. Diverged means: no client
    gave a finite update; the server's state or the mean objective of the clients is not finite; the root mean square of
    the server's parameters is above diverges_at max(1, that of the start); or the objective is worse than that of the
    start theta^0 by more than diverges_at max(1 nat per row, that of the start); or, where the server takes a mean, one
    client's step is longer than diverges_at times the median of the others' and of every round before, or 30 times that
    of the others in three rounds in a row (by as much more as it has more rows than the median client), or in thirty
    where it is no longer than was usual in an earlier round. Of a method without a learning rate only finite numbers
    are asked for. In private rounds only the server's state is looked at, which is a function of the releases; the cost
    of an undone round stays.

    Args:
        method: the algorithm.
        batch: training rows of all clients [K, N, *].
        plan: how to run.
        state: where to go on; the start when None.
        aggregator: makes the rounds private (see `federation.private`), with cohorts of its own. Their records tell how
            many clients were expected, and only numbers that are functions of the releases.
        ranks: the processes among which the clients are dealt; the states that are yielded are then those of this
            one's clients. Not for private rounds.

    Yields:
        After each round its record and the state to go on from.

    Raises:
        ClientError: when fewer than `min_clients` were good; the last state that was yielded still holds.
        NumericalError: when a client fails and `on_bad_client` is "stop", or the federation diverges at an eighth of
            its learning rates too; it names the client whose step was far longer than others', if there is one.
        PrivacyError: when the budget does not allow another round.
        DeployError: when one of the processes has ended.
    """
    batch = prepared(method, batch)
    player: Player = RoundPlayer(method, batch, plan, aggregator)
    if ranks is not None:
        player = RankPlayer(method, batch, plan, ranks)
    yield from play(player, start(method, player.batch, plan) if state is None else state)


def play(player: Player, state: FederationState) -> Iterator[tuple[RoundRecord, FederationState]]:
    """Run the rounds that are left, wherever the clients are; see `rounds`.

    Args:
        player: plays one round.
        state: where to go on.

    Yields:
        After each round its record and the state to go on from.

    Raises:
        StudyError, ClientError, NumericalError, PrivacyError: as `check` and `rounds`.
    """
    method, plan, aggregator = player.method, player.plan, player.aggregator
    guard = DivergenceGuard(player)
    check(method, player.batch, plan, state)
    if aggregator is not None:
        halved = max(state.watch.halved, aggregator.halved(state.round + 1))
        state = state._replace(watch=state.watch._replace(halved=halved))
    said = set[str]()
    while state.round < plan.rounds:
        begun, t, average = time.perf_counter(), state.round + 1, state.average
        undone = [] if aggregator is None else list(aggregator.undone(t))
        played = player.play(state, undone)
        while (trouble := guard.trouble(state, played)) is not None:
            outcome = played.outcome
            del played  # the next one needs the memory of its states
            state = guard.undo(state, outcome, trouble)
            undone.append(trouble.text)
            played = guard.again(state, trouble, undone)
        state, outcome = played.state.averaged(average, plan), played.outcome
        del played
        if aggregator is not None:
            record = aggregator.record(t, outcome.values)
        else:
            _judge(plan, t, outcome)
            values = {**outcome.values, "seconds": time.perf_counter() - begun}
            _warn(method, plan, t, values, state.watch, outcome.dropped, said)
            steps, reasons = state.watch.steps, outcome.reasons
            record = RoundRecord(t, len(outcome.present), outcome.dropped, values, steps=steps, reasons=reasons)
        yield replace(record, undone=tuple(undone), rates=0.5**state.watch.halved), state


def _judge(plan: FederationPlan, t: int, outcome: Outcome) -> None:
    """Raise when the round must not count."""
    dropped, present = outcome.dropped, len(outcome.present)
    one = dropped[0] if len(dropped) == 1 else None
    if dropped and plan.on_bad_client == "stop":
        raise NumericalError(
            outcome.reasons.get(one, "its update is not finite, or not weighed by its rows")
            if one
            else f"updates that cannot count came from {listed(dropped)}",
            client=one,
            round=t,
            hint="on_bad_client = 'drop' goes on",
        )
    if present < plan.min_clients:
        raise ClientError(
            f"{present} of {len(outcome.heard)} clients gave a finite update, {plan.min_clients} are needed"
            + ("" if one else f"; not so {listed(dropped)}")
            + "".join(f"; {name}: {outcome.reasons[name]}" for name in dropped[:3] if name in outcome.reasons),
            round=t,
            client=one,
            hint="nothing was changed; the last round's state holds",
        )


def _warn(
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
        if watch.failures[name] == _WARN_AFTER_DROPS:
            what = f"client {name!r} was dropped {_WARN_AFTER_DROPS} times in a row (round {t})"
            warnings.warn(what, stacklevel=caller_stacklevel())
    steps = None if plan.rule.robust else watch.steps  # robust rules are the remedy
    if steps is not None and steps.whose == watch.alone and steps.whose not in said:
        said.add(steps.whose)
        hint = "federation.aggregate = 'clipped' bounds what one client can do"
        warnings.warn(
            f"client {steps.whose!r} sent a step {lengths(steps)} (round {t}); {hint}", stacklevel=caller_stacklevel()
        )
    remark = method.remark(values)
    if remark is not None and remark not in said:
        said.add(remark)
        warnings.warn(f"{remark} (round {t})", stacklevel=caller_stacklevel())


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
        The state after the last round; with `plan.average_last` its server is the mean of those of the last rounds.

    Raises:
        ClientError, NumericalError: as `rounds`.
        StudyError: when something else is given for the method or its rows.

    Example:
        >>> import torch
        >>> from pacbayes_fl import ClientBatch, DeepKernelGP, FederationPlan, PacPFL, run_rounds
        >>> x = torch.linspace(-1, 1, 6, dtype=torch.float64).unsqueeze(1)
        >>> batch = ClientBatch.pad([(x, torch.sin(x[:, 0] + k)) for k in range(3)])
        >>> method = PacPFL(DeepKernelGP(1, (4,), (4,)), particles=2)
        >>> run_rounds(method, batch, FederationPlan(rounds=2)).server.particles.shape[0]
        2
    """
    if isinstance(method, type | str) or not hasattr(method, "init_server"):
        shown = method.__name__ if isinstance(method, type) else repr(method)
        what = f"method must be an object of a method, such as PacPFL(model), got {shown}"
        raise StudyError(what, hint="pacbayes_fl.run takes a study, which names its method")
    if not isinstance(batch, ClientBatch):
        what = f"batch must be a ClientBatch, got {type(batch).__name__}"
        raise StudyError(what, hint="ClientBatch.pad([(x, y), ...]), of x [m, d] and y [m] of every client")
    last = start(method, batch, plan)
    for record, state in rounds(method, batch, plan):
        last = state
        if on_round is not None:
            on_round(record)
    return last.used
