"""Scores of clients that are dealt among the processes of a run: each scores its own, the first one has them all."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping
from functools import partial

import torch
from torch import Tensor

from pacbayes_fl.errors import ShapeError, StudyError, caller_stacklevel, shown
from pacbayes_fl.federation.client_states import Kept
from pacbayes_fl.federation.federation_state import FederationState
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.federation.ranks import Ranks
from pacbayes_fl.federation.shards import own_positions
from pacbayes_fl.methods.base import AnyMethod
from pacbayes_fl.methods.tempered import untempered
from pacbayes_fl.results.client_rows import RESERVED, ClientRow, ClientRows
from pacbayes_fl.study.data import ScaledGroup
from pacbayes_fl.study.evaluate import classification, points
from pacbayes_fl.study.evaluate.report import Report

_DESCRIBED = 64  # clients whose states are looked at together

Evaluate = Callable[[FederationState, ScaledGroup, Tensor], Report]
"""Scores some clients of a group, from the state in which they personalise, their rows and their positions there."""


def point(
    method: AnyMethod, state: FederationState, group: ScaledGroup, plan: FederationPlan, ranks: Ranks | None
) -> dict[str, float]:
    """Average the headline metric over existing clients: a point of the learning curve.

    Args:
        method: the algorithm.
        state: after some round.
        group: the existing clients.
        plan: gives chunk, waste and seed.
        ranks: the processes of the run; None of one alone.

    Returns:
        Means over clients that have a score, else NaN; of numbers also "unscored", how many have none, if any.
    """
    if ranks is None:
        return points.means([points.totals(method, state, group, plan)])
    own = own_positions(ranks, group.train)
    part = points.totals(method, _of(state, group, own), group.select(torch.tensor(own)), plan) if own else {}
    return points.means(ranks.share(part))


def histograms(
    method: AnyMethod, state: FederationState, group: ScaledGroup, plan: FederationPlan, ranks: Ranks | None
) -> dict[str, tuple[float, ...]]:
    """Sort the test rows of a few existing clients by how uncertain their personal model is.

    Args:
        method: the algorithm.
        state: after some round.
        group: the existing clients.
        plan: gives chunk, waste and seed.
        ranks: the processes of the run; None of one alone.

    Returns:
        As `classification.histograms`.
    """
    if ranks is None:
        return classification.histograms(method, state, group, plan, range(group.train.clients))
    found: dict[str, tuple[float, ...]] = {}
    for part in ranks.share(classification.histograms(method, state, group, plan, own_positions(ranks, group.train))):
        found |= part
    order = {name: k for k, name in enumerate(group.train.names)}
    return dict(sorted(found.items(), key=lambda one: order[one[0].partition(".")[2]]))


def report(evaluate: Evaluate, state: FederationState, group: ScaledGroup, ranks: Ranks | None) -> Report:
    """Score every client of a group.

    Args:
        evaluate: scores some of them.
        state: in which they personalise.
        group: the clients.
        ranks: the processes of the run; None of one alone.

    Returns:
        A row per client, and predictions; without any in a process that is not the first.

    Warns:
        UserWarning: of what other processes have found.
    """
    clients = group.train.clients
    if ranks is None:
        return evaluate(state, group, torch.arange(clients))
    own = own_positions(ranks, group.train)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        part = evaluate(_of(state, group, own), group.select(torch.tensor(own)), torch.tensor(own)) if own else None
    said = [str(one.message) for one in caught]
    rows, predictions = dict[int, ClientRow](), dict[str, Tensor]()
    merge = partial(_merge, clients, rows, predictions)
    for positions, found, texts in ranks.gather((own, part and _plain(part), said)):
        if found is not None:
            merge(positions, *found)
        for text in texts:
            warnings.warn(text, stacklevel=caller_stacklevel())
    return Report(ClientRows.of(rows[k] for k in sorted(rows)), predictions)


def described(method: AnyMethod, state: FederationState, part: Report) -> Report:
    """Add what a method says of every client's state to the rows of those clients.

    Args:
        method: the algorithm.
        state: of these clients.
        part: their scores.

    Returns:
        The scores, with its numbers.
    """
    kept, said = Kept.of(state.kept, len(part.rows)), dict[str, list[float]]()
    for at in range(0, len(part.rows), _DESCRIBED):
        own = range(at, min(at + _DESCRIBED, len(part.rows)))
        for name, values in _description(method, kept, own, part.rows.metrics).items():
            said.setdefault(name, []).extend(values)
    return part._replace(rows=part.rows.plus(said))


def check_description(method: AnyMethod, state: FederationState, clients: int, metrics: Collection[str]) -> None:
    """Refuse what a method says of clients' states and tables cannot hold, as long as there is nothing to lose.

    Args:
        method: the algorithm.
        state: before the first round, or after some.
        clients: their number.
        metrics: names of those that are computed.

    Raises:
        StudyError: when a number has the name of a metric or of another column.
        ShapeError: when it is not one of each client.
    """
    _description(method, Kept.of(state.kept, clients), range(min(1, clients)), metrics)


def _description(method: AnyMethod, kept: Kept, own: range, metrics: Collection[str]) -> dict[str, list[float]]:
    result, who = {}, f"describe of {type(untempered(method)).__name__}"
    for name, values in method.describe(kept.select(own)).items():
        if name in (*RESERVED, "") or name in metrics:
            raise StudyError(f"{who}: {name!r} is a metric or another column of a client", hint="give it another name")
        if not isinstance(values, Tensor) or values.shape != (len(own),):
            got = list(values.shape) if isinstance(values, Tensor) else shown(values)
            raise ShapeError(f"{who} must give {name!r} as a number for every client, [{len(own)}], got {got}")
        result[name] = values.tolist()
    return result


def _of(state: FederationState, group: ScaledGroup, own: list[int]) -> FederationState:
    return state._replace(kept=Kept.of(state.kept, group.train.clients).subset(own)) if own else state


def _plain(part: Report) -> tuple[ClientRows, dict[str, Tensor]]:
    return part.rows, {name: leaf.cpu() for name, leaf in part.predictions.items()}


def _merge(
    clients: int,
    rows: dict[int, ClientRow],
    predictions: dict[str, Tensor],
    positions: list[int],
    own: ClientRows,
    told: Mapping[str, Tensor],
) -> None:
    """Put the rows and predictions of some clients where those of all are."""
    rows.update(zip(positions, own, strict=True))
    for name, leaf in told.items():
        shape = (clients, *leaf.shape[1:])
        if name not in predictions:
            blank = torch.nan if leaf.is_floating_point() else 0
            predictions[name] = torch.full(shape, blank, dtype=leaf.dtype)
        predictions[name][torch.tensor(positions)] = leaf
