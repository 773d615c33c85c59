"""Later rows are told from those that a client has, and a method learns from them or says that it does not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pacbayes_fl.errors import StudyError
from pacbayes_fl.study import run
from pacbayes_fl.study.serving import arrivals
from pacbayes_fl.study.serving.predict import Prediction, members_of, predict
from pacbayes_fl.study.serving.release import served
from tests.tiny import Row, on_csv, quick, rows, write_csv

CLIENT = "existing_1"
TRAIN = [row for row in rows() if row["client"] == CLIENT and row["split"] == "train"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> run.Trained:
    root = tmp_path_factory.mktemp("later")
    run.run(on_csv(write_csv(root / "rows.csv", rows()), "federation.rounds=1"), root / "run")
    return run.open_run(root / "run")


def counted(trained: run.Trained, path: Path, table: list[Row]) -> arrivals.NewRows:
    known, (group, _) = served(trained), members_of(trained, "existing", [CLIENT])
    written = write_csv(path / "later.csv", table)
    return arrivals.new_rows(known, group, arrivals.read(known, written, True, None), written)


def test_rows_are_new_repeated_or_near_twins(trained: run.Trained, tmp_path: Path) -> None:
    """Of rounding to nine digits, and twice in the table; a row a thousandth of the spread away is another."""
    fresh = TRAIN[0] | {"wind": TRAIN[0]["wind"] + 0.004}
    rounded = [row | {"y": float(f"{row['y']:.7g}"), "lag_1": float(f"{row['lag_1']:.9g}")} for row in TRAIN[:3]]
    got = counted(trained, tmp_path, [*TRAIN[:2], *rounded, fresh, fresh])
    assert got.found == arrivals.Count(new=1, repeats=3, twins=3)
    assert got.x.tolist() == [[fresh["lag_1"], fresh["wind"]]] and got.y.tolist() == [fresh["y"]]


def test_rows_that_were_learned_from_are_known_again(trained: run.Trained) -> None:
    known, (group, _) = served(trained), members_of(trained, "existing", [CLIENT])
    more = group.raw.train.extend(group.raw.test)
    seen = arrivals.learned_from(known, group, more, None, "")
    assert seen.tolist() == [True] * len(TRAIN) + [False] * 3


def hourly(drop: int | None = None, until: int = 40) -> list[Row]:
    """Two houses by the hour, of one of which an hour comes late."""
    return [
        {
            "client": name,
            "when": f"2024-05-{1 + hour // 24:02d} {hour % 24:02d}:00",
            "x": hour % 7,
            "y": (hour * k) % 11,
        }
        for k, name in ((3, "one"), (5, "two"))
        for hour in range(until)
        if (name, hour) != ("one", drop)
    ]


def test_a_row_is_known_by_its_time_whatever_came_late_or_was_corrected(tmp_path: Path) -> None:
    features = 'data.features=["x", "roll:4h"]'
    study = on_csv(write_csv(tmp_path / "rows.csv", hourly(12, 30)), "data.time=when", features, "method.name=ridge")
    run.run(study, tmp_path / "run")
    trained = run.open_run(tmp_path / "run")
    known, (group, _) = served(trained), members_of(trained, "existing", ["one"])
    learned = int(group.raw.train.mask.sum())

    def found(table: list[Row]) -> arrivals.NewRows:
        written = write_csv(tmp_path / "later.csv", [row for row in table if row["client"] == "one"])
        return arrivals.new_rows(known, group, arrivals.read(known, written, True, None), written)

    whole = found(hourly())
    assert whole.found.repeats + whole.found.twins == learned and whole.found.new == 39 - learned
    assert whole.found.twins > 0  # hours after the one that came late have another mean of the last hours
    wrong = [{**row, "y": row["y"] + 1} if row["when"].endswith(" 20:00") else row for row in hourly()]
    with pytest.warns(UserWarning, match=r"^one: 1 row of .*later.csv, the first at line 2., with another target"):
        assert found(wrong).found.new == whole.found.new


@pytest.mark.parametrize("name", ["pfedbayes", "fedavg", "ridge"])
def test_later_rows_change_a_prediction_or_are_refused(name: str, tmp_path: Path) -> None:
    table = [row for row in rows(sizes=(6, 7), new=(6,))]
    sets = (*quick(name), "federation.rounds=1")
    run.run(on_csv(write_csv(tmp_path / "rows.csv", table), *sets), tmp_path / "run")
    trained = run.open_run(tmp_path / "run")
    test = [row for row in table if row["client"] == CLIENT and row["split"] == "test"]
    ask, late = (write_csv(tmp_path / f"{at}.csv", test) for at in range(2))
    before = predict(trained, CLIENT, ask)
    if name == "fedavg":
        with pytest.raises(StudyError, match=r"fedavg does not learn from later rows: .* \(method\.finetune"):
            predict(trained, CLIENT, ask, late)
        return
    after = predict(trained, CLIENT, ask, late)
    assert isinstance(before, Prediction) and isinstance(after, Prediction)
    assert not torch.equal(before.mean, after.mean) and torch.equal(
        after.mean, predict(trained, CLIENT, ask, late).mean
    )
