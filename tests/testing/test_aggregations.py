"""check_aggregation passes rules that keep the laws, and names the law that a rule breaks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from pacbayes_fl.errors import StudyError
from pacbayes_fl.server.aggregations import AggregationRule
from pacbayes_fl.testing import AGGREGATION_LAWS, LawError, check_aggregation
from tests.user_objects import WITHOUT_FARTHEST


def mean(steps: Tensor, weight: Tensor, faulty: int) -> Tensor:
    return (weight / weight.sum()) @ steps


def first(steps: Tensor, weight: Tensor, faulty: int) -> Tensor:
    return steps[0]


def without_one(steps: Tensor, weight: Tensor, faulty: int) -> Tensor:
    """Leave one client out whoever is there: of one client nobody remains."""
    return steps.sort(0).values[1:].mean(0)


def noisy(steps: Tensor, weight: Tensor, faulty: int) -> Tensor:
    return mean(steps, weight, faulty) + 1e-3 * torch.randn(steps.shape[1], dtype=torch.float64)


class Momentum:
    """A rule that remembers the step before."""

    def __init__(self) -> None:
        self.before: dict[int, Tensor] = {}

    def __call__(self, steps: Tensor, weight: Tensor, faulty: int) -> Tensor:
        result = mean(steps, weight, faulty) + 0.5 * self.before.get(steps.shape[1], torch.zeros(()))
        self.before[steps.shape[1]] = result
        return result


def by_rows(steps: Tensor, weight: Tensor, faulty: int) -> Tensor:
    return weight @ steps


BROKEN: dict[str, tuple[Callable[..., Any], bool, set[str]]] = {
    "the first client's": (first, False, {"permutation"}),
    "nobody of one client": (without_one, False, {"step"}),
    "noise": (noisy, False, {"permutation", "repeats", "weights", "rounds", "remote"}),
    "a memory": (Momentum(), False, {"permutation", "repeats", "weights", "rounds", "remote"}),
    "a sum": (by_rows, False, {"weights"}),
    "a mean that says it is robust": (mean, True, {"faulty"}),
    "all clients' steps": (lambda steps, weight, faulty: steps, False, set(AGGREGATION_LAWS) - {"faulty"}),
}


@pytest.mark.law
@pytest.mark.parametrize("name", BROKEN)
def test_a_rule_that_breaks_a_law_is_told_which(name: str) -> None:
    join, promises, laws = BROKEN[name]
    with pytest.raises(LawError) as caught:
        check_aggregation(AggregationRule("mutant", name, join, robust=promises))
    assert laws <= set(caught.value.laws), caught.value
    assert str(caught.value).startswith("mutant breaks ")


@pytest.mark.slow
def test_laws_that_a_rule_does_not_claim_can_be_left_out() -> None:
    check_aggregation(WITHOUT_FARTHEST)
    check_aggregation(AggregationRule("sum", "a sum", by_rows), without=["weights"])
    with pytest.raises(StudyError, match=r"no law is called 'weight' \(laws: step, permutation"):
        check_aggregation(WITHOUT_FARTHEST, without=["weight"])
    with pytest.raises(LawError, match=r"mutant breaks faulty\nfaulty: .* 1 of 2 clients"):
        check_aggregation(replace(WITHOUT_FARTHEST, name="mutant", fewest=lambda f: 1))
