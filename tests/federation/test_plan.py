"""What a plan of a federation may be."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pacbayes_fl.errors import StudyError
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.server import aggregations


@pytest.mark.parametrize(
    "values",
    [
        {"rounds": -1},
        {"min_clients": 0},
        {"chunk": 0},
        {"waste": 0.9},
        {"cohort": 0},
        {"cohort": 2, "min_clients": 3},
        {"seed": -1},
        {"seed": 2**32},
        {"train": "some"},
    ],
    ids=str,
)
def test_values_out_of_range_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(StudyError, match=next(iter(values))):
        FederationPlan(**values)


@pytest.mark.parametrize("value", [1.0, 0.0, -3.0, math.nan])
def test_divergence_is_a_multiple_above_one(value: float) -> None:
    with pytest.raises(StudyError, match="diverges_at must be above 1"):
        FederationPlan(diverges_at=value)
    assert FederationPlan(diverges_at=None).diverges_at is None


def test_robust_options_have_defaults_of_their_rule() -> None:
    plan = FederationPlan(aggregate="trimmed")
    assert (plan.suspects, plan.multiple) == (aggregations.FAULTY, aggregations.MULTIPLE)
    plan = FederationPlan(aggregate="clipped", faulty=0, clip_multiple=3.0)
    assert (plan.suspects, plan.multiple) == (0, 3.0)
    with pytest.raises(StudyError, match="faulty = 2 clients can take the mean anywhere"):
        FederationPlan(faulty=2)
