"""A power that the training rows of a study settle: what it is of, who may not have it, and what is said."""

from __future__ import annotations

import csv
import warnings
from pathlib import Path

import numpy as np
import pytest
from sklearn.preprocessing import PowerTransformer

from pacbayes_fl.errors import PrivacyError, StudyError
from pacbayes_fl.study.data import load
from pacbayes_fl.study.deployment import roster
from pacbayes_fl.study.rows import scaling
from tests.faults.test_transformed_targets import prices
from tests.tiny import on_csv, write_csv

LEARNED = ("data.transform=yeo-johnson", "data.transform_lambda=learned")
BOUNDS = ("data.lower_bound=-1e9", "data.upper_bound=1e9")


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
        roster.settle(study, load(study))


@pytest.mark.parametrize("transform", ["none", "log1p"])
def test_other_transforms_have_no_power(tmp_path: Path, transform: str) -> None:
    with pytest.raises(StudyError, match=f"'learned' is of transform = 'yeo-johnson', got '{transform}'"):
        on_csv(tmp_path / "rows.csv", f"data.transform={transform}", "data.transform_lambda=learned")


@pytest.mark.parametrize(
    ("sets", "side"),
    [
        (("data.transform=log1p",), "upper"),
        (("data.transform=yeo-johnson", "data.transform_lambda=0.3"), "upper"),
        (("data.transform=yeo-johnson", "data.transform_lambda=1.8", "data.upper_bound=1e9"), "lower"),
        (("data.transform=yeo-johnson", "model.degrees_of_freedom=2.5", "data.transform_lambda=0.4"), "upper"),
    ],
)
def test_targets_without_a_mean_are_refused_with_the_bound_that_gives_one(
    tmp_path: Path, sets: tuple[str, ...], side: str
) -> None:
    """E|t|^p of a Student-t is infinite from p = nu on, so that the mean of exp t is whatever nu is."""
    study = on_csv(prices(tmp_path / "rows.csv"), *sets, "model.likelihood=student-t")
    with pytest.raises(StudyError, match=rf"targets have no mean where nothing ends them .*data\.{side}_bound"):
        scaling.settle(study, load(study))
    bounded = on_csv(prices(tmp_path / "rows.csv"), *sets, "model.likelihood=student-t", *BOUNDS)
    assert scaling.settle(bounded, load(bounded)).transform is not None
    usual = on_csv(prices(tmp_path / "rows.csv"), *sets)
    assert scaling.settle(usual, load(usual)).transform is not None


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (("data.transform=yeo-johnson",), r"nu is at most 4 and nothing ends them above: .*data\.upper_bound"),
        (
            ("data.transform=yeo-johnson", "data.transform_lambda=1.4"),
            r"nu is at most 3\.33333 and nothing ends them below: .*data\.lower_bound",
        ),
        (
            ("data.transform=yeo-johnson", "data.transform_lambda=0.3", "model.degrees_of_freedom=4"),
            r"nu is at most 6\.66667 and nothing ends them above",
        ),
    ],
)
def test_targets_with_a_mean_and_no_variance_are_said(tmp_path: Path, sets: tuple[str, ...], said: str) -> None:
    """E t^2a of a Student-t is infinite from 2a = nu on, while the normals that stand for it have some variance."""
    study = on_csv(prices(tmp_path / "rows.csv"), *sets, "model.likelihood=student-t")
    with pytest.warns(UserWarning, match=f"targets have no variance where {said}"):
        assert scaling.settle(study, load(study)).transform is not None


@pytest.mark.parametrize(
    "sets",
    [
        ("data.transform=yeo-johnson", *BOUNDS),
        ("data.transform=yeo-johnson", "data.transform_lambda=1"),
        ("data.transform=yeo-johnson", "model.degrees_of_freedom=4.1"),
        ("data.transform=yeo-johnson", "data.transform_lambda=0", "model.likelihood=gaussian"),
        ("data.transform=logit", *BOUNDS),
    ],
)
def test_targets_that_have_both_under_heavy_tails_are_not(tmp_path: Path, sets: tuple[str, ...]) -> None:
    study = on_csv(prices(tmp_path / "rows.csv"), "model.likelihood=student-t", *sets)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert scaling.settle(study, load(study)).transform is not None
