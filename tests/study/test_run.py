"""Running a study: what a run folder holds, what a run depends on, and how an interrupted one goes on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tomllib
import warnings
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch

from pacbayes_fl import tensors
from pacbayes_fl.data import tables
from pacbayes_fl.data.batch import client_id
from pacbayes_fl.errors import CheckpointError, ClientError, DamageWarning, DataError, StudyError
from pacbayes_fl.federation import checkpoint, engine, federation_state, lock
from pacbayes_fl.federation.watch import Watch
from pacbayes_fl.results import records as results
from pacbayes_fl.results import rounds
from pacbayes_fl.results.manifest import adopt
from pacbayes_fl.results.records import Result
from pacbayes_fl.results.rounds import RoundRecord
from pacbayes_fl.study import run
from pacbayes_fl.study.data import load, provenance
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.serving.release import open_release, release
from tests.tiny import ROUNDS, assert_same_results, assert_same_state, on_csv, quick, rows, state, tiny, write_csv

OnRound = Callable[[RoundRecord], None]
PARTS = ("x_train", "y_train", "mask_train", "x_test", "y_test", "mask_test", "mean", "std", "lower", "upper", "pit")


def stop_at(round: int, number: signal.Signals = signal.SIGTERM) -> OnRound:
    """Send this process a signal while a round is being recorded."""
    return lambda record: os.kill(os.getpid(), number) if record.round == round else None


def interrupted(one: Study, folder: Path, round: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        run.run(one, folder, on_round=stop_at(round))


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def without_seconds(result: Result) -> Result:
    """Leave out the one number that no two runs share."""

    def timeless(record: RoundRecord) -> RoundRecord:
        return replace(record, values={name: v for name, v in record.values.items() if name != "seconds"})

    return replace(result, rounds=tuple(timeless(record) for record in result.rounds))


# what a run leaves behind ---------------------------------------------------------------------------------------


def test_a_run_without_a_folder_writes_nothing_and_says_the_same(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    seen: list[RoundRecord] = []
    result = run.run(tiny(), on_round=seen.append)
    assert list(tmp_path.iterdir()) == []
    assert tuple(seen) == result.rounds
    assert without_seconds(result) == without_seconds(results.load(finished))


def test_a_run_folder_is_complete(finished: Path) -> None:
    names = {path.name for path in finished.iterdir()}
    files = {
        "study.toml",
        "environment.json",
        "data.npz",
        "scaling.json",
        "rounds.jsonl",
        "clients.csv",
        "calibration.csv",
        "metrics.json",
        "labels.json",
    }
    assert names == files | {"predictions.safetensors", "checkpoints", "run.lock", "trained.json", "manifest.json"}
    assert tomllib.loads((finished / "study.toml").read_text()) == tiny().table()
    assert Study.from_toml(finished / "study.toml") == tiny()
    assert {path.name for path in (finished / "checkpoints").iterdir()} == {"round_000008", "round_000012", "latest"}
    assert (finished / "run.lock").read_text() == ""


def test_the_environment_says_on_what_and_from_which_data(finished: Path) -> None:
    about = json.loads((finished / "environment.json").read_text())
    assert about["versions"]["torch"] == version("torch")  # whose build PyPI's leaves out, "+cu130"
    assert torch.__version__.startswith(version("torch"))
    assert {"python", "gpytorch", "numpy", "safetensors"} <= set(about["versions"])
    assert (about["device"], about["threads"], about["seed"]) == ("cpu", 1, 3)
    expected = provenance(load(tiny()))
    assert about["data"]["sha256"] == expected["sha256"]
    assert about["data"]["split_sha256"] == expected["split_sha256"]


def test_the_rounds_are_one_line_each_with_a_score_every_tenth(finished: Path) -> None:
    lines = [json.loads(line) for line in (finished / "rounds.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [*range(1, ROUNDS + 1)]
    assert all(line["clients"] == 4 and line["dropped"] == [] for line in lines)
    assert all(
        {"log_evidence", "score_norm", "spread", "jittered", "seconds", "rsmse"} == set(line["values"])
        for line in lines
    )


def test_the_learning_curve_is_scored_when_asked_and_ends_with_the_result(tmp_path: Path) -> None:
    result = run.run(tiny("report.evaluate_every=5"))
    assert [record.round for record in result.rounds if "rsmse" in record.values] == [5, 10, 12]
    rsmse = result.column("existing", "rsmse")
    assert result.rounds[-1].values["rsmse"] == pytest.approx(sum(rsmse) / len(rsmse), rel=1e-12)


def test_metrics_json_has_the_schema_that_is_promised(finished: Path) -> None:
    summary = json.loads((finished / "metrics.json").read_text())
    assert [summary[key] for key in ("study", "method", "seed", "task")] == ["tiny", "pac-pfl", 3, "regression"]
    assert list(summary["groups"]) == ["existing", "new"]
    for group, count in (("existing", 4), ("new", 2)):
        entry = summary["groups"][group]
        assert entry["n_clients"] == count
        assert {"rsmse", "ce", "nlpd", "crps", "rmse", "rmse_raw", "nlpd_raw", "crps_raw"} < set(entry)
        for metric in set(entry) - {"n_clients"}:
            assert {"mean", "std", "median", "interval"} == set(entry[metric])
            assert entry[metric]["interval"][0] <= entry[metric]["mean"] <= entry[metric]["interval"][1]
    result = results.load(finished)
    rsmse = result.column("new", "rsmse")
    assert summary["groups"]["new"]["rsmse"]["mean"] == pytest.approx(sum(rsmse) / 2, rel=1e-12)


def test_predictions_and_labels_are_all_there(finished: Path) -> None:
    result = results.load(finished)
    assert set(result.predictions) == {f"{group}.{name}" for group in ("existing", "new") for name in PARTS}
    assert result.predictions["existing.mean"].shape == (4, 8)
    assert result.predictions["new.x_train"].shape == (2, 7, 1)
    assert all(t.dtype in (torch.float64, torch.bool) for t in result.predictions.values())
    assert result.labels["differs_from_paper"] == {key: list(pair) for key, pair in tiny().differences().items()}
    assert (result.labels["feature_name"], result.labels["particles"]) == (["x"], 2)


def test_the_saved_data_are_the_data(finished: Path) -> None:
    saved, made = tables.read(finished / "data.npz"), load(tiny())
    assert provenance(saved)["split_sha256"] == provenance(made)["split_sha256"]
    assert (saved.features, saved.target) == (made.features, made.target)


def test_the_checkpoint_says_whose_state_it_is(finished: Path) -> None:
    saved = checkpoint.load(finished)
    assert saved is not None and saved.round == ROUNDS
    assert saved.meta["study"] == tiny().table()
    assert saved.meta["names"] == ["poly_00", "poly_01", "poly_02", "poly_03"]
    assert saved.meta["ids"] == [client_id(name) for name in saved.meta["names"]]
    assert Watch.from_saved(saved.meta["watch"]).steps == results.load(finished).rounds[-1].steps is not None


# what a run depends on ------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(finished: Path, tmp_path: Path) -> None:
    run.run(tiny(), tmp_path / "again")
    assert_same_results(tmp_path / "again", finished)
    run.run(tiny("seed=4"), tmp_path / "other")
    mine, theirs = state(tmp_path / "other"), state(finished)
    assert not torch.equal(mine["server.particles"], theirs["server.particles"])


def test_the_number_of_threads_is_the_callers_again() -> None:
    before = torch.get_num_threads()
    seen = []
    run.run(tiny("federation.threads=2", "method.name=ridge"), on_round=lambda _: seen.append(torch.get_num_threads()))
    assert (seen, torch.get_num_threads()) == ([2], before)


def test_new_clients_never_touch_the_training(tmp_path: Path) -> None:
    table = rows()
    changed = [row | {"y": -7.0 * row["y"] ** 2, "wind": 1e6} if row["group"] == "new" else row for row in table]
    one = run.train(on_csv(write_csv(tmp_path / "a.csv", table)))
    other = run.train(on_csv(write_csv(tmp_path / "b.csv", changed)))
    gone = run.train(on_csv(write_csv(tmp_path / "c.csv", [row for row in table if row["group"] != "new"])))
    assert not torch.equal(one.groups["new"].raw.train.y, other.groups["new"].raw.train.y)
    assert set(gone.groups) == {"existing"}
    flat = tensors.leaves(one.state.server)
    for trained in (other, gone):
        assert all(torch.equal(leaf, flat[name]) for name, leaf in tensors.leaves(trained.state.server).items())


def test_test_rows_never_touch_the_training(tmp_path: Path) -> None:
    table = rows()
    changed = [row | {"y": 1e9 + i, "lag_1": -1e9} if row["split"] == "test" else row for i, row in enumerate(table)]
    one = run.train(on_csv(write_csv(tmp_path / "a.csv", table)))
    other = run.train(on_csv(write_csv(tmp_path / "b.csv", changed)))
    for mine, theirs in zip(one.state.server.adam, other.state.server.adam, strict=True):
        assert torch.equal(mine, theirs)
    assert torch.equal(one.state.server.particles, other.state.server.particles)


def test_no_rounds_give_the_start(tmp_path: Path) -> None:
    result = run.run(tiny("federation.rounds=0"), tmp_path / "run")
    assert result.rounds == ()
    trained = run.open_run(tmp_path / "run")
    fresh = federation_state.start(trained.method, trained.groups["existing"].train, tiny().plan)
    assert torch.equal(trained.state.server.particles, fresh.server.particles)


def test_cuda_is_refused_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert run.device_of(tiny("federation.device=auto")).type == "cpu"
    with pytest.raises(StudyError, match=r"device is 'cuda', and there is no CUDA device"):
        run.run(tiny("federation.device=cuda"))


# going on -------------------------------------------------------------------------------------------------------


@pytest.mark.law
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("round", [1, 6])
def test_a_stopped_run_goes_on_bit_by_bit(finished: Path, tmp_path: Path, round: int, number: signal.Signals) -> None:
    handlers = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]
    with pytest.raises(KeyboardInterrupt):
        run.run(tiny(), tmp_path, on_round=stop_at(round, number))
    saved = checkpoint.load(tmp_path)
    assert saved is not None and saved.round == round
    assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)] == handlers
    assert not (tmp_path / "metrics.json").exists()
    again: list[RoundRecord] = []
    result = run.run(tiny(), tmp_path, resume=True, on_round=again.append)
    assert [record.round for record in again] == [*range(round + 1, ROUNDS + 1)]
    assert [record.round for record in result.rounds] == [*range(1, ROUNDS + 1)]
    assert_same_results(tmp_path, finished)
    assert without_seconds(results.load(tmp_path)) == without_seconds(results.load(finished))


def test_a_stop_in_the_last_round_leaves_only_the_report(finished: Path, tmp_path: Path) -> None:
    interrupted(tiny(), tmp_path, ROUNDS)
    again: list[RoundRecord] = []
    run.run(tiny(), tmp_path, resume=True, on_round=again.append)
    assert again == []
    assert_same_results(tmp_path, finished)


def test_resuming_a_finished_run_changes_nothing_and_an_empty_folder_starts(finished: Path, tmp_path: Path) -> None:
    run.run(tiny(), tmp_path / "run", resume=True)
    assert_same_results(tmp_path / "run", finished)
    run.run(tiny(), tmp_path / "run", resume=True)
    assert_same_results(tmp_path / "run", finished)


def test_lines_of_rounds_that_no_checkpoint_covers_are_dropped(finished: Path, tmp_path: Path) -> None:
    interrupted(tiny(), tmp_path, 6)
    rounds.append_round(tmp_path, RoundRecord(7, 99))
    with (tmp_path / "rounds.jsonl").open("a") as file:
        file.write('{"round": 8, "cli')
    run.run(tiny(), tmp_path, resume=True)
    assert without_seconds(results.load(tmp_path)) == without_seconds(results.load(finished))


def test_more_rounds_go_on_where_fewer_ended(tmp_path: Path) -> None:
    run.run(tiny("federation.rounds=20"), tmp_path / "whole")
    run.run(tiny(), tmp_path / "parts")
    again: list[RoundRecord] = []
    run.run(tiny("federation.rounds=20"), tmp_path / "parts", resume=True, on_round=again.append)
    assert [record.round for record in again] == [*range(13, 21)]
    assert_same_results(tmp_path / "parts", tmp_path / "whole")


def test_a_run_that_goes_on_is_not_a_finished_one(tmp_path: Path) -> None:
    run.run(tiny(), tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run.run(tiny("federation.rounds=20"), tmp_path, resume=True, on_round=stop_at(15))
    with pytest.raises(StudyError, match="is not a finished run folder"):
        results.load(tmp_path)


def test_fewer_rounds_than_are_done_are_refused(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    with pytest.raises(StudyError, match="has finished round 12, and rounds is 5"):
        run.run(tiny("federation.rounds=5"), tmp_path / "run", resume=True)
    assert_same_results(tmp_path / "run", finished)


def test_what_may_change_between_two_starts(tmp_path: Path) -> None:
    interrupted(tiny(), tmp_path, 5)
    run.run(tiny("federation.device=auto", "federation.threads=none", "federation.checkpoint_every=3"), tmp_path, True)
    assert Study.from_toml(tmp_path / "study.toml").federation.checkpoint_every == 3


@pytest.mark.parametrize("saved", [True, False], ids=["after a checkpoint", "before the first"])
def test_another_study_is_refused_with_its_keys(tmp_path: Path, saved: bool) -> None:
    interrupted(tiny(), tmp_path, 5)
    if not saved:
        shutil.rmtree(tmp_path / "checkpoints")
        adopt(tmp_path)
    before = (tmp_path / "study.toml").read_bytes()
    text = r"method\.rate: saved 0\.01, now 0\.5; federation\.waste: saved 1\.1, now 2\.0 \("
    with pytest.raises(CheckpointError, match=text):
        run.run(tiny("method.rate=0.5", "federation.waste=2", "federation.rounds=99"), tmp_path, resume=True)
    assert (tmp_path / "study.toml").read_bytes() == before


def test_a_run_from_before_a_key_existed_goes_on(finished: Path, tmp_path: Path) -> None:
    interrupted(tiny(), tmp_path, 5)
    saved = checkpoint.load(tmp_path)
    assert saved is not None
    table = {part: values for part, values in saved.meta["study"].items() if part != "report"}
    checkpoint.save(tmp_path, 5, saved.tensors, {**saved.meta, "study": table})
    run.run(tiny(), tmp_path, resume=True)
    assert_same_results(tmp_path, finished)


def test_a_folder_that_holds_a_run_is_not_written_over(finished: Path) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in finished.iterdir() if path.name != "run.lock"}
    with pytest.raises(StudyError, match=r"holds a run already \(go on with --resume, or choose another --out\)"):
        run.run(tiny(), finished)
    assert before == {path.name: path.stat().st_mtime_ns for path in finished.iterdir() if path.name != "run.lock"}


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    with lock.RunLock(tmp_path), pytest.raises(CheckpointError, match=f"in use by pid {os.getpid()}"):
        run.run(tiny(), tmp_path)
    run.run(tiny(), tmp_path)


def test_a_damaged_checkpoint_is_passed_over_with_a_warning(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    flip_a_byte(folder / "checkpoints" / "round_000012" / "state.safetensors")
    with pytest.warns(UserWarning, match=r"^state.safetensors of round 12 is damaged; using round 8$"):
        assert run.open_run(folder).state.round == 8
    again: list[RoundRecord] = []
    with pytest.warns(DamageWarning, match=r"^state.safetensors of round 12 is damaged; using round 8$"):
        run.run(tiny(), folder, resume=True, on_round=again.append)
    assert [record.round for record in again] == [9, 10, 11, 12]
    assert_same_state(folder, finished)
    result, whole = results.load(folder), results.load(finished)
    told = ["state.safetensors of round 12 is damaged; using round 8"]
    assert result.labels["fell_back"] == result.summary()["fell_back"] == told
    plain = {name: value for name, value in result.labels.items() if name != "fell_back"}
    assert without_seconds(replace(result, labels=plain)) == without_seconds(whole)
    flip_a_byte(folder / "checkpoints" / "round_000012" / "state.json")
    flip_a_byte(folder / "checkpoints" / "round_000008" / "manifest.json")
    with pytest.raises(
        CheckpointError, match=r"no round in .* is intact: state.json of round 12 is damaged; manifest.json"
    ):
        run.run(tiny(), folder, resume=True)


def test_clients_that_all_fail_stop_the_run_with_the_last_good_round_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = engine.rounds

    def failing(*args: Any) -> Any:
        for record, after in real(*args):
            if record.round == 7:
                raise ClientError("none is good", round=7)
            yield record, after

    monkeypatch.setattr(engine, "rounds", failing)
    with pytest.raises(ClientError, match="round 7: none is good"):
        run.run(tiny(), tmp_path / "run")
    saved = checkpoint.load(tmp_path / "run")
    assert saved is not None and saved.round == 6
    monkeypatch.undo()
    run.run(tiny(), tmp_path / "run", resume=True)
    run.run(tiny(), tmp_path / "whole")
    assert_same_results(tmp_path / "run", tmp_path / "whole")


# clients that come, go and change places ------------------------------------------------------------------------


def test_clients_in_another_order_are_matched_by_name(tmp_path: Path) -> None:
    """Rows of a client keep their order; the clients do not."""
    table = rows()
    path = write_csv(tmp_path / "rows.csv", table)
    run.run(on_csv(path), tmp_path / "whole")
    interrupted(on_csv(path), tmp_path / "run", 6)
    write_csv(path, sorted(table, key=lambda row: str(row["client"]), reverse=True))
    result = run.run(on_csv(path), tmp_path / "run", resume=True)
    assert [row.name for row in result.clients] == [f"existing_{k}" for k in (3, 2, 1, 0)] + ["new_1", "new_0"]
    expected = {row.name: row.metrics for row in results.load(tmp_path / "whole").clients}
    for row in result.clients:
        assert dict(row.metrics) == pytest.approx(dict(expected[row.name]), rel=1e-8)


@pytest.mark.parametrize("more", [True, False])
def test_a_client_more_or_less_goes_on(tmp_path: Path, more: bool) -> None:
    all_rows = rows(sizes=(9, 12, 8, 10))
    few = [row for row in all_rows if row["client"] != "existing_1"]
    path = write_csv(tmp_path / "rows.csv", few if more else all_rows)
    interrupted(on_csv(path), tmp_path / "run", 6)
    write_csv(path, all_rows if more else few)
    with pytest.warns(UserWarning, match=f"existing_1 {'joined' if more else 'left'} since the run was started"):
        result = run.run(on_csv(path), tmp_path / "run", resume=True)
    assert [record.clients for record in result.rounds] == [3 if more else 4] * 6 + [4 if more else 3] * 6
    assert ("existing_1" in [row.name for row in result.clients]) is more


def test_changed_data_are_refused_and_a_finished_run_stays_as_it_is(finished: Path, tmp_path: Path) -> None:
    path = write_csv(tmp_path / "rows.csv", rows())
    folder = tmp_path / "run"
    run.run(on_csv(path), folder)
    before = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
    changed = [row | {"y": 99.0} if row["client"] == "existing_2" else row for row in rows()]
    narrow = [{name: value for name, value in row.items() if name != "wind"} for row in rows()]
    for table, text in (
        (changed, "client 'existing_2': its rows are not those"),
        (narrow, "features were lag_1, wind"),
    ):
        write_csv(path, table)
        with pytest.raises(DataError, match=text):
            run.run(on_csv(path, "federation.rounds=20"), folder, resume=True)
        assert {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()} == before


def test_a_run_is_opened_as_it_was_trained_whatever_became_of_study_toml(tmp_path: Path) -> None:
    run.run(tiny(), tmp_path / "run")
    toml = tmp_path / "run" / "study.toml"
    toml.write_text(toml.read_text(encoding="utf-8").replace('weighting = "evidence"', 'weighting = "equal"'), "utf-8")
    assert run.open_run(tmp_path / "run").study.table() == tiny().table()
    assert run.open_run(tmp_path / "run").result == results.load(tmp_path / "run")


def test_a_damaged_line_of_the_rounds_ends_the_run_unless_it_is_taken_as_it_is(tmp_path: Path) -> None:
    run.run(tiny(), tmp_path / "run")
    path = tmp_path / "run" / "rounds.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([lines[0], "garbage", *lines[2:]]) + "\n", encoding="utf-8")
    hint = "restore it from a copy, .* remove manifest.json and resume"
    with pytest.raises(DataError, match=rf"rounds\.jsonl is damaged or was edited: it holds the record .*{hint}"):
        run.run(tiny(), tmp_path / "run", resume=True)
    (tmp_path / "run" / "manifest.json").unlink()
    with (
        pytest.warns(DamageWarning, match="manifest.json is missing: the files of the run are taken as they are"),
        pytest.warns(DamageWarning, match="line 2: .*: the record of that round is lost"),
    ):
        result = run.run(tiny(), tmp_path / "run", resume=True)
    assert [record.round for record in result.rounds] == [1, *range(3, len(lines) + 1)]


# opening a run --------------------------------------------------------------------------------------------------


def test_a_run_is_opened_from_its_folder_alone(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "moved"
    shutil.copytree(finished, folder)
    trained = run.open_run(str(folder))
    assert (trained.study, trained.state.round, len(trained.rounds)) == (tiny(), ROUNDS, ROUNDS)
    assert torch.equal(trained.state.server.particles, state(finished)["server.particles"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert without_seconds(run.report(trained)) == without_seconds(results.load(finished))


@pytest.mark.parametrize("missing", ["study.toml", "data.npz", "checkpoints"])
def test_a_folder_that_is_no_run_cannot_be_opened(finished: Path, tmp_path: Path, missing: str) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    path = folder / missing
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises((StudyError, CheckpointError), match=r"is not a (finished )?run folder|checkpoints is missing"):
        run.open_run(folder)


def test_a_run_that_was_stopped_can_be_opened(tmp_path: Path) -> None:
    interrupted(tiny(), tmp_path, 6)
    assert run.open_run(tmp_path).state.round == 6
    first = run.open_run(tmp_path).state.server.particles
    run.run(tiny(), tmp_path, resume=True)
    assert not torch.equal(run.open_run(tmp_path).state.server.particles, first)


# the mean of the last rounds ------------------------------------------------------------------------------------

AVERAGED = ("federation.average_last=0.5", "report.evaluate_every=1")
"""Rounds 7 to 12."""


@pytest.fixture(scope="module")
def averaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run whose server is averaged; only to be read."""
    folder = tmp_path_factory.mktemp("averaged") / "run"
    run.run(tiny(*AVERAGED, "federation.checkpoint_every=1"), folder)
    return folder


def particles_after(rounds: range) -> torch.Tensor:
    """Give the particles after several rounds, of runs that end there."""
    studies = [tiny(f"federation.rounds={number}") for number in rounds]
    return torch.stack([run.train(one).state.server.particles for one in studies])


@pytest.mark.slow
def test_whatever_is_made_of_a_run_is_made_of_the_mean_of_its_last_servers(averaged: Path, tmp_path: Path) -> None:
    expected = particles_after(range(7, ROUNDS + 1))
    opened = run.open_run(averaged)
    torch.testing.assert_close(opened.state.server.particles, expected.mean(0), rtol=1e-10, atol=1e-12)
    saved = state(averaged)
    assert torch.equal(saved["server.particles"], expected[-1]), "rounds have gone on from the last"
    assert torch.equal(saved["average.server.particles"], opened.state.server.particles)
    release(averaged, tmp_path / "released")
    assert torch.equal(open_release(tmp_path / "released").server.particles, opened.state.server.particles)
    assert "averaged" in json.loads((tmp_path / "released" / "labels.json").read_text())
    again = run.report(opened)
    for group in ("existing", "new"):
        assert results.load(averaged).column(group, "rsmse") == again.column(group, "rsmse")
    labels = json.loads((averaged / "labels.json").read_text())
    assert labels["averaged"] == "the server's model is the mean of those after rounds 7 to 12"


def test_the_learning_curve_is_of_what_would_be_used_if_a_run_ended_there(averaged: Path, tmp_path: Path) -> None:
    """Of the last state until the mean begins; then of the mean so far, which ends with the result."""
    run.run(tiny("report.evaluate_every=1"), tmp_path)
    mine, plain = (rounds.read_rounds(folder) for folder in (averaged, tmp_path))
    same = [one.values["rsmse"] == other.values["rsmse"] for one, other in zip(mine, plain, strict=True)]
    assert same == [True] * 7 + [False] * 5
    assert all(one.values["log_evidence"] == two.values["log_evidence"] for one, two in zip(mine, plain, strict=True))
    scores = results.load(averaged).column("existing", "rsmse")
    assert mine[-1].values["rsmse"] == pytest.approx(sum(scores) / len(scores), rel=1e-9)


@pytest.mark.law
@pytest.mark.parametrize("round", [3, 6, 7, 10])
def test_a_run_that_was_stopped_has_the_same_mean(averaged: Path, tmp_path: Path, round: int) -> None:
    interrupted(tiny(*AVERAGED), tmp_path, round)
    opened = run.open_run(tmp_path)
    assert torch.equal(opened.state.server.particles, state(tmp_path)["server.particles"]) == (round <= 7)
    run.run(tiny(*AVERAGED), tmp_path, resume=True)
    assert_same_results(tmp_path, averaged)


def test_a_damaged_round_is_averaged_anew(averaged: Path, tmp_path: Path) -> None:
    shutil.copytree(averaged, tmp_path / "run")
    flip_a_byte(tmp_path / "run" / "checkpoints" / f"round_{ROUNDS:06d}" / "state.safetensors")
    with pytest.warns(DamageWarning):
        run.run(tiny(*AVERAGED, "federation.checkpoint_every=1"), tmp_path / "run", resume=True)
    assert_same_state(tmp_path / "run", averaged)


def test_another_share_is_another_study(averaged: Path) -> None:
    with pytest.raises(CheckpointError, match=r"average_last: saved 0\.5, now 0\.25"):
        run.run(tiny(*AVERAGED, "federation.average_last=0.25"), averaged, resume=True)


def test_a_method_whose_server_has_no_mean_is_refused_before_anything(tmp_path: Path) -> None:
    for name in ("ifca", "local", "pooled-gp"):
        with pytest.raises(StudyError, match=r"average_last takes the mean of the server's states"):
            run.run(tiny(*quick(name), "federation.average_last=0.5"), tmp_path / "run")
    assert not (tmp_path / "run").exists()
