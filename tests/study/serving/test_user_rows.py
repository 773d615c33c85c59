"""An analyst's table goes from CSV to a forecast of all houses, and later rows get the features of the training."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest
import torch

from pacbayes_fl.data import tables
from pacbayes_fl.errors import DataError
from pacbayes_fl.study.config.parts import DataPart
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.run import Trained, open_run, run
from pacbayes_fl.study.serving import user_rows
from pacbayes_fl.study.serving.forecast import forecast
from pacbayes_fl.study.serving.predict import join, predict
from pacbayes_fl.study.serving.score import score
from pacbayes_fl.study.serving.updates import update
from tests.study.analyst import data, houses
from tests.tiny import write_csv

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


def test_a_new_house_joins_with_its_own_past_and_what_it_lacks_stays_blank(known: Trained, tmp_path: Path) -> None:
    """Of three hours to predict, the second has no row a day before; of 39 others, the first 23 have none."""
    when = pd.date_range("2024-11-02", periods=43, freq="h").strftime("%Y-%m-%d %H:%M")
    rows = pd.DataFrame({"house": "newcomer", "timestamp": when, "cloud": 0.5, "temp": range(43), "battery": True})
    rows = rows.assign(roof="thatched", capacity=3.0, power=[*(k % 7 for k in range(40)), None, None, None])
    rows.drop(index=41 - 24).to_csv(tmp_path / "new.csv", index=False)
    with pytest.warns(UserWarning) as said:
        result = join(known, tmp_path / "new.csv")["newcomer"]
    assert result.mean.isnan().tolist() == result.upper.isnan().tolist() == [False, True, False]
    texts = "\n".join(str(one.message) for one in said)
    assert "no training row of the federation has 'thatched' of newcomer" in texts
    assert "23 of 39 rows of newcomer to learn from lack a value and are left out: lag:24h (23 rows)" in texts
    assert "1 of 3 rows of newcomer to predict lack a value: blank: lag:24h (1 row)" in texts


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


def test_an_excluded_house_is_not_read_until_it_joins(tmp_path: Path) -> None:
    """Whatever its cells hold; the run is that of the table without it, and a name that is not there is refused."""
    frame = FRAME[FRAME.house.isin(["house_00", "house_01", "house_02"])].copy()
    without = frame[frame.house != "house_02"]
    frame["temp"] = frame.temp.astype(object).where(frame.house != "house_02", "broken")
    source = tmp_path / "houses.csv"
    results = {}
    for name, table, more in (("all", frame, {"exclude_clients": ["house_02"]}), ("less", without, {})):
        table.to_csv(source, index=False)
        with pytest.warns(UserWarning, match="rows lack a value"):
            results[name] = run(Study.from_table({"data": data(source, **more), **PARTS}), tmp_path / name)
    assert results["all"].metrics == results["less"].metrics
    frame.to_csv(source, index=False)
    known = open_run(tmp_path / "all")
    with pytest.warns(UserWarning, match="clients that the run does not know, house_02: .* join is for clients"):
        asked = forecast(known, source)
    there = [owner == "house_02" for owner in asked.clients]
    assert asked.predicted["mean"][torch.tensor(there)].isnan().all() and not asked.predicted["mean"].isnan().all()
    FRAME[FRAME.house == "house_02"].dropna(subset="power").to_csv(tmp_path / "join.csv", index=False)
    with pytest.warns(UserWarning, match="to learn from lack a value and are left out"):
        assert join(known, tmp_path / "join.csv")["house_02"].mean.isfinite().any()
    with pytest.raises(DataError, match=r"has no client 'house_2' \(did you mean 'house_02'"):
        tables.read(source, DataPart(client="house", exclude_clients=("house_2",)))


@pytest.mark.parametrize("first", ["2024-03-29", "2024-10-25"])  # clocks change two days later
@pytest.mark.parametrize("offsets", [True, False])
def test_lags_go_by_the_time_that_passes_across_changes_of_clocks(tmp_path: Path, first: str, offsets: bool) -> None:
    """By a dictionary: the value of 24 hours before; local hours that come twice are neither rows nor anybody's lag."""
    moments = pd.date_range(first, periods=24 * 4, freq="h", tz="UTC")
    local = moments.tz_convert("Europe/Zurich")
    plain = local.tz_localize(None)
    when = [one.isoformat() for one in local] if offsets else plain.strftime("%Y-%m-%d %H:%M")
    twice = {int(t.value) // 1000 for t in moments[plain.duplicated(keep=False)]} if not offsets else set[int]()
    assert len(twice) == (2 if first.endswith("25") and not offsets else 0)
    rows = pd.DataFrame({"client": "a", "when": when, "y": [float(k) for k in range(len(when))]})
    rows.sample(frac=1.0, random_state=0).to_csv(tmp_path / "rows.csv", index=False)
    known = {int(t.value) // 1000: float(k) for k, t in enumerate(moments) if int(t.value) // 1000 not in twice}
    part = DataPart(time="when", zone="Europe/Zurich", features=("lag:24h", "hour:cyclic"), missing="drop")
    with pytest.warns(UserWarning, match="lack a value and are left out"):
        group = tables.read(tmp_path / "rows.csv", part).groups["existing"]
    assert group.times is not None
    day, hours = 86400 * 10**6, dict(zip([int(t.value) // 1000 for t in moments], local.hour, strict=True))
    got = {}
    for batch, times in ((group.train, group.times.train), (group.test, group.times.test)):
        for x, y, time in zip(batch.x[0].tolist(), batch.y[0].tolist(), times[0].tolist(), strict=True):
            got[time] = (x[0], y)
            assert x[1] == pytest.approx(math.sin(2 * math.pi * hours[time] / 24), abs=1e-12)
    assert got == {t: (known[t - day], y) for t, y in known.items() if t - day in known}


def test_messages_speak_of_lags_where_one_is_missing() -> None:
    for lacking, added in {"lag:24h (2 rows)": True, "roll:3h (1 row)": True, "cloud (1 row)": False}.items():
        said = user_rows.with_lags(lacking)
        assert said.startswith(lacking) and ("that long before" in said) == added


def test_a_forecast_that_was_written_for_a_spreadsheet_is_read_back(tmp_path: Path) -> None:
    """Names that could be formulas have an apostrophe there, in cells of clients and of words, and above columns."""
    names, words = ["=1+1", "@b", "'s Graveland", "-c"], ["=low", "high", "+x"]
    table = [
        {"client": name, "-t": k / 7, "kind": words[k % 3], "y": k % 4 + k / 9} for name in names for k in range(12)
    ]
    data = {"source": str(write_csv(tmp_path / "rows.csv", table)), "features": ["-t", "kind"], "categorical": ["kind"]}
    run(Study.from_table({"data": data, **PARTS}), tmp_path / "run")
    opened = open_run(tmp_path / "run")
    ask = [{"client": name, "-t": 0.31 + k, "kind": words[k % 3], "y": 1.5} for name in names for k in range(3)]
    first = forecast(opened, write_csv(tmp_path / "ask.csv", ask))
    first.save(tmp_path / "forecast.csv")
    assert "'=1+1,0.31,'=low" in (tmp_path / "forecast.csv").read_text()
    again = forecast(opened, tmp_path / "forecast.csv")
    assert list(again.clients) == list(first.clients) == [name for name in names for _ in range(3)]
    assert torch.equal(again.predicted["mean"], first.predicted["mean"])
    one, other = (score(opened, tmp_path / name) for name in ("ask.csv", "forecast.csv"))
    assert one.to_json()["clients"] == other.to_json()["clients"] and [*other.rows] == names
