"""Bounded losses: worked values, scipy's integrals of the expected ones, and the refusal of unbounded ones."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from scipy import integrate, stats

from pacbayes_fl.bounds.loss_table import loss_named
from pacbayes_fl.bounds.losses import (
    LOSSES,
    ClippedNLL,
    ClippedSquare,
    LossRange,
    SaturatingSquare,
    ZeroOne,
)
from pacbayes_fl.errors import AssumptionError


def test_the_clipped_nll_has_its_published_values() -> None:
    probs = torch.tensor([[0.5, 0.5], [1e-6, 1 - 1e-6], [1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    got = ClippedNLL(1e-4)(probs.log(), torch.tensor([1, 0, 0, 0]))
    torch.testing.assert_close(got, torch.tensor([0.07525749891599529, 1, 0, 1]).double(), rtol=1e-7, atol=0)
    assert got[0].item() == pytest.approx(0.07525749891599529, rel=1e-14)


def test_the_0_1_loss_counts_wrong_classes_in_any_batch() -> None:
    scores = torch.tensor([[[0.1, 0.9], [0.9, 0.1]], [[0.5, 0.5], [-1.0, -2.0]]])
    assert ZeroOne()(scores, torch.tensor([1, 1])).tolist() == [[0, 1], [1, 1]]


def test_squared_errors_stop_growing() -> None:
    prediction, y = torch.tensor([0.0, 1.0, 5.0]), torch.tensor([0.0, 0.0, 0.0])
    assert ClippedSquare(4.0)(prediction, y).tolist() == [0, 1, 4]
    expected = [1 - math.exp(-((e / 2) ** 2)) for e in (0.0, 1.0, 5.0)]
    assert SaturatingSquare(2.0)(prediction, y).tolist() == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("loss", [ClippedSquare(0.7), SaturatingSquare(1.3), SaturatingSquare()])
@pytest.mark.parametrize(("mean", "variance"), [(0.2, 0.09), (-1.5, 2.0), (0.4, 1e-4), (0.3, 0.0), (9.0, 0.5)])
def test_the_expected_loss_is_the_integral_over_the_prediction(
    loss: ClippedSquare | SaturatingSquare, mean: float, variance: float
) -> None:
    y = 0.4
    got = loss.expected(*torch.tensor([mean, variance, y], dtype=torch.float64)).item()
    if variance == 0:
        point = loss(*torch.tensor([mean, y], dtype=torch.float64))
        assert got == pytest.approx(point.item(), rel=1e-14)
        return

    def integrand(z: float) -> float:
        value = mean + math.sqrt(variance) * z
        square = (value - y) ** 2
        of_row = min(square, 0.7) if isinstance(loss, ClippedSquare) else 1 - math.exp(-square / loss.scale**2)
        return float(of_row * stats.norm.pdf(z))

    kinks = [(y - mean + sign * math.sqrt(0.7)) / math.sqrt(variance) for sign in (-1, 1)]
    edges = [-12.0, *sorted(kink for kink in kinks if abs(kink) < 12), 12.0]
    pieces = itertools.pairwise(edges)
    expected = sum(integrate.quad(integrand, low, high, epsabs=1e-13)[0] for low, high in pieces)
    assert got == pytest.approx(expected, rel=1e-8, abs=1e-11)


@pytest.mark.parametrize("name", list(LOSSES))
def test_losses_have_names_and_keep_their_range(name: str) -> None:
    loss = loss_named(name, **({"limit": 2.0} if name == "clipped-square" else {}))
    generator = torch.Generator().manual_seed(0)
    if isinstance(loss, ZeroOne | ClippedNLL):
        values = loss(20 * torch.randn(500, 3, generator=generator).log_softmax(-1), torch.zeros(500).long())
    else:
        assert isinstance(loss, ClippedSquare | SaturatingSquare)
        values = loss(20 * torch.randn(500, generator=generator), torch.zeros(500))
    assert values.dtype == torch.float64
    assert loss.low <= values.min() < values.max() <= loss.high
    assert not loss.convex


def test_what_bounds_nothing_is_refused() -> None:
    for low, high, what in ((0.0, math.inf, "must be bounded"), (math.nan, 1.0, "bounded"), (1.0, 1.0, "low < high")):
        with pytest.raises(AssumptionError, match=what):
            LossRange("a loss", low, high)
    for p_min in (0.0, 1.0, -1.0, math.nan):
        with pytest.raises(AssumptionError, match="p_min"):
            ClippedNLL(p_min)
    for bad in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(AssumptionError, match="limit must be positive and finite"):
            ClippedSquare(bad)
        with pytest.raises(AssumptionError, match="scale must be positive and finite"):
            SaturatingSquare(bad)


def test_trivial_risks_are_those_of_uniform_guesses_and_of_the_mean() -> None:
    assert ZeroOne().trivial(10) == pytest.approx(0.9) and ZeroOne().trivial(1) == 0.0
    uniform = torch.full((4, 10), 0.1, dtype=torch.float64).log()
    for p_min in (1e-5, 0.3):
        loss = ClippedNLL(p_min)
        assert loss(uniform, torch.arange(4)).mean().item() == pytest.approx(loss.trivial(10), rel=1e-12)
    y = torch.randn(100_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = 1.7 * (y - y.mean()) / y.std(unbiased=False)
    zero = torch.zeros_like(y)
    for square in (SaturatingSquare(1.3), ClippedSquare(4.0), ClippedSquare(1e9)):
        assert square(zero, y).mean().item() <= square.trivial(1.7**2) * (1 + 1e-12)
    assert ClippedSquare(1e9)(zero, y).mean().item() == pytest.approx(1.7**2, rel=1e-12)
    sign = torch.tensor([-1.0, 1.0])  # where Jensen's inequality is an equality
    assert SaturatingSquare(2.0)(torch.zeros(2), sign).mean().item() == pytest.approx(SaturatingSquare(2.0).trivial())
