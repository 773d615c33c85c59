"""Mixtures that are pushed forward, against scipy's lognormal, numerical integration and censored mixtures."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from scipy import integrate, stats
from torch import Tensor

from pacbayes_fl.data.transforms import Transform
from pacbayes_fl.metrics.calibration import calibration_error
from pacbayes_fl.metrics.regression import crps, nlpd
from pacbayes_fl.posteriors.censored import CensoredMixture
from pacbayes_fl.posteriors.predictive import NormalMixture
from pacbayes_fl.posteriors.transformed import TransformedMixture
from tests.data.test_transforms import EACH

F64 = torch.float64
INF = math.inf


def mixture() -> NormalMixture:
    weights = torch.tensor([[0.2, 0.5, 0.3], [0.6, 0.3, 0.1]], dtype=F64)
    means = torch.tensor([[[0.1, 1.0], [-0.4, -2.0], [2.0, 0.0]], [[0.0, 1.0], [0.5, 1.0], [-1.0, 2.0]]], dtype=F64)
    stds = torch.tensor([[[0.5, 0.1], [1.0, 0.6], [0.02, 1.0]], [[1.0, 0.3], [0.1, 0.1], [0.8, 0.5]]], dtype=F64)
    return NormalMixture(weights.log(), means, stds.square())


def pushed(
    of: Transform, low: float = -INF, high: float = INF, inner: NormalMixture | None = None
) -> TransformedMixture:
    inner = mixture() if inner is None else inner
    full = torch.ones(len(inner.means), dtype=F64)
    return TransformedMixture(inner, of, 0.0 * full, full, low * full, high * full)


def normal(mean: float, std: float, n: int = 1) -> NormalMixture:
    one = torch.ones(1, 1, n, dtype=F64)
    return NormalMixture(torch.zeros(1, 1, dtype=F64), mean * one, std**2 * one)


TRANSFORMED = pytest.mark.parametrize("of", EACH, ids=str)


@TRANSFORMED
def test_the_density_integrates_to_the_distribution_function(of: Transform) -> None:
    z = torch.linspace(-6.0, 6.0, 6001, dtype=F64)
    y = of.inverse(z).unsqueeze(0)
    one = pushed(of, inner=normal(0.3, 0.9, len(z)))
    total = torch.cumulative_trapezoid(one.log_prob(y).exp(), y, dim=1)
    torch.testing.assert_close(total, one.cdf(y)[:, 1:] - one.cdf(y)[:, :1], rtol=0, atol=1e-6)


@TRANSFORMED
def test_moments_are_those_of_numerical_integration(of: Transform) -> None:
    one = pushed(of)
    weights = one.inner.weights

    def moment(power: int, mean: float, std: float) -> float:
        def height(u: float) -> float:
            return float(of.inverse(torch.tensor(mean + std * u, dtype=F64))) ** power * math.exp(-0.5 * u * u)

        inside = sorted({-12.0, 12.0, max(-12.0, min(12.0, -mean / std))})
        total = sum(integrate.quad(height, a, b, epsabs=1e-11, epsrel=1e-11)[0] for a, b in pairwise(inside))
        return float(total) / math.sqrt(2 * math.pi)

    for k, n in ((0, 0), (1, 1)):
        cells = [(float(one.inner.means[k, p, n]), float(one.inner.stds[k, p, n])) for p in range(3)]
        first, second = (
            sum(float(weights[k, p]) * moment(power, *cell) for p, cell in enumerate(cells)) for power in (1, 2)
        )
        assert float(one.mean[k, n]) == pytest.approx(first, rel=1e-8, abs=1e-8)
        assert float(one.variance[k, n]) == pytest.approx(second - first**2, rel=1e-7, abs=1e-8)


@pytest.mark.parametrize("std", [1e-6, 0.1, 1.0, 4.0])
def test_one_normal_under_the_logarithm_is_scipys_lognormal(std: float) -> None:
    one, known = pushed(Transform("log1p"), inner=normal(0.7, std)), stats.lognorm(std, loc=-1, scale=math.exp(0.7))
    y = torch.tensor([[1.3]], dtype=F64)
    assert float(one.mean) == pytest.approx(known.mean(), rel=1e-8)
    assert float(one.variance) == pytest.approx(known.var(), rel=1e-8)
    assert float(one.log_prob(y)) == pytest.approx(known.logpdf(1.3), rel=1e-8)
    assert float(one.cdf(y)) == pytest.approx(known.cdf(1.3), abs=1e-12)
    level = torch.tensor([0.025, 0.5, 0.9], dtype=F64)
    assert one.quantile(level).flatten().tolist() == pytest.approx(known.ppf(level.numpy()).tolist(), rel=1e-9)
    # CRPS of a lognormal in closed form: Baran and Lerch, Q. J. R. Meteorol. Soc. 141, 2015, eq. 7
    w, scale = (math.log(2.3) - 0.7) / std, 2.0 * math.exp(0.7 + 0.5 * std**2)
    tails = stats.norm.cdf(w - std) + stats.norm.cdf(std / math.sqrt(2)) - 1
    expected = 2.3 * (2 * stats.norm.cdf(w) - 1) - scale * tails
    assert float(crps(one, y, torch.ones(1, 1, dtype=torch.bool))) == pytest.approx(expected, rel=1e-7, abs=1e-9)


def test_a_power_of_one_changes_nothing_also_between_bounds() -> None:
    of, mask = Transform("yeo-johnson", power=1.0), torch.ones(2, 2, dtype=torch.bool)
    y = torch.tensor([[0.3, -0.2], [0.9, 0.4]], dtype=F64)
    level = torch.tensor([0.02, 0.4, 0.97], dtype=F64)
    for low, high in ((-INF, INF), (-0.2, INF), (-0.2, 0.9)):
        one, full = pushed(of, low, high), torch.ones(2, dtype=F64)
        known = CensoredMixture(mixture(), low * full, high * full)
        torch.testing.assert_close(one.mean, known.mean, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(one.variance, known.variance, rtol=1e-8, atol=1e-9)
        for name in ("log_prob", "cdf", "below"):
            torch.testing.assert_close(getattr(one, name)(y), getattr(known, name)(y))
        torch.testing.assert_close(one.quantile(level), known.quantile(level))
        torch.testing.assert_close(one.sample(4, 3), known.sample(4, 3))
        for metric in (crps, nlpd, calibration_error):
            torch.testing.assert_close(metric(one, y, mask), metric(known, y, mask), rtol=1e-7, atol=1e-7)


@TRANSFORMED
def test_quantiles_and_draws_agree_with_the_distribution_function(of: Transform) -> None:
    one = pushed(of)
    level = torch.tensor([0.001, 0.3, 0.5, 0.8, 0.999], dtype=F64)
    torch.testing.assert_close(one.cdf(one.quantile(level)), level.view(-1, 1, 1).expand(-1, 2, 2))
    draws = one.sample(4000, 3)
    assert float((one.cdf(draws) - 0.5).mean(0).abs().max()) < 0.03
    low, high = of.domain
    assert draws.min() > low and draws.max() < high


@pytest.mark.law
@TRANSFORMED
def test_crps_is_the_pinball_loss_over_levels(of: Transform) -> None:
    one, y = pushed(of), torch.tensor([[0.3, -0.2], [2.9, 0.4]], dtype=F64)
    u = (torch.arange(2000, dtype=F64) + 0.5) / 2000
    level, density = u.square() * (3 - 2 * u), 6 * u * (1 - u)
    quantile = one.quantile(level)
    loss = ((y <= quantile).double() - level.view(-1, 1, 1)) * (quantile - y)
    expected = 2 * (density.view(-1, 1, 1) * loss).mean(0)
    torch.testing.assert_close(one.ranked_score(y), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("stds", [(0.02, 1.0), (0.3, 0.5, 0.7, 3.0), tuple(0.2 * 1.3**k for k in range(12))], ids=len)
def test_crps_of_components_of_all_widths_is_its_integral(stds: tuple[float, ...]) -> None:
    """As Student-t noise has them; in units of t, against scipy's adaptive rule on either side of the target."""
    of, width = Transform("log1p"), torch.tensor(stds, dtype=F64)
    shares = torch.full((1, len(stds)), 1 / len(stds), dtype=F64)
    inner = NormalMixture(shares.log(), torch.zeros(1, len(stds), 1, dtype=F64), width.square().view(1, -1, 1))
    y, t = torch.tensor([[1.5]], dtype=F64), math.log(2.5)

    def integrand(z: float, side: float) -> float:
        return float(torch.special.ndtr(side * z / width).mean() ** 2) * math.exp(z)

    ends = sorted({t, *(sign * cut * std for std in stds for cut in (0, 3, 14) for sign in (-1, 1))})
    parts = [
        integrate.quad(integrand, *pair, args=(1.0 if pair[0] < t else -1.0,), epsrel=1e-11) for pair in pairwise(ends)
    ]
    assert float(pushed(of, inner=inner).ranked_score(y)) == pytest.approx(sum(part for part, _ in parts), rel=1e-9)


@pytest.mark.law
@TRANSFORMED
def test_units_change_what_they_should(of: Transform) -> None:
    one, loc, scale = pushed(of, -0.5, 4.0), torch.tensor([5.0, -1.0], dtype=F64), torch.tensor([2.0, 0.5], dtype=F64)
    other, y = one.rescale(loc, scale), torch.tensor([[-0.3, 0.9], [0.1, 0.4]], dtype=F64)

    def moved(values: Tensor) -> Tensor:
        return loc[:, None] + scale[:, None] * values

    torch.testing.assert_close(other.mean, moved(one.mean))
    torch.testing.assert_close(other.variance, scale[:, None].square() * one.variance)
    torch.testing.assert_close(other.log_prob(moved(y)), one.log_prob(y) - scale[:, None].log())
    torch.testing.assert_close(other.ranked_score(moved(y)), scale[:, None] * one.ranked_score(y))


def test_outside_of_the_domain_there_is_nothing_and_at_its_ends_no_nan() -> None:
    one = pushed(Transform("logit", 0.0, 1.0))
    y = torch.tensor([[-0.5, 0.0], [1.0, 1.5]], dtype=F64)
    log, below = one.log_prob(y), one.cdf(y)
    assert log[0, 0] == log[1, 1] == -INF and not log.isnan().any()
    torch.testing.assert_close(below, torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=F64))


def test_components_without_spread_are_points() -> None:
    one = pushed(Transform("yeo-johnson"), inner=normal(0.7, 0.0))
    assert float(one.mean) == pytest.approx(1.35**2 - 1) and float(one.variance) == pytest.approx(0.0, abs=1e-15)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_what_is_too_large_for_a_number_is_infinite_and_not_left_out_of_averages(sign: float) -> None:
    of, y = Transform("yeo-johnson", power=1.0 - sign), torch.zeros(1, 1, dtype=F64)
    one = pushed(of, inner=normal(sign * 900.0, 3.0))
    assert float(one.mean) == sign * INF and float(one.variance) == INF and float(one.ranked_score(y)) == INF
    none = pushed(of, inner=normal(math.nan, 3.0))
    assert none.mean.isnan() and none.variance.isnan() and none.ranked_score(y).isnan()


def test_an_infinite_mean_is_on_the_side_where_targets_go_on_without_end() -> None:
    for of, end in (
        (Transform("log1p"), INF),
        (Transform("yeo-johnson", power=0.0), INF),
        (Transform("yeo-johnson", power=2.0), -INF),
    ):
        for mean in (-0.4, 0.4):
            wide = NormalMixture(
                torch.full((1, 2), math.log(0.5), dtype=F64),
                torch.full((1, 2, 1), mean, dtype=F64),
                torch.tensor([[[1.0], [1e4]]], dtype=F64),
            )
            assert float(pushed(of, inner=wide).mean) == end


@pytest.mark.law
@TRANSFORMED
def test_bounds_of_rows_are_those_of_each_alone(of: Transform) -> None:
    low, high = torch.tensor([[0.3, 0.1], [0.1, 0.2]], dtype=F64), torch.tensor([[0.6, 0.9], [0.7, 0.5]], dtype=F64)
    full, y = torch.ones(2, dtype=F64), torch.tensor([[0.6, 0.5], [0.1, 0.4]], dtype=F64)
    one = TransformedMixture(mixture(), of, 0.0 * full, full, low, high)
    level = torch.tensor([0.1, 0.9], dtype=F64)

    def told(by: TransformedMixture) -> dict[str, torch.Tensor]:
        return {"mean": by.mean, "variance": by.variance} | {
            name: getattr(by, name)(y) for name in ("log_prob", "cdf", "below", "ranked_score")
        }

    whole, quantiles = told(one), one.quantile(level)
    for k in range(2):
        for n in range(2):
            alone = pushed(of, float(low[k, n]), float(high[k, n]))
            for name, own in told(alone).items():
                assert float(whole[name][k, n]) == pytest.approx(float(own[k, n]), abs=1e-12), name
            assert torch.equal(quantiles[:, k, n], alone.quantile(level)[:, k, n])


def test_between_bounds_that_are_one_there_is_nothing_else() -> None:
    end = torch.tensor([0.5], dtype=F64)
    one = TransformedMixture(normal(0.7, 1.0), Transform("log1p"), torch.zeros(1).double(), end + 0.5, end, end)
    assert one.log_prob(end.view(1, 1)).item() == 0.0
