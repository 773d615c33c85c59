"""The tables of a study, and keys that stand in the wrong one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from pacbayes_fl.errors import StudyError, shown
from pacbayes_fl.methods import Recipe
from pacbayes_fl.study.config.parts import DataPart, DeployPart, FederationPart, PrivacyPart, ReportPart

PARTS: tuple[tuple[str, type], ...] = (
    ("federation", FederationPart),
    ("report", ReportPart),
    ("privacy", PrivacyPart),
    ("deploy", DeployPart),
)
"""Tables that are the same for every method, by name."""


def kinds(recipe: Recipe) -> dict[str, type]:
    """Say what the tables of a study are, but for [model], which has kinds of its own.

    Args:
        recipe: of the study's method.

    Returns:
        Dataclasses of options by the name of their table.
    """
    return {"method": recipe.options, "data": DataPart, **dict(PARTS)}


def check(tables: Mapping[str, object], recipe: Recipe, where: str) -> None:
    """Refuse a key that its table does not have and another one has, such as rounds in [method].

    What no table has is left to whoever reads the table it stands in, who knows what is near it.

    Args:
        tables: of a study, by name.
        recipe: of its method.
        where: what errors call the study.

    Raises:
        StudyError: naming the key, where it stands and where it belongs.
    """
    known = {name: {field.name for field in fields(kind)} for name, kind in kinds(recipe).items()}
    for name, own in known.items():
        table = tables.get(name)
        for key in table if isinstance(table, Mapping) else ():
            homes = [] if key in own else [f"{other}.{key}" for other, keys in known.items() if key in keys]
            if homes:
                raise StudyError(f"{where} [{name}]: unknown key {shown(key)}", hint=f"it is {' or '.join(homes)}")
