"""The command `bound` certifies from numbers alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.answers import Call, assert_one_line


def test_a_bound_from_numbers_alone(call: Call) -> None:
    numbers = ("--risk", 0.03, "--kl", 500, "--n", 30000, "--delta", 0.025)
    said = (*numbers, "--prior", "data-free", "--independent")
    code, out, err = call("bound", "seeger", *said)
    assert (code, err) == (0, "")
    assert "risk at most 0.07248 with probability at least 0.975" in out and "taken on trust: the rows are" in out
    assert "L <= a + R kl^-1((L^ - a) / R, (KL + ln(xi(n) / delta)) / n)" in out
    record = json.loads(call("bound", "seeger", *said, "--json").out)
    assert (record["valid"], record["value"]) == (True, pytest.approx(0.0724708, abs=1e-7))
    unsaid = call("bound", "seeger", *numbers, "--prior", "unknown").out
    assert "not declared independent" in unsaid and "nobody said where the prior" in unsaid and "0.07" not in unsaid
    broken = json.loads(call("bound", "seeger", *said[:-1], "--json").out)
    assert (broken["valid"], broken["value"]) == (False, None)
    assert_one_line(call("bound", "seger", *said), "bound must be one of seeger")
    assert_one_line(call("bound", "seeger", *numbers[:2], *said[4:]), "needs kl")
    assert_one_line(call("bound", "seeger", *said, "--epsilon", 0.5), "epsilon is of a private prior, got 0.5")
    vote = call("bound", "seeger", *said, "--predictor", "majority vote", "--loss", "0-1").out
    assert "0-1 loss of the majority vote predictor" in vote and "risk at most 0.1" in vote
    private = call("bound", "seeger", *numbers, "--independent", "--prior", "client-level DP", "--epsilon", 0.4).out
    assert "prior: client-level DP with epsilon 0.4" in private
    assert_one_line(call("bound", "seeger", *said, "--draws-delta", 0.01), "without draws")
    assert_one_line(call("bound", "gibbs", *said[4:], "--log-z", -1, "--beta", 2, "--draws", 5), "no use for draws")
    assert_one_line(call("bound", "seeger", *numbers[:2], "--kl", "inf", *said[4:]), "kl must be finite")


def test_numbers_of_rows_that_are_none_are_said(call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        call("bound", "seeger", "--n", "abc")
    assert "argument --n: expected numbers such as 1e3,1e4, got 'abc'" in capsys.readouterr().err


def test_several_numbers_of_rows_are_a_table_and_a_figure(call: Call, tmp_path: Path) -> None:
    fixed = ("--risk", 0.03, "--kl", 500, "--delta", 0.025, "--prior", "split", "--independent")
    code, out, err = call("bound", "seeger", "--n", "1e3,1e4,1e5", *fixed, "--plot", tmp_path / "curve.svg")
    lines = [line.split() for line in out.splitlines()]
    assert (code, err) == (0, "") and [line[0] for line in lines[:4]] == ["n", "1000", "10000", "100000"]
    values = [
        entry["value"] for entry in json.loads(call("bound", "seeger", "--n", "1e3,1e4,1e5", *fixed, "--json").out)
    ]
    assert [float(line[1]) for line in lines[1:4]] == pytest.approx(values, rel=1e-3)
    assert "empirical risk" in (tmp_path / "curve.svg").read_text() and out.splitlines()[-1].endswith("curve.svg")
    assert_one_line(call("bound", "seeger", "--n", 1000, *fixed, "--plot"), "needs several numbers of rows")
    untold = call("bound", "seeger", "--n", "10,20", *fixed[:-3], "--prior", "unknown").out
    assert "no certificate" in untold and "0." not in untold.splitlines()[0]


@pytest.mark.parametrize("rows", ["10,101,1000", "101,10,1000"])
def test_a_table_has_no_number_where_there_is_no_certificate(call: Call, rows: str) -> None:
    """A tenth of 101 rows is no number of errors: by itself it was refused, and in a table it had a bound."""
    fixed = ("--risk", 0.1, "--delta", 1e-9, "--prior", "split", "--independent", "--loss", "0-1")
    out = call("bound", "holdout-binomial", "--n", rows, *fixed).out
    table = {line.split()[0]: line.split(maxsplit=1)[1] for line in out.splitlines()[1:4]}
    assert table["101"].startswith("none: the risk times n is no whole number of errors")
    assert float(table["10"].split()[0]) > float(table["1000"]) > 0.1 and "at least 1 - 1e-09 on its own" in out


def test_a_target_says_how_many_rows_it_takes(call: Call) -> None:
    fixed = ("--risk", 0.09, "--kl", 1.4, "--delta", 0.05, "--prior", "split", "--independent")
    assert call("bound", "seeger", "--target", 0.15, *fixed).out == "481 rows, all else equal\n"
    assert json.loads(call("bound", "seeger", "--target", 0.15, *fixed, "--json").out) == {"target": 0.15, "n": 481}
    assert_one_line(
        call("bound", "seeger", "--target", 0.15, *fixed[:-1]), "there would be no certificate: the rows were"
    )
    assert_one_line(call("bound", "seeger", "--target", 0.05, *fixed), "no number of rows gives 0.05")


@pytest.mark.parametrize("given", [("--n", 10), ("--n", "10,x", "--prior", "split"), ("--prior", "split")])
def test_the_source_of_the_prior_and_the_rows_are_asked_for(call: Call, given: tuple[object, ...]) -> None:
    with pytest.raises(SystemExit) as left:
        call("bound", "seeger", "--risk", 0.1, "--kl", 1, "--delta", 0.05, *given)
    assert left.value.code == 2
