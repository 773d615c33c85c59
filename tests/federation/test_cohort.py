"""Cohorts: the asked size, no client twice, the same for the same seed and round, and fair."""

from __future__ import annotations

import pytest
import torch

from pacbayes_fl.federation import cohort


@pytest.mark.parametrize("size", [1, 3, 7])
def test_a_cohort_has_its_size_and_nobody_twice(size: int) -> None:
    drawn = cohort.draw(3, 1, 8, size).tolist()
    assert len(drawn) == size == len(set(drawn))
    assert drawn == sorted(drawn) and set(drawn) <= set(range(8))


@pytest.mark.parametrize("size", [None, 8, 9])
def test_everybody_takes_part_when_no_fewer_are_wanted(size: int | None) -> None:
    assert cohort.draw(3, 1, 8, size).tolist() == [*range(8)]


def test_a_cohort_depends_on_seed_and_round_alone() -> None:
    state = torch.get_rng_state()
    first = [cohort.draw(seed, round, 20, 5).tolist() for seed in (0, 1) for round in (1, 2)]
    again = [cohort.draw(seed, round, 20, 5).tolist() for seed in (0, 1) for round in (1, 2)]
    assert first == again
    assert len({tuple(drawn) for drawn in first}) == 4
    assert torch.equal(torch.get_rng_state(), state)


def test_every_client_is_drawn_equally_often() -> None:
    rounds, clients, size = 2000, 8, 3
    counts = torch.stack([torch.bincount(cohort.draw(0, t, clients, size), minlength=clients) for t in range(rounds)]).sum(0)
    share = size / clients
    assert ((counts - rounds * share).abs() < 4.5 * (rounds * share * (1 - share)) ** 0.5).all()
