"""Where columns are cut: at quantiles of all their values, or between values that are few."""

from __future__ import annotations

import numpy as np
import pytest

from pacbayes_fl import tensors
from pacbayes_fl.results import errors_by


@pytest.mark.parametrize("block", [2, 1024])
def test_a_column_of_many_values_is_cut_at_quantiles_whoever_has_them(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of all values at once; residuals by part are held to a loop in tests/pages/test_errors.py."""
    monkeypatch.setattr(tensors, "BLOCK", block)
    monkeypatch.setattr(tensors, "MAPPED", block)
    values = np.random.default_rng(0).normal(size=(50, 10))
    real = values < 2
    real[3], values[4, 5] = False, np.nan
    known = values[real & np.isfinite(values)]
    edges = errors_by.edges([(values[:20], real[:20]), (values[20:], real[20:])])
    assert edges.tolist() == np.quantile(known, np.linspace(0, 1, 13)).tolist()
    few = np.array([[1.0, 2.0], [2.0, 4.0]])
    assert errors_by.edges([(few, few > 0)]).tolist() == [0.5, 1.5, 3.0, 5.0]
    assert errors_by.edges([(few, few > 2)]).tolist() == [4.0]
