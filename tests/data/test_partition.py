"""Who gets which rows: exact counts, no row twice, and the statistics of drawn shares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from pacbayes_fl.data import partition
from pacbayes_fl.data.partition import Counts, Parts
from pacbayes_fl.errors import DataError

Array = np.ndarray[Any, Any]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def labels(classes: int, each: int, seed: int = 9) -> Array:
    """Return `each` labels of each class, mixed."""
    return rng(seed).permutation(np.repeat(np.arange(classes), each))


def used(parts: Sequence[Parts]) -> list[int]:
    return [int(row) for mine in parts for part in mine for row in part]


def same(one: Sequence[Parts], other: Sequence[Parts]) -> bool:
    pairs = [pair for mine, theirs in zip(one, other, strict=True) for pair in zip(mine, theirs, strict=True)]
    return all(np.array_equal(a, b) for a, b in pairs)


@pytest.mark.parametrize(
    ("groups", "client", "expected"),
    [
        ("two", 0, {0, 1, 2, 3, 4}),
        ("two", 1, {5, 6, 7, 8, 9}),
        ("two", 2, {0, 1, 2, 3, 4}),
        ("two", 9, {5, 6, 7, 8, 9}),
        ("rotating", 0, {0, 1, 2, 3, 4}),
        ("rotating", 1, {1, 2, 3, 4, 5}),
        ("rotating", 7, {7, 8, 9, 0, 1}),
    ],
)
def test_labels_of_the_two_ways(groups: partition.LabelGroups, client: int, expected: set[int]) -> None:
    assert set(partition.label_set(client, 5, groups, 10)) == expected


def test_the_public_split_has_two_groups_and_the_rotating_one_ten() -> None:
    for groups, count in (("two", 2), ("rotating", 10)):
        assert len({frozenset(partition.label_set(u, 5, groups, 10)) for u in range(10)}) == count  # type: ignore[arg-type]


@pytest.mark.parametrize("groups", ["two", "rotating"])
@pytest.mark.parametrize("counts", [Counts(5, 0, 7), Counts(9, 2, 3)])
@pytest.mark.parametrize("split", [False, True])
def test_every_client_has_exactly_its_rows_of_its_labels(
    groups: partition.LabelGroups, counts: Counts, split: bool
) -> None:
    y = labels(10, 150)
    official_test = rng(4).random(len(y)) < 0.5 if split else None
    members = [0, 1, 2, 3, 10, 11]
    parts = partition.by_labels(y, members, 5, groups, counts, 10, rng(), official_test)
    assert len(parts) == len(members)
    for u, mine in zip(members, parts, strict=True):
        expected = np.isin(np.arange(10), partition.label_set(u, 5, groups, 10))
        for part, count in zip(mine, counts, strict=True):
            assert part.dtype == np.int64
            assert (np.bincount(y[part], minlength=10) == count * expected).all()
        if official_test is not None:
            assert official_test[mine.test].all()
            assert not official_test[mine.train].any() and not official_test[mine.validation].any()
    assert len(used(parts)) == len(set(used(parts))) == 6 * 5 * sum(counts)
    assert len(set(y[parts[0].train][: counts.train].tolist())) > 1  # not sorted by class
    if official_test is None:  # the merged pool takes from both sides
        assert 0 < (rng(4).random(len(y)) < 0.5)[parts[0].test].mean() < 1


def test_a_class_may_be_used_up_to_its_last_row() -> None:
    parts = partition.by_labels(labels(2, 12), range(4), 1, "two", Counts(3, 1, 2), 2, rng())
    assert sorted(used(parts)) == list(range(24))


def test_the_generator_alone_decides_and_new_clients_change_nothing_for_the_others() -> None:
    y, counts = labels(10, 60), Counts(3, 1, 2)
    first, again, other = (partition.by_labels(y, range(4), 5, "two", counts, 10, rng(s)) for s in (1, 1, 2))
    assert same(first, again) and not same(first, other)
    more = partition.by_labels(y, range(7), 5, "two", counts, 10, rng(1))
    for mine, theirs in zip(first, more[:4], strict=True):
        assert all(set(a.tolist()) == set(b.tolist()) for a, b in zip(mine, theirs, strict=True))


def test_too_few_rows_of_a_class_are_named() -> None:
    y = np.concatenate((labels(3, 40), [3] * 11))
    with pytest.raises(DataError, match="class 3: 2 clients with 6 rows each need 12 rows, there are 11"):
        partition.by_labels(y, range(4), 2, "two", Counts(3, 1, 2), 4, rng())
    official_test = np.arange(len(y)) % 4 == 0
    with pytest.raises(DataError, match="class 0, test part: 2 clients with 20 rows each need 40 rows, there are"):
        partition.by_labels(y, range(4), 2, "two", Counts(1, 0, 20), 4, rng(), official_test)
    with pytest.raises(DataError, match=r"labels_per_client must be in 1\.\.4, got 5"):
        partition.by_labels(y, range(4), 5, "two", Counts(1, 0, 2), 4, rng())


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.4, 3.0])
def test_drawn_shares_have_the_moments_of_the_dirichlet_distribution(alpha: float) -> None:
    classes, each, clients = 2000, 200, 5
    y = labels(classes, each)
    parts = partition.dirichlet(y, clients, alpha, classes, rng(), test_share=0.2)
    shares = np.stack([np.bincount(y[np.concatenate(mine)], minlength=classes) for mine in parts], 1) / each
    assert shares.sum(1) == pytest.approx(1)
    assert shares.mean(0) == pytest.approx(1 / clients, abs=0.02)
    variance = (1 / clients) * (1 - 1 / clients) / (clients * alpha + 1)
    assert shares.var(0) == pytest.approx(variance, rel=0.1)
    assert shares.var(0).mean() == pytest.approx(variance, rel=0.03)


def test_shares_have_these_moments_over_seeds_too() -> None:
    seeds, each, clients, alpha = 600, 100, 4, 0.4
    y = labels(6, each)
    parts = [partition.dirichlet(y, clients, alpha, 6, rng(seed), test_share=0.2) for seed in range(seeds)]
    assert all(sorted(used(mine)) == list(range(6 * each)) for mine in parts[:20])
    shares = np.array([[np.sum(y[np.concatenate(own)] == 0) / each for own in mine] for mine in parts])
    variance = (1 / clients) * (1 - 1 / clients) / (clients * alpha + 1)
    assert shares.mean(0) == pytest.approx(1 / clients, abs=4 * (variance / seeds) ** 0.5)
    assert shares.var(0) == pytest.approx(variance, rel=0.2)


def test_every_row_is_shared_out_once_and_split_by_share() -> None:
    y = labels(10, 100)
    parts = partition.dirichlet(y, 7, 0.5, 10, rng(3), test_share=0.25, validation_share=0.1, minimum=20)
    assert sorted(used(parts)) == list(range(1000))
    for mine in parts:
        size = sum(map(len, mine))
        assert size >= 20 and len(mine.test) == round(0.25 * size) and len(mine.validation) == round(0.1 * size)
    again = partition.dirichlet(y, 7, 0.5, 10, rng(3), test_share=0.25, validation_share=0.1, minimum=20)
    other = partition.dirichlet(y, 7, 0.5, 10, rng(4), test_share=0.25, validation_share=0.1, minimum=20)
    assert same(parts, again) and not same(parts, other)


@pytest.mark.parametrize("minimum", [10, 50])  # 50: all clients alike, exactly
def test_nobody_is_left_with_too_few_rows(minimum: int) -> None:
    y = labels(10, 100)
    least = [
        min(
            len(np.concatenate(mine)) for mine in partition.dirichlet(y, 20, 0.02, 10, rng(), test_share=0.2, minimum=m)
        )
        for m in (2, minimum)
    ]
    assert least[0] < 10 and least[1] >= minimum  # the draw alone would have left some with fewer
    parts = partition.dirichlet(y, 20, 0.02, 10, rng(), test_share=0.2, minimum=minimum)
    assert sorted(used(parts)) == list(range(1000))


def test_the_official_split_is_kept_with_the_same_shares_on_both_sides() -> None:
    y = labels(4, 1000)
    official_test = np.arange(4000) % 5 == 0
    parts = partition.dirichlet(
        y, 3, 0.5, 4, rng(1), test_share=0.9, validation_share=0.1, minimum=2, official_test=official_test
    )
    assert sorted(used(parts)) == list(range(4000))
    for mine in parts:
        learned = np.concatenate((mine.train, mine.validation))
        assert official_test[mine.test].all() and not official_test[learned].any()
        assert len(mine.validation) == round(0.1 * len(learned))
        for label in range(4):
            fit, held = (np.sum(y[rows] == label) for rows in (learned, mine.test))
            totals = [np.sum((y == label) & (official_test == side)) for side in (False, True)]
            assert fit / totals[0] == pytest.approx(held / totals[1], abs=0.02)


def test_shares_that_cannot_be_had_are_named() -> None:
    y = labels(4, 10)
    with pytest.raises(DataError, match="9 clients with at least 5 rows each need 45 rows, there are 40"):
        partition.dirichlet(y, 9, 1.0, 4, rng(), test_share=0.2, minimum=5)
    with pytest.raises(DataError, match="alpha must be positive, got 0"):
        partition.dirichlet(y, 3, 0.0, 4, rng(), test_share=0.2)
    with pytest.raises(DataError, match="test_share must be between 0 and 1, got 1"):
        partition.dirichlet(y, 3, 1.0, 4, rng(), test_share=1.0)
    with pytest.raises(DataError, match="rows that are not tested on and would keep"):
        partition.dirichlet(y, 3, 1.0, 4, rng(), test_share=0.5, validation_share=0.5, minimum=4)


def writers() -> tuple[Array, Array]:
    """Return labels and owners of 40 rows: owners 0..4 have 14, 10, 8, 5 and 3 of them, mixed."""
    owner = rng(2).permutation(np.repeat(np.arange(5), [14, 10, 8, 5, 3]))
    return np.arange(40) % 20, owner


def test_each_writer_is_a_client_with_all_of_its_rows() -> None:
    y, owner = writers()
    parts = partition.natural(y, owner, 5, rng(), test_share=0.2, validation_share=0.1)
    assert sorted(parts) == [0, 1, 2, 3, 4]
    for writer, mine in parts.items():
        rows = np.concatenate(mine)
        assert sorted(rows.tolist()) == np.flatnonzero(owner == writer).tolist()
        assert len(mine.test) == max(1, round(0.2 * len(rows))) and len(mine.validation) == round(0.1 * len(rows))


def test_writers_are_drawn_among_those_with_enough_rows() -> None:
    y, owner = writers()
    draws = [list(partition.natural(y, owner, 2, rng(s), test_share=0.2, minimum=6)) for s in range(40)]
    assert {writer for draw in draws for writer in draw} == {0, 1, 2} and all(len(set(draw)) == 2 for draw in draws)
    with pytest.raises(DataError, match="4 clients are asked for, but only 3 owners have at least 6 rows "):
        partition.natural(y, owner, 4, rng(), test_share=0.2, minimum=6)


def test_labels_filter_the_rows_of_writers() -> None:
    y, owner = writers()
    parts = partition.natural(y, owner, 4, rng(), test_share=0.3, labels=range(10))
    for writer, mine in parts.items():
        assert sorted(np.concatenate(mine).tolist()) == np.flatnonzero((owner == writer) & (y < 10)).tolist()


def test_the_official_split_of_writers_is_kept() -> None:
    y, owner = writers()
    official_test = (np.arange(40) % 3 == 0) & (owner != 1)  # writer 1 has no test row
    parts = partition.natural(
        y, owner, 3, rng(), test_share=0.9, validation_share=0.5, minimum=5, official_test=official_test
    )
    assert set(parts) == {0, 2, 3}
    for writer, mine in parts.items():
        assert sorted(mine.test.tolist()) == np.flatnonzero((owner == writer) & official_test).tolist()
        learned = np.flatnonzero((owner == writer) & ~official_test)
        assert sorted([*mine.train, *mine.validation]) == learned.tolist()
        assert len(mine.validation) == round(0.5 * len(learned))
    with pytest.raises(DataError, match="only 3 owners have at least 5 rows and both training and test rows"):
        partition.natural(y, owner, 4, rng(), test_share=0.2, minimum=5, official_test=official_test)


def test_every_training_row_is_as_likely_to_be_kept() -> None:
    whole = Parts(np.arange(10, 20), np.array([1]), np.array([2, 3]))
    counts = np.zeros(20)
    for seed in range(400):
        (mine,) = partition.limited([whole], 4, rng(seed))
        assert len(set(mine.train.tolist())) == 4 and mine[1:] == whole[1:]
        counts[mine.train] += 1
    assert counts[:10].sum() == 0 and (abs(counts[10:] / 400 - 0.4) < 4 * math.sqrt(0.4 * 0.6 / 400)).all()
    (same_rows,) = partition.limited([whole], 99, rng())
    assert sorted(same_rows.train.tolist()) == whole.train.tolist()
    with pytest.raises(DataError, match="limit must be at least 1, got 0"):
        partition.limited([whole], 0, rng())


def test_a_row_used_twice_is_named() -> None:
    def parts(*rows: Sequence[int]) -> Parts:
        return Parts(*(np.array(part, dtype=np.int64) for part in rows))

    partition.check_disjoint([parts([1, 2], [], [3]), parts([4], [5], [6])], ["a", "b"])
    with pytest.raises(DataError, match="client 'b': row 2 is used twice"):
        partition.check_disjoint([parts([1, 2], [], [3]), parts([4], [2], [6])], ["a", "b"])
    with pytest.raises(DataError, match="client 'a': row 1 is used twice"):
        partition.check_disjoint([parts([1, 2], [], [1])], ["a"])
