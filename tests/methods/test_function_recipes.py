"""Recipes on functions: which they are, and that they leave the weights' options alone."""

from __future__ import annotations

import dataclasses

import pytest

from pacbayes_fl.methods.function_recipes import FUNCTION_RECIPES
from tests.laws.cases import federation, from_recipe


def test_these_methods_work_on_functions() -> None:
    assert {recipe.model for recipe in FUNCTION_RECIPES.values()} == {"functions"}
    names = ["pac-pfl", "pfedgp", "vanilla-gp", "pooled-gp", "ridge", "pooled-ridge", "persistence"]
    assert list(FUNCTION_RECIPES) == names
    with pytest.raises(TypeError):
        FUNCTION_RECIPES["mine"] = FUNCTION_RECIPES["ridge"]  # type: ignore[index]


@pytest.mark.parametrize("name", FUNCTION_RECIPES)
def test_the_defaults_build_a_method_of_the_stated_kind(name: str) -> None:
    recipe = FUNCTION_RECIPES[name]
    method = from_recipe(recipe, 3)
    assert method.federated == recipe.federated and dataclasses.is_dataclass(recipe.options)
    assert method.footprint(federation(3).x.shape[1]) >= 1


@pytest.mark.parametrize("name", FUNCTION_RECIPES)
def test_what_is_searched_is_an_option_or_of_another_part(name: str) -> None:
    recipe = FUNCTION_RECIPES[name]
    options = {field.name for field in dataclasses.fields(recipe.options)}
    assert all(key.split(".", 1)[1] in options for key in recipe.search if key.startswith("method."))
    for preset in recipe.presets.values():
        assert set(preset.get("method", {})) <= options
