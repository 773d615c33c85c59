"""The methods: their names meet an algorithm, its options, its presets and its search space.

A method is imported when it is first asked for: names and titles need none of what methods compute with.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pacbayes_fl.methods.registry import METHODS

if TYPE_CHECKING:
    from pacbayes_fl.methods.recipe import AnyMethod, HeldOutChoice, LogUniform, MethodSummary, OneOf, Recipe, Search

__all__ = ["METHODS", "AnyMethod", "HeldOutChoice", "LogUniform", "MethodSummary", "OneOf", "Recipe", "Search"]


def __getattr__(name: str) -> Any:
    """Load what recipes are made of."""
    if name not in __all__:
        raise AttributeError(f"module 'pacbayes_fl.methods' has no attribute {name!r}")
    return getattr(import_module("pacbayes_fl.methods.recipe"), name)
