"""Rows alone decide who has inducing points."""

from __future__ import annotations

import pytest
import torch

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import StudyError
from pacbayes_fl.models.inducing import AUTO, Inducing, order, ways

SIZES = (5, 1, 12, 3)
BATCH = ClientBatch.pad([(torch.randn(m, 2).double(), torch.randn(m).double()) for m in SIZES])


def test_clients_with_many_rows_have_points_and_the_others_keep_no_padding() -> None:
    few, many = ways(Inducing(4, above=3), BATCH)
    assert few.at is not None and few.at.tolist() == [1, 3] and few.points is None and few.batch.x.shape[1] == 3
    assert many.at is not None and many.at.tolist() == [0, 2] and many.points == 4 and many.batch.x.shape[1] == 12
    assert torch.cat((few.at, many.at))[order([few, many])].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("rule", "points"), [(None, None), (Inducing(4, 12), None), (Inducing(4), 4), (Inducing(4, 0), 4), (AUTO, None)]
)
def test_where_all_are_alike_nobody_is_moved(rule: Inducing | None, points: int | None) -> None:
    (only,) = ways(rule, BATCH)
    assert only.at is None and only.points == points and only.batch is BATCH


def test_all_with_many_rows_are_one_call() -> None:
    (only,) = ways(Inducing(4, 2), BATCH.select(torch.tensor([0, 2])))
    assert only.points == 4 and only.at is None


@pytest.mark.parametrize("rule", [Inducing(0), Inducing(4, -1)])
def test_a_rule_without_points_is_refused(rule: Inducing) -> None:
    with pytest.raises(StudyError, match="at least 1 inducing point above at least 0 rows"):
        rule.checked()
