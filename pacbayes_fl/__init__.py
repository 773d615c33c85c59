"""Bayesian personalised federated learning.

Many clients with little, different data each learn a model of their own with help from the others.

The public names stand in `__init__.pyi`, one import a line. They are loaded when they are first used, so that importing
the package runs nothing.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

__version__ = "0.1.0"


def _homes() -> dict[str, str]:
    """Read in which module each public name stands, in the order of the names."""
    stub = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
    return {name: home for home, name in sorted(re.findall(r"^from (\S+) import (\w+)", stub, re.MULTILINE), key=_name)}


def _name(entry: tuple[str, str]) -> str:
    return entry[1]


def __getattr__(name: str) -> object:
    """Load a public name from its home."""
    if name == "__all__":
        return [*_homes()]
    home = None if name.startswith("_") else _homes().get(name)
    if home is None:
        raise AttributeError(f"module 'pacbayes_fl' has no attribute {name!r}")
    value = import_module(f"{home}.{name}") if home == __name__ else getattr(import_module(home), name)
    globals()[name] = value  # so that the next one who asks does not come here
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return [*_homes()]
