"""Cohorts: the same for the same seed and round, and fair."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from pacbayes_fl.data.batch import client_id
from pacbayes_fl.federation.cohort import draw, draw_poisson


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


@pytest.mark.slow
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


# Poisson --------------------------------------------------------------------------------------------------------


@pytest.mark.law
@pytest.mark.parametrize("seed", [0, None], ids=["seed", "system"])
@pytest.mark.parametrize("share", [0.03, 0.4, 0.9])
def test_everybody_takes_part_with_the_same_chance_whatever_the_others_do(seed: int | None, share: float) -> None:
    rounds, clients = 2000, 8
    chosen = torch.zeros(rounds, clients, dtype=torch.float64)
    for round in range(rounds):
        chosen[round, draw_poisson(seed, round, range(clients), share)] = 1
    together = chosen.T @ chosen
    follow = (chosen[1::2] * chosen[::2]).sum(0)  # of rounds two by two, which are independent
    for counts, expected, number in (
        (together.diagonal(), share, rounds),
        (together[tuple(torch.triu_indices(clients, clients, 1))], share**2, rounds),
        (follow, share**2, rounds // 2),
    ):
        low, high = stats.binom.interval(1 - 1e-9, number, expected)  # a few rare pairs are far from normal
        assert low <= counts.min() and counts.max() <= high
    sizes = chosen.sum(1)
    counts = torch.bincount(sizes.long(), minlength=clients + 1)
    expected = rounds * stats.binom(clients, share).pmf(range(clients + 1))
    usual = expected > 5
    assert (
        stats.chisquare(
            [*counts.numpy()[usual], counts.numpy()[~usual].sum()], [*expected[usual], expected[~usual].sum()]
        ).pvalue
        > 1e-6
    )


def test_a_client_is_drawn_or_not_whoever_else_there_is() -> None:
    ids = [client_id(f"house_{k}") for k in range(12)]
    for round in range(50):
        chosen = {ids[k] for k in draw_poisson(1, round, ids, 0.4).tolist()}
        some = list(reversed(ids))[::2]
        assert {some[k] for k in draw_poisson(1, round, some, 0.4).tolist()} == chosen & set(some)
    first = draw_poisson(1, 3, ids, 0.4)
    assert first.dtype == torch.int64 and first.tolist() == sorted(first.tolist())
    assert torch.equal(draw_poisson(1, 3, ids, 0.4), first)
    assert len({tuple(draw_poisson(seed, t, ids, 0.4).tolist()) for seed in range(10) for t in range(10)}) > 90


def test_certain_and_impossible_cohorts() -> None:
    assert draw_poisson(0, 1, range(1000), 1.0).tolist() == list(range(1000))
    assert draw_poisson(None, 1, range(1000), 1.0).tolist() == list(range(1000))
    assert draw_poisson(0, 1, range(1000), 0.0).tolist() == []


def test_cohorts_of_the_system_are_fair_and_not_to_be_repeated() -> None:
    rounds, clients, size = 2000, 8, 3
    chosen = torch.zeros(clients, dtype=torch.float64)
    for round in range(rounds):
        one = draw(None, round, range(clients), size)
        assert len(one) == size and one.tolist() == sorted(set(one.tolist()))
        chosen[one] += 1
    share = size / clients
    assert float((chosen / rounds - share).abs().max()) < 4.8 * math.sqrt(share * (1 - share) / rounds)
    assert len({tuple(draw(None, 1, range(100), 50).tolist()) for _ in range(20)}) == 20
