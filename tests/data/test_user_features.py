"""Features of a table: laws of their rows, and what is refused."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from pacbayes_fl.data import tables
from pacbayes_fl.data.layout import Layout
from pacbayes_fl.errors import DataError
from tests.study.analyst import ZONE, houses

LAYOUT: dict[str, Any] = {
    "client": "house",
    "target": "power",
    "time": "timestamp",
    "zone": ZONE,
    "features": ("cloud", "battery", "hour:cyclic", "lag:24h", "roll:3h of temp", "lag:2h of cloud", "roll:3h"),
    "categorical": ("roof",),
    "missing": "drop",
}
FRAME = houses(4, rows=(200, 260))


def read(path: Path, frame: pd.DataFrame, **more: Any) -> tables.Dataset:
    frame.to_csv(path, index=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tables.read(path, Layout(**LAYOUT | more))


def rows(dataset: tables.Dataset) -> dict[str, np.ndarray]:
    """Every client's training and test rows, by name."""
    group = dataset.groups["existing"]
    return {
        name: torch.cat([torch.cat((b.x[k], b.y[k, :, None]), 1)[b.mask[k]] for b in (group.train, group.test)]).numpy()
        for k, name in enumerate(group.train.names)
    }


def assert_same(mine: tables.Dataset, theirs: tables.Dataset) -> None:
    one, other = rows(mine), rows(theirs)
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> tables.Dataset:
    return read(tmp_path_factory.mktemp("t") / "t.csv", FRAME)


def test_rows_are_those_that_pandas_makes(dataset: tables.Dataset) -> None:
    sure = FRAME.timestamp.str.match("2024-10-27 02:.*").map({True: False, False: True})
    for name, got in rows(dataset).items():
        own = FRAME[(FRAME.house == name) & sure].copy()
        own.index = pd.to_datetime(own.timestamp).dt.tz_localize(ZONE)
        own = own.sort_index()
        made = pd.DataFrame({"cloud": own.cloud, "battery": own.battery.astype(float)})
        phase = 2 * np.pi * own.index.hour / 24
        made["sin"], made["cos"] = np.sin(phase), np.cos(phase)
        made["lag"] = own.power.shift(freq="24h").reindex(own.index)
        made["roll"] = own.temp.rolling("3h").mean()
        made["cloud_lag"] = own.cloud.shift(freq="2h").reindex(own.index)
        made["power_roll"] = own.power.rolling("3h", closed="left").mean()
        for roof in ("flat", "south", "west"):
            made[roof] = (own.roof == roof).astype(float)
        expected = made.assign(power=own.power).dropna()
        assert 0 < len(expected) < len(own)
        np.testing.assert_allclose(got, expected.to_numpy(), atol=1e-12)
    names = [column.name for column in dataset.features]
    assert names[2:4] == ["hour:sin", "hour:cos"] and names[-3:] == ["roof=flat", "roof=south", "roof=west"]
    assert sum(map(len, rows(dataset).values())) + sum(
        sum(own.values()) for own in dataset.provenance["left_out"].values()
    ) == len(FRAME)
    assert dataset.provenance["left_out"]["house_01"]["timestamp"] in (1, 2)  # the hour that comes twice


def test_the_order_of_rows_and_the_names_of_columns_change_nothing(dataset: tables.Dataset, tmp_path: Path) -> None:
    assert_same(dataset, read(tmp_path / "a.csv", FRAME.sort_values(["house", "temp"])))
    renamed = FRAME.rename(columns={"cloud": "clouds in %", "power": "kW"})
    features = [name.replace("cloud", "clouds in %") for name in LAYOUT["features"]]
    assert_same(dataset, read(tmp_path / "b.csv", renamed, features=tuple(features), target="kW"))


def test_dropping_is_dropping_by_hand(tmp_path: Path) -> None:
    plain = {"features": ("cloud", "temp"), "categorical": (), "zone": None}
    dropped = read(tmp_path / "a.csv", FRAME, **plain)
    assert_same(dropped, read(tmp_path / "b.csv", FRAME.dropna(), **plain, missing="refuse"))


def test_offsets_say_what_the_zone_would(dataset: tables.Dataset, tmp_path: Path) -> None:
    frame = FRAME[~FRAME.timestamp.str.match("2024-10-27 02:.*")].copy()
    frame["timestamp"] = pd.to_datetime(frame.timestamp).dt.tz_localize(ZONE).map(lambda one: one.isoformat())
    assert_same(dataset, read(tmp_path / "t.csv", frame))


def test_a_history_has_all_rows_with_a_clear_time(dataset: tables.Dataset) -> None:
    assert dataset.history is not None and dataset.history.columns == ("power", "temp", "cloud")
    known = sum(len(times) for times, _ in dataset.history.clients.values())
    assert known == (~FRAME.timestamp.str.match("2024-10-27 02:.*")).sum()
    again = tables.from_arrays(tables.to_arrays(dataset), {})
    assert again.history is not None
    for name, (times, values) in dataset.history.clients.items():
        assert torch.equal(times, again.history.clients[name][0])
        torch.testing.assert_close(values, again.history.clients[name][1], equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("change", "fragment"),
    [
        ({"missing": "refuse", "zone": None}, r"column '(cloud|power)': '' is not a number \(data\.missing"),
        ({"zone": None}, "'2024-10-27 02:00' comes twice .*data.zone knows when clocks go back"),
        ({"categorical": (), "features": ("roof",)}, r"column 'roof': '\w+' is not a number \(data\.categorical"),
        ({"features": ("clouds",)}, r"has no column 'clouds' \(it has house, timestamp"),
        ({"features": ("lag:24",)}, "'lag:24' and data.horizon are lengths of time"),
        ({"features": ("lag:2h", "lag:24h"), "horizon": "6h"}, "'lag:2h' is shorter than the horizon of 6h"),
        ({"features": ("clear-sky",)}, r"'clear-sky' needs data\.latitude"),
        ({"features": ("clear-sky",), "latitude": "north"}, "has no column 'north'"),
        ({"time": None, "zone": None}, r"'hour:cyclic' needs times \(data\.time"),
        ({"client": "remark"}, r"column 'timestamp': .* comes twice \('lag:24h' needs one row a time"),
    ],
)  # fmt: skip
def test_what_a_table_does_not_have_is_refused_by_name(tmp_path: Path, change: dict[str, Any], fragment: str) -> None:
    with pytest.raises(DataError, match=fragment):
        read(tmp_path / "t.csv", FRAME, **change)


def test_an_hour_that_clocks_skip_or_show_twice_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"line \d+, column 'timestamp': '2024-10-27 02:00' comes twice .*first of \d+"):
        read(tmp_path / "t.csv", FRAME.dropna(), missing="refuse")
    (tmp_path / "t.csv").write_text("client,when,x,y\na,2024-03-31 01:30,1,1\na,2024-03-31 02:30,2,2\n")
    with pytest.raises(DataError, match=r"line 3, column 'when': '2024-03-31 02:30' is skipped in Europe/Zurich"):
        tables.read(tmp_path / "t.csv", Layout(time="when", zone=ZONE))
    with pytest.raises(DataError, match=r"data\.zone is for local datetimes, and column 'when' holds dates"):
        (tmp_path / "d.csv").write_text("client,when,x,y\na,2024-03-31,1,1\na,2024-04-01,2,2\n")
        tables.read(tmp_path / "d.csv", Layout(time="when", zone=ZONE))


def test_a_rolling_mean_of_the_target_ends_at_the_horizon(tmp_path: Path) -> None:
    plain = {"features": ("temp", "roll:3h"), "categorical": (), "zone": None, "missing": "median", "horizon": "6h"}
    frame = FRAME[~FRAME.timestamp.str.match("2024-10-27 02:.*")]
    got = rows(read(tmp_path / "t.csv", frame, **plain))
    for name, own in frame.groupby("house"):
        own = own.set_index(pd.to_datetime(own.timestamp)).sort_index()
        hours = pd.date_range(own.index[0], own.index[-1], freq="h")
        expected = own.power.reindex(hours).rolling(3, min_periods=1).mean().shift(6).reindex(own.index)
        sure = expected.notna()[own.power.notna()].to_numpy()
        np.testing.assert_allclose(got[str(name)][sure, 1], expected[own.power.notna()][sure], atol=1e-12)


def test_a_split_that_leaks_targets_is_refused_and_so_are_client_features_that_vary(tmp_path: Path) -> None:
    frame = FRAME.assign(split=np.where(np.arange(len(FRAME)) % 4, "train", "test"))
    with pytest.raises(
        DataError, match=r"client 'house_.*': \d+ of its \d+ training rows have 'lag:24h' from its test"
    ):
        read(tmp_path / "t.csv", frame)
    with pytest.raises(DataError, match=r"client 'house_.*': column 'cloud' of data\.client_features must"):
        read(tmp_path / "t.csv", FRAME, client_features=("cloud",))


def test_a_client_of_which_no_row_is_left_is_left_out(tmp_path: Path) -> None:
    frame = FRAME.copy()
    frame.loc[frame.house == "house_02", "temp"] = np.nan
    frame.to_csv(tmp_path / "t.csv", index=False)
    with pytest.warns(UserWarning, match="nothing is left of house_02, left out as clients"):
        dataset = tables.read(tmp_path / "t.csv", Layout(**LAYOUT | {"features": ("temp",)}))
    assert "house_02" not in rows(dataset) and len(rows(dataset)) == 3
    assert tables.from_arrays(tables.to_arrays(dataset), {}).history is None


def test_a_client_of_which_one_row_is_left_has_none_to_be_held_out_and_is_left_out_too(tmp_path: Path) -> None:
    lines = [f"{name},{k},{'' if name == 'b' and k else k},{k}" for name in "ab" for k in range(4)]
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(("client,when,x,y", *lines)))
    layout = Layout(time="when", features=("x",), missing="drop")
    with pytest.warns(UserWarning, match="3 of 8 rows .*; a single row is left of b, left out as clients"):
        assert tables.read(path, layout).groups["existing"].train.names == ("a",)


def test_a_clear_sky_is_that_of_every_rows_position(tmp_path: Path) -> None:
    pytest.importorskip("pvlib")
    frame = FRAME.assign(north=47.0, east=np.where(FRAME.house == "house_01", 107.0, 7.0))
    mixed = {"features": ("clear-sky", "temp"), "latitude": 47.0, "longitude": "east"}
    got = rows(read(tmp_path / "a.csv", frame, **mixed))
    alone = rows(read(tmp_path / "b.csv", frame[frame.house == "house_00"], **mixed | {"longitude": 7.0}))
    np.testing.assert_allclose(got["house_00"][:, 0], alone["house_00"][:, 0])
    assert got["house_00"][:, 0].max() > 300
