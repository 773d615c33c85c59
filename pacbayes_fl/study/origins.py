"""Which files of one's own a run was trained with: their paths and SHA-256, and whether they are still the same.

The run folder keeps a path and a hash, never a copy that would be executed: what is executed is the user's file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pacbayes_fl.errors import DataError, StudyError, shown
from pacbayes_fl.results.rounds import readable
from pacbayes_fl.study import sources
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.models import MODEL_KINDS, NetworkModel
from pacbayes_fl.study.plugins import METHODS, METRICS, Loaded

KEY: Final = "own_files"
"""What environment.json, a saved round and a release call them."""


def used(study: Study) -> dict[str, dict[str, str]]:
    """Name the files that a study's own objects came from.

    Args:
        study: any.

    Returns:
        "file" and "sha256" by the name that the study gives the object; nothing for built-in objects.
    """
    return {name: {"file": str(one.file), "sha256": one.sha256} for name, one in _loaded(study)}


def _loaded(study: Study) -> Iterator[tuple[str, Loaded]]:
    asked = [(METHODS.origin, study.method.name), *((METRICS.origin, name) for name in study.report.metrics)]
    if isinstance(study.model, NetworkModel) or hasattr(study.model, "kind"):
        asked.append((MODEL_KINDS.origin, study.model.kind))
    if study.data.source in sources.SOURCES:
        asked.append((sources.SOURCES.origin, study.data.source))
    if isinstance(partition := study.data.options.get("partition"), str) and partition in sources.OPEN_PARTITIONS:
        asked.append((sources.OPEN_PARTITIONS.origin, partition))
    for origin, name in asked:
        if (found := origin(name)) is not None:
            yield name, found


def check(known: Any, what: str) -> None:
    """Refuse to go on with files that are not those that a run was trained with; none of them is executed.

    Args:
        known: as `used` gave them when it was.
        what: the run, as errors call it.

    Raises:
        StudyError: naming the first that was changed or is gone.
        DataError: when they cannot be read.
    """
    if not isinstance(known, Mapping):
        raise DataError(f"{what}: {KEY} must be a table, got {shown(known)}", hint="restore it from a copy")
    for name, one in known.items():
        try:
            file, before = Path(one["file"]), str(one["sha256"])
        except (KeyError, TypeError) as error:
            raise DataError(f"{what}: {KEY} of {name!r} cannot be read", hint="restore it from a copy") from error
        if not file.is_file():
            raise StudyError(f"{what} was trained with {name}, and there is no file {file}", hint="put it back there")
        now = hashlib.sha256(file.read_bytes()).hexdigest()
        if now != before:
            text = f"{what} was trained with {name}, and {file} has changed: SHA-256 {before[:12]} then, {now[:12]} now"
            raise StudyError(text, hint="restore the file, or run the study anew with another --out")


def check_folder(folder: Path) -> None:
    """As `check`, by what a run wrote down when it began.

    Args:
        folder: of the run; nothing is wrong with one that has no environment.json.

    Raises:
        StudyError, DataError: as `check`.
    """
    if (folder / "environment.json").is_file():
        with readable(folder / "environment.json") as path:
            check(json.loads(path.read_text("utf-8")).get(KEY, {}), str(folder))
