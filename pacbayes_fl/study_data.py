"""From a study's [data] table to batches that a method can take."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import data_gen
from pacbayes_fl.data import scaling, split, tables
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.scaling import Scaling
from pacbayes_fl.errors import DataError, StudyError
from pacbayes_fl.study_file import Study


@dataclass(frozen=True)
class ScaledGroup:
    """Clients of one group as a method sees them, and the way back to the data's own units.

    Args:
        train: rows in the method's units.
        test: rows in the method's units.
        raw: the same rows in the data's own units.
        units: standardisation by each client's training rows, in which metrics are reported.
        used: scaling to the method's units: `units`, or the identity.
    """

    train: ClientBatch
    test: ClientBatch
    raw: tables.Group
    units: Scaling
    used: Scaling

    def select(self, index: Tensor) -> ScaledGroup:
        """Take clients.

        Args:
            index: positions [k], int64, on the CPU.

        Returns:
            The group of those k clients.
        """
        raw = tables.Group(self.raw.train.select(index), self.raw.test.select(index))
        units, used = (Scaling(*(t[index.to(t.device)] for t in one)) for one in (self.units, self.used))
        return ScaledGroup(self.train.select(index).trim(), self.test.select(index), raw, units, used)


def load(study: Study) -> tables.Dataset:
    """Generate or read a study's data, and check that no test row is a training row.

    Args:
        study: its [data] table says what.

    Returns:
        The data set in its own units.

    Raises:
        StudyError: when an environment variable in a path is not set, or the generator refuses an option.
        DataError: when the file or its rows cannot be used.
    """
    options = {name: _expand(value) for name, value in study.data.options.items()}
    if study.data.source in data_gen.NAMES:
        if study.data.follow_seed:
            options = {"seed": study.seed} | options
        try:
            made = data_gen.generate(study.data.source, **options)
        except (data_gen.DataGenError, TypeError) as error:
            raise StudyError(f"[data] {study.data.source}: {error}") from error
        dataset = tables.from_arrays(made.arrays, made.manifest)
    else:
        path = Path(_expand(study.data.source))
        if not path.suffix:
            raise StudyError(
                f"[data] source must be one of {', '.join(data_gen.NAMES)} or a file, got {study.data.source!r}"
            )
        if options:
            raise StudyError(f"[data] options are for generators, not for the file {path.name}")
        dataset = tables.read(path, study.data.client, study.data.target, study.data.test_share)
    if study.data.duplicate_rows == "refuse":
        for group in dataset.groups.values():
            split.assert_disjoint(group.train, group.test)
    return dataset


def _expand(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    expanded = os.path.expandvars(value)
    if missing := re.search(r"\$\{?(\w+)", expanded):
        raise StudyError(
            f"[data] the environment variable {missing[1]} is not set, and {value!r} needs it",
            hint=f"export {missing[1]}=/path/to/data",
        )
    return expanded


def scale(group: tables.Group, raw_units: bool, device: torch.device) -> ScaledGroup:
    """Bring a group into a method's units, on its device.

    Args:
        group: rows in the data's own units.
        raw_units: leave them there.
        device: where the method runs.

    Returns:
        The scaled group.
    """
    train, test = group.train.to(device), group.test.to(device)
    units = scaling.fit(train)
    used = scaling.identity(train) if raw_units else units
    return ScaledGroup(used.apply(train), used.apply(test), tables.Group(train, test), units, used)


def match_columns(table: tables.Table, features: tuple[tables.Column, ...]) -> tables.Table:
    """Bring the columns of a user's table into the order of those that a run was trained on.

    Args:
        table: as read.
        features: the run's columns.

    Returns:
        The table in the run's order.

    Raises:
        DataError: naming a client, what is missing and what is too many.
    """
    wanted = tuple(column.name for column in features)
    if set(table.features) != set(wanted):
        missing = [name for name in wanted if name not in table.features]
        extra = [name for name in table.features if name not in wanted]
        raise DataError(
            f"features must be {', '.join(wanted)}; missing: {', '.join(missing) or 'none'}, "
            f"not known: {', '.join(extra) or 'none'}",
            client=next(iter(table.clients), None),
        )
    order = [table.features.index(name) for name in wanted]
    return table._replace(clients={name: (x[:, order], y) for name, (x, y) in table.clients.items()}, features=wanted)


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
    old_rows, new_rows = _rows_by_client(before), _rows_by_client(now)
    for name in old_rows.keys() & new_rows.keys():
        if old_rows[name] != new_rows[name]:
            hint = "restore the data, or choose another --out"
            raise DataError("its rows are not those that the run was started with", client=name, hint=hint)
    for names, text in ((new_rows.keys() - old_rows.keys(), "joined"), (old_rows.keys() - new_rows.keys(), "left")):
        if names:
            warnings.warn(f"{', '.join(sorted(names))} {text} since the run was started", stacklevel=2)


def _rows_by_client(dataset: tables.Dataset) -> dict[str, tuple[str, str]]:
    """Fingerprint every client: its group, its training and its test rows."""
    return {
        name: (label, split.split_hash(group.train.select(at), group.test.select(at)))
        for label, group in dataset.groups.items()
        for k, name in enumerate(group.train.names)
        for at in [torch.tensor([k])]
    }


def provenance(dataset: tables.Dataset) -> Mapping[str, Any]:
    """Say where a data set came from, with a fingerprint of which rows are training and which test rows.

    Args:
        dataset: the data set.

    Returns:
        The manifest or source, and `split_sha256`.
    """
    batches = [batch for group in dataset.groups.values() for batch in (group.train, group.test)]
    return {**dataset.provenance, "split_sha256": split.split_hash(*batches)}
