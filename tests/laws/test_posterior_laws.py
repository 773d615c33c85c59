"""Laws of every predictive that a method yields: mean, variance, density, cdf, quantiles and draws of numbers agree,
and so do probabilities, their logarithms and the entropy of labels.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from pacbayes_fl.methods import METHODS
from pacbayes_fl.noise import Engine, Noise
from pacbayes_fl.posteriors.classes import ClassMixture
from pacbayes_fl.posteriors.predictive import NormalMixture, RegressionPredictive
from tests.laws.cases import ALL, CLASSES, LABELLED, assert_close, scene

pytestmark = pytest.mark.law

LEVELS = torch.tensor([1e-6, 0.01, 0.1, 0.5, 0.8, 0.975, 1 - 1e-6], dtype=torch.float64)
ROWS = 5


def hard_mixture() -> NormalMixture:
    """Return components far apart, of different spread, one of no weight, over two clients and five rows."""
    weights = torch.tensor([[0.001, 0.999, 0.0], [0.5, 0.3, 0.2]], dtype=torch.float64)
    means = torch.tensor([-40.0, 3.0, 1e6], dtype=torch.float64).view(1, 3, 1).expand(2, 3, ROWS)
    means = torch.where(weights.unsqueeze(-1) > 0, means, 0.0) / torch.tensor([1.0, 1e5]).view(2, 1, 1)
    stds = torch.tensor([1e-3, 2.0, 1.0], dtype=torch.float64).view(1, 3, 1)
    stds = stds * torch.linspace(1, 2, ROWS, dtype=torch.float64)
    return NormalMixture(weights.log(), means, stds.expand(2, 3, ROWS).square())


def method_predictive(case: Any, d: int) -> Any:
    s = scene(case, d)
    posterior = s.method.personalise(s.message, s.clients, s.batch, s.noise(s.batch.ids, 0))
    x = torch.linspace(-2, 2, ROWS, dtype=torch.float64).view(1, -1, 1).expand(s.batch.clients, -1, d)
    return posterior.predict(x)


def prior_predictive(case: Any, d: int) -> Any:
    """Return what clients get that never trained, the last without rows."""
    s, new = scene(case, d), case.strangers(d)
    posterior = s.method.personalise(s.message, s.method.init_clients(s.message, new), new, s.noise(new.ids, 0))
    return posterior.predict(new.x[:, :ROWS])


CASES: dict[str, Any] = {"hard-mixture": hard_mixture}
for _case in ALL:
    _d = _case.dimensions[-1]
    CASES[f"{_case}-{_d}"] = lambda c=_case, d=_d: method_predictive(c, d)
    if _case.name in METHODS:  # the forms of a method have its posteriors, of other numbers
        CASES[f"{_case}-strangers"] = lambda c=_case: prior_predictive(c, 1)


@cache
def predictive(name: str) -> RegressionPredictive:
    made: RegressionPredictive = CASES[name]()
    return made


every_predictive = pytest.mark.parametrize("name", CASES)


@every_predictive
def test_quantiles_invert_the_cdf(name: str) -> None:
    p = predictive(name)
    quantiles = p.quantile(LEVELS)
    assert quantiles.shape == (len(LEVELS), *p.mean.shape)
    assert (quantiles.diff(dim=0) > 0).all()
    for level, quantile in zip(LEVELS, quantiles, strict=True):
        torch.testing.assert_close(p.cdf(quantile), level.expand_as(quantile), rtol=1e-9, atol=1e-12)


@every_predictive
def test_the_density_is_the_slope_of_the_cdf(name: str) -> None:
    p = predictive(name)
    for y in p.quantile(LEVELS[1:-1]):
        step = 1e-5 * p.log_prob(y).neg().exp()  # in units of the density there
        near, far = (p.cdf(y + k * step) - p.cdf(y - k * step) for k in (1, 2))
        slope = (8 * near - far) / (12 * step)
        torch.testing.assert_close(p.log_prob(y), slope.log(), rtol=0, atol=1e-6)


@every_predictive
def test_mean_and_variance_are_those_of_the_quantiles(name: str) -> None:
    """E y = int q(u) du and E y^2 = int q(u)^2 du, by Gauss-Legendre between the levels where the density lies."""
    p = predictive(name)
    cuts = torch.cat((torch.tensor([0.0]), torch.logspace(-12, -1, 23), torch.linspace(0.1, 0.5, 9)[1:])).double()
    cuts = torch.cat((cuts, 1 - cuts.flip(0)[1:]))
    # nodes of the two-point rule in every interval; what lies beyond 1e-12 is left to the tolerance
    width, middle = cuts.diff(), 0.5 * (cuts[1:] + cuts[:-1])
    nodes = torch.cat((middle - 0.5 * width / 3**0.5, middle + 0.5 * width / 3**0.5))
    weight = (0.5 * width).repeat(2).view(-1, 1, 1)
    quantiles = p.quantile(nodes)
    mean = (weight * quantiles).sum(0)
    variance = (weight * (quantiles - mean).square()).sum(0)
    std = p.variance.sqrt()
    assert ((mean - p.mean).abs() < 0.02 * std).all()
    assert ((variance / p.variance - 1).abs() < 0.05).all()


@every_predictive
def test_draws_have_the_stated_moments(name: str) -> None:
    p, count = predictive(name), 8000
    clients = p.mean.shape[0]
    draws = p.sample(count, Noise(1, 0, range(clients)))
    assert draws.shape == (count, *p.mean.shape) and draws.dtype == p.mean.dtype
    standard = (draws - p.mean) / p.variance.sqrt()
    assert (standard.mean(0).abs() < 5 / count**0.5).all()
    spread = (standard.square() - standard.square().mean(0)).square().mean(0).sqrt()  # its own fourth moment
    assert ((standard.square().mean(0) - 1).abs() < 5.5 * spread / count**0.5).all()
    uniform = torch.stack([p.cdf(draw) for draw in draws[:400]])
    assert ((uniform.mean(0) - 0.5).abs() < 5 * (1 / 12 / 400) ** 0.5).all()
    assert ((uniform.var(0) - 1 / 12).abs() < 5 * (1 / 180 / 400) ** 0.5).all()
    lag = (standard[1:] * standard[:-1]).mean(0)
    assert (lag.abs() < 5 / (count - 1) ** 0.5).all()
    assert all(abs(torch.corrcoef(standard[:, k].T)[0, 1]) < 5 / count**0.5 for k in range(clients))


@every_predictive
@pytest.mark.parametrize("engine", ["philox", "generators"])
def test_draws_belong_to_their_client_and_row(name: str, engine: Engine) -> None:
    p = predictive(name)
    clients = p.mean.shape[0]
    whole = p.sample(4, Noise(1, 0, range(clients), engine=engine))
    assert isinstance(p, NormalMixture)
    last = clients - 1
    part = NormalMixture(p.log_weights[last:], p.means[last:, :, :3], p.variances[last:, :, :3])
    assert_close(part.sample(4, Noise(1, 0, [last], engine=engine)), whole[:, last:, :3], 1e-12)
    assert torch.equal(whole, p.sample(4, Noise(1, 0, range(clients), engine=engine)))
    assert not torch.equal(whole, p.sample(4, Noise(2, 0, range(clients), engine=engine)))


@every_predictive
def test_units_change_everything_alike(name: str) -> None:
    p = predictive(name)
    clients = p.mean.shape[0]
    loc, scale = torch.linspace(-3, 5, clients).double(), torch.linspace(0.2, 40, clients).double()

    def moved(y: Tensor) -> Tensor:
        return loc.unsqueeze(-1) + scale.unsqueeze(-1) * y

    q, y = p.rescale(loc, scale), p.quantile(LEVELS[2:4])[1]
    assert_close(q.mean, moved(p.mean), 1e-9)
    assert_close(q.variance, p.variance * scale.square().unsqueeze(-1), 1e-9)
    assert_close(q.cdf(moved(y)), p.cdf(y), 1e-9)
    assert_close(q.log_prob(moved(y)), p.log_prob(y) - scale.log().unsqueeze(-1), 1e-8)
    assert_close(q.quantile(LEVELS), moved(p.quantile(LEVELS)), 1e-9)


# labels -----------------------------------------------------------------------------------------------------------

CLASS_CASES: dict[str, Any] = {}
for _case in LABELLED:
    for _d in _case.dimensions:
        CLASS_CASES[f"{_case}-{_d}"] = lambda c=_case, d=_d: method_predictive(c, d)
    CLASS_CASES[f"{_case}-strangers"] = lambda c=_case: prior_predictive(c, 1)


@pytest.mark.parametrize("name", CLASS_CASES)
def test_probabilities_of_labels_agree_with_their_logarithms_and_entropy(name: str) -> None:
    p = CLASS_CASES[name]()
    assert isinstance(p, ClassMixture)
    clients, rows, classes = p.probs.shape
    assert classes == CLASSES and (p.probs > 0).all()
    torch.testing.assert_close(p.probs.sum(-1), torch.ones(clients, rows, dtype=torch.float64), rtol=0, atol=1e-14)
    by_label = [p.log_prob(torch.full((clients, rows), label)) for label in range(classes)]
    assert_close(torch.stack(by_label, -1), p.probs.log(), 1e-13)
    assert_close(p.entropy, -sum(p.probs[..., c] * p.probs[..., c].log() for c in range(classes)), 1e-13)
    assert (p.entropy >= 0).all() and (p.entropy <= torch.tensor(CLASSES).double().log() + 1e-12).all()
