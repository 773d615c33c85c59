"""Moments of clients in one bounded message: the bound, what follows without noise, and what noise does to it."""

from __future__ import annotations

import math

import pytest
import torch

from pacbayes_fl.data import scaling
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.moments import columns_of, moments_of
from pacbayes_fl.data.private_moments import MomentMessage
from pacbayes_fl.data.scaling import ColumnScale
from pacbayes_fl.data.shrinkage import fit_population
from pacbayes_fl.data.summaries import settle_summaries
from pacbayes_fl.privacy import mechanisms
from pacbayes_fl.privacy.mechanisms import Cohorts, Mechanism
from tests.distinguishing import lower_bound

KINDS: tuple[ColumnScale, ...] = ("shrunk", "pooled", "client", "shrunk")
RANGES = {0: (-20.0, 30.0), 1: (0.0, 10.0), 3: (-40.0, 60.0)}


def batch_of(x: torch.Tensor, y: torch.Tensor) -> ClientBatch:
    clients = range(len(x))
    return ClientBatch.stack([*zip(x, y, strict=True)], [f"c{k}" for k in clients], [*clients])


def federation(
    clients: int = 40, rows: int = 12, spread: float = 0.4, between: float = 2.0, seed: int = 0
) -> ClientBatch:
    """Clients whose means and scales differ, in columns 0 and y; column 1 is uniform."""
    random = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=random, dtype=torch.float64)  # noqa: E731
    scale = 3.0 * (spread * draw(clients, 1)).exp()
    x = 5.0 + between * draw(clients, 1) + scale * draw(clients, rows)
    uniform = 10.0 * torch.rand(clients, rows, generator=random, dtype=torch.float64)
    y = 2.0 * x + 6.0 * draw(clients, rows)
    return batch_of(torch.stack((x, uniform, draw(clients, rows)), 2), y)


def of(batch: ClientBatch, summaries: bool = True) -> tuple[MomentMessage, torch.Tensor]:
    message = MomentMessage.of(KINDS, RANGES, summaries)
    return message, message.of_clients(batch)


def test_messages_lie_in_the_box_whatever_the_rows_are() -> None:
    batch = federation(6)
    hostile = torch.cat((batch.x, batch.y.unsqueeze(-1)), -1)
    for client, value in enumerate((1e12, -1e300, 0.0, 1e-300, math.nan)):
        hostile[client] = value
    batch = batch_of(hostile[..., :-1], hostile[..., -1])
    message, sent = of(batch)
    assert sent.shape == (6, message.coordinates) and sent.dtype == torch.float64
    assert bool((sent.abs() <= 1).all()) and not bool(sent[4].any())
    assert bool((sent.norm(1, dim=1) <= message.longest[0]).all() & (sent.norm(2, dim=1) <= message.longest[1]).all())
    assert bool(sent[0].any()), "beyond the range a column counts as its end"


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_few_rows_send_what_they_tell(rows: int) -> None:
    _, sent = of(federation(3, rows))
    assert bool(sent.isfinite().all())
    known = sent[:, 2 + 4]  # after the pooled column: (u, u^2, l, l^2, 1) of the first that is shrunk
    assert known.tolist() == [float(rows > 1)] * 3


def test_without_noise_moments_are_those_in_the_clear() -> None:
    """Pooled ones exactly, where clients have as many rows each; the population nearly, which weighs otherwise."""
    batch = federation(400)
    message, sent = of(batch)
    shared = message.shared(sent.mean(0))
    clear = scaling.settle(batch, ["shrunk", "pooled", "client", "shrunk"])
    assert shared.kinds == clear.kinds and shared.mean[2] == 0 and shared.std[2] == 1
    torch.testing.assert_close(shared.mean[1], clear.mean[1])
    torch.testing.assert_close(shared.std[1], clear.std[1])
    population = fit_population(moments_of(columns_of(batch), batch.mask), batch.size)
    assert shared.between is not None and shared.spread is not None
    for mine, theirs, atol in zip(
        (shared.mean, shared.std, shared.between, shared.spread), population, (0.3, 0.3, 0.5, 0.1), strict=True
    ):
        torch.testing.assert_close(mine[[0, 3]], theirs[[0, 3]], rtol=0.1, atol=atol)
    known, clear_scale = shared.summaries, settle_summaries(batch)
    assert known is not None and known.unit == 32.0
    shift = math.log(float(clear_scale.unit) / 32.0)
    assert float(known.mean[0]) == pytest.approx(float(clear_scale.mean[0]) + shift, abs=0.05)
    torch.testing.assert_close(known.mean[1:], clear_scale.mean[1:], rtol=0, atol=0.1)
    torch.testing.assert_close(known.between, clear_scale.between, rtol=0.2, atol=0.1)


@pytest.mark.parametrize("spread", [0.0, 0.5])
@pytest.mark.parametrize("between", [0.0, 3.0])
def test_clients_that_are_alike_are_told_from_others(spread: float, between: float) -> None:
    message, sent = of(federation(400, 12, spread, between), summaries=False)
    shared = message.shared(sent.mean(0))
    assert shared.between is not None and shared.spread is not None
    assert float(shared.between[0]) == pytest.approx(between, abs=0.6)
    assert float(shared.spread[0]) == pytest.approx(spread, abs=0.12)


@pytest.mark.parametrize("size", [0.05, 1.0, 1e3])
def test_whatever_the_noise_moments_are_numbers_that_can_scale(size: float) -> None:
    batch = federation()
    message, sent = of(batch)
    for seed in range(20):
        noise = size * torch.randn(message.coordinates, generator=torch.Generator().manual_seed(seed))
        shared = message.shared(sent.mean(0) + noise, size)
        assert shared.between is not None and shared.spread is not None and shared.summaries is not None
        leaves = (shared.mean, shared.std, shared.between, shared.spread, *shared.summaries)
        assert all(bool(leaf.isfinite().all()) for leaf in leaves)
        assert bool((shared.std > 0).all() & (shared.between >= 0).all() & (shared.spread >= 0).all())
        assert bool((shared.summaries.std > 0).all() & (shared.summaries.between >= 0).all())


def test_a_column_that_varies_inside_nobody_is_scaled_by_what_lies_between() -> None:
    x = torch.linspace(-10, 20, 30, dtype=torch.float64).view(30, 1, 1).expand(30, 5, 1)
    batch = batch_of(x, torch.randn(30, 5, dtype=torch.float64))
    message = MomentMessage.of(("shrunk", "client"), {0: (-20.0, 30.0)})
    shared = message.shared(message.of_clients(batch).mean(0))
    assert float(shared.std[0]) == pytest.approx(float(x[:, 0, 0].std(correction=0)), rel=1e-6)
    assert shared.between is not None and shared.between[0] == 0


def test_one_client_is_told_no_better_than_the_norm_allows() -> None:
    """The distinguishing game with the farthest message; with the norm of one number instead of D it is lost."""
    message, sent = of(federation(1))
    farthest = torch.ones_like(sent[0])
    cohorts, multiplier = Cohorts(1), 1.0  # Laplace of this scale: epsilon 1
    right = Mechanism("laplace", message.longest[0], multiplier)
    direction = farthest / farthest.norm(1)
    assert lower_bound(right, cohorts, direction, releases=20_000) <= 1.0
    wrong = Mechanism("laplace", 1.0, multiplier)
    noisy = [
        mechanisms.noisy_mean({"v": one[None]}, wrong, cohorts, torch.Generator().manual_seed(3), 500)["v"]
        for one in (farthest, torch.zeros_like(farthest))
    ]
    above = [float((one.sum(1) > message.coordinates / 2).double().mean()) for one in noisy]
    assert above[0] > math.exp(2.0) * above[1]


def test_what_noise_hides_is_taken_to_be_usual() -> None:
    """Of noise alone columns keep the scale of their ranges, and nothing is divided by what is left of it."""
    message, sent = of(federation(), summaries=False)
    for seed in range(20):
        noise = 3.0 * torch.randn(message.coordinates, generator=torch.Generator().manual_seed(seed))
        shared = message.shared(sent.mean(0) + noise, 3.0)
        share = shared.std[[1, 3]] / (0.5 * (message.high - message.low))[[1, 3]]
        assert bool((share > 0.1).all() & (share < 1.5).all())
