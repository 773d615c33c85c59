"""Mixtures of likelihoods of any kind against scipy.stats, draw by draw and client by client."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from pyro import distributions as d
from scipy import optimize, special, stats
from torch import Tensor

from pacbayes_fl.errors import ShapeError, StudyError
from pacbayes_fl.noise import Engine, Noise
from pacbayes_fl.posteriors import univariate
from pacbayes_fl.posteriors.predictive import NormalMixture
from pacbayes_fl.posteriors.sampled import SampledMixture
from tests.posteriors.test_univariate import COUNTS, DENSITIES, Wedge, a, b, p

IDS, S, K, N = (4, 9), 3, 2, 3
NOISE = Noise(3, 0, IDS)
WEIGHTS = torch.tensor([[0.2, 0.5, 0.3], [0.1, 0.1, 0.8]], dtype=torch.float64)
LEVELS = torch.tensor([0.001, 0.1, 0.5, 0.9, 0.999], dtype=torch.float64)


def tensor(array: Any) -> Tensor:
    return torch.as_tensor(np.broadcast_to(array, (K, N)).copy())


def shifted(kind: Any, oracle: Any, **parameters: Any) -> tuple[SampledMixture, list[Any]]:
    """Mix a kind at parameters that are rolled over the rows: another distribution for every draw."""
    each = [{name: np.roll(value, s) for name, value in parameters.items()} for s in range(S)]
    components = tuple(kind(**{name: tensor(value) for name, value in one.items()}) for one in each)
    return SampledMixture(WEIGHTS.log(), components, NOISE), [oracle(**one) for one in each]


MIXTURES: dict[str, tuple[SampledMixture, list[Any]]] = {
    "poisson": shifted(d.Poisson, lambda rate: stats.poisson(rate), rate=a),
    "negative-binomial": shifted(
        lambda total_count, probs: d.NegativeBinomial(total_count, probs=probs),
        lambda total_count, probs: stats.nbinom(total_count, 1 - probs),
        total_count=a,
        probs=p,
    ),
    "bernoulli": shifted(lambda probs: d.Bernoulli(probs), lambda probs: stats.bernoulli(probs), probs=p),
    "binomial": shifted(lambda probs: d.Binomial(7, probs), lambda probs: stats.binom(7, probs), probs=p),
    "student-t": shifted(
        d.StudentT, lambda df, loc, scale: stats.t(df, loc, scale), df=a + 2.5, loc=b, scale=p
    ),
    "gamma": shifted(
        d.Gamma, lambda concentration, rate: stats.gamma(concentration, scale=1 / rate), concentration=a, rate=b
    ),
    "log-normal": shifted(d.LogNormal, lambda loc, scale: stats.lognorm(scale, scale=np.exp(loc)), loc=b, scale=p),
    "laplace": shifted(d.Laplace, lambda loc, scale: stats.laplace(loc, scale), loc=a, scale=b),
    "beta": shifted(
        d.Beta, lambda concentration1, concentration0: stats.beta(concentration1, concentration0),
        concentration1=a, concentration0=b + 1,
    ),
    "normal": shifted(d.Normal, lambda loc, scale: stats.norm(loc, scale), loc=a, scale=b),
}  # fmt: skip
every = pytest.mark.parametrize("name", MIXTURES)


def mix(parts: Any) -> Any:
    return sum(WEIGHTS[:, s : s + 1].numpy() * part for s, part in enumerate(parts))


@every
def test_density_distribution_function_and_moments_are_those_of_the_mixture(name: str) -> None:
    result, oracles = MIXTURES[name]
    mean = mix(one.mean() for one in oracles)
    second = mix(one.var() + one.mean() ** 2 for one in oracles)
    torch.testing.assert_close(result.mean, tensor(mean), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(result.variance, tensor(second - mean**2), rtol=1e-8, atol=1e-11)
    for value in (-1.0, 0.0, 0.25, 1.0, 2.0, 5.5, 40.0):
        y = torch.full((K, N), value, dtype=torch.float64)
        cdf = tensor(mix(one.cdf(value) for one in oracles))
        torch.testing.assert_close(result.cdf(y), cdf, rtol=1e-9, atol=1e-13)
        density = [one.pmf(value) if result.discrete else one.pdf(value) for one in oracles]
        if np.isfinite(density).all():
            torch.testing.assert_close(result.log_prob(y).exp(), tensor(mix(density)), rtol=1e-8, atol=1e-14)
        under = mix(one.cdf(value) - (one.pmf(value) if result.discrete else 0.0) for one in oracles)
        torch.testing.assert_close(result.below(y), tensor(under), rtol=1e-8, atol=1e-12)
    torch.testing.assert_close(result.cdf(torch.stack((y, y)))[1], result.cdf(y))


@every
def test_quantiles_are_the_smallest_targets_that_reach_the_level(name: str) -> None:
    result, oracles = MIXTURES[name]
    quantiles = result.quantile(LEVELS)
    assert quantiles.shape == (len(LEVELS), K, N)
    for level, quantile in zip(LEVELS.tolist(), quantiles, strict=True):
        reached, before = (
            mix(one.cdf((quantile - step).numpy()) for one in oracles) for step in (0.0, float(result.discrete))
        )
        if result.discrete:
            assert torch.equal(quantile, quantile.round())
            assert (reached >= level * (1 - 1e-12)).all() and (before < level).all()
        else:
            np.testing.assert_allclose(reached, level, rtol=1e-9)


@pytest.mark.law
@every
def test_draws_have_the_distribution_and_belong_to_their_client_and_row(name: str) -> None:
    result, _ = MIXTURES[name]
    many = result.sample(3000, Noise(5, 1, IDS))
    assert many.shape == (3000, K, N)
    for y in result.quantile(LEVELS[1:4]):
        share, expected = (many <= y).double().mean(0), result.cdf(y)
        assert ((share - expected).abs() < 4.5 * (expected * (1 - expected) / 3000).sqrt() + 1e-9).all()
    apart = many[:, 0, 0] - many[:, 0, 0].mean(), many[:, 0, 1] - many[:, 0, 1].mean()  # rows are independent
    assert ((apart[0] * apart[1]).mean().abs() < 4.5 * apart[0].std() * apart[1].std() / math.sqrt(3000)).all()
    alone = SampledMixture(result.log_weights[1:], tuple(map(second_client, result.components)), Noise(3, 0, IDS[1:]))
    torch.testing.assert_close(alone.sample(7, Noise(5, 1, IDS[1:])), result.sample(7, Noise(5, 1, IDS))[:, 1:, :2])
    assert torch.equal(result.sample(7, 1), result.sample(7, Noise(1, 0, range(K))))  # a seed will do
    assert not torch.equal(result.sample(7, 1), result.sample(7, 2)) and result.sample(0, 1).shape == (0, K, N)


def second_client(one: Any) -> Any:
    """Return the same distribution of the second client's first two rows."""
    names = {
        "NegativeBinomial": ("total_count", "probs"),
        "Bernoulli": ("probs",),
        "Binomial": ("total_count", "probs"),
    }
    chosen = names.get(type(one).__name__, tuple(type(one).arg_constraints))
    return type(one)(**{name: getattr(one, name)[1:, :2] for name in chosen})


@pytest.mark.parametrize("engine", ["philox", "generators"])
def test_draws_of_both_engines(engine: Engine) -> None:
    result, _ = MIXTURES["poisson"]
    drawn = result.sample(2000, Noise(5, 1, IDS, engine=engine))
    assert ((drawn.mean(0) - result.mean).abs() < 4.5 * (result.variance / 2000).sqrt()).all()


def test_normals_agree_with_the_closed_form() -> None:
    result, _ = MIXTURES["normal"]
    means, variances = (
        torch.stack([getattr(one, name) for one in result.components], 1) for name in ("mean", "variance")
    )
    closed = NormalMixture(WEIGHTS.log(), means, variances)
    y = tensor(a + 1)
    for one, other in (
        (result.log_prob(y), closed.log_prob(y)),
        (result.cdf(y), closed.cdf(y)),
        (result.mean, closed.mean),
        (result.variance, closed.variance),
        (result.sample(9, Noise(1, 0, IDS)).shape, closed.sample(9, Noise(1, 0, IDS)).shape),
    ):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
    # between two components the density falls to 1e-7, where the last bit of a cdf moves a quantile by 1e-9
    torch.testing.assert_close(result.quantile(LEVELS), closed.quantile(LEVELS), rtol=1e-9, atol=1e-12)


def test_moments_that_do_not_exist_are_no_numbers() -> None:
    for df, mean, variance in ((0.8, math.nan, math.nan), (1.5, 1.0, math.inf), (2.0, 1.0, math.inf), (3.0, 1.0, 3.0)):
        one = d.StudentT(tensor(df), tensor(1.0), tensor(1.0))
        result = SampledMixture(WEIGHTS.log(), (one,) * S, NOISE)
        np.testing.assert_allclose(result.mean.numpy(), mean)
        np.testing.assert_allclose(result.variance.numpy(), variance)
    heavy = SampledMixture(WEIGHTS.log(), (d.InverseGamma(tensor(0.5), tensor(1.0)),) * S, NOISE)
    assert heavy.mean.isposinf().all() and heavy.variance.isposinf().all()


def test_a_draw_of_no_weight_counts_for_nothing() -> None:
    broken = d.StudentT(tensor(0.5), tensor(1e300), tensor(1.0))
    none = torch.tensor([[0.0, -math.inf], [0.0, -math.inf]], dtype=torch.float64)
    good = d.StudentT(tensor(3.0), tensor(1.0), tensor(1.0))
    result = SampledMixture(none, (good, broken), NOISE)
    alone = SampledMixture(none[:, :1], (good,), NOISE)
    y = tensor(0.3)
    for one, other in (
        (result.mean, alone.mean),
        (result.variance, alone.variance),
        (result.log_prob(y), alone.log_prob(y)),
    ):
        torch.testing.assert_close(one, other)
    torch.testing.assert_close(result.quantile(LEVELS), alone.quantile(LEVELS), rtol=1e-7, atol=1e-9)


def test_far_targets_keep_their_density() -> None:
    result, _ = MIXTURES["poisson"]
    y = tensor(4000.0)
    expected = special.logsumexp(
        [np.log(WEIGHTS[:, s : s + 1].numpy()) + stats.poisson(np.roll(a, s)).logpmf(4000) for s in range(S)], 0
    )
    torch.testing.assert_close(result.log_prob(y), tensor(expected), rtol=1e-11, atol=0)
    assert result.log_prob(y).isfinite().all() and result.log_prob(tensor(-1.0)).isneginf().all()


def test_units_change_everything_alike_and_twice() -> None:
    result, _ = MIXTURES["gamma"]
    loc, scale = torch.tensor([-3.0, 5.0]).double(), torch.tensor([0.5, 40.0]).double()
    y = result.quantile(torch.tensor([0.4]).double())[0]
    once = result.rescale(loc, scale)
    twice = once.rescale(scale, scale)
    for moved, at, wide in (
        (once, loc.view(-1, 1), scale.view(-1, 1)),
        (twice, (scale + scale * loc).view(-1, 1), scale.square().view(-1, 1)),
    ):
        there = at + wide * y
        torch.testing.assert_close(moved.mean, at + wide * result.mean)
        torch.testing.assert_close(moved.variance, wide.square() * result.variance)
        torch.testing.assert_close(moved.cdf(there), result.cdf(y), rtol=1e-8, atol=0)
        torch.testing.assert_close(moved.log_prob(there), result.log_prob(y) - wide.log(), rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(moved.quantile(LEVELS), at + wide * result.quantile(LEVELS))
        torch.testing.assert_close(moved.sample(3, 1), at + wide * result.sample(3, 1))


@pytest.mark.parametrize("name", COUNTS)
def test_counts_have_no_other_unit(name: str) -> None:
    result = SampledMixture(torch.zeros(K, 1).double(), (COUNTS[name][0],), NOISE)
    one = torch.ones(K).double()
    assert result.rescale(0 * one, one) is result
    for loc, scale in ((one, one), (0 * one, 2 * one)):
        refused = rf"{type(COUNTS[name][0]).__name__} targets are whole numbers.* by run_rounds, join and metrics"
        with pytest.raises(StudyError, match=refused):
            result.rescale(loc, scale)


def test_kinds_with_finitely_many_values_are_classes_too() -> None:
    result, oracles = MIXTURES["bernoulli"]
    probs = result.probs
    assert probs.shape == (K, N, 2)
    torch.testing.assert_close(probs[..., 1], tensor(mix(one.mean() for one in oracles)))
    torch.testing.assert_close(result.entropy, -(probs * probs.log()).sum(-1))
    assert MIXTURES["binomial"][0].probs.shape == (K, N, 8)
    for name in ("poisson", "gamma"):
        with pytest.raises(StudyError, match="targets are no classes"):
            _ = MIXTURES[name][0].probs


def test_a_density_alone_is_known_by_draws() -> None:
    result = SampledMixture(WEIGHTS.log(), tuple(Wedge(tensor(np.roll(a, s))) for s in range(S)), NOISE)
    assert not result.exact
    oracles = [stats.triang(1, 0, np.roll(a, s)) for s in range(S)]
    for level, quantile in zip(LEVELS.tolist(), result.quantile(LEVELS), strict=True):
        share = mix(one.cdf(quantile.numpy()) for one in oracles)
        np.testing.assert_allclose(share, level, atol=5 * math.sqrt(level * (1 - level) / 4096) + 1e-3)
        np.testing.assert_allclose(result.cdf(quantile).numpy(), level, atol=1 / 2048)
    stacked = result.cdf(result.quantile(LEVELS))
    assert stacked.shape == (len(LEVELS), K, N) and torch.equal(stacked[1], result.cdf(result.quantile(LEVELS)[1]))
    assert torch.equal(result.quantile(LEVELS), result.quantile(LEVELS))
    error = (result.variance / 3000).sqrt()
    assert ((result.sample(3000, 1).mean(0) - tensor(mix(one.mean() for one in oracles))).abs() < 6 * error).all()
    assert torch.equal(result.sample(9, 1), result.sample(9, 1)) and not torch.equal(
        result.sample(9, 1), result.sample(9, 2)
    )


@pytest.mark.parametrize("name", DENSITIES)
def test_every_quantile_inverts_the_distribution_function(name: str) -> None:
    result = SampledMixture(torch.zeros(K, 1).double(), (DENSITIES[name][0],), NOISE)
    level = LEVELS.view(-1, 1, 1).expand(-1, K, N)
    fine = 1e-6 if name == "beta" else 1e-10  # next to 1 its quantiles are closer than numbers are
    torch.testing.assert_close(result.cdf(result.quantile(LEVELS)), level, rtol=1e-8, atol=fine)
    assert result.exact


def test_quantiles_agree_with_a_root_of_scipy_s_mixture() -> None:
    result, oracles = MIXTURES["student-t"]
    for k in range(K):
        for n in range(N):
            share = lambda y, k=k, n=n: mix(one.cdf(y) for one in oracles)[k, n] - 0.3  # noqa: E731
            root = optimize.brentq(share, -100, 100, xtol=1e-13)
            assert float(result.quantile(torch.tensor([0.3], dtype=torch.float64))[0, k, n]) == pytest.approx(
                root, abs=1e-9
            )


def test_what_does_not_fit_is_refused() -> None:
    one = COUNTS["poisson"][0]
    for weights, components in (
        (WEIGHTS.log(), (one,)),
        (WEIGHTS.log()[:1], (one,) * S),
        (WEIGHTS.log()[:, :0], ()),
        (WEIGHTS.log(), (one, one, d.Poisson(tensor(1.0)[:, :1]))),
        (WEIGHTS.log()[:, :1], (d.Dirichlet(torch.ones(K, N, 2)),)),
    ):
        with pytest.raises(ShapeError, match="log_weights must be"):
            SampledMixture(weights, components, NOISE)


def test_known_kinds_are_not_estimated() -> None:
    assert all(univariate.known(one, torch.device("cpu")) for one, _ in (COUNTS | DENSITIES).values())


def test_a_mixture_shows_its_kind_in_one_line() -> None:
    assert repr(MIXTURES["poisson"][0]) == "SampledMixture(3 Poisson [2, 3])"
