"""An estimator is `run` and `forecast` under other names: the same engine, the same numbers."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

import pacbayes_fl as fl
from pacbayes_fl.errors import DataError
from pacbayes_fl.study import run
from pacbayes_fl.study.serving.predict import Prediction, join
from tests.study.estimators.conftest import NETWORK, SMALL, Table
from tests.tiny import rows, write_csv

SETS = ["federation.rounds=3", "method.particles=2", "model.mean_widths=[4]", "model.kernel_widths=[4]"]
SETS += ["data.scale=client", "model.noise_widths=constant", "method.hyper_prior_std=0.3"]


@pytest.mark.slow
@pytest.mark.parametrize("choose", [False, True], ids=["fixed", "chosen"])
def test_its_predictions_are_those_of_run_and_forecast(choose: bool, tmp_path: Path) -> None:
    """Of the same table and seed; also where held-out training rows choose the number of rounds."""
    table = rows(new=())
    path = write_csv(tmp_path / "rows.csv", table)
    sets = [*SETS[1:-1], "method.hyper_prior_std=1.0"] if choose else SETS  # a wide prior, under which rounds help
    run.run(fl.Study.from_table({"data": {"source": str(path)}}, sets=[*sets, "seed=4"]), tmp_path / "run")
    expected = fl.forecast(fl.open_run(tmp_path / "run"), path, quantiles=[0.1, 0.9])
    x = np.array([[row["lag_1"], row["wind"]] for row in table])
    y, client = np.array([row["y"] for row in table]), [row["client"] for row in table]
    train = np.array([row["split"] == "train" for row in table])
    small = {name: value for name, value in SMALL.items() if not (choose and name == "rounds")}
    small |= {"hyper_prior_std": 1.0} if choose else {}
    model = fl.PacPFLRegressor(random_state=4, **small).fit(x[train], y[train], groups=np.array(client)[train])
    mean, std = model.predict(x, groups=client, return_std=True)
    tails = model.predict_quantiles(x, [0.1, 0.9], groups=client)
    for name, got in (("mean", mean), ("std", std), ("q0.1", tails[:, 0]), ("q0.9", tails[:, 1])):
        np.testing.assert_allclose(got, expected.predicted[name].numpy(), rtol=1e-9)
    assert model.study_.federation.rounds == fl.open_run(tmp_path / "run").study.federation.rounds > 0


def test_its_conformal_intervals_are_those_of_run_and_forecast_and_of_any_level(tmp_path: Path) -> None:
    table = rows(new=())
    path = write_csv(tmp_path / "rows.csv", table)
    study = fl.Study.from_table({"data": {"source": str(path)}, "report": {"intervals": "conformal"}}, sets=SETS)
    run.run(study, tmp_path / "run")
    expected = fl.forecast(fl.open_run(tmp_path / "run"), path).predicted
    x, y = np.array([[row["lag_1"], row["wind"]] for row in table]), np.array([row["y"] for row in table])
    client, train = np.array([row["client"] for row in table]), np.array([row["split"] == "train" for row in table])
    model = fl.PacPFLRegressor(intervals="conformal", **SMALL).fit(x[train], y[train], groups=client[train])
    mean, usual = model.predict_interval(x, groups=client)
    for name, got in (("mean", mean), ("lower", usual[:, 0]), ("upper", usual[:, 1])):
        np.testing.assert_allclose(got, expected[name].numpy(), rtol=1e-9)
    narrow = model.predict_interval(x, client, confidence_level=0.7)[1]  # 5 rows are enough for jackknife+
    assert (usual[:, 0] <= narrow[:, 0]).all() and (narrow[:, 0] < narrow[:, 1]).all() and not (narrow == usual).all()
    assert np.abs(narrow - model.predict_quantiles(x, [0.15, 0.85], client)).min() > 0, "they are the model's own"
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_interval(x, client, confidence_level=0.7)[1], narrow)
    assert again.study_.report.intervals == "conformal"


def test_intervals_of_the_model_are_its_quantiles(fitted: fl.PacPFLRegressor, table: Table) -> None:
    _, ends = fitted.predict_interval(table.x, table.client, confidence_level=0.9)
    np.testing.assert_allclose(ends, fitted.predict_quantiles(table.x, [0.05, 0.95], table.client), rtol=1e-12)
    for level in (1.0, 95, float("nan")):
        with pytest.raises(ValueError, match=f"confidence_level must be a share between 0 and 1, .* got {level:g}"):
            fitted.predict_interval(table.x, table.client, confidence_level=level)


def test_a_target_of_words_is_refused_by_name(table: Table) -> None:
    with pytest.raises(ValueError, match=r"y must be numbers for PacPFLRegressor: .*'high'.*Classifier"):
        fl.PacPFLRegressor(**SMALL).fit(table.x, np.where(table.y > 0, "high", "low"), table.client)


def test_the_classifiers_labels_are_those_of_run_and_forecast(tmp_path: Path) -> None:
    table = [{**row, "y": at % 3} for at, row in enumerate(rows(new=()))]
    path = write_csv(tmp_path / "rows.csv", table)
    sets = ["method.name=pfedbayes", "data.task=classification", "federation.rounds=3", "model.widths=[6]"]
    sets += ["method.steps=5", "method.draws=2", "method.zeta=0.1"]
    run.run(fl.Study.from_table({"data": {"source": str(path)}}, sets=sets), tmp_path / "run")
    expected = fl.forecast(fl.open_run(tmp_path / "run"), path).predicted
    x, y = np.array([[row["lag_1"], row["wind"]] for row in table]), np.array([row["y"] for row in table])
    client, train = np.array([row["client"] for row in table]), np.array([row["split"] == "train" for row in table])
    model = fl.PFedBayesClassifier(**NETWORK).fit(x[train], y[train], groups=client[train])
    assert model.predict(x, groups=client).tolist() == expected["label"].tolist()
    np.testing.assert_allclose(model.predict_proba(x, groups=client).max(1), expected["probability"].numpy(), rtol=1e-6)


def test_a_client_that_joins_predicts_as_one_that_joins_a_run(
    fitted: fl.PacPFLRegressor, table: Table, tmp_path: Path
) -> None:
    own, known = slice(0, 5), pickle.loads(pickle.dumps(fitted))
    names = ("x_1", "x_2")
    lines = [
        {"client": "east", **dict(zip(names, x, strict=True)), "y": "" if k >= 3 else y}
        for k, (x, y) in enumerate(zip(table.x[own], table.y[own], strict=True))
    ]
    expected = join(fitted.federation_.trained, write_csv(tmp_path / "east.csv", lines))["east"]
    assert isinstance(expected, Prediction)
    known.join(table.x[:3], table.y[:3], groups=["east"] * 3)
    mean, std = known.predict(table.x[3:5], groups=["east"] * 2, return_std=True)
    np.testing.assert_allclose(mean, expected.mean.numpy(), rtol=1e-9)
    np.testing.assert_allclose(std, expected.std.numpy(), rtol=1e-9)
    assert known.clients_ == (*fitted.clients_, "east") and len(fitted.clients_) == 3
    again = pickle.loads(pickle.dumps(known))
    np.testing.assert_array_equal(again.predict(table.x[3:5], groups=["east"] * 2), mean)


def test_a_client_without_rows_has_the_priors_prediction(
    fitted: fl.PacPFLRegressor, table: Table, tmp_path: Path
) -> None:
    lines = [{"client": "nobody", "x_1": x[0], "x_2": x[1], "y": ""} for x in table.x[:2]]
    with pytest.warns(UserWarning, match="nobody has no rows"):
        expected = join(fitted.federation_.trained, write_csv(tmp_path / "ask.csv", lines))["nobody"]
    with pytest.warns(UserWarning, match="nobody has no rows"):
        got = fitted.predict(table.x[:3], groups=["nobody", "nobody", "north"])
    np.testing.assert_allclose(got[:2], expected.mean.numpy(), rtol=1e-9)  # type: ignore[union-attr]
    np.testing.assert_allclose(got[2:], fitted.predict(table.x[2:3], groups=["north"]), rtol=1e-12)


def test_a_pickled_estimator_predicts_the_same_bit_by_bit(
    fitted: fl.PacPFLRegressor, labelled: fl.PFedBayesClassifier, table: Table
) -> None:
    for model, ask in ((fitted, "predict"), (labelled, "predict_proba")):
        again = pickle.loads(pickle.dumps(model))
        expected = getattr(model, ask)(table.x, groups=table.client)
        np.testing.assert_array_equal(getattr(again, ask)(table.x, groups=table.client), expected)
        assert again.study_.table() == model.study_.table()


def test_the_order_of_rows_to_predict_is_kept(fitted: fl.PacPFLRegressor, table: Table) -> None:
    order = torch.randperm(22, generator=torch.Generator().manual_seed(0)).numpy()
    expected = fitted.predict(table.x, groups=table.client)[order]
    np.testing.assert_allclose(fitted.predict(table.x[order], groups=table.client[order]), expected, rtol=1e-12)


def test_names_that_look_alike_are_refused(table: Table) -> None:
    with pytest.raises(DataError, match="nobody sees"):
        fl.PacPFLRegressor(**SMALL).fit(table.x[:4], table.y[:4], groups=["a", "a ", "a", "a "])
