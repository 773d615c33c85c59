"""Ditto as worked out on quadratics, and its limits: training alone, and FedAvg's weights."""

from __future__ import annotations

import pytest
import torch

from pacbayes_fl.errors import StudyError
from pacbayes_fl.federation import engine
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.inference.map_estimate import LocalDescent
from pacbayes_fl.methods.baselines.ditto import Ditto
from pacbayes_fl.methods.baselines.fedavg import FedAvg
from pacbayes_fl.methods.baselines.local import LocalOnly
from tests.methods.by_hand import MODEL, SIZES, clients
from tests.worlds import START, A, B, Quadratic, after, descent, numbers, personal, quadratics, rounds


def test_rounds_are_as_worked_out() -> None:
    played = rounds(Ditto(Quadratic(), descent(3, 0.1), lam=0.5), quadratics(), START)
    first, second = next(played), next(played)
    assert numbers(first.clients.theta) == pytest.approx([1.4855, 1.259, -0.19], abs=1e-12)
    assert first.server.theta.item() == pytest.approx(0.787166666667, abs=1e-12)
    assert numbers(second.clients.theta) == pytest.approx([1.013532, 1.0233774375, -1.07397525], abs=1e-12)
    assert second.server.theta.item() == pytest.approx(0.234569479167, abs=1e-12)


def test_a_newcomer_goes_to_the_proximal_point() -> None:
    method, batch = Ditto(Quadratic(), descent(20, 0.2), lam=0.5, join_passes=10), quadratics()
    last = next(rounds(method, batch, START))
    w = last.server.theta.item()
    exact = [(a * b + 0.5 * w) / (a + 0.5) for a, b in zip(A, B, strict=True)]
    assert personal(method, last, batch, fresh=True) == pytest.approx(exact, abs=1e-10)


def test_the_global_weights_are_fedavg_s_bit_by_bit() -> None:
    method, plain = Ditto(Quadratic(), descent(5, 0.1)), FedAvg(Quadratic(), descent(5, 0.1), "uniform")
    assert torch.equal(*(after(3, one, quadratics(), START).server.theta for one in (method, plain)))


def test_without_a_pull_clients_train_alone() -> None:
    local, batch = LocalDescent(3, 50, 0.05, "sgd"), clients(*SIZES)
    alone, plan = LocalOnly(MODEL, local), FederationPlan(rounds=3, seed=1)
    own = engine.run_rounds(Ditto(MODEL, local, lam=0.0), batch, plan).clients.theta
    assert torch.equal(own, engine.run_rounds(alone, batch, plan).clients.theta)


def test_an_infinite_pull_holds_own_weights_at_those_received() -> None:
    played = rounds(Ditto(Quadratic(), descent(50, 1e-7), lam=1e6), quadratics(), START)
    assert numbers(next(played).clients.theta) == pytest.approx([START] * 3, abs=1e-5)


def test_a_negative_pull_is_refused() -> None:
    with pytest.raises(StudyError, match=r"lam must be at least 0, got -1"):
        Ditto(MODEL, lam=-1.0)
