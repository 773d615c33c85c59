"""The folder of a run in several processes: all read it, the first one writes it, and each saves its clients."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import TracebackType

from pacbayes_fl.data import tables
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.scaling import Shared
from pacbayes_fl.errors import PacBayesFLError, StudyError
from pacbayes_fl.federation import shards
from pacbayes_fl.federation.client_states import Kept
from pacbayes_fl.federation.federation_state import FederationState
from pacbayes_fl.federation.ranks import Ranks, opened
from pacbayes_fl.federation.stop import StopSignal
from pacbayes_fl.files import JsonMapping, JsonTable
from pacbayes_fl.methods.base import AnyMethod
from pacbayes_fl.results.records import Result
from pacbayes_fl.results.rounds import RoundRecord
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.rows.held_rows import CertificateSplit, TrainingHistory
from pacbayes_fl.study.storage import origins
from pacbayes_fl.study.storage.run_folder import Folder, RunFolder, Settled, folder_of
from pacbayes_fl.study.storage.saved_meta import SavedMeta


class RankFolder:
    """The folder of a run as one of its processes sees it; what stands there in the end is that of one process.

    Args:
        path: of the folder, which all processes see.
        ranks: the processes.
    """

    def __init__(self, path: Path, ranks: Ranks) -> None:
        """Take a path; nothing is read yet."""
        self.path, self.ranks, self._here = path, ranks, RunFolder(path)

    @property
    def fell_back(self) -> Sequence[str]:
        """Newer rounds that were damaged, and which round was used in their place."""
        return self._here.fell_back

    @property
    def released(self) -> int:
        """No private release: see `check`."""
        return 0

    def lock(self) -> AbstractContextManager[object]:
        """Keep other runs out of the folder: the first process does it for all."""
        return self._here.lock() if self.ranks.first else nullcontext()

    def recall(self, study: Study, resume: bool) -> tuple[Study, JsonMapping]:
        """Find out where a run of a study goes on, after the first process has put the folder in order.

        Raises:
            StudyError: also of a private study.
        """
        check(study)
        return self.ranks.first_then(lambda: self._here.recall(study, resume))

    def dataset(self, study: Study) -> tables.Dataset:
        """Read the data of a study from their source."""
        return self._here.dataset(study)

    def check_rows(self, division: CertificateSplit) -> None:
        """Check that the rows reserved before are not used for training."""
        self._here.check_rows(division)

    def history(self) -> TrainingHistory:
        """Read which clients ever took part."""
        return self._here.history()

    def scaling(self, dataset: tables.Dataset) -> Shared | None:
        """Read how columns were scaled."""
        return self._here.scaling(dataset)

    def restore(self, method: AnyMethod, clients: ClientBatch, study: Study) -> FederationState:
        """Give the state in which a run goes on, with the states of the clients of this process."""
        state = self._here.restore(method, clients, study)
        kept = Kept.of(state.kept, clients.clients)
        return state._replace(kept=kept.only(shards.own_positions(self.ranks, clients)))

    def rounds(self, last: int) -> tuple[RoundRecord, ...]:
        """Read the records of the rounds."""
        return self._here.rounds(last)

    def begin(self, settled: Settled) -> None:
        """Write the inputs of a run but its scaling."""
        if self.ranks.first:
            self._here.begin(settled)
        self.ranks.share(None)

    def open(self, settled: Settled, last: int) -> list[RoundRecord]:
        """Write the inputs of a run, and give the records of the rounds that are finished."""
        if self.ranks.first:
            records = self._here.open(settled, last)
            self.ranks.share(None)
            return records
        self.ranks.share(None)
        return list(self.rounds(last))

    def listen(self) -> AbstractContextManager[CommonStop]:
        """Note signals; all processes stop after the round in which the sum tells that one has heard one."""
        return CommonStop(self.ranks)

    def append(self, record: RoundRecord) -> None:
        """Add the record of a round."""
        if self.ranks.first:
            self._here.append(record)

    def save(self, study: Study, clients: ClientBatch, state: FederationState, released: int | None) -> None:
        """Save a round: each process the states of its clients."""

        def meta(saved: Sequence[int] | None) -> JsonTable:
            own = None if saved is None else tuple(clients.ids[k] for k in saved)
            about = clients.ids, clients.names, own, state.watch, origins.used(study), self.fell_back, released
            return SavedMeta(study.table(), *about).to_json()

        shards.save(self.path, clients, state, meta, self.ranks)

    def end(self, saved: int, error: PacBayesFLError) -> None:
        """Write down that a run has ended in an error, which would come again."""
        if self.ranks.first:
            self._here.end(saved, error)

    def finish(self, result: Result, page: bool = True, said: Sequence[str] = ()) -> None:
        """Write the results of a run, and their page."""
        if self.ranks.first:
            self._here.finish(result, page, said)


AnyFolder = Folder | RankFolder


class CommonStop:
    """Whether any process was asked to stop, as of the last round."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks, self._signal = ranks, StopSignal(patient=True)

    @property
    def requested(self) -> bool:
        """Whether all are to finish the round, save and leave."""
        return self._ranks.stopping

    def __enter__(self) -> CommonStop:
        self._ranks.signal = self._signal.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._signal.__exit__(kind, error, trace)


def check(study: Study) -> None:
    """Refuse a study that is for one process.

    Args:
        study: what to run.

    Raises:
        StudyError: of a private one.
    """
    if study.privacy.epsilon is not None:
        what = "[privacy] is for one process: its ledger, cohorts and noise have one owner"
        raise StudyError(what, hint="run it without torchrun")


def folder_for(path: Path | str | None, ranks: Ranks | None) -> AnyFolder:
    """The run folder of a process.

    Args:
        path: of its folder; None where nothing is to be written.
        ranks: the processes of the run; None of one alone.

    Returns:
        The folder, or its twin.
    """
    return folder_of(path) if ranks is None or path is None else RankFolder(Path(path), ranks)


__all__ = ["AnyFolder", "CommonStop", "RankFolder", "Ranks", "check", "folder_for", "opened"]
