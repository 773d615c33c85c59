"""A recipe and the presets in it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from pacbayes_fl.methods.recipe import Product, Recipe, presets

PRODUCT = Product("model", "client", "server", "uploads", "keeps")


def made(**options: Any) -> Recipe:
    return Recipe("Title", True, True, dict, lambda options, model, features: options, PRODUCT, **options)


def test_presets_are_read_only_through_and_through_and_copy_what_they_are_given() -> None:
    values = {"rate": 1.0}
    table = presets(paper={"method": values}, mine={"federation": {"rounds": 3}})
    values["rate"] = 2.0
    assert table["paper"]["method"]["rate"] == 1.0
    assert dict(table["recommended"]) == {} and set(table) == {"recommended", "paper", "mine"}
    frozen: Any
    for frozen in (table, table["paper"], table["paper"]["method"]):
        with pytest.raises(TypeError):
            frozen["mine"] = {}


def test_a_recipe_says_little_unless_told() -> None:
    recipe = made()
    assert (recipe.model, dict(recipe.search)) == ("functions", {})
    assert set(recipe.presets) == {"recommended", "paper"} and not any(recipe.presets.values())
    with pytest.raises(dataclasses.FrozenInstanceError):
        recipe.title = "mine"  # type: ignore[misc]
    with pytest.raises(TypeError):
        recipe.search["x"] = None  # type: ignore[index]
    assert recipe.held_out == ()
    assert made().presets is not made().presets
