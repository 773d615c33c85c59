"""A run that is updated predicts as if later rows had been training rows, and nothing else of its folder changes."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from pacbayes_fl.certificates.clients import certify
from pacbayes_fl.errors import CheckpointError, DataError, StudyError
from pacbayes_fl.results import folder as results_folder
from pacbayes_fl.results.updates import FOLDER, Since, since
from pacbayes_fl.study import run
from pacbayes_fl.study.serving.arrivals import Count
from pacbayes_fl.study.serving.forecast import forecast
from pacbayes_fl.study.serving.predict import Prediction, predict
from pacbayes_fl.study.serving.score import score
from pacbayes_fl.study.serving.updates import update
from tests.tiny import Row, on_csv, quick, rows, write_csv

Start = Callable[[str], Path]
TABLE = rows(sizes=(9, 8), new=(7,))


def later(count: int = 4, seed: int = 5) -> list[Row]:
    """Rows of two existing clients and a new one, none of which the run has."""
    return [row for row in rows(seed, sizes=(count, count), new=(count,)) if row["client"] != "existing_1"]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Start:
    """Copy the folder of a run of a method."""
    root = tmp_path_factory.mktemp("updates")
    path = write_csv(root / "rows.csv", TABLE)
    sets = {"split": ("report.certify.scheme=split", "report.certify.independent=true")}

    def copy(name: str) -> Path:
        known, *more = name.split("/")
        if not (root / name).exists():
            chosen = [one for word in more for one in sets[word]]
            study = on_csv(path, *quick(known), *chosen, "federation.rounds=1", "federation.checkpoint_every=1")
            run.run(study, root / name)
        target = root / f"copy{len(list(root.glob('copy*')))}"
        return Path(shutil.copytree(root / name, target))

    return copy


def predicted(folder: Path, ask: Path) -> dict[str, torch.Tensor]:
    return dict(forecast(run.open_run(folder), ask).predicted)


@pytest.fixture
def ask(tmp_path: Path) -> Path:
    return write_csv(tmp_path / "ask.csv", [row for row in TABLE if row["split"] == "test"])


def assert_same(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], within: float) -> None:
    for name, values in expected.items():
        torch.testing.assert_close(got[name], values, rtol=within, atol=within)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pac-pfl", "ridge"])
def test_two_batches_in_any_order_are_one(start: Start, tmp_path: Path, ask: Path, name: str) -> None:
    table = later()
    first, second, both = (
        write_csv(tmp_path / f"{at}.csv", part) for at, part in enumerate((table[::2], table[1::2], table))
    )
    results = []
    for order in ((both,), (first, second), (second, first), (first, both)):
        folder = start(name)
        before = predicted(folder, ask)
        for path in order:
            update(run.open_run(folder), path)
        results.append(predicted(folder, ask))
        other = [at for at, row in enumerate(r for r in TABLE if r["split"] == "test") if row["client"] == "existing_1"]
        assert torch.equal(results[-1]["mean"][other], before["mean"][other])
        assert not torch.allclose(results[-1]["mean"], before["mean"], rtol=1e-3)
    for result in results[1:]:
        assert_same(result, results[0], 1e-10)
    opened = run.open_run(start(name))
    alone = predict(opened, "new_0", ask, both)
    assert isinstance(alone, Prediction)
    at = [k for k, row in enumerate(r for r in TABLE if r["split"] == "test") if row["client"] == "new_0"]
    torch.testing.assert_close(alone.mean, results[0]["mean"][at], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["pac-pfl", "pfedbayes"])
def test_known_rows_change_nothing_bit_for_bit(start: Start, tmp_path: Path, ask: Path, name: str) -> None:
    folder, path = start(name), write_csv(tmp_path / "later.csv", later())
    files = {one: one.read_bytes() for one in folder.rglob("*") if one.is_file() and one.name != "run.lock"}
    known = write_csv(tmp_path / "known.csv", [row for row in TABLE if row["split"] == "train"])
    before = predicted(folder, ask)
    result = update(run.open_run(folder), known)
    assert result.number is None and {one.new for one in result.found.values()} == {0}
    assert {one: one.read_bytes() for one in files} == files and not (folder / FOLDER).exists()
    assert update(run.open_run(folder), path).found == {"existing_0": Count(4), "new_0": Count(4)}
    after = predicted(folder, ask)
    assert update(run.open_run(folder), path).found == {"existing_0": Count(0, 4), "new_0": Count(0, 4)}
    assert all(torch.equal(values, after[column]) for column, values in predicted(folder, ask).items())
    assert not torch.equal(after["mean"], before["mean"]) and since(folder) == Since(1, 8, 2)
    unchanged = {one: one.read_bytes() for one in files if one.name != "manifest.json"}
    assert unchanged == {one: data for one, data in files.items() if one.name != "manifest.json"}


def test_a_run_that_goes_on_ends_where_one_ends_that_is_updated_after_all_rounds(
    start: Start, tmp_path: Path, ask: Path
) -> None:
    """The state of a filtered posterior is kept for its round; after more rounds the rows are filtered anew."""
    path, results = write_csv(tmp_path / "later.csv", later()), []
    for first in (True, False):
        folder = start("pfedbayes")
        study = run.open_run(folder).study
        longer = replace(study, federation=replace(study.federation, rounds=2))
        for step in (first, not first):
            if step:
                update(run.open_run(folder), path)
            else:
                run.run(longer, folder, resume=True)
        results.append(predicted(folder, ask))
    assert run.open_run(folder).round == 2
    assert all(torch.equal(values, results[1][name]) for name, values in results[0].items())


def test_shapes_of_errors_take_the_residuals_of_all_rows_of_a_client(tmp_path: Path, ask: Path) -> None:
    """As `--later` does, whose rows are those of one call; what the federation sent stays as it is."""
    sets = ("model.residuals=mixture", "report.intervals=conformal", "federation.rounds=1")
    run.run(on_csv(write_csv(tmp_path / "rows.csv", TABLE), *sets), tmp_path / "run")
    opened, path = run.open_run(tmp_path / "run"), write_csv(tmp_path / "later.csv", later())
    before, sent = forecast(opened, ask, ["existing_0"]).predicted, (tmp_path / "run/residuals.json").read_bytes()
    expected = forecast(opened, ask, ["existing_0"], later=path).predicted
    update(opened, path)
    got = forecast(run.open_run(tmp_path / "run"), ask, ["existing_0"]).predicted
    assert_same(dict(got), dict(expected), 1e-12)
    assert bool((got["upper"] != before["upper"]).all()) and (tmp_path / "run/residuals.json").read_bytes() == sent


def test_certificates_are_of_the_run_before_and_say_so(start: Start, tmp_path: Path) -> None:
    folder, path = start("pac-pfl/split"), write_csv(tmp_path / "later.csv", later())
    before = certify(run.open_run(folder))
    update(run.open_run(folder), path)
    after = certify(run.open_run(folder))
    assert [line.bound for line in after.clients] == [line.bound for line in before.clients] and after.number == 1
    assert "later" not in before.labels
    said = (
        "8 later rows of 2 clients changed what predict uses, but not the models here, which have not learned from them"
    )
    assert after.labels["later"] == said
    models = "the personal models that predict {}, which have not seen the rows"
    assert before.labels["predictor"]["existing"] == models.format("uses")
    assert after.labels["predictor"]["existing"] == models.format("used before later rows came")


def test_a_whole_table_holds_rows_of_the_bound_and_predictions_learn_from_them(start: Start, tmp_path: Path) -> None:
    """Nothing is said of which later rows are rows of the bound: certificates are of the models before them."""
    folder, path = start("pac-pfl/split"), write_csv(tmp_path / "all.csv", [r for r in TABLE if r["split"] == "train"])
    held = run.open_run(folder).bound_rows
    found = update(run.open_run(folder), path).found["existing_0"]
    assert held is not None and found == Count(new=int(held.size[0]), repeats=found.repeats) and found.repeats > 0
    assert "none of these" not in certify(run.open_run(folder)).labels["later"]


def test_a_crash_loses_nothing(start: Start, tmp_path: Path, ask: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed while the file is written: predictions are those before, and the same command ends as if nothing was."""
    folder, path = start("pac-pfl"), write_csv(tmp_path / "later.csv", later())
    before, whole = predicted(folder, ask), results_folder.write_synced
    with monkeypatch.context() as patch:
        patch.setattr(results_folder, "write_synced", _half(whole))
        with pytest.raises(CheckpointError, match="cannot write"):
            update(run.open_run(folder), path)
    assert all(torch.equal(values, before[name]) for name, values in predicted(folder, ask).items())
    assert update(run.open_run(folder), path).number == 1
    assert since(folder) == Since(1, 8, 2)


def _half(whole: Callable[[Path, bytes], None]) -> Callable[[Path, bytes], None]:
    def write(place: Path, data: bytes) -> None:
        if place.name.startswith("0"):
            whole(place, data[: len(data) // 2])
            raise OSError(28, "No space left on device")
        whole(place, data)

    return write


@pytest.mark.parametrize(("what", "text"), [("damaged", "is damaged or was edited"), ("gone", "is missing")])
def test_an_update_that_was_altered_or_lost_is_refused(
    start: Start, tmp_path: Path, ask: Path, what: str, text: str
) -> None:
    folder = start("pac-pfl")
    update(run.open_run(folder), write_csv(tmp_path / "later.csv", later()))
    (path,) = (folder / FOLDER).iterdir()
    path.unlink() if what == "gone" else path.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.warns(UserWarning, match="000001"), pytest.raises(DataError, match=rf"000001.safetensors {text}"):
        predicted(folder, ask)


def test_clients_that_are_not_known_do_not_keep_others_from_learning(start: Start, ask: Path, tmp_path: Path) -> None:
    mixed, truth = [{**later()[0], "client": "stranger"}, *later()], [row for row in TABLE if row["split"] == "test"]
    one, other = start("pac-pfl"), start("pac-pfl")
    with pytest.warns(UserWarning, match=r"does not know, stranger"):
        found = update(run.open_run(one), write_csv(tmp_path / "mixed.csv", mixed)).found
    assert found == update(run.open_run(other), write_csv(tmp_path / "later.csv", later())).found
    assert all(map(torch.equal, predicted(one, ask).values(), predicted(other, ask).values()))
    with pytest.warns(UserWarning, match=r"does not know, stranger"):
        scored = score(run.open_run(one), write_csv(tmp_path / "t.csv", [*truth, {**truth[0], "client": "stranger"}]))
    assert "stranger" not in scored.rows and sum(scored.rows.values()) == len(truth)


def test_what_cannot_be_taken_is_refused(start: Start, tmp_path: Path) -> None:
    folder, path = start("pac-pfl"), write_csv(tmp_path / "later.csv", later())
    opened = run.open_run(folder)
    with pytest.raises(DataError, match=r"'nobody': the run does not know it .*join is for clients that never trained"):
        update(opened, write_csv(tmp_path / "other.csv", [{**later()[0], "client": "nobody"}]))
    with pytest.raises(DataError, match=r"'existing_1': .*later\.csv has no rows of it"):
        update(opened, path, ["existing_1"])
    with pytest.raises(StudyError, match="this run has none"):
        update(replace(opened, folder=None), path)
    with pytest.raises(StudyError, match="fedavg does not learn from later rows"):
        update(run.open_run(start("fedavg")), path)
    kept = replace(opened.study, report=replace(opened.study.report, keep="no-rows"))
    with pytest.raises(StudyError, match=r"keeps no rows .*predict --later takes them at every call"):
        update(replace(opened, study=kept), path)
    blank = [{**row, "y": ""} if k == 2 else row for k, row in enumerate(later())]
    with pytest.raises(
        DataError, match=r"blank\.csv line 4: column 'y' has no value.*\(fill it in, or leave the row out"
    ):
        update(opened, write_csv(tmp_path / "blank.csv", blank))
    assert since(folder) is None and update(opened, path, ["new_0"]).found == {"new_0": Count(4)}


def hourly(days: int, houses: int = 2) -> list[Row]:
    """Series of houses by the hour, whose next day is nearly the last one."""
    random = np.random.default_rng(3)
    return [
        {"client": f"house_{k}", "when": f"2024-03-{day + 1:02d}T{hour:02d}:00", "y": random.normal() + hour * (k + 1)}
        for k in range(houses)
        for day in range(days)
        for hour in range(0, 24, 6)
    ]


@pytest.mark.parametrize("factor", [1.0, 1e6])
def test_later_targets_in_another_unit_are_said_to_be_far(start: Start, tmp_path: Path, factor: float) -> None:
    """Nothing takes an update back, and predictions afterwards are near the targets that they learned from."""
    table = [{**row, "y": factor * float(row["y"])} for row in later()]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        update(run.open_run(start("ridge")), write_csv(tmp_path / "later.csv", table))
    said = [str(one.message) for one in caught if "standard deviations" in str(one.message)]
    assert [one.startswith("later targets of existing_0 are up to ") for one in said[:1]] == [True] * (factor > 1)


def test_lags_of_next_month_reach_back_into_what_was_added(tmp_path: Path) -> None:
    table = hourly(8)
    known, december, ask = ([row for row in table if begin <= row["when"] < end] for begin, end in PARTS)
    source = write_csv(tmp_path / "rows.csv", known)
    sets = ("data.time=when", 'data.features=["hour:cyclic", "lag:24h"]', "method.name=ridge")
    run.run(on_csv(source, *sets), tmp_path / "run")
    path = write_csv(tmp_path / "ask.csv", [{**row, "y": float("nan")} for row in ask])
    with pytest.warns(UserWarning, match="8 rows lack a value and have no prediction"):
        forecast(run.open_run(tmp_path / "run"), path)
    with pytest.warns(UserWarning, match="^1 row lacks a value and has no prediction"):
        forecast(run.open_run(tmp_path / "run"), write_csv(tmp_path / "one.csv", [{**ask[0], "y": float("nan")}]))
    later = write_csv(tmp_path / "december.csv", december)
    assert update(run.open_run(tmp_path / "run"), later).found["house_0"] == Count(8)
    assert bool(forecast(run.open_run(tmp_path / "run"), path).predicted["mean"].isfinite().all())
    truth = write_csv(tmp_path / "truth.csv", ask)
    assert score(run.open_run(tmp_path / "run"), truth).rows == {"house_0": 4, "house_1": 4}


PARTS = (("2024-03-01", "2024-03-06"), ("2024-03-06", "2024-03-08"), ("2024-03-08", "2024-03-09"))
