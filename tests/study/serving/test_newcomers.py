"""A table of clients that never trained gets what `join` gives each of them, beside the table's own columns."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

from pacbayes_fl.errors import DataError, NumericalError
from pacbayes_fl.posteriors.predictive import NormalMixture
from pacbayes_fl.study import run
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.serving.newcomers import forecast_newcomers, newcomers
from pacbayes_fl.study.serving.predict import Prediction, join
from pacbayes_fl.study.serving.release import open_release, release
from tests.tiny import on_csv, rows, write_csv


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("newcomers")
    run.run(on_csv(write_csv(root / "rows.csv", rows())), root / "run")
    return root / "run"


@pytest.fixture(scope="module")
def trained(folder: Path) -> run.Trained:
    return run.open_run(folder)


def mixed() -> list[dict[str, object]]:
    """Rows of two strangers, in turns, some without a target, with a column that the run does not know."""
    own = [[row for row in rows() if row["client"] == name][-9:] for name in ("existing_0", "existing_1")]
    turns = [row | {"client": f"stranger {k}"} for pair in zip(*own, strict=True) for k, row in enumerate(pair)]
    keep = ("client", "lag_1", "wind", "y")
    return [
        {"when": f"day {i}", **{name: row[name] for name in keep}, **({"y": ""} if row["split"] == "test" else {})}
        for i, row in enumerate(turns)
    ]


def test_rows_without_target_are_predicted_in_their_order_with_their_columns(
    trained: run.Trained, tmp_path: Path
) -> None:
    path = write_csv(tmp_path / "new.csv", table := mixed())
    got, alone = forecast_newcomers(trained, path), join(trained, path)
    asked = [row for row in table if row["y"] == ""]
    assert asked and list(got.columns["when"]) == [row["when"] for row in asked]
    assert list(got.clients) == [row["client"] for row in asked] and set(got.clients) == set(alone)
    for client, one in alone.items():
        at = [k for k, owner in enumerate(got.clients) if owner == client]
        assert isinstance(one, Prediction)
        for name in ("mean", "std", "lower", "upper"):
            assert torch.equal(got.predicted[name][at], getattr(one, name))


def test_a_client_without_rows_to_predict_gets_its_own(trained: run.Trained, tmp_path: Path) -> None:
    table = [row for row in mixed() if row["y"] != ""]
    got = forecast_newcomers(trained, write_csv(tmp_path / "own.csv", table), quantiles=[0.25, 0.75])
    assert list(got.table()) == ["when", "client", "lag_1", "wind", "y", "mean", "std", "q0.25", "q0.75", "round"]
    assert got.table()["when"] == [row["when"] for row in table]
    assert bool((got.predicted["q0.25"] < got.predicted["q0.75"]).all())


def test_a_client_whose_rows_all_lack_a_feature_is_in_the_file_with_blanks(tmp_path: Path) -> None:
    data = {"client": "house", "target": "y", "time": "when", "features": ["lag:24h"], "missing": "drop"}
    hours = [f"2024-05-{1 + at // 24:02d}T{at % 24:02d}:00" for at in range(60)]
    table = [{"house": f"h{k}", "when": hour, "y": k + at % 7} for k in (0, 1) for at, hour in enumerate(hours)]
    source = {**data, "source": str(write_csv(tmp_path / "houses.csv", table)), "duplicate_rows": "allow"}
    sets = ["federation.rounds=1", "method.particles=1", "model.mean_widths=[2]", "model.kernel_widths=[2]"]
    run.run(Study.from_table({"data": source}, sets=sets), tmp_path / "run")
    late = [{"house": "late", "when": hour, "y": at} for at, hour in enumerate(hours[:3])]
    with pytest.warns(UserWarning, match="3 of 3 rows of late to learn from lack a value"):
        got = forecast_newcomers(run.open_run(tmp_path / "run"), write_csv(tmp_path / "late.csv", late))
    assert got.clients == ["late"] * 3 and bool(got.predicted["mean"].isnan().all())
    assert got.table()["when"] == hours[:3]


def test_a_release_predicts_the_same(trained: run.Trained, folder: Path, tmp_path: Path) -> None:
    path = write_csv(tmp_path / "new.csv", mixed())
    release(folder, tmp_path / "out")
    mine, theirs = forecast_newcomers(trained, path), forecast_newcomers(open_release(tmp_path / "out"), path)
    assert theirs.table() == mine.table()


def test_a_client_of_the_training_is_refused(trained: run.Trained, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'existing_0': it took part in the training"):
        forecast_newcomers(trained, write_csv(tmp_path / "known.csv", rows()))


def test_some_clients_of_a_file_can_join(trained: run.Trained, tmp_path: Path) -> None:
    """As from a file of theirs alone: others may have taken part."""
    known = {**mixed()[0], "client": "existing_0"}
    both, alone = write_csv(tmp_path / "both.csv", [known, *mixed()]), write_csv(tmp_path / "alone.csv", mixed())
    with pytest.raises(DataError, match=r"--client names who joins"):
        forecast_newcomers(trained, both)
    mine = forecast_newcomers(trained, both, clients=["stranger 0"])
    two = forecast_newcomers(trained, both, clients=["stranger 0, stranger 1"])
    apart = forecast_newcomers(trained, both, clients=["stranger 0", "stranger 1"])
    assert list(two.clients) == list(apart.clients) and {*two.clients} == {"stranger 0", "stranger 1"}
    theirs = forecast_newcomers(trained, alone)
    own = [row for row, client in enumerate(theirs.clients) if client == "stranger 0"]
    assert mine.clients == ["stranger 0"] * len(own) and own
    assert mine.table()["mean"] == [theirs.table()["mean"][row] for row in own]
    with pytest.raises(DataError, match=r"both.csv has no client 'stranger 00' \(did you mean 'stranger 0'"):
        forecast_newcomers(trained, both, clients=["stranger 00"])


def test_predictions_of_rows_just_learned_from_are_said_to_be(trained: run.Trained, tmp_path: Path) -> None:
    known = [{**row, "client": "late"} for row in rows()[:6]]
    with pytest.warns(UserWarning, match="every row of late has a target, so that the rows just learned from"):
        assert len(forecast_newcomers(trained, write_csv(tmp_path / "late.csv", known)).clients) == 6


def test_others_are_predicted_where_one_clients_numbers_are_not_finite(
    trained: run.Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, quantile, calls = write_csv(tmp_path / "new.csv", mixed()), NormalMixture.quantile, []

    def once(self: NormalMixture, levels: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return quantile(self, levels) * (torch.nan if len(calls) == 1 else 1.0)

    monkeypatch.setattr(NormalMixture, "quantile", once)
    found = newcomers(trained, path)
    assert set(found.forecast.clients) == {"stranger 1"}
    assert "client 'stranger 0': its prediction of line" in str(found.refused)
    calls.clear()
    with pytest.raises(NumericalError, match="stranger 0"):
        forecast_newcomers(trained, path)


@pytest.mark.parametrize("scale", ["pooled", "shrunk"])
def test_a_newcomer_in_another_unit_is_named_and_predicted_in_its_own(scale: str, tmp_path: Path) -> None:
    study = on_csv(write_csv(tmp_path / "rows.csv", rows()), f"data.scale={scale}")
    run.run(study, tmp_path / "run")
    trained = run.open_run(tmp_path / "run")
    usual = mixed()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        forecast_newcomers(trained, write_csv(tmp_path / "usual.csv", usual))
    found = {}
    for factor in (2.0**10, 2.0**20):
        other = [
            row | {"y": factor * float(str(row["y"]))} if row["y"] and row["client"] == "stranger 1" else row
            for row in usual
        ]
        with pytest.warns(UserWarning, match="^stranger 1: far in y from what the clients of the .*its own moments"):
            forecast = forecast_newcomers(trained, write_csv(tmp_path / "unit.csv", other))
        own = [row for row, client in enumerate(forecast.clients) if client == "stranger 1"]
        found[factor] = [forecast.table()["mean"][row] for row in own]
    assert found[2.0**20] == pytest.approx([2.0**10 * mean for mean in found[2.0**10]], rel=1e-9)
    assert max(map(abs, found[2.0**10])) < 2.0**10 * 10 * max(abs(float(str(row["y"]))) for row in usual if row["y"])
