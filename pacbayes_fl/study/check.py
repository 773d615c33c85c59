"""Checks before the first round, for several studies before the first of them runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from pacbayes_fl.data import tables
from pacbayes_fl.errors import PacBayesFLError
from pacbayes_fl.federation import engine, federation_state
from pacbayes_fl.federation.federation_state import FederationState
from pacbayes_fl.federation.private import PrivateAggregator
from pacbayes_fl.privacy.outside import Rehearsal
from pacbayes_fl.study import privacy
from pacbayes_fl.study.data import load
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.method_names import as_named
from pacbayes_fl.study.prepare import prepare
from pacbayes_fl.study.rows import held_rows, scaling
from pacbayes_fl.study.rows.held_rows import TrainingHistory
from pacbayes_fl.study.search import held_out


def check(study: Study, dataset: tables.Dataset) -> PrivateAggregator | None:
    """Go through everything that a fresh run does before its first round; nothing is trained or written.

    Args:
        study: what would be run, in a folder of its own.
        dataset: its data.

    Returns:
        How its rounds would be made private, whose ledger is gone; None where they are not.

    Raises:
        PacBayesFLError: as the run would, such as when the method does not fit the data, an option the model, or a
            guarantee of privacy cannot be given.
    """
    with TemporaryDirectory() as folder, as_named(study):  # where a ledger would lie
        privacy.check(study, Path(folder))
        division = held_rows.divide(study, dataset)
        history = TrainingHistory().extended(study, dataset, division.dataset)
        if study.held_out:
            held_rows.rows_for_tuning(study, division)  # or refuse, where all are certified
            study = held_out.first(study)
        folds = history.fold_of(dataset.groups["existing"].train)
        method, groups = prepare(study, division.dataset, folds, None, Rehearsal())
        clients = groups["existing"].train
        state = federation_state.start(method, clients, study.plan)
        message = scaling.outside(study, dataset)
        moments = 0 if message is None else message.coordinates
        aggregator = privacy.open_private(study, method, state, clients, Path(folder), moments=moments)
        ended = FederationState(state.server, state.clients, study.plan.rounds)
        for _ in engine.rounds(method, clients, study.plan, ended, aggregator):
            pass  # there is no round left: it only looks at what it was given
        return aggregator


def check_all(studies: Mapping[str, Study]) -> None:
    """Check studies that are to run one after the other; data that they share are read once.

    Args:
        studies: by the name that an error is to give them.

    Raises:
        PacBayesFLError: as `check`, naming the study that could not run.
    """
    read: tuple[Study, tables.Dataset] | None = None
    for name, study in studies.items():
        with _named(name):
            if read is None or not _same_rows(read[0], study):
                read = study, load(study)
            check(study, read[1])


def _same_rows(one: Study, other: Study) -> bool:
    return (one.data, one.seed) == (other.data, other.seed) and one.instances.data is other.instances.data


@contextmanager
def _named(name: str) -> Iterator[None]:
    try:
        yield
    except PacBayesFLError as error:
        raise type(error)(f"{name} cannot run, and nothing was run yet: {error}") from error
