"""Cohorts: the same for the same seed and round, and fair."""

from __future__ import annotations

import math

import pytest
import torch

from pacbayes_fl.data.batch import client_id
from pacbayes_fl.federation.cohort import draw


@pytest.mark.parametrize("size", [1, 4, 9])
def test_a_cohort_is_sorted_distinct_and_of_the_size_asked_for(size: int) -> None:
    for round in range(200):
        chosen = draw(3, round, range(10), size).tolist()
        assert chosen == sorted(set(chosen)) and len(chosen) == size and 0 <= chosen[0] <= chosen[-1] < 10
    assert draw(3, 1, range(10), 4).dtype == torch.int64 and draw(3, 1, range(10), 4).device.type == "cpu"


@pytest.mark.parametrize("size", [None, 10, 11])
def test_everybody_takes_part_when_nobody_must_be_left_out(size: int | None) -> None:
    assert draw(3, 1, range(10), size).tolist() == list(range(10))


def test_seed_and_round_decide_and_nothing_else() -> None:
    first = draw(5, 7, range(30), 8)
    state = torch.get_rng_state()
    draw(5, 8, range(30), 8), draw(6, 7, range(30), 8)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(draw(5, 7, range(30), 8), first)
    assert len({tuple(draw(seed, round, range(30), 8).tolist()) for seed in range(10) for round in range(10)}) == 100


def test_clients_and_pairs_are_drawn_equally_often() -> None:
    rounds, clients, size = 4000, 8, 3
    chosen = torch.zeros(rounds, clients, dtype=torch.float64)
    for round in range(rounds):
        chosen[round, draw(0, round, range(clients), size)] = 1
    together = chosen.T @ chosen / rounds
    for counts, share in (
        (together.diagonal(), size / clients),
        (together[tuple(torch.triu_indices(clients, clients, 1))], size * (size - 1) / (clients * (clients - 1))),
    ):
        assert float((counts - share).abs().max()) < 4.5 * math.sqrt(share * (1 - share) / rounds)
    follow = (chosen[1:] * chosen[:-1]).mean(0)  # one round says nothing about the next
    share = (size / clients) ** 2
    assert float((follow - share).abs().max()) < 4.5 * math.sqrt(share * (1 - share) / rounds)


def test_the_order_of_the_clients_changes_nothing() -> None:
    ids = [client_id(f"house_{k}") for k in range(12)]
    chosen = {ids[k] for k in draw(1, 4, ids, 5).tolist()}
    turned = list(reversed(ids))
    assert {turned[k] for k in draw(1, 4, turned, 5).tolist()} == chosen
    assert {ids[k] for k in draw(1, 5, ids, 5).tolist()} != chosen
