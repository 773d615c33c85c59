"""An analyst's table goes from CSV to a forecast of all houses, and later rows get the features of the training."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch

from pacbayes_fl.data import tables
from pacbayes_fl.errors import DataError
from pacbayes_fl.study import user_rows
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.forecast import forecast
from pacbayes_fl.study.predict import join, predict
from pacbayes_fl.study.run import Trained, open_run, run
from pacbayes_fl.study.updates import update
from tests.study.analyst import data, houses

FRAME = houses()
PARTS = {"method": {"name": "ridge"}, "privacy": {"epsilon": "none"}}


def trained(folder: Path, **more: object) -> Trained:
    FRAME.to_csv(folder / "houses.csv", index=False)
    with pytest.warns(UserWarning, match=r"\d+ of \d\d\d\d rows lack a value and are left out: house_"):
        run(Study.from_table({"data": data(folder / "houses.csv", **more), **PARTS}, "houses"), folder / "run")
    return open_run(folder / "run")


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return trained(tmp_path_factory.mktemp("analyst"))


def days_ahead(hours: int, **columns: object) -> pd.DataFrame:
    """Rows of every house after its last one, without a target."""
    frames = []
    for house, own in FRAME.groupby("house"):
        when = pd.date_range(pd.Timestamp(own.timestamp.max()), periods=hours + 1, freq="h")[1:]
        same = own.iloc[0][["roof", "capacity", "battery"]].to_dict()
        frames.append(pd.DataFrame({"house": house, "timestamp": when.strftime("%Y-%m-%d %H:%M"), **same}))
    return pd.concat(frames).assign(**{"cloud": 0.3, "temp": 9.0, "note": "kept", **columns})


def test_a_table_of_sixteen_houses_becomes_a_forecast_of_all_of_them(known: Trained, tmp_path: Path) -> None:
    names = [column.name for column in known.dataset.features]
    assert names == [
        *("cloud", "temp", "battery", "hour:sin", "hour:cos", "lag:24h", "lag:24h of cloud", "roll:3h of temp"),
        *("roof=flat", "roof=south", "roof=west", "capacity"),
    ]
    kinds = dict(zip(names, known.groups["existing"].shared.kinds, strict=False))
    assert kinds["roof=west"] == kinds["hour:sin"] == "none" and kinds["capacity"] == "pooled"
    asked = days_ahead(20)
    asked.to_csv(tmp_path / "next.csv", index=False)
    with pytest.warns(UserWarning, match="rows lack a value and have no prediction: house_.* lag:24h"):
        result = forecast(known, tmp_path / "next.csv", quantiles=[0.05, 0.5, 0.95])
    result.save(tmp_path / "forecast.csv")
    saved = pd.read_csv(tmp_path / "forecast.csv")
    assert saved.house.nunique() == 16 and len(saved) == len(asked) and (saved.note == "kept").all()
    assert saved["mean"].notna().mean() > 0.6 and (saved["q0.05"].dropna() >= 0).all()


def test_features_of_known_rows_are_those_of_the_training_with_or_without_their_targets(known: Trained) -> None:
    """What a row is told of the past comes from the run where the table does not have it."""
    group = known.groups["existing"].raw
    folder = Path(str(known.study.data.source)).parent
    frame = FRAME.drop(columns="power")
    for kept in (FRAME, frame, frame[frame.house == "house_02"]):
        kept.to_csv(folder / "again.csv", index=False)
        table = user_rows.read(known.study.data, known.dataset, folder / "again.csv", need_target=False)
        assert table.times is not None and group.times is not None
        for k, name in enumerate(group.train.names):
            if name not in table.clients:
                continue
            place = {int(when): row for row, when in enumerate(table.times[name].tolist())}
            for batch, times in ((group.train, group.times.train), (group.test, group.times.test)):
                mask = batch.mask[k]
                at = [place[int(when)] for when in times[k][mask[: times.shape[1]]].tolist()]
                torch.testing.assert_close(table.clients[name][0][at], batch.x[k][mask], rtol=1e-12, atol=1e-12)


def test_one_client_is_predicted_as_among_all_and_rows_without_a_past_are_refused(
    known: Trained, tmp_path: Path
) -> None:
    days_ahead(3).to_csv(tmp_path / "next.csv", index=False)
    whole = forecast(known, tmp_path / "next.csv").by_client()
    full = next(name for name, own in whole.items() if not any(map(pd.isna, own["mean"])))
    torch.testing.assert_close(predict(known, full, tmp_path / "next.csv").mean.tolist(), whole[full]["mean"])  # type: ignore[union-attr]
    days_ahead(60).to_csv(tmp_path / "far.csv", index=False)
    with pytest.raises(DataError, match=r"client 'house_02': \d+ of its 60 rows to predict lack a value: .*lag:24h"):
        predict(known, "house_02", tmp_path / "far.csv")


def test_later_rows_are_the_past_of_those_that_follow(known: Trained, tmp_path: Path) -> None:
    later, asked = days_ahead(24, power=0.5), days_ahead(48).groupby("house").tail(24)
    later.to_csv(tmp_path / "later.csv", index=False)
    asked.to_csv(tmp_path / "asked.csv", index=False)
    with pytest.warns(UserWarning):
        before = forecast(known, tmp_path / "asked.csv", ["house_01"])
    after = forecast(known, tmp_path / "asked.csv", ["house_01"], later=tmp_path / "later.csv")
    assert not before.predicted["mean"].isfinite().any() and after.predicted["mean"].isfinite().all()


def test_an_update_is_the_past_of_rows_that_follow(tmp_path: Path) -> None:
    known = trained(tmp_path)
    days_ahead(24, power=0.5).query("house == 'house_01'").to_csv(tmp_path / "later.csv", index=False)
    days_ahead(48).groupby("house").tail(24).to_csv(tmp_path / "asked.csv", index=False)
    with pytest.warns(UserWarning, match="later rows of house_01 lack a value and are left out: lag:24h"):
        assert update(known, tmp_path / "later.csv").found["house_01"].new > 5
    again = open_run(tmp_path / "run")
    assert forecast(again, tmp_path / "asked.csv", ["house_01"]).predicted["mean"].isfinite().all()


def test_a_new_house_joins_with_its_own_past(known: Trained, tmp_path: Path) -> None:
    frame = houses(2, seed=5).query("house == 'house_01'").assign(house="newcomer").dropna()
    frame = frame[~frame.timestamp.str.match("2024-10-27 02:.*")].sort_values("timestamp")
    frame.loc[frame.index[-3:], "power"] = None
    frame["roof"] = "thatched"
    frame.to_csv(tmp_path / "new.csv", index=False)
    with pytest.warns(UserWarning, match="no training row of the federation has 'thatched' of newcomer"):
        try:
            assert len(join(known, tmp_path / "new.csv")["newcomer"].mean) == 3
        except DataError as error:  # a gap a day before: said by name
            assert "lack a value: lag:24h" in str(error)


def test_medians_fill_in_what_a_forecast_lacks(tmp_path: Path) -> None:
    known = trained(tmp_path, missing="median", features=["cloud", "temp", "lag:24h"])
    days_ahead(30, temp="").to_csv(tmp_path / "next.csv", index=False)
    with pytest.warns(UserWarning, match=r"a clear time \(1 row\)"):  # which nothing fills in
        result = forecast(known, tmp_path / "next.csv")
    unclear = [str(when).startswith("2024-10-27 02") for when in result.columns["timestamp"]]
    assert result.predicted["mean"].isnan().tolist() == unclear
    group = known.groups["existing"].raw.train
    table = user_rows.read(
        known.study.data, known.dataset, tmp_path / "next.csv", need_target=False, groups=known.groups.values()
    )
    own = FRAME[(FRAME.house == "house_03")]
    cut = pd.to_datetime(own.timestamp.max()) - pd.Timedelta("1 day")
    median = own[(pd.to_datetime(own.timestamp) <= cut) & own.power.notna()].temp.median()
    assert table.clients["house_03"][0][0, 1] == pytest.approx(median) and "house_03" in group.names


def test_a_run_folder_keeps_the_past_and_a_release_does_not(known: Trained) -> None:
    folder = Path(str(known.study.data.source)).parent / "run"
    kept = tables.read(folder / "data.npz").history
    assert kept is not None and len(kept.clients) == 16
