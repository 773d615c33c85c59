"""Rows of one's own: a table from a file and the same rows from Python are the same study and the same run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pacbayes_fl.methods import METHODS
from pacbayes_fl.study import run
from pacbayes_fl.study.config.parts import DataPart
from pacbayes_fl.study.data import load
from pacbayes_fl.study.file import Study
from tests.tiny import quick, rows, write_csv

X = torch.linspace(-1, 1, 12).unsqueeze(1)
ROWS = {f"house_{k}": (X, (k + 1) * X[:, 0]) for k in range(4)}
GIVEN: tuple[dict[str, Any], ...] = (
    {},
    {"federation": {"rounds": 30}},
    {"method": {"preset": "paper"}},
    {"privacy": {"epsilon": 2.0}},
    {"report": {"certify": {"scheme": "folds"}}},
    {"data": {"scale": "pooled", "test": {"share": 0.5}}},
)


def without_source(study: Study) -> dict[str, Any]:
    table = study.table()
    return {**table, "name": "", "data": {**table["data"], "source": "", "options": {}}}


@pytest.mark.law
@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_study_of_a_table_is_the_same_from_a_file_and_from_python(name: str) -> None:
    for given in GIVEN:
        table = {**given, "method": {"name": name} | given.get("method", {})}
        if table["method"].get("preset", "recommended") not in METHODS[name].presets:
            continue
        task = {"task": "classification"} if METHODS[name].model == "weights" else {}
        data = {**given.get("data", {}), **task}
        labelled = {client: (x, (y > 0).long()) for client, (x, y) in ROWS.items()} if task else ROWS
        filed = Study.from_table({**table, "data": {**data, "source": "mine.csv"}})
        plain = Study.from_table({**table, "data": data})
        assert without_source(plain.with_instances(data=labelled)) == without_source(filed), given


def test_what_a_program_has_changed_since_is_kept() -> None:
    plain = Study.from_table({})
    changed = replace(plain, federation=replace(plain.federation, rounds=7), data=DataPart(scale="none"))
    result = changed.with_instances(data=ROWS)
    assert result.federation.rounds == 7 and result.data.scale == "none" and result.model.residuals == "mixture"  # type: ignore[union-attr]
    assert Study.from_table(result.table(), instances=result.instances) == result, "a saved run says everything"


@pytest.mark.parametrize("name", ["pac-pfl", "ridge", "pooled-gp"])
def test_a_run_of_a_table_is_the_same_from_a_file_and_from_python(tmp_path: Path, name: str) -> None:
    sets = [one for one in quick(name) if not one.startswith(("data.", "federation.rounds"))]
    if name == "pac-pfl":
        sets.append("federation.rounds=3")
    path = write_csv(tmp_path / "rows.csv", rows())
    filed = Study.from_table({"data": {"source": str(path)}}, sets=sets)
    mine, theirs = run.run(filed), run.run(Study.from_table({}, sets=sets), data=load(filed))
    assert filed.data.scale == DataPart().scale or filed.recipe.own_rows
    for group in ("existing", "new"):
        assert mine.column(group, "nlpd") == theirs.column(group, "nlpd")
    assert torch.equal(mine.predictions["new.mean"], theirs.predictions["new.mean"])
