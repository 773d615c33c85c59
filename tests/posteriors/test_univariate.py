"""Distribution functions, quantiles, moments and draws of single targets against scipy.stats and integrals."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from pyro import distributions as d
from scipy import integrate, stats
from torch import Tensor
from torch.distributions import transforms

from pacbayes_fl.posteriors import univariate

SHAPE = K, N = 2, 3
A = torch.tensor([[0.4, 2.0, 7.0], [1.0, 3.5, 30.0]], dtype=torch.float64)
B = torch.tensor([[1.5, 0.3, 2.0], [0.2, 1.0, 4.0]], dtype=torch.float64)
P = torch.tensor([[0.02, 0.5, 0.9], [0.3, 0.7, 0.99]], dtype=torch.float64)
MOST = torch.tensor([[1.0, 5, 9], [3, 40, 7]], dtype=torch.float64)
ONE = torch.ones(SHAPE, dtype=torch.float64)
a, b, p = A.numpy(), B.numpy(), P.numpy()
CPU = torch.device("cpu")


class Inflated:
    """scipy has no zero-inflated distribution: a gate at 0, else the base."""

    def __init__(self, gate: Any, base: Any) -> None:
        self.gate, self.base = gate, base

    def cdf(self, y: Any) -> Any:
        return self.gate * (np.asarray(y) >= 0) + (1 - self.gate) * self.base.cdf(y)

    def mean(self) -> Any:
        return (1 - self.gate) * self.base.mean()

    def var(self) -> Any:
        return (1 - self.gate) * (self.base.var() + self.base.mean() ** 2) - self.mean() ** 2

    def pmf(self, y: Any) -> Any:
        return self.gate * (np.asarray(y) == 0) + (1 - self.gate) * self.base.pmf(y)


COUNTS: dict[str, tuple[Any, Any]] = {
    "poisson": (d.Poisson(A), stats.poisson(a)),
    "negative-binomial": (d.NegativeBinomial(A, probs=P), stats.nbinom(a, 1 - p)),
    "gamma-poisson": (d.GammaPoisson(A, B), stats.nbinom(a, b / (1 + b))),
    "binomial": (d.Binomial(MOST, P), stats.binom(MOST.numpy(), p)),
    "beta-binomial": (d.BetaBinomial(A, B, 6 * ONE), stats.betabinom(6, a, b)),
    "beta-binomials": (d.BetaBinomial(A, B, MOST), stats.betabinom(MOST.numpy(), a, b)),
    "geometric": (d.Geometric(P), stats.geom(p, loc=-1)),
    "bernoulli": (d.Bernoulli(P), stats.bernoulli(p)),
    "zero-inflated-poisson": (d.ZeroInflatedPoisson(A, gate=P), Inflated(p, stats.poisson(a))),
    "zero-inflated-negative-binomial": (
        d.ZeroInflatedNegativeBinomial(A, probs=P.flip(1), gate=P),
        Inflated(p, stats.nbinom(a, 1 - p[:, ::-1])),
    ),
}  # fmt: skip
DENSITIES: dict[str, tuple[Any, Any]] = {
    "normal": (d.Normal(A, B), stats.norm(a, b)),
    "student-t": (d.StudentT(A + 0.1, B, A), stats.t(a + 0.1, b, a)),
    "gamma": (d.Gamma(A, B), stats.gamma(a, scale=1 / b)),
    "chi2": (d.Chi2(A), stats.chi2(a)),
    "beta": (d.Beta(A, B), stats.beta(a, b)),
    "log-normal": (d.LogNormal(B, P), stats.lognorm(p, scale=np.exp(b))),
    "laplace": (d.Laplace(A, B), stats.laplace(a, b)),
    "cauchy": (d.Cauchy(A, B), stats.cauchy(a, b)),
    "exponential": (d.Exponential(B), stats.expon(scale=1 / b)),
    "half-normal": (d.HalfNormal(B), stats.halfnorm(scale=b)),
    "half-cauchy": (d.HalfCauchy(B), stats.halfcauchy(scale=b)),
    "uniform": (d.Uniform(-A, B + 0.23), stats.uniform(-a, a + b + 0.23)),
    "weibull": (d.Weibull(B, A), stats.weibull_min(a, scale=b)),
    "gumbel": (d.Gumbel(A, B), stats.gumbel_r(a, b)),
    "pareto": (d.Pareto(B, A), stats.pareto(a, scale=b)),
    "logistic": (d.Logistic(A, B), stats.logistic(a, b)),
    "inverse-gamma": (d.InverseGamma(A, B), stats.invgamma(a, scale=b)),
    "fisher-snedecor": (d.FisherSnedecor(A + 4.5, B + 4.5), stats.f(a + 4.5, b + 4.5)),
    "folded-normal": (d.FoldedDistribution(d.Normal(A, B)), stats.foldnorm(a / b, scale=b)),
    "shifted-t": (
        d.TransformedDistribution(d.StudentT(A + 3.0), [transforms.AffineTransform(1.0, -2.0)]),
        stats.t(a + 3, 1, 2),
    ),
}
ALL = COUNTS | DENSITIES
LEVELS = torch.tensor([1e-6, 0.01, 0.3, 0.5, 0.8, 0.975, 1 - 1e-6], dtype=torch.float64).view(-1, 1, 1)


def targets(name: str) -> Tensor:
    """Return targets over and beyond the support, halves between whole numbers among them."""
    body = torch.arange(-2.0, 12.0, 0.5, dtype=torch.float64)
    far = torch.tensor([-math.inf, -1e3, 1e-3, 0.999, 80.0, 1e4, math.inf], dtype=torch.float64)
    return torch.cat((body, far)).view(-1, 1, 1).expand(-1, K, N)


@pytest.mark.parametrize("name", ALL)
def test_the_distribution_function_is_scipy_s(name: str) -> None:
    one, oracle = ALL[name]
    y = targets(name)
    result = univariate.cdf(one, y)
    with np.errstate(over="ignore"):
        expected = torch.as_tensor(oracle.cdf(y.numpy()))
    assert result.dtype == torch.float64 and univariate.known(one, CPU)
    torch.testing.assert_close(result, expected, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("name", COUNTS)
def test_quantiles_of_counts_are_the_smallest_that_reach_the_level(name: str) -> None:
    one, oracle = COUNTS[name]
    result = univariate.quantile(one, LEVELS)
    assert result.shape == (len(LEVELS), K, N) and torch.equal(result, result.round())
    levels = LEVELS.numpy()
    assert (oracle.cdf(result.numpy()) >= levels * (1 - 1e-12)).all()
    assert (oracle.cdf(result.numpy() - 1) < levels).all()


@pytest.mark.parametrize("name", COUNTS)
def test_many_quantiles_of_counts_are_those_of_each_level(name: str) -> None:
    """Many levels are looked up in a table, few are bisected: the same numbers."""
    one, _ = COUNTS[name]
    level = torch.rand(60, K, N, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    result = univariate.quantile(one, level)
    assert torch.equal(result, torch.cat([univariate.quantile(one, part) for part in level.split(5)]))


@pytest.mark.parametrize("name", DENSITIES)
def test_quantiles_of_numbers_are_scipy_s(name: str) -> None:
    one, oracle = DENSITIES[name]
    result = univariate.quantile(one, LEVELS)
    torch.testing.assert_close(result, torch.as_tensor(oracle.ppf(LEVELS.numpy())), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", ALL)
def test_moments_are_scipy_s_and_say_where_there_are_none(name: str) -> None:
    one, oracle = ALL[name]
    mean, variance = univariate.moments(one, torch.Generator(), CPU)
    rough = 5e-5 if name == "folded-normal" else 1e-9  # by quadrature
    for result, known in ((mean, oracle.mean()), (variance, oracle.var())):
        expected = torch.as_tensor(np.broadcast_to(known, SHAPE).copy())
        defined = expected.isfinite()
        torch.testing.assert_close(result[defined], expected[defined], rtol=rough, atol=1e-12)
        assert not result[~defined].isfinite().any()


@pytest.mark.parametrize("name", ALL)
def test_impossible_targets_have_no_probability(name: str) -> None:
    one, oracle = ALL[name]
    for value in (-1.0, 0.5, 1.5, 3.0, 1e3):
        y = torch.full(SHAPE, value, dtype=torch.float64)
        density = oracle.pmf(y.numpy()) if name in COUNTS else oracle.pdf(y.numpy())
        result = univariate.log_prob(one, y)
        torch.testing.assert_close(result.exp(), torch.as_tensor(density), rtol=1e-8, atol=1e-14)
        torch.testing.assert_close(
            univariate.mass(one, y), result.exp() if name in COUNTS else torch.zeros_like(y), rtol=0, atol=0
        )


def test_targets_between_zero_and_a_density_have_an_atom() -> None:
    one = d.ZeroInflatedDistribution(d.Gamma(A, B), gate=P)
    base, y = stats.gamma(a, scale=1 / b), torch.tensor([-1.0, 0.0, 0.7, 5.0]).double().view(-1, 1, 1).expand(-1, K, N)
    expected = torch.as_tensor(p * (y.numpy() >= 0) + (1 - p) * base.cdf(y.numpy()))
    torch.testing.assert_close(univariate.cdf(one, y), expected, rtol=1e-12, atol=1e-15)
    assert torch.equal(univariate.mass(one, y[1]), P) and not univariate.mass(one, y[2]).any()
    level = torch.tensor([0.01, 0.6, 0.995], dtype=torch.float64).view(-1, 1, 1)
    rest = (level - P) / (1 - P)
    wanted = torch.where(rest <= 0, 0.0, torch.as_tensor(base.ppf(rest.clamp_min(0).numpy())))
    torch.testing.assert_close(univariate.quantile(one, level), wanted, rtol=1e-9, atol=1e-12)


def test_a_mixture_within_the_likelihood_is_summed() -> None:
    share = torch.tensor([0.3, 0.7], dtype=torch.float64).expand(K, N, 2)
    one = d.MixtureSameFamily(d.Categorical(share), d.Poisson(torch.stack((A, B), -1)))
    y = targets("poisson")
    expected = 0.3 * stats.poisson(a).cdf(y.numpy()) + 0.7 * stats.poisson(b).cdf(y.numpy())
    torch.testing.assert_close(univariate.cdf(one, y), torch.as_tensor(expected), rtol=1e-11, atol=1e-15)


def test_a_distribution_that_was_expanded_stays_what_it_was() -> None:
    one = d.torch_distribution.ExpandedDistribution(d.Poisson(A[0]), torch.Size(SHAPE))
    y = torch.full(SHAPE, 3.0).double()
    torch.testing.assert_close(univariate.cdf(one, y), torch.as_tensor(stats.poisson(a[0]).cdf(y.numpy())))


class Wedge(d.TorchDistribution):
    """p(y) = 2 y / c^2 on [0, c]: somebody's own distribution, with a density and a sampler alone."""

    support = torch.distributions.constraints.nonnegative
    arg_constraints: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self, c: Tensor) -> None:
        self.c = c
        super().__init__(c.shape)

    def log_prob(self, value: Tensor) -> Tensor:
        return torch.where(value <= self.c, (2 * value / self.c.square()).log(), -math.inf)

    def sample(self, sample_shape: torch.Size = torch.Size()) -> Tensor:  # noqa: B008
        return self.c * torch.rand(sample_shape + self.c.shape).sqrt()


def test_a_kind_without_a_distribution_function_is_known_by_its_draws() -> None:
    one = Wedge(A)
    assert not univariate.known(one, CPU)
    with pytest.raises(NotImplementedError):
        univariate.cdf(one, A)
    mean, variance = univariate.moments(one, torch.Generator().manual_seed(0), CPU)
    assert ((mean - 2 / 3 * A).abs() < 5 * A / math.sqrt(18 * 4096)).all()
    torch.testing.assert_close(variance, A.square() / 18, rtol=0.1, atol=0)


def test_moments_of_an_angle_are_those_of_a_number() -> None:
    """The circular variance 1 - I_1(b) / I_0(b) is not the spread of y around a mean that lies in [-pi, pi]."""
    y = torch.linspace(-math.pi, math.pi, 20001, dtype=torch.float64).view(-1, 1, 1)
    one = d.VonMises(2.5 * ONE, B)
    density = one.log_prob(y).exp()
    mean = torch.trapezoid(y * density, y, dim=0)
    result, variance = univariate.moments(one, torch.Generator().manual_seed(0), CPU)
    spread = torch.trapezoid((y - mean).square() * density, y, dim=0)
    assert ((result - mean).abs() < 5 * (spread / 4096).sqrt()).all()
    torch.testing.assert_close(variance, spread, rtol=0.15, atol=0)


SAMPLERS = {
    **{name: one for name, (one, _) in ALL.items()},
    "von-mises": d.VonMises(A, B),
    "stable": d.Stable(1.5 * ONE, 0 * ONE),
    "asymmetric-laplace": d.AsymmetricLaplace(A, B, 1 + P),
    "relaxed": d.RelaxedBernoulli(torch.tensor(0.5).double(), probs=P),
    "own": Wedge(A),
    "mixture": d.MixtureSameFamily(d.Categorical(torch.full((K, N, 2), 0.5)), d.Poisson(torch.stack((A, B), -1))),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_draws_come_from_the_generator_alone(name: str) -> None:
    one, before = SAMPLERS[name], torch.random.get_rng_state()
    first, again, other = (univariate.draws(one, 40, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert first.shape == (40, K, N) and torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("name", ["poisson", "gamma", "student-t", "zero-inflated-poisson", "beta-binomial"])
def test_draws_have_the_distribution_that_they_are_of(name: str) -> None:
    one, _ = ALL[name]
    drawn, y = univariate.draws(one, 4000, torch.Generator().manual_seed(3)), A.round()
    expected = univariate.cdf(one, y)
    error = (expected * (1 - expected) / 4000).sqrt()
    assert (((drawn <= y).double().mean(0) - expected).abs() < 4.5 * error + 1e-9).all()


def test_broken_parameters_give_no_number_and_end() -> None:
    bad = A.clone()
    bad[0, 1] = math.nan
    with torch.no_grad():
        for one in (d.Poisson(bad, validate_args=False), d.Gamma(bad, B, validate_args=False)):
            result = univariate.quantile(one, LEVELS[2:4])
            assert result[:, 0, 1].isnan().all() and result[:, 1].isfinite().all()


def test_float32_parameters_give_float64_numbers() -> None:
    one, wide = d.Gamma(A.float(), B.float()), d.Gamma(A, B)
    y = torch.full(SHAPE, 1.5)
    assert univariate.cdf(one, y).dtype == univariate.log_prob(one, y).dtype == torch.float64
    torch.testing.assert_close(univariate.cdf(one, y), univariate.cdf(wide, y.double()), rtol=1e-5, atol=1e-7)


def test_an_integral_of_a_density_is_its_distribution_function() -> None:
    one = d.InverseGamma(torch.tensor([[2.5]]).double(), torch.tensor([[1.3]], dtype=torch.float64))
    density = lambda y: float(univariate.log_prob(one, torch.tensor([[y]], dtype=torch.float64)).exp())  # noqa: E731
    expected, _ = integrate.quad(density, 0, 0.8)
    assert float(univariate.cdf(one, torch.tensor([[0.8]], dtype=torch.float64))) == pytest.approx(expected, rel=1e-8)
