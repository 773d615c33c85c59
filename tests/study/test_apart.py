"""What nodes say of themselves, and the roster that the server makes of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from pacbayes_fl.data.target_bounds import Bounds
from pacbayes_fl.errors import DataError, DeployError, StudyError
from pacbayes_fl.study import apart
from pacbayes_fl.study.apart import Hello, Roster
from pacbayes_fl.study.file import Study

ONE = Hello({"b": 3, "a": 1}, (("x", "m"), ("z", "")), ("y", "kW"), None, (), ("float64", "float64"))
CPU = torch.device("cpu")


def test_what_a_node_says_is_read_as_it_was_written() -> None:
    assert Hello.from_json(ONE.to_json()) == ONE
    images = Hello({"w": 5}, (("image", ""),), ("label", ""), 10, (1, 4, 4), ("float32", "int64"))
    assert Hello.from_json(images.to_json()) == images
    batch = Roster.of([images], CPU).batch
    assert batch.x.shape == (1, 5, 1, 4, 4) and batch.y.dtype == torch.int64


@pytest.mark.parametrize(
    "change",
    [{"clients": {}}, {"clients": {"a": 0}}, {"clients": [1]}, {"features": None}, {"dtypes": ["float16", "float64"]}],
    ids=str,
)
def test_what_no_node_says_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(DeployError, match="what a node says of itself cannot be read"):
        Hello.from_json(ONE.to_json() | change)
    with pytest.raises(DeployError):
        Hello.from_json({})


def test_a_roster_does_not_depend_on_who_came_first() -> None:
    two = replace(ONE, clients={"c": 2})
    for nodes in ([ONE, two], [two, ONE]):
        batch = Roster.of(nodes, CPU).batch
        assert batch.names == ("a", "b", "c") and batch.size.tolist() == [1, 3, 2] and batch.x.shape == (3, 3, 2)
    with pytest.raises(DataError, match="client 'a': two nodes claim"):
        Roster.of([ONE, replace(ONE, clients={"a": 1})], CPU)
    with pytest.raises(DataError, match="client 'c': it has other columns or dtypes than 'b'"):
        Roster.of([ONE, replace(two, target=("y", "W"))], CPU)


@pytest.mark.parametrize(
    "change",
    [
        *([], ["transform=log1p"], ["transform=yeo-johnson"], ["lower_bound=-9"], ["upper_bound=-9"]),
        ["transform=logit", "lower_bound=10", "upper_bound=20"],
    ],
    ids=str,
)
def test_columns_are_scaled_by_client_where_nobody_knows_the_others(change: list[str]) -> None:
    study = Study.from_toml("polynomial", ["data.scale=client", *(f"data.{one}" for one in change)])
    shared = apart.settle(study, Roster.of([ONE], CPU).dataset(study.data.bounds))
    assert shared.kinds == ("client",) * 3 and not shared.mean.any()


def test_bounds_of_rows_are_found_by_the_names_that_nodes_tell() -> None:
    study = Study.from_toml("polynomial", ["data.scale=client", "data.lower_bound=-9", "data.upper_bound=z"])
    shared = apart.settle(study, Roster.of([ONE], CPU).dataset(study.data.bounds))
    assert shared.bounds == Bounds(low=-9.0, high_at=1)


def test_everything_that_is_open_is_named_at_once() -> None:
    """Else a deployment would be refused as often as there are open options."""
    own = {"data": {"source": "mine.csv", "task": "classification"}, "method": {"name": "pfedbayes"}}
    with pytest.raises(StudyError, match=r"method\.zeta and model\.temperature are open") as caught:
        apart.check(Study.from_table(own))
    assert caught.value.hint == "set method.zeta and model.temperature to values"
    apart.check(Study.from_table(own, sets=["method.zeta=1", "model.temperature=1"]))
