"""RMSE, RSMSE, NLPD and CRPS against numbers from scipy, numerical integration and Monte Carlo."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from pyro import distributions
from scipy import integrate, stats
from torch import Tensor

from pacbayes_fl.errors import ShapeError
from pacbayes_fl.metrics import crps, nlpd, regression, rmse, rsmse
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.predictive import NormalMixture, RegressionPredictive
from pacbayes_fl.posteriors.sampled import SampledMixture
from pacbayes_fl.results.metrics import of_task

Array = npt.NDArray[np.float64]
METRICS = of_task("regression")

MEAN = torch.tensor([[0.0, 1.0, -0.5, 2.0, 0.3]], dtype=torch.float64)
STD = torch.tensor([[1.0, 0.5, 0.8, 1.2, 0.4]], dtype=torch.float64)
Y = torch.tensor([[0.5, 0.2, -0.4, 3.5, 0.31]], dtype=torch.float64)
ALL = torch.ones(1, 5, dtype=torch.bool)


@dataclass(frozen=True)
class Gaussian:
    """A predictive that is no `NormalMixture`: what a user may bring."""

    mean: Tensor
    std: Tensor

    @property
    def variance(self) -> Tensor:
        return self.std.square()

    def log_prob(self, y: Tensor) -> Tensor:
        ratio = (y - self.mean) / self.std
        return -0.5 * ratio.square() - self.std.log() - 0.5 * math.log(2 * math.pi)

    def cdf(self, y: Tensor) -> Tensor:
        below: Tensor = torch.special.ndtr((y - self.mean) / self.std)
        return below

    def quantile(self, level: Tensor) -> Tensor:
        z: Tensor = torch.special.ndtri(level)
        return self.mean + self.std * z.view(-1, 1, 1)

    def sample(self, draws: int, noise: Noise | int) -> Tensor:
        raise NotImplementedError

    def rescale(self, loc: Tensor, scale: Tensor) -> Gaussian:
        raise NotImplementedError


def one_normal(mean: Tensor, std: Tensor) -> NormalMixture:
    return NormalMixture(mean.new_zeros(mean.shape[0], 1), mean.unsqueeze(1), std.square().unsqueeze(1))


def mixture(clients: int = 3, particles: int = 4, rows: int = 7) -> tuple[NormalMixture, Tensor]:
    generator = torch.Generator().manual_seed(3)
    draw = torch.randn(3, clients, particles, rows, generator=generator, dtype=torch.float64)
    weights = torch.log_softmax(torch.randn(clients, particles, generator=generator, dtype=torch.float64), 1)
    return NormalMixture(weights, 2 * draw[0], (0.3 + draw[1].abs()).square()), 2 * draw[2, :, 0]


@pytest.mark.quick
@pytest.mark.parametrize(
    ("predictive", "tolerance"), [(one_normal(MEAN, STD), 1e-12), (Gaussian(MEAN, STD), 1e-6)], ids=["mixture", "other"]
)
def test_published_numbers(predictive: RegressionPredictive, tolerance: float) -> None:
    assert rmse(predictive, Y, ALL).item() == pytest.approx(0.7937379920351553, abs=1e-12)
    assert rsmse(predictive, Y, ALL).item() == pytest.approx(0.5783492883675533, abs=1e-12)
    assert nlpd(predictive, Y, ALL).item() == pytest.approx(1.0277615518138016, abs=1e-12)  # in 40 digits
    assert crps(predictive, Y, ALL).item() == pytest.approx(0.4204891379268488, abs=tolerance)


def squared_gap(weight: Array, mean: Array, std: Array, target: float) -> float:
    below = integrate.quad(lambda z: float(weight @ stats.norm.cdf(z, mean, std)) ** 2, -40, target, limit=400)
    above = integrate.quad(lambda z: float(weight @ stats.norm.sf(z, mean, std)) ** 2, target, 40, limit=400)
    return float(below[0] + above[0])


def test_crps_of_a_mixture_is_the_integral_of_the_squared_cdf_gap() -> None:
    predictive, y = mixture(2, 3, 4)
    got = crps(predictive, y, torch.ones_like(y, dtype=torch.bool))
    expected = np.zeros(y.shape)
    for k in range(2):
        weight = predictive.log_weights[k].exp().numpy()
        for j in range(4):
            mean, std = predictive.means[k, :, j].numpy(), predictive.variances[k, :, j].sqrt().numpy()
            expected[k, j] = squared_gap(weight, mean, std, y[k, j].item())
    np.testing.assert_allclose(got.numpy(), expected.mean(1), rtol=1e-7)


def test_crps_of_a_mixture_agrees_with_draws() -> None:
    predictive, y = mixture(1, 3, 2)
    rng = np.random.default_rng(0)
    weight = predictive.log_weights[0].exp().numpy()
    score = []
    for j in range(2):
        component = rng.choice(3, size=(2, 400_000), p=weight / weight.sum())
        mean, std = predictive.means[0, :, j].numpy(), predictive.variances[0, :, j].sqrt().numpy()
        first, second = mean[component] + std[component] * rng.standard_normal(component.shape)
        score.append(np.abs(first - y[0, j].item()).mean() - 0.5 * np.abs(first - second).mean())
    got = crps(predictive, y, torch.ones(1, 2, dtype=torch.bool)).item()
    assert got == pytest.approx(float(np.mean(score)), abs=0.01)


def test_crps_of_any_other_predictive_is_within_its_named_tolerance() -> None:
    mean, std = torch.zeros(1, 9, dtype=torch.float64), torch.full((1, 9), 3.0, dtype=torch.float64)
    y = 3 * torch.tensor([[-6.0, -3.0, -1.0, -0.1, 0.0, 0.2, 0.9, 2.5, 6.0]], dtype=torch.float64)
    for j in range(9):
        only = torch.arange(9).unsqueeze(0) == j
        assert crps(Gaussian(mean, std), y, only).item() == pytest.approx(
            crps(one_normal(mean, std), y, only).item(), abs=3e-6
        )


def test_a_mixture_of_equal_components_scores_like_one() -> None:
    twice = NormalMixture(
        torch.tensor([[0.3, 0.7]], dtype=torch.float64).log(),
        MEAN.unsqueeze(1).expand(1, 2, 5),
        STD.square().unsqueeze(1).expand(1, 2, 5),
    )
    for name, metric in METRICS.items():
        torch.testing.assert_close(metric(twice, Y, ALL), metric(one_normal(MEAN, STD), Y, ALL), rtol=0, atol=1e-12)
        assert metric(twice, Y, ALL).dtype == torch.float64, name


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("garbage", [1e6, math.nan, math.inf])
def test_padding_has_no_influence(name: str, garbage: float) -> None:
    predictive, y = mixture(3, 2, 6)
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 0, 1, 1, 0, 1], [0, 0, 0, 1, 1, 1]], dtype=torch.bool)
    spoilt = NormalMixture(
        predictive.log_weights,
        predictive.means.masked_fill(~mask.unsqueeze(1), garbage),
        predictive.variances.masked_fill(~mask.unsqueeze(1), garbage),
    )
    metric = METRICS[name]
    got = metric(spoilt, y.masked_fill(~mask, garbage), mask)
    torch.testing.assert_close(got, metric(predictive, y, mask), rtol=0, atol=0)
    alone = NormalMixture(predictive.log_weights[2:], predictive.means[2:, :, 3:], predictive.variances[2:, :, 3:])
    torch.testing.assert_close(got[2:], metric(alone, y[2:, 3:], mask[2:, 3:]), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", METRICS)
def test_a_client_without_rows_gets_nan_and_disturbs_nobody(name: str) -> None:
    predictive, y = mixture(2, 2, 5)
    mask = torch.stack([torch.zeros(5, dtype=torch.bool), torch.ones(5, dtype=torch.bool)])
    got = METRICS[name](predictive, y, mask)
    assert got[0].isnan() and got[1].isfinite()


def test_rsmse_divides_by_the_population_spread_of_the_targets() -> None:
    mean = Y.mean().expand(1, 5)
    assert rsmse(Gaussian(mean, STD), Y, ALL).item() == pytest.approx(1.0, abs=1e-15)
    flat = torch.full((1, 5), 0.1, dtype=torch.float64)
    assert rsmse(Gaussian(MEAN, STD), flat, ALL).isnan().all()
    partly = torch.tensor([[True, False, False, False, False]])
    assert rsmse(Gaussian(MEAN, STD), Y, partly).isnan().all()


@pytest.mark.parametrize(("name", "power"), [("rsmse", 0), ("rmse", 1), ("crps", 1), ("ce", 0), ("coverage_95", 0)])
def test_change_of_units(name: str, power: int) -> None:
    predictive, y = mixture()
    mask = torch.ones_like(y, dtype=torch.bool)
    scaled = NormalMixture(predictive.log_weights, 1000 * predictive.means - 7, 1e6 * predictive.variances)
    expected = METRICS[name](predictive, y, mask) * 1000**power
    torch.testing.assert_close(METRICS[name](scaled, 1000 * y - 7, mask), expected, rtol=1e-9, atol=1e-12)


def test_nlpd_moves_by_the_logarithm_of_the_unit() -> None:
    moved = nlpd(one_normal(10 * MEAN, 10 * STD), 10 * Y, ALL) - nlpd(one_normal(MEAN, STD), Y, ALL)
    assert moved.item() == pytest.approx(math.log(10), abs=1e-12)


def test_nlpd_without_spread_is_infinite_where_a_target_is_missed_and_minus_that_where_none_is() -> None:
    point = one_normal(MEAN, torch.zeros_like(STD))
    hits, miss = MEAN.clone(), MEAN.clone()
    miss[0, 2] += 0.1
    assert nlpd(point, hits, ALL).item() == -math.inf and nlpd(point, miss, ALL).item() == math.inf
    assert nlpd(point, miss, ALL & (miss == MEAN)).item() == -math.inf  # whatever stands in padding
    assert nlpd(one_normal(MEAN.masked_fill(miss == MEAN, math.nan), 0 * STD), miss, ALL).isnan().all()


def test_crps_of_a_point_is_the_absolute_error() -> None:
    point = NormalMixture(torch.zeros(1, 1, dtype=torch.float64), MEAN.unsqueeze(1), torch.zeros(1, 1, 5).double())
    assert crps(point, Y, ALL).item() == pytest.approx((Y - MEAN).abs().mean().item(), abs=1e-15)
    assert crps(point, MEAN, ALL).item() == 0.0
    two = NormalMixture(
        torch.full((1, 2), 0.5, dtype=torch.float64).log(),
        torch.tensor([[[0.0], [2.0]]], dtype=torch.float64),
        torch.zeros(1, 2, 1, dtype=torch.float64),
    )
    got = crps(two, torch.ones(1, 1), torch.ones(1, 1, dtype=torch.bool))
    assert got.item() == pytest.approx(0.5, abs=1e-15)  # int of 1/4 over [0, 2]


def test_single_precision_predictions_are_scored_in_double() -> None:
    single = NormalMixture(torch.zeros(1, 1), MEAN.float().unsqueeze(1), STD.float().square().unsqueeze(1))
    for metric in METRICS.values():
        got = metric(single, Y.float(), ALL)
        assert got.dtype == torch.float64
        torch.testing.assert_close(got, metric(one_normal(MEAN, STD), Y, ALL), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", METRICS)
def test_shapes_that_disagree_are_refused(name: str) -> None:
    predictive = Gaussian(MEAN, STD)
    with pytest.raises(ShapeError, match=r"mask must be \[K N\]"):
        METRICS[name](predictive, Y, ALL[:, :4])
    with pytest.raises(ShapeError, match=r"predictive\.mean"):
        METRICS[name](predictive, Y[:, :4], ALL[:, :4])
    with pytest.raises(ShapeError, match="bool"):
        METRICS[name](predictive, Y, ALL.double())


def test_the_table_has_every_metric_in_the_order_of_result_files() -> None:
    assert list(METRICS) == ["rsmse", "rmse", "ce", "nlpd", "crps", "coverage_95"]


# likelihoods of other kinds ---------------------------------------------------------------------------------------


def counted(rates: Tensor, rows: int = 400) -> tuple[SampledMixture, Tensor, Any]:
    """Mix Poissons of two rates for every row of two clients, with targets drawn from the mixture itself."""
    components = tuple(distributions.Poisson(rate.expand(2, rows)) for rate in rates)
    weights = torch.tensor([[0.25, 0.75]], dtype=torch.float64).log().expand(2, 2)
    predictive = SampledMixture(weights, components, Noise(2, 0, (7, 5)))
    y = predictive.sample(1, Noise(3, 0, (7, 5)))[0]
    oracle = lambda z: 0.25 * stats.poisson(float(rates[0])).cdf(z) + 0.75 * stats.poisson(float(rates[1])).cdf(z)  # noqa: E731
    return predictive, y, oracle


RATES = torch.tensor([1.5, 6.0], dtype=torch.float64)
EVERY = torch.ones(2, 400, dtype=torch.bool)


def test_crps_of_counts_is_the_sum_over_whole_numbers() -> None:
    predictive, y, oracle = counted(RATES)
    z = np.arange(200)
    each = [float(((oracle(z) - (z >= target)) ** 2).sum()) for target in y.flatten().tolist()]
    expected = torch.tensor(each, dtype=torch.float64).view_as(y).mean(1)
    torch.testing.assert_close(crps(predictive, y, EVERY), expected, rtol=0.01, atol=0)


@pytest.mark.parametrize("draws", [2, 5, 1000])
def test_crps_by_draws_is_not_biased(draws: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 400 rows has draws of its own: their mean is the closed form of the normal, not 0.56 / S above it."""
    monkeypatch.setattr(regression, "_DRAWS", draws)
    normal = distributions.Normal(torch.zeros(2, 400).double(), 1.0)
    predictive = SampledMixture(torch.zeros(2, 1).double(), (normal,), Noise(2, 0, (7, 5)))
    y = torch.zeros(2, 400).double()
    exact = (math.sqrt(2) - 1) / math.sqrt(math.pi)
    result = crps(predictive, y, EVERY)
    assert ((result - exact).abs() < 4.5 * 0.6 / math.sqrt(400 * draws)).all()


@pytest.mark.parametrize("name", METRICS)
def test_padding_of_a_mixture_of_any_kind_has_no_influence(name: str) -> None:
    predictive, y, _ = counted(RATES, 20)
    mask = torch.arange(20).expand(2, 20) < torch.tensor([[20], [12]])
    rates = [one.rate for one in predictive.components]
    poissons = [distributions.Poisson(rate.masked_fill(~mask, math.nan), validate_args=False) for rate in rates]
    spoilt = SampledMixture(predictive.log_weights, tuple(poissons), predictive.noise)
    got = METRICS[name](spoilt, y.masked_fill(~mask, -3.5), mask)
    torch.testing.assert_close(got, METRICS[name](predictive, y, mask), rtol=0, atol=0)
    alone = SampledMixture(
        predictive.log_weights[1:],
        tuple(distributions.Poisson(rate[1:, :12]) for rate in rates),
        Noise(2, 0, (5,)),
    )
    torch.testing.assert_close(METRICS[name](alone, y[1:, :12], mask[1:, :12]), got[1:], rtol=0, atol=1e-12)


def test_scores_of_counts_against_scipy() -> None:
    predictive, y, _ = counted(RATES)
    density = 0.25 * stats.poisson(1.5).pmf(y.numpy()) + 0.75 * stats.poisson(6.0).pmf(y.numpy())
    torch.testing.assert_close(
        nlpd(predictive, y, EVERY), torch.as_tensor(-np.log(density).mean(1)), rtol=1e-11, atol=0
    )
    mean = 0.25 * 1.5 + 0.75 * 6.0
    torch.testing.assert_close(rmse(predictive, y, EVERY), (y - mean).square().mean(1).sqrt(), rtol=1e-11, atol=0)
    torch.testing.assert_close(rsmse(predictive, y, EVERY), rmse(predictive, y, EVERY) / y.std(1, unbiased=False))
    assert nlpd(predictive, y - 0.5, EVERY).isposinf().all()  # no count: it was held impossible


def test_what_has_no_mean_has_no_error_of_its_mean() -> None:
    cauchy = distributions.StudentT(torch.full((1, 5), 0.9).double(), MEAN, STD)
    predictive = SampledMixture(torch.zeros(1, 1).double(), (cauchy,), Noise(2, 0, (7,)))
    for metric in (rmse, rsmse, crps):
        assert metric(predictive, Y, ALL).isnan().all()
    assert nlpd(predictive, Y, ALL).isfinite().all()
