"""Rounds and privacy: curves, norms with who was largest, drops with reasons; epsilon is never rounded down."""

from __future__ import annotations

from dataclasses import replace

from pacbayes_fl.pages.markup import to_html
from pacbayes_fl.pages.rounds import privacy, rounds
from pacbayes_fl.results.records import Result
from pacbayes_fl.results.rounds import RoundRecord


def test_rounds_show_scores_norms_and_drops(numbers: Result) -> None:
    made = rounds(numbers)
    assert made is not None
    text = to_html(made)
    for words in (
        *("RSMSE (lower is better)", "mean log evidence (nats)", "Norms of the clients' steps", "client_03"),
        *("3 drops in 2 of 120 rounds", "sent NaN", "loss was not finite", "12 s in rounds", "10 to 12"),
    ):
        assert words in text, words
    assert rounds(replace(numbers, rounds=())) is None


def test_scores_of_validation_rows_are_not_called_those_of_test_rows(labelled: Result) -> None:
    one = RoundRecord(1, 2, (), {"validation.pm.accuracy": 0.5})
    made = rounds(replace(labelled, rounds=(one,)))
    assert made is not None
    assert "Of validation rows" in to_html(made) and "Of test rows" not in to_html(made)


def test_privacy_says_what_was_spent_and_rounds_it_up(labelled: Result, numbers: Result) -> None:
    made = privacy(labelled)
    assert made is not None
    text = to_html(made)
    assert "7.994" in text and "7.993<" not in text and "(8, 1e-5)-DP" in text and "0.00001" in text
    assert privacy(numbers) is None


def test_a_simulation_is_called_what_it_is(labelled: Result) -> None:
    said = {"statement": "a simulation", "epsilon_if_noise_were_secret": None, "delta": 0.0}
    made = privacy(replace(labelled, labels={"privacy": said}))
    assert made is not None and "epsilon if noise were secret" in to_html(made) and "infinity" in to_html(made)
