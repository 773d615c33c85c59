"""Points of a learning curve: means of clients' scores, of all clients or of sums that nodes have of theirs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from torch import Tensor

from pacbayes_fl.federation.federation_state import FederationState
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.methods.base import AnyMethod
from pacbayes_fl.study.data import ScaledGroup
from pacbayes_fl.study.evaluate import classification, regression
from pacbayes_fl.study.file import Study

UNSCORED: Final = "unscored"


def is_due(study: Study, round: int) -> bool:
    """Whether the learning curve has a point after a round, beside the last.

    Args:
        study: its [report] says how often; a tenth of the rounds is usual.
        round: its number.
    """
    return round % (study.report.evaluate_every or max(1, study.plan.rounds // 10)) == 0


class Total(NamedTuple):
    """Sum of clients' scores.

    Args:
        sum: over those that have one.
        scored: their number.
        unscored: number of the others.
    """

    sum: float
    scored: int
    unscored: int


def totals(method: AnyMethod, state: FederationState, scaled: ScaledGroup, plan: FederationPlan) -> dict[str, Total]:
    """Score existing clients.

    Args:
        method: the algorithm.
        state: after some round.
        scaled: rows of the existing clients.
        plan: gives chunk, waste and seed.

    Returns:
        Sums over the clients, by score.
    """
    of = regression if scaled.train.y.is_floating_point() else classification
    return {name: _total(scores) for name, scores in of.curve(method, state, scaled, plan).items()}


def _total(scores: Tensor) -> Total:
    known = scores[~scores.isnan()]
    return Total(float(known.double().sum()), len(known), len(scores) - len(known))


def means(parts: Sequence[Mapping[str, Total]]) -> dict[str, float]:
    """Average scores over the clients that have one.

    Args:
        parts: sums over clients that are in no other part, by score.

    Returns:
        Means by score, NaN where no client has one; and of regression "unscored", how many have none, where there are
        such.
    """
    result: dict[str, float] = {}
    for name in dict.fromkeys(name for part in parts for name in part):
        own = [part[name] for part in parts if name in part]
        scored = sum(total.scored for total in own)
        result[name] = math.fsum(total.sum for total in own) / scored if scored else math.nan
        lacking = sum(total.unscored for total in own)
        if lacking and "." not in name:
            result[UNSCORED] = float(lacking)
    return result
