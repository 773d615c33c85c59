from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import data_gen
from data_gen import Dataset, pv, weather
from data_gen.features import FEATURES, LAGS
from data_gen.pv_series import PVConfig, faithful
from data_gen.station import Weather

Values = npt.NDArray[np.float64]


def test_layout(small_pv: Dataset) -> None:
    assert small_pv.client_name.tolist() == ["house_00", "house_01", "house_02", "new_house_00", "new_house_01"]
    assert small_pv.client_new.tolist() == [False] * 3 + [True] * 2
    assert small_pv.feature_name.tolist() == [name for name, _ in FEATURES]
    assert (small_pv.target_name, small_pv.target_unit) == ("p_mp", "W")
    assert small_pv.time is not None
    for client in range(5):
        train, test = small_pv.rows(client, test=False), small_pv.rows(client, test=True)
        assert (len(train), len(test)) == (50, 610)
        assert (np.diff(np.concatenate([train, test])) == 1).all()
        assert (np.diff(small_pv.time[train]) > 0).all()
        assert small_pv.time[train].max() < small_pv.time[test].min()


def test_rows_are_those_of_the_series(small_pv: Dataset, sky: Weather) -> None:
    one = faithful(PVConfig(clients=3, samples=50), sky, sky.utc_offset, 3, 3)[1]
    rows = small_pv.rows(1, test=False)
    assert small_pv.time is not None
    np.testing.assert_array_equal(small_pv.time[rows], sky.seconds[one.rows])
    np.testing.assert_array_equal(small_pv.y[rows], one.power[one.rows])
    for column, lag in enumerate(LAGS, start=4):
        np.testing.assert_array_equal(small_pv.x[rows, column], one.power[one.rows - lag])
    np.testing.assert_array_equal(small_pv.x[rows, 0], sky.height[one.rows])


def test_east_peaks_before_west(small_pv: Dataset) -> None:
    assert small_pv.time is not None
    peaks = []
    for client in (0, 2):
        rows = small_pv.rows(client, test=True)
        hour = (small_pv.time[rows] + 3600) // 3600 % 24
        peaks.append(max(range(8, 18), key=lambda h: float(small_pv.y[rows][hour == h].mean())))
    assert peaks[0] < 12 < peaks[1]


@pytest.mark.slow
def test_same_seed_same_hash() -> None:
    options = {"clients": 2, "new_clients": 0, "samples": 10, "weather": "clearsky"}
    for mode in ("faithful", "physical"):
        one, two, other = (data_gen.generate("pv-s", mode=mode, seed=seed, **options) for seed in (3, 3, 4))
        assert one.sha256 == two.sha256 == one.manifest["sha256"]
        assert one.sha256 != other.sha256


def test_manifest(small_pv: Dataset) -> None:
    result = small_pv.manifest
    assert result["name"] == "pv-ew"
    assert result["stem"].startswith("pv-ew_faithful_clearsky_m50_seed3-7_")
    assert result["arguments"]["weather"] == "clearsky"
    assert result["seeds"] == {"clients": 3, "new_clients": 7}
    assert result["hours_of_day"] == {"first": 8, "last": 17, "utc_offset": 1.0}
    assert result["lags_h"] == list(LAGS)
    assert set(result["versions"]) == {"python", "numpy", "pandas", "pvlib"}
    assert result["houses"]["new_house_01"]["group_azimuth"] == 270.0
    assert result["houses"]["house_00"]["module"] == result["houses"]["new_house_00"]["module"]
    assert len({result["houses"][name]["tilt"] for name in result["houses"]}) == 5
    assert result["features"][4] == {"name": "lag_1", "unit": "W"}


def test_typical_year_without_new_houses() -> None:
    data = pv.generate(PVConfig(kind="s", clients=1, new_clients=0, samples=None, mode="physical"))
    assert data.manifest["sizes"]["train_rows"] == 490
    assert data.manifest["weather"]["file"] == weather.TYPICAL_FILE
    assert data.manifest["hours_of_day"]["utc_offset"] == -5.0


def _rsmse(prediction: Values | float, target: Values) -> float:
    return float(np.sqrt(np.mean((prediction - target) ** 2)) / target.std())


def baselines(data: Dataset, ridge: Callable[[Values, Values], Callable[[Values], Values]]) -> dict[str, float]:
    """Return RSMSE averaged over the existing clients, x and y standardised per client."""
    parts = []
    for client in np.flatnonzero(~data.client_new):
        train, test = (data.rows(int(client), test=flag) for flag in (False, True))
        middle, spread = data.x[train].mean(0), data.x[train].std(0) + 1e-8
        level, scale = data.y[train].mean(), data.y[train].std() + 1e-8
        x, xt = (data.x[train] - middle) / spread, (data.x[test] - middle) / spread
        y, yt = (data.y[train] - level) / scale, (data.y[test] - level) / scale
        parts.append((x, y, xt, yt, (data.x[test, 4] - level) / scale))
    pooled = ridge(np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts]))
    return {
        "zero": float(np.mean([_rsmse(0.0, yt) for _, _, _, yt, _ in parts])),
        "persistence": float(np.mean([_rsmse(last, yt) for _, _, _, yt, last in parts])),
        "local": float(np.mean([_rsmse(ridge(x, y)(xt), yt) for x, y, xt, yt, _ in parts])),
        "pooled": float(np.mean([_rsmse(pooled(xt), yt) for _, _, xt, yt, _ in parts])),
    }


@pytest.mark.law
@pytest.mark.parametrize(
    ("name", "samples", "local", "pooled"),
    [
        ("pv-ew", 150, 0.445, 0.456),
        ("pv-ew", 610, 0.424, 0.452),
        ("pv-s", 150, 0.423, 0.415),
        ("pv-s", 610, 0.405, 0.413),
    ],
)
def test_simple_baselines_on_bern(bern: Path, name: str, samples: int, local: float, pooled: float) -> None:
    linear = pytest.importorskip("sklearn.linear_model")

    def ridge(x: Values, y: Values) -> Callable[[Values], Values]:
        predict: Callable[[Values], Values] = linear.RidgeCV(alphas=np.logspace(-3, 3, 13)).fit(x, y).predict
        return predict

    data = data_gen.generate(name, samples=samples, new_clients=0, mode="faithful", weather=bern)
    assert len(data.rows(0, test=True)) == 610
    result = baselines(data, ridge)
    assert result["zero"] == pytest.approx(1.003, abs=0.01)
    assert result["persistence"] == pytest.approx(0.600, abs=0.01)
    # Agreement to the published digits also fixes the order of the draws.
    assert result["local"] == pytest.approx(local, abs=0.001)
    assert result["pooled"] == pytest.approx(pooled, abs=0.001)
    assert data.manifest["hours_of_day"]["utc_offset"] == 0.0
    assert data.manifest["weather"]["attribution"] == "PVGIS (c) European Union, 2001-2022"
    assert data.manifest["arguments"]["weather"] == bern.name
