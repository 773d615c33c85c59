"""Averages over real rows, and what no metric hides."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from pyro.distributions import Normal, Stable
from torch.distributions import Distribution

from pacbayes_fl.data.transforms import Transform
from pacbayes_fl.errors import DataError, ShapeError
from pacbayes_fl.metrics.rows import masked_mean, real_labels
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.censored import CensoredMixture
from pacbayes_fl.posteriors.classes import ClassMixture
from pacbayes_fl.posteriors.functions.conformal import Banded
from pacbayes_fl.posteriors.predictive import NormalMixture
from pacbayes_fl.posteriors.sampled import SampledMixture
from pacbayes_fl.posteriors.transformed import TransformedMixture
from pacbayes_fl.results.metrics import of_task


def test_averages_see_real_rows_only() -> None:
    values = torch.tensor([[1.0, 2.0, math.nan], [4.0, math.inf, -4.0], [5.0, 5.0, 5.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True, False], [True, False, True], [False, False, False]])
    got = masked_mean(values, mask)
    assert got[0] == 1.5 and got[1] == 0.0 and got[2].isnan()


LOG_WEIGHTS = torch.tensor([[0.4, 0.6], [0.5, 0.5]], dtype=torch.float64).log()
MEANS, SPREAD = torch.zeros(2, 2, 4, dtype=torch.float64), torch.ones(2, 2, 4, dtype=torch.float64)
Y = torch.tensor([[-1.0, 0.3, 2.0, 2.0]] * 2, dtype=torch.float64)  # the ends of those that have some among them
LOW, HIGH = torch.full((2,), -1.0).double(), torch.full((2,), 2.0).double()


def banded(mixture: NormalMixture) -> NormalMixture:
    return Banded(mixture.log_weights, mixture.means, mixture.variances, torch.stack((Y - 1.0, Y + 1.0)))


def sampled(mixture: NormalMixture) -> SampledMixture:
    pairs = zip(mixture.means.unbind(1), mixture.stds.unbind(1), strict=True)
    return SampledMixture(mixture.log_weights, tuple(Normal(*pair, validate_args=False) for pair in pairs), NOISE)


def unknown_cdf(mixture: NormalMixture) -> SampledMixture:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Distribution, "_validate_args", False)
        stable = Stable(1.5, 0.0, mixture.stds[:, 0], mixture.means[:, 0], validate_args=False)
    return SampledMixture(torch.zeros(2, 1).double(), (stable,), NOISE)


NOISE = Noise(0, 0, (3, 8))
KINDS: dict[str, Callable[[NormalMixture], Any]] = {
    "normal": lambda mixture: mixture,
    "banded": banded,
    "censored": lambda mixture: CensoredMixture(mixture, LOW, HIGH),
    "transformed": lambda mixture: TransformedMixture(
        mixture, Transform("log1p"), torch.full((2,), 3.0).double(), torch.ones(2).double(), LOW, HIGH
    ),
    "sampled": sampled,
    "unknown": unknown_cdf,
}


@pytest.mark.law
@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("spoilt", ["mean", "variance"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", of_task("regression"))
def test_a_prediction_that_is_no_number_is_no_score(name: str, kind: str, spoilt: str, place: int) -> None:
    """One row of one client: of errors of a mean it is that mean which has to be a number."""
    metric, every = of_task("regression")[name], torch.ones(2, 4, dtype=torch.bool)
    mixture = NormalMixture(LOG_WEIGHTS, MEANS.clone(), SPREAD.clone())
    whole = metric(KINDS[kind](mixture), Y, every)
    (mixture.means if spoilt == "mean" else mixture.variances)[0, 0, place] = math.nan
    predictive = KINDS[kind](mixture)
    result = metric(predictive, Y, every)
    of_mean = name in ("rmse", "rsmse") and not bool(predictive.mean[0, place].isnan())
    torch.testing.assert_close(result[1], whole[1], equal_nan=True)
    assert of_mean or result[0].isnan()
    elsewhere = every.clone()
    elsewhere[0, place] = False
    torch.testing.assert_close(
        metric(predictive, Y, elsewhere), metric(KINDS[kind](NormalMixture(LOG_WEIGHTS, MEANS, SPREAD)), Y, elsewhere)
    )


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("name", of_task("classification"))
def test_a_probability_that_is_no_number_is_no_score(name: str, place: int) -> None:
    log_probs = torch.tensor([[[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]]] * 2, dtype=torch.float64).log()
    log_probs[0, 1, place] = math.nan
    result = of_task("classification")[name](ClassMixture(log_probs), torch.tensor([[0, 2]] * 2), torch.ones(2, 2) > 0)
    assert result[0].isnan() and result[1].isfinite()


def test_no_columns_at_all_is_no_row() -> None:
    assert masked_mean(torch.zeros(2, 0), torch.zeros(2, 0, dtype=torch.bool)).isnan().all()


def test_labels_are_checked_on_real_rows_only() -> None:
    predictive = ClassMixture(torch.full((2, 3, 4), 0.25).log())
    mask = torch.tensor([[True, True, False], [True, False, False]])
    y = torch.tensor([[3, 0, -1], [2, 9, 100]])
    got = real_labels(predictive, y.int(), mask)
    assert got.dtype == torch.int64 and got.tolist() == [[3, 0, 0], [2, 0, 0]]
    for label in (-1, 4):
        with pytest.raises(DataError, match=rf"labels 0 to 3, got {label} \(client 1, row 0\)"):
            real_labels(predictive, torch.tensor([[0, 0, 0], [label, 0, 0]]), mask)


def test_labels_must_be_integers_and_shapes_must_agree() -> None:
    predictive = ClassMixture(torch.full((2, 3, 4), 0.25).log())
    y, mask = torch.zeros(2, 3, dtype=torch.int64), torch.ones(2, 3, dtype=torch.bool)
    for wrong in (y.double(), y.bool()):
        with pytest.raises(ShapeError, match="y must hold integer labels"):
            real_labels(predictive, wrong, mask)
    with pytest.raises(ShapeError, match="mask must be bool"):
        real_labels(predictive, y, mask.long())
    with pytest.raises(ShapeError, match=r"mask must be \[K N\]"):
        real_labels(predictive, y, mask[:, :2])
    with pytest.raises(ShapeError, match=r"predictive\.probs must be \[K N C\]"):
        real_labels(predictive, y[:, :2], mask[:, :2])
