"""FedAvg in closed form on quadratics, and FedAvg-FT against torch's optimisers."""

from __future__ import annotations

from typing import Any

import pyro
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from pacbayes_fl.errors import StudyError
from pacbayes_fl.federation import engine
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.inference.map_estimate import LocalDescent
from pacbayes_fl.methods.base import Nothing
from pacbayes_fl.methods.baselines.averaging import Server
from pacbayes_fl.methods.baselines.fedavg import FedAvg
from pacbayes_fl.noise import Noise
from tests.methods import by_hand
from tests.methods.by_hand import MODEL, SIZES, D, K, clients, randn
from tests.worlds import Quadratic, at, descent, quadratics

FIVE, TWO = descent(5, 0.1), ((1.0, 4.0), (0.0, 1.0))


def test_a_round_on_two_quadratics_is_the_published_one() -> None:
    batch, algorithm = quadratics(*TWO, (1, 1)), FedAvg(Quadratic(), FIVE, weighting="uniform")
    update, _ = algorithm.client(at(2.0), Nothing(), batch, Noise(0, 1, batch.ids))
    assert update.theta[:, 0].tolist() == pytest.approx([1.18098, 1.07776], rel=1e-12)
    assert algorithm.server(at(2.0), update, 2).theta.item() == pytest.approx(1.12937, rel=1e-12)
    assert not pyro.get_param_store().keys()


def test_weights_are_by_rows_where_asked() -> None:
    batch, algorithm = quadratics(*TWO, (1, 3)), FedAvg(Quadratic(), FIVE, weighting="rows")
    update, _ = algorithm.client(at(2.0), Nothing(), batch, Noise(0, 1, batch.ids))
    assert algorithm.server(at(2.0), update, 2).theta.item() == pytest.approx(1.103565, rel=1e-12)


def test_the_fixed_point_is_not_the_optimum() -> None:
    batch, algorithm = quadratics(*TWO, (1, 1)), FedAvg(Quadratic(), FIVE, weighting="uniform")
    state = engine.run_rounds(algorithm, batch, FederationPlan(rounds=60))
    assert state.server.theta.item() == pytest.approx(0.6925023465365121, rel=1e-12)
    one = FedAvg(Quadratic(), descent(1, 0.1), weighting="uniform")
    exact = engine.run_rounds(one, batch, FederationPlan(rounds=200))
    assert exact.server.theta.item() == pytest.approx(0.8, rel=1e-9)  # one step a round is gradient descent


def fitted(theta: Tensor, x: Tensor, y: Tensor, noise: Noise, local: LocalDescent, steps: int) -> tuple[Tensor, float]:
    """Descend with torch's own optimiser."""
    own = torch.nn.Parameter(theta.clone())
    optimiser = (torch.optim.Adam if local.optimiser == "adam" else torch.optim.SGD)([own], lr=local.rate)
    total = 0.0
    for _ in range(steps):
        rows = noise.rows(torch.ones(1, len(y), dtype=torch.bool), local.minibatch)[0]
        optimiser.zero_grad()
        loss = cross_entropy(by_hand.logits(own, x[rows]), y[rows])
        loss.backward()
        optimiser.step()
        total += loss.item() / steps
    return own.data, total


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
@pytest.mark.parametrize("weighting", ["rows", "uniform"])
@pytest.mark.parametrize("noise", ["philox", "generators"])
def test_rounds_and_fine_tuning_are_torch_s(optimiser: Any, weighting: Any, noise: Any) -> None:
    local = LocalDescent(steps=3, minibatch=4, rate=0.05, optimiser=optimiser)
    batch, algorithm = clients(*SIZES), FedAvg(MODEL, local, weighting, finetune=2)
    state, theta = Server(0.5 * randn(20, D)), 0.5 * randn(20, D)
    weight = torch.tensor(SIZES if weighting == "rows" else (1,) * K, dtype=torch.float64)
    for t in (1, 2):  # with a fresh optimiser in every round
        update, _ = algorithm.client(state, Nothing(), batch, Noise(3, t, batch.ids, engine=noise))
        state = algorithm.server(state, algorithm.reduce(update), K)
        result = []
        for k, m in enumerate(SIZES):
            alone = Noise(3, t, batch.ids[k : k + 1], engine=noise)
            own, loss = fitted(theta, batch.x[k, :m], batch.y[k, :m], alone, local, 3)
            torch.testing.assert_close(update.theta[k], own, rtol=1e-9, atol=1e-9)
            assert update.loss[k].item() == pytest.approx(loss, rel=1e-9)
            result.append(own)
        theta = (weight.unsqueeze(1) * torch.stack(result)).sum(0) / weight.sum()
        torch.testing.assert_close(state.theta, theta, rtol=1e-9, atol=1e-9)
        for form in (update, algorithm.reduce(update)):
            assert algorithm.report(state, form)["loss"].item() == pytest.approx(update.loss.mean().item(), rel=1e-12)
    x = randn(70, K, 4, 2)
    personal = algorithm.personalise(state, Nothing(), batch, Noise(3, 0, batch.ids, engine=noise)).predict(x).probs
    shared = algorithm.global_model(state, Nothing(), batch, Noise(3, 0, batch.ids, engine=noise)).predict(x).probs
    for k, m in enumerate(SIZES):
        alone = Noise(3, 0, batch.ids[k : k + 1], engine=noise)
        own, _ = fitted(theta, batch.x[k, :m], batch.y[k, :m], alone, local, 6)
        torch.testing.assert_close(personal[k], torch.softmax(by_hand.logits(own, x[k]), -1), rtol=1e-8, atol=1e-9)
        torch.testing.assert_close(shared[k], torch.softmax(by_hand.logits(theta, x[k]), -1), rtol=1e-8, atol=1e-9)


def test_without_fine_tuning_everybody_has_the_global_weights() -> None:
    batch, algorithm, x = clients(*SIZES), FedAvg(MODEL), randn(70, K, 4, 2)
    state = algorithm.init_server(torch.Generator().manual_seed(0))
    noise = Noise(3, 0, batch.ids)
    personal, shared = (
        getattr(algorithm, name)(state, Nothing(), batch, noise).predict(x).probs
        for name in ("personalise", "global_model")
    )
    assert torch.equal(personal, shared)


def test_the_start_is_random_and_of_the_asked_spread() -> None:
    theta = FedAvg(by_hand.BayesianMLP((50, 100, 3), MODEL.likelihood), init_std=0.3).init_server(
        torch.Generator().manual_seed(0)
    )
    assert theta.theta.dtype == torch.float32 and theta.theta.std().item() == pytest.approx(0.3, rel=0.03)


@pytest.mark.parametrize("options", [{"finetune": -1}, {"init_std": 0.0}, {"init_std": float("nan")}])
def test_hyper_parameters_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(StudyError, match=r"finetune must be at least 0, got|init_std must be positive and finite, got"):
        FedAvg(MODEL, **options)
