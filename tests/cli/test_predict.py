"""The command `predict` gives a client's predictions as the run reported them."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from pacbayes_fl.results import records as results
from pacbayes_fl.results.rounds import RoundRecord
from pacbayes_fl.study.run import run
from tests.cli.answers import Call, assert_one_line
from tests.tiny import ROUNDS, tiny, write_csv


def test_predict_gives_what_the_run_reported(call: Call, finished: Path, tmp_path: Path) -> None:
    flat = results.load(finished).predictions
    for client, group, k in (("poly_02", "existing", 2), ("new_poly_01", "new", 1)):
        write_csv(tmp_path / "ask.csv", [{"client": client, "x": x} for x in flat[f"{group}.x_test"][k, :, 0].tolist()])
        code, out, err = call("predict", finished, "--client", client, "--data", "ask.csv", "--json")
        assert (code, err) == (0, "")
        got = json.loads(out)
        assert list(got) == [client]
        for name in ("mean", "std", "lower", "upper"):
            assert got[client][name] == pytest.approx(flat[f"{group}.{name}"][k].tolist(), rel=1e-9, abs=1e-12)
        _, out, _ = call("predict", finished, "--client", client, "--data", "ask.csv")
        lines = list(csv.reader(io.StringIO(out)))
        assert lines[0] == ["client", "x", "mean", "std", "lower", "upper", "round"]
        assert {line[-1] for line in lines[1:]} == {str(ROUNDS)} and got[client]["round"] == ROUNDS
        assert {line[0] for line in lines[1:]} == {client}
        assert [float(line[2]) for line in lines[1:]] == pytest.approx(got[client]["mean"], rel=1e-5)


def test_later_rows_change_a_prediction(call: Call, finished: Path, tmp_path: Path) -> None:
    write_csv(tmp_path / "ask.csv", [{"x": 0.1}])
    write_csv(tmp_path / "later.csv", [{"x": 0.1, "y": 5.0}])
    asked = ("predict", finished, "--client", "poly_02", "--data", "ask.csv", "--json")
    before, after = (json.loads(call(*asked, *more).out)["poly_02"] for more in ((), ("--later", "later.csv")))
    assert after["mean"][0] > before["mean"][0] + 0.1


def test_a_forecast_file_holds_all_clients_with_their_keys(call: Call, finished: Path, tmp_path: Path) -> None:
    table = [{"client": f"poly_{k:02d}", "x": k / 4, "when": f"2024-05-0{k + 1}"} for k in (2, 0, 1, 0)]
    write_csv(tmp_path / "next.csv", table)
    asked = ("predict", finished, "--data", "next.csv", "--quantiles", ".05,.5,.95")
    code, out, err = call(*asked, "--out", "f.csv")
    assert (code, out, err) == (0, "", "f.csv: 4 rows of 3 clients\n")
    with (tmp_path / "f.csv").open() as stream:
        lines = list(csv.DictReader(stream))
    assert [*lines[0]] == ["client", "x", "when", "mean", "std", "q0.05", "q0.5", "q0.95", "round"]
    assert [(line["client"], line["when"]) for line in lines] == [(row["client"], row["when"]) for row in table]
    assert call(*asked).out == (tmp_path / "f.csv").read_text()
    assert [
        line["client"] for line in csv.DictReader(io.StringIO(call(*asked, "--client", "poly_01,poly_02").out))
    ] == [
        "poly_02",
        "poly_01",
    ]


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (("--quantiles", "0,.5"), "quantiles are between 0 and 1, got 0 (such as .05,.5,.95)"),
        (("--out", "f.txt"), "predictions are written to .csv or .parquet, got f.txt"),
        (("--client", "poly_09"), "the run does not know it"),
    ],
)
def test_what_cannot_be_forecast_is_refused(
    call: Call, finished: Path, tmp_path: Path, more: tuple[str, ...], text: str
) -> None:
    write_csv(tmp_path / "ask.csv", [{"client": "poly_00", "x": 0.1}])
    answer = call("predict", finished, "--data", "ask.csv", *more)
    assert answer.code == 1 and text in answer.err and not (tmp_path / "f.txt").exists()


def test_levels_that_are_no_numbers_are_wrong_usage(call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        call("predict", "run", "--data", "ask.csv", "--quantiles", "low")
    assert "argument --quantiles: expected levels such as .05,.5,.95, got 'low'" in capsys.readouterr().err


def test_files_that_are_read_are_not_written(call: Call, finished: Path, tmp_path: Path) -> None:
    write_csv(tmp_path / "ask.csv", [{"client": "poly_00", "x": 0.1, "y": ""}])
    before = (tmp_path / "ask.csv").read_bytes()
    for command in ("predict", "join", "score"):
        assert_one_line(
            call(command, finished, "--data", "ask.csv", "--out", "ask.csv"), "holds the rows that are read"
        )
    taken = finished / "clients.csv"
    assert_one_line(call("predict", finished, "--data", "ask.csv", "--out", taken), f"{taken} is a file of what")
    assert (tmp_path / "ask.csv").read_bytes() == before


def test_a_run_that_is_not_finished_says_so(call: Call, tmp_path: Path) -> None:
    def stop(record: RoundRecord) -> None:
        if record.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tiny("federation.checkpoint_every=1"), tmp_path / "run", on_round=stop)
    write_csv(tmp_path / "ask.csv", [{"client": "poly_00", "x": 0.1, "y": 1.0}])
    write_csv(tmp_path / "new.csv", [{"client": "n", "x": x, "y": x} for x in (0.1, 0.2, 0.3)])
    said = f"run has not been finished: what follows is of round 1 of {ROUNDS} (run the study with --resume"
    for command, data in (("predict", "ask.csv"), ("score", "ask.csv"), ("update", "ask.csv"), ("join", "new.csv")):
        answer = call(command, "run", "--data", data)
        assert answer.code == 0 and answer.err.count(said) == 1
