"""Coverage by a feature or by the hour of day, from the study to the run folder."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch

from pacbayes_fl.errors import StudyError
from pacbayes_fl.results.records import load as load_result
from pacbayes_fl.study import run
from pacbayes_fl.study.data import load
from pacbayes_fl.study.evaluate import coverage
from pacbayes_fl.study.file import Study
from tests.tiny import on_csv, rows, tiny, write_csv

RIDGE = ("method.name=ridge", "data.time=when")


def timed(folder: Path, zone: str = "") -> Path:
    """Write rows that are seven hours apart, from one at night."""
    table = [row | {"when": f"2024-05-{1 + (1 + 7 * i) // 24:02d}T{(1 + 7 * i) % 24:02d}:30{zone}"} for i, row in
             enumerate(rows())]  # fmt: skip
    return write_csv(folder / "rows.csv", table)


@pytest.mark.parametrize(("zone", "shift", "unit"), [("", 0, "h, local time"), ("+02:00", -2, "h, UTC")])
def test_hours_are_those_of_the_test_rows(tmp_path: Path, zone: str, shift: int, unit: str) -> None:
    study = on_csv(timed(tmp_path, zone), *RIDGE, "report.coverage_by=hour")
    run.run(study, tmp_path / "run")
    result = load_result(tmp_path / "run")
    assert result.labels["coverage_by"] == {"name": "hour of day", "unit": unit}
    hours = [
        (1 + 7 * i + shift) % 24 for i, row in enumerate(rows()) if (row["split"], row["group"]) == ("test", "new")
    ]
    assert result.predictions["new.coverage_by"].flatten().tolist() == hours
    with (tmp_path / "run" / "calibration.csv").open(encoding="utf-8", newline="") as file:
        lines = [line for line in csv.DictReader(file) if (line["group"], line["by"]) == ("new", "hour of day")]
    assert [float(line["low"]) for line in lines] == sorted(set(map(float, hours)))
    assert sum(int(line["rows"]) for line in lines) == len(hours)


def test_a_feature_is_taken_in_its_own_unit(tmp_path: Path) -> None:
    study = on_csv(write_csv(tmp_path / "rows.csv", rows()), "report.coverage_by=wind")
    dataset = load(study)
    coverage.check(study, dataset)
    column = coverage.column(study, dataset)("existing")
    assert column is not None and torch.equal(column, dataset.groups["existing"].test.x[..., 1].double())
    assert coverage.labels(study, dataset) == {"coverage_by": {"name": "wind", "unit": ""}}


def test_without_a_column_nothing_is_added() -> None:
    dataset = load(tiny())
    coverage.check(tiny(), dataset)
    assert coverage.column(tiny(), dataset)("existing") is None and coverage.labels(tiny(), dataset) == {}


def test_the_hours_of_pv_data_are_local() -> None:
    options = 'data.options={samples = 20, weather = "clearsky", clients = 1, new_clients = 0}'
    study = Study.from_toml("pv-ew-150", [options, "report.coverage_by=hour"])
    hours = coverage.column(study, load(study))("existing")
    assert hours is not None and hours[0, :11].tolist() == [*range(8, 18), 8]


@pytest.mark.parametrize(
    ("column", "said"),
    [("hour", "coverage_by = 'hour' needs rows whose time of day is known"), ("sun", "coverage_by = 'sun' is no feat")],
)
def test_a_column_that_is_not_there_is_refused_before_training(tmp_path: Path, column: str, said: str) -> None:
    study = on_csv(write_csv(tmp_path / "rows.csv", rows()), f"report.coverage_by={column}")
    with pytest.raises(StudyError, match=said):
        run.run(study, tmp_path / "run")
    assert not (tmp_path / "run" / "rounds.jsonl").exists()


def test_labels_have_no_intervals(tmp_path: Path) -> None:
    table = [row | {"y": i % 3} for i, row in enumerate(rows())]
    path = write_csv(tmp_path / "rows.csv", table)
    study = on_csv(path, "method.name=fedavg", "data.task=classification", "report.coverage_by=wind")
    with pytest.raises(StudyError, match="a classifier has none"):
        coverage.check(study, load(study))
