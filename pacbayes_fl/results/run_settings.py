"""The settings of a run: what was asked of it, but for its seed, as its labels keep it."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from pacbayes_fl.errors import UNREADABLE
from pacbayes_fl.files import JsonMapping, JsonTable

LABEL: Final = "settings"
"""The label of a result that holds what was asked of its run."""

_HELD_OUT: Final = "held-out"

_PARTS: Final = ("method", "federation", "model", "data", "privacy", "report", "deploy")
_IDLE: Final = frozenset(
    {
        *("federation.device", "federation.threads", "federation.checkpoint_every", "federation.overfitting_trial"),
        *("federation.chunk", "federation.waste"),
        *("report.page", "report.keep", "report.evaluate_every", "report.uncertainty_rounds", "report.metrics"),
        *("report.coverage_by", "report.certify.tried", "report.certify.tables", "report.certify.twins"),
        *("report.certify.independent", "report.certify.drawn_clients"),
        *("deploy.share", "deploy.deadline", "privacy.ledger", "privacy.total"),
    }
)  # on which no number of a result depends


def asked(table: JsonMapping, notes: JsonMapping) -> JsonTable:
    """Take the settings of a study on which the numbers of its run depend, but for its seed.

    Args:
        table: of the study, nested, with everything resolved.
        notes: how held-out rows have chosen options, by their keys: these were asked to be "held-out", whatever each
            seed has chosen.

    Returns:
        Values by dotted key.
    """
    keys = [key for key, note in notes.items() if isinstance(note, Mapping) and "chosen" in note]
    chosen = {key if "." in key else f"method.{key}" for key in keys}
    own = {key: value for part in _PARTS for key, value in _flat(table.get(part, {}), part)}
    own = {key: _HELD_OUT if key in chosen else value for key, value in own.items() if key not in _IDLE}
    switches = (("privacy.", "privacy.epsilon"), ("report.certify.", "report.certify.scheme"))
    off = [(part, key) for part, key in switches if own.get(key) == "none"]
    return {k: v for k, v in own.items() if not any(k.startswith(part) and k != key for part, key in off)}


def _flat(value: object, key: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _flat(item, f"{key}.{name}")
    else:
        yield key, value


def saved(folder: Path) -> JsonTable:
    """Take the settings of a run from its folder, where its labels do not say them.

    Args:
        folder: of the run.

    Returns:
        As `asked`; nothing where the folder has no study, or one that cannot be read.
    """
    try:
        table = tomllib.loads((folder / "study.toml").read_text("utf-8"))
        choice = folder / "choice.json"
        return asked(table, json.loads(choice.read_text("utf-8")) if choice.is_file() else {})
    except UNREADABLE:
        return {}
