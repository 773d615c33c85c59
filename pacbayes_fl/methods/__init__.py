"""The table of methods: where a name meets an algorithm, its options, its presets and its search space.

It is built when it is first asked for: titles alone need none of what methods compute with.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pacbayes_fl.methods.recipe import AnyMethod, Choice, HeldOut, LogUniform, Product, Recipe, Search
    from pacbayes_fl.methods.registry import METHODS

__all__ = ["METHODS", "AnyMethod", "Choice", "HeldOut", "LogUniform", "Product", "Recipe", "Search"]


def __getattr__(name: str) -> Any:
    """Load a name from the table or from what its entries are made of."""
    if name not in __all__:
        raise AttributeError(f"module 'pacbayes_fl.methods' has no attribute {name!r}")
    return getattr(import_module(f"pacbayes_fl.methods.{'registry' if name == 'METHODS' else 'recipe'}"), name)
