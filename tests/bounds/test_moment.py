"""Maurer's sum: exact fractions, the expectation that it is, and never below it however many rows there are."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import stats

from pacbayes_fl.bounds.kl_inverse import binary_kl
from pacbayes_fl.bounds.moment import log_moment


def by_definition(n: int) -> Fraction:
    """sum_k C(n, k) (k / n)^k (1 - k / n)^(n - k), with 0^0 = 1."""
    return Fraction(sum(math.comb(n, k) * k**k * (n - k) ** (n - k) for k in range(n + 1)), n**n)


def by_products(n: int) -> float:
    """Its terms in another order, in pairs: 1 + sum_j prod_{i<j} (1 - i / n)."""
    factors = 1.0 - np.arange(min(n, int(40 * math.sqrt(n)) + 100)) / n
    return 1.0 + math.fsum(np.cumprod(factors))


def test_the_sum_is_the_definition_and_never_below_it() -> None:
    n = [1, 2, 3, 5, 8, 17, 64, 255, 256, 257, 258, 400, 1000]
    result = log_moment(torch.tensor(n))
    for rows, value in zip(n, result.tolist(), strict=True):
        xi = float(by_definition(rows))
        assert math.log(xi) < value < math.log(xi) + (2e-13 if rows <= 256 else 6e-6), rows
        assert by_products(rows) == pytest.approx(xi, rel=1e-12)


@pytest.mark.parametrize("n", [10**4, 123_457, 10**6, 10**7])
def test_many_rows_are_summed_up_by_an_upper_bound(n: int) -> None:
    exact = math.log(by_products(n))
    assert exact + 5e-14 < log_moment(torch.tensor(n)).item() < exact + 0.03 / n**1.5 + 1e-10
    assert log_moment(torch.tensor(n)).item() < math.log(2 * math.sqrt(n)) - 0.46


def test_it_never_falls_and_gains_less_than_half_a_nat_over_its_bound() -> None:
    n = torch.arange(1, 3000)
    result = log_moment(n)
    assert bool((result.diff() > 0).all())
    gain = (2 * n.double().sqrt()).log() - result
    assert bool((gain > -1e-12).all()) and gain[0].item() == pytest.approx(0.0, abs=1e-12)
    assert 0.41 < gain[100:].min() and gain.max() < 0.4701  # ln(2 sqrt(2 / pi)) = .470


@pytest.mark.parametrize("n", [1, 2, 7, 40])
def test_it_is_the_moment_of_losses_of_zero_and_one_and_above_that_of_others(n: int) -> None:
    xi = log_moment(torch.tensor(n)).exp().item()
    for mean in (0.01, 0.3, 0.5, 0.97):
        k = torch.arange(n + 1, dtype=torch.float64)
        moment = (n * binary_kl(k / n, torch.tensor(mean, dtype=torch.float64))).exp().numpy()
        assert float(stats.binom.pmf(k.numpy(), n, mean) @ moment) == pytest.approx(xi, rel=1e-9)
    thirds = np.array([0.2, 0.5, 0.3])  # losses 0, 1/2, 1
    law = np.ones(1)
    for _ in range(n):
        law = np.convolve(law, thirds)
    k = torch.arange(2 * n + 1, dtype=torch.float64)
    moment = (n * binary_kl(k / (2 * n), torch.tensor(0.55, dtype=torch.float64))).exp().numpy()
    assert float(law @ moment) < xi * (1 - 1e-3)
