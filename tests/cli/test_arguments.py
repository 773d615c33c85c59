"""What several commands take: assignments to a study, and lists of names."""

from __future__ import annotations

import argparse

import pytest

from pacbayes_fl.cli.arguments import assignments, methods_option, names_in, study_options


def test_short_options_are_assignments_after_those_of_set() -> None:
    sub = argparse.ArgumentParser()
    study_options(sub)
    methods_option(sub)
    given = sub.parse_args("s.toml --rounds 3 --set method.tau=1 --seed 0 --set seed=7 --device cpu".split())
    assert assignments(given) == ["method.tau=1", "seed=7", "seed=0", "federation.rounds=3", "federation.device=cpu"]
    assert given.methods == "" and assignments(sub.parse_args(["s.toml"])) == []


@pytest.mark.parametrize(
    ("text", "names"), [("", []), ("a", ["a"]), (" a , b,", ["a", "b"]), ("mine.py:A,b", ["mine.py:A", "b"])]
)
def test_names_are_taken_apart_at_commas(text: str, names: list[str]) -> None:
    assert names_in(text) == names
