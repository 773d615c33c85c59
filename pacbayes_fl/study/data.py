"""From a study's [data] table to batches that a method can take."""

from __future__ import annotations

import hashlib
import json
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from pacbayes_fl import settings
from pacbayes_fl.data import archives, class_labels, scaling, split, tables, user_tables
from pacbayes_fl.data.archives import Array
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.client_blocks import by_block
from pacbayes_fl.data.layout import Layout, span
from pacbayes_fl.data.scaling import Scaling, Shared
from pacbayes_fl.data.summaries import summary_inputs, with_inputs
from pacbayes_fl.data.target_bounds import Place, row_number
from pacbayes_fl.errors import UNREADABLE, DataError, PrivacyError, StudyError, caller_stacklevel
from pacbayes_fl.files import JsonMapping, JsonTable, sha256
from pacbayes_fl.study.config import sources
from pacbayes_fl.study.config.parts import DataPart
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.rows import table_checks

_OF_TABLES: Final = tuple(one.name for one in fields(Layout) if one.name not in ("client", "target", "group"))


@dataclass(frozen=True)
class ScaledGroup:
    """Clients of one group as a method sees them, and the way back to the data's own units.

    Args:
        train: rows in the method's units and its model's dtype.
        test: rows in the method's units.
        raw: the same rows in the data's own units.
        units: standardisation by each client's training rows, in which metrics are reported.
        used: scaling to the method's units: `units`, but for columns that are scaled by others' rows too or not at all.
        shared: what of `used` is the same for all clients.
        validation: rows in the method's units, where there are any.
        inputs: summaries of each client's training rows, which are inputs of all its rows [K, s]; s = 0 for none.
    """

    train: ClientBatch
    test: ClientBatch
    raw: tables.Group
    units: Scaling
    used: Scaling
    shared: Shared
    validation: ClientBatch | None = None
    inputs: Tensor = field(default_factory=partial(torch.empty, 0, 0))

    def bring(self, batch: ClientBatch) -> ClientBatch:
        """Bring other rows of the same clients into the method's units and dtype.

        Args:
            batch: rows in the data's own units, x [K, N, *feature].

        Returns:
            The scaled rows.
        """
        return _brought(self.shared.learned(batch), self.used, self.inputs).to(dtype=self.train.x.dtype)

    def select(self, index: Tensor) -> ScaledGroup:
        """Take clients.

        Args:
            index: positions [k], int64, on the CPU.

        Returns:
            The group of those k clients.
        """
        raw = self.raw.select(index)
        units, used = (Scaling(*(t[index.to(t.device)] for t in one)) for one in (self.units, self.used))
        validation = None if self.validation is None else self.validation.select(index)
        train, test = self.train.select(index).trim(), self.test.select(index)
        inputs = self.inputs[index.to(self.inputs.device)] if self.inputs.numel() else self.inputs
        return ScaledGroup(train, test, raw, units, used, self.shared, validation, inputs)


def load(study: Study) -> tables.Dataset:
    """Generate or read a study's data, and check that no test or validation row is a training row.

    Args:
        study: its [data] table says what.

    Returns:
        The data set in its own units.

    Raises:
        StudyError: when an environment variable in a path is not set, or the generator refuses an option.
        DataError: when the file or its rows cannot be used.
        PrivacyError: when a private run would take the names of classes from clients' folders, or their number from
            labels.
    """
    options = {name: _expand(value) for name, value in study.data.options.items()}
    source = sources.find(study.data.source)
    images = source is not None and source.own
    table_checks.check_classes(study)
    if not table_checks.of_table(study.data.source):
        theirs = {"exclude_clients": images, "classes": study.instances.data is not None}
        for name in _OF_TABLES:
            if theirs.get(name):
                continue
            if getattr(study.data, name) != getattr(DataPart(), name):
                what = f"[data] {name} is for the columns of a table, and {study.data.source!r} is none"
                raise StudyError(what, hint="drop it, or give a .csv or .parquet")
        for name in ("lower_bound", "upper_bound"):
            if isinstance(column := getattr(study.data, name), str):
                what = f"[data] {name} = {column!r} is a column of a table, and {study.data.source!r} is none"
                raise StudyError(what, hint="give a number, or a .csv or .parquet")
    else:
        table_checks.check_columns(study)
    if study.data.follow_seed:
        options = {"seed": study.seed} | options
    if images:
        options = _of_own_images(study) | options
    dataset = study.instances.source(study.data.source)
    if dataset is None:
        dataset = _read_file(study.data) if source is None else source.load(options)
    if source is not None and source.published:  # positions are compared when they are shared out
        return dataset
    if study.data.duplicate_rows == "refuse":
        for group in dataset.groups.values():
            split.assert_disjoint(group.train, group.test, times=group.times)
            if group.validation is not None:
                split.assert_disjoint(group.train, group.validation, "validation")
    return dataset


def _of_own_images(study: Study) -> JsonTable:
    """Give a user's images what [data] says of them, unless their options do."""
    if study.privacy.epsilon is not None and not study.data.options.get("classes"):
        what = "[data] the classes would be those that clients have images of, which no epsilon covers"
        raise PrivacyError(what, hint="state what everybody may know: data.options.classes = ['cat', 'dog']")
    return {"duplicate_rows": study.data.duplicate_rows, "exclude_clients": study.data.exclude_clients}


def _read_file(part: DataPart) -> tables.Dataset:
    path = Path(_expand(part.source))
    if not path.suffix:
        known = sources.names()
        what = f"[data] source must be one of {', '.join(known)}, a file or a folder of images, got {part.source!r}"
        hint = settings.nearest(part.source, known) if not path.is_dir() else f"{part.source}/ is the folder"
        raise StudyError(what, hint=hint)
    if part.options:
        raise StudyError(f"[data] options are for generators, not for the file {path.name}")
    task: user_tables.Task = "classification" if part.task == "classification" else "regression"
    last = None if part.test.last is None else span(part.test.last)
    check = partial(table_checks.check_targets, part)
    dataset = tables.read(path, part, part.test.share, task, last, check)
    if part.task == "auto" and dataset.classes is None and path.suffix in user_tables.TABLES:
        _warn_of_labels(dataset)
    order = table_checks.order_of_file(path.name, dataset.provenance.get("cut"))
    for said in filter(None, (order, *table_checks.remarks(dataset))):
        warnings.warn(said, stacklevel=caller_stacklevel())
    counted_by = {"file_sha256": sha256(path)}  # certificates are, whichever columns and cut a study takes
    return replace(dataset, provenance={**dataset.provenance, **counted_by})


def _warn_of_labels(dataset: tables.Dataset) -> None:
    """Warn of numbers that are learned as such and look like classes."""
    batches = [batch for group in dataset.groups.values() for batch in (group.train, group.test)]
    values = torch.cat([batch.y[batch.mask] for batch in batches]).tolist()
    if labels := class_labels.like_labels(values):
        what, hint = class_labels.labels_said(f"column {dataset.target.name!r}", labels)
        warnings.warn(f"{what}: {hint}", stacklevel=caller_stacklevel())


def _expand(value: object) -> Any:
    if not isinstance(value, str):
        return value
    expanded = os.path.expandvars(value)
    if missing := re.search(r"\$\{?(\w+)", expanded):
        raise StudyError(
            f"[data] the environment variable {missing[1]} is not set, and {value!r} needs it",
            hint=f"export {missing[1]}=/path/to/data",
        )
    return expanded


def scale(
    group: tables.Group,
    shared: Shared,
    device: torch.device,
    dtype: torch.dtype | None = None,
    columns: Sequence[str] = (),
) -> ScaledGroup:
    """Bring a group into a method's units, on its device.

    Images are left as they are, for all clients look at the world in the same way, and so are labels.

    Args:
        group: rows in the data's own units.
        shared: how every column is scaled; see `study.rows.scaling.settle`.
        device: where the method runs.
        dtype: of the method's model; the data's own when None.
        columns: names of the features and of the target, for warnings.

    Returns:
        The scaled group.

    Raises:
        DataError: naming a client with a target beyond the bounds, or without a transform.
    """
    batches = [group.train, group.test, *([] if group.validation is None else [group.validation])]
    raw = [batch.to(device) for batch in batches]
    inputs = torch.empty(0, 0)
    if raw[0].x.dim() > 3:  # images: no copy, they are large
        units = used = scaling.identity(raw[0])
        scaled = [batch.to(dtype=dtype) for batch in raw]
    else:
        for batch in raw:
            check_targets(batch, shared)
        learned = [shared.learned(batch) for batch in raw]
        units = scaling.fit(learned[0], shared, columns)
        used = shared.used(units, learned[0])
        if shared.transform is not None:
            units = scaling.with_targets(units, raw[0])
        if shared.summaries is not None:
            inputs = summary_inputs(learned[0], shared.summaries)
        scaled = [by_block(batch, partial(_scaled_rows, used, inputs, dtype)) for batch in learned]
    own = tables.Group(raw[0], raw[1], raw[2] if raw[2:] else None, group.times)
    validation = scaled[2] if scaled[2:] else None
    return ScaledGroup(scaled[0], scaled[1], own, units, used, shared, validation, inputs)


def check_targets(batch: ClientBatch, shared: Shared, place: Place = row_number) -> None:
    """Refuse targets beyond the bounds, which predictions say are impossible, and those that have no transform.

    Args:
        batch: rows in the data's own units.
        shared: has the bounds and the transform, if there are any.
        place: what to call a client's row.

    Raises:
        DataError: naming the first client that has one, and the range of its targets, or the target and its row; or a
            row whose bounds are not in order.
    """
    if shared.transform is not None:
        shared.transform.check(batch, place)
    if shared.bounds is not None:
        shared.bounds.check(batch, place)


def _scaled_rows(
    used: Scaling, inputs: Tensor, dtype: torch.dtype | None, batch: ClientBatch, own: slice | Tensor
) -> ClientBatch:
    """Scale rows of some clients of a group."""
    summaries = inputs[own] if inputs.numel() else inputs
    return _brought(batch, Scaling(*(leaf[own] for leaf in used)), summaries).to(dtype=dtype)


def _brought(batch: ClientBatch, used: Scaling, inputs: Tensor) -> ClientBatch:
    """Scale rows, and put summaries of their clients behind the features."""
    scaled = used.apply(batch)
    return with_inputs(scaled, inputs) if inputs.numel() else scaled


def check_same_rows(before: tables.Dataset, now: tables.Dataset) -> None:
    """Check that a run goes on with the data that it was started with; clients may come and go, with a warning.

    Args:
        before: as the run saved it.
        now: as it is today.

    Raises:
        DataError: when columns differ, or rows of a client that is in both, naming it.
    """
    for what, old, new in (("features", before.features, now.features), ("target", [before.target], [now.target])):
        if [column.name for column in old] != [column.name for column in new]:
            raise DataError(
                f"{what} were {', '.join(column.name for column in old)} when the run was started, "
                f"now {', '.join(column.name for column in new)}",
                hint="restore the data, or choose another --out",
            )
    check_rows(rows_by_client(before), rows_by_client(now))


def check_rows(old_rows: JsonMapping, new_rows: JsonMapping) -> None:
    """Compare clients by fingerprints of their rows.

    Args:
        old_rows: as the run saved them, by name.
        new_rows: as they are today.

    Raises:
        DataError: naming a client that is in both with other rows.
    """
    for name in old_rows.keys() & new_rows.keys():
        if old_rows[name] != new_rows[name]:
            hint = "restore the data, or choose another --out"
            raise DataError("its rows are not those that the run was started with", client=name, hint=hint)
    for names, text in ((new_rows.keys() - old_rows.keys(), "joined"), (old_rows.keys() - new_rows.keys(), "left")):
        if names:
            warnings.warn(
                f"{', '.join(sorted(names))} {text} since the run was started", stacklevel=caller_stacklevel()
            )


def to_saved(dataset: tables.Dataset) -> dict[str, Array]:
    """Content of a run folder's data: all rows; of published images only the positions and fingerprints.

    Args:
        dataset: the data set.

    Returns:
        Arrays for data.npz.
    """
    if dataset.rows is None:
        return tables.to_arrays(dataset)
    return tables.to_positions(dataset) | {"image_sha256": np.array(_fingerprints(dataset))}


def _fingerprints(dataset: tables.Dataset) -> list[str]:
    return [f"{name} {digest}" for name, digest in dataset.provenance["sha256"].items()]


def check_saved(path: Path, now: tables.Dataset) -> None:
    """Check that a run goes on with the data that it was started with, tables or images.

    Args:
        path: the data.npz that the run saved.
        now: the data as they are today.

    Raises:
        DataError: as `check_same_rows`; of images, naming the client whose positions differ, or the files that do.
    """
    if now.rows is None:
        check_same_rows(tables.read(path), now)
        return
    before, hint = archives.read_npz(path), "restore the data, or choose another --out"
    if "image_sha256" not in before:
        raise DataError(f"{path} is not of a run on images", hint=hint)
    for old, new in zip(before["image_sha256"].tolist(), _fingerprints(now), strict=True):
        if old != new:
            raise DataError(f"the files of {new.split()[0]} are not those that the run was started with", hint=hint)
    saved, current = positions_by_client(before), positions_by_client(now.rows)
    for name in [*saved, *current]:
        if saved.get(name) != current.get(name):
            raise DataError("its rows are not those that the run was started with", client=name, hint=hint)


def positions_by_client(rows: Mapping[str, Array]) -> dict[str, tuple[str, list[int], list[int]]]:
    """Positions of each client's rows in published images.

    Args:
        rows: from `tables.to_positions`.

    Returns:
        By name its domain, and the positions of its rows with their parts.
    """
    return {
        str(name): (str(rows["client_domain"][k]), rows["position"][own].tolist(), rows["part"][own].tolist())
        for k, name in enumerate(rows["client_name"])
        for own in [rows["owner"] == k]
    }


def load_saved(study: Study, path: Path) -> tables.Dataset:
    """Read the data that a run folder keeps; images are made again from the study's [data] table.

    Args:
        study: of the run.
        path: its data.npz.

    Returns:
        The data set.

    Raises:
        DataError: when images are not where they were, or not what they were.
    """
    source = sources.find(study.data.source)
    if source is None or not source.published:
        return tables.read(path)
    dataset = load(study)
    check_saved(path, dataset)
    return dataset


def check_environment(folder: Path, now: tables.Dataset) -> None:
    """Check the rows of a run folder against the fingerprint in its environment.json, where there is one.

    Args:
        folder: of the run.
        now: as data.npz has them.

    Raises:
        DataError: when they are not, or it cannot be read.
    """
    path, hint = folder / "environment.json", "restore data.npz, or run the study anew"
    if not path.is_file():  # predictions do not need it, certificates do
        return
    try:
        known = json.loads(path.read_text("utf-8"))["data"]["split_sha256"]
    except UNREADABLE as error:
        raise DataError(f"{path} cannot be read: {error}", hint=hint) from error
    if known != provenance(now)["split_sha256"]:
        raise DataError(f"the rows in {folder / 'data.npz'} are not those that {path.name} says were run", hint=hint)


def rows_by_client(dataset: tables.Dataset) -> dict[str, tuple[str, str]]:
    """Fingerprint every client.

    Args:
        dataset: all rows.

    Returns:
        By name its group, and the fingerprint of its training and test rows.
    """
    return {
        name: (label, rows)
        for label, group in dataset.groups.items()
        for name, rows in split.client_hashes(group.train, group.test).items()
    }


def provenance(dataset: tables.Dataset) -> JsonMapping:
    """Provenance of a data set, with a fingerprint of its training and test rows.

    Args:
        dataset: the data set.

    Returns:
        The manifest or source, and `split_sha256`.
    """
    if dataset.rows is not None:  # of positions: pixels are many, and have a fingerprint of their own
        digest = hashlib.sha256()
        for name in sorted(dataset.rows):
            digest.update(f"{name} {dataset.rows[name].tolist()}\n".encode())
        return {**dataset.provenance, "split_sha256": digest.hexdigest()}
    batches = [
        batch
        for group in dataset.groups.values()
        for batch in (group.train, group.test, group.validation)
        if batch is not None
    ]
    return {**dataset.provenance, "split_sha256": split.split_hash(*batches)}
