"""Titles of methods: one for each, where no recipe is needed to read it."""

from __future__ import annotations

from pacbayes_fl.methods import METHODS
from pacbayes_fl.methods.titles import TITLES


def test_every_method_has_its_title_and_no_other_has_one() -> None:
    assert list(TITLES.items()) == [(name, recipe.title) for name, recipe in METHODS.items()]
