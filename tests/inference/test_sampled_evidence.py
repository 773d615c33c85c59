"""Sampled evidence against all draws at once under autograd, closed forms, and the ways in which it can go wrong."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pyro
import pytest
import torch
from pyro import poutine
from pyro.distributions import Normal
from torch import Tensor
from torch.distributions import MultivariateNormal
from torch.nn.functional import softplus

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.inference.sampled_evidence import log_values, particle_scores, prior_of, tempering
from pacbayes_fl.models.base import WeightModel, WeightPrior
from pacbayes_fl.models.likelihoods import Categorical, Gaussian
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP
from pacbayes_fl.noise import Engine, Noise
from pacbayes_fl.posteriors.weights import posterior
from tests.methods.by_hand import randn

LABELS = BayesianMLP((2, 4, 3), Categorical(3), torch.float64)
LINE = BayesianMLP((2, 1), Gaussian(0.5), torch.float64)  # weight_0 [2, 1], bias_0 [1]
VAGUE = BayesianMLP((2, 1), Gaussian(2.0), torch.float64)


class Curve(WeightModel):
    """A Pyro program of a user, with a site that is a number."""

    dtype = torch.float64
    deterministic = frozenset({"offset"})

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return MappingProxyType({"slope": (2,), "offset": ()})

    def model(self, batch: ClientBatch, prior: WeightPrior, zeta: float, scale: Tensor) -> None:
        with pyro.plate("clients", batch.clients, dim=-1):
            with poutine.scale(scale=zeta):
                w = self.draw_weights(prior)
            mean = torch.sin(batch.x @ w["slope"].unsqueeze(-1)).squeeze(-1) + w["offset"].unsqueeze(-1)
            with poutine.scale(scale=scale):
                pyro.sample("y", Normal(mean, 0.4).mask(batch.mask).to_event(1), obs=batch.y)


MODELS: dict[str, Any] = {"labels": LABELS, "line": LINE, "program": Curve()}
every_model = pytest.mark.parametrize("name", MODELS)


def clients(name: str, *sizes: int) -> ClientBatch:
    labels = name == "labels"
    rows = [(randn(k, m, 2), randn(10 + k, m)) for k, m in enumerate(sizes)]
    rows = [(x, (3 * y).long().abs() % 3 if labels else y) for x, y in rows]
    return ClientBatch.pad(rows, classes=3 if labels else None, allow_empty=True)


def priors(model: WeightModel, count: int, rho: float = -1.0) -> Tensor:
    """Return particles [P, 2D]."""
    return torch.cat((0.5 * randn(70, count, model.dim), rho + 0.3 * randn(71, count, model.dim)), -1)


def streams(batch: ClientBatch, engine: Engine = "philox", seed: int = 4) -> Noise:
    return Noise(seed, 2, batch.ids, engine=engine)


def definition(
    model: WeightModel, particles: Tensor, rows: ClientBatch, scale: Tensor, draws: int, noise: Noise
) -> tuple[Tensor, Tensor, Tensor]:
    """Equation 38 with all draws in memory, differentiated by autograd, client by client and particle by particle."""
    eps = torch.stack([noise.weights(torch.empty(rows.clients, model.dim, dtype=torch.float64)) for _ in range(draws)])
    scores, values, effective = [], [], []
    for k in range(rows.clients):
        one = rows.select(torch.tensor([k])).trim()
        for phi in particles:
            leaf = phi.clone().requires_grad_(True)
            mu, rho = leaf.chunk(2)
            theta = mu + softplus(rho) * eps[:, k]
            a = scale[k] * torch.stack([model.log_likelihood(t.unsqueeze(0), one)[0] for t in theta])
            value = torch.logsumexp(a, 0) - math.log(draws)
            scores.append(torch.autograd.grad(value, leaf)[0])
            values.append(value.detach())
            effective.append(1 / a.detach().softmax(0).square().sum())
    shape = (rows.clients, len(particles))
    return torch.stack(scores).view(*shape, -1), torch.stack(values).view(shape), torch.stack(effective).view(shape)


def close(got: Tensor, expected: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.quick
@every_model
@pytest.mark.parametrize("engine", ["philox", "generators"])
@pytest.mark.parametrize("draws", [1, 7])
def test_one_pass_over_the_draws_is_the_definition(name: str, engine: Engine, draws: int) -> None:
    model, batch = MODELS[name], clients(name, 5, 1, 9)
    phi, scale = priors(model, 3), torch.tensor([1.0, 3.0, 0.5], dtype=torch.float64)
    result = particle_scores(model, phi, batch, scale, draws, streams(batch, engine))
    score, value, effective = definition(model, phi, batch, scale, draws, streams(batch, engine))
    columns = torch.cat((torch.ones(model.dim, dtype=torch.bool), model.stochastic_columns()))
    close(result.score, score * columns)  # a number has no spread to learn
    close(result.log_evidence, value)
    close(result.effective, effective)
    assert (result.effective >= 1 - 1e-12).all() and (result.effective <= draws + 1e-12).all()


@pytest.mark.law
@every_model
def test_the_score_is_the_slope_of_the_estimate(name: str) -> None:
    model, batch, step = MODELS[name], clients(name, 5, 2), 1e-5
    phi, scale = priors(model, 2), torch.ones(2, dtype=torch.float64)

    def value(at: Tensor) -> Tensor:
        return particle_scores(model, at, batch, scale, 6, streams(batch)).log_evidence

    result = particle_scores(model, phi, batch, scale, 6, streams(batch)).score
    uncertain = model.stochastic_columns()
    for entry in range(2 * model.dim):
        if entry >= model.dim and not uncertain[entry - model.dim]:
            continue
        shift = step * torch.nn.functional.one_hot(torch.tensor(entry), 2 * model.dim)
        close(result[..., entry], (value(phi + shift) - value(phi - shift)) / (2 * step), 1e-7)


class Fixed(WeightModel):
    """One weight; its log likelihood under each draw is given."""

    dtype = torch.float64

    def __init__(self, *values: float) -> None:
        self.values = list(values)

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return MappingProxyType({"theta": (1,)})

    def model(self, batch: ClientBatch, prior: WeightPrior, zeta: float, scale: Tensor) -> None:
        raise NotImplementedError

    def log_likelihood(self, weights: Tensor, batch: ClientBatch) -> Tensor:
        return self.values.pop(0) + (weights - weights.detach()).sum(-1)


def fixed(*values: float) -> Any:
    batch = ClientBatch.pad([(torch.ones(1, 1), torch.ones(1))])
    phi, scale = torch.zeros(1, 2, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    return particle_scores(Fixed(*values), phi, batch, scale, len(values), streams(batch))


def test_tiny_likelihoods_do_not_vanish() -> None:
    assert fixed(-1000.0, -1001.0, -1005.0).log_evidence.item() == pytest.approx(-1000.7804368594207, rel=1e-15)
    assert fixed(-1005.0, -1001.0, -1000.0).log_evidence.item() == pytest.approx(-1000.7804368594207, rel=1e-15)
    assert fixed(-1000.0, -1001.0).log_evidence.item() == pytest.approx(-1000 + math.log((1 + math.exp(-1)) / 2))
    assert fixed(1e5, 0.0).log_evidence.item() == pytest.approx(1e5 - math.log(2), rel=1e-15)


def test_the_effective_number_of_draws() -> None:
    assert fixed(-3.0, -3.0, -3.0, -3.0).effective.item() == pytest.approx(4.0)
    assert fixed(0.0, -800.0, -900.0).effective.item() == pytest.approx(1.0)
    assert fixed(-900.0, math.log(2), 0.0).effective.item() == pytest.approx(9 / 5)


def test_draws_without_likelihood_count_for_nothing_unless_all_are_so() -> None:
    some = fixed(-math.inf, -2.0, -math.inf, -3.0)
    assert some.log_evidence.item() == pytest.approx(math.log((math.exp(-2) + math.exp(-3)) / 4))
    assert some.score.isfinite().all() and some.score[0, 0, 0].item() == pytest.approx(1.0)
    none = fixed(-math.inf, -math.inf)
    assert none.score.isnan().all() and not none.log_evidence.isfinite().any()
    assert fixed(-1.0, math.nan).score.isnan().all()


class Square(Fixed):
    """Loss theta^2 / 2 of every row."""

    def log_likelihood(self, weights: Tensor, batch: ClientBatch) -> Tensor:
        return -0.5 * weights.square().sum(-1) * batch.size


@pytest.mark.parametrize("draws", [1, 3])
def test_the_exponential_of_the_estimate_is_unbiased_and_its_logarithm_too_low(draws: int) -> None:
    """theta ~ N(0, 1/2), beta = 4: ln Z = -ln(3) / 2, and a single draw gives -1 on average."""
    many, x = 40_000, torch.ones(40_000, 2, 1)
    batch = ClientBatch(x, x[..., 0], x[..., 0] > 0, tuple(range(many)), tuple(map(str, range(many))))
    rho = math.log(math.expm1(math.sqrt(0.5)))
    phi = torch.tensor([[0.0, rho]], dtype=torch.float64)
    values = particle_scores(Square(), phi, batch, tempering(4.0, batch, batch), draws, streams(batch)).log_evidence
    z, exact = values.exp(), -0.5493061443340549
    assert z.mean().item() == pytest.approx(math.exp(exact), abs=5 * z.std().item() / many**0.5)
    below = exact - values.mean().item()
    assert below > 10 * values.std().item() / many**0.5
    if draws == 1:
        assert values.mean().item() == pytest.approx(-1.0, abs=5 * values.std().item() / many**0.5)


def exact_evidence(phi: Tensor, x: Tensor, y: Tensor, noise: float = 2.0) -> Tensor:
    """Evidence of a Bayesian linear regression with an intercept."""
    if not len(y):
        return torch.zeros((), dtype=torch.float64)
    mu, rho = phi.chunk(2)
    design = torch.cat((x, torch.ones_like(x[:, :1])), -1)
    covariance = design @ torch.diag(softplus(rho).square()) @ design.T + noise**2 * torch.eye(len(y))
    value: Tensor = MultivariateNormal(design @ mu, covariance).log_prob(y)
    return value


def copies(batch: ClientBatch, many: int) -> ClientBatch:
    """Return a client many times, with a stream for each."""
    x, y, mask = (tensor.expand(many, *tensor.shape[1:]) for tensor in (batch.x, batch.y, batch.mask))
    return ClientBatch(x, y, mask, tuple(range(many)), tuple(map(str, range(many))))


def test_on_average_it_is_the_evidence_of_a_linear_regression_and_its_slope() -> None:
    """E[Z~] = Z and E[Z~ d ln Z~] = dZ, whatever the number of draws."""
    batch, phi, many = clients("line", 4), priors(LINE, 2, rho=-1.5), 20_000
    same = copies(batch, many)
    result = particle_scores(VAGUE, phi, same, torch.ones(many, dtype=torch.float64), 4, streams(same))
    for p in range(2):
        leaf = phi[p].clone().requires_grad_(True)
        exact = exact_evidence(leaf, batch.x[0], batch.y[0])
        slope = torch.autograd.grad(exact, leaf)[0]
        ratio = (result.log_evidence[:, p] - exact.detach()).exp()
        assert ratio.mean().item() == pytest.approx(1.0, abs=5 * ratio.std().item() / many**0.5)
        weighted = ratio.unsqueeze(-1) * result.score[:, p]
        assert ((weighted.mean(0) - slope).abs() < 5 * weighted.std(0) / many**0.5).all()
        assert ratio.std().item() / many**0.5 < 0.02


def test_many_draws_give_the_evidence_of_a_linear_regression() -> None:
    batch, phi = clients("line", 4), priors(LINE, 1, rho=-1.5)
    same, exact = copies(batch, 100), exact_evidence(phi[0], batch.x[0], batch.y[0]).item()
    ones, errors = torch.ones(100, dtype=torch.float64), []
    for draws in (1, 20, 400):
        result = particle_scores(VAGUE, phi, same, ones, draws, streams(same)).log_evidence
        errors.append((result - exact).square().mean().sqrt().item())
    assert errors[0] > 3 * errors[1] > 9 * errors[2] and errors[2] < 0.06


def test_what_is_weighed_are_the_terms_of_the_estimate() -> None:
    batch, phi = clients("labels", 5, 0, 9), priors(LABELS, 3)
    scale = tempering(2.5, batch, batch)
    values = log_values(LABELS, prior_of(phi), batch, scale, 6, streams(batch))
    result = particle_scores(LABELS, phi, batch, scale, 6, streams(batch))
    assert values.shape == (3, 3, 6) and not values[1].any()
    close(values.logsumexp(-1) - math.log(6), result.log_evidence)


def test_a_likelihood_of_zero_is_less_than_any_other_and_still_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(posterior, "_AT_ONCE", 0)  # a call a draw
    batch, prior = clients("line", 5), prior_of(torch.zeros(1, 2, dtype=torch.float64))
    values = log_values(Fixed(-math.inf, -2e5), prior, batch, torch.ones(1, dtype=torch.float64), 2, streams(batch))
    assert values.tolist() == [[[-1e30, -2e5]]]


def test_beta_is_the_number_of_rows_unless_it_is_given() -> None:
    batch = clients("line", 5, 0, 9)
    rows = batch.rows(torch.arange(4).expand(3, -1))
    assert tempering(None, batch, batch).tolist() == [1.0, 0.0, 1.0]
    assert tempering(None, batch, rows).tolist() == [5 / 4, 0.0, 9 / 4]
    assert tempering(3.0, batch, rows).tolist() == [3 / 4, 3.0, 3 / 4]


def test_a_client_without_rows_has_evidence_1_and_no_score() -> None:
    batch = clients("labels", 4, 0)
    for beta in (None, 7.0):
        result = particle_scores(LABELS, priors(LABELS, 2), batch, tempering(beta, batch, batch), 5, streams(batch))
        assert not result.score[1].any() and not result.log_evidence[1].any() and result.score[0].any()
        assert result.effective[1].tolist() == [5.0, 5.0]


def test_all_particles_see_the_same_draws() -> None:
    batch, phi = clients("labels", 4, 6), priors(LABELS, 3)
    scale = torch.ones(2, dtype=torch.float64)
    whole = particle_scores(LABELS, phi, batch, scale, 4, streams(batch))
    for p in range(3):
        alone = particle_scores(LABELS, phi[p : p + 1], batch, scale, 4, streams(batch))
        close(whole.score[:, p], alone.score[:, 0])
        close(whole.log_evidence[:, p], alone.log_evidence[:, 0])
    twin = particle_scores(LABELS, phi[:1].expand(2, -1), batch, scale, 4, streams(batch))
    close(twin.score[:, 0], twin.score[:, 1])


def test_float32_is_float32_and_near() -> None:
    single = BayesianMLP((2, 4, 3), Categorical(3))
    batch, phi = clients("labels", 5, 9), priors(LABELS, 2)
    scale = torch.ones(2, dtype=torch.float64)
    double = particle_scores(LABELS, phi, batch, scale, 5, streams(batch))
    result = particle_scores(single, phi.float(), batch.to(dtype=torch.float32), scale, 5, streams(batch))
    assert result.score.dtype == torch.float32
    close(result.score.double(), double.score, 1e-4)
    close(result.log_evidence, double.log_evidence, 1e-4)


@every_model
def test_many_draws_take_one_call_of_the_model_and_as_many_as_needed_where_they_are_large(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, batch, calls = MODELS[name], clients(name, 5, 2, 0), list[int]()
    known = type(model).log_likelihood

    def counted(self: WeightModel, weights: Tensor, rows: ClientBatch) -> Tensor:
        calls.append(len(weights))
        return known(self, weights, rows)

    monkeypatch.setattr(type(model), "log_likelihood", counted)
    found = []
    for most in (2**18, 1000, 0):
        monkeypatch.setattr(posterior, "_AT_ONCE", most)
        own = prior_of(priors(model, 2)), batch, torch.ones(3, dtype=torch.float64)
        found.append(log_values(model, *own, 40, Noise(1, 0, batch.ids)))
    assert calls[0] == 3 * 2 * 40 and calls[-40:] == [3 * 2] * 40 and 2 < len(calls) - 41 < 40
    assert found[0].shape == (3, 2, 40)
    for other in found[1:]:
        torch.testing.assert_close(found[0], other, rtol=1e-12, atol=1e-12)


@every_model
def test_priors_may_differ_between_clients(name: str) -> None:
    model, batch = MODELS[name], clients(name, 4, 6, 3)
    phi = torch.stack([priors(model, 2) + 0.1 * k for k in range(3)])
    scale = tempering(None, batch, batch)
    whole = particle_scores(model, phi, batch, scale, 4, streams(batch))
    values = log_values(model, prior_of(phi), batch, scale, 4, streams(batch))
    for k in range(3):
        one = batch.select(torch.tensor([k])).trim()
        alone = particle_scores(model, phi[k], one, scale[k : k + 1], 4, streams(one))
        for mine, theirs in zip(alone, whole, strict=True):
            close(mine, theirs[k : k + 1])
        close(log_values(model, prior_of(phi[k]), one, scale[k : k + 1], 4, streams(one)), values[k : k + 1])
