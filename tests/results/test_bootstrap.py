"""Bootstrap intervals over seeds and clients."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pacbayes_fl.errors import ShapeError, StudyError
from pacbayes_fl.results import bootstrap
from pacbayes_fl.results.bootstrap import nested_bootstrap, nested_bootstraps


def test_bootstrap_is_deterministic_and_leaves_the_global_generator_alone() -> None:
    values = np.random.default_rng(5).normal(size=(3, 20)).tolist()
    before = np.random.get_state()[1].copy()  # noqa: NPY002  the global one is what must not be used
    assert nested_bootstrap(values) == nested_bootstrap(values)
    assert nested_bootstrap(values, seed=1) != nested_bootstrap(values, seed=2)
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002
    assert nested_bootstrap([[1.0, 3.0], [5.0]])[0] == 3.5
    assert all(math.isnan(number) for number in nested_bootstrap([[1.0, math.nan]]))


def test_one_number_has_no_interval_and_equal_ones_have_one_of_no_width() -> None:
    mean, low, high = nested_bootstrap([[3.0]])
    assert mean == 3.0 and math.isnan(low) and math.isnan(high)
    assert nested_bootstrap([[3.0, 3.0]]) == nested_bootstrap([[3.0], [3.0]]) == (3.0, 3.0, 3.0)
    _, low, high = nested_bootstrap([[1.0], [2.0], [4.0]])  # of one client the seeds differ
    assert 1.0 <= low < high <= 4.0


@pytest.mark.parametrize("values", [[], [[]], [[1.0], []]])
def test_bootstrap_refuses_nothing(values: list[list[float]]) -> None:
    with pytest.raises(ShapeError, match="at least one client"):
        nested_bootstrap(values)


def test_bootstrap_refuses_a_level_outside_0_1() -> None:
    with pytest.raises(StudyError, match="level"):
        nested_bootstrap([[1.0]], level=95)


def test_one_seed_matches_a_plain_bootstrap_over_clients() -> None:
    values = np.random.default_rng(3).gamma(2.0, size=40)
    random = np.random.default_rng(4)
    means = values[random.integers(40, size=(20000, 40))].mean(1)
    mean, low, high = nested_bootstrap([values.tolist()], draws=20000)
    assert mean == pytest.approx(values.mean())
    assert [low, high] == pytest.approx(np.quantile(means, [0.025, 0.975]), abs=0.02)


def test_seeds_with_unequal_numbers_match_a_plain_nested_bootstrap() -> None:
    random = np.random.default_rng(5)
    rows = [random.gamma(1.0, size=size) + np.arange(size) for size in (2, 4, 9)]
    means = []
    for _ in range(10000):
        drawn = [rows[index] for index in random.integers(3, size=3)]
        means.append(np.mean([row[random.integers(row.size, size=row.size)].mean() for row in drawn]))
    mean, low, high = nested_bootstrap([row.tolist() for row in rows], draws=20000)
    assert mean == pytest.approx(np.mean([row.mean() for row in rows]))
    assert [low, high] == pytest.approx(np.quantile(means, [0.025, 0.975]), abs=0.1)


def test_clients_are_drawn_jointly_over_seeds() -> None:
    """Five seeds that all see the same hard clients know no more about clients than one seed does."""
    clients = np.random.default_rng(0).normal(size=30).tolist()
    _, low, high = nested_bootstrap([clients])
    _, low5, high5 = nested_bootstrap([clients] * 5)
    assert high5 - low5 == pytest.approx(high - low, rel=0.1)
    # one client fewer under one seed: drawn on their own, and the interval shrinks
    _, low_nested, high_nested = nested_bootstrap([clients] * 4 + [clients[:-1]])
    assert high_nested - low_nested < 0.6 * (high - low)


@pytest.mark.parametrize("ragged", [False, True])
def test_bootstrap_covers(ragged: bool) -> None:
    """Values = client + seed + noise for the crossed case, seed + noise for clients that differ by seed."""
    random = np.random.default_rng(1)
    hits = 0
    for trial in range(200):
        seeds, noise = random.normal(size=(12, 1)), random.normal(size=(12, 20))
        values = seeds + noise + (0.0 if ragged else random.normal(size=(1, 20)))
        rows = [row[: 20 - (index % 3) * ragged].tolist() for index, row in enumerate(values)]
        _, low, high = nested_bootstrap(rows, seed=trial, draws=300)
        hits += low <= 0.0 <= high
    assert 0.87 <= hits / 200 <= 0.99


def one_by_one(values: list[list[float]], seed: int) -> tuple[float, float, float]:
    """Bootstrap one metric with all of its replicates at once."""
    rows = [np.array(row) for row in values]
    random, n_seeds, n = np.random.default_rng(seed), len(rows), rows[0].size
    seeds = random.multinomial(n_seeds, np.full(n_seeds, 1 / n_seeds), size=2000)
    clients = random.multinomial(n, np.full(n, 1 / n), size=2000)
    means = ((seeds @ np.stack(rows)) * clients).sum(1) / (n_seeds * n)
    low, high = np.quantile(means, [(1 - 0.95) / 2, (1 + 0.95) / 2])
    return float(np.mean([row.mean() for row in rows])), float(low), float(high)


@pytest.mark.law
@pytest.mark.parametrize("block", [1, 37, 1000, 2**20])
@pytest.mark.parametrize("n_seeds", [1, 3])
def test_bootstraps_of_many_metrics_are_those_of_each_alone_bit_by_bit(
    n_seeds: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(block)
    many = [random.normal(size=(n_seeds, n)).tolist() for n in (24, 2, 24, 7, 24)]
    ragged = [[1.0, 2.0, 4.0], [0.5]]
    alone = [one_by_one(values, 5) for values in many]
    monkeypatch.setattr(bootstrap, "_BLOCK", block)
    assert nested_bootstraps([*many, ragged], 5) == [
        *alone,
        nested_bootstrap(ragged, 5),
    ]
    assert [nested_bootstrap(values, 5) for values in many] == alone
    spoilt = nested_bootstraps([many[0], [[float("nan"), 1.0]] * n_seeds, many[2]], 5)
    assert [spoilt[0], spoilt[2]] == [alone[0], alone[2]] and all(map(math.isnan, spoilt[1]))
    assert nested_bootstraps([]) == []
