"""What a run saves beside tensors survives JSON, and what no run has saved is refused by its round."""

from __future__ import annotations

import json
from types import MappingProxyType

import pytest

from pacbayes_fl.errors import CheckpointError
from pacbayes_fl.federation.checkpoint import Checkpoint
from pacbayes_fl.federation.watch import Watch
from pacbayes_fl.files import JsonTable
from pacbayes_fl.study.storage.saved_meta import SavedMeta

FULL = SavedMeta(
    {"seed": 3},
    (11, 22, 33),
    ("north", "south", "west"),
    (11, 33),
    Watch(failures={"south": 2}, halved=1),
    {"mine.py:M": {"file": "mine.py", "sha256": "00"}},
    ("round 9 is missing; using round 8",),
    7,
)
LEAST = SavedMeta({}, (11,), ("north",))


def saved(meta: JsonTable) -> Checkpoint:
    return Checkpoint(8, {}, MappingProxyType(json.loads(json.dumps(meta))))


@pytest.mark.parametrize("meta", [FULL, LEAST], ids=["full", "least"])
def test_all_values_survive_json(meta: SavedMeta) -> None:
    assert SavedMeta.of(saved(meta.to_json())) == meta


def test_what_is_empty_is_not_written_and_zero_releases_are() -> None:
    assert list(LEAST.to_json()) == ["study", "ids", "names", "watch"]
    assert SavedMeta({}, (), (), released=0).to_json()["released"] == 0


def test_clients_with_a_state_are_all_or_those_that_were_kept() -> None:
    assert (LEAST.stateful, FULL.stateful) == ((11,), (11, 33))
    assert FULL.name_of(33) == "west"


@pytest.mark.parametrize("key", ["study", "ids", "names", "watch"])
def test_a_round_without_a_value_is_refused(key: str) -> None:
    table = FULL.to_json()
    del table[key]
    with pytest.raises(CheckpointError, match=rf"round 8 holds what no run has saved \(KeyError: '{key}'\)"):
        SavedMeta.of(saved(table))


@pytest.mark.parametrize(
    ("key", "value"), [("ids", "11"), ("ids", [1, "2", 3]), ("names", [1, 2, 3]), ("kept", 5), ("names", ["north"])]
)
def test_a_value_of_another_kind_is_refused(key: str, value: object) -> None:
    with pytest.raises(CheckpointError, match="round 8 holds what no run has saved"):
        SavedMeta.of(saved({**FULL.to_json(), key: value}))
