"""The loss without a range: scipy's integrals, and that its variance factor holds for every clipped function."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from pacbayes_fl.bounds import NormalNLL, loss_named
from pacbayes_fl.bounds.loss_table import listing
from pacbayes_fl.errors import AssumptionError


def tensor(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


@pytest.mark.parametrize("y", [-1.5, 0.3, 6.0])
@pytest.mark.parametrize(("mean", "std"), [(0.2, 0.5), (3.0, 2.0), (-9.0, 1.0), (1.0, 40.0)])
def test_its_average_over_a_gaussian_is_the_integral(y: float, mean: float, std: float) -> None:
    loss = NormalNLL(0.7, 2.5)

    def inside(f: float) -> float:
        return float(-stats.norm.logpdf(y, f, 0.7) * stats.norm.pdf(f, mean, std))

    middle, _ = integrate.quad(inside, -2.5, 2.5, epsabs=1e-12)
    ends = [(-2.5, stats.norm.cdf(-2.5, mean, std)), (2.5, stats.norm.sf(2.5, mean, std))]
    expected = middle + sum(-stats.norm.logpdf(y, at, 0.7) * mass for at, mass in ends)
    got = loss.expected(tensor(mean), tensor(std**2), tensor(y)).item()
    assert got == pytest.approx(expected, rel=1e-8)
    once = loss(tensor(mean), tensor(y)).item()
    assert once == pytest.approx(-stats.norm.logpdf(y, np.clip(mean, -2.5, 2.5), 0.7), rel=1e-12)
    assert loss.expected(tensor(mean), tensor(0.0), tensor(y)).item() == once >= loss.low


def test_the_stated_factor_holds_for_every_function_and_a_tenth_of_it_does_not() -> None:
    """ln E exp(t (L - l)) <= t^2 s^2 / 2, y uniform in [-1, 1]: exact sums over its values, functions of any value."""
    loss, y = NormalNLL(0.5, 2.0), torch.linspace(-1, 1, 2001, dtype=torch.float64)
    factor = ((y.abs() + 2.0) ** 4).mean().item() / (4 * 0.5**4)
    least = math.inf
    for f in (-50.0, -2.0, -0.5, 0.0, 1.0, 2.0, 1e6):
        losses = loss(torch.full_like(y, f), y)
        for t in np.geomspace(1e-3, 30, 40):
            left = torch.logsumexp(t * (losses.mean() - losses), 0).item() - math.log(len(y))
            assert left <= t**2 * factor / 2
            least = min(least, t**2 * factor / 2 / max(left, 1e-300))
    assert least < 20  # as loose as it is
    moment = 2 * (y.pow(4).mean().item() + 2.0**4) / 0.5**4
    assert factor <= moment


def test_it_is_found_by_its_name_and_wrong_settings_are_refused() -> None:
    assert loss_named("normal-nll", std=0.5) == NormalNLL(0.5, 4.0) and "normal-nll" in dict(listing())
    assert NormalNLL(0.5).trivial(2.0) == pytest.approx(NormalNLL(0.5).low + 4.0)
    for wrong in ({"std": 0.0}, {"std": math.inf}, {"std": 1.0, "limit": -1.0}):
        given: Any = wrong
        with pytest.raises(AssumptionError, match="must be positive and finite"):
            NormalNLL(**given)
