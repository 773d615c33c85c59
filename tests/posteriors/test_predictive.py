"""The predictive mixture: closed forms, torch's own mixture, and draws that belong to the client."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyro
import pyro.distributions as d
import pytest
import torch
from scipy import stats
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF
from torch import Tensor
from torch.distributions import Categorical, MixtureSameFamily, Normal

from pacbayes_fl.data.transforms import TRANSFORMS, Transform
from pacbayes_fl.errors import StudyError
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.censored import CensoredMixture
from pacbayes_fl.posteriors.functions.conformal import Banded
from pacbayes_fl.posteriors.predictive import NormalMixture, RegressionPredictive
from pacbayes_fl.posteriors.sampled import SampledMixture
from pacbayes_fl.posteriors.transformed import TransformedMixture

K, P, N = 3, 4, 5
IDS = (11, 2**40, 7)


def mixture(seed: int = 0) -> NormalMixture:
    generator = torch.Generator().manual_seed(seed)
    raw = torch.randn(3, K, P, N, generator=generator, dtype=torch.float64)
    return NormalMixture(torch.log_softmax(raw[0, :, :, 0] * 2, 1), 3 * raw[1], raw[2].exp())


def reference(mixture: NormalMixture) -> MixtureSameFamily:
    weights = mixture.log_weights.exp().unsqueeze(1).expand(-1, mixture.means.shape[2], -1)
    return MixtureSameFamily(Categorical(weights), Normal(mixture.means.mT, mixture.variances.sqrt().mT))


def part(mixture: NormalMixture, k: int, rows: int) -> NormalMixture:
    return NormalMixture(
        *(t[k : k + 1] for t in (mixture.log_weights, mixture.means[..., :rows], mixture.variances[..., :rows]))
    )


def two_gps(equal: bool = False) -> NormalMixture:
    """Mix two GPs on three rows by their evidence, computed by scikit-learn (PAC-PFL eq. 37)."""
    x, y = np.array([[0.0], [1.0], [2.5]]), np.array([0.3, -0.2, 1.1])
    evidence, means, variances = [], [], []
    for mean, lengthscale, noise in ((0.0, 1.0, 0.25), (0.2, 0.5, 0.09)):
        gp = GaussianProcessRegressor(RBF(lengthscale), alpha=noise, optimizer=None).fit(x, y - mean)
        at, std = gp.predict([[1.7]], return_std=True)
        evidence.append(gp.log_marginal_likelihood_value_)
        means.append(at[0] + mean)
        variances.append(std[0] ** 2 + noise)
    weights = torch.log_softmax(torch.tensor([evidence], dtype=torch.float64), 1)
    columns = (torch.tensor(values, dtype=torch.float64).view(1, 2, 1) for values in (means, variances))
    return NormalMixture(torch.full_like(weights, -math.log(2)) if equal else weights, *columns)


def test_two_gps_mixed_by_their_evidence() -> None:
    mixed, half = two_gps(), torch.tensor([[0.5]], dtype=torch.float64)
    assert mixed.weights[0].tolist() == pytest.approx([0.4251141621, 0.5748858379], rel=1e-9)
    assert float(mixed.mean) == pytest.approx(0.30815997887655733, rel=1e-10)
    assert float(mixed.variance) == pytest.approx(0.7319276527696585, rel=1e-10)
    assert float(mixed.cdf(half)) == pytest.approx(0.5892967236534183, rel=1e-10)
    assert -float(mixed.log_prob(half)) == pytest.approx(0.7610952967261092, rel=1e-10)
    assert float(mixed.quantile(torch.tensor([0.1]))) == pytest.approx(-0.779073626432134, rel=1e-7)
    assert float(mixed.quantile(torch.tensor([0.1], dtype=torch.float64))) == pytest.approx(
        -0.779073626432134, rel=1e-10
    )
    equal = two_gps(equal=True)
    assert float(equal.mean) == pytest.approx(0.3124742311172327, rel=1e-10)
    assert float(equal.cdf(half)) == pytest.approx(0.589052342775024, rel=1e-10)
    assert -float(equal.log_prob(half)) == pytest.approx(0.7404721006424908, rel=1e-10)


def test_moments_density_and_cdf_are_torch_s() -> None:
    ours = mixture()
    theirs = reference(ours)
    y = torch.linspace(-8, 8, K * N, dtype=torch.float64).view(K, N)
    for mine, expected in (
        (ours.mean, theirs.mean),
        (ours.variance, theirs.variance),
        (ours.log_prob(y), theirs.log_prob(y)),
        (ours.cdf(y), theirs.cdf(y)),
    ):
        torch.testing.assert_close(mine, expected, rtol=1e-12, atol=1e-13)
    many = torch.stack([y, y + 1, -y])
    torch.testing.assert_close(ours.cdf(many), torch.stack([ours.cdf(row) for row in many]), rtol=0, atol=0)


def test_far_out_the_log_density_is_still_a_number() -> None:
    y = torch.full((K, N), 1e4, dtype=torch.float64)
    ours = mixture()
    assert ours.log_prob(y).isfinite().all() and not ours.log_prob(y).exp().any()
    torch.testing.assert_close(ours.log_prob(y), reference(ours).log_prob(y), rtol=1e-12, atol=0)


def test_quantiles_invert_the_cdf() -> None:
    ours = mixture()
    level = torch.tensor([1e-9, 0.025, 0.1, 0.5, 0.9, 0.975, 1 - 1e-9], dtype=torch.float64)
    quantiles = ours.quantile(level)
    assert quantiles.shape == (7, K, N) and (quantiles.diff(dim=0) > 0).all()
    torch.testing.assert_close(ours.cdf(quantiles), level.view(-1, 1, 1).expand_as(quantiles), rtol=1e-9, atol=1e-14)
    y = torch.linspace(-4, 4, K * N, dtype=torch.float64).view(K, N)
    for k, n in ((0, 0), (1, 3), (2, 4)):
        own = ours.quantile(ours.cdf(y)[k, n].view(1))[0, k, n]
        assert float(own) == pytest.approx(float(y[k, n]), abs=1e-9)


@pytest.mark.parametrize("spread", [0.01, 1.0, 30.0, 1e4])
def test_quantiles_are_those_of_halving_a_bracket(spread: float) -> None:
    """Newton's steps alone would leave where two components are far apart, and the density between them is 0."""
    generator = torch.Generator().manual_seed(3)
    log_weights = torch.randn(5, 4, generator=generator, dtype=torch.float64).log_softmax(1)
    means = spread * torch.randn(5, 4, 40, generator=generator, dtype=torch.float64)
    ours = NormalMixture(log_weights, means, torch.randn(5, 4, 40, generator=generator, dtype=torch.float64).exp())
    level = torch.tensor([1e-6, 0.025, 0.5, 0.975], dtype=torch.float64)
    edge = torch.full((4, 5, 40), 60 + 6 * spread, dtype=torch.float64)
    low, high = -edge, edge
    for _ in range(80):
        middle = 0.5 * (low + high)
        below = ours.cdf(middle) < level.view(-1, 1, 1)
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    torch.testing.assert_close(ours.quantile(level), low, rtol=1e-8, atol=1e-8)


def test_quantiles_end_where_no_number_is_nearer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Close to 0 too, where numbers lie closer than a sum of components is known."""
    generator, asked = torch.Generator().manual_seed(0), []
    means = torch.randn(24, 1, 200, generator=generator, dtype=torch.float64)
    means = means + 0.2 * torch.randn(24, 4, 200, generator=generator, dtype=torch.float64)
    variances = 0.1 + torch.rand(24, 4, 200, generator=generator, dtype=torch.float64)
    log_weights = torch.randn(24, 4, generator=generator, dtype=torch.float64).log_softmax(1)
    ours = NormalMixture(log_weights, means, variances)
    level = torch.linspace(0.025, 0.975, 20, dtype=torch.float64)
    exact = torch.special.ndtr
    monkeypatch.setattr(torch.special, "ndtr", lambda z: asked.append(z) or exact(z))
    quantiles = ours.quantile(level)
    assert len(asked) < 16, len(asked)  # without an end of their own some of the 96,000 take 57, or 128
    torch.testing.assert_close(ours.cdf(quantiles), level.view(-1, 1, 1).expand_as(quantiles), rtol=1e-14, atol=1e-15)


def test_one_component_has_the_quantiles_of_a_normal() -> None:
    alone = NormalMixture(
        *(t[:, :1] for t in (torch.zeros(K, 1, dtype=torch.float64), mixture().means, mixture().variances))
    )
    level = torch.tensor([0.003, 0.3, 0.8], dtype=torch.float64)
    expected = stats.norm(alone.means[:, 0].numpy(), alone.variances[:, 0].sqrt().numpy()).ppf(
        level.view(3, 1, 1).numpy()
    )
    torch.testing.assert_close(alone.quantile(level), torch.tensor(expected), rtol=1e-12, atol=1e-12)


def test_components_far_apart_and_of_no_weight_do_no_harm() -> None:
    log_weights = torch.tensor([[0.25, 0.75, 0.0]], dtype=torch.float64).log()
    means = torch.tensor([[[-1e3], [1e3], [1e8]]], dtype=torch.float64)
    ours = NormalMixture(log_weights, means, torch.tensor([[[1e-6], [1e-6], [1.0]]], dtype=torch.float64))
    assert ours.log_prob(means[:, 0]).isfinite().all() and ours.mean.tolist() == [[500.0]]
    quantiles = ours.quantile(torch.tensor([0.125, 0.375], dtype=torch.float64)).flatten()
    assert quantiles.tolist() == pytest.approx([-1e3, 1e3 + 1e-3 * stats.norm.ppf(1 / 6)], abs=1e-8)
    assert not (ours.sample(4000, Noise(0, 1, (5,))) > 1e6).any()


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["philox", "generators"])
def test_draws_have_the_moments_and_the_law_of_the_mixture(engine: str) -> None:
    ours, draws = mixture(1), 20000
    sample = ours.sample(draws, Noise(4, 0, IDS, engine=engine))  # type: ignore[arg-type]
    assert sample.shape == (draws, K, N)
    error = (sample.mean(0) - ours.mean) / (ours.variance / draws).sqrt()
    assert float(error.abs().max()) < 4
    fourth = (sample - ours.mean).pow(4).mean(0) - ours.variance.square()
    assert float(((sample.var(0) - ours.variance) / (fourth / draws).sqrt()).abs().max()) < 4
    for k in range(K):
        for n in range(N):
            assert stats.kstest(ours.cdf(sample)[:, k, n].numpy(), "uniform").pvalue > 1e-4
    flat = ((sample - ours.mean) / ours.variance.sqrt()).flatten(1)
    correlation = torch.corrcoef(flat.T) - torch.eye(K * N)
    assert float(correlation.abs().max()) < 4.5 / math.sqrt(draws)  # rows and clients are drawn independently
    lag = (flat[1:] * flat[:-1]).mean(0)
    assert float(lag.abs().max()) < 4.5 / math.sqrt(draws)


def test_draws_depend_on_the_client_and_not_on_padding_or_company() -> None:
    ours = mixture()
    together = ours.sample(6, Noise(3, 2, IDS))
    for k in range(K):
        for rows in (1, 3, N):
            alone = part(ours, k, rows).sample(6, Noise(3, 2, IDS[k : k + 1]))
            torch.testing.assert_close(alone, together[:, k : k + 1, :rows], rtol=1e-14, atol=0)
    turned = NormalMixture(*(t.flip(0) for t in (ours.log_weights, ours.means, ours.variances)))
    torch.testing.assert_close(turned.sample(6, Noise(3, 2, IDS[::-1])), together.flip(1), rtol=1e-14, atol=0)


def test_a_seed_will_do_for_draws() -> None:
    ours = mixture()
    assert torch.equal(ours.sample(6, 3), ours.sample(6, Noise(3, 0, range(K))))
    assert not torch.equal(ours.sample(6, 3), ours.sample(6, 4))


def test_a_change_of_units_changes_everything_alike() -> None:
    ours = mixture()
    loc, scale = (
        torch.tensor([10.0, -3.0, 0.0], dtype=torch.float64),
        torch.tensor([4.0, 0.01, 1.0], dtype=torch.float64),
    )
    scaled = ours.rescale(loc, scale)

    def there(y: Tensor) -> Tensor:
        return loc.unsqueeze(-1) + scale.unsqueeze(-1) * y

    y = torch.linspace(-3, 3, K * N, dtype=torch.float64).view(K, N)
    level = torch.tensor([0.1, 0.7], dtype=torch.float64)
    for mine, expected in (
        (scaled.mean, there(ours.mean)),
        (scaled.variance, scale.square().unsqueeze(-1) * ours.variance),
        (scaled.log_prob(there(y)), ours.log_prob(y) - scale.log().unsqueeze(-1)),
        (scaled.cdf(there(y)), ours.cdf(y)),
        (scaled.quantile(level), there(ours.quantile(level))),
        (scaled.sample(3, Noise(1, 1, IDS)), there(ours.sample(3, Noise(1, 1, IDS)))),
    ):
        torch.testing.assert_close(mine, expected, rtol=1e-10, atol=1e-10)


def test_float32_stays_float32_where_it_is_given() -> None:
    ours = mixture()
    small = NormalMixture(*(t.float() for t in (ours.log_weights, ours.means, ours.variances)))
    y = torch.zeros(K, N)
    for mine, exact in (
        (small.mean, ours.mean),
        (small.log_prob(y), ours.log_prob(y.double())),
        (small.sample(5, Noise(1, 1, IDS)), ours.sample(5, Noise(1, 1, IDS))),
    ):
        assert mine.dtype == torch.float32
        torch.testing.assert_close(mine.double(), exact, rtol=1e-4, atol=1e-4)


def test_the_mixture_is_what_metrics_ask_for() -> None:
    predictive: RegressionPredictive = mixture()  # mypy compares the signatures
    assert all(hasattr(predictive, name) for name in dir(RegressionPredictive) if not name.startswith("_"))


def test_a_component_without_spread_is_a_point() -> None:
    """What lies at a point is up to it, and its density there is infinite; a normal beside it stays a normal."""
    weights = torch.tensor([[0.25, 0.75]], dtype=torch.float64).log()
    means, variances = (torch.tensor([[[one] * 3, [other] * 3]]).double() for one, other in ((1.0, 0.0), (0.0, 4.0)))
    y = torch.tensor([[0.5, 1.0, 1.5]], dtype=torch.float64)
    mixed, normal = NormalMixture(weights, means, variances), stats.norm(0.0, 2.0)
    expected = 0.75 * normal.cdf(y.numpy()) + 0.25 * (y.numpy() >= 1.0)
    assert mixed.cdf(y).numpy() == pytest.approx(expected, rel=1e-12)
    density = [math.log(0.75 * normal.pdf(0.5)), math.inf, math.log(0.75 * normal.pdf(1.5))]
    assert mixed.log_prob(y)[0].tolist() == pytest.approx(density, rel=1e-12)
    level = torch.tensor([0.1, 0.6, 0.7, 0.9], dtype=torch.float64)  # the point has those from 0.52 to 0.77
    quantiles = mixed.quantile(level)[:, 0, 0].tolist()
    assert quantiles == pytest.approx([normal.ppf(0.1 / 0.75), 1.0, 1.0, normal.ppf(0.65 / 0.75)], rel=1e-9)
    point = NormalMixture(torch.zeros(1, 1).double(), means[:, :1], variances[:, :1])
    assert point.cdf(y).tolist() == [[0.0, 1.0, 1.0]] and point.log_prob(y).tolist() == [
        [-math.inf, math.inf, -math.inf]
    ]
    assert point.quantile(level)[:, 0, 0].tolist() == [1.0] * 4


INF = math.inf


def sampled(kind: Any, *parameters: float) -> SampledMixture:
    """Mix two equal components of a kind, in units of its own."""
    ones = torch.ones(K, N, dtype=torch.float64)
    weights = torch.full((K, 2), -math.log(2), dtype=torch.float64)
    return SampledMixture(weights, (kind(*(ones * one for one in parameters)),) * 2, Noise(0, 0, IDS))


def transformed(name: str) -> tuple[TransformedMixture, float, float]:
    transform, (one, zero) = Transform(name, -1.0, 2.0), (torch.ones(K).double(), torch.zeros(K).double())
    low, high = transform.domain
    return TransformedMixture(mixture(), transform, zero, one, zero - INF, zero + INF), low, high


def unspread() -> NormalMixture:
    """Mix numbers that are certain: 0, 1, ... of the components."""
    means = torch.arange(P).double().view(1, P, 1).expand(K, P, N)
    return NormalMixture(torch.full((K, P), -math.log(P)).double(), means, torch.zeros(K, P, N).double())


BAND = torch.tensor([-0.5, 0.5]).double().view(2, 1, 1).expand(2, K, N)
SUPPORTS: dict[str, tuple[RegressionPredictive, float, float]] = {
    "normal": (mixture(), -INF, INF),
    "certain": (unspread(), 0.0, P - 1.0),
    "banded": (Banded(mixture().log_weights, mixture().means, mixture().variances, BAND), -INF, INF),
    "censored": (CensoredMixture(mixture(), torch.zeros(K).double(), torch.full((K,), INF).double()), 0.0, INF),
    **{name: transformed(name) for name in TRANSFORMS},
    "poisson": (sampled(d.Poisson, 3.0), 0.0, INF),
    "bernoulli": (sampled(d.Bernoulli, 0.3), 0.0, 1.0),
    "gamma": (sampled(d.Gamma, 2.0, 1.0), 0.0, INF),
    "beta": (sampled(d.Beta, 2.0, 3.0), 0.0, 1.0),
    "student-t": (sampled(d.StudentT, 3.0, 0.0, 1.0), -INF, INF),
    "laplace": (sampled(d.Laplace, 0.0, 1.0), -INF, INF),
    "von-mises": (sampled(d.VonMises, 0.0, 1.0), -INF, INF),  # no distribution function, of draws
}
every_support = pytest.mark.parametrize("name", SUPPORTS)


@every_support
def test_the_outermost_quantiles_are_the_ends_of_what_is_possible(name: str) -> None:
    one, low, high = SUPPORTS[name]
    for level, end in ((0.0, low), (1.0, high)):
        torch.testing.assert_close(one.quantile(level), torch.full((K, N), end).double(), rtol=1e-12, atol=1e-12)
    inside = one.quantile(torch.tensor([0.0, 0.3, 0.7, 1.0]).double())
    assert bool((inside.diff(dim=0) >= 0).all() and inside[1:3].isfinite().all())


@every_support
def test_a_level_is_a_number_or_a_tensor_of_any_shape(name: str) -> None:
    one = SUPPORTS[name][0]
    levels = torch.tensor([[0.1, 0.25], [0.5, 0.9], [0.0, 1.0]], dtype=torch.float64)
    known = one.quantile(levels.flatten())
    assert torch.equal(one.quantile(levels), known.view(3, 2, K, N))
    assert torch.equal(one.quantile(0.25), known[1]) and torch.equal(one.quantile(levels[0, 1]), known[1])
    assert torch.equal(one.quantile(0), known[4]) and torch.equal(one.quantile(torch.tensor(1)), known[5])


@pytest.mark.parametrize("kind", [d.Normal, d.StudentT, d.Laplace, d.Poisson])
def test_of_what_is_not_known_no_quantile_is(kind: Any) -> None:
    wanting = {d.Normal: (math.nan, 1.0), d.StudentT: (3.0, math.nan, 1.0), d.Laplace: (math.nan, 1.0)}
    with pyro.validation_enabled(False):
        found = sampled(kind, *wanting.get(kind, (math.nan,))).quantile(torch.tensor([0.0, 0.3, 0.7, 1.0]).double())
    assert bool(found.isnan().all())


@every_support
@pytest.mark.parametrize("level", [-0.1, 1.5, 95, math.nan])
def test_what_is_no_level_is_refused(name: str, level: float) -> None:
    with pytest.raises(StudyError, match=rf"^level must be from 0 to 1, got {level:g} "):
        SUPPORTS[name][0].quantile(torch.tensor([0.5, level]))
