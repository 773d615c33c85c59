"""Paths in a study's table, made absolute before anything is read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pacbayes_fl import settings
from pacbayes_fl.errors import StudyError, shown
from pacbayes_fl.files import JsonMapping, JsonTable
from pacbayes_fl.plugins.references import anchored as of_folder
from pacbayes_fl.plugins.references import reference

_REFERENCES: Final = (
    *(("method", key) for key in ("name", "family", "own_hyper_prior")),
    *(("model", "kind"), ("report", "metrics"), ("federation", "aggregate")),
    *(("privacy", "mechanism"), ("privacy", "directions")),
)
"""Keys whose values can lead to a user's own object."""


def with_references(table: JsonMapping, folder: Path) -> JsonTable:
    """Make paths of users' own objects absolute: in a file they count from its folder, on a command line from here.

    Args:
        table: of a study.
        folder: from which they count.

    Returns:
        The table with them.
    """

    def whole(value: object) -> Any:
        if isinstance(value, list | tuple):
            return [whole(each) for each in value]
        return of_folder(value, folder) if isinstance(value, str) else value

    result = dict(table)
    for part, key in _REFERENCES:
        inner = result.get(part)
        if isinstance(inner, Mapping) and key in inner:
            result[part] = {**inner, key: whole(inner[key])}
    own = result.get("methods")
    if isinstance(own, Mapping):
        result["methods"] = {
            whole(name): with_references(part, folder) if isinstance(part, Mapping) else part
            for name, part in own.items()
        }
    return result


def anchored(table: JsonTable, folder: Path) -> JsonTable:
    """Make relative paths of data and ledgers absolute: in a file they count from its folder, else from here.

    Args:
        table: of a study.
        folder: from which they count.

    Returns:
        The table with them.

    Raises:
        StudyError: when a path is none.
    """

    def whole(key: str, value: Any) -> Any:
        if key in ("source", "partition") and reference(value) is not None:
            return of_folder(value, folder)
        if isinstance(value, str):
            _refuse_nul(f"[data] {key}", value)
        if not isinstance(value, str) or value.startswith(("/", "$", "~")) or value == settings.NONE:
            return value
        is_folder = key == "root" or (key == "source" and "/" in value)  # a root may be any word
        is_path = is_folder or (key in ("source", "weather") and Path(value).suffix)
        return str((folder / value).resolve()) if is_path else value

    private = table.get("privacy")
    if isinstance(private, dict) and isinstance(private.get("ledger"), str) and private["ledger"] != settings.NONE:
        table = table | {"privacy": private | {"ledger": _path("[privacy] ledger", private["ledger"], folder)}}
    data = table.get("data")
    if not isinstance(data, dict):
        return table
    data = {key: whole(key, value) if key == "source" else value for key, value in data.items()}
    if isinstance(data.get("options"), dict):
        data["options"] = {key: whole(key, value) for key, value in data["options"].items()}
    return table | {"data": data}


def _path(key: str, value: str, folder: Path) -> str:
    _refuse_nul(key, value)
    return value if value.startswith(("/", "$", "~")) else str((folder / value).resolve())


def _refuse_nul(key: str, value: str) -> None:
    if "\0" in value:
        raise StudyError(f"{key} must hold no NUL, got {shown(value)}")
