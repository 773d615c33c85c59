"""Progress away from a terminal; the bar of one has tests of its own."""

from __future__ import annotations

import pytest

from pacbayes_fl.cli import progress as module
from pacbayes_fl.cli.progress import progress, runs_progress
from pacbayes_fl.results.rounds import RoundRecord
from pacbayes_fl.study.file import Study

Captured = pytest.CaptureFixture[str]


def test_away_from_a_terminal_progress_is_a_line_now_and_then(capsys: Captured) -> None:
    with progress("work", 20, quiet=False) as told:
        for t in range(1, 21):
            told(RoundRecord(t, 2, ("bad",) if t == 3 else (), {"rsmse": 0.5}))
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in lines] == [f"{t}/20" for t in (2, 3, 4, 6, 8, 10, 12, 14, 16, 18, 20)]
    assert lines[1] == "work: 3/20 rsmse 0.5 dropped bad"
    with progress("work", 20, quiet=True) as told:
        told(RoundRecord(20, 2))
    assert capsys.readouterr() == ("", "")


def test_progress_shows_what_classifiers_record(capsys: Captured) -> None:
    values = {"kl": 1.0, "loss": 0.25, "log_likelihood": -3.0, "pm.accuracy": 0.875, "validation.pm.accuracy": 0.5}
    with progress("work", 1, quiet=False) as told:
        told(RoundRecord(1, 2, (), values))
    assert capsys.readouterr().err == "work: 1/1 pm.accuracy 0.875 log_likelihood -3 loss 0.25\n"


def test_what_was_tried_before_the_first_round_is_told_with_its_score(capsys: Captured) -> None:
    with progress("work", 100, quiet=False) as told:
        told(RoundRecord(0, 4, values={"clusters=2": -0.36}))
        told(RoundRecord(0, 0))
    assert capsys.readouterr().err == "work: before the first round, tried clusters=2 -0.36\nwork: 0/100 \n"


def test_progress_goes_to_the_number_of_rounds_that_is_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("work", 200, quiet=False) as told:
        told(RoundRecord(0, 4, values={"rounds": 2}))
        told(RoundRecord(2, 4))
    assert "work: 2/2" in capsys.readouterr().err


@pytest.mark.parametrize("silence", [0.0, 1e9])
def test_a_run_among_several_is_named_and_its_rounds_are_told_where_it_takes_long(
    silence: float, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SILENCE", silence)
    study = Study.from_toml("polynomial", ["federation.rounds=3", "seed=7"])
    with runs_progress(2, quiet=False) as on_run:
        on_round = on_run(study)
        for t in range(2):
            on_round(RoundRecord(t, 4, values={"rounds": 9.0} if t == 0 else {"rsmse": 0.5}))
        on_run(study)
    told = [
        "runs: 0/2 pac-pfl, seed 7: before the first round, tried rounds 9",
        "runs: 0/2 pac-pfl, seed 7: 1/9 rsmse 0.5",
    ]
    begun = "runs: {}/2 pac-pfl, seed 7"
    assert capsys.readouterr().err.splitlines() == [
        begun.format(0), *(told if silence == 0.0 else []), begun.format(1), "runs: 2/2"
    ]  # fmt: skip
    with runs_progress(1, quiet=True) as on_run:
        on_run(study)(RoundRecord(1, 4))
    assert capsys.readouterr() == ("", "")
