"""Averages over real rows."""

from __future__ import annotations

import math

import pytest
import torch

from pacbayes_fl.errors import DataError, ShapeError
from pacbayes_fl.metrics.rows import masked_mean, real_labels
from pacbayes_fl.posteriors.classes import ClassMixture


def test_averages_see_real_rows_only() -> None:
    values = torch.tensor([[1.0, 2.0, math.nan], [4.0, math.inf, -4.0], [5.0, 5.0, 5.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True, False], [True, False, True], [False, False, False]])
    got = masked_mean(values, mask)
    assert got[0] == 1.5 and got[1] == 0.0 and got[2].isnan()


def test_no_columns_at_all_is_no_row() -> None:
    assert masked_mean(torch.zeros(2, 0), torch.zeros(2, 0, dtype=torch.bool)).isnan().all()


def test_labels_are_checked_on_real_rows_only() -> None:
    predictive = ClassMixture(torch.full((2, 3, 4), 0.25).log())
    mask = torch.tensor([[True, True, False], [True, False, False]])
    y = torch.tensor([[3, 0, -1], [2, 9, 100]])
    got, same = real_labels(predictive, y.int(), mask)
    assert got.dtype == torch.int64 and got.tolist() == [[3, 0, 0], [2, 0, 0]] and same is mask
    for label in (-1, 4):
        with pytest.raises(DataError, match=rf"labels 0 to 3, got {label} \(client 1, row 0\)"):
            real_labels(predictive, torch.tensor([[0, 0, 0], [label, 0, 0]]), mask)


def test_labels_must_be_integers_and_shapes_must_agree() -> None:
    predictive = ClassMixture(torch.full((2, 3, 4), 0.25).log())
    y, mask = torch.zeros(2, 3, dtype=torch.int64), torch.ones(2, 3, dtype=torch.bool)
    for wrong in (y.double(), y.bool()):
        with pytest.raises(ShapeError, match="y must hold integer labels"):
            real_labels(predictive, wrong, mask)
    with pytest.raises(ShapeError, match="mask must be bool"):
        real_labels(predictive, y, mask.long())
    with pytest.raises(ShapeError, match=r"mask must be \[K N\]"):
        real_labels(predictive, y, mask[:, :2])
    with pytest.raises(ShapeError, match=r"predictive\.probs must be \[K N C\]"):
        real_labels(predictive, y[:, :2], mask[:, :2])
