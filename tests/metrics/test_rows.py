"""Averages over real rows."""

from __future__ import annotations

import math

import torch

from pacbayes_fl.metrics.rows import masked_mean


def test_averages_see_real_rows_only() -> None:
    values = torch.tensor([[1.0, 2.0, math.nan], [4.0, math.inf, -4.0], [5.0, 5.0, 5.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True, False], [True, False, True], [False, False, False]])
    got = masked_mean(values, mask)
    assert got[0] == 1.5 and got[1] == 0.0 and got[2].isnan()


def test_no_columns_at_all_is_no_row() -> None:
    assert masked_mean(torch.zeros(2, 0), torch.zeros(2, 0, dtype=torch.bool)).isnan().all()
