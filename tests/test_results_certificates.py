"""Certificates of a run come back from its folder as they were, and what is damaged is named."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch

from pacbayes_fl.errors import CheckpointError, DataError, StudyError
from pacbayes_fl.results_certificates import CertifiedClient, CertifiedRun, is_vacuous, load, rounded_up, tables_of

FIRST = CertifiedClient("roof 1", "existing", 40, 0.1, 2.5, 0.31, 0.125, 200)
LAST = CertifiedClient("Dächer", "new", 7, 1 / 3, 1e-300, 0.8, 0.9, 11)
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
    reasons={"existing": ["the prior saw the rows"], "new": []},
    summary={"average": {"value": 0.4, "terms": [1, 2.5, None]}},
    certificates={"new": {"theorem": "Seeger"}},
    labels={"split": True, "priors": "other clients"},
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
    run = replace(RUN, clients=(FIRST, odd), summary={"average": {"value": math.nan, "parts": (1.0, math.inf)}})
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
    table = {**vars(RUN), "clients": [vars(FIRST)], **changes}
    return {name: value for name, value in table.items() if value is not None}


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


def test_a_client_is_existing_or_new() -> None:
    with pytest.raises(StudyError, match="client 'roof 1': group must be one of existing, new, got 'old'"):
        replace(FIRST, group="old")


@pytest.mark.parametrize(
    ("value", "vacuous"), [(0.99, False), (1.0, True), (3.0, True), (math.inf, True), (math.nan, True), (-1.0, False)]
)
def test_a_bound_that_says_no_more_than_the_range_is_vacuous(value: float, vacuous: bool) -> None:
    assert is_vacuous(value, 1.0) is vacuous
    assert is_vacuous(4 * value, 4.0) is vacuous


def test_a_bound_is_never_written_as_less_than_it_is() -> None:
    values = (0.123401, 0.1234, 1.0, 12345.0, 1e-7 / 3, 0.0)
    assert [rounded_up(value) for value in values] == ["0.1235", "0.1234", "1", "12350", "0.00000003334", "0"]
    assert rounded_up(0.5000001, digits=2) == "0.51"
    assert rounded_up(0.1 + 1e-17) == "0.1001"  # 0.1 as a float64 is more than 0.1
    assert all(float(rounded_up(k / 7)) >= k / 7 for k in range(100))
