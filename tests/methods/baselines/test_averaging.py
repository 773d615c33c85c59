"""What averaged weights have in common, with a method of a few lines that nobody ships."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.federation import engine, federation_state
from pacbayes_fl.federation.engine import FederationPlan
from pacbayes_fl.inference.map_estimate import Descended
from pacbayes_fl.inference.optim import adam_init
from pacbayes_fl.methods.base import Nothing
from pacbayes_fl.methods.baselines.averaging import WeightAveraging
from pacbayes_fl.methods.baselines.point import initial_weights
from pacbayes_fl.noise import Noise
from tests.methods.by_hand import MODEL, SIZES, clients


@final
@dataclass(frozen=True)
class TowardsOne(WeightAveraging):
    """Every client goes half of the way to 1."""

    def descend(self, theta: Tensor, batch: ClientBatch, noise: Noise, passes: int = 1) -> Descended:
        """Halve the distance [K, D] once per pass."""
        return Descended(1 + (theta - 1) * 0.5**passes, adam_init(theta, batch.clients), theta.new_zeros(len(theta)))


def test_one_function_is_a_method() -> None:
    batch, method = clients(*SIZES), TowardsOne(MODEL)
    start = federation_state.start(method, batch, FederationPlan(rounds=3, seed=1)).server.theta
    after = engine.run_rounds(method, batch, FederationPlan(rounds=3, seed=1)).server.theta
    assert torch.allclose(after - 1, (start - 1) / 8, atol=1e-6)


def test_fine_tuning_takes_the_passes_that_are_asked_for() -> None:
    batch, method = clients(*SIZES), TowardsOne(MODEL, finetune=2)
    server = federation_state.start(method, batch, FederationPlan(rounds=1)).server
    tuned = method.personalise(server, Nothing(), batch, Noise(0, 0, batch.ids)).family.loc
    assert torch.allclose(tuned - 1, (server.theta - 1).expand_as(tuned) / 4, atol=1e-6)


def test_initial_weights_are_around_the_centre_of_the_model() -> None:
    drawn = torch.stack([initial_weights(MODEL, 0.1, torch.Generator().manual_seed(seed)) for seed in range(400)])
    assert torch.allclose(drawn.mean(0), MODEL.centre().to(drawn), atol=0.03)
    assert abs(float((drawn - MODEL.centre().to(drawn)).std()) - 0.1) < 0.005
