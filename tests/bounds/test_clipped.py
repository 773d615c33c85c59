"""The mean of a clipped square against the integral in many digits, over many orders of both its numbers."""

from __future__ import annotations

import itertools

import mpmath
import pytest
import torch

from pacbayes_fl.bounds.clipped import mean_clipped_square
from pacbayes_fl.bounds.losses import ClippedSquare


def exact(mean: float, std: float, limit: float) -> float:
    """E min(e^2, limit) with 60 digits, by the closed form: it cancels, and many digits remain."""
    with mpmath.workdps(400):
        m, s, root = mpmath.mpf(mean), mpmath.mpf(std), mpmath.sqrt(mpmath.mpf(limit))
        a, b = (-root - m) / s, (root - m) / s
        inside = (mpmath.erf(b / mpmath.sqrt(2)) - mpmath.erf(a / mpmath.sqrt(2))) / 2
        low, high = mpmath.npdf(a), mpmath.npdf(b)
        squares = (m**2 + s**2) * inside + 2 * m * s * (low - high) + s**2 * (a * low - b * high)
        return float(squares + limit * (1 - inside))


@pytest.mark.law
@pytest.mark.parametrize("limit", [1e-14, 1.0, 4.0, 1e12])
def test_it_is_the_integral_to_twelve_digits_over_many_orders(limit: float) -> None:
    root = limit**0.5
    spreads = [10.0**k for k in range(-12, 21, 2)] + [0.3, 2.0, 3.999, 4.001, 7.0, 30.0]
    for spread, place in itertools.product(spreads, (0.0, 1e-9, 0.25, 0.9, 1.0, 1.0 + 1e-9, 1.5, 20.0)):
        for mean in {place * root, place * spread * root}:
            means = torch.tensor([mean, -mean], dtype=torch.float64)
            got = mean_clipped_square(means, torch.full_like(means, spread * root), limit).tolist()
            assert all(0.0 <= one <= limit for one in got)
            assert got == pytest.approx([exact(mean, spread * root, limit)] * 2, rel=1e-12), (mean, spread, limit)


def test_the_integral_by_hand_is_that_of_a_quadrature() -> None:
    for mean, std in ((0.3, 0.5), (0.0, 5.0), (2.0, 1.0)):
        inside = mpmath.quad(lambda t, m=mean, s=std: (1 - t**2) * mpmath.npdf(t, m, s), [-1, 0, 1])
        assert exact(mean, std, 1.0) == pytest.approx(float(1 - inside), rel=1e-12)


def test_what_no_float_holds_gives_an_end_and_slopes_are_numbers() -> None:
    numbers = torch.tensor([1e200, 1e-200, 0.0, 0.0, 1e-320], dtype=torch.float64)
    spreads = torch.tensor([1e-200, 1e-200, 1e-310, 1e200, 1e-320], dtype=torch.float64)
    assert mean_clipped_square(numbers, spreads, 1.0).tolist() == [1.0, 0.0, 0.0, 1.0, 0.0]
    loss = ClippedSquare(1.0)
    exact, all_of_it = loss.expected(torch.zeros(2), torch.tensor([0.0, 1e16]), torch.tensor([0.5, 0.0])).tolist()
    assert exact == 0.25 and 1.0 - 1e-6 <= all_of_it <= 1.0
    moving = [torch.tensor(each, dtype=torch.float64, requires_grad=True) for each in ([0.2, 3.0], [0.5, 9.0])]
    assert torch.autograd.gradcheck(lambda mean, std: mean_clipped_square(mean, std, 1.0), moving)
