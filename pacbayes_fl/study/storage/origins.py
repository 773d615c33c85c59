"""Which files and objects of one's own a run was trained with, and whether they are still the same.

The run folder keeps a path and a hash, never a copy that would be executed: what is executed is the user's file.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pacbayes_fl.errors import DataError, StudyError, caller_stacklevel, shown
from pacbayes_fl.files import JsonMapping, JsonTable, sha256
from pacbayes_fl.plugins.references import Loaded, reference
from pacbayes_fl.posteriors.hyper_posterior import HYPER_PRIORS
from pacbayes_fl.posteriors.weights.families import FAMILIES
from pacbayes_fl.privacy import kinds, subspace
from pacbayes_fl.results.rounds import readable
from pacbayes_fl.server.aggregations import AGGREGATIONS
from pacbayes_fl.study.config import sources
from pacbayes_fl.study.config.identity import Identity
from pacbayes_fl.study.config.instances import NO_INSTANCES, Instances
from pacbayes_fl.study.config.models import MODEL_KINDS, InstanceModel, NetworkModel
from pacbayes_fl.study.config.plugins import METHODS, METRICS
from pacbayes_fl.study.file import Study

KEY: Final = "own_files"
"""What environment.json, a saved round and a release call them."""
_ABOVE: Final = 4  # folders in which a file is looked for, from a run's own upwards


def used(study: Study) -> JsonTable:
    """Name the files that a study's own objects came from.

    Args:
        study: any.

    Returns:
        "file" and "sha256" by the name that the study gives the object, "class", "options" and "sha256" of an object
        that a program gave, and "scores" of a metric, on which no training rests; nothing for built-in objects.
    """
    result: dict[str, JsonTable] = {n: {"file": str(one.file), "sha256": one.sha256} for n, one in _loaded(study)}
    for name, one in study.instances.identities.items():
        result[name] = {"class": one.kind, "options": {**one.options}, "sha256": one.sha256}
    for name in result.keys() & set(study.report.metrics):
        result[name]["scores"] = True
    return {**result}


def _loaded(study: Study) -> Iterator[tuple[str, Loaded]]:
    asked = [(METRICS.origin, name) for name in study.report.metrics if name not in study.instances.metrics_by_name]
    if study.instances.method is None:
        asked.insert(0, (METHODS.origin, study.method.name))
    if isinstance(study.model, NetworkModel) or (
        hasattr(study.model, "kind") and not isinstance(study.model, InstanceModel)
    ):
        asked.append((MODEL_KINDS.origin, study.model.kind))
    if study.data.source in sources.SOURCES:
        asked.append((sources.SOURCES.origin, study.data.source))
    if isinstance(partition := study.data.options.get("partition"), str) and partition in sources.OPEN_PARTITIONS:
        asked.append((sources.OPEN_PARTITIONS.origin, partition))
    asked.append((AGGREGATIONS.origin, study.federation.aggregate))
    if study.privacy.epsilon is not None:
        asked.append((kinds.MECHANISMS.origin, study.privacy.mechanism))
        asked.append((subspace.DIRECTIONS.origin, study.privacy.directions))
    if study.instances.method is None:
        chosen = vars(study.method.options)
        origins = {"family": FAMILIES.origin, "own_hyper_prior": HYPER_PRIORS.origin}
        asked += [(origin, chosen[key]) for key, origin in origins.items() if isinstance(chosen.get(key), str)]
    for origin, name in asked:
        if (result := origin(name)) is not None:
            yield name, result


def relocated(table: JsonMapping, known: JsonMapping, folder: Path) -> JsonTable:
    """Let a study name files of the user's where they are now; see `_found`.

    Args:
        table: of a study that was run, perhaps on another machine.
        known: as `used` gave the files when it was.
        folder: of the run, or of its release.

    Returns:
        The table, with the paths of today.
    """
    places = {name: (_found(one, folder), reference(name)) for name, one in known.items() if "file" in one}
    moved = {
        name: f"{file}:{of.name}"
        for name, (file, of) in places.items()
        if file is not None and of is not None and of.is_file
    }

    def renamed(value: object) -> Any:
        if isinstance(value, Mapping):
            return {key: renamed(one) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return [renamed(one) for one in value]
        return moved.get(value, value) if isinstance(value, str) else value

    return {key: renamed(value) for key, value in table.items()} if moved else {**table}


def _found(one: Mapping[str, Any], folder: Path) -> Path | None:
    """Find a file that is not where it was: of its name and content, in the working folder, or in or above a run's."""
    was = Path(one["file"])
    if was.is_file():
        return None
    above = (folder.resolve(), *folder.resolve().parents)
    places = (place / was.name for place in (Path.cwd(), *above[:_ABOVE]))
    return next((file for file in places if file.is_file() and sha256(file) == one["sha256"]), None)


def check(known: Any, folder: Path, instances: Instances = NO_INSTANCES, scores: bool = False) -> None:
    """Refuse to go on with files or objects that are not those that a run was trained with; no file is executed.

    Args:
        known: as `used` gave them when it was.
        folder: of the run, or of its release.
        instances: objects that a program gives now.
        scores: whether its scores are wanted as they are, so that its metrics have to be the same too.

    Raises:
        StudyError: naming the first that was changed or is gone.
        DataError: when they cannot be read.

    Warns:
        UserWarning: of metrics that have changed.
    """
    what = str(folder)
    if not isinstance(known, Mapping):
        raise DataError(f"{what}: {KEY} must be a table, got {shown(known)}", hint="restore it from a copy")
    if strange := [name for name in instances.identities if name not in known]:
        text = f"{what} was not trained with {', '.join(strange)}"
        raise StudyError(text, hint="leave it out, or run the study anew in another folder")
    for name, one in known.items():
        if isinstance(one, Mapping) and "class" in one:
            _check_instance(name, one, what, instances.identities.get(name), scores)
            continue
        try:
            file, before = Path(one["file"]), str(one["sha256"])
        except (KeyError, TypeError) as error:
            raise DataError(f"{what}: {KEY} of {name!r} cannot be read", hint="restore it from a copy") from error
        if not file.is_file():
            if _found(one, folder) is not None:  # which is the same
                continue
            hint = f"put it back there, into the working folder, or beside {folder}"
            raise StudyError(f"{what} was trained with {name}, and there is no file {file}", hint=hint)
        now = sha256(file)
        if now != before:
            text = f"{what} was trained with {name}, and {file} has changed: SHA-256 {before[:12]} then, {now[:12]} now"
            _refuse(one, text, "restore the file, or run the study anew with another --out", scores)


def _refuse(known: Mapping[str, Any], what: str, hint: str, scores: bool) -> None:
    """Refuse what has changed; of a metric say so, where no scores of before are wanted."""
    if scores or known.get("scores") is not True:
        raise StudyError(what, hint=hint)
    warnings.warn(f"{what}: scores from now on are by the metric as it is", stacklevel=caller_stacklevel())


def _check_instance(name: str, before: Mapping[str, Any], what: str, now: Identity | None, scores: bool) -> None:
    """Refuse an object of a program's that is missing or another."""
    kind = before.get("class")
    if now is None:
        text = f"{what} was trained with {name}, an instance of {kind} that a program has given"
        raise StudyError(text, hint="give it again: pacbayes_fl.open_run or run, with method, model or metrics as then")
    if before.get("sha256") == now.sha256:
        return
    then, today = dict(before.get("options") or {}), {**now.options}
    differ = [f"{key} {shown(then.get(key))} then, {shown(today.get(key))} now" for key in {**then, **today}]
    differ = [text for key, text in zip({**then, **today}, differ, strict=True) if then.get(key) != today.get(key)]
    why = ", ".join(differ) or ("its source or what it holds differs" if kind == now.kind else f"now {now.kind}")
    text = f"{what} was trained with another {name}: {why}"
    _refuse(before, text, "give the same object, or run the study anew in another folder", scores)


def check_folder(folder: Path, instances: Instances = NO_INSTANCES, scores: bool = False) -> None:
    """As `check`, by the records of the run's start.

    Args:
        folder: of the run; one without environment.json passes.
        instances: as `check`.
        scores: as `check`.

    Raises:
        StudyError, DataError: as `check`.
    """
    if (folder / "environment.json").is_file():
        with readable(folder / "environment.json") as path:
            known = json.loads(path.read_text("utf-8")).get(KEY, {})
        check(known, folder, instances, scores)
