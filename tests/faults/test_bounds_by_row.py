"""Targets that end at a column's values, row by row: predictions end there, and what contradicts them is refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pacbayes_fl.errors import DataError, StudyError
from pacbayes_fl.study import run
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.serving.forecast import forecast
from pacbayes_fl.study.serving.predict import join, predict
from pacbayes_fl.study.serving.score import score
from pacbayes_fl.study.serving.updates import update
from tests.tiny import Row, on_csv, tiny, write_csv

SETS = ("method.name=ridge", "data.lower_bound=0", "data.upper_bound=capacity")


def powers(path: Path, change: Mapping[int, Mapping[str, Any]] | None = None) -> Path:
    """Rows of panels that stand still beyond their capacity, which changes inside clients; changes by row."""
    random, table = np.random.default_rng(4), list[Row]()
    for group, clients in (("existing", 4), ("new", 2)):
        for k in range(clients):
            for i, sun in enumerate(random.uniform(-1, 1, size=40)):
                capacity = 1.0 + 0.5 * k if i % 2 else 0.6
                y = min(capacity, max(0.0, 2.0 * sun + 0.1 * random.normal()))
                row = {"client": f"{group}_{k}", "sun": sun, "capacity": capacity, "y": y}
                table.append(row | {"split": "test" if i >= 24 else "train", "group": group})
    for at, values in (change or {}).items():
        table[at] |= values
    return write_csv(path, table)


@pytest.mark.law
@pytest.mark.parametrize("more", [(), ("data.scale=none",), ("data.transform=yeo-johnson",)], ids=str)
def test_predictions_end_at_the_bounds_of_their_rows(tmp_path: Path, more: tuple[str, ...]) -> None:
    path = powers(tmp_path / "rows.csv")
    free, bound = (
        run.run(on_csv(path, SETS[0], *more)),
        run.run(on_csv(path, *SETS, *more), tmp_path / "run"),
    )
    for group in ("existing", "new"):
        capacity = bound.predictions[f"{group}.x_test"][..., 1]
        for number in ("mean", "lower", "upper"):
            values, real = bound.predictions[f"{group}.{number}"], bound.predictions[f"{group}.mask_test"].bool()
            assert bool(((values >= 0) & (values <= capacity + 1e-9))[real].all())
        assert bool((free.predictions[f"{group}.upper"] > capacity)[real].any())
        for metric in ("crps", "crps_raw"):  # means of a line that was fitted to these very rows are near them already
            assert np.mean(bound.column(group, metric)) < np.mean(free.column(group, metric)), metric
        assert np.isfinite(bound.column(group, "nlpd")).all()
    assert "end at 0 and column capacity" in bound.labels["scaling"]["bounds"]

    opened, result = run.open_run(tmp_path / "run"), bound.predictions
    ask = [{"client": "existing_1", "sun": 0.9, "capacity": one} for one in (0.6, 0.7, 9.0)]
    got = predict(opened, "existing_1", write_csv(tmp_path / "ask.csv", ask))
    assert got.upper[:2].tolist() == pytest.approx([0.6, 0.7]) and 0.7 < got.upper[2] < 9.0
    told = forecast(opened, tmp_path / "ask.csv", quantiles=[0.5, 0.99]).predicted
    torch.testing.assert_close(told["q0.99"][:2], torch.tensor([0.6, 0.7], dtype=torch.float64))
    table = [
        {"client": "new_0", "sun": float(x[0]), "capacity": float(x[1]), "y": "" if ask else float(y)}
        for part, ask in (("train", False), ("test", True))
        for x, y in zip(result[f"new.x_{part}"][0], result[f"new.y_{part}"][0], strict=True)
    ]
    joined = join(opened, write_csv(tmp_path / "new.csv", table))["new_0"]
    torch.testing.assert_close(joined.upper, result["new.upper"][0], rtol=1e-9, atol=1e-9)


def test_bounds_of_rows_are_those_of_a_number_where_the_column_is_the_same_everywhere(tmp_path: Path) -> None:
    """Bit by bit, of a Gaussian process with a mixture of residuals and clients that are held out as well."""
    same = {at: {"capacity": 4.0} for at in range(240)}
    path, sets = powers(tmp_path / "rows.csv", same), ("method.name=pac-pfl", "federation.rounds=10")
    one = run.run(on_csv(path, *sets, "data.lower_bound=0", "data.upper_bound=4"))
    other = run.run(on_csv(path, *sets, "data.lower_bound=0", "data.upper_bound=capacity"))
    for name, values in one.predictions.items():
        torch.testing.assert_close(values, other.predictions[name], rtol=1e-12, atol=1e-12, equal_nan=True)
    assert one.column("new", "nlpd") == pytest.approx(other.column("new", "nlpd"), rel=1e-12)


def test_a_target_beyond_its_rows_bound_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"target of 0.7, beyond its row's bounds \[0, 0.6\] \(line 4\)"):
        run.run(on_csv(powers(tmp_path / "rows.csv", {2: {"y": 0.7}}), *SETS))
    with pytest.raises(DataError, match="'existing_0': its bounds are 0 and 0 in line 4"):
        run.run(on_csv(powers(tmp_path / "zero.csv", {2: {"y": 0.0, "capacity": 0.0}}), *SETS))


def test_a_column_that_is_missing_or_no_number_is_refused(tmp_path: Path) -> None:
    path = powers(tmp_path / "rows.csv")
    with pytest.raises(StudyError, match=r"upper_bound = 'capacty' is none of the features sun, capacity"):
        run.run(on_csv(path, *SETS[:2], "data.upper_bound=capacty"))
    with pytest.raises(StudyError, match="upper_bound = 'capacity' is none of the features sun") as caught:
        run.run(on_csv(path, *SETS, 'data.features=["sun"]'))
    assert "data.features or client_features name" in str(caught.value.hint)
    for value, said in (("", "capacity"), ("nan", "capacity"), ("large", "capacity")):
        with pytest.raises(DataError, match=said):
            run.run(on_csv(powers(tmp_path / "gap.csv", {5: {"capacity": value}}), *SETS))
    with pytest.raises(StudyError, match="'capacity' cannot be filled in by the median"):
        run.run(on_csv(path, *SETS, "data.missing=median"))
    run.run(on_csv(path, *SETS), tmp_path / "run")
    opened = run.open_run(tmp_path / "run")
    with pytest.raises(DataError, match="no column 'capacity'"):
        predict(opened, "existing_0", write_csv(tmp_path / "ask.csv", [{"sun": 0.5}]))
    with pytest.raises(DataError, match="'existing_0': its bounds are 0 and -1 in line 2"):
        predict(opened, "existing_0", write_csv(tmp_path / "ask.csv", [{"sun": 0.5, "capacity": -1.0}]))
    other = {"client": "existing_1", "sun": 0.5, "capacity": 1.0, "y": 0.2}
    whole = {"client": "existing_0", "sun": 0.25, "capacity": 1.0, "y": 0.2}
    beyond = write_csv(tmp_path / "beyond.csv", [other, whole, {**whole, "y": ""}, {**whole, "y": 1.5}])
    with pytest.raises(
        DataError, match=r"'existing_0': has a target of 1.5, beyond its row's bounds \[0, 1\] \(line 5\)"
    ):
        score(opened, beyond)
    (tmp_path / "beyond.csv").write_text(beyond.read_text().replace("existing_0,0.25,1.0,\n", ""))
    with pytest.raises(DataError, match=r"beyond its row's bounds \[0, 1\] \(line 4\)"):
        update(opened, beyond)


def test_a_source_without_a_table_has_no_columns() -> None:
    with pytest.raises(StudyError, match="upper_bound = 'x' is a column of a table, and 'polynomial' is none"):
        run.run(tiny("data.upper_bound=x"))
    study = Study.from_table({"data": {"lower_bound": "x0"}}, "own")
    x = torch.linspace(0, 1, 8, dtype=torch.float64)
    with pytest.raises(StudyError, match="lower_bound = 'x0' is a column of a table"):
        run.run(study, data={"a": (x.unsqueeze(1), x), "b": (x.unsqueeze(1), x)})
    with pytest.raises(StudyError, match="needs lower_bound and upper_bound"):
        tiny("data.transform=logit", "data.lower_bound=0", "data.upper_bound=capacity")
