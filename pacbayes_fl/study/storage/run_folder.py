"""The folder of a run: inputs of a resumed run, and outputs of every run."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import torch

from pacbayes_fl import pages, tensors
from pacbayes_fl.data import tables
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.scaling import Shared
from pacbayes_fl.errors import CheckpointError, PacBayesFLError, StudyError, caller_stacklevel, one_line
from pacbayes_fl.federation import checkpoint, federation_state, lock, stop
from pacbayes_fl.federation.checkpoint import Checkpoint
from pacbayes_fl.federation.client_states import Kept
from pacbayes_fl.federation.federation_state import FederationState
from pacbayes_fl.files import JsonMapping
from pacbayes_fl.methods.base import AnyMethod
from pacbayes_fl.results import records as results
from pacbayes_fl.results import rounds as results_rounds
from pacbayes_fl.results import run_failures, run_warnings
from pacbayes_fl.results.folder import NODES, RELEASED, refuse_links
from pacbayes_fl.results.manifest import put
from pacbayes_fl.results.records import Result, environment
from pacbayes_fl.results.rounds import RoundRecord
from pacbayes_fl.study.config.instances import NO_INSTANCES, Instances
from pacbayes_fl.study.data import check_environment, load, provenance
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.prepare import device_of
from pacbayes_fl.study.rows import held_rows, saved_rows
from pacbayes_fl.study.rows import scaling as study_scaling
from pacbayes_fl.study.rows.held_rows import CertificateSplit, TrainingHistory
from pacbayes_fl.study.search import choice_file
from pacbayes_fl.study.storage import origins, resuming
from pacbayes_fl.study.storage.saved_meta import SavedMeta


class Settled(NamedTuple):
    """Inputs of a run before its first round, as kept in its folder.

    Args:
        study: what is run, with what was chosen.
        notes: how that was chosen.
        dataset: all rows.
        division: what the training sees of them, and what it does not.
        history: clients that ever took part.
        shared: what all clients' scaling has in common.
    """

    study: Study
    notes: JsonMapping
    dataset: tables.Dataset
    division: CertificateSplit
    history: TrainingHistory
    shared: Shared


class RunFolder:
    """The folder of a run; `NoFolder` is its twin for a run that is kept nowhere.

    A run calls `recall`, then `dataset`, `check_rows`, `history`, `scaling` and `restore`, which only read; `open`,
    once nothing can be refused any more; after every round `append` and, where a checkpoint is due, `save`; and
    `finish`.

    Args:
        path: of the folder.
        instances: objects that a program gives a run that is opened there; one that goes on has them in its study.
    """

    def __init__(self, path: Path, instances: Instances = NO_INSTANCES) -> None:
        """Take a path; nothing is read yet."""
        self.path, self.instances = path, instances
        self.fell_back: Sequence[str] = ()
        self._saved: Checkpoint | None = None

    @property
    def released(self) -> int:
        """How many private releases the newest intact round has seen; 0 before the first."""
        return 0 if self._saved is None else SavedMeta.of(self._saved).released or 0

    def lock(self) -> AbstractContextManager[object]:
        """Keep other runs out of the folder.

        Raises:
            StudyError: when it is a release.
            CheckpointError: when another run uses it.
        """
        resuming.refuse_taken(self.path)
        return lock.RunLock(self.path)

    def recall(self, study: Study, resume: bool) -> tuple[Study, JsonMapping]:
        """Find out where a run of a study goes on.

        Args:
            study: what to run.
            resume: whether a run that is there may go on.

        Returns:
            The study with what the run has chosen before, and how that was chosen.

        Raises:
            StudyError, CheckpointError, DataError: as `study.storage.resuming.recall`.
        """
        result = resuming.recall(study, self.path, resume)
        self._saved, self.fell_back = result.saved, result.fell_back
        return result.study, result.notes

    def load(self) -> tuple[Study, tables.Dataset, int]:
        """Read what was trained, on which rows, and how many private releases its state has seen.

        Returns:
            The study, for the devices of this machine, all rows, and the number of releases.

        Raises:
            StudyError: when the folder is no run's.
            CheckpointError: when there is no intact round, or a link stands in place of a file.
            DataError: when the rows are not where they were, or not what they were.
        """
        refuse_links(self.path)
        if (self.path / RELEASED).is_file():
            what = f"{self.path} is a release of a run, which holds nothing of its clients"
            raise StudyError(what, hint="join takes a release; predict and certify take the run")
        if (self.path / NODES).is_file():
            what = f"{self.path} is the server's side of a deployment: the clients' rows and models are at its nodes"
            raise StudyError(what, hint="release it, and clients join the release with their rows")
        if not (self.path / "study.toml").is_file() or not saved_rows.holds_data(self.path):
            raise results.no_run(self.path, saved_rows.missing(self.path))
        self._saved, self.fell_back = resuming.newest_round(self.path, self.instances)
        study = resuming.study_of(self._saved, self.path, self.instances)
        if study.federation.device == "cuda" and not torch.cuda.is_available():  # trained elsewhere
            study = replace(study, federation=replace(study.federation, device="cpu"))
        dataset = saved_rows.data_of(study, self.path)
        check_environment(self.path, dataset)
        return study, dataset, self.released

    def dataset(self, study: Study) -> tables.Dataset:
        """Read the data of a study from their source; those of a run that goes on must be what they were.

        Args:
            study: what to run.

        Returns:
            The data set.

        Raises:
            DataError: when the rows are not where they were, or not what they were.
        """
        return saved_rows.data_again(study, self.path)

    def check_rows(self, division: CertificateSplit) -> None:
        """Check that the rows reserved before are not used for training.

        Args:
            division: of the data as they are today.

        Raises:
            DataError: naming the first client that has other rows.
        """
        if (self.path / saved_rows.ROWS).is_file():  # else they follow from the rows, which are unchanged
            held_rows.check(self.path, division)

    def history(self) -> TrainingHistory:
        """Read which clients ever took part.

        Returns:
            The history; empty before the first round.

        Raises:
            DataError: when it cannot be read.
        """
        return TrainingHistory.read(self.path, self._saved is not None)

    def scaling(self, dataset: tables.Dataset) -> Shared | None:
        """Read how columns were scaled.

        Args:
            dataset: gives the columns.

        Returns:
            What all clients' scaling has in common; None before the first round, when the training rows settle it.

        Raises:
            DataError: when it cannot be read, or is of other columns.
        """
        return None if self._saved is None else study_scaling.read(self.path, dataset)

    def restore(self, method: AnyMethod, clients: ClientBatch, study: Study) -> FederationState:
        """Give the state in which a run goes on.

        Args:
            method: the algorithm.
            clients: rows of all clients of today.
            study: what to run.

        Returns:
            The newest intact round, with its states given to today's clients by id; the start without one.

        Raises:
            CheckpointError: when what was saved is no state of this method.
        """
        saved = self._saved
        if saved is None:
            return federation_state.start(method, clients, study.plan)
        with checkpoint.meant(saved):
            return _restored(method, clients, study, saved)

    def rounds(self, last: int) -> tuple[RoundRecord, ...]:
        """Read the records of the rounds.

        Args:
            last: the round after which they are left out.

        Returns:
            The records in their order.

        Raises:
            DataError: naming the line that cannot be read.
        """
        return tuple(record for record in results_rounds.read_rounds(self.path) if record.round <= last)

    def begin(self, settled: Settled) -> None:
        """Write the inputs of a run but its scaling, by which it is known whoever pays for that.

        Args:
            settled: study and rows.
        """
        study, dataset = settled.study, settled.dataset
        if study.report.keep == "all":
            held_rows.save(self.path, settled.division)  # before the data: where they are, this is looked for
        # of fewer rounds: they say that it is over
        put(self.path, dict.fromkeys(("metrics.json", run_failures.FILE, pages.FILE, run_warnings.FILE)))
        if settled.notes:
            choice_file.remember(self.path, settled.notes)  # first: who resumes this study must find the choice
        own = {origins.KEY: used} if (used := origins.used(study)) else {}
        about = environment(device_of(study)) | {"seed": study.seed, "data": provenance(dataset)} | own
        text = json.dumps(about, indent=1, default=str) + "\n"
        put(self.path, {"study.toml": study.to_toml().encode(), "environment.json": text.encode()})
        saved_rows.save(self.path, study, dataset)
        settled.history.save(self.path)

    def open(self, settled: Settled, last: int) -> list[RoundRecord]:
        """Write the inputs of a run, before its first round.

        Args:
            settled: study, rows and scaling.
            last: rounds that are finished; the records of later ones are dropped.

        Returns:
            The records of the rounds that are finished.

        Raises:
            CheckpointError: when a file cannot be written.
        """
        study_scaling.save(self.path, settled.shared, settled.dataset)
        self.begin(settled)
        return list(results_rounds.truncate_rounds(self.path, last))

    def listen(self) -> AbstractContextManager[StopRequest | stop.StopSignal]:
        """Note signals that ask the run to stop after its round."""
        return stop.StopSignal()

    def append(self, record: RoundRecord) -> None:
        """Add the record of a round; see `results.rounds.append_round`."""
        results_rounds.append_round(self.path, record)

    def save(self, study: Study, clients: ClientBatch, state: FederationState, released: int | None) -> None:
        """Save a round, so that the run can go on after it.

        Args:
            study: what is run.
            clients: rows of all clients.
            state: after the round.
            released: how many releases of a private run the state has seen; None of a run that is not private.

        Raises:
            CheckpointError: when it cannot be written.
        """
        kept = Kept.of(state.kept, clients.clients)
        known = kept.present or (0,)
        own = kept.gathered(known)
        flat = tensors.leaves({**state.server_side, "clients": own})
        partly = len(known) < clients.clients and bool(tensors.leaves(own))  # the others have never taken part
        meta = SavedMeta(
            study.table(),
            clients.ids,
            clients.names,
            tuple(clients.ids[k] for k in known) if partly else None,
            state.watch,
            origins.used(study),
            self.fell_back,
            released,
        )
        checkpoint.save(self.path, state.round, flat, meta.to_json())

    def end(self, saved: int, error: PacBayesFLError) -> None:
        """Write down that a run has ended in an error, which would come again.

        Args:
            saved: the last round that held.
            error: that ended it.
        """
        put(self.path, {run_failures.FILE: run_failures.to_json(saved, error)})

    def finish(self, result: Result, page: bool = True, said: Sequence[str] = ()) -> None:
        """Write the results of a run, and then their page: whatever becomes of that, the run is finished.

        Args:
            result: of the run.
            page: whether people get a page, `report.html`.
            said: what the run warned of.

        Raises:
            StudyError, CheckpointError: as `Result.save`.

        Warns:
            UserWarning: when the page could not be written, with the reason.
        """
        put(self.path, {run_warnings.FILE: run_warnings.to_json(said), pages.FILE: None})
        result.save(self.path)
        if page:
            try:
                pages.write_run(self.path, result)
            except Exception as error:  # whatever it is: hours of training do not end in the error of a page
                what = f"no report.html: {one_line(f'{type(error).__name__}: {error}')}"
                again = f"the run is finished and saved; `pacbayes-fl report {self.path}` writes it"
                warnings.warn(f"{what} ({again})", stacklevel=caller_stacklevel())


class StopRequest(NamedTuple):
    """Whether a run was asked to stop; without a folder nobody asks, and signals end the process as usual."""

    requested: bool = False


class NoFolder:
    """The twin of `RunFolder` for a run that is kept nowhere: it has no past, and nothing is written."""

    path = None
    fell_back: Sequence[str] = ()
    released = 0

    def lock(self) -> AbstractContextManager[object]:
        """There is nothing to keep others out of."""
        return nullcontext()

    def recall(self, study: Study, resume: bool) -> tuple[Study, JsonMapping]:
        """Give the study back: nothing was chosen before."""
        return study, MappingProxyType({})

    def dataset(self, study: Study) -> tables.Dataset:
        """Read the data of a study from their source."""
        return load(study)

    def check_rows(self, division: CertificateSplit) -> None:
        """Any division will do."""

    def history(self) -> TrainingHistory:
        """Nobody has taken part before."""
        return TrainingHistory()

    def scaling(self, dataset: tables.Dataset) -> Shared | None:
        """Nothing is settled: the training rows settle it."""
        return None

    def restore(self, method: AnyMethod, clients: ClientBatch, study: Study) -> FederationState:
        """Give the start."""
        return federation_state.start(method, clients, study.plan)

    def rounds(self, last: int) -> tuple[RoundRecord, ...]:
        """There are no rounds before those of this run."""
        return ()

    def begin(self, settled: Settled) -> None:
        """Nothing is written."""

    def open(self, settled: Settled, last: int) -> list[RoundRecord]:
        """Begin without records."""
        return []

    def listen(self) -> AbstractContextManager[StopRequest | stop.StopSignal]:
        """Leave signals alone."""
        return nullcontext(StopRequest())

    def append(self, record: RoundRecord) -> None:
        """The record is in the result alone."""

    def save(self, study: Study, clients: ClientBatch, state: FederationState, released: int | None) -> None:
        """The state is in memory alone."""

    def end(self, saved: int, error: PacBayesFLError) -> None:
        """The error tells whoever asked for the run."""

    def finish(self, result: Result, page: bool = True, said: Sequence[str] = ()) -> None:
        """The result is in memory alone."""


Folder = RunFolder | NoFolder


def folder_of(path: Path | str | None) -> Folder:
    """The run folder, or its counterpart in memory.

    Args:
        path: of its folder; None where nothing is to be written.

    Returns:
        The folder, or its twin.
    """
    return NoFolder() if path is None else RunFolder(Path(path))


def _restored(method: AnyMethod, clients: ClientBatch, study: Study, saved: Checkpoint) -> FederationState:
    """Match a saved round to today's clients, by id."""
    meta = SavedMeta.of(saved)
    _check_finite(saved, meta)
    fresh = federation_state.start(method, clients, study.plan)
    flat = {name: tensor.to(clients.x.device) for name, tensor in saved.tensors.items()}
    server, average = federation_state.restored(fresh.server, flat)
    states = {name: tensor for name, tensor in flat.items() if name.startswith("clients")}
    known_before = tensors.unleaves({"clients": fresh.kept.select((0,))}, states, exact=False)["clients"]
    match = checkpoint.match_clients(meta.stateful, clients.ids)
    target, source, seen = match.target, match.source.to(clients.x.device), set(meta.ids)
    known = fresh.kept.after(
        (target[own], tensors.select(known_before, source[own])) for own in tensors.client_blocks(len(target))
    )
    if joined := [k for k, client in enumerate(clients.ids) if client not in seen]:
        today = Kept.start(method, method.broadcast(server), clients)  # of today's server
        known = known.after([(joined, today.select(joined))])
    return FederationState(server, known, saved.round, meta.watch, average)


def _check_finite(saved: Checkpoint, meta: SavedMeta) -> None:
    """Refuse a state of which a number is not finite, which no run saves: whatever followed from it would be none."""
    for name, tensor in saved.tensors.items():
        if not tensor.is_floating_point() or not tensor.numel() or checkpoint.all_finite(tensor):
            continue
        whose = tensor.isfinite().reshape(len(tensor), -1).all(1) if name.startswith("clients") else None
        client = None if whose is None else meta.name_of(meta.stateful[int((~whose).nonzero()[0])])
        hint = f"restore checkpoints/round_{saved.round:06d} from a copy, or remove it: the round before is then used"
        raise CheckpointError(f"the saved state is not finite: {name}", client=client, round=saved.round, hint=hint)
