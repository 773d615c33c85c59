"""Training alone: torch's optimisers on every client, and nothing that travels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from pacbayes_fl import tensors
from pacbayes_fl.errors import StudyError
from pacbayes_fl.federation import messages
from pacbayes_fl.inference.map_estimate import LocalDescent
from pacbayes_fl.methods.baselines.averaging import Server
from pacbayes_fl.methods.baselines.local import LocalOnly
from pacbayes_fl.noise import Noise
from tests.methods import by_hand
from tests.methods.by_hand import MODEL, SIZES, D, K, clients, randn


def steps(own: Tensor, optimiser: Any, x: Tensor, y: Tensor, noise: Noise, minibatch: int, number: int) -> float:
    """Go on with torch's own optimiser."""
    total = 0.0
    for _ in range(number):
        rows = noise.rows(torch.ones(1, len(y), dtype=torch.bool), minibatch)[0]
        optimiser.zero_grad()
        loss = cross_entropy(by_hand.logits(own, x[rows]), y[rows])
        loss.backward()
        optimiser.step()
        total += loss.item() / number
    return total


def made(optimiser: str, own: Tensor) -> Any:
    return (torch.optim.Adam if optimiser == "adam" else torch.optim.SGD)([own], lr=0.05)


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
@pytest.mark.parametrize("noise", ["philox", "generators"])
def test_rounds_are_one_long_descent_of_every_client_alone(optimiser: Any, noise: Any) -> None:
    local = LocalDescent(steps=3, minibatch=4, rate=0.05, optimiser=optimiser)
    batch, algorithm, state = clients(*SIZES), LocalOnly(MODEL, local), Server(0.5 * randn(20, D))
    kept, x = algorithm.init_clients(state, batch), randn(70, K, 4, 2)
    own = [torch.nn.Parameter(state.theta.clone()) for _ in range(K)]
    optimisers = [made(optimiser, parameter) for parameter in own]
    for t in (1, 2, 3):  # the moments are kept
        update, kept = algorithm.client(state, kept, batch, Noise(3, t, batch.ids, engine=noise))
        for k, m in enumerate(SIZES):
            alone = Noise(3, t, batch.ids[k : k + 1], engine=noise)
            loss = steps(own[k], optimisers[k], batch.x[k, :m], batch.y[k, :m], alone, 4, 3)
            torch.testing.assert_close(kept.theta[k], own[k].data, rtol=1e-9, atol=1e-9)
            assert update.loss[k].item() == pytest.approx(loss, rel=1e-9)
        assert algorithm.server(state, algorithm.reduce(update), K) is state
        assert set(messages.flatten(update)) == {"weight", "loss"}  # no weight travels
        for form in (update, algorithm.reduce(update)):
            assert algorithm.report(state, form)["loss"].item() == pytest.approx(update.loss.mean().item(), rel=1e-12)
    probs = algorithm.personalise(state, kept, batch, Noise(3, 0, batch.ids)).predict(x).probs
    for k in range(K):
        expected = torch.softmax(by_hand.logits(own[k].data, x[k]), -1)
        torch.testing.assert_close(probs[k], expected, rtol=1e-8, atol=1e-9)
    assert algorithm.global_model(state, kept, batch, Noise(3, 0, batch.ids)) is None


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_clients_that_never_trained_train_now_and_others_do_not(optimiser: Any) -> None:
    local = LocalDescent(steps=3, minibatch=4, rate=0.05, optimiser=optimiser)
    batch, algorithm, state = clients(*SIZES), LocalOnly(MODEL, local, join_passes=2), Server(0.5 * randn(20, D))
    fresh = algorithm.init_clients(state, batch)
    _, trained = algorithm.client(state, fresh, batch, Noise(3, 1, batch.ids))
    mixed = tensors.where(torch.tensor([True, False, True]), trained, fresh)
    theta = algorithm.personalise(state, mixed, batch, Noise(3, 0, batch.ids)).family.loc
    assert torch.equal(theta[[0, 2]], trained.theta[[0, 2]])
    own = torch.nn.Parameter(state.theta.clone())
    steps(own, made(optimiser, own), batch.x[1, :2], batch.y[1, :2], Noise(3, 0, batch.ids[1:2]), 4, 6)
    torch.testing.assert_close(theta[1], own.data, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("options", [{"join_passes": 0}, {"init_std": 0.0}, {"init_std": float("nan")}])
def test_hyper_parameters_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(
        StudyError, match=r"join_passes must be at least 1, got|init_std must be positive and finite, got"
    ):
        LocalOnly(MODEL, **options)
