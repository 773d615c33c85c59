"""Per-FedAvg's three gradients as worked out on quadratics and a quartic, and its limit, FedAvg."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pacbayes_fl.inference.map_estimate import LocalDescent
from pacbayes_fl.methods.baselines.fedavg import FedAvg
from pacbayes_fl.methods.baselines.per_fedavg import PerFedAvg
from tests.methods.by_hand import MODEL, SIZES, D, alive, randn
from tests.methods.by_hand import clients as ragged
from tests.worlds import START, A, B, Quadratic, Quartic, World, after, clients, descent, numbers, personal, quadratics

KINDS = ("first-order", "hessian-free", "exact")
FIRST, SECOND = [1.82405, 1.7744, 1.28515625], [1.8412805, 1.861184, 1.457275390625]


def method(variant: Any, world: World | None = None, **options: Any) -> PerFedAvg:
    options = {"adapt": 0.1, "adapt_steps": 1} | options
    return PerFedAvg(world or Quadratic(), descent(2, 0.05), variant=variant, **options)


@pytest.mark.parametrize(("variant", "theta"), [*zip(KINDS, (FIRST, SECOND, SECOND), strict=True)])
def test_a_round_is_as_worked_out(variant: str, theta: list[float]) -> None:
    assert numbers(after(1, method(variant), quadratics(), START).update.theta) == pytest.approx(theta, abs=1e-11)


@pytest.mark.parametrize(
    ("variant", "server", "by_rows", "adapted"),
    [
        ("first-order", 1.62786875, 1.61959375, [1.465081875, 1.37672125, 0.7209015625]),
        ("exact", 1.719913296875, 1.723230546875, [1.547921967188, 1.431947978125, 0.789934972656]),
    ],
)
@pytest.mark.parametrize("fresh", [False, True])
def test_one_step_makes_the_mean_personal(
    variant: str, server: float, by_rows: float, adapted: list[float], fresh: bool
) -> None:
    one, other = method(variant), method(variant, weighting="rows")
    last = after(1, one, quadratics(), START)
    assert last.server.theta.item() == pytest.approx(server, abs=1e-12)
    assert after(1, other, quadratics(), START).server.theta.item() == pytest.approx(by_rows, abs=1e-12)
    assert personal(one, last, quadratics(), fresh) == pytest.approx(adapted, abs=1e-11)
    assert personal(method(variant, adapt_steps=0), last, quadratics()) == [last.server.theta.item()] * 3


@pytest.mark.parametrize(
    ("variant", "delta", "slope"),
    [
        ("first-order", 0.01, 1.083839643648),
        ("exact", 0.01, 0.615620917592),
        ("hessian-free", 0.01, 0.615608185637),
        ("hessian-free", 1.0, 0.488301367138),
    ],
)
def test_where_the_curvature_changes_they_are_three(variant: Any, delta: float, slope: float) -> None:
    """f = w^4 / 4 at 1.2 with alpha = 0.1; hessian-free by its closed form v - alpha (3 w^2 v + delta^2 v^3)."""
    one = PerFedAvg(Quartic(), descent(1, 0.05), variant=variant, adapt=0.1, delta=delta)
    w = after(1, one, clients((1.0,), (0.0,), (1,)), 1.2).update.theta.item()
    assert (1.2 - w) / 0.05 == pytest.approx(slope, abs=1e-11)


def test_rounds_rest_at_the_minimum_of_the_loss_after_a_step() -> None:
    curved = [a * (1 - 0.1 * a) ** 2 for a in A]
    minimum = sum(h * b for h, b in zip(curved, B, strict=True)) / sum(curved)
    assert minimum == pytest.approx(-0.375384615385, abs=1e-12)
    one = PerFedAvg(Quadratic(), descent(1, 0.4), variant="exact", adapt=0.1)
    assert after(40, one, quadratics(), START).server.theta.item() == pytest.approx(minimum, abs=1e-10)


@pytest.mark.parametrize("variant", KINDS)
def test_without_the_step_it_is_fedavg(variant: str) -> None:
    one, plain = method(variant, adapt=0.0), FedAvg(Quadratic(), descent(2, 0.05), "uniform")
    states = [after(3, each, quadratics(), START).server.theta for each in (one, plain)]
    assert torch.equal(*states)


def test_the_exact_gradient_of_a_network_is_autograd_s() -> None:
    batch, theta = ragged(*SIZES), alive(0.5 * randn(3, D))
    one = PerFedAvg(MODEL, LocalDescent(1, 50, 0.1, "sgd"), variant="exact", adapt=0.3)
    sent = after(1, one, batch, *theta.tolist()).update.theta
    leaf = theta.expand(len(SIZES), -1).clone().requires_grad_(True)

    def loss(at: torch.Tensor) -> torch.Tensor:
        return (-MODEL.log_likelihood(at, batch) / batch.size).sum()

    (step,) = torch.autograd.grad(loss(leaf), leaf, create_graph=True)
    (slope,) = torch.autograd.grad(loss(leaf - 0.3 * step), leaf)
    torch.testing.assert_close(sent, theta - 0.1 * slope, rtol=1e-10, atol=1e-13)


def test_a_step_takes_three_minibatches() -> None:
    seen: list[list[list[float]]] = []

    class Watched(Quadratic):
        def log_likelihood(self, weights: Any, batch: Any) -> Any:
            seen.append(batch.y.tolist())
            return super().log_likelihood(weights, batch)

    batch = ragged(9, 9)
    one = PerFedAvg(Watched(), LocalDescent(1, 3, 0.1, "sgd"), variant="exact", adapt=0.1)
    after(1, one, batch, START)
    assert len(seen) == 3 and len({str(rows) for rows in seen}) == 3
    assert all(len(rows) == 3 for drawn in seen for rows in drawn)
