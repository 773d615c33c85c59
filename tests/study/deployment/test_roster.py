"""What nodes say of themselves, and the roster that the server makes of it."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch

from pacbayes_fl.data.layout import CLASSES
from pacbayes_fl.data.target_bounds import Bounds
from pacbayes_fl.errors import DataError, DeployError, StudyError
from pacbayes_fl.study.deployment import roster
from pacbayes_fl.study.deployment.roster import Hello, Roster
from pacbayes_fl.study.file import Study

ONE = Hello({"b": 3, "a": 1}, (("x", "m"), ("z", "")), ("y", "kW"), None, (), ("float64", "float64"))
CPU = torch.device("cpu")


def test_what_a_node_says_is_read_as_it_was_written() -> None:
    assert Hello.from_json(ONE.to_json()) == ONE
    images = Hello({"w": 5}, (("image", ""),), ("label", ""), 10, (1, 4, 4), ("float32", "int64"))
    for told in (images, replace(images, classes=CLASSES)):
        assert Hello.from_json(told.to_json()) == told
    roster = Roster.of([images], CPU)
    assert roster.sizes == {"w": 5}
    assert roster.batch.x.shape == (1, 1, 1, 4, 4) and roster.batch.y.dtype == torch.int64


NUMBERS = (0, -1, 2**40 + 1, 10**13, 10**40, math.inf, math.nan, 1.0, True, "3", None, [])
NAMES = ("", " ", "\ud800", "a\nb", "a\x00", "a\x1b[2J", "\u2028", "\x85")


@pytest.mark.parametrize(
    "change",
    [
        *({"clients": {}}, {"clients": [1]}, {"features": None}, {"dtypes": ["float16", "float64"]}),
        *({"clients": {"a": rows}} for rows in NUMBERS),
        *({"clients": {name: 1}} for name in NAMES),
        *({"new": [name]} for name in (*NAMES, "a", 1, None)),
        *({"new": ["c", "c"]}, {"clients": {"caf\u00e9": 1, "cafe\u0301": 1}}, {"new": ["a "]}),
        *({"feature_shape": shape} for shape in ([0], [-1], [1.0], [10**12], [2**20, 2**20], "22", [True])),
        *({"classes": classes} for classes in (*NUMBERS[:8], "3", [], 1, CLASSES + 1)),
        *({"features": [["\ud800", ""]]}, {"features": [[1, ""]]}, {"target": ["y", None]}, {"target": ["\udfff", ""]}),
    ],
    ids=ascii,
)
def test_what_no_node_says_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(DeployError, match="what a node says of itself cannot be read"):
        Hello.from_json(ONE.to_json() | change)
    with pytest.raises(DeployError):
        Hello.from_json({})


def test_a_node_whose_own_clients_have_no_names_hears_of_it_before_it_joins() -> None:
    with pytest.raises(DataError, match=r"client 'a\\nb'.*no control characters.*rename"):
        replace(ONE, clients={"a\nb": 3})
    two = replace(ONE, clients={"caf\u00e9": 1}), replace(ONE, clients={"cafe\u0301": 1})
    with pytest.raises(DataError, match=r"differs from .* by what nobody sees"):
        Roster.of(two, CPU)
    assert Hello.from_json(replace(ONE, clients={"a": 2**40}).to_json()).clients == {"a": 2**40}


def test_a_roster_takes_no_memory_for_the_rows_that_nodes_claim() -> None:
    """A mask of 300 clients, one of which has 5 million rows, took 1.5 GB."""
    clients = {f"c{k:03}": 2**40 if k else 5_000_000 for k in range(300)}
    roster = Roster.of([replace(ONE, clients=clients)], CPU)
    for batch in (roster.batch, roster.dataset((0.0, math.inf)).groups["existing"].train):
        assert sum(leaf.untyped_storage().nbytes() for leaf in (batch.x, batch.y, batch.mask)) < 10_000
        assert batch.select(torch.tensor([0])).x.shape == (1, 1, 2)
    assert roster.sizes == clients


def test_a_client_that_claims_nearly_all_rows_is_named() -> None:
    honest = {f"c{k}": 20 + 9 * k for k in range(5)}
    with pytest.warns(UserWarning, match="^client 'much' says that it has 4000000000 training rows, the 5 others 190 "):
        roster = Roster.of([replace(ONE, clients=honest), replace(ONE, clients={"much": 4 * 10**9})], CPU)
    assert roster.sizes["much"] == 4 * 10**9  # it may be true
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for more in ({"more": 1000}, {"as many": 170, "nearly": 600}, {}):
            Roster.of([replace(ONE, clients={**honest, **more})], CPU)
        Roster.of([replace(ONE, clients={"a": 4 * 10**9, "b": 1, "c": 1})], CPU)  # two of three may be the odd ones


def test_a_roster_does_not_depend_on_who_came_first() -> None:
    two = replace(ONE, clients={"c": 2})
    for nodes in ([ONE, two], [two, ONE]):
        roster = Roster.of(nodes, CPU)
        assert [*roster.sizes.items()] == [("a", 1), ("b", 3), ("c", 2)] and roster.batch.x.shape == (3, 1, 2)
        assert roster.batch.names == roster.dataset((0.0, 1.0)).groups["existing"].train.names == ("a", "b", "c")
    with pytest.raises(DataError, match="client 'a': two nodes claim"):
        Roster.of([ONE, replace(ONE, clients={"a": 1})], CPU)
    with pytest.raises(DataError, match="client 'c': it has other columns or dtypes than 'b'"):
        Roster.of([ONE, replace(two, target=("y", "W"))], CPU)


def test_nodes_of_different_labels_are_told_how_to_agree() -> None:
    three, two = replace(ONE, classes=3), replace(ONE, clients={"c": 2}, classes=2)
    with pytest.raises(DataError, match=r"'c': it has 2 classes, and 'b' has 3 classes: .*same data\.classes at all"):
        Roster.of([three, two], CPU)
    with pytest.raises(DataError, match=r"'c': it has 2 classes, and 'b' has no labels: .*data\.task = 'classif"):
        Roster.of([ONE, two], CPU)
    with pytest.raises(DataError, match=r"nodes have 3 classes, and the server's study states data\.classes = 5"):
        Roster.of([three], CPU, 5)
    assert Roster.of([three], CPU, 3).schema.classes == 3


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
    shared = roster.settle(study, Roster.of([ONE], CPU).dataset(study.data.bounds))
    assert shared.kinds == ("client",) * 3 and not shared.mean.any()


def test_bounds_of_rows_are_found_by_the_names_that_nodes_tell() -> None:
    study = Study.from_toml("polynomial", ["data.scale=client", "data.lower_bound=-9", "data.upper_bound=z"])
    shared = roster.settle(study, Roster.of([ONE], CPU).dataset(study.data.bounds))
    assert shared.bounds == Bounds(low=-9.0, high_at=1)


def test_everything_that_is_open_is_named_at_once() -> None:
    """Else a deployment would be refused as often as there are open options."""
    own = {"data": {"source": "mine.csv", "task": "classification"}, "method": {"name": "pfedbayes"}}
    with pytest.raises(StudyError, match=r"method\.zeta, .*rounds and model\.temperature are open") as caught:
        roster.check(Study.from_table(own))
    assert caught.value.hint == "set method.zeta, federation.rounds and model.temperature to values"
    roster.check(Study.from_table(own, sets=["method.zeta=1", "federation.rounds=9", "model.temperature=1"]))
