"""Partitions: a record is all that one needs, and options of one do not bother another."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from pacbayes_fl import options
from pacbayes_fl.data import partitions, tables
from pacbayes_fl.data.image_federation import federation, planned
from pacbayes_fl.data.partition import Parts
from pacbayes_fl.data.partitions import PARTITIONS, Partition, Pieces
from pacbayes_fl.errors import StudyError
from pacbayes_fl.options import option


@dataclass(frozen=True)
class EveryOptions:
    """Options of the partition "every".

    Args:
        test: share of the rows, which "labels" has as a number of rows.
        stride: rows between two of the client, above the number of clients.
    """

    test: float = option(0.5, above=0, below=1)
    stride: int = option(50, low=1)

    def __post_init__(self) -> None:
        """Check the ranges."""
        options.check(self, "[data]")


def every(pieces: Pieces, own: EveryOptions) -> dict[str, Parts]:
    """Give client u the rows u, u + stride, ..."""
    dealt = {}
    for u in pieces.members:
        rows = np.arange(u, len(pieces.y), own.stride)
        cut = round(own.test * len(rows))
        dealt[f"every_{u}"] = Parts(rows[cut:], rows[:0], rows[:cut])
    return dealt


@pytest.fixture
def with_every(monkeypatch: pytest.MonkeyPatch) -> None:
    record = Partition("every", "every so many rows", EveryOptions, every, refused_elsewhere=("stride",))
    monkeypatch.setattr(partitions, "PARTITIONS", {**PARTITIONS, "every": record})


@pytest.mark.usefixtures("with_every")
def test_a_record_is_all_that_a_partition_needs(root: Path) -> None:
    given = {"root": str(root), "partition": "every", "clients": 3, "stride": 100, "test": 0.25}
    dataset = federation("mnist", given)
    told = tables.to_positions(dataset)
    assert told["client_name"].tolist() == ["every_0", "every_1", "every_2"]
    for k in range(3):
        assert sorted(told["position"][told["owner"] == k].tolist()) == list(range(k, 600, 100))
    assert np.bincount(told["part"]).tolist() == [12, 6]
    assert dataset.provenance["options"] == {
        **{"partition": "every", "clients": 3, "new_clients": 0, "pool": "merged", "domains": ["mnist"], "seed": 0},
        **{"subsample": 1.0, "stride": 100, "test": 0.25},
    }
    with pytest.raises(StudyError, match=r"\[data\] test must be strictly between 0 and 1, got 1"):
        federation("mnist", given | {"test": 1.0})
    with pytest.raises(StudyError, match="partition must be one of 'labels', 'dirichlet', 'natural', 'every', got 'x'"):
        federation("mnist", given | {"partition": "x"})
    with pytest.raises(StudyError, match="stride is for the partition 'every', and the partition is 'labels'"):
        federation("mnist", {"root": str(root), "stride": 9})


def test_options_of_another_partition_are_checked_and_do_nothing() -> None:
    others = {"train": 7, "groups": "two"}
    plain, beside = (planned("mnist", {"partition": "dirichlet"} | more) for more in ({}, others))
    assert plain == beside
    with pytest.raises(StudyError, match="train must be at least 1, got 0"):
        planned("mnist", {"partition": "dirichlet", "train": 0})
    with pytest.raises(StudyError, match=r"unknown key 'trian' \(did you mean 'train'"):
        planned("mnist", {"partition": "dirichlet", "trian": 7})


@pytest.mark.parametrize("name", PARTITIONS)
def test_every_option_of_a_partition_has_a_meaning(name: str) -> None:
    record = PARTITIONS[name]
    assert record.name == name and record.title
    assert all(one.meaning for one in options.options_of(record.options).values())
    assert record.options() == record.options() and {*record.refused_elsewhere} <= {*options.options_of(record.options)}


def test_defaults_are_those_of_the_public_code() -> None:
    plans = {name: planned("femnist", {"partition": name}) for name in PARTITIONS}
    assert vars(plans["labels"].own) == {
        **{"labels_per_client": 5, "groups": "two", "train": 50, "test": 950, "validation": 10}
    }
    shares = {"minimum": 10, "test_share": 0.2, "validation_share": 0.0, "limit": None}
    assert vars(plans["dirichlet"].own) == shares | {"alpha": 0.4}
    assert vars(plans["natural"].own) == shares | {"digits_only": False}
    assert [plan.pool for plan in plans.values()] == ["merged", "merged", "official"]
