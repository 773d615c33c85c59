"""What is said of a data set is what was put into it, with the client where it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from pacbayes_fl.data.archives import Array
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.inspection import Finding, inspect, same_rows, target_copies
from pacbayes_fl.data.tables import Column, Dataset, Group, Times

NAMES = ("house_0", "house_1", "house_2")
HOUR = 3600 * 10**6


def dataset(
    lengths: tuple[int, ...] = (20, 9, 40), hours: dict[str, list[int]] | None = None, **columns: object
) -> Dataset:
    """Draw houses with a feature, a capacity of each and whatever columns are given, the last quarter test rows."""
    random = np.random.default_rng(0)
    train, test, times = [], [], []
    for k, (name, length) in enumerate(zip(NAMES, lengths, strict=True)):
        x = np.column_stack((random.normal(size=length), np.full(length, 3.0 + k), np.full(length, 7.0)))
        y = random.normal(size=length)
        for column, values in columns.items():
            own = values.get(name) if isinstance(values, dict) else None
            for at, value in (own or {}).items():
                (y if column == "y" else x[:, 0])[at] = value
        rows, cut = torch.from_numpy(x), length - length // 4
        train.append((rows[:cut], torch.from_numpy(y)[:cut]))
        test.append((rows[cut:], torch.from_numpy(y)[cut:]))
        when = torch.tensor((hours or {}).get(name, range(length)), dtype=torch.int64) * HOUR + 1_700_000_000_000_000
        times.append((when[:cut], when[cut:]))
    batches = [ClientBatch.pad(part, NAMES) for part in (train, test)]
    padded = [torch.nn.utils.rnn.pad_sequence([one[j] for one in times], batch_first=True) for j in range(2)]
    group = Group(*batches, times=Times(*padded) if hours is not None else None)
    return Dataset(
        {"existing": group}, (Column("ghi"), Column("capacity"), Column("site")), Column("y"), {}, time_kind="datetime"
    )


def of(found: list[Finding], topic: str) -> list[Finding]:
    return [one for one in found if one.topic == topic]


def test_lengths_are_named_smallest_median_and_largest() -> None:
    found = inspect(dataset())
    assert found[0] == Finding(
        "rows",
        "69 rows of 3 clients, 17 of them test rows; smallest house_1 9, median house_0 20, largest house_2 40",
        "",
        {"house_0": 20.0, "house_1": 9.0, "house_2": 40.0},
    )
    assert {one.topic for one in found} == {"rows", "client features", "constants"}


def test_columns_that_tell_clients_apart_and_columns_that_tell_nothing_are_named() -> None:
    found = inspect(dataset(ghi={"house_1": {k: 5.0 for k in range(9)}}, y={"house_1": {k: 1.0 for k in range(9)}}))
    (apart,) = of(found, "client features")
    assert apart.text.startswith("capacity: constant inside clients") and "data.client_features" in apart.advice
    texts = [one.text for one in of(found, "constants")]
    assert texts == [
        "site: the same number in all rows",
        "do not vary inside some clients, and are 0 there: ghi in house_1",
        "targets of house_1 do not vary",
    ]


def test_gaps_are_counted_by_client_and_the_longest_is_dated() -> None:
    given = dataset(hours={"house_0": [*range(10), *range(58, 68)], "house_2": [*range(39), 41]})
    (gaps,) = of(inspect(given), "gaps")
    (zoned,) = of(inspect(replace(given, time_kind="datetime with a time zone")), "gaps")
    assert zoned.text == gaps.text.replace(" on", " UTC on")
    assert gaps.clients == {"house_0": 1, "house_2": 1}
    assert "the longest, 2.04 days, of house_0 from 2023-11-15T07:13:20 on" in gaps.text
    (plain,) = of(inspect(replace(given, time_kind="number")), "gaps")  # however large, such as epochs in milliseconds
    assert "the longest, 49 steps, of house_0 from 1700032400000000 on" in plain.text and plain.clients == gaps.clients


@pytest.mark.parametrize("timed", [False, True])
def test_repeats_are_counted_and_times_tell_them_apart(timed: bool) -> None:
    night = {at: 0.0 for at in (0, 1, 2, 38, 39)}
    given = dataset(hours={} if timed else None, ghi={"house_2": night}, y={"house_2": night})
    found = inspect(given)
    (repeats,) = of(found, "repeats")
    assert repeats.clients == {"house_2": 4} and ("data.time" in repeats.advice) is not timed
    across = of(found, "repeats across the split")
    assert [one.clients for one in across] == ([] if timed else [{"house_2": 2}])
    assert timed or (
        "data.duplicate_rows" in across[0].advice
        and not of(inspect(given, allowed=True), "repeats across the split")[0].advice
    )


def test_two_labels_are_those_of_true_and_false_and_advice_names_a_method() -> None:
    whole = {name: {at: float(at % 2) for at in range(n)} for name, n in zip(NAMES, (20, 9, 40), strict=True)}
    (labels,) = of(inspect(dataset(y=whole)), "labels")
    assert labels.text.startswith("y holds 0 and 1 alone, as which True and False are read,")
    assert "method.name = 'pfedbayes'" in labels.advice


def test_near_twins_and_outliers_and_labels() -> None:
    found = inspect(
        dataset(ghi={"house_0": {3: 1.0, 4: 1.0 + 1e-7}, "house_2": {5: -900.0}}, y={"house_0": {3: 0.5, 4: 0.5}})
    )
    (near,) = of(found, "near-twins")
    assert near.clients == {"house_0": 1}
    (far,) = of(found, "outliers")
    assert far.clients == {"house_2": 1} and far.text.endswith("the farthest -900 of house_2")
    whole = {name: {at: float(at % 3) for at in range(n)} for name, n in zip(NAMES, (20, 9, 40), strict=True)}
    (labels,) = of(inspect(dataset(y=whole)), "labels")
    assert labels.text.startswith("y holds whole numbers 0 to 2") and "data.task = 'classification'" in labels.advice


def copied(rows: dict[str, list[tuple[float, float]]], new: tuple[str, ...] = ()) -> Dataset:
    """Make clients of these rows of a feature and a target, the last of each a test row; some never train."""
    groups = {}
    for label, names in (("existing", [one for one in rows if one not in new]), ("new", [*new])):
        if names:
            whole = [torch.tensor(rows[name], dtype=torch.float64) for name in names]
            batches = [
                ClientBatch.pad([(each[part, :1], each[part, 1]) for each in whole], names)
                for part in (slice(None, -1), slice(-1, None))
            ]
            groups[label] = Group(*batches)
    return Dataset(groups, (Column("x"),), Column("y"), {})


ROWS = [(0.1, 1.5), (0.2, -0.5), (0.3, 0.7), (0.4, -0.0)]


def test_clients_that_are_copies_are_named_whatever_the_order_of_their_rows() -> None:
    given = copied(
        {"a": ROWS, "b": [(9.0 + k, 1.0) for k in range(4)], "c": ROWS[::-1], "d": ROWS[1:] + ROWS[:1]}, ("d",)
    )
    assert same_rows(given) == (("a", "c", "d"),)
    (finding,) = of(inspect(given), "copied clients")
    assert finding.text.startswith("a and c, d: the same rows under several names") and "['c', 'd']" in finding.advice


def with_target(make: Callable[[Array], Array], lengths: tuple[int, ...] = (20, 9, 40)) -> Dataset:
    """Houses whose target is made of their first feature."""
    given = dataset(lengths)
    group = given.groups["existing"]
    parts = [replace(one, y=torch.from_numpy(make(one.x[..., 0].numpy()))) for one in (group.train, group.test)]
    return replace(given, groups={"existing": Group(*parts)})


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda x: x, True),
        (lambda x: 7e5 - 1e3 * x, True),
        (lambda x: (1e3 * x).round(3), True),
        (lambda x: x + 1e-2 * np.cos(9 * x), False),
        (lambda x: x**3, False),
        (lambda x: 0 * x, False),
    ],
)
def test_a_feature_that_is_the_target_is_named_in_whatever_unit(make: Callable[[Array], Array], found: bool) -> None:
    given = with_target(make)
    name = given.features[0].name
    assert target_copies(given) == ((name,) if found else ())
    said = of(inspect(given), "target")
    assert [one.text.startswith(f"{name!r} gives the target") for one in said] == [True] * found


def test_few_rows_do_not_tell_a_copy_of_the_target() -> None:
    assert target_copies(with_target(lambda x: x, (6, 6, 6))) == ()


def test_advice_that_names_some_of_many_copies_says_so() -> None:
    given = copied({f"c{k}": ROWS for k in range(8)})
    (finding,) = of(inspect(given), "copied clients")
    assert finding.advice.endswith("= ['c1', 'c2', 'c3', 'c4', 'c5'] leaves 5 of the 7 copies out")


@pytest.mark.parametrize(
    "other",
    [
        [*ROWS[:3], (0.4, 1e-300)],  # another target in one row
        [*ROWS, ROWS[0]],  # one row twice
        ROWS[:3],  # a part
    ],
)
def test_clients_that_differ_in_a_row_are_no_copies(other: list[tuple[float, float]]) -> None:
    assert same_rows(copied({"a": ROWS, "b": other})) == ()


def test_rows_that_many_clients_have_make_no_copies() -> None:
    """Where rows are of few kinds clients have the same by chance."""
    few = [(float(k % 4), float(k // 4)) for k in range(4)]
    assert same_rows(copied({"a": few, "b": few})) == (("a", "b"),)
    assert same_rows(copied({"a": few, "b": few, "c": [*few[:1], (7.0, 7.0)]})) == ()
    assert same_rows(copied({"a": few[:2], "b": few[:2]})) == ()


def test_a_client_in_another_unit_is_named_and_clients_as_others_are_not() -> None:
    random = torch.Generator().manual_seed(0)
    x, y = torch.randn(6, 12, 1, generator=random).double(), torch.randn(6, 12, generator=random).double()
    names, columns = [f"c{k}" for k in range(6)], ((Column("a"),), Column("y"))

    def units(factor: float) -> list[Finding]:
        scaled = y * torch.tensor([1.0, 1.0, factor, 1.0, 1.0, 1.0]).unsqueeze(1)
        batch = ClientBatch.pad([*zip(x, scaled, strict=True)], names)
        return of(inspect(Dataset({"existing": Group(batch, batch)}, *columns, {}), allowed=True), "units")

    assert [one.text for one in units(1000.0)] == ["y of c2 is far from that of all other clients"]
    assert units(3.0) == []
