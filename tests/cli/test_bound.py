"""The command `bound` certifies from numbers alone."""

from __future__ import annotations

import json

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
    unsaid = call("bound", "seeger", *numbers).out
    assert "not declared independent" in unsaid and "nobody said where the prior" in unsaid and "0.07" not in unsaid
    broken = json.loads(call("bound", "seeger", *said[:-1], "--json").out)
    assert (broken["valid"], broken["value"]) == (False, None)
    assert_one_line(call("bound", "seger", *numbers), "bound must be one of seeger")
    assert_one_line(call("bound", "seeger", *numbers[:2], *numbers[4:]), "needs kl")
    assert_one_line(call("bound", "seeger", *numbers, "--epsilon", 0.5), "epsilon is of a private prior, got 0.5")
    vote = call("bound", "seeger", *said, "--predictor", "majority vote", "--loss", "0-1").out
    assert "0-1 loss of the majority vote predictor" in vote and "risk at most 0.1" in vote
    private = call("bound", "seeger", *numbers, "--independent", "--prior", "client-level DP", "--epsilon", 0.4).out
    assert "prior: client-level DP with epsilon 0.4" in private
    assert_one_line(call("bound", "seeger", *numbers, "--draws-delta", 0.01), "without draws")
    assert_one_line(call("bound", "gibbs", *numbers[4:], "--log-z", -1, "--beta", 2, "--draws", 5), "no use for draws")
    assert_one_line(call("bound", "seeger", *numbers[:2], "--kl", "inf", *numbers[4:]), "kl must be finite")
