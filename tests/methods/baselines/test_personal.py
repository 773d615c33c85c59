"""Clients that keep weights of their own, with a method of a few lines that nobody ships."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.methods.baselines.personal import Kept, PersonalWeights, Trained
from pacbayes_fl.noise import Noise
from tests.worlds import START, Quadratic, numbers, personal, quadratics, rounds


@final
@dataclass(frozen=True)
class Halfway(PersonalWeights):
    """Sends the mean of the global weights and 1, keeps that of the own ones and -1."""

    def train(self, theta: Tensor, own: Tensor, batch: ClientBatch, noise: Noise) -> Trained:
        """Send and keep weights [K, D]."""
        return Trained((theta + 1) / 2, (own - 1) / 2, batch.size)

    def newcomer(self, theta: Tensor, batch: ClientBatch, noise: Noise) -> Tensor:
        """Ten times the global weights [K, D]."""
        return 10 * theta


def test_clients_keep_the_one_and_send_the_other() -> None:
    played = rounds(Halfway(Quadratic()), quadratics(), START)
    first, second = next(played), next(played)
    assert numbers(first.server.theta) == [1.5] and numbers(second.server.theta) == [1.25]
    assert numbers(first.clients.theta) == [0.5] * 3 and numbers(second.clients.theta) == [-0.25] * 3
    assert second.clients.rounds.tolist() == [2] * 3


def test_only_who_never_took_part_trains_at_personalisation() -> None:
    method, batch = Halfway(Quadratic()), quadratics()
    last = next(rounds(method, batch, START))
    assert personal(method, last, batch) == [0.5] * 3
    assert personal(method, last, batch, fresh=True) == [15.0] * 3
    some = last._replace(clients=Kept(last.clients.theta, torch.tensor([1, 0, 2])))
    assert personal(method, some, batch) == [0.5, 15.0, 0.5]
