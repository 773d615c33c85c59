"""MTL against the linear system of its objective on quadratics, and its limits."""

from __future__ import annotations

import pytest
import torch

from pacbayes_fl.errors import StudyError
from pacbayes_fl.federation import engine
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.inference.map_estimate import LocalDescent
from pacbayes_fl.methods.baselines.local import LocalOnly
from pacbayes_fl.methods.baselines.mtl import MTL
from tests.methods.by_hand import MODEL, SIZES, clients
from tests.worlds import START, A, B, Quadratic, after, descent, numbers, personal, quadratics

EXACT = descent(60, 0.2)  # to 1e-13


def solution(lambda1: float, lambda2: float) -> list[float]:
    """Solve for w_1, w_2, w_3 and w_0, where all slopes of the objective vanish."""
    matrix, right = torch.zeros(4, 4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    for k, (a, b) in enumerate(zip(A, B, strict=True)):
        matrix[k, k], matrix[k, 3], matrix[3, k], right[k] = a + lambda1, -lambda1, -lambda1, a * b
    matrix[3, 3] = 3 * lambda1 + 3 * lambda2
    return numbers(torch.linalg.solve(matrix, right))


def test_a_round_is_as_worked_out() -> None:
    last = after(1, MTL(Quadratic(), EXACT, lambda1=2.0, lambda2=0.5), quadratics(), START)
    assert numbers(last.clients.theta) == pytest.approx([1.333333333333, 1.333333333333, -0.222222222222], abs=2e-12)
    assert last.server.theta.item() == pytest.approx(0.651851851852, abs=1e-12)


@pytest.mark.parametrize("lambda2", [0.5, 0.0])
def test_rounds_solve_the_objective(lambda2: float) -> None:
    last = after(60, MTL(Quadratic(), descent(20, 0.25), lambda1=2.0, lambda2=lambda2), quadratics(), START)
    result = [*numbers(last.clients.theta), last.server.theta.item()]
    assert result == pytest.approx(solution(2.0, lambda2), abs=1e-10)
    printed = {0.5: [-0.128514056225, 0.602409638554, -1.196787148594, -0.192771084337]}.get(lambda2)
    assert printed is None or result == pytest.approx(printed, abs=1e-10)
    assert lambda2 or result[-1] == pytest.approx(-0.285714285714, abs=1e-10)  # exact FedProx's and pFedMe's with R = 1


def test_a_newcomer_goes_near_the_centre() -> None:
    method = MTL(Quadratic(), EXACT, lambda1=2.0, lambda2=0.5)
    last = after(40, method, quadratics(), START)
    assert personal(method, last, quadratics((3.0,), (1.0,), (1,)), fresh=True) == pytest.approx(
        [0.522891566265], abs=1e-10
    )


def test_without_a_pull_clients_train_alone() -> None:
    local, batch, plan = LocalDescent(3, 4, 0.05, "sgd"), clients(*SIZES), FederationPlan(rounds=3, seed=1)
    alone, own = LocalOnly(MODEL, local), MTL(MODEL, local, lambda1=0.0)
    both = [engine.run_rounds(method, batch, plan).clients.theta for method in (alone, own)]  # type: ignore[arg-type]
    assert torch.equal(*both) and own.about()["pull"] == "none: every client trains alone"
    assert "pull" not in MTL(MODEL).about()


def test_an_infinite_pull_holds_all_at_the_centre() -> None:
    last = after(3, MTL(Quadratic(), descent(50, 1e-7), lambda1=1e6), quadratics(), START)
    assert numbers(last.clients.theta) == pytest.approx([START] * 3, abs=1e-4)


@pytest.mark.parametrize("name", ["lambda1", "lambda2"])
def test_a_negative_pull_is_refused(name: str) -> None:
    with pytest.raises(StudyError, match=f"{name} must be at least 0, got -1"):
        MTL(MODEL, **{name: -1.0})  # type: ignore[arg-type]
