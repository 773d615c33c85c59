"""Rows that a run keeps from its training, so that its certificates have something to stand on."""

from __future__ import annotations

import base64
import io
import json
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from pacbayes_fl import tensors
from pacbayes_fl.data import split, tables, twins
from pacbayes_fl.data.archives import Array, read_npz
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import UNREADABLE, DataError, StudyError
from pacbayes_fl.files import Entries, write_json
from pacbayes_fl.methods.pac_pfl.folds import balanced_folds
from pacbayes_fl.noise import Noise
from pacbayes_fl.results.manifest import put, put_written
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.rows import fingerprints

FILE = "held_out.npz"
"""What a run folder calls the positions of the rows that its training never saw."""

HISTORY = "trained.json"
"""What a run folder calls the clients that ever took part in its training, and their rows."""

_STREAM = 2**32 - 2  # round of the noise that shares rows out: no run gets there


class CertificateSplit(NamedTuple):
    """The training view of a data set, and the reserved rows.

    Args:
        dataset: with the training rows of existing clients that the training may look at.
        bound_rows: the other training rows of the same clients, in the data's own units, on which certificates stand;
            None where there are none.
        bound_row_mask: which of each client's training rows these are, bool [K, N]; None where there are none.
    """

    dataset: tables.Dataset
    bound_rows: ClientBatch | None = None
    bound_row_mask: Tensor | None = None


def divide(study: Study, dataset: tables.Dataset) -> CertificateSplit:
    """Keep a random part of every existing client's training rows from everything that comes before certificates.

    Which rows, depends on the study's seed, the client's id and the number of its rows, and not on what they hold. Of
    images that were dealt out in fixed numbers by label, the same share is kept of every label: otherwise the labels
    that the training saw would tell which ones are left. The certificates are then about that mix of labels.

    Args:
        study: its [report.certify] says whether and how many.
        dataset: all rows.

    Returns:
        The division; everything in `dataset` where the scheme is not "split".

    Raises:
        DataError: when a client has too few rows for both parts, or a row in both.
    """
    part = study.report.certify
    if part.scheme != "split":
        return CertificateSplit(dataset)
    group = dataset.groups["existing"]
    train = group.train
    keys = Noise(study.seed, _STREAM, train.ids).uniform(train.y.new_empty(train.y.shape, dtype=torch.float64))
    strata = train.y if _dealt_by_label(dataset) else torch.zeros_like(train.y)
    held = torch.stack([_held(*client, part.share) for client in zip(keys, strata, train.mask, strict=True)])
    empty = ~(held.any(1) & (train.mask & ~held).any(1))
    if bool(empty.any()):
        k = int(empty.nonzero()[0])
        what = f"has {int(train.size[k])} training rows, of which a share of {part.share:g} leaves one part empty"
        raise DataError(what, client=train.names[k], hint="another report.certify.share, or scheme = 'folds'")
    known, kept = (_where(train, rows) for rows in (train.mask & ~held, held))
    times = group.times and group.times._replace(train=_times(group.times.train, train.mask & ~held))
    if study.data.duplicate_rows == "refuse" and dataset.rows is None:  # published images are apart by position
        both = times and group.times and (times.train, _times(group.times.train, held))
        split.assert_disjoint(known, kept, "kept", both)
    groups = {**dataset.groups, "existing": replace(group, train=known, times=times)}
    return CertificateSplit(replace(dataset, groups=groups), kept, held)


def _held(keys: Tensor, strata: Tensor, mask: Tensor, share: float) -> Tensor:
    """Choose the rows [N] of a client that are kept: the same share of every stratum, but for rounding."""
    held = torch.zeros_like(mask)
    before = seen = 0
    for label in strata[mask].unique():  # sorted
        rows = (mask & (strata == label)).nonzero().squeeze(1)
        before += len(rows)
        known = round(share * before) - seen
        seen += known
        held[rows[keys[rows].argsort()[known:]]] = True
    return held


def _dealt_by_label(dataset: tables.Dataset) -> bool:
    """Whether clients were given rows in numbers fixed by label, so that labels are no independent draws."""
    return bool(dataset.provenance.get("options", {}).get("partition", "natural") != "natural")


def rows_for_tuning(study: Study, division: CertificateSplit) -> tables.Dataset:
    """Leave what may be chosen by: of a study with certificates, not the rows that they stand on.

    Args:
        study: whose options are to be chosen.
        division: of its data.

    Returns:
        The data set without the rows that are held.

    Raises:
        StudyError: when certificates stand on every row.
    """
    if study.report.certify.scheme == "folds":
        raise StudyError(
            "scheme 'folds' certifies every training row, so that nothing can be chosen by them",
            hint="choose on other data, or without [report.certify] and count what was tried: certify --tried",
        )
    return division.dataset


def _where(batch: ClientBatch, wanted: Tensor) -> ClientBatch:
    """Take the rows [K, N] that are wanted, in their order."""
    clients = [(batch.x[k][rows], batch.y[k][rows]) for k, rows in enumerate(wanted)]
    return ClientBatch.stack(clients, batch.names, batch.ids)


def _times(times: Tensor, wanted: Tensor) -> Tensor:
    """Take the times [K, N] of the rows that are wanted, padded with zeros."""
    return pad_sequence([own[rows] for own, rows in zip(times, wanted, strict=True)], batch_first=True)


def save(folder: Path, division: CertificateSplit) -> None:
    """Write which rows the training does not see; nothing where it sees all.

    Args:
        folder: of the run.
        division: of its data.

    Raises:
        CheckpointError: when it cannot be written.
    """
    if division.bound_rows is None or division.bound_row_mask is None:
        return
    arrays = {"client_name": np.array(division.bound_rows.names), "held": division.bound_row_mask.numpy()}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    put(folder, {FILE: buffer.getvalue()})


def check(folder: Path, division: CertificateSplit) -> None:
    """Check that the rows that the training does not see are those that it did not see before.

    Clients may have come and gone.

    Args:
        folder: of the run.
        division: of its data as they are today.

    Raises:
        DataError: naming the first client that has others.
    """
    if division.bound_rows is None or division.bound_row_mask is None:
        return
    saved = read_npz(folder / FILE)
    before = {str(name): rows for name, rows in zip(saved["client_name"], saved["held"], strict=True)}
    for name, rows in zip(division.bound_rows.names, division.bound_row_mask.numpy(), strict=True):
        if name in before and np.flatnonzero(before[name]).tolist() != np.flatnonzero(rows).tolist():
            raise DataError(
                "the rows that were kept from the training are not those that the run was started with",
                client=name,
                hint="restore the data, or choose another --out",
            )


class TrainedClient(NamedTuple):
    """Record of a client that took part in the training.

    Args:
        rows: fingerprint of all its training rows, in their order.
        cells: names of the rows that the training saw and of those that chose (`twins.cells`), uint64 [G m], by which
            they are recognised under whichever client they come back; none of published images, which are apart by
            their positions.
    """

    rows: str
    cells: Array


@dataclass(frozen=True)
class TrainingHistory:
    """Clients that ever took part in a training, also those that have left since: a prior does not forget.

    Args:
        clients: what is kept of each, by name.
        fold: its fold by name, of a run in folds.
        salt: of the run, under which fingerprints and names of rows are made.
        width: of twins, by column; empty of published images.
        grids: G, in which rows have names.
    """

    clients: Mapping[str, TrainedClient] = field(default_factory=dict)
    fold: Mapping[str, int] = field(default_factory=dict)
    salt: int = 0
    width: tuple[float, ...] = ()
    grids: int = twins.GRIDS

    @classmethod
    def read(cls, folder: Path | None, trained: bool = False) -> TrainingHistory:
        """Read the history of a run folder: empty, where there was no training yet.

        Args:
            folder: of a run; None for a run without one.
            trained: whether the folder holds a round that was trained.

        Returns:
            The history.

        Raises:
            DataError: when it cannot be read, or is missing where there was a training.
        """
        if folder is None or not (trained or (folder / HISTORY).is_file()):
            return cls()
        try:
            result = json.loads((folder / HISTORY).read_text("utf-8"))
            return cls(
                {name: TrainedClient(rows, _unpacked(text)) for name, (rows, text) in result["clients"].items()},
                {name: int(fold) for name, fold in result["fold"].items()},
                int(result["salt"], 16),
                tuple(float(width) for width in result["width"]),
                int(result.get("grids", 2)),  # of earlier versions
            )
        except UNREADABLE as error:
            raise DataError(f"{folder / HISTORY} cannot be read: {error}", hint="choose another --out") from error

    def extended(self, study: Study, dataset: tables.Dataset, known: tables.Dataset) -> TrainingHistory:
        """Add today's clients.

        Args:
            study: gives the folds.
            dataset: all rows.
            known: the rows that the training sees.

        Returns:
            The history of a training that goes on with them.

        Raises:
            DataError: naming a client that comes back with other rows than it trained on, or as a new one.
            StudyError: when there are fewer clients than folds.
        """
        salt = self.salt or secrets.randbits(62) + 1
        images = dataset.rows is not None
        width = self.width
        if not images:
            every = [group.train for group in dataset.groups.values()]
            today = tuple((study.report.certify.twins * twins.spread(every)).tolist())
            width = width or today
            if len(width) != len(today):
                what = f"{HISTORY} remembers rows of {len(width)} columns, and the data have {len(today)}"
                raise DataError(what, hint="choose another --out")
        now = fingerprints.of_training_rows(dataset, f"{salt:x}")
        for name, rows in now.items():
            if name in self.clients and self.clients[name].rows != rows:
                what = "its training rows are not those that it trained on before"
                raise DataError(what, client=name, hint="restore the data, or choose another --out")
        if "new" in dataset.groups:
            for name in dataset.groups["new"].train.names:
                if name in self.clients:
                    what = "it took part in this run's training before, and cannot be a client that never trained"
                    raise DataError(what, client=name, hint="choose another --out")
        seen, cells = known.groups["existing"], dict[str, Array]()
        if not images:
            for own in tensors.client_blocks(seen.train.clients):
                part = seen.select(torch.arange(own.start, own.stop))
                stacked, owner = twins.together((part.train, part.validation))
                named = np.split(
                    twins.cells(stacked, np.array(width), salt, self.grids),
                    np.searchsorted(owner, np.arange(1, part.train.clients)),
                )  # rows lie client after client
                cells |= {name: one.reshape(-1) for name, one in zip(part.train.names, named, strict=True)}
        none = np.zeros(0, dtype=np.uint64)
        clients = {name: TrainedClient(rows, cells.get(name, none)) for name, rows in now.items()}
        return replace(
            self, clients={**self.clients, **clients}, fold=self._dealt(study, dataset), salt=salt, width=width
        )

    def _dealt(self, study: Study, dataset: tables.Dataset) -> dict[str, int]:
        """Give today's clients their folds too."""
        fold = dict(self.fold)
        if study.report.certify.scheme == "folds":
            train = dataset.groups["existing"].train
            known = {i: fold[name] for i, name in zip(train.ids, train.names, strict=True) if name in fold}
            dealt = balanced_folds(train.ids, study.report.certify.folds, study.seed, known)
            fold |= {name: dealt[i] for i, name in zip(train.ids, train.names, strict=True)}
        return fold

    def save(self, folder: Path) -> None:
        """Write the history into a run folder.

        Args:
            folder: of the run.

        Raises:
            CheckpointError: when it cannot be written.
        """
        clients = Entries(self._packed_clients, len(self.clients))
        kept = {"salt": f"{self.salt:x}", "width": self.width, "grids": self.grids, "fold": self.fold}
        kept |= {"clients": clients}
        put_written(folder, HISTORY, lambda file: write_json(file, kept))

    def _packed_clients(self) -> Iterator[tuple[str, object]]:
        return ((name, [one.rows, _packed(one.cells)]) for name, one in self.clients.items())

    def fold_of(self, clients: ClientBatch) -> dict[int, int]:
        """Give the fold of each of some clients, by id.

        Args:
            clients: that take part.

        Returns:
            Folds; empty of a run without folds.
        """
        return {i: self.fold[name] for i, name in zip(clients.ids, clients.names, strict=True) if name in self.fold}


def _packed(cells: Array) -> str:
    return base64.b64encode(cells.astype("<u8").tobytes()).decode()


def _unpacked(text: str) -> Array:
    return np.frombuffer(base64.b64decode(text, validate=True), dtype="<u8").astype(np.uint64)
