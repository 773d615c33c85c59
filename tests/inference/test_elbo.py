"""The evidence lower bound: plain torch, one client at a time, Pyro's own estimator, and the hot path on one noise."""

from __future__ import annotations

from functools import partial
from typing import Any

import pyro
import pytest
import torch
from pyro import poutine
from pyro.distributions import Exponential
from pyro.infer import TraceMeanField_ELBO
from torch import Tensor
from torch.distributions import Bernoulli, Normal, kl_divergence
from torch.distributions import Categorical as TorchCategorical
from torch.nn.functional import softplus

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.inference import elbo, svi
from pacbayes_fl.inference.svi import LocalInference
from pacbayes_fl.models.base import WeightModel, WeightPrior
from pacbayes_fl.models.likelihoods import Categorical, Gaussian
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP
from pacbayes_fl.posteriors.weights.family import Sites
from pacbayes_fl.posteriors.weights.mean_field import MeanField
from pacbayes_fl.posteriors.weights.spike_slab import SpikeSlab, SpikeSlabDraw

SIZES, INPUTS, HIDDEN, CLASSES, ZETA = (5, 2, 7), 2, 3, 3, 0.7
K = len(SIZES)
SCALE = torch.tensor([2.5, 1.0, 0.3], dtype=torch.float64)


def network(task: str) -> BayesianMLP:
    outputs, likelihood = (1, Gaussian(0.3)) if task == "regression" else (CLASSES, Categorical(CLASSES))
    return BayesianMLP((INPUTS, HIDDEN, outputs), likelihood, torch.float64)


def randn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def clients(task: str) -> ClientBatch:
    rows = []
    for k, m in enumerate(SIZES):
        x, y = randn(k, m, INPUTS), randn(10 + k, m)
        rows.append((x, y if task == "regression" else (3 * y).long().abs() % CLASSES))
    return ClientBatch.pad(rows, classes=None if task == "regression" else CLASSES)


def family(kind: str, seed: int, *shape: int) -> Any:
    loc, rho, logit = (randn(100 * seed + part, *shape) for part in range(3))
    return MeanField(loc, 0.5 * rho - 1.0) if kind == "mean-field" else SpikeSlab(loc, 0.5 * rho - 1.0, 2 * logit)


def draw(kind: str, seed: int, *shape: int) -> Any:
    eps = randn(1000 + seed, *shape)
    if kind == "mean-field":
        return eps
    uniform = torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return SpikeSlabDraw(eps, torch.logit(uniform), 0.6)


# the same in plain torch, for one client, without padding -------------------------------------------------------


def plain_weights(q: Any, random: Any) -> Tensor:
    if isinstance(q, MeanField):
        theta: Tensor = q.loc + softplus(q.rho) * random
        return theta
    eta = q.logit + random.logistic
    relaxed = torch.sigmoid(eta / random.temperature)
    gate = (eta > 0).to(eta.dtype) + relaxed - relaxed.detach()
    return gate * (q.loc + softplus(q.rho) * random.eps)


def plain_kl(q: Any, w: Any) -> Tensor:
    slab = kl_divergence(Normal(q.loc, softplus(q.rho)), Normal(w.loc, softplus(w.rho)))
    if isinstance(q, MeanField):
        return slab.sum()
    gates = kl_divergence(Bernoulli(logits=q.logit), Bernoulli(logits=w.logit))
    return (gates + torch.sigmoid(q.logit) * slab).sum()


def plain_log_likelihood(task: str, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
    outputs = 1 if task == "regression" else CLASSES
    first, bias, second, last = theta.split([INPUTS * HIDDEN, HIDDEN, HIDDEN * outputs, outputs])
    hidden = torch.relu(x @ first.view(INPUTS, HIDDEN) + bias)
    out = hidden @ second.view(HIDDEN, outputs) + last
    if task == "regression":
        return Normal(out[:, 0], 0.3).log_prob(y).sum()
    return TorchCategorical(logits=out).log_prob(y).sum()


def plain_elbos(task: str, q: Any, w: Any, batch: ClientBatch, draws: list[Any]) -> tuple[Tensor, Tensor, Any]:
    """Return the bound of every client, its divergence, and the gradient of the bound's negative."""
    values, divergences, gradients = [], [], []
    for k in range(K):
        mine = tensors.tree_map(lambda leaf, k=k: leaf[k].clone().requires_grad_(True), q)
        prior = tensors.tree_map(lambda leaf, k=k: leaf if leaf.dim() == 1 else leaf[k], w)
        x, y = batch.x[k][batch.mask[k]], batch.y[k][batch.mask[k]]
        fit = torch.zeros((), dtype=torch.float64)
        for random in draws:
            own = random[k] if isinstance(random, Tensor) else random.map(lambda leaf, k=k: leaf[k])
            fit = fit + plain_log_likelihood(task, plain_weights(mine, own), x, y) / len(draws)
        divergences.append(plain_kl(mine, prior).detach())
        value = SCALE[k] * fit - ZETA * plain_kl(mine, prior)
        gradients.append(type(q)(*torch.autograd.grad(-value, [*mine])))
        values.append(value.detach())
    joined = tensors.tree_map(lambda *leaves: torch.stack(leaves), *gradients)
    return torch.stack(values), torch.stack(divergences), joined


def close(mine: Any, theirs: Any, tolerance: float = 1e-12) -> None:
    for got, expected in zip(tensors.leaves(mine).values(), tensors.leaves(theirs).values(), strict=True):
        torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


every_task = pytest.mark.parametrize("task", ["regression", "classification"])
every_family = pytest.mark.parametrize("kind", ["mean-field", "spike-slab"])
every_prior = pytest.mark.parametrize("shared", [True, False], ids=["shared", "per-client"])
every_count = pytest.mark.parametrize("count", [1, 3])


def setting(task: str, kind: str, shared: bool, count: int) -> tuple[BayesianMLP, Any, Any, ClientBatch, list[Any]]:
    model = network(task)
    q, w = family(kind, 1, K, model.dim), family(kind, 2, *((model.dim,) if shared else (K, model.dim)))
    return model, q, w, clients(task), [draw(kind, seed, K, model.dim) for seed in range(count)]


@pytest.mark.quick
@every_task
@every_family
@every_prior
@every_count
def test_both_gradients_are_those_of_plain_torch_one_client_at_a_time(
    task: str, kind: str, shared: bool, count: int
) -> None:
    model, q, w, batch, draws = setting(task, kind, shared, count)
    value, kl, expected = plain_elbos(task, q, w, batch, draws)
    defined = elbo.defined_gradient(model, q, w, batch, draws, ZETA, SCALE)
    assert isinstance(defined.gradient, type(q))
    hot = svi.loss_gradient(model, q, w, batch, draws, ZETA, SCALE)
    for result in (defined, hot):
        close(result.log_likelihood, value + ZETA * kl)
        close(result.kl, kl)
        close(result.gradient, expected)
    without = svi.loss_gradient(model, q, w, batch, draws, ZETA, SCALE, (q.precompute(), w.precompute()), with_kl=False)
    close(without.gradient, hot.gradient, 0.0)
    assert without.kl is None and torch.equal(without.log_likelihood, hot.log_likelihood)
    assert not pyro.get_param_store().keys()


@every_task
@every_family
def test_nothing_given_is_changed(task: str, kind: str) -> None:
    model, q, w, batch, draws = setting(task, kind, False, 2)
    before = [leaf.clone() for leaf in (*q, *w, SCALE)]
    svi.loss_gradient(model, q, w, batch, draws, ZETA, SCALE)
    elbo.defined_gradient(model, q, w, batch, draws, ZETA, SCALE)
    assert all(torch.equal(a, b) and not b.requires_grad for a, b in zip(before, (*q, *w, SCALE), strict=True))


@every_task
@every_family
@every_prior
def test_pyro_s_own_estimator_gives_the_same_total(task: str, kind: str, shared: bool) -> None:
    """With validation on: shapes, plates and scales of model and guide agree."""
    model, q, w, batch, (random,) = setting(task, kind, shared, 1)
    program = partial(model.model, batch, Sites(w, model), ZETA, SCALE)
    guide = elbo.guide(model, q, random, ZETA)
    with pyro.validation_enabled(True):
        loss = TraceMeanField_ELBO(max_plate_nesting=1).loss(program, guide)
        fit, divergence = elbo.client_terms(program, guide)
        mine = fit - divergence
    assert mine.shape == (K,)
    assert -mine.sum().item() == pytest.approx(loss, rel=1e-12)
    assert not pyro.get_param_store().keys()


@every_family
def test_sites_without_uncertainty_have_a_likelihood_and_no_divergence(kind: str) -> None:
    model, q, w, batch, draws = setting("regression", kind, False, 2)
    model.deterministic = frozenset({"bias_0"})
    at = model.span("bias_0")
    fit, kl, gradient = elbo.defined_gradient(model, q, w, batch, draws, ZETA, SCALE)
    same, hot_kl, hot = svi.loss_gradient(model, q, w, batch, draws, ZETA, SCALE)
    keep = model.stochastic_columns()
    assert keep.sum() == model.dim - HIDDEN and not keep[at].any()
    rest = [type(q)(*(leaf[:, keep] for leaf in one)) for one in (q, w)]
    close(kl, rest[0].kl(rest[1]))
    close(hot_kl, kl)
    close(same, fit)
    close(hot.loc, gradient.loc)
    close(hot.rho[:, keep], gradient.rho[:, keep])
    assert not hot.rho[:, at].any() and hot.loc[:, at].any()


@every_task
@every_family
def test_a_client_without_rows_has_the_divergence_s_gradient_alone(task: str, kind: str) -> None:
    model, q, w, batch, draws = setting(task, kind, True, 1)
    empty = ClientBatch(batch.x * 0, batch.y * 0, batch.mask & False, batch.ids, batch.names)
    scale = LocalInference().scale(empty, empty)
    expected = tensors.tree_map(lambda slope: ZETA * slope, q.precompute().kl_gradient(w.precompute()))
    for gradient_of in (svi.loss_gradient, elbo.defined_gradient):
        fit, kl, gradient = gradient_of(model, q, w, empty, draws, ZETA, scale)
        close(gradient, expected)
        close(kl, q.kl(w))
        assert not fit.any()


# scalings of the objective --------------------------------------------------------------------------------------


class Waiting(WeightModel):
    """ln p(y) = -y whatever the weight is: fits and divergences can be prescribed."""

    dtype = torch.float64

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"w": ()}

    def model(self, batch: ClientBatch, prior: WeightPrior, zeta: float, scale: Tensor) -> None:
        with pyro.plate("clients", batch.clients, dim=-1):
            with poutine.scale(scale=zeta):
                w = pyro.sample("w", prior.site("w"))
            rate = torch.ones_like(batch.y) + 0 * w.unsqueeze(-1)
            with poutine.scale(scale=scale):
                pyro.sample("y", Exponential(rate).mask(batch.mask).to_event(1), obs=batch.y)


def constant_rows(number: int) -> ClientBatch:
    return ClientBatch.pad(
        [(torch.zeros(number, 1, dtype=torch.float64), torch.full((number,), 0.6, dtype=torch.float64))]
    )


@pytest.mark.parametrize(
    ("data_scale", "zeta", "loss"), [("rows", 10.0, 3150.0), ("sum", 10.0 / 20, 210.0), ("mean", 10.0 / 20, 150.6)]
)
def test_the_objective_is_scaled_as_the_paper_and_public_codes_do(data_scale: Any, zeta: float, loss: float) -> None:
    """n = 250, b = 100, a summed negative log likelihood of 60 in the minibatch and a divergence of 300."""
    local = LocalInference(minibatch=100, data_scale=data_scale, zeta=zeta)
    batch, rows = constant_rows(250), constant_rows(100)
    zero = torch.zeros(1, 1, dtype=torch.float64)
    w = MeanField(zero, zero)
    q = MeanField(600**0.5 * w.scale, zero)
    assert q.kl(w).item() == pytest.approx(300.0, rel=1e-12)
    fit, kl, _ = elbo.defined_gradient(Waiting(), q, w, rows, [zero], zeta, local.scale(batch, rows))
    assert kl is not None and (zeta * kl - fit).item() == pytest.approx(loss, rel=1e-12)
    assert not pyro.get_param_store().keys()
