"""A power that the training rows of a study settle: what it is of, who may not have it, and what is said."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from sklearn.preprocessing import PowerTransformer

from pacbayes_fl.errors import PrivacyError, StudyError
from pacbayes_fl.study import apart, scaling
from pacbayes_fl.study.data import load
from tests.faults.test_transformed_targets import prices
from tests.tiny import on_csv, write_csv

LEARNED = ("data.transform=yeo-johnson", "data.transform_lambda=learned")


def test_it_is_of_the_training_rows_of_existing_clients(tmp_path: Path) -> None:
    path = prices(tmp_path / "rows.csv")
    study = on_csv(path, *LEARNED)
    shared = scaling.settle(study, load(study))
    rows = [row for row in csv.DictReader(path.open()) if row["split"] == "train" and row["group"] == "existing"]
    y = np.array([[float(row["y"])] for row in rows])
    (known,) = PowerTransformer(standardize=False).fit(y).lambdas_
    assert shared.transform is not None and shared.transform.power == pytest.approx(max(known, 0.0), abs=1e-3)
    scaling.save(tmp_path, shared, load(study))
    assert scaling.read(tmp_path, load(study)).transform == shared.transform


def test_targets_that_do_not_vary_are_left_as_they_are_with_a_remark(tmp_path: Path) -> None:
    rows = [row | {"y": 4.0} for row in csv.DictReader(prices(tmp_path / "rows.csv").open())]
    study = on_csv(write_csv(tmp_path / "same.csv", rows), *LEARNED)
    with pytest.warns(UserWarning, match=r"data\.transform_lambda = 1, which leaves targets as they are"):
        shared = scaling.settle(study, load(study))
    assert shared.transform is not None and shared.transform.power == 1.0


@pytest.mark.parametrize(
    ("sets", "error", "why"),
    [
        (("privacy.epsilon=1",), PrivacyError, "a private run releases nothing else"),
        (("report.certify.scheme=folds",), StudyError, "with report.certify.scheme = 'folds'"),
    ],
)
def test_who_may_know_nothing_of_others_is_refused(
    tmp_path: Path, sets: tuple[str, ...], error: type[Exception], why: str
) -> None:
    study = on_csv(prices(tmp_path / "rows.csv"), *LEARNED, *sets)
    with pytest.raises(error, match=rf"transform_lambda = 'learned' takes sums of all clients' targets, and {why}"):
        scaling.settle(study, load(study))


def test_deployments_are_refused_since_nodes_know_their_own_rows(tmp_path: Path) -> None:
    study = on_csv(prices(tmp_path / "rows.csv"), *LEARNED)
    with pytest.raises(StudyError, match=r"transform_lambda = 'learned' takes sums of all clients' targets, and"):
        apart.settle(study, load(study))


@pytest.mark.parametrize("transform", ["none", "log1p"])
def test_other_transforms_have_no_power(tmp_path: Path, transform: str) -> None:
    with pytest.raises(StudyError, match=f"'learned' is of transform = 'yeo-johnson', got '{transform}'"):
        on_csv(tmp_path / "rows.csv", f"data.transform={transform}", "data.transform_lambda=learned")
