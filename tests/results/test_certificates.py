"""Certificates of a run come back from its folder as they were, and what is damaged is named."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch

from pacbayes_fl.errors import CheckpointError, DataError, StudyError
from pacbayes_fl.files import checksum
from pacbayes_fl.results.certificates import (
    CertifiedClient,
    CertifiedRun,
    OldFormatError,
    is_vacuous,
    load,
    model_of,
    rounded_up,
    tables_of,
)

FIRST = CertifiedClient("roof 1", "existing", 40, 0.1, 2.5, 0.31, 0.125, 200, 3, 0.7, 0.11, 0.16, 1.0)
LAST = CertifiedClient("Dächer", "new", 7, 1 / 3, 1e-300, 0.8, 0.9, 11, 0, 0.99, 0.4, 0.85, 0.0)
RUN = CertifiedRun(
    study="polynomial",
    method="pac-pfl",
    seed=3,
    bound="seeger",
    theorem="Maurer/Seeger, kl inverse",
    risk="0-1 loss of the Gibbs predictor, each client on its own",
    low=0.0,
    high=1.0,
    delta=0.05,
    clients=(FIRST, LAST),
    reasons={"existing": [], "new": []},
    summary={"average": {"value": 0.4, "terms": [1, 2.5, None]}},
    certificates={
        line.group: {
            "valid": True,
            "value": [line.bound],
            "terms": {"risk": [line.risk], "kl": [line.kl], "n": [float(line.rows)], "delta": 0.05},
        }
        for line in (FIRST, LAST)
    },
    holdout={
        line.group: {"valid": True, "value": [line.holdout_bound], "terms": {"risk": [line.holdout_risk]}}
        for line in (FIRST, LAST)
    },
    labels={"split": True, "priors": "other clients"},
    number=1,
    model={"round": None, "state": None, "split": None},
)


def strict(path: Path) -> Any:
    def refuse(word: str) -> float:
        raise AssertionError(f"{word} is not JSON")

    return json.loads(path.read_text("utf-8"), parse_constant=refuse)


def test_a_table_comes_back_as_it_was(tmp_path: Path) -> None:
    path = RUN.save(tmp_path)
    assert path == tmp_path / "certificates" / "seeger.json"
    assert load(path) == RUN
    assert [p.name for p in path.parent.iterdir()] == ["seeger.json"]
    changed = replace(RUN, delta=0.01)
    changed.save(tmp_path)
    assert load(path) == changed


def test_all_tables_of_a_run_come_by_the_name_of_the_bound(tmp_path: Path) -> None:
    assert tables_of(tmp_path) == []
    assert tables_of(tmp_path / "nowhere") == []
    runs = [replace(RUN, bound=name) for name in ("seeger", "catoni", "theorem-4.2")]
    for run in runs:
        run.save(tmp_path)
    assert tables_of(tmp_path) == [runs[1], runs[0], runs[2]]


def test_numbers_that_json_does_not_have_survive(tmp_path: Path) -> None:
    odd = CertifiedClient("odd", "new", 5, math.nan, math.inf, math.inf, math.nan, 0)
    certificates = {"existing": RUN.certificates["existing"], "new": {"valid": True, "value": math.inf}}
    summary = {"average": {"value": math.nan, "parts": (1.0, math.inf)}}
    holdout = {"existing": RUN.holdout["existing"]}
    run = replace(RUN, clients=(FIRST, odd), summary=summary, certificates=certificates, holdout=holdout)
    path = run.save(tmp_path)
    stored = strict(path)
    assert stored["clients"][1] == {
        "name": "odd",
        "group": "new",
        "rows": 5,
        "risk": None,
        "kl": "inf",
        "bound": "inf",
        "test_risk": None,
        "test_rows": 0,
        "repeats": 0,
        "trivial": None,
        "holdout_risk": None,
        "holdout_bound": None,
        "share": None,
    }
    assert stored["summary"] == {"average": {"value": None, "parts": [1.0, "inf"]}}
    first, again = load(path).clients
    assert first == FIRST
    assert math.isnan(again.risk) and math.isnan(again.test_risk)
    assert (again.kl, again.bound, again.test_rows) == (math.inf, math.inf, 0)
    assert load(load(path).save(tmp_path / "twice")).clients[0] == FIRST
    assert strict(tmp_path / "twice" / "certificates" / "seeger.json") == stored


def test_any_mapping_can_be_said(tmp_path: Path) -> None:
    said = MappingProxyType({"average": MappingProxyType({"value": 0.4})})
    back = load(replace(RUN, summary=said, labels=MappingProxyType({})).save(tmp_path))
    assert (back.summary, back.labels) == ({"average": {"value": 0.4}}, {})


def test_what_is_not_json_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"what is said of the bound 'seeger' must be JSON: .*Tensor"):
        replace(RUN, summary={"value": torch.ones(2)}).save(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "certificates").write_text("in the way")
    with pytest.raises(CheckpointError, match=r"cannot write .*seeger\.json"):
        RUN.save(tmp_path)


def changed(**changes: Any) -> Mapping[str, Any]:
    table = {"format_version": 1, **vars(RUN), "clients": [vars(FIRST)], **changes}
    table = {name: value for name, value in table.items() if value is not None}
    return table | {"checksum": checksum(table)}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7",
        "[]",
        '{"clients": []}',
        json.dumps(changed())[:-9],
        json.dumps(changed(clients=None)),
        json.dumps(changed(clients=[3])),
        json.dumps(changed(clients=[{**vars(FIRST), "bound": "abc"}])),
        json.dumps(changed(clients=[{**vars(FIRST), "group": "old"}])),
        json.dumps(changed(clients=[{**vars(FIRST), "more": 1}])),
        json.dumps(changed(clients=[{name: value for name, value in vars(FIRST).items() if name != "kl"}])),
        json.dumps(changed(high="one")),
        json.dumps(changed(delta=None)),
        json.dumps(changed(more=1)),
    ],
)
def test_a_damaged_table_is_named(text: str, tmp_path: Path) -> None:
    path = RUN.save(tmp_path)
    path.write_text(text)
    with pytest.raises(DataError, match=r"seeger\.json cannot be read as certificates: .*certify again"):
        tables_of(tmp_path)


def test_bytes_that_are_no_text_and_a_missing_file_are_named(tmp_path: Path) -> None:
    path = RUN.save(tmp_path)
    assert load(path) == RUN
    path.write_bytes(b"\xff\xfe{")
    for file in (path, tmp_path / "absent.json"):
        with pytest.raises(DataError, match=rf"{file.name} cannot be read as certificates"):
            load(file)


def test_the_undamaged_table_of_these_tests_can_be_read(tmp_path: Path) -> None:
    path = RUN.save(tmp_path)
    path.write_text(json.dumps(changed()))
    assert load(path) == replace(RUN, clients=(FIRST,))


@pytest.mark.parametrize("sealed", [False, True], ids=["no checksum", "with a checksum"])
def test_a_table_of_an_older_version_is_told_apart_from_a_damaged_one(sealed: bool, tmp_path: Path) -> None:
    """As they were before tables had a format: without it, and their lines without fields that came later."""
    path = RUN.save(tmp_path)
    table = strict(path)
    del table["format_version"], table["checksum"], table["holdout"], table["clients"][0]["share"]
    path.write_text(json.dumps(table | {"checksum": checksum(table)} if sealed else table))
    with pytest.raises(OldFormatError, match=r"seeger\.json was written by an older version .*certify the run again"):
        tables_of(tmp_path)
    replace(RUN, bound="catoni").save(tmp_path)
    told: list[str] = []
    assert [one.bound for one in tables_of(tmp_path, told.append)] == ["catoni"]
    assert len(told) == 1 and "seeger.json was written by an older version" in told[0]


def test_a_table_of_a_later_version_is_refused_with_both_numbers(tmp_path: Path) -> None:
    path = RUN.save(tmp_path)
    path.write_text(json.dumps(changed(format_version=2)))
    with pytest.raises(DataError, match=r"seeger\.json has format 2, .* up to 1 .*update pacbayes_fl"):
        tables_of(tmp_path)
    edited = strict(RUN.save(tmp_path))
    path.write_text(json.dumps(edited | {"format_version": 2}))  # a slip and no later version: the checksum says so
    with pytest.raises(DataError, match="checksum"):
        tables_of(tmp_path)
    path.write_text(path.read_text().replace("format_version", "format_versiom"))  # nor an older one
    with pytest.raises(DataError, match="cannot be read as certificates"):
        tables_of(tmp_path)


EDITS: Mapping[str, Callable[[dict[str, Any]], object]] = MappingProxyType(
    {
        "bound": lambda table: table["clients"][0].update(bound=0.001),
        "risk": lambda table: table["clients"][1].update(risk=0.001),
        "kl": lambda table: table["clients"][1].update(kl=0.0),
        "rows": lambda table: table["clients"][0].update(rows=4000),
        "a line less": lambda table: table["clients"].append(table["clients"][0]),
        "reasons": lambda table: table["certificates"]["existing"].update(valid=False),
        "no record": lambda table: table["certificates"].pop("new"),
        "refused lines": lambda table: table["reasons"].update(new=["the prior saw the rows"]),
    }
)


@pytest.mark.parametrize("sealed", [False, True], ids=["as edited", "with a checksum of its own"])
@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_line_is_not_what_its_record_says(edit: str, sealed: bool, tmp_path: Path) -> None:
    path = RUN.save(tmp_path)
    table = strict(path)
    del table["checksum"]
    before = checksum(table)
    EDITS[edit](table)
    path.write_text(json.dumps(table | {"checksum": checksum(table) if sealed else before}))
    words = r"its record says|no valid certificate|have \d lines" if sealed else "checksum"
    with pytest.raises(DataError, match=words):
        tables_of(tmp_path)


def made(folder: Path, round: int = 12, state: bytes = b"tensors", split: str = "rows") -> None:
    """Write what of a run folder tells one model from another."""
    place = folder / "checkpoints" / f"round_{round:06d}"
    place.mkdir(parents=True, exist_ok=True)
    (place / "state.safetensors").write_bytes(state)
    (folder / "environment.json").write_text(json.dumps({"data": {"split_sha256": split}}))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"round": 14}, "of round 12, and the run is at round 14"),
        ({"state": b"others"}, "state at round 12 is not the one"),
        ({"split": "more"}, "rows are not those that were certified"),
    ],
)
def test_a_table_of_another_model_is_stale_and_says_so(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    made(tmp_path)
    replace(RUN, model=model_of(tmp_path)).save(tmp_path)
    assert len(tables_of(tmp_path)) == 1
    made(tmp_path, **change)
    with pytest.raises(DataError, match=rf"seeger\.json is stale: .*{words}.*certify again"):
        tables_of(tmp_path)
    told: list[str] = []
    assert tables_of(tmp_path, told.append) == [] and words in told[0]


def test_a_table_that_does_not_say_what_it_is_of_is_stale(tmp_path: Path) -> None:
    replace(RUN, model={}).save(tmp_path)
    with pytest.raises(DataError, match="does not say which round"):
        tables_of(tmp_path)


def test_a_client_is_existing_or_new() -> None:
    with pytest.raises(StudyError, match="client 'roof 1': group must be one of existing, new, got 'old'"):
        replace(FIRST, group="old")


@pytest.mark.parametrize(
    ("value", "vacuous"), [(0.99, False), (1.0, True), (3.0, True), (math.inf, True), (math.nan, True), (-1.0, False)]
)
def test_a_bound_that_says_no_more_than_the_range_is_vacuous(value: float, vacuous: bool) -> None:
    assert is_vacuous(value, 1.0) is vacuous
    assert is_vacuous(4 * value, 4.0) is vacuous
    assert is_vacuous(value, 10.0, 1.0) is vacuous  # below the range, and no better than a predictor without learning
    assert is_vacuous(value, 1.0, 10.0) is vacuous


def test_a_bound_is_never_written_as_less_than_it_is() -> None:
    values = (0.123401, 0.1234, 1.0, 12345.0, 1e-7 / 3, 0.0)
    assert [rounded_up(value) for value in values] == ["0.1235", "0.1234", "1", "12350", "0.00000003334", "0"]
    assert rounded_up(0.5000001, digits=2) == "0.51"
    assert [rounded_up(value) for value in (0.1, 0.001, 0.05)] == ["0.1", "0.001", "0.05"]  # each reads back as itself
    assert rounded_up(math.nextafter(0.1, 1.0)) == "0.1001"
    assert all(float(rounded_up(k / 7)) >= k / 7 for k in range(100))
