"""What is too much, and who stands out."""

from __future__ import annotations

import math

import pytest

from pacbayes_fl.federation.guard import (
    Outcome,
    Start,
    divergence,
    dominant,
    far_out,
    lengths,
    listed,
    outlier,
    overlong,
)
from pacbayes_fl.results.rounds import Steps

FITS = {"a": 3.0, "b": 5.0, "hard": 1e6, "lost": math.inf}


def outcome(fit: float, size: float = 1.0, present: tuple[str, ...] = ("a", "b"), finite: bool = True) -> Outcome:
    return Outcome(present, present, (), {}, finite, {"loss": fit, "elbo": -fit}, size)


def unasked() -> Start:
    raise AssertionError("a look at the start costs a round")


@pytest.mark.parametrize("name", ["loss", "elbo"])
def test_an_objective_is_compared_with_that_of_the_same_clients_at_the_start(name: str) -> None:
    def asked(one: Outcome, fits: dict[str, float] = FITS, size: float = 1.0, rows: float = 1.0) -> str | None:
        signed = fits if name == "loss" else {client: -fit for client, fit in fits.items()}
        return divergence(one, name, rows, 10.0, lambda: Start(size, signed))

    assert asked(outcome(44.0)) is None, "4 and ten times as much more"
    assert "has come to" in str(asked(outcome(44.1)))
    assert asked(outcome(-1e9)) is None, "better is no trouble, however much"
    assert asked(outcome(1e7, present=("a", "hard"))) is not None and asked(outcome(5e6, present=("a", "hard"))) is None
    assert asked(outcome(44.0, present=("a", "b", "lost"))) is None, "who had no fit at the start says nothing"
    assert asked(outcome(1e9, present=("lost",))) is None
    assert asked(outcome(10.0), {"a": 0.0, "b": 0.0}) is None and asked(outcome(10.1), {"a": 0.0, "b": 0.0}) is not None
    assert (asked(outcome(60.0), {"a": 0.0, "b": 0.0}, rows=7.0) is None) == (name == "elbo"), "which is of all rows"


def test_parameters_are_compared_with_those_of_the_start_or_with_one() -> None:
    assert divergence(outcome(0.0, 10.0), "loss", 1.0, 10.0, lambda: Start(0.0, FITS)) is None
    assert "from 0" in str(divergence(outcome(0.0, 10.1), "loss", 1.0, 10.0, lambda: Start(0.0, FITS)))
    assert divergence(outcome(0.0, 200.0), "loss", 1.0, 10.0, lambda: Start(20.0, FITS)) is None
    assert "from 20" in str(divergence(outcome(0.0, 201.0), None, 1.0, 10.0, lambda: Start(20.0, FITS)))


def test_what_is_not_finite_is_always_too_much_and_the_start_is_asked_for_only_in_doubt() -> None:
    for most in (None, 10.0):
        assert "state is not finite" in str(divergence(outcome(0.0, finite=False), "loss", 1.0, most, unasked))
        for value in (math.nan, math.inf, -math.inf):
            assert "mean loss is not finite" in str(divergence(outcome(value), "loss", 1.0, most, unasked))
        assert divergence(outcome(math.nan), None, 1.0, most, unasked) is None
    assert divergence(outcome(9.0, 10.0), "loss", 1.0, 10.0, unasked) is None
    assert divergence(outcome(1e300, 1e300), "loss", 1.0, None, unasked) is None


def test_a_step_stands_out_beside_the_median_of_the_others() -> None:
    assert outlier({}) is None and outlier({"a": 1e9}) is None, "nobody is alone to blame for being alone"
    assert outlier({"a": 1.0, "b": 9.0}) is None
    assert outlier({"a": 1.0, "b": 11.0}) == Steps(1.0, 11.0, "b")
    assert outlier({"a": 1.0, "b": 50.0, "c": 3.0}) == Steps(2.0, 50.0, "b")
    assert outlier({"a": 0.0, "b": 0.0}) is None and outlier({"a": 0.0, "b": 1.0}) == Steps(0.0, 1.0, "b")
    assert far_out(Steps(1.0, 1001.0, "b")) and not far_out(Steps(1.0, 1000.0, "b"))
    again, other = Steps(1.0, 31.0, "b"), Steps(1.0, 31.0, "a")
    assert far_out(again, again) and not far_out(again, other) and not far_out(again)
    assert not far_out(Steps(1.0, 30.0, "b"), again) and not far_out(again, Steps(1.0, 30.0, "b"))
    assert lengths(Steps(2.0, 50.0, "b")) == "50 long where the median client's was 2"


def test_a_step_is_overlong_beside_all_that_was_usual_in_a_run() -> None:
    steps = {"a": 1.0, "b": 3.0, "c": 2001.0}
    assert overlong(steps, 0.0, 1e3) == "client 'c' sent a step 2e+03 long where the median client's was 2"
    assert overlong({**steps, "c": 2000.0}, 0.0, 1e3) is None
    assert overlong(steps, 2.1, 1e3) is None, "steps of other rounds were as long: training comes to rest"
    assert overlong({"a": 1.0, "c": 1e9}, 0.0, 1e3) is None, "of two nobody knows who is usual"
    assert overlong({"a": 0.0, "b": 0.0, "c": 1.0}, 0.0, 1e3) is None, "nor where the others have nothing to learn"
    assert overlong({"a": 0.0, "b": 0.0, "c": 1001.0}, 1.0, 1e3) is not None


def test_who_steers_alone_is_allowed_for_by_rows() -> None:
    steps, rows = {"a": 1.0, "b": 1.0, "c": 31.0}, {"a": 10, "b": 10, "c": 10}
    assert dominant(steps, rows) == "c" and dominant({**steps, "c": 30.0}, rows) is None
    assert dominant(steps, {**rows, "c": 20}) is None and dominant({**steps, "c": 61.0}, {**rows, "c": 20}) == "c"
    assert dominant({"a": 1.0, "c": 1e9}, rows) is None and dominant({"a": 0.0, "b": 0.0, "c": 1.0}, rows) is None


def test_a_sentence_names_a_few_clients() -> None:
    assert listed(["a"]) == "'a'" and listed(["a", "b"]) == "'a', 'b'"
    assert listed(list("abcdefg")) == "'a', 'b', 'c', 'd', 'e' and 2 more"
