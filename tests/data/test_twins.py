"""Copies of rows are found, also jittered ones, whatever the columns are; against all pairs."""

from __future__ import annotations

import time
import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse.csgraph import connected_components

from pacbayes_fl.data import twins
from pacbayes_fl.data.batch import ClientBatch

Array = np.ndarray[Any, Any]


def all_pairs(rows: Array, width: Array) -> Array:
    near = (np.abs(rows[:, None] - rows[None]) <= width).all(-1)
    return np.asarray(connected_components(near, directed=False)[1])


def same_partition(one: Array, other: Array) -> bool:
    pairs = len(set(zip(one.tolist(), other.tolist(), strict=True)))
    return pairs == len(set(one.tolist())) == len(set(other.tolist()))


def made(kind: str, random: np.random.Generator) -> tuple[Array, Array]:
    """Rows of one kind, with what counts as near."""
    if kind == "continuous":
        rows = random.normal(size=(300, 3))
        return np.concatenate((rows, rows[:80] + random.uniform(-1, 1, (80, 3)) * 1e-4)), np.full(3, 1e-4)
    if kind == "dense":  # chains of neighbours
        return random.uniform(size=(400, 1)), np.full(1, 2e-3)
    if kind == "grid":  # just inside and just outside of the width
        return np.repeat(np.arange(60.0)[:, None], 2, 1) * np.array([1.0, 0.5]), np.array([1.0, 1.0])
    if kind == "binary":
        return random.integers(0, 2, size=(300, 6)).astype(float), np.full(6, 1e-4)
    if kind == "night":  # half of the rows are zeros, and the rest are not
        rows = random.normal(size=(300, 4)) * (random.uniform(size=(300, 1)) < 0.5)
        return rows, np.full(4, 1e-4)
    if kind == "large":  # far from zero, and in very different units
        rows = random.normal(size=(200, 3)) * [1e-6, 1.0, 1e9] + np.array([0.0, 1e6, -1e12])
        return np.concatenate((rows, rows + np.array([4e-11, -4e-5, 4e4]))), np.array([1e-10, 1e-4, 1e5])
    if kind == "one column":  # of several that may differ at all
        rows = random.integers(0, 3, size=(300, 3)).astype(float)
        rows[:, 1] += random.uniform(size=300) * 1e-3
        return rows, np.array([0.0, 1e-4, 0.0])
    if kind == "exact":
        return random.integers(0, 9, size=(300, 2)).astype(float), np.zeros(2)
    rows = random.uniform(size=(150, 785)).astype(np.float32)  # images
    jitter = random.uniform(-1, 1, (50, 785)) * 2.5e-5
    return np.concatenate((rows, (rows[:50] + jitter).astype(np.float32), rows[:10])), np.full(785, 3e-5)


@pytest.mark.parametrize(
    "kind", ["continuous", "dense", "grid", "binary", "night", "large", "one column", "exact", "images"]
)
@pytest.mark.parametrize("seed", [0, 1])
def test_clusters_are_those_of_all_pairs(kind: str, seed: int) -> None:
    rows, width = made(kind, np.random.default_rng(seed))
    expected = all_pairs(rows, width)
    assert same_partition(twins.clusters(rows, width), expected)
    shuffled = np.random.default_rng(seed).permutation(len(rows))
    assert same_partition(twins.clusters(rows[shuffled], width, seed=5), expected[shuffled])
    assert 1 < len(set(expected.tolist())) < len(rows) or kind == "grid"


def test_blocks_of_pairs_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twins, "_BLOCK", 7)
    for kind in ("continuous", "dense", "images"):
        rows, width = made(kind, np.random.default_rng(3))
        assert same_partition(twins.clusters(rows, width), all_pairs(rows, width)), kind


def test_too_many_pairs_make_fewer_clusters_and_never_more(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, width = made("continuous", np.random.default_rng(3))
    exact = twins.clusters(rows, width)
    monkeypatch.setattr(twins, "_PAIRS", 0)
    coarse = twins.clusters(rows, width)
    assert len(set(zip(exact.tolist(), coarse.tolist(), strict=True))) == len(set(exact.tolist()))


def test_no_rows_and_one() -> None:
    assert twins.clusters(np.zeros((0, 3)), np.ones(3)).tolist() == []
    assert twins.clusters(np.zeros((1, 3)), np.ones(3)).tolist() == [0]


@pytest.mark.law
@pytest.mark.parametrize("kind", ["draws", "nights", "one blob"])
def test_many_rows_take_seconds_and_no_square_of_memory(kind: str) -> None:
    random = np.random.default_rng(0)
    rows = random.normal(size=(200_000, 4))
    if kind == "nights":
        rows[::2] = 0.0
    if kind == "one blob":
        rows = 1e-6 * rows
    rows = np.concatenate((rows, rows[:50_000] + 1e-9))
    tracemalloc.start()
    begun = time.process_time()
    result = len(set(twins.clusters(rows, np.full(4, 1e-4)).tolist()))
    seconds, (_, peak) = time.process_time() - begun, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert result == {"draws": 200_000, "nights": 100_001, "one blob": 1}[kind]
    assert seconds < 20 and peak < 2**29


def batch(*clients: Array, shape: tuple[int, ...] = ()) -> ClientBatch:
    pairs = [
        (torch.from_numpy(c[:, :-1]).reshape(len(c), *(shape or (-1,))), torch.from_numpy(c[:, -1])) for c in clients
    ]
    return ClientBatch.pad(pairs)


def test_the_spread_is_within_clients_and_one_outlier_does_not_widen_it() -> None:
    random = np.random.default_rng(0)
    clients = [random.normal(size=(400, 3)) * [1.0, 5.0, 0.2] + 1e3 * k for k in range(5)]
    for client in clients:
        client[:, 1] = client[0, 1]  # the same within a client
    clients[2][0, 0] = 1e12
    result = twins.spread([batch(*clients[:3]), batch(*clients[3:])])
    assert result[[0, 2]] == pytest.approx([1.0, 0.2], rel=0.1)
    assert result[1] == pytest.approx(np.concatenate(clients)[:, 1].std())
    constant = np.concatenate((clients[0][:, :1], np.full((400, 1), 0.1), clients[0][:, 2:]), 1)
    assert twins.spread([batch(constant, constant)])[1] == 0.0


def test_an_image_has_one_spread() -> None:
    rows = np.zeros((20, 10))
    rows[:, 4] = np.arange(20) % 2
    rows[:, 9] = np.arange(20) % 3
    result = twins.spread([batch(rows, shape=(1, 3, 3))])
    assert result[:9] == pytest.approx(np.full(9, 0.5 / 3))
    assert result[9] == pytest.approx(rows[:, 9].std())


def test_rows_come_with_their_clients_and_their_targets() -> None:
    rows, owner = twins.stacked(batch(np.array([[1.0, -0.0, 2.0]]), np.array([[3.0, 4.0, 5.0], [6.0, 7.0, 8.0]])))
    assert (rows.tolist(), owner.tolist()) == ([[1, 0, 2], [3, 4, 5], [6, 7, 8]], [0, 1, 1])
    assert not np.signbit(rows).any()


def test_cells_recognise_a_row_that_is_not_there_any_more() -> None:
    random = np.random.default_rng(0)
    rows = random.normal(size=(2000, 3)) * [1.0, 1.0, 0.0]
    width = np.array([1e-4, 1e-4, 0.0])
    known = twins.cells(rows, width, 7)
    again = twins.cells(rows[::-1] + np.array([1e-9, -1e-9, 0.0]), width, 7)[::-1]
    assert (known == twins.cells(rows, width, 7)).all()
    assert (known == again).any(1).all()
    assert not np.isin(twins.cells(rows + np.array([5e-4, 0, 0]), width, 7), known).any()
    assert not np.isin(twins.cells(rows, width, 8), known).any()
    assert len(np.unique(known)) == known.size


@pytest.mark.parametrize(("columns", "missed"), [(2, 0), (3, 0), (4, 6), (10, 6), (40, 6)])
@pytest.mark.parametrize("away", [0.1, 0.4, 1.0 - 1e-6])
def test_cells_recognise_a_twin_whatever_its_jitter_and_the_number_of_columns(
    columns: int, missed: int, away: float
) -> None:
    """Of 20,000 rows, each jittered in all columns, up or down; they are not taken for others ten cells away."""
    random = np.random.default_rng(columns)
    rows = random.normal(size=(20_000, columns))
    width = np.full(columns, 1e-4)
    twin = rows + away * width * random.choice([-1.0, 1.0], size=rows.shape)
    known = twins.cells(rows, width, 7)
    assert known.shape == (20_000, twins.GRIDS)
    assert (~(known == twins.cells(twin, width, 7)).any(1)).sum() <= missed
    others = twins.cells(rows + 80 * twins.GRIDS * columns * width, width, 7)
    assert not (known == others).any()


@pytest.mark.parametrize("columns", [1, 2, 9, 300])
def test_rounding_cells_recognise_rows_of_any_size_and_tell_rows_apart(columns: int) -> None:
    random = np.random.default_rng(columns)
    rows = random.normal(size=(2000, columns)) * 10.0 ** random.integers(-6, 9, columns)
    rows[:, 0] = 2.0 ** random.integers(-3, 4, 2000) if columns > 2 else rows[:, 0]  # round numbers
    rows[:, 1:] *= random.uniform(size=(2000, columns - 1)) < 0.8  # zeros
    known = twins.rounding_cells(rows)
    assert known.shape == (2, 2000, columns)
    seven = np.array([float(f"{value:.7g}") for value in rows.flat]).reshape(rows.shape)
    single = rows.astype(np.float32)
    for twin, missed in ((rows * (1 + 1e-9), 0.0), (rows / (1 + 1e-9), 0.0), (single, 1e-3), (seven, 5e-3)):
        assert 1 - (known == twins.rounding_cells(twin)).all(2).any(0).mean() <= missed
    filled = np.where((rows == 0).any(1, keepdims=True), np.where(rows == 0, 1e-300, rows), -rows)
    for other in (filled, rows * (1 + 1e-5 * columns)):
        assert not (known == twins.rounding_cells(other)).all(2).any()


def test_rounding_cells_hardly_take_a_row_for_another() -> None:
    """Two columns, the fewest that rows have, of 3000 rows beside 3000 others."""
    one, other = (twins.rounding_cells(np.random.default_rng(seed).normal(size=(3000, 2))) for seed in (0, 1))
    for mine, theirs in zip(one, other, strict=True):
        assert not {row.tobytes() for row in mine} & {row.tobytes() for row in theirs}
