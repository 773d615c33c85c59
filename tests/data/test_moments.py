"""Moments of clients' columns."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pacbayes_fl.data.moments import moments_of, power_of_two


@pytest.mark.parametrize("unit", [1e-200, 1.0, 1e200])
def test_moments_are_numpy_s_in_any_unit(unit: float) -> None:
    columns = torch.randn(2, 9, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 5.0
    mask = torch.arange(9) < torch.tensor([[9], [4]])
    found = moments_of(torch.where(mask.unsqueeze(-1), columns * unit, 0.0), mask)
    for k, m in enumerate((9, 4)):
        rows = columns[k, :m].numpy()
        np.testing.assert_allclose(found.mean[k] / unit, rows.mean(0), rtol=1e-13)
        np.testing.assert_allclose(found.std[k] / unit, rows.std(0), rtol=1e-12)
    assert not found.flat.any()


def test_what_does_not_vary_is_flat() -> None:
    columns, mask = torch.ones(3, 4, 1), torch.tensor([[True] * 4, [True, False, False, False], [False] * 4])
    columns[0, 1] = 2.0
    assert moments_of(columns, mask).flat.flatten().tolist() == [False, True, True]


@pytest.mark.parametrize(("size", "unit"), [(1.0, 1.0), (1.99, 1.0), (0.3, 0.25), (1e300, 2.0**996), (0.0, 1.0)])
def test_the_largest_power_of_two_not_above(size: float, unit: float) -> None:
    assert float(power_of_two(torch.tensor(size, dtype=torch.float64))) == unit
