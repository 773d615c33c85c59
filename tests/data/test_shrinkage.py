"""Empirical Bayes of clients' means and scales, against numerical integration and brute-force likelihoods."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import optimize, stats
from torch import Tensor

from pacbayes_fl.data.moments import Moments, moments_of
from pacbayes_fl.data.shrinkage import Population, fit_population, random_effects, shrink, shrunk

F64 = torch.float64


def draws(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def test_the_shrunk_estimate_is_the_posterior_mean() -> None:
    estimate, variance = (
        torch.tensor([[0.7], [-2.0], [5.0]], dtype=F64),
        torch.tensor([[0.3], [4.0], [0.01]], dtype=F64),
    )
    theta = np.linspace(-15, 15, 40001)
    mean, spread = shrink(estimate, variance, torch.tensor([0.5], dtype=F64), torch.tensor([0.8], dtype=F64))
    for k in range(3):
        weight = stats.norm.pdf(theta, 0.5, 0.8**0.5) * stats.norm.pdf(
            float(estimate[k]), theta, float(variance[k]) ** 0.5
        )
        expected = (weight * theta).sum() / weight.sum()
        assert float(mean[k]) == pytest.approx(expected, rel=1e-8)
        assert float(spread[k]) == pytest.approx((weight * (theta - expected) ** 2).sum() / weight.sum(), rel=1e-8)


def restricted(log_between: float, estimate: np.ndarray, variance: np.ndarray) -> float:
    """Minus the restricted log-likelihood of the variance between clients, up to a constant."""
    total = variance + np.exp(log_between)
    centre = (estimate / total).sum() / (1 / total).sum()
    return float(-stats.norm.logpdf(estimate, centre, total**0.5).sum() + 0.5 * np.log((1 / total).sum()))


@pytest.mark.parametrize("seed", range(4))
def test_equal_variances_give_the_most_likely_population(seed: int) -> None:
    estimate, variance = draws(seed, 7, 1) * 1.5 + 3.0, torch.full((7, 1), 0.6, dtype=F64)
    centre, between = random_effects(estimate, variance)
    e, v = estimate[:, 0].numpy(), variance[:, 0].numpy()
    best = optimize.minimize_scalar(restricted, bounds=(-12, 6), args=(e, v), method="bounded", options={"xatol": 1e-9})
    assert float(between) == pytest.approx(np.exp(best.x), rel=1e-5) and float(centre) == pytest.approx(e.mean())


def test_clients_that_differ_by_no_more_than_their_errors_are_alike() -> None:
    estimate, variance = torch.tensor([[1.0], [1.1], [0.9]], dtype=F64), torch.tensor([[1.0], [2.0], [4.0]], dtype=F64)
    centre, between = random_effects(estimate, variance)
    weight = np.array([1.0, 0.5, 0.25])
    assert between == 0 and float(centre) == pytest.approx((weight * estimate[:, 0].numpy()).sum() / weight.sum())
    assert (
        optimize.minimize_scalar(
            restricted, bounds=(-12, 6), args=(estimate[:, 0].numpy(), variance[:, 0].numpy()), method="bounded"
        ).x
        < -11
    )


def test_unequal_variances_come_near_the_most_likely_population() -> None:
    variance = 0.1 + 3.0 * draws(1, 400, 1).square()
    estimate = 2.0 + draws(2, 400, 1) * (variance + 0.5).sqrt()
    centre, between = random_effects(estimate, variance)
    e, v = estimate[:, 0].numpy(), variance[:, 0].numpy()
    best = np.exp(optimize.minimize_scalar(restricted, bounds=(-12, 6), args=(e, v), method="bounded").x)
    assert float(between) == pytest.approx(best, rel=0.2)
    assert float(centre) == pytest.approx((e / (v + best)).sum() / (1 / (v + best)).sum(), abs=0.01)


@pytest.mark.parametrize("rows", [2, 3, 10, 150])
def test_a_scale_is_known_as_well_as_the_logarithm_of_chi_squared(rows: int) -> None:
    moments, size = (
        Moments(torch.zeros(1, 1, dtype=F64), torch.full((1, 1), 2.0, dtype=F64), torch.zeros(1, 1, dtype=torch.bool)),
        torch.tensor([rows]),
    )
    log_gamma = stats.loggamma((rows - 1) / 2)  # of half the sum of squares in units of sigma^2
    own = 0.5 * (np.log(rows * 2.0**2 / 2) - log_gamma.mean())
    for spread in (1e9, 0.4):
        population = Population(*(torch.tensor([v], dtype=F64) for v in (0.0, 3.0, 1.0, spread)))
        weight = log_gamma.var() / 4 / (log_gamma.var() / 4 + spread**2)
        expected = (1 - weight) * own + weight * np.log(3.0)
        assert float(shrunk(moments, size, population)[1].log()) == pytest.approx(expected, rel=1e-9)


def federation(seed: int, clients: int, rows: int, between: float, spread: float) -> tuple[Moments, Tensor]:
    scale = (spread * draws(seed, clients, 1, 1)).exp() * 0.3
    mean = 4.0 + between * draws(seed + 1, clients, 1, 1)
    columns, mask = mean + scale * draws(seed + 2, clients, rows, 1), torch.ones(clients, rows, dtype=torch.bool)
    return moments_of(columns, mask), mask.sum(1)


def test_the_population_is_found() -> None:
    for between, spread in ((0.5, 0.3), (0.05, 0.6)):
        found = fit_population(*federation(3, 6000, 6, between, spread))
        assert float(found.mean) == pytest.approx(4.0, abs=0.03) and float(found.std) == pytest.approx(0.3, rel=0.02)
        assert float(found.between) == pytest.approx(between, abs=0.01)
        assert float(found.spread) == pytest.approx(spread, rel=0.05)


def test_shrunk_moments_are_nearer_to_the_truth_than_own_and_common_ones() -> None:
    moments, size = federation(11, 500, 8, 0.15, 0.3)
    truth = 4.0 + 0.15 * draws(12, 500, 1), (0.3 * draws(11, 500, 1)).exp() * 0.3
    got = shrunk(moments, size, fit_population(moments, size))
    for mine, own, true in zip(got, moments, truth, strict=False):
        error = (mine.log() - true.log()).square().mean()
        assert error < 0.85 * (own.log() - true.log()).square().mean() and error < 0.85 * true.log().var()


def test_clients_that_are_alike_have_the_scale_of_all_rows() -> None:
    moments, size = federation(5, 3000, 10, 0.0, 0.0)
    mean, std = shrunk(moments, size, fit_population(moments, size))
    whole = (moments.std.square() + moments.mean.square()).mean() - moments.mean.mean().square()
    torch.testing.assert_close(std, whole.sqrt().expand(3000, 1), rtol=0.06, atol=0)
    torch.testing.assert_close(mean, moments.mean.mean().expand(3000, 1), rtol=0.003, atol=0)


def test_clients_of_very_many_rows_keep_their_own() -> None:
    moments, _ = federation(7, 30, 10, 0.5, 0.5)
    size = torch.full((30,), 10**9)
    mean, std = shrunk(moments, size, fit_population(moments, size))
    torch.testing.assert_close(mean, moments.mean, rtol=1e-7, atol=0)
    torch.testing.assert_close(std, moments.std, rtol=1e-7, atol=0)


@pytest.mark.parametrize("power", [-900, -300, -1, 1, 40, 600, 900])
def test_a_unit_that_is_a_power_of_two_changes_no_bit(power: int) -> None:
    moments, size = federation(9, 12, 6, 0.5, 0.5)
    other = Moments(moments.mean * 2.0**power, moments.std * 2.0**power, moments.flat)
    first, second = fit_population(moments, size), fit_population(other, size)
    for a, b in zip(first[:3], second[:3], strict=True):
        assert torch.equal(a * 2.0**power, b)
    assert torch.equal(first.spread, second.spread)
    for a, b in zip(shrunk(moments, size, first), shrunk(other, size, second), strict=True):
        assert torch.equal(a * 2.0**power, b)


def test_one_row_a_constant_column_and_no_rows_take_what_is_typical() -> None:
    moments, size = federation(13, 9, 12, 0.5, 0.3)
    moments.std[:3] = 0.0
    moments.mean[2], moments.flat[:3], size[1], size[2] = 0.0, True, 1, 0
    population = fit_population(moments, size)
    mean, std = shrunk(moments, size, population)
    torch.testing.assert_close(std[:3], population.std.expand(3, 1), rtol=1e-14, atol=0)
    assert torch.equal(mean[2], population.mean)
    pull = (moments.mean[:2] - mean[:2]) / (moments.mean[:2] - population.mean)
    square = population.std.square() * (2 * population.spread.square()).exp()
    error = square / torch.tensor([[12.0], [1.0]], dtype=F64)
    torch.testing.assert_close(pull, error / (error + population.between.square()))


@pytest.mark.parametrize("clients", [1, 2, 5])
@pytest.mark.parametrize("far", [1e-150, 1e-300, 1e150, 1e300])
def test_numbers_of_any_size_leave_maps_finite(clients: int, far: float) -> None:
    """One client's rows far out make clients keep their own moments, and nothing overflow."""
    moments, size = federation(15, clients, 5, 0.5, 0.3)
    moments.mean[0] *= far
    moments.std[0] *= far
    mean, std = shrunk(moments, size, fit_population(moments, size))
    assert mean.isfinite().all() and std.isfinite().all() and (std > 0).all()
    if far == 1e150:
        torch.testing.assert_close(std, moments.std, rtol=0.3, atol=0)


def test_nobody_s_rows_say_nothing() -> None:
    empty = Moments(torch.zeros(2, 1), torch.zeros(2, 1), torch.ones(2, 1, dtype=torch.bool))
    size = torch.zeros(2)
    population = fit_population(empty, size)
    assert [float(leaf) for leaf in population] == [0.0, 1.0, 0.0, 0.0]
    mean, std = shrunk(empty, size, population)
    assert mean.dtype == torch.float32 and not mean.any() and (std == 1).all()
