"""FedProx in closed form on quadratics, and its limits: FedAvg, and weights that stay."""

from __future__ import annotations

import pytest
import torch

from pacbayes_fl.errors import StudyError
from pacbayes_fl.federation import engine
from pacbayes_fl.federation.engine import FederationPlan
from pacbayes_fl.inference.map_estimate import LocalDescent
from pacbayes_fl.inference.optim import Optimiser
from pacbayes_fl.methods.base import Nothing
from pacbayes_fl.methods.baselines.fedavg import FedAvg
from pacbayes_fl.methods.baselines.fedprox import FedProx
from pacbayes_fl.noise import Noise
from pacbayes_fl.server import average
from tests.methods.by_hand import MODEL, SIZES, clients
from tests.worlds import START, A, B, Quadratic, at, descent, quadratics, rounds

FIVE = descent(5, 0.1)


def descended(mu: float, steps: int = 5, rate: float = 0.1) -> torch.Tensor:
    batch = quadratics()
    method = FedProx(Quadratic(), descent(steps, rate), mu=mu)
    return method.client(at(START), Nothing(), batch, Noise(0, 1, batch.ids))[0].theta.squeeze(1)


def test_local_steps_are_plain_descent_with_a_pull() -> None:
    """w <- w - rate [a (w - b) + mu (w - start)], five times."""
    expected = []
    for a, b in zip(A, B, strict=True):
        w = START
        for _ in range(5):
            w -= 0.1 * (a * (w - b) + 1.0 * (w - START))
        expected.append(w)
    assert descended(1.0).tolist() == pytest.approx(expected, abs=1e-12)
    assert descended(1.0).tolist() == pytest.approx([1.32768, 1.225, -0.52563125], abs=1e-12)


def test_many_steps_reach_the_proximal_point() -> None:
    """argmin of f + (mu / 2) (w - start)^2 = (a b + mu start) / (a + mu)."""
    exact = [(a * b + START) / (a + 1.0) for a, b in zip(A, B, strict=True)]
    assert descended(1.0, steps=300).tolist() == pytest.approx(exact, abs=1e-12)


@pytest.mark.parametrize(("weighting", "value"), [("uniform", 0.675682916667), ("rows", 0.658569583333)])
def test_the_server_takes_the_mean(weighting: average.Weighting, value: float) -> None:
    played = rounds(FedProx(Quadratic(), FIVE, weighting, mu=1.0), quadratics(), START)
    assert next(played).server.theta.item() == pytest.approx(value, abs=1e-12)
    if weighting == "uniform":
        assert next(played).server.theta.item() == pytest.approx(0.120603274320, abs=1e-12)


def test_exact_proximal_steps_rest_where_their_pulls_balance() -> None:
    """w = sum_k h_k b_k / sum_k h_k, h = a / (a + mu)."""
    pulls = [a / (a + 1.0) for a in A]
    expected = sum(h * b for h, b in zip(pulls, B, strict=True)) / sum(pulls)
    method = FedProx(Quadratic(), descent(45, 0.25), "uniform", mu=1.0)
    state = engine.run_rounds(method, quadratics(), FederationPlan(rounds=26))
    assert state.server.theta.item() == pytest.approx(expected, abs=1e-11) == -0.312056737588653


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_without_a_pull_it_is_fedavg_bit_by_bit(optimiser: Optimiser) -> None:
    local, batch, plan = LocalDescent(3, 4, 1e-2, optimiser), clients(*SIZES), FederationPlan(rounds=2, seed=3)
    plain = engine.run_rounds(FedAvg(MODEL, local), batch, plan)
    pulled = engine.run_rounds(FedProx(MODEL, local, mu=0.0), batch, plan)
    assert torch.equal(plain.server.theta, pulled.server.theta)


def test_an_infinite_pull_leaves_the_weights() -> None:
    assert descended(1e6, steps=50, rate=1e-7).tolist() == pytest.approx([START] * 3, abs=1e-5)


def test_a_negative_pull_is_refused() -> None:
    with pytest.raises(StudyError, match=r"mu must be at least 0, got -1"):
        FedProx(MODEL, mu=-1.0)
