"""Descent of many clients at once against torch's optimisers on each client alone."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal
from torch.nn.functional import cross_entropy

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import StudyError
from pacbayes_fl.inference import map_estimate
from pacbayes_fl.inference.map_estimate import GaussianPrior, LocalDescent
from pacbayes_fl.models.base import WeightModel
from pacbayes_fl.models.likelihoods import Categorical
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP
from pacbayes_fl.noise import Engine, Noise
from tests import worlds

MODEL = BayesianMLP((2, 4, 3), Categorical(3), torch.float64)
SIZES = (5, 2, 9, 4)
K, D = len(SIZES), MODEL.dim


def randn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def clients() -> ClientBatch:
    rows = [(randn(k, m, 2), (3 * randn(10 + k, m)).long().abs() % 3) for k, m in enumerate(SIZES)]
    return ClientBatch.pad(rows, classes=3)


def plain_loss(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
    out = torch.relu(x @ theta[:8].view(2, 4) + theta[8:12]) @ theta[12:24].view(4, 3) + theta[24:]
    return cross_entropy(out, y)


def by_hand(
    local: LocalDescent,
    theta: Tensor,
    batch: ClientBatch,
    noise: Noise,
    steps: int,
    prior: GaussianPrior | None = None,
    free: Tensor | None = None,
) -> tuple[Tensor, float]:
    """Descend one client with torch's own optimiser on its own rows."""
    own = torch.nn.Parameter(theta.clone())
    adam, sgd = torch.optim.Adam([own], lr=local.rate), torch.optim.SGD([own], local.rate, local.momentum)
    optimiser = adam if local.optimiser == "adam" else sgd
    x, y = batch.x[0][batch.mask[0]], batch.y[0][batch.mask[0]]
    total = 0.0
    for _ in range(steps):
        at = noise.rows(torch.ones(1, len(y), dtype=torch.bool), local.minibatch)[0]
        optimiser.zero_grad()
        loss = plain_loss(own, x[at], y[at])
        objective = loss
        if prior is not None:
            some = prior.variance.isfinite()
            share = 1 / len(y) if prior.weight is None else prior.weight
            density = Normal(prior.mean[some], prior.variance[some].sqrt()).log_prob(own[some])
            objective = loss - share * density.sum()
        objective.backward()
        if free is not None:
            own.grad[~free] = 0.0  # type: ignore[index]
        optimiser.step()
        total += loss.item() / steps
    return own.data, total


@pytest.mark.law
@pytest.mark.parametrize(("optimiser", "momentum"), [("adam", 0.0), ("sgd", 0.0), ("sgd", 0.9)])
@pytest.mark.parametrize("engine", ["philox", "generators"])
@pytest.mark.parametrize("minibatch", [3, 50])
def test_a_fit_is_torch_s_optimiser_on_every_client_alone(
    optimiser: Any, momentum: float, engine: Engine, minibatch: int
) -> None:
    local = LocalDescent(4, minibatch, 0.05, optimiser, momentum=momentum)
    batch, start = clients(), randn(30, K, D)
    before = start.clone()
    theta, adam, loss = map_estimate.fit(MODEL, local, start, batch, Noise(2, 1, batch.ids, engine=engine), passes=3)
    assert torch.equal(start, before) and not theta.requires_grad
    assert adam.steps.tolist() == [12] * K
    for k in range(K):
        alone = Noise(2, 1, batch.ids[k : k + 1], engine=engine)
        expected, mean = by_hand(local, start[k], batch.select(torch.tensor([k])), alone, 12)
        torch.testing.assert_close(theta[k], expected, rtol=1e-9, atol=1e-10)
        assert loss[k].item() == pytest.approx(mean, rel=1e-9)
        assert (theta[k] - start[k]).abs().max() > 0.01


@pytest.mark.law
@pytest.mark.parametrize("weight", [None, 0.03])
@pytest.mark.parametrize("shared", [True, False], ids=["prior of all", "prior of each"])
@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_a_fit_under_a_prior_is_torch_s_optimiser_on_the_loss_with_its_density(
    optimiser: Any, shared: bool, weight: float | None
) -> None:
    local = LocalDescent(steps=6, minibatch=3, rate=0.02, optimiser=optimiser)
    batch, start = clients(), randn(30, K, D)
    mean, variance = 0.5 * randn(31, K, D), 0.3 + randn(32, K, D).square()
    variance[:, ::5] = torch.inf  # no prior there
    prior = GaussianPrior(mean[0], variance[0], weight) if shared else GaussianPrior(mean, variance, weight)
    free = torch.arange(D) % 3 != 1
    noise = Noise(2, 1, batch.ids)
    theta, _, loss = map_estimate.fit(MODEL, local, start, batch, noise, passes=2, prior=prior, free=free)
    for k in range(K):
        own = prior if shared else GaussianPrior(mean[k], variance[k], weight)
        alone = batch.select(torch.tensor([k]))
        expected, plain = by_hand(local, start[k], alone, Noise(2, 1, alone.ids), 12, own, free)
        torch.testing.assert_close(theta[k], expected, rtol=1e-9, atol=1e-10)
        assert loss[k].item() == pytest.approx(plain, rel=1e-9)  # the prior is left out
    assert torch.equal(theta[:, ~free], start[:, ~free])
    assert (theta[:, free] != start[:, free]).double().mean() > 0.9  # but for units that are dead and have no prior


def test_an_infinite_variance_draws_nothing() -> None:
    local, batch, start = LocalDescent(steps=3, rate=0.05), clients(), randn(30, K, D)
    prior = GaussianPrior(randn(31, D), torch.full((D,), torch.inf, dtype=torch.float64))
    drawn = map_estimate.fit(MODEL, local, start, batch, Noise(0, 1, batch.ids), prior=prior)
    plain = map_estimate.fit(MODEL, local, start, batch, Noise(0, 1, batch.ids))
    assert torch.equal(drawn.theta, plain.theta)


@pytest.mark.slow
def test_a_narrow_prior_holds_the_weights_and_a_wide_one_lets_them_go() -> None:
    local, batch, start = LocalDescent(steps=400, rate=0.02), clients(), randn(30, K, D)
    mean, distances = 0.1 * randn(31, D), []
    for variance in (1e-3, 1.0, 1e3):
        prior = GaussianPrior(mean, torch.full((D,), variance, dtype=torch.float64))
        theta = map_estimate.fit(MODEL, local, start, batch, Noise(0, 1, batch.ids), prior=prior).theta
        distances.append(float((theta - mean).norm()))
    assert distances[0] < 0.2 * distances[1] < 0.2 * distances[2]


def test_a_client_without_rows_goes_to_the_prior_s_mean() -> None:
    rows = [(randn(1, 5, 2), torch.tensor([0, 1, 2, 0, 1])), (randn(1, 0, 2), torch.zeros(0, dtype=torch.int64))]
    batch, mean = ClientBatch.pad(rows, classes=3, allow_empty=True), randn(31, D)
    local = LocalDescent(steps=100, rate=0.1, optimiser="sgd")
    prior = GaussianPrior(mean, torch.full((D,), 0.5, dtype=torch.float64))
    theta = map_estimate.fit(MODEL, local, randn(30, 2, D), batch, Noise(0, 1, batch.ids), prior=prior).theta
    torch.testing.assert_close(theta[1], mean, rtol=0, atol=1e-9)


def test_moments_that_are_given_go_on_and_are_left_as_they_are() -> None:
    local, batch, start = LocalDescent(steps=3, rate=0.05), clients(), randn(30, K, D)
    half = map_estimate.fit(MODEL, local, start, batch, Noise(0, 1, batch.ids))
    kept = {name: leaf.clone() for name, leaf in tensors.leaves(half.adam).items()}
    on = map_estimate.fit(MODEL, local, half.theta, batch, Noise(0, 2, batch.ids), adam=half.adam)
    assert all(torch.equal(leaf, kept[name]) for name, leaf in tensors.leaves(half.adam).items())
    whole = map_estimate.fit(MODEL, local, start, batch, Noise(0, 1, batch.ids), passes=2)
    torch.testing.assert_close(on.theta, whole.theta, rtol=1e-12, atol=1e-13)  # all rows in every step
    fresh = map_estimate.fit(MODEL, local, half.theta, batch, Noise(0, 2, batch.ids))
    assert (fresh.theta - on.theta).abs().max() > 1e-3


def test_a_client_without_rows_stays_where_it_is() -> None:
    rows = [(randn(1, 5, 2), torch.tensor([0, 1, 2, 0, 1])), (randn(1, 0, 2), torch.zeros(0, dtype=torch.int64))]
    batch = ClientBatch.pad(rows, classes=3, allow_empty=True)
    for optimiser in ("adam", "sgd"):
        local = LocalDescent(steps=3, rate=0.1, optimiser=optimiser)
        theta, _, loss = map_estimate.fit(MODEL, local, randn(30, 2, D), batch, Noise(0, 1, batch.ids))
        assert torch.equal(theta[1], randn(30, 2, D)[1]) and loss[1] == 0
        assert not torch.equal(theta[0], randn(30, 2, D)[0])


def test_a_gradient_is_torch_s_on_every_client_alone() -> None:
    batch, theta = clients(), randn(30, K, D)
    loss, slope = map_estimate.gradient(MODEL, theta, batch)
    assert not loss.requires_grad and not slope.requires_grad and not theta.requires_grad
    for k in range(K):
        own = theta[k].clone().requires_grad_(True)
        expected = plain_loss(own, batch.x[k][batch.mask[k]], batch.y[k][batch.mask[k]])
        torch.testing.assert_close(loss[k], expected.detach(), rtol=1e-12, atol=0)
        torch.testing.assert_close(slope[k], torch.autograd.grad(expected, own)[0], rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize(
    ("world", "batch", "at", "loss", "slope"),
    [
        (worlds.Quadratic(), worlds.quadratics(), (2.0,), (2.0, 2.0, 20.0), ((2.0,), (4.0,), (10.0,))),
        (worlds.Quartic(), worlds.clients((1.0,), (0.0,), (1,)), (1.2,), (1.2**4 / 4,), ((1.2**3,),)),
        (worlds.Product(), worlds.products((1.0, -1.0)), (3.0, 0.5), (0.125, 3.125), ((0.25, 1.5), (1.25, 7.5))),
    ],
    ids=["quadratic", "quartic", "product"],
)
def test_worlds_are_the_programs_that_they_say(
    world: worlds.World, batch: ClientBatch, at: Any, loss: Any, slope: Any
) -> None:
    theta = torch.tensor(at, dtype=torch.float64).expand(batch.clients, -1)
    result, gradient = map_estimate.gradient(world, theta, batch)
    constant = 0.5 * math.log(2 * math.pi)
    torch.testing.assert_close(result - constant, torch.tensor(loss, dtype=torch.float64), rtol=1e-13, atol=1e-14)
    torch.testing.assert_close(gradient, torch.tensor(slope, dtype=torch.float64), rtol=1e-13, atol=1e-14)
    traced = WeightModel.log_likelihood(world, theta, batch)
    torch.testing.assert_close(world.log_likelihood(theta, batch), traced, rtol=1e-13, atol=0)


def test_momentum_goes_on_within_a_round_and_not_into_the_next() -> None:
    batch, start = clients(), randn(30, K, D)
    plain, heavy = (LocalDescent(2, 50, 0.05, "sgd", momentum=momentum) for momentum in (0.0, 0.9))
    once, other = (map_estimate.fit(MODEL, local, start, batch, Noise(0, 1, batch.ids)) for local in (plain, heavy))
    _, first = map_estimate.gradient(MODEL, start, batch)
    middle = start - 0.05 * first
    _, second = map_estimate.gradient(MODEL, middle, batch)
    torch.testing.assert_close(once.theta, middle - 0.05 * second, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(other.theta, middle - 0.05 * (0.9 * first + second), rtol=1e-12, atol=1e-13)
    again = map_estimate.fit(MODEL, heavy, other.theta, batch, Noise(0, 2, batch.ids), adam=other.adam)
    fresh = map_estimate.fit(MODEL, heavy, other.theta, batch, Noise(0, 2, batch.ids))
    assert torch.equal(again.theta, fresh.theta)


def test_momentum_beside_that_of_adam_is_refused() -> None:
    with pytest.raises(StudyError, match=r"momentum = 0.9 is of optimiser = 'sgd', and optimiser is 'adam'"):
        LocalDescent(momentum=0.9)
    with pytest.raises(StudyError, match=r"momentum must be at least 0 and below 1, got 1|momentum must be .*, got 1"):
        LocalDescent(optimiser="sgd", momentum=1.0)


@pytest.mark.parametrize("name", ["steps", "minibatch", "rate"])
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_numbers_out_of_range_are_refused(name: str, value: float) -> None:
    with pytest.raises(StudyError, match=f"{name} must be (positive and finite|at least 1), got"):
        LocalDescent(**{name: value})  # type: ignore[arg-type]
