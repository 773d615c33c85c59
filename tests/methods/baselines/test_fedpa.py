"""FedPA's step against the dense inverse, the mode of a product of Gaussians, and its limits: averaged iterates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from pacbayes_fl.errors import StudyError
from pacbayes_fl.inference.map_estimate import LocalDescent
from pacbayes_fl.methods.baselines.averaging import Server, Update
from pacbayes_fl.methods.baselines.fedavg import FedAvg
from pacbayes_fl.methods.baselines.fedpa import FedPA, direction
from pacbayes_fl.server.step import ServerStep
from tests.methods.by_hand import MODEL, randn
from tests.worlds import START, A, B, Quadratic, after, descent, numbers, quadratics

FIRST, SECOND = [[1, 2], [0, -1], [3, 1], [2, 2]], [[2, 0], [1, 1], [0, -1]]


def tensor(values: Sequence[Any]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def dense(start: Tensor, samples: Tensor, rho: float) -> Tensor:
    share = 1 / (1 + (len(samples) - 1) * rho)
    eye = torch.eye(len(start), dtype=torch.float64)
    covariance = torch.cov(samples.T) if len(samples) > 1 else 0 * eye
    return torch.linalg.solve(share * eye + (1 - share) * covariance, start - samples.mean(0))


def test_a_step_is_as_worked_out() -> None:
    start = tensor([[-1.0, 3.0]])
    for samples, rho, expected in (
        (FIRST, 0.4, [-2.737442922374, 2.260273972603]),
        (FIRST, 0.0, [-2.5, 2.0]),
        (FIRST[:1], 0.4, [-2.0, 1.0]),
        (SECOND, 0.4, [-2.805194805195, 3.623376623377]),
    ):
        assert numbers(direction(start, tensor([samples]), rho)) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("rho", [0.0, 0.01, 3.0])
def test_a_step_is_that_of_the_dense_inverse(rho: float) -> None:
    start, samples = randn(1, 4, 7), randn(2, 4, 5, 7)
    expected = torch.stack([dense(*each, rho) for each in zip(start, samples, strict=True)])
    torch.testing.assert_close(direction(start, samples, rho), expected, rtol=1e-11, atol=1e-12)


def test_the_server_steps_along_the_mean_with_momentum() -> None:
    start = tensor([-1.0, 3.0])
    steps = torch.cat([direction(start.unsqueeze(0), tensor([samples]), 0.4) for samples in (FIRST, SECOND)])
    weight = tensor([1.0, 2.0])
    method: Any = FedAvg(MODEL, step=ServerStep(rate=0.5, momentum=0.9))
    server = Server(start, method.step.start(start))
    for expected in ([0.391305422127, 1.415495463441], [3.034785724169, -1.595063156022]):
        server = method.server(server, Update(server.theta - steps, weight, weight, weight), 2)
        assert numbers(server.theta) == pytest.approx(expected, abs=1e-11)


def test_exact_steps_lead_to_the_mode_of_the_product() -> None:
    """Of N((1, 0), [[2, .5], [.5, 1]]) and N((0, 2), diag(1, .25)); averaged means lead to (.5, 1)."""
    covariances, means = tensor([[[2, 0.5], [0.5, 1]], [[1, 0], [0, 0.25]]]), tensor([[1, 0], [0, 2]])
    theta, step = tensor([-1.0, 3.0]), ServerStep(rate=0.1)
    for _ in range(300):
        asked = torch.linalg.solve(covariances, theta - means)
        theta, _ = step(theta, theta - asked.mean(0), step.start(theta))
    assert numbers(theta) == pytest.approx([0.642857142857, 1.535714285714], abs=1e-10)


def test_samples_are_means_of_iterates_in_a_row() -> None:
    """a = 4, b = 1 at rate .2 gives samples 1.082666666667 and 1.000661333333 of three iterates each."""
    method = FedPA(Quadratic(), descent(6, 0.2), "uniform", rho=0.4, mixing=0.0, sample_steps=3, burn_in_rounds=0)
    sent = numbers(after(1, method, quadratics(), START).update.theta)
    first, second = 1.082666666667, 1.000661333333
    mean, spread = (first + second) / 2, (first - second) ** 2 / 2
    share = 1 / 1.4
    assert sent[1] == pytest.approx(START - (START - mean) / (share + (1 - share) * spread), abs=1e-10)
    for k, (a, b) in enumerate(zip(A, B, strict=True)):
        iterates = [b + (1 - 0.2 * a) ** t * (START - b) for t in range(1, 7)]
        samples = tensor([[sum(part) / 3] for part in (iterates[:3], iterates[3:])])
        assert sent[k] == pytest.approx(START - dense(tensor([START]), samples, 0.4).item(), abs=1e-12)


@pytest.mark.parametrize("options", [{"rho": 0.0, "sample_steps": 2}, {"rho": 0.7, "sample_steps": 4}])
def test_one_sample_or_no_belief_in_their_spread_is_fedavg_on_averaged_iterates(options: dict[str, Any]) -> None:
    method = FedPA(Quadratic(), descent(5, 0.1), "uniform", mixing=0.2, burn_in_rounds=0, **options)
    sent = numbers(after(1, method, quadratics(), START).update.theta)
    for got, a, b in zip(sent, A, B, strict=True):
        assert got == pytest.approx(sum(b + (1 - 0.1 * a) ** t * (START - b) for t in range(2, 6)) / 4, abs=1e-12)


def test_the_first_rounds_are_fedavg_s() -> None:
    step = ServerStep()
    methods = FedPA(Quadratic(), descent(5, 0.1), step=step, burn_in_rounds=2), FedAvg(Quadratic(), descent(5, 0.1))
    early, late = ([after(t, one, quadratics(), START).server.theta for one in methods] for t in (2, 3))
    assert torch.equal(*early) and not torch.equal(*late)


def test_epochs_are_refused() -> None:
    with pytest.raises(StudyError, match="FedPA counts the iterates of a round, and epochs do not say them"):
        FedPA(MODEL, LocalDescent(steps=None, epochs=2))
