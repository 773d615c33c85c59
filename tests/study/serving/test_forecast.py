"""Forecasts of whole tables are the predictions of single clients, beside the table's own columns."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

from pacbayes_fl.errors import DataError, NumericalError, StudyError
from pacbayes_fl.posteriors.predictive import NormalMixture
from pacbayes_fl.study import run
from pacbayes_fl.study.serving import forecast as forecasting
from pacbayes_fl.study.serving.forecast import Forecast, forecast
from pacbayes_fl.study.serving.newcomers import forecast_newcomers
from pacbayes_fl.study.serving.predict import ClassPrediction, Prediction, levels_of, predict
from tests.tiny import on_csv, rows, write_csv


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> run.Trained:
    root = tmp_path_factory.mktemp("forecast")
    run.run(on_csv(write_csv(root / "rows.csv", rows())), root / "run")
    return run.open_run(root / "run")


def shuffled() -> list[dict[str, object]]:
    """All rows, clients mixed, with two columns that the run does not know."""
    table = [row for row in rows() if row["split"] == "test"]
    order = torch.randperm(len(table), generator=torch.Generator().manual_seed(1)).tolist()
    keep = ("client", "lag_1", "wind")
    return [{"when": f"day {i}", **{name: table[i][name] for name in keep}, "mean": 7} for i in order]


def test_all_clients_at_once_are_each_client_alone(trained: run.Trained, tmp_path: Path) -> None:
    path = write_csv(tmp_path / "ask.csv", shuffled())
    got = forecast(trained, path)
    assert set(got.clients) == {name for group in trained.groups.values() for name in group.train.names}
    for client in dict.fromkeys(got.clients):
        alone, at = predict(trained, client, path), [k for k, owner in enumerate(got.clients) if owner == client]
        assert isinstance(alone, Prediction)
        for name in ("mean", "std", "lower", "upper"):
            torch.testing.assert_close(got.predicted[name][at], getattr(alone, name), rtol=1e-12, atol=1e-12)


def test_columns_and_their_order_are_kept_and_names_do_not_collide(trained: run.Trained, tmp_path: Path) -> None:
    table = shuffled()
    result = forecast(trained, write_csv(tmp_path / "ask.csv", table), quantiles=[0.1]).table()
    assert list(result) == ["when", "client", "lag_1", "wind", "mean", "predicted_mean", "std", "q0.1", "round"]
    assert result["when"] == [row["when"] for row in table] and set(result["mean"]) == {"7"}


def test_quantiles_are_those_of_the_predictive(trained: run.Trained, tmp_path: Path) -> None:
    got = forecast(trained, write_csv(tmp_path / "ask.csv", shuffled()), quantiles=[0.025, 0.5, 0.975]).predicted
    usual = forecast(trained, tmp_path / "ask.csv").predicted
    assert torch.equal(got["q0.025"], usual["lower"]) and torch.equal(got["q0.975"], usual["upper"])
    assert bool(((got["q0.025"] < got["q0.5"]) & (got["q0.5"] < got["q0.975"])).all())


def test_some_clients_rows_are_left_where_they_stood(trained: run.Trained, tmp_path: Path) -> None:
    path = write_csv(tmp_path / "ask.csv", shuffled())
    everything, some = forecast(trained, path), forecast(trained, path, ["new_1", "existing_0"])
    at = [k for k, owner in enumerate(everything.clients) if owner in ("new_1", "existing_0")]
    assert list(some.clients) == [everything.clients[k] for k in at] and len(at) > 2
    torch.testing.assert_close(some.predicted["mean"], everything.predicted["mean"][at], rtol=1e-12, atol=1e-12)


def test_later_rows_count_for_their_own_client(trained: run.Trained, tmp_path: Path) -> None:
    ask = write_csv(tmp_path / "ask.csv", [{"client": f"existing_{k}", "lag_1": 0.1, "wind": 0.2} for k in (0, 1)])
    later = [{"client": f"existing_{k}", "lag_1": 0.1, "wind": 0.2, "y": 40.0} for k in (0, 1)]
    late = write_csv(tmp_path / "later.csv", later)
    before, after = forecast(trained, ask).predicted["mean"], forecast(trained, ask, later=late).predicted["mean"]
    assert bool(((after - before).abs() > 1.0).all())
    alone = predict(trained, "existing_1", ask, late)
    assert isinstance(alone, Prediction) and float(alone.mean[0]) == pytest.approx(float(after[1]), rel=1e-12)


def test_a_parquet_file_holds_the_same(trained: run.Trained, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs the extra tables")
    result = forecast(trained, write_csv(tmp_path / "ask.csv", shuffled()))
    result.save(tmp_path / "f.parquet")
    table = parquet.read_table(tmp_path / "f.parquet")
    assert {name: table[name].to_pylist() for name in table.column_names} == result.table()


@pytest.mark.parametrize(
    ("columns", "clients", "text"),
    [
        ({"client": "nobody", "lag_1": 1, "wind": 1}, [], "'nobody': the run does not know it .*join is for clients"),
        ({"client": "existing_0", "lag_1": 1, "wind": 1}, ["existing_1"], "'existing_1': .* has no rows of it"),
        ({"client": "existing_0", "lag_1": 1}, [], "has no column 'wind'"),
        ({"lag_1": 1, "wind": 1}, [], "has no column 'client'"),
    ],
)
def test_what_is_not_known_is_refused_by_name(
    trained: run.Trained, tmp_path: Path, columns: dict[str, object], clients: list[str], text: str
) -> None:
    with pytest.raises(DataError, match=text):
        forecast(trained, write_csv(tmp_path / "ask.csv", [columns]), clients)


def test_rows_of_a_client_that_is_not_known_stay_blank_and_change_nothing(trained: run.Trained, tmp_path: Path) -> None:
    known = shuffled()
    alone = forecast(trained, write_csv(tmp_path / "known.csv", known)).predicted["mean"]
    path = write_csv(tmp_path / "ask.csv", [{**known[0], "client": "stranger"}, *known])
    with pytest.warns(UserWarning, match=r"clients that the run does not know, stranger: .*join is for"):
        got = forecast(trained, path)
    assert got.clients[0] == "stranger" and bool(got.predicted["mean"][0].isnan())
    torch.testing.assert_close(got.predicted["mean"][1:], alone, rtol=0, atol=0)
    with pytest.raises(DataError, match="'stranger': the run does not know it"):
        forecast(trained, path, ["stranger", "existing_0"])


def test_a_table_without_clients_is_of_the_one_that_is_named(trained: run.Trained, tmp_path: Path) -> None:
    result = forecast(trained, write_csv(tmp_path / "ask.csv", [{"wind": 1, "lag_1": 2}]), ["new_0"])
    assert list(result.clients) == ["new_0"] and list(result.columns) == ["wind", "lag_1"]


def test_predictions_that_are_no_numbers_are_refused_by_client_and_row(
    trained: run.Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_csv(tmp_path / "ask.csv", [{"client": f"existing_{k}", "wind": 1, "lag_1": 2} for k in (1, 0)])
    monkeypatch.setattr(NormalMixture, "mean", property(lambda self: self.means[:, 0] * torch.nan))
    with pytest.raises(NumericalError, match="'existing_1': its prediction of line 2 is not finite"):
        forecast(trained, path)


@pytest.mark.parametrize("levels", [[0.0], [1.0], [float("nan")], [0.1, 0.1]])
def test_levels_are_distinct_and_inside(levels: list[float]) -> None:
    with pytest.raises(StudyError, match="quantile"):
        levels_of(levels)


def test_rows_in_another_unit_are_said_to_be_far(tmp_path: Path) -> None:
    run.run(on_csv(write_csv(tmp_path / "rows.csv", rows()), "method.name=ridge"), tmp_path / "run")
    trained, table = run.open_run(tmp_path / "run"), [row for row in rows() if row["split"] == "test"]
    plain = write_csv(tmp_path / "plain.csv", table)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        forecast(trained, plain)
    far = [row | {"wind": 1e6 * row["wind"]} if row["client"] == "existing_1" else row for row in table]
    path, said = write_csv(tmp_path / "far.csv", far), r"predictions of '{}' are up to \S+ standard .* are far from all"
    with pytest.warns(UserWarning, match=said.format("existing_1")):
        forecast(trained, path)
    with pytest.warns(UserWarning, match=said.format("existing_1")):
        predict(trained, "existing_1", path)
    learned = [row | {"client": "late"} for row in rows() if row["client"] == "existing_1" and row["split"] == "train"]
    asks = [row | {"client": "late", "y": ""} for row in far if row["client"] == "existing_1"]
    with pytest.warns(UserWarning, match=said.format("late")):
        forecast_newcomers(trained, write_csv(tmp_path / "late.csv", [*learned, *asks]))


def test_cells_cannot_start_a_formula() -> None:
    result = Forecast({"client": ["=1+1"]}, ["=1+1"], {"mean": torch.tensor([1 / 3], dtype=torch.float64)}, 2)
    assert result.to_csv().splitlines() == ["client,mean,round", "'=1+1,0.333333333,2"]
    assert result.by_client() == {"=1+1": {"mean": [pytest.approx(1 / 3)], "round": 2}}


def test_cells_tell_what_the_interval_tells_and_keep_what_was_read() -> None:
    """Of a meter that shows a hundred million nine digits end before the decimals that are predicted."""
    columns: dict[str, list[object]] = {"client": [2.0], "reading": [100000001.68527]}
    numbers = {"mean": 100000001.6969227, "std": 0.0202477, "lower": 100000001.65724, "upper": 100000001.73661}
    predicted = {name: torch.tensor([one], dtype=torch.float64) for name, one in numbers.items()}
    result = Forecast(columns, ["2.0"], predicted, 1)
    own, reading, mean, std, lower, upper, _ = result.to_csv().splitlines()[1].split(",")
    assert (own, reading, std) == ("2.0", "100000001.68527", "0.0202477")
    assert [float(cell) for cell in (mean, lower, upper)] == pytest.approx(
        [numbers[name] for name in ("mean", "lower", "upper")], rel=0, abs=1e-6
    )


def test_a_forecast_can_be_predicted_again(trained: run.Trained, tmp_path: Path) -> None:
    """Numbers of columns that are passed through stay numbers, in whatever form they stood."""
    lags = (" -0.5", "-.5", "-1e-1", "+.5", "-5.")
    table = [{"client": "existing_0", "lag_1": lag, "wind": 1, "note": "-1.200,50"} for lag in lags]
    first = forecast(trained, write_csv(tmp_path / "ask.csv", table))
    first.save(tmp_path / "first.csv")
    again = forecast(trained, tmp_path / "first.csv")
    assert again.columns["lag_1"] == [*lags] and set(again.columns["note"]) == {"-1.200,50"}
    assert torch.equal(again.predicted["mean"], first.predicted["mean"])


def test_labels_of_images_and_tables_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = [row | {"y": float(k % 2)} for k, row in enumerate(rows())]
    study = on_csv(
        write_csv(tmp_path / "rows.csv", table), "data.task=classification", "method.name=fedavg", "federation.rounds=1"
    )
    run.run(study, tmp_path / "run")
    opened, ask = run.open_run(tmp_path / "run"), write_csv(tmp_path / "ask.csv", shuffled())
    result = forecast(opened, ask)
    assert list(result.predicted) == ["label", "probability", "entropy", "probability_0", "probability_1"]
    assert not result.predicted["label"].is_floating_point()
    every = torch.stack([result.predicted[f"probability_{k}"] for k in range(2)], -1)
    torch.testing.assert_close(every.sum(-1), torch.ones(len(every), dtype=torch.float64), rtol=1e-6, atol=0)
    assert torch.equal(every.argmax(-1), result.predicted["label"])
    assert torch.equal(every.max(-1).values, result.predicted["probability"])
    with pytest.raises(StudyError, match="quantiles are of numbers, and the run predicts labels"):
        forecast(opened, ask, quantiles=[0.1])
    monkeypatch.setattr(forecasting, "_EACH", 1)
    assert list(forecast(opened, ask).predicted) == ["label", "probability", "entropy"]
    alone = predict(opened, result.clients[0], ask)
    assert isinstance(alone, ClassPrediction) and int(alone.label[0]) == int(result.predicted["label"][0])
