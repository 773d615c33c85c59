"""pFedMe as worked out on quadratics, and its limits: FedAvg, FedProx, MTL and local optima."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pacbayes_fl.methods.baselines.fedavg import FedAvg
from pacbayes_fl.methods.baselines.fedprox import FedProx
from pacbayes_fl.methods.baselines.pfedme import RECIPE, PFedMe
from pacbayes_fl.server.step import ServerStep
from tests.worlds import START, A, B, Quadratic, after, descent, numbers, personal, quadratics, rounds

EXACT = {"inner": 200, "eta": 0.01}


def pfedme(steps: int = 2, rate: float = 0.05, **options: Any) -> PFedMe:
    return PFedMe(Quadratic(), descent(steps, rate), **{"lam": 15.0, "eta": 0.005} | options)


@pytest.mark.parametrize(
    ("options", "theta", "w"),
    [
        (EXACT, [1.857421875, 1.764542936288, 1.355102040816], [1.96267578125, 1.937839335180, 1.830408163265]),
        (
            {"eta": 0.01},
            [1.857433136, 1.764542951870, 1.355106525496],
            [1.9626825704, 1.937839345905, 1.830411059391],
        ),
        (
            {"eta": 0.01, "restart": True},
            [1.857467125120, 1.764543007791, 1.355121347867],
            [1.962687668768, 1.937839354294, 1.830413282746],
        ),
        (
            {"eta": 0.01, "decay": 1e-3},
            [1.857300572713, 1.764438933950, 1.355018592511],
            [1.962647743838, 1.937811735501, 1.830387457748],
        ),
    ],
    ids=["exact", "goes on", "restarts", "decay"],
)
def test_a_round_is_as_worked_out(options: dict[str, Any], theta: list[float], w: list[float]) -> None:
    last = after(1, pfedme(**options), quadratics(), START)
    assert numbers(last.clients.theta) == pytest.approx(theta, abs=2e-12)
    assert numbers(last.update.theta) == pytest.approx(w, abs=2e-12)
    measured = after(1, pfedme(**options, personal="w"), quadratics(), START)
    assert torch.equal(measured.clients.theta, last.update.theta)


@pytest.mark.parametrize(
    ("beta", "weighting", "value"),
    [
        (1.0, "uniform", 1.910307759898),
        (1.0, "rows", 1.906168352220),
        (2.0, "uniform", 1.820615519797),
        (2.0, "rows", 1.812336704440),
    ],
)
def test_the_server_goes_beta_times_to_the_mean(beta: float, weighting: Any, value: float) -> None:
    method = pfedme(weighting=weighting, step=ServerStep(rate=beta), **EXACT)
    assert after(1, method, quadratics(), START).server.theta.item() == pytest.approx(value, abs=1e-12)


def test_a_newcomer_goes_to_the_proximal_point() -> None:
    method, batch = pfedme(20, join_passes=5), quadratics()
    last = next(rounds(method, batch, START))
    w = last.server.theta.item()
    exact = [(a * b + 15 * w) / (a + 15) for a, b in zip(A, B, strict=True)]
    assert personal(method, last, batch, fresh=True) == pytest.approx(exact, abs=1e-12)


def test_one_exact_step_a_round_rests_at_the_minimum_of_the_envelopes() -> None:
    pulls = [a / (a + 15.0) for a in A]
    minimum = sum(h * b for h, b in zip(pulls, B, strict=True)) / sum(pulls)
    method = pfedme(1, inner=40, eta=1 / 15)
    assert after(1, method, quadratics(), minimum).server.theta.item() == pytest.approx(minimum, abs=1e-11)
    elsewhere = after(1, method, quadratics(), minimum + 0.01).server.theta.item()
    assert abs(elsewhere - minimum) < 0.0099  # and it goes there
    assert minimum == pytest.approx(-0.180790960452, abs=1e-12)


def test_more_steps_a_round_drift_from_it() -> None:
    rest, method = -0.183696792957, pfedme(inner=40, eta=0.01)
    assert after(1, method, quadratics(), rest).server.theta.item() == pytest.approx(rest, abs=1e-11)


def test_an_infinite_pull_at_fixed_rate_is_fedavg() -> None:
    """lambda (w - theta) -> grad f(w): R steps of rate eta."""
    method = PFedMe(Quadratic(), descent(2, 1e-7), lam=1e7, inner=3, eta=0.01)
    plain = after(1, FedAvg(Quadratic(), descent(2, 0.01)), quadratics(), START).update.theta
    assert numbers(after(1, method, quadratics(), START).update.theta) == pytest.approx(numbers(plain), abs=1e-6)


def test_no_pull_leaves_w_and_finds_local_optima() -> None:
    last = after(1, PFedMe(Quadratic(), descent(1, 0.3), lam=1e-12, inner=90), quadratics(), START)
    assert numbers(last.update.theta) == pytest.approx([START] * 3, abs=1e-11)
    assert numbers(last.clients.theta) == pytest.approx(list(B), abs=1e-10)


def test_one_exact_step_all_the_way_is_exact_fedprox() -> None:
    mine = after(1, PFedMe(Quadratic(), descent(1, 0.2), lam=1.0, inner=70, eta=1.0), quadratics(), START)
    prox = after(1, FedProx(Quadratic(), descent(70, 0.2), "uniform", mu=1.0), quadratics(), START)
    assert numbers(mine.update.theta) == pytest.approx(numbers(prox.update.theta), abs=1e-14)
    assert torch.allclose(mine.update.theta, mine.clients.theta, rtol=0, atol=1e-15)


def test_the_authors_measure_w_and_decay_weights() -> None:
    code = RECIPE.presets["authors-code"]["method"]
    assert (code["personal"], code["decay"], code["weighting"]) == ("w", 1e-3, "rows")
    assert RECIPE.presets["paper"]["method"]["personal"] == "theta"
