"""Clients' rows in a run folder: all of them, or fingerprints with `report.keep = "no-rows"`."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from torch import Tensor

from pacbayes_fl.data import tables
from pacbayes_fl.data.archives import write_npz
from pacbayes_fl.errors import UNREADABLE, DataError, StudyError
from pacbayes_fl.files import JsonMapping
from pacbayes_fl.methods.base import AnyMethod
from pacbayes_fl.results.manifest import put, put_written
from pacbayes_fl.study.data import check_rows, check_saved, load, load_saved, to_saved
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.rows import fingerprints

ROWS: Final = "data.npz"
PRINTS: Final = "rows.json"
"""What a run folder that keeps no rows calls their fingerprints."""


def check(study: Study, method: AnyMethod) -> None:
    """Refuse to keep no rows of a method whose server may hold them.

    Args:
        study: its [report] says what is kept.
        method: the algorithm.

    Raises:
        StudyError: when it is none that leaves rows with the clients.
    """
    if study.report.keep == "no-rows" and not method.federated:
        what = f"the clients of {study.method.name} send their rows to the server, whose state may hold them"
        raise StudyError(
            f"[report] keep = 'no-rows': {what}", hint="report.keep = 'all', or a method that is federated"
        )


def save(folder: Path, study: Study, dataset: tables.Dataset) -> None:
    """Write the rows of a run, or their fingerprints.

    Args:
        folder: of the run.
        study: its [report] says which.
        dataset: all rows.

    Raises:
        CheckpointError: when a file cannot be written.
    """
    if study.report.keep == "all":
        arrays = to_saved(dataset)
        put_written(folder, ROWS, lambda file: write_npz(file, arrays))
        return
    salt = secrets.token_hex(16)
    columns = [column.name for column in (*dataset.features, dataset.target)]
    kept = {"salt": salt, "columns": columns, "clients": fingerprints.of_all_rows(dataset, salt)}
    put(folder, {PRINTS: (json.dumps(kept, indent=1) + "\n").encode()})


def check_same(folder: Path, now: tables.Dataset) -> None:
    """Check that a run goes on with the rows that it was started with; clients may come and go, with a warning.

    Args:
        folder: of the run; one without rows and fingerprints passes.
        now: the data as they are today.

    Raises:
        DataError: when columns differ, or rows of a client that is in both, naming it.
    """
    if (folder / ROWS).exists():
        check_saved(folder / ROWS, now)
    elif (folder / PRINTS).exists():
        result = _read(folder)
        columns = [column.name for column in (*now.features, now.target)]
        if result["columns"] != columns:
            what = f"columns were {', '.join(result['columns'])} when the run was started, now {', '.join(columns)}"
            raise DataError(what, hint="restore the data, or choose another --out")
        check_rows(result["clients"], fingerprints.of_all_rows(now, result["salt"]))


def _read(folder: Path) -> JsonMapping:
    try:
        result = json.loads((folder / PRINTS).read_text("utf-8"))
        return {name: result[name] for name in ("salt", "columns", "clients")}
    except UNREADABLE as error:
        hint = "restore it from a copy, or run the study anew with another --out"
        raise DataError(f"{folder / PRINTS} cannot be read: {error}", hint=hint) from error


def data_again(study: Study, folder: Path | None) -> tables.Dataset:
    """Read the data of a study from their source; of a run that goes on they must be those that it was started with.

    Args:
        study: what to run.
        folder: of the run, if it has one.

    Returns:
        The data set.

    Raises:
        DataError: when the rows are not where they were, or not what they were.
    """
    if folder is not None and (folder / PRINTS).exists():
        return data_of(study, folder)
    dataset = load(study)
    if folder is not None:
        check_same(folder, dataset)
    return dataset


def holds_data(folder: Path) -> bool:
    """Whether a folder holds the rows of a run, or fingerprints by which to know them.

    Args:
        folder: any.
    """
    return (folder / ROWS).is_file() or (folder / PRINTS).is_file()


def missing(folder: Path) -> str:
    """Say which file a folder lacks by which the rows of a run are known.

    Args:
        folder: of a run, or what is left of one.

    Returns:
        A clause.
    """
    if not (folder / "study.toml").is_file():
        return "study.toml is missing"
    return f"{ROWS}, or {PRINTS} of a run that keeps no rows, is missing"


def data_of(study: Study, folder: Path) -> tables.Dataset:
    """Give the data of a run: from its folder, or again from their source where it keeps no rows.

    Args:
        study: of the run.
        folder: of the run.

    Returns:
        The data set.

    Raises:
        DataError: when the rows are not where they were, or not what they were.
    """
    if (folder / ROWS).is_file():
        if study.instances.data is not None:
            check_same(folder, study.instances.data)
        return load_saved(study, folder / ROWS)
    try:
        dataset = load(study)
    except (DataError, StudyError) as error:
        what = f"{folder} keeps no rows (report.keep = 'no-rows'), and they cannot be read from their source: {error}"
        hint = (
            "put the data back where [data] of study.toml says; clients can join an earlier release of the run without"
        )
        raise DataError(what, hint=hint) from error
    check_same(folder, dataset)
    return dataset


def shown(study: Study, predictions: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Keep a run's predictions, or none where no rows are to be kept.

    A prediction can give its row away, as that of persistence does, which is a feature, and the place of a target in
    its predictive distribution gives the target away.

    Args:
        study: its [report] says what is kept.
        predictions: flat names with tensors [K, *].

    Returns:
        What may be kept.
    """
    return predictions if study.report.keep == "all" else {}
