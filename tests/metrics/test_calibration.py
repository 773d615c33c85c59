"""Calibration error and coverage against published numbers and their meaning."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from pyro import distributions

from pacbayes_fl.errors import ShapeError, StudyError
from pacbayes_fl.metrics import calibration_error, empirical_frequencies, interval_coverage, levels
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.predictive import NormalMixture
from pacbayes_fl.posteriors.sampled import SampledMixture

MEAN = torch.tensor([[[0.0, 1.0, -0.5, 2.0, 0.3]]], dtype=torch.float64)
STD = torch.tensor([[[1.0, 0.5, 0.8, 1.2, 0.4]]], dtype=torch.float64)
Y = torch.tensor([[0.5, 0.2, -0.4, 3.5, 0.31]], dtype=torch.float64)
ALL = torch.ones(1, 5, dtype=torch.bool)
ONE = torch.zeros(1, 1, dtype=torch.float64)
PREDICTIVE = NormalMixture(ONE, MEAN, STD.square())


@pytest.mark.quick
@pytest.mark.parametrize(
    ("grid", "norm", "expected"),
    [
        ("paper", "abs", 0.07894736842105263),
        ("pacoh", "abs", 0.08684210526315789),
        ("pacoh", "rms", 0.11180339887498947),
        (torch.arange(1, 21) / 20, "abs", 0.085),
    ],
)
def test_published_numbers(grid: str | torch.Tensor, norm: str, expected: float) -> None:
    got = calibration_error(PREDICTIVE, Y, ALL, levels=grid, norm=norm)
    assert got.dtype == torch.float64
    assert got.item() == pytest.approx(expected, abs=1e-7 if isinstance(grid, torch.Tensor) else 1e-12)


def test_levels_have_the_ends_of_their_source() -> None:
    np.testing.assert_allclose(levels("paper").numpy(), np.linspace(0, 1, 20), rtol=0, atol=1e-15)
    np.testing.assert_allclose(levels("pacoh", 5).numpy(), np.linspace(0.05, 0.95, 5), rtol=0, atol=1e-15)
    with pytest.raises(StudyError, match="paper, pacoh"):
        levels("mine")


def test_frequencies_count_the_pits() -> None:
    pit = PREDICTIVE.cdf(Y)[0].numpy()
    np.testing.assert_allclose(pit, [0.6914624613, 0.0547992917, 0.5497382248, 0.8943502263, 0.5099725182], atol=1e-9)
    got = empirical_frequencies(PREDICTIVE, Y, ALL, "paper")
    assert got.shape == (1, 20)
    np.testing.assert_allclose(got[0], [(pit <= q).mean() for q in np.linspace(0, 1, 20)], atol=1e-15)
    assert (got.diff(dim=1) >= 0).all() and got[0, 0] == 0 and got[0, -1] == 1


@pytest.mark.parametrize("norm", ["abs", "rms"])
@pytest.mark.parametrize("scale", [1e-3, 5.0, 4e4])
def test_ce_does_not_know_the_unit(norm: str, scale: float) -> None:
    changed = NormalMixture(ONE, scale * MEAN + 3, (scale * STD).square())
    torch.testing.assert_close(
        calibration_error(changed, scale * Y + 3, ALL, norm=norm),
        calibration_error(PREDICTIVE, Y, ALL, norm=norm),
        rtol=0,
        atol=1e-14,
    )


def test_a_true_predictive_is_calibrated_and_false_ones_are_not() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = 100_000
    means = torch.randn(1, 2, rows, generator=generator, dtype=torch.float64)
    log_weights = torch.tensor([[0.25, 0.75]], dtype=torch.float64).log()
    second = torch.rand(1, rows, generator=generator) < 0.75
    y = torch.where(second, means[:, 1], means[:, 0]) + 0.5 * torch.randn(1, rows, generator=generator).double()
    mask = torch.ones(1, rows, dtype=torch.bool)

    def predict(std: float, shift: float = 0.0) -> NormalMixture:
        return NormalMixture(log_weights, means + shift, torch.full_like(means, std**2))

    assert calibration_error(predict(0.5), y, mask).item() < 0.003
    assert interval_coverage(predict(0.5), y, mask).item() == pytest.approx(0.95, abs=0.003)
    assert interval_coverage(predict(0.5), y, mask, 0.5).item() == pytest.approx(0.5, abs=0.006)
    assert interval_coverage(predict(0.1), y, mask).item() < 0.9
    assert calibration_error(predict(2.0), y, mask).item() > 0.05
    assert calibration_error(predict(0.5, shift=0.5), y, mask).item() > 0.05


def test_coverage_counts_targets_between_the_quantiles() -> None:
    z = (Y - MEAN[0]) / STD[0]
    for level, width in [(0.95, 1.959963984540054), (0.6826894921370859, 1.0)]:
        expected = (z.abs() <= width).double().mean().item()
        assert interval_coverage(PREDICTIVE, Y, ALL, level).item() == expected
    for level in (0.0, 1.0, math.nan):
        with pytest.raises(StudyError, match="level must lie between 0 and 1"):
            interval_coverage(PREDICTIVE, Y, ALL, level)


def test_what_cannot_be_asked_is_refused() -> None:
    with pytest.raises(StudyError, match="abs, rms"):
        calibration_error(PREDICTIVE, Y, ALL, norm="max")
    with pytest.raises(StudyError, match="paper, pacoh"):
        empirical_frequencies(PREDICTIVE, Y, ALL, "mine")
    with pytest.raises(ShapeError, match=r"levels must be \[H\]"):
        empirical_frequencies(PREDICTIVE, Y, ALL, torch.ones(2, 2))


@pytest.mark.parametrize("rate", [0.05, 0.7, 4.0])
def test_counts_that_are_predicted_right_are_calibrated(rate: float) -> None:
    """F jumps at counts: without its share below the level half of the rows would lie above every level."""
    one = distributions.Poisson(torch.full((2, 5000), rate, dtype=torch.float64))
    noise = Noise(1, 0, (4, 6))
    predictive = SampledMixture(torch.zeros(2, 1, dtype=torch.float64), (one,), noise)
    y, mask = predictive.sample(1, Noise(9, 0, (4, 6)))[0], torch.ones(2, 5000, dtype=torch.bool)
    grid = levels("paper")
    result = empirical_frequencies(predictive, y, mask)
    assert ((result - grid).abs() < 4.5 * (grid * (1 - grid) / 5000).sqrt() + 1e-12).all()
    assert (calibration_error(predictive, y, mask) < 0.02).all()
    wrong = SampledMixture(predictive.log_weights, (distributions.Poisson(2 * one.rate + 1),), noise)
    assert (calibration_error(wrong, y, mask) > 0.1).all()
    assert (interval_coverage(predictive, y, mask) >= 0.94).all()


def test_a_density_s_frequencies_are_those_of_the_closed_form() -> None:
    normal = distributions.Normal(MEAN[:, 0], STD[:, 0])
    predictive = SampledMixture(ONE, (normal,), Noise(1, 0, (4,)))
    assert torch.equal(empirical_frequencies(predictive, Y, ALL), empirical_frequencies(PREDICTIVE, Y, ALL))
