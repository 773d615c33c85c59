"""Recipes: presets that cannot be changed, and always the two that every method has."""

from __future__ import annotations

import dataclasses

import pytest

from pacbayes_fl.methods import METHODS
from pacbayes_fl.methods.recipe import Recipe, presets


def test_presets_are_read_only_all_the_way_down() -> None:
    values = {"rate": 0.5}
    found = presets(paper={"method": values}, mine={})
    assert set(found) == {"recommended", "paper", "mine"} and found["recommended"] == {}
    values["rate"] = 1.0
    assert found["paper"]["method"]["rate"] == 0.5
    for table in (found, found["paper"], found["paper"]["method"]):
        with pytest.raises(TypeError):
            table["rate"] = {}  # type: ignore[index]


def test_a_recipe_is_on_functions_unless_it_says_otherwise() -> None:
    plain = METHODS["ridge"]
    fields = {name: getattr(plain, name) for name in ("title", "federated", "rounds", "options", "build", "product")}
    made = Recipe(**fields)
    assert (made.model, dict(made.search), set(made.presets)) == ("functions", {}, {"recommended", "paper"})
    assert {recipe.model for recipe in METHODS.values()} == {"functions", "weights"}
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.title = "mine"  # type: ignore[misc]
