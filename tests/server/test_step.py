"""Steps of a server: torch's optimisers on the same gradients, printed numbers on quadratics, and the plain mean."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.errors import StudyError
from pacbayes_fl.methods.base import slowed
from pacbayes_fl.methods.baselines.averaging import Server, Update
from pacbayes_fl.methods.baselines.fedavg import FedAvg
from pacbayes_fl.server.step import ServerStep
from tests.methods.by_hand import MODEL, randn
from tests.worlds import START, Quadratic, descent, quadratics, rounds

TAU = 1e-3


def stepped(step: ServerStep, start: Tensor, means: Tensor) -> Tensor:
    theta, state = start, step.start(start)
    for mean in means:
        theta, state = step(theta, theta + mean, state)
    return theta


@pytest.mark.parametrize(
    ("step", "optimiser"),
    [
        (ServerStep(rate=0.3), lambda p: torch.optim.SGD(p, 0.3)),
        (ServerStep(rate=0.3, momentum=0.8), lambda p: torch.optim.SGD(p, 0.3, momentum=0.8)),
        (
            ServerStep("adagrad", 0.3, beta1=0.0),
            lambda p: torch.optim.Adagrad(p, 0.3, initial_accumulator_value=TAU**2, eps=TAU),
        ),
    ],
    ids=["sgd", "momentum", "adagrad"],
)
def test_a_step_is_torch_s_on_the_negative_mean_step(step: ServerStep, optimiser: Any) -> None:
    start, means = randn(1, 6), randn(2, 5, 6)
    own = torch.nn.Parameter(start.clone())
    taken = optimiser([own])
    for mean in means:
        own.grad = -mean
        taken.step()
    torch.testing.assert_close(stepped(step, start, means), own.data, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("optimiser", ["adagrad", "yogi", "adam"])
def test_adaptive_steps_are_those_of_algorithm_2(optimiser: Any) -> None:
    start, means = randn(1, 6), 1e-3 * randn(2, 5, 6)
    theta, m, v = start.tolist(), [0.0] * 6, [0.1**2] * 6
    for mean in means.tolist():
        for i, d in enumerate(mean):
            m[i] = 0.7 * m[i] + 0.3 * d
            sign = (v[i] > d * d) - (v[i] < d * d)
            v[i] = {"adagrad": v[i] + d * d, "yogi": v[i] - 0.2 * d * d * sign, "adam": 0.8 * v[i] + 0.2 * d * d}[
                optimiser
            ]
            theta[i] += 0.5 * m[i] / (v[i] ** 0.5 + 0.1)
    result = stepped(ServerStep(optimiser, 0.5, beta1=0.7, beta2=0.8, tau=0.1), start, means)
    torch.testing.assert_close(result, torch.tensor(theta, dtype=torch.float64), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("step", "printed"),
    [
        (ServerStep(rate=0.5, momentum=0.9), (1.201326458333, -0.037356928240, -1.239656739782)),
        (ServerStep("adagrad", 0.05), (1.995003129210, 1.988288981397, 1.980470146751)),
        (ServerStep("adam", 0.05), (1.950312029533, 1.883308841897, 1.805125372102)),
        (ServerStep("yogi", 0.05), (1.950312039209, 1.883479502312, 1.805698465341)),
        (ServerStep(), (0.402652916667,)),
    ],
    ids=["momentum", "adagrad", "adam", "yogi", "mean"],
)
def test_rounds_on_quadratics_are_as_worked_out(step: ServerStep, printed: tuple[float, ...]) -> None:
    played = rounds(FedAvg(Quadratic(), descent(5, 0.1), "uniform", step=step), quadratics(), START)
    assert [next(played).server.theta.item() for _ in printed] == pytest.approx(printed, abs=2e-12)


def test_the_default_is_the_mean_bit_by_bit() -> None:
    method, theta = FedAvg(MODEL), randn(3, 4, MODEL.dim)
    weight = torch.tensor([1.0, 2.0, 0.0, 3.0], dtype=torch.float64)
    after = method.server(Server(randn(4, MODEL.dim)), Update(theta, weight, weight, weight), 4)
    assert torch.equal(after.theta, tensors.weighted_mean(theta, weight))
    assert list(tensors.leaves(method.init_server(torch.Generator()))) == ["theta"]  # nothing else is saved


@pytest.mark.parametrize("optimiser", ["adagrad", "yogi", "adam"])
def test_the_usual_rate_of_an_adaptive_step_is_halved_as_one_that_was_given(optimiser: Any) -> None:
    assert ServerStep(optimiser) == ServerStep(optimiser, rate=0.01)
    assert slowed(ServerStep(optimiser), 0.5).eta == 0.005
    assert slowed(ServerStep(), 0.5) == ServerStep()  # the clients' mean is none


def test_the_moments_are_kept_and_not_sent() -> None:
    method = FedAvg(MODEL, step=ServerStep("yogi"))
    server = method.init_server(torch.Generator())
    assert list(tensors.leaves(server)) == ["theta", "moments.first", "moments.second"]
    assert list(tensors.leaves(method.broadcast(server))) == ["theta"]


def test_a_step_after_a_private_release_moves_by_the_released_mean() -> None:
    """What is released is the clients' mean step, and momentum is added behind it."""
    method = FedAvg(MODEL, weighting="uniform", step=ServerStep(rate=0.5, momentum=0.9))
    server = method.init_server(torch.Generator().manual_seed(0))
    released, theta, m = randn(5, 2, 1, MODEL.dim).float(), server.theta, 0.0
    for mean in released.to(server.theta):
        update = method.from_release(method.broadcast(server), Server(mean), 3.0)
        server = method.server(server, update, 3)
        m = 0.9 * m + mean[0]
        theta = theta + 0.5 * m
    torch.testing.assert_close(server.theta, theta, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"optimiser": "adam", "momentum": 0.5}, "server_momentum = 0.5 is of server = 'sgd', and server is 'adam'"),
        ({"rate": 0.0}, "rate must be positive and finite, got 0"),
        ({"beta2": 1.0}, "beta2 must be .*, got 1"),
        ({"optimiser": "lion"}, "optimiser must be one of 'sgd', 'adagrad', 'yogi', 'adam', got 'lion'"),
    ],
)
def test_steps_that_nobody_takes_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(StudyError, match=words):
        ServerStep(**options)
