"""What a run folder holds is what was saved, whatever happened on the way."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pacbayes_fl.errors import CheckpointError, DataError, StudyError
from pacbayes_fl.results.client_rows import ClientRow
from pacbayes_fl.results.folder import write_atomic
from pacbayes_fl.results.records import Result, environment, load
from pacbayes_fl.results.rounds import RoundRecord, Steps, append_round, read_rounds, truncate_rounds


def record(number: int) -> RoundRecord:
    return RoundRecord(number, 4, ("haus, süd",), {"rsmse": 0.1 / 3, "spread": math.nan, "score_norm": math.inf})


def result() -> Result:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(3, 5, 2, generator=generator, dtype=torch.float64)
    values[0, 0, 0] = math.nan
    return Result(
        study="polynomial",
        method="pac_pfl",
        seed=7,
        task="regression",
        rounds=(record(1), record(2)),
        clients=(
            ClientRow(4, "house, 4", "existing", 10, {"rsmse": 0.1 / 3, "ce": 0.2}),
            ClientRow(2, 'say "2"', "existing", 12, {"rsmse": 0.5, "ce": math.nan}),
            ClientRow(9, "ö", "existing", 3, {"rsmse": 2.0, "nlpd": math.inf}),
            ClientRow(4, "house, 4", "new", 10, {"rsmse": 1e-300}),
        ),
        predictions={
            "existing.x_test": values,
            "existing.alias": values,
            "existing.mean": values[..., 0],  # shares memory with the one above
            "existing.lower": values[..., :1].expand(3, 5, 2),
            "existing.mask_test": values[..., 0] > 0,
            "new.mean": torch.zeros(1, 5, dtype=torch.float32),
        },
        labels={"target": {"name": "power", "unit": "kW"}, "levels": [0.05, 0.95], "note": "ζ = 1"},
    )


def test_a_saved_result_loads_equal(tmp_path: Path) -> None:
    saved = result()
    saved.save(tmp_path / "run")
    loaded = load(tmp_path / "run")
    assert loaded == saved
    assert loaded.labels == saved.labels
    assert loaded.clients[0] == saved.clients[0]
    assert loaded.column("existing", "nlpd")[2] == math.inf
    assert math.isnan(loaded.rounds[1].values["spread"])
    assert loaded.predictions["existing.mask_test"].dtype == torch.bool
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "clients.csv",
        "labels.json",
        "manifest.json",
        "metrics.json",
        "predictions.safetensors",
        "rounds.jsonl",
    ]


def test_equality_sees_every_part() -> None:
    one = result()
    mean = one.predictions["new.mean"]
    assert one == result()
    assert one != replace(one, seed=8)
    assert one != replace(one, rounds=one.rounds[:1])
    assert one != replace(one, clients=one.clients[::-1])
    assert one != replace(one, labels={})
    assert one != replace(one, predictions=dict(one.predictions) | {"new.mean": mean + 1e-6})
    assert one != replace(one, predictions=dict(one.predictions) | {"new.mean": mean.double()})
    assert one != "a result"


def test_norms_of_steps_survive(tmp_path: Path) -> None:
    slowed = RoundRecord(3, 2, undone=("it is not finite", "nor now"), rates=0.25)
    records = (RoundRecord(1, 2, steps=Steps(0.1, 1.7e308, "house [7]")), RoundRecord(2, 2), slowed)
    replace(result(), rounds=records).save(tmp_path)
    assert load(tmp_path).rounds == records
    first, second, _ = map(json.loads, (tmp_path / "rounds.jsonl").read_text("utf-8").splitlines())
    assert first["steps"] == {"median": 0.1, "largest": 1.7e308, "whose": "house [7]"} and "steps" not in second


@settings(max_examples=50, deadline=None)
@given(
    name=st.text(st.characters(exclude_categories=["Cs"])),
    value=st.floats(),
    text=st.text(st.characters(exclude_categories=["Cs"])),
)
def test_any_text_and_number_survives(
    tmp_path_factory: pytest.TempPathFactory, name: str, value: float, text: str
) -> None:
    folder = tmp_path_factory.mktemp("run")
    saved = Result(
        study=text,
        method="m",
        seed=0,
        task="regression",
        rounds=(RoundRecord(1, 1, (name,), {"a": value}),),
        clients=(ClientRow(0, name, "new", 0, {"a": value}),),
        labels={"note": text},
    )
    saved.save(folder)
    loaded = load(folder)
    assert loaded == saved
    assert loaded.clients[0].name == name
    assert np.array_equal(loaded.column("new", "a"), [value], equal_nan=True)


def test_clients_csv_has_one_row_per_client_and_group(tmp_path: Path) -> None:
    result().save(tmp_path)
    with (tmp_path / "clients.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["id", "group", "name", "m", "rsmse", "ce", "nlpd"]
    assert rows[1] == ["4", "existing", "house, 4", "10", repr(0.1 / 3), "0.2", ""]
    assert rows[2] == ["2", "existing", 'say "2"', "12", "0.5", "nan", ""]
    assert rows[4] == ["4", "new", "house, 4", "10", "1e-300", "", ""]
    assert len(rows) == 5


def test_summary_is_numpys_and_is_what_metrics_json_holds(tmp_path: Path) -> None:
    summary = result().summary()
    rsmse = np.array([0.1 / 3, 0.5, 2.0])
    assert {key: summary[key] for key in ("study", "method", "seed", "task")} == {
        "study": "polynomial",
        "method": "pac_pfl",
        "seed": 7,
        "task": "regression",
    }
    existing, new = summary["groups"]["existing"], summary["groups"]["new"]
    assert existing["n_clients"] == 3 and new["n_clients"] == 1
    assert set(existing["rsmse"]) == {"mean", "std", "median", "interval"}
    assert existing["rsmse"]["mean"] == pytest.approx(rsmse.mean())
    assert existing["rsmse"]["std"] == pytest.approx(np.std(rsmse, ddof=1))
    assert existing["rsmse"]["median"] == 0.5
    low, high = existing["rsmse"]["interval"]
    assert rsmse.min() <= low < rsmse.mean() < high <= rsmse.max()
    assert new["rsmse"] == {"mean": 1e-300, "std": None, "median": 1e-300, "interval": [None, None]}
    # two clients have no CE: the mean says over how many it goes; an infinite value is null, not a made-up number
    assert existing["ce"]["mean"] == 0.2 and existing["ce"]["n_clients"] == 1
    assert existing["ce"]["not_finite"] == {'say "2"': "nan"}
    assert existing["nlpd"]["mean"] is None and existing["nlpd"]["n_clients"] == 1
    assert list(existing["nlpd"]["not_finite"].values()) == ["inf"]
    assert "ce" not in new
    result().save(tmp_path)
    assert json.loads((tmp_path / "metrics.json").read_text()) == summary


def test_summary_nests_at_dots_and_names_whom_it_leaves_out() -> None:
    metrics = {"pm.accuracy": 0.5, "gm.accuracy": 0.25, "ce": math.nan}
    rows = (ClientRow(0, "a", "new", 1, metrics), ClientRow(1, "b", "existing", 1, {"kept": 1.0}))
    groups = Result("s", "m", 0, "classification", clients=rows).summary()["groups"]
    nothing = {"mean": None, "std": None, "median": None, "interval": [None, None]}
    assert set(groups["existing"]) == {"n_clients", "kept"}  # a metric of the other group is none of theirs
    del groups["existing"]
    assert groups == {
        "new": {
            "ce": {**nothing, "n_clients": 0, "not_finite": {"a": "nan"}},
            "n_clients": 1,
            "pm": {"accuracy": {"mean": 0.5, "std": None, "median": 0.5, "interval": [None, None]}},
            "gm": {"accuracy": {"mean": 0.25, "std": None, "median": 0.25, "interval": [None, None]}},
        }
    }


def test_the_model_at_its_mean_weights_has_a_place_of_its_own() -> None:
    rows = tuple(
        ClientRow(k, str(k), "existing", 1, {"pm.accuracy": 0.5 + k / 8, "pm.mean_weights.accuracy": 0.25})
        for k in (0, 1)
    )
    personal = Result("s", "m", 0, "classification", clients=rows).summary()["groups"]["existing"]["pm"]
    assert personal["accuracy"]["mean"] == 0.5625 and personal["accuracy"]["std"] > 0
    assert personal["mean_weights"]["accuracy"] == {"mean": 0.25, "std": 0.0, "median": 0.25, "interval": [0.25, 0.25]}
    assert set(personal) == {"accuracy", "mean_weights"}


def test_a_row_that_the_table_cannot_hold_is_refused() -> None:
    with pytest.raises(StudyError, match=r"'ghost'.*existing, new, got 'old'"):
        ClientRow(0, "ghost", "old", 1)
    with pytest.raises(StudyError, match="'name'"):
        ClientRow(0, "ghost", "new", 1, {"name": 1.0})


def test_an_unfinished_folder_says_what_is_missing(tmp_path: Path) -> None:
    result().save(tmp_path)
    (tmp_path / "metrics.json").unlink()
    with pytest.raises(StudyError, match=r"is not a finished run folder: metrics\.json is missing .*--resume"):
        load(tmp_path)
    (tmp_path / "labels.json").unlink()
    with pytest.raises(StudyError, match=r"metrics\.json and labels\.json are missing"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("metrics.json", '{"study": "a"', "metrics.json"),
        ("metrics.json", "{}", "metrics.json"),
        ("metrics.json", "[]", "metrics.json"),
        ("clients.csv", "", "clients.csv"),
        ("clients.csv", "id,name\n", "clients.csv.*expected columns id, group, name, m"),
        ("clients.csv", "id,group,name,m,a\n1,new,x,2\n", "clients.csv"),
        ("clients.csv", "id,group,name,m\n1,old,x,2\n", "clients.csv.*existing, new"),
        ("labels.json", "\xff", "labels.json"),
        ("predictions.safetensors", "{}", "predictions.safetensors"),
        ("rounds.jsonl", '{"round": 1}\n', "rounds.jsonl.*line 1"),
    ],
)
def test_a_garbled_file_is_named(tmp_path: Path, name: str, content: str, message: str) -> None:
    result().save(tmp_path)
    (tmp_path / name).write_bytes(content.encode("latin-1"))
    with pytest.raises(DataError, match=message):
        load(tmp_path)


def test_labels_that_are_not_json_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    for labels in ({"path": tmp_path}, {"level": math.nan}):
        with pytest.raises(StudyError, match="labels must be JSON"):
            replace(result(), labels=labels).save(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_crash_while_saving_again_never_shows_a_mixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result().save(tmp_path)
    replaced: list[str] = []

    def crash(source: Path, target: Path) -> None:
        if len(replaced) == 2:
            raise KeyboardInterrupt
        replaced.append(Path(target).name)
        Path(source).rename(target)

    monkeypatch.setattr("os.replace", crash)
    with pytest.raises(KeyboardInterrupt):
        replace(result(), seed=8).save(tmp_path)
    with pytest.raises(StudyError, match="not a finished run folder"):
        load(tmp_path)


def test_a_file_that_cannot_be_replaced_stays_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_atomic(tmp_path / "a.txt", b"old")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(CheckpointError, match=r"cannot write .*a\.txt: No space left"):
        write_atomic(tmp_path / "a.txt", b"new")
    assert (tmp_path / "a.txt").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_environment_is_json_and_knows_its_versions() -> None:
    read = json.loads(json.dumps(environment()))
    assert (
        read["versions"]["torch"] == torch.__version__.split("+")[0] or read["versions"]["torch"] == torch.__version__
    )
    assert set(read["versions"]) >= {"python", "torch", "gpytorch", "numpy", "pacbayes_fl"}
    assert read["device"] == "cpu" and read["threads"] == torch.get_num_threads() and read["platform"]


def test_a_result_shows_what_was_run_in_one_line() -> None:
    rows = tuple(
        ClientRow(k, f"c{k}", group, 3, {"rsmse": 0.5}) for k, group in enumerate(("existing", "existing", "new"))
    )
    many = {"existing.mean": torch.zeros(2, 500)}
    shown = repr(Result("tiny", "pac-pfl", 3, "regression", (record(1),), rows, many))
    assert shown == "Result(pac-pfl on tiny, seed 3, 1 round, 2 existing and 1 new clients, regression: rsmse)"


def test_histograms_of_a_round_are_kept_where_there_are_any(tmp_path: Path) -> None:
    shares = {"entropy.house, 4": (0.1 / 3, 0.0, 1.0), "entropy.ö": (math.nan, math.nan)}
    rounds = (record(1), replace(record(2), histograms=shares))
    saved = replace(result(), rounds=rounds)
    saved.save(tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text("utf-8").splitlines()]
    assert "histograms" not in lines[0] and set(lines[1]["histograms"]) == set(shares)
    loaded = load(tmp_path)
    assert loaded == saved and loaded != result()
    assert loaded != replace(saved, rounds=(record(1), replace(record(2), histograms={"entropy.ö": (0.5, 0.5)})))
    assert loaded.rounds[0].histograms == {}  # as in every file of before there were histograms
    assert loaded.rounds[1].histograms["entropy.house, 4"] == shares["entropy.house, 4"]
    assert all(map(math.isnan, loaded.rounds[1].histograms["entropy.ö"]))
    append_round(tmp_path, replace(record(3), histograms=shares))
    assert truncate_rounds(tmp_path, 3)[2].histograms["entropy.house, 4"] == shares["entropy.house, 4"]
    assert read_rounds(tmp_path)[2].histograms["entropy.house, 4"] == shares["entropy.house, 4"]
