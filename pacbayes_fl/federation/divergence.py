"""Rounds after which a federation has diverged: undone, played again at half the rates, and laid to one client."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import torch

from pacbayes_fl import tensors
from pacbayes_fl.errors import NumericalError, PrivacyError, caller_stacklevel
from pacbayes_fl.federation.federation_state import FederationState, start
from pacbayes_fl.federation.guard import (
    AT_REST,
    IN_A_ROW,
    STANDS_OUT,
    Culprit,
    Outcome,
    Start,
    divergence,
    far_out,
    lengths,
    outlier,
    overlong,
)
from pacbayes_fl.federation.player import Played, Player, parameter_size
from pacbayes_fl.methods.base import slowed

_HALVINGS = 3
_FRACTIONS = ("all", "a half", "a quarter", "an eighth")
_ALMOST_NONE = 1e-30
_SLOWER = "lower the learning rates, and start anew"
_SMALLER = (1e-3, 1e-6, 1e-9, 1e-12)  # factors of learning rates; where steps are of no length they say nothing


class Trouble(NamedTuple):
    """Why a round does not hold.

    Args:
        text: a description.
        diverged: whether the federation has diverged after it; False where that was not looked at.
    """

    text: str
    diverged: bool = False


class DivergenceGuard:
    """Judges rounds, undoes those after which a federation has diverged, and finds whose fault that was.

    Args:
        player: plays the rounds.
    """

    def __init__(self, player: Player) -> None:
        """Store the object that plays the rounds."""
        self._player = player
        self._steps = slowed(player.method, 0.5) is not player.method  # without a rate, what is finite has not diverged
        self._start: Start | None = None

    def again(self, state: FederationState, trouble: Trouble, undone: Sequence[str]) -> Played:
        """Play an undone round again; it has diverged finally when no budget is left."""
        try:
            return self._player.play(state, undone)
        except PrivacyError as error:
            if error.cause != "budget spent":
                raise
            what, t = f"{trouble.text}, and {error}", state.round + 1
            raise NumericalError(what, round=t, cause=error.cause, hint=_SLOWER) from error

    def trouble(self, before: FederationState, played: Played) -> Trouble | None:
        """Describe the divergence of a round, or the client that dominates it; None without either."""
        outcome, most = played.outcome, self._player.plan.diverges_at
        if self._player.aggregator is None and not outcome.present:
            return Trouble(f"0 of {len(outcome.heard)} clients gave a finite update")
        if not self._player.plan.rule.robust and most is not None:  # robust rules bound what one step does
            steered = overlong(outcome.norms, before.watch.usual, most)
            if steered is not None:
                return Trouble(steered)
            watch = played.state.watch
            if watch.times >= IN_A_ROW and watch.steps is not None and watch.steps.whose == watch.alone:
                at_rest = watch.steps.largest <= before.watch.usual  # one that still trains where others do not
                if not at_rest or watch.times >= AT_REST:
                    step = f"client {watch.alone!r} sent a step {lengths(watch.steps)}"
                    return Trouble(f"{step}, for {watch.times} rounds in a row")
        text = self._divergence(outcome)
        return None if text is None else Trouble(text, diverged=True)

    def _divergence(self, outcome: Outcome) -> str | None:
        name = self._player.method.objective if self._player.aggregator is None else None
        rows = sum(self._player.sizes) / max(1, len(self._player.sizes))
        most = self._player.plan.diverges_at if self._steps else None
        return divergence(outcome, name, rows, most, self._at_start)

    def undo(self, state: FederationState, outcome: Outcome, trouble: Trouble) -> FederationState:
        """Go back to before a round, with learning rates halved; raise where that is to no purpose any more."""
        t, times = state.round + 1, state.watch.halved
        if self._steps and times < _HALVINGS:
            paid = "" if self._player.aggregator is None else ", and its release is paid for all the same"
            rates = f"learning rates halved, {times + 1} of at most {_HALVINGS} times{paid}"
            warnings.warn(f"round {t} undone: {trouble.text}; {rates}", stacklevel=caller_stacklevel())
            return state._replace(watch=state.watch._replace(halved=times + 1))
        what = f"{trouble.text}, at {_FRACTIONS[times]} of the learning rates too" if times else trouble.text
        culprit = None if self._player.aggregator is not None else self._culprit(state, outcome, trouble)
        if culprit is not None:
            bounded = "bound what one client can do: federation.aggregate = 'clipped'"
            hint = f"look at its rows, or {bounded}; federation.diverges_at = 'none' lets such steps hold"
            what = what.removeprefix(f"client {culprit.client!r} ")  # the error begins with it
            raise NumericalError(f"{what}; {culprit.text}", client=culprit.client, round=t, hint=hint)
        hint = _SLOWER if self._steps else "nothing was changed; the last round's state holds"
        raise NumericalError(what, round=t, hint=hint)

    def _culprit(self, state: FederationState, outcome: Outcome, trouble: Trouble) -> Culprit | None:
        """Find the client without which the round does not diverge, or whose previous step stands out."""
        result, before = outlier(outcome.norms), state.watch.steps
        if result is not None and (trouble.diverged or self._divergence(outcome) is not None):
            without = self._player.play(state, without=result.whose).outcome
            if without.present and self._divergence(without) is None:
                return Culprit(result.whose, f"without its step, {lengths(result)}, the round would hold")
        if before is not None and far_out(before):
            return Culprit(before.whose, f"its step in round {state.round} was {lengths(before)}")
        if result is not None and far_out(result, before) and self._at_any_rate(state, result.whose):
            return Culprit(result.whose, "its steps stand out at small learning rates too")
        return None

    def _at_any_rate(self, state: FederationState, whose: str) -> bool:
        """Whether a client's step stands out at small learning rates too, before parameters diverge."""
        origins = [start(self._player.method, self._player.batch, self._player.plan)]
        if float(parameter_size(self._player.method, state.server)) <= STANDS_OUT * max(1.0, self._at_start().size):
            origins.append(state)
        return any(all(self._stands_out(origin, rates, whose) for rates in _SMALLER) for origin in origins)

    def _stands_out(self, state: FederationState, rates: float, whose: str) -> bool:
        norms = self._player.play(state, trial_rates=rates).outcome.norms
        result = outlier(norms)
        return not any(norms.values()) or (result is not None and result.whose == whose)

    def _at_start(self) -> Start:
        """Measure the parameters before the first round, and how well they fit every client."""
        if self._start is None:
            fresh = start(self._player.method, self._player.batch, self._player.plan)
            self._start = Start(float(parameter_size(self._player.method, fresh.server)), self._fits(fresh))
        return self._start

    def _fits(self, fresh: FederationState) -> dict[str, float]:
        """Measure the objective of every client before the first round: by almost no step."""
        player, name, fits = self._player, self._player.method.objective, dict[str, float]()
        if player.aggregator is not None or name is None:
            return fits
        method = slowed(player.method, _ALMOST_NONE)
        for names, update in player.updates(fresh, _ALMOST_NONE):
            each = [tensors.tree_map(lambda leaf, k=k: leaf[k : k + 1], update) for k in range(len(names))]
            result = [method.report(fresh.server, method.reduce(one))[name].double() for one in each]
            fits |= dict(zip(names, torch.stack(result).tolist(), strict=True))
        return fits
