"""Steps down a bound against autograd through the whole bound, one client at a time."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal, kl_divergence
from torch.nn.functional import cross_entropy, softplus

from pacbayes_fl.bounds import BOUNDS, Premises
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.inference import svi
from pacbayes_fl.methods.variational.bound_descent import BoundDescent
from pacbayes_fl.models.likelihoods import Categorical, Gaussian
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.weights.mean_field import MeanField

SIZES = (5, 2, 7)
TOTAL = torch.tensor([20.0, 2.0, 14.0], dtype=torch.float64)
P_MIN = 0.05


def randn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def network(labels: bool) -> BayesianMLP:
    likelihood: Any = Categorical(3) if labels else Gaussian(0.3)
    return BayesianMLP((2, 3, likelihood.outputs), likelihood, torch.float64)


def clients(labels: bool) -> ClientBatch:
    targets = [torch.arange(m) % 3 if labels else randn(10 + k, m) for k, m in enumerate(SIZES)]
    return ClientBatch.pad(
        [(randn(k, m, 2), y) for k, (m, y) in enumerate(zip(SIZES, targets, strict=True))],
        classes=3 if labels else None,
    )


def bound_by_hand(local: BoundDescent, labels: bool, q: list[Tensor], w: list[Tensor], rows: Any, eps: Any) -> Tensor:
    """Take the bound of one client in plain torch: the losses anew, the bound's own function."""
    (x, y), n = rows[:2], float(rows[2])
    losses, outputs = [], 3 if labels else 1
    for draw in eps:
        theta = q[0] + softplus(q[1]) * draw
        out = torch.relu(x @ theta[:6].view(2, 3) + theta[6:9]) @ theta[9 : 9 + 3 * outputs].view(3, outputs)
        out = out + theta[9 + 3 * outputs :]
        if labels:
            nll = cross_entropy(out, y, reduction="none").clamp_max(-math.log(P_MIN))
            losses.append((nll / -math.log(P_MIN)).mean())
        else:
            losses.append((1 - (-(out[:, 0] - y).square()).exp()).mean())
    kl = kl_divergence(Normal(q[0], softplus(q[1])), Normal(w[0], softplus(w[1]))).sum()
    numbers = {"risk": torch.stack(losses).mean(), "kl": kl, "n": n, "beta": local.temperature * n}
    return n * BOUNDS[local.bound].certify(numbers, local.delta, Premises()).value


@pytest.mark.quick
@pytest.mark.parametrize("labels", [True, False], ids=["labels", "numbers"])
@pytest.mark.parametrize("bound", ["pbb-quadratic", "pbb-lambda", "seeger", "mcallester", "catoni"])
def test_the_gradient_is_that_of_the_bound_itself(bound: Any, labels: bool) -> None:
    model, batch = network(labels), clients(labels)
    local = BoundDescent(bound=bound, p_min=P_MIN, temperature=0.5)
    q, w = (MeanField(0.5 * randn(s, 3, model.dim), 0.1 * randn(s + 1, 3, model.dim) - 2.0) for s in (3, 5))
    draws = [randn(s, 3, model.dim) for s in (7, 8)]
    terms = q.precompute(), w.precompute()
    fit, gradient = local.slopes(model, q, w, batch, draws, TOTAL / batch.size, terms)
    for k, m in enumerate(SIZES):
        leaves = [leaf[k].clone().requires_grad_() for leaf in q]
        rows = batch.x[k, :m], batch.y[k, :m], TOTAL[k]
        value = bound_by_hand(local, labels, leaves, [leaf[k] for leaf in w], rows, [draw[k] for draw in draws])
        for mine, expected in zip(gradient, torch.autograd.grad(value, leaves), strict=True):
            assert torch.allclose(mine[k], expected, rtol=1e-9, atol=1e-11)
    assert fit.shape == (3,) and bool((-fit <= TOTAL).all())
    assert not any(leaf.requires_grad for leaf in (*q, *gradient))


def test_a_client_without_rows_stays_at_its_prior_and_weights_without_uncertainty_pay_no_divergence() -> None:
    model = network(True)
    model.deterministic = frozenset({"bias_0"})
    batch = ClientBatch.pad(
        [(randn(0, 6, 2), torch.arange(6) % 3), (torch.zeros(0, 2).double(), torch.zeros(0).long())], allow_empty=True
    )
    prior = MeanField(0.5 * randn(1, 2, model.dim), torch.full((2, model.dim), -2.0).double())
    local = BoundDescent(steps=4, minibatch=4, rate=0.05)
    got = svi.fit(model, local, prior, batch, Noise(0, 1, batch.ids), 2, svi.draw_of)
    at = model.span("bias_0")
    assert all(torch.equal(a[1], b[1]) for a, b in zip(got, prior, strict=True))
    assert (got.loc[0] != prior.loc[0]).any() and torch.equal(got.rho[:, at], prior.rho[:, at])
    assert torch.isfinite(got.loc).all()


def test_training_lowers_the_bound_that_it_is_on() -> None:
    model, batch = network(True), clients(True)
    prior = MeanField(0.5 * randn(1, 3, model.dim), torch.full((3, model.dim), -0.5).double())
    local = BoundDescent(steps=100, minibatch=8, rate=0.01, draws=8, p_min=P_MIN)
    batch = ClientBatch.pad(
        [(batch.x[k, :m].repeat(60, 1), batch.y[k, :m].repeat(60)) for k, m in enumerate(SIZES)], classes=3
    )
    got = svi.fit(model, local, prior, batch, Noise(0, 1, batch.ids), 1, svi.draw_of)

    def value(q: MeanField) -> Tensor:
        losses = []
        for seed in range(50):
            logits = model.observation(q.weights(randn(seed, 3, model.dim)), batch).logits
            chosen = -logits.gather(-1, batch.y.unsqueeze(-1)).squeeze(-1) / -math.log(local.p_min)
            losses.append((chosen.clamp(0, 1) * batch.mask).sum(1) / batch.size)
        numbers = {"risk": torch.stack(losses).mean(0), "kl": q.kl(prior), "n": batch.size}
        return BOUNDS[local.bound].certify(numbers, local.delta, Premises()).value

    assert (value(got) < value(prior)).all()
