"""Every method by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pacbayes_fl.methods.evidence_recipes import EVIDENCE_RECIPES
from pacbayes_fl.methods.function_recipes import FUNCTION_RECIPES
from pacbayes_fl.methods.laplace_recipes import LAPLACE_RECIPES
from pacbayes_fl.methods.recipe import Recipe
from pacbayes_fl.methods.weight_recipes import WEIGHT_RECIPES

METHODS: Mapping[str, Recipe] = MappingProxyType(
    {**FUNCTION_RECIPES, **WEIGHT_RECIPES, **LAPLACE_RECIPES, **EVIDENCE_RECIPES}
)
"""Methods by name."""
