"""When a round must not hold, and whose fault that is: judged by numbers and names on the host."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from pacbayes_fl import errors
from pacbayes_fl.federation.watch import summary
from pacbayes_fl.results.rounds import Steps

STANDS_OUT = 10.0
"""Times the median that a step may be long before its client can have spoilt the round alone."""

FAR_OUT = 1e3
"""The same for a round that held, of which nobody can say any more how it would have been without that client."""

REMARKED = 30.0
"""The same for a client that is named in a warning: no client of a bundled study was seen to come to 7."""

IN_A_ROW = 3
"""Rounds in a row in which one client may be remarked before it has steered the server for long enough."""

AT_REST = 30
"""The same for steps that are no longer than were usual in earlier rounds: one that loses its fit finds it again."""


class Outcome(NamedTuple):
    """Numbers of a round on the host.

    Args:
        heard: names of the clients whose updates were to enter the server.
        members: names of all clients that made a step.
        dropped: names of those that failed.
        norms: of the steps of the clients in the aggregate, by name.
        finite: whether the server's state is.
        values: numbers that the method reports.
        size: root mean square of the server's parameters; 0 where it has none.
        reasons: why somebody was left out, by name, where that is known.
    """

    heard: tuple[str, ...]
    members: tuple[str, ...]
    dropped: tuple[str, ...]
    norms: Mapping[str, float]
    finite: bool
    values: Mapping[str, float]
    size: float
    reasons: Mapping[str, str] = MappingProxyType({})

    @property
    def present(self) -> tuple[str, ...]:
        """Names of the clients whose updates have entered the server."""
        dropped = set(self.dropped)
        return tuple(name for name in self.heard if name not in dropped)


class Start(NamedTuple):
    """Reference values of a federation before its first round.

    Args:
        size: root mean square of the server's parameters.
        fits: the objective of every client at them, in nats, by name; empty in private rounds.
    """

    size: float
    fits: Mapping[str, float]


def divergence(
    outcome: Outcome, objective: str | None, rows: float, most: float | None, at_start: Callable[[], Start]
) -> str | None:
    """Describe the divergence of a federation in a round.

    The objective of a round's clients is compared with that of the same clients at the start, so that a cohort of
    clients that are hard to fit is no divergence.

    Args:
        outcome: of the round.
        objective: name of the reported number to be looked at, see `Method.objective`; none when None.
        rows: mean number of rows of a client.
        most: multiple of the initial value that counts as divergence; when None, only non-finite values do.
        at_start: measures the start, which takes a round's time: it is asked only where the answer may depend on it.

    Returns:
        A description; None without divergence.
    """
    if not outcome.finite:
        return "the server's state is not finite"
    fit = 0.0 if objective is None else outcome.values[objective]
    if not math.isfinite(fit):
        return f"the clients' mean {objective} is not finite"
    if most is None:
        return None
    unit = 1.0 if objective == "loss" else max(1.0, rows)  # a nat per row
    if outcome.size <= most and abs(fit) <= (most - 1.0) * unit:  # whatever the start was
        return None
    size, fits = at_start()
    if outcome.size > most * max(1.0, size):
        return f"the server's parameters have come to {outcome.size:.3g} (root mean square), from {size:.3g}"
    known = [fits[name] for name in outcome.present if math.isfinite(fits.get(name, math.nan))]
    if not known:
        return None
    first = math.fsum(known) / len(known)
    if (fit - first if objective == "loss" else first - fit) > most * max(unit, abs(first)):
        return f"the clients' mean {objective} has come to {fit:.3g} nats, from {first:.3g} at the start"
    return None


class Culprit(NamedTuple):
    """One client that a divergence is laid to.

    Args:
        client: its name.
        text: the reason.
    """

    client: str
    text: str


def outlier(norms: Mapping[str, float]) -> Steps | None:
    """Find the one client of a round whose step is far longer than the others'.

    Args:
        norms: of the steps of the clients that moved the server, by name.

    Returns:
        How long its step is, beside the median of the others; None where it does not stand out.
    """
    longest = summary(norms)
    if longest is None or len(norms) < 2:
        return None
    rest = summary({name: norm for name, norm in norms.items() if name != longest.whose})
    result = None if rest is None else longest._replace(median=rest.median)
    return result if result is not None and result.largest > STANDS_OUT * result.median else None


def _longer(norms: Mapping[str, float], bound: Callable[[Steps], float]) -> Steps | None:
    """Find the one client whose step exceeds a bound; None where no usual length is known."""
    result = outlier(norms)
    return result if result is not None and len(norms) > 2 and 0 < bound(result) < result.largest else None


def dominant(norms: Mapping[str, float], rows: Mapping[str, int]) -> str | None:
    """Find the one client whose step is so long that the mean is hardly more than it.

    A client of more rows than the median one may take a step longer in that proportion, since likelihoods add up.

    Args:
        norms: of the steps of the clients that moved the server, by name.
        rows: of every client, by name.

    Returns:
        Its name; None without one, and where fewer than three clients or steps of no length say what is usual.
    """

    def bound(steps: Steps) -> float:
        more = rows[steps.whose] / max(1.0, statistics.median(rows[name] for name in norms))
        return REMARKED * max(1.0, more) * steps.median

    result = _longer(norms, bound)
    return None if result is None else result.whose


def overlong(norms: Mapping[str, float], usual: float, most: float) -> str | None:
    """Name the client whose step is too long compared with the usual ones of this run, if there is one.

    Args:
        norms: of the steps of the clients that are to move the server, by name.
        usual: the largest median norm of the rounds before.
        most: multiple of the usual that is too much.

    Returns:
        What is wrong; None where nothing is, and where nobody can say what is usual: of two clients, or of steps
        of no length.
    """
    result = _longer(norms, lambda steps: most * max(steps.median, usual))
    return None if result is None else f"client {result.whose!r} sent a step {lengths(result)}"


def far_out(steps: Steps, before: Steps | None = None) -> bool:
    """Whether the longest step of a round can have spoilt the server, and so the next updates of all clients.

    Args:
        steps: of the round.
        before: of the round before it: the longest of two rounds in a row may stand out less.
    """
    again = before is not None and before.whose == steps.whose and before.largest > REMARKED * before.median
    return steps.largest > (REMARKED if again else FAR_OUT) * steps.median


def lengths(steps: Steps) -> str:
    """Give the longest step and the usual one in words."""
    return f"{steps.largest:.3g} long where the median client's was {steps.median:.3g}"


def listed(names: Sequence[str], most: int = 5) -> str:
    """Name some clients in a sentence.

    Args:
        names: of the clients.
        most: names that are written out.

    Returns:
        The first of them, and how many more there are.
    """
    return errors.listed([*map(repr, names)], most)
