"""Classifiers by Polya-Gamma mean field: printed oracles, the same formulas with inverses, autograd, and quadrature."""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
import pytest
import torch
from scipy import integrate, special
from torch import Tensor

from pacbayes_fl.bounds import full_gaussian_kl
from pacbayes_fl.posteriors.functions import polya_gamma

KERNEL = torch.tensor([[1.0, 0.6, 0.1], [0.6, 1.0, 0.3], [0.1, 0.3, 1.0]], dtype=torch.float64)
KAPPA = torch.tensor([0.5, 0.5, -0.5], dtype=torch.float64)


def batched(kernel: Tensor, kappa: Tensor) -> tuple[Tensor, Tensor]:
    """One client, one classifier."""
    return kernel[None, None], kappa[None, None]


def fitted(kernel: Tensor, kappa: Tensor, updates: int = 200) -> tuple[polya_gamma.Conditioned, Tensor]:
    c = polya_gamma.fit(kernel, kappa, updates)
    return polya_gamma.given(kernel, kappa, c), c


def several(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Two clients of 6 rows, two classifiers each, of some of their rows."""
    draw = torch.Generator().manual_seed(seed)
    z = torch.randn(2, 6, 2, generator=draw, dtype=torch.float64)
    kernel = 8.0 * torch.exp(-0.5 * torch.cdist(z, z).square())
    kappa = torch.randint(0, 2, (2, 2, 6), generator=draw).double() - 0.5
    return kernel.unsqueeze(1), kappa * (torch.rand(2, 2, 6, generator=draw) < 0.7)


def equal(actual: Tensor, expected: object, tolerance: float = 1e-10) -> None:
    expected = torch.as_tensor(expected, dtype=torch.float64).expand_as(actual)
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("c", "mean", "variance", "short"),
    [
        (0.0, 0.25, 1 / 24, 0.249746697569),
        (1.0, 0.231058578630, 0.034446645389, 0.230805276252),
        (4.0, 0.120503447509, 0.006427546331, 0.120250145934),
    ],
)
def test_moments_of_polya_gamma_variables(c: float, mean: float, variance: float, short: float) -> None:
    """G1: PG(1, c) tilts PG(1, 0) by exp(-c^2 omega / 2), so that the mean's slope by c^2 / 2 is minus the variance."""
    equal(polya_gamma.mean(torch.tensor(c, dtype=torch.float64)), mean)
    ends = torch.tensor([max(c * c + h, 0.0) for h in (-1e-3, 1e-3, 2e-3)], dtype=torch.float64).sqrt()
    low, high, twice = polya_gamma.mean(ends).tolist()
    slope = (high - low) / 1e-3 if c else (4 * high - 3 * low - twice) / 1e-3  # one-sided at 0, of second order
    assert -slope == pytest.approx(variance, rel=1e-6)
    terms = 1 / ((np.arange(200) + 0.5) ** 2 + (c / (2 * math.pi)) ** 2) / (2 * math.pi**2)
    rest = 1 / (2 * math.pi**2 * 200)  # of the series of exponential variables
    assert terms.sum() == pytest.approx(short, abs=1e-10)
    equal(polya_gamma.mean(torch.tensor(c, dtype=torch.float64)), terms.sum() + rest, 2e-8)


def test_the_mean_has_no_step_where_its_series_ends() -> None:
    c = torch.tensor([1e-3 - 1e-12, 1e-3 + 1e-12], dtype=torch.float64)
    assert abs(float(polya_gamma.mean(c).diff())) < 1e-14


def test_the_mean_field_its_bound_and_its_prediction_are_the_printed_ones() -> None:
    """G2, and the exact evidence by quadrature over the three functions' values."""
    kernel, kappa = batched(KERNEL, KAPPA)
    q, c = fitted(kernel, kappa)
    equal(c[0, 0], [1.040221586217, 0.993978473875, 0.937043606487])
    equal(q.mean[0, 0], [0.560963705301, 0.481086473002, -0.280786093763])
    _, variance = q.marginals(kernel, torch.ones(1, 1, 3, dtype=torch.float64))
    equal(variance[0, 0], [0.767380669768, 0.756549012021, 0.799209890008])
    bound = polya_gamma.lower_bound(q, kappa, c)
    equal(bound[0, 0], -2.066272024985)
    points, weights = np.polynomial.hermite_e.hermegauss(24)
    each, factor = weights / weights.sum(), torch.linalg.cholesky(KERNEL).numpy()
    grid = np.array([*itertools.product(range(24), repeat=3)])
    likely = 1 / (1 + np.exp(-2 * KAPPA.numpy() * (points[grid] @ factor.T)))
    exact = math.log((each[grid].prod(1) * likely.prod(1)).sum())
    assert exact == pytest.approx(-2.045375926672, abs=1e-10) and float(bound) < exact
    cross = torch.tensor([0.5, 0.4, 0.2], dtype=torch.float64).view(1, 1, 3, 1)
    mean, variance = q.marginals(cross, torch.ones(1, 1, 1, dtype=torch.float64))
    equal(mean, 0.254177134438), equal(variance, 0.925204207055)
    equal(polya_gamma.log_probability(mean, variance).exp(), 0.552946173280)


def test_the_likelihood_given_omega_is_the_printed_one() -> None:
    """G3."""
    kernel, kappa = batched(KERNEL, KAPPA)
    omega = torch.tensor([0.2, 0.25, 0.1], dtype=torch.float64)[None, None]
    equal(polya_gamma.log_likelihood_given(polya_gamma.condition(kernel, kappa, omega), kappa), -1.983740590064)


def test_rows_that_are_not_a_classifier_s_drop_out_exactly() -> None:
    """Against inverses of the rows that are left: Sigma = (K^-1 + Omega)^-1, E_q of Jaakkola's bound, and the KL."""
    kernel, kappa = several()
    q, c = fitted(kernel, kappa)
    bound, kl = polya_gamma.lower_bound(q, kappa, c), q.kl()
    for k, p in itertools.product(range(2), range(2)):
        at = kappa[k, p] != 0
        own, mine, each = kernel[k, 0][at][:, at], kappa[k, p][at], c[k, p][at]
        sigma = torch.linalg.inv(torch.linalg.inv(own) + torch.diag(torch.tanh(each / 2) / (2 * each)))
        mu = sigma @ mine
        equal(q.mean[k, p][at], mu, 1e-9)
        equal(each, (sigma.diagonal() + mu.square()).sqrt(), 1e-9)
        divergence = full_gaussian_kl(mu, sigma, torch.zeros_like(mu), own)
        equal(kl[k, p], divergence, 1e-9)
        equal(bound[k, p], mine @ mu - (2 * torch.cosh(each / 2)).log().sum() - divergence, 1e-9)


def test_the_bound_rises_with_every_update() -> None:
    kernel, kappa = several()
    bounds = [polya_gamma.lower_bound(*(lambda q, c: (q, kappa, c))(*fitted(kernel, kappa, n))) for n in range(8)]
    steps = torch.stack(bounds).diff(dim=0)
    assert (steps > 0).all() and (steps[-1] < steps[0] / 50).all()


@pytest.mark.parametrize("updates", [3, 200])
def test_the_gradient_by_the_kernel_is_autograd_s(updates: int) -> None:
    """At c held; and at the fixed point, where c would move too, that of the whole bound by finite differences."""
    kernel, kappa = several()
    q, c = fitted(kernel, kappa, updates)
    weight = torch.tensor([[0.3, 1.0], [2.0, 0.5]], dtype=torch.float64)
    gradient = polya_gamma.kernel_gradient(q, weight)
    leaf = kernel.clone().requires_grad_(True)
    value = (weight * polya_gamma.lower_bound(polya_gamma.given(leaf, kappa, c), kappa, c)).sum()
    (expected,) = torch.autograd.grad(value, leaf)
    torch.testing.assert_close(gradient, 0.5 * (expected + expected.mT)[:, 0], rtol=1e-9, atol=1e-10)
    if updates == 200:
        way = torch.randn(kernel.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        way = way + way.mT
        ends = []
        for sign in (1.0, -1.0):
            moved = kernel + sign * 1e-5 * way
            q, c = fitted(moved, kappa)
            ends.append((weight * polya_gamma.lower_bound(q, kappa, c)).sum())
        assert float(ends[0] - ends[1]) / 2e-5 == pytest.approx(float((gradient * way[:, 0]).sum()), rel=1e-6)


def test_other_labels_turn_the_mean_over() -> None:
    kernel, kappa = several()
    (one, _), (other, _) = fitted(kernel, kappa), fitted(kernel, -kappa)
    assert torch.equal(one.mean, -other.mean) and torch.equal(one.cholesky, other.cholesky)


@pytest.mark.parametrize(("mean", "variance"), [(1.0, 1.0), (-3.0, 8.0), (0.0, 4.0), (2.0, 0.0), (-40.0, 2.0)])
def test_quadrature(mean: float, variance: float) -> None:
    std = math.sqrt(variance)

    def integrand(z: float) -> float:
        return math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi) / (1 + math.exp(-mean - std * z))

    at = torch.tensor([mean, -mean], dtype=torch.float64)
    one, zero = polya_gamma.log_probability(at, torch.full_like(at, variance)).exp().tolist()
    assert one + zero == pytest.approx(1.0, abs=1e-14)
    assert one == pytest.approx(integrate.quad(integrand, -12, 12, epsabs=1e-15)[0], rel=1e-7)


def exact(mean: float, std: float) -> float:
    """E sigma(f) by pieces where neither factor of the integrand changes much, of the mass at both sides of 0."""

    def integrand(f: float) -> float:
        z = (f - mean) / std
        return math.exp(-0.5 * z * z) / (math.sqrt(2 * math.pi) * std) * float(special.expit(f))

    cuts = sorted({0.0, *(mean + k * std for k in range(-12, 13, 2)), *(s * x for s in (1, -1) for x in (1, 3, 9, 40))})
    inside = [cut for cut in cuts if mean - 12 * std <= cut <= mean + 12 * std]
    return sum(integrate.quad(integrand, a, b, epsabs=0, epsrel=1e-12)[0] for a, b in itertools.pairwise(inside))


@pytest.mark.parametrize("exponent", [-6, -3, -1, 0, 0.34, 0.36, 0.7, 1, 2, 3, 4, 6, 8])
def test_functions_of_any_width_are_integrated(exponent: float) -> None:
    """80 nodes over a function of variance 1e4 gave 0.5000005 for 0.51994: all of the sigmoid lay between two."""
    std = 10 ** (0.5 * exponent)
    means = [0.0, 0.05 * std, 0.7, 1.5 * std, 4.0 * std, 6.0]
    at = torch.tensor([*means, *(-one for one in means)], dtype=torch.float64)
    result = polya_gamma.log_probability(at, torch.full_like(at, std**2)).exp()
    assert result.tolist() == pytest.approx([exact(one, std) for one in at.tolist()], rel=1e-8)
    torch.testing.assert_close(result[:6] + result[6:], torch.ones(6).double(), rtol=0, atol=1e-13)


@pytest.mark.law
@pytest.mark.parametrize("std", [0.3, 1.49, 1.51, 4.0, 60.0])
def test_the_tail_of_a_probability_and_its_slopes_are_those_of_many_digits(std: float) -> None:
    with mpmath.workdps(40):
        for mean in (-0.6 * std**2, -1.5 * std**2, -(std**2) - 30.0, -400.0):
            top, step = mean + std * min(std, -mean / std), min(0.3, 0.25 * std)
            places = [mpmath.mpf(top + k * step) for k in range(-int(12 * std / step), int(12 * std / step) + 1)]
            known = mpmath.log(step * sum(mpmath.npdf(f, mean, std) / (1 + mpmath.exp(-f)) for f in places))
            at = torch.tensor([mean, std**2], dtype=torch.float64)
            assert polya_gamma.log_probability(at[:1], at[1:]).item() == pytest.approx(float(known), rel=1e-10)
    leaves = [torch.tensor(each, dtype=torch.float64, requires_grad=True) for each in ([0.4, -3.0], [std**2, std**2])]
    assert torch.autograd.gradcheck(polya_gamma.log_probability, leaves, rtol=1e-4)


def test_no_margin_is_too_large() -> None:
    far = torch.tensor([-1e4, 1e4], dtype=torch.float64)
    assert polya_gamma.log_probability(far, torch.ones_like(far)).isfinite().all()
