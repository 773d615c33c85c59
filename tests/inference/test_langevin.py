"""Langevin steps on a Gaussian, whose chain is linear in its noise: its moments are sums."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from pacbayes_fl.errors import StudyError
from pacbayes_fl.inference.langevin import Draws, Langevin

PRECISION, GAMMA = 6.0, 0.1


class Pulse:
    """Noise that is 1 at one step and 0 at all others; None for 0 throughout."""

    def __init__(self, at: int | None) -> None:
        self.at, self.t = at, -1

    def weights(self, like: Tensor) -> Tensor:
        self.t += 1
        return torch.full_like(like, float(self.t == self.at))


def chain(start: float, steps: int, noise: Any, **options: Any) -> float:
    z = torch.full((1, 1), start, dtype=torch.float64)
    for _ in range(steps):
        z = Langevin(GAMMA, **options).step(z, PRECISION * z, noise)
    return float(z)


def test_mean_and_variance_of_a_chain_are_those_of_its_recursion() -> None:
    assert chain(1.0, 10, Pulse(None)) == pytest.approx(0.0001048576, abs=1e-12)
    variance = sum(chain(0.0, 10, Pulse(at)) ** 2 for at in range(10))
    assert variance == pytest.approx(0.238095235477, abs=1e-12)
    late = sum(chain(0.0, 60, Pulse(at)) ** 2 for at in range(60))
    assert late == pytest.approx(1 / (PRECISION * (1 - GAMMA * PRECISION / 2)), abs=1e-12)  # 1 / 6 as gamma -> 0
    assert late == pytest.approx(0.238095238095, abs=1e-10)


def test_at_temperature_zero_nothing_is_drawn() -> None:
    assert chain(1.0, 10, None, temperature=0.0) == pytest.approx(0.4**10, abs=1e-15)
    hot = sum(chain(0.0, 10, Pulse(at), temperature=3.0) ** 2 for at in range(10))
    assert hot == pytest.approx(3 * 0.238095235477, abs=1e-11)


def test_values_out_of_range_are_refused() -> None:
    for wrong in ({"rate": 0.0}, {"temperature": -1.0}, {"burn_in": 1.0}):
        with pytest.raises(StudyError, match=next(iter(wrong))):
            Langevin(**wrong)


def test_moments_of_draws_are_those_of_each_client_s_own() -> None:
    points = 1e3 + torch.randn(7, 2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    draws = Draws.none(points[0])
    for t, z in enumerate(points):
        draws = draws.add(z, torch.tensor([t >= 2, False]))
    torch.testing.assert_close(draws.mean(), torch.stack((points[2:, 0].mean(0), points[0, 1])))
    expected = torch.stack((points[2:, 0].var(0, correction=0), torch.zeros(3, dtype=torch.float64)))
    torch.testing.assert_close(draws.variance(), expected, rtol=1e-10, atol=1e-12)
