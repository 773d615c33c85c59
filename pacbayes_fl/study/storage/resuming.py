"""Resuming or opening a run: its folder must be complete and belong to the study."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from pacbayes_fl import files
from pacbayes_fl.errors import CheckpointError, DamageWarning, DataError, StudyError, caller_stacklevel
from pacbayes_fl.federation import checkpoint
from pacbayes_fl.files import JsonMapping
from pacbayes_fl.results import manifest as results_manifest
from pacbayes_fl.results import run_failures
from pacbayes_fl.results.folder import COMPARISON, FILES, RELEASED
from pacbayes_fl.study.config.instances import NO_INSTANCES, Instances
from pacbayes_fl.study.file import Study, read_table
from pacbayes_fl.study.rows import held_rows, saved_rows
from pacbayes_fl.study.search import choice_file
from pacbayes_fl.study.storage import origins
from pacbayes_fl.study.storage.saved_meta import SavedMeta

_ANOTHER: Final = "choose another --out"
_FINISH: Final = "finish the run with --resume"
_SIGNS: Final = ("study.toml", held_rows.HISTORY, "checkpoints", "metrics.json")
_WATCHED: Final = ("checkpoints/", "privacy.json")  # have checksums and errors of their own
_NEEDED: Final = ("rounds.jsonl", held_rows.HISTORY)
_OPENED: Final = (*_NEEDED, saved_rows.ROWS, saved_rows.PRINTS, "scaling.json", held_rows.FILE)


class SavedRun(NamedTuple):
    """Saved state of a run to be resumed.

    Args:
        study: that is asked for, with what the run has chosen.
        notes: how that was chosen.
        saved: its newest round that is intact; None where none was saved.
        fell_back: newer rounds that were damaged, now or before, and which round stood in for them.
    """

    study: Study
    notes: JsonMapping = MappingProxyType({})
    saved: checkpoint.Checkpoint | None = None
    fell_back: Sequence[str] = ()


def holds_run(folder: Path) -> bool:
    """Whether a folder holds a run, finished, unfinished or damaged."""
    return any((folder / name).exists() for name in _SIGNS)


def refuse_taken(folder: Path) -> None:
    """Refuse a folder of a release or of a comparison, before a run is written into it.

    Args:
        folder: any.

    Raises:
        StudyError: when it is one.
    """
    if (folder / RELEASED).is_file():
        raise StudyError(f"{folder} is a release of a run, and no run is kept in it", hint=_ANOTHER)
    if (folder / COMPARISON).is_file():
        raise StudyError(f"{folder} holds a comparison, whose runs have folders of their own in it", hint=_ANOTHER)


def refuse_run(folder: Path) -> None:
    """Refuse a folder that holds a run or has left one, before a comparison is written into it.

    Args:
        folder: any.

    Raises:
        StudyError: when it does.
    """
    if holds_run(folder) or (folder / RELEASED).is_file():
        raise StudyError(f"{folder} holds a run, which a comparison would hide", hint=_ANOTHER)


def recall(study: Study, folder: Path | None, resume: bool) -> SavedRun:
    """Read the saved run of a study, and check that it is complete and of that study.

    Args:
        study: what to run.
        folder: of the run, locked by the caller; None where nothing is written.
        resume: whether a run that is there may go on.

    Returns:
        What there is; only the study where there is no run.

    Raises:
        StudyError: when there is a run and `resume` is not asked for, it has finished more rounds than that, or a file
            of the user's has changed.
        CheckpointError: when it is of another study, or no round is intact.
        DataError: when a file that the run cannot write again was altered or lost.

    Warns:
        DamageWarning: of other files that were altered or lost, and of rounds that are damaged.
    """
    if folder is None or not holds_run(folder):
        return SavedRun(study)
    if not resume:
        usual = f"{folder} holds a run already"
        what, hint = run_failures.unfinished(folder, usual, "go on with --resume, or choose another --out")
        raise StudyError(what, hint=hint)
    saved = _newest(folder)
    results_manifest.regain(folder)
    kept = [name for name, content in FILES.items() if not content.again or (saved is None and name == "study.toml")]
    results_manifest.verify(folder, kept, _WATCHED)
    _complete(folder, saved)
    _check_own_files(folder, saved, study.instances)
    study, notes = choice_file.recall(study, folder)
    toml = folder / "study.toml"
    if saved is None:
        before = Study.from_table(read_table(toml)[0], toml.name, instances=study.instances)
    else:
        before = study_of(saved, folder, study.instances)
    before = _with_source_of(before, study)
    checkpoint.check_study(before.table(), study.table())  # resolved anew: a key of later versions has its default
    if saved is None:
        return SavedRun(study, notes)
    if saved.round > study.plan.rounds:
        raise StudyError(f"{folder} has finished round {saved.round}, and rounds is {study.plan.rounds}")
    return SavedRun(study, notes, saved, _fallen(saved))


def newest_round(folder: Path, instances: Instances = NO_INSTANCES) -> tuple[checkpoint.Checkpoint, Sequence[str]]:
    """Read the newest intact round of a run for predictions, and check the other files that they need.

    Args:
        folder: of the run.
        instances: objects that a program gives now.

    Returns:
        The round, and the newer ones for which it stands in.

    Raises:
        CheckpointError: when there is no intact round.
        StudyError: when a file of the user's has changed since the run was trained.
        DataError: when a file was altered or lost on which predictions or certificates rest.

    Warns:
        DamageWarning: of other files that were altered or lost, and of rounds that are damaged.
    """
    saved = _newest(folder)
    if saved is None:
        raise CheckpointError(f"{folder} holds no saved round", hint=run_failures.next_step(folder, _FINISH))
    results_manifest.verify(folder, _OPENED, _WATCHED)
    _complete(folder, saved)
    _check_own_files(folder, saved, instances)
    return saved, _fallen(saved)


def _with_source_of(before: Study, study: Study) -> Study:
    """Let a run that was moved with its table, and a ledger of several runs, go on: what is in them is compared."""
    if files.moved(Path(before.data.source), Path(study.data.source)):
        before = replace(before, data=replace(before.data, source=study.data.source))
    was, now = before.privacy.ledger, study.privacy.ledger
    if was is not None and now is not None and files.moved(files.expanded(was), files.expanded(now)):
        before = replace(before, privacy=replace(before.privacy, ledger=now))
    return before


def study_of(saved: checkpoint.Checkpoint, folder: Path, instances: Instances = NO_INSTANCES) -> Study:
    """Give the study that a round was saved with, whatever became of study.toml and of where the user's files are.

    Args:
        saved: the round.
        folder: of the run.
        instances: objects that a program gives now.

    Returns:
        The study.

    Raises:
        StudyError: when it names a file of the user's that is not to be found.
        CheckpointError: when the round holds no study.
    """
    meta = SavedMeta.of(saved)
    with checkpoint.meant(saved):
        table = origins.relocated(meta.study, meta.own_files, folder)
        return Study.from_table(table, str(folder), instances=instances)


def _check_own_files(folder: Path, saved: checkpoint.Checkpoint | None, instances: Instances) -> None:
    """Refuse files and objects of the user's that have changed; before the first round the environment has them."""
    if saved is not None:
        origins.check(SavedMeta.of(saved).own_files, folder, instances)
    else:
        origins.check_folder(folder, instances)


def _newest(folder: Path) -> checkpoint.Checkpoint | None:
    """Read the newest intact round; none may be there, but not where some were saved."""
    saved, manifest = checkpoint.load(folder), results_manifest.read(folder)
    if saved is None and manifest is not None and any(name.startswith("checkpoints/r") for name in manifest.files):
        what = f"{folder / 'checkpoints'} is missing: it holds the state of the run after its last rounds"
        raise CheckpointError(what, hint="restore it from a copy, or run the study anew with another --out")
    return saved


def _complete(folder: Path, saved: checkpoint.Checkpoint | None) -> None:
    """Refuse a run with a saved round that has lost what no other file holds, whatever its manifest says."""
    for name in _NEEDED if saved is not None else ():
        if not (folder / name).is_file():
            hint = "restore it from a copy, or run the study anew with another --out"
            raise DataError(f"{folder / name} is missing: it holds {FILES[name].holds}", hint=hint)


def _fallen(saved: checkpoint.Checkpoint) -> Sequence[str]:
    for message in saved.warnings:
        warnings.warn(message, DamageWarning, stacklevel=caller_stacklevel())
    return tuple(dict.fromkeys((*SavedMeta.of(saved).fell_back, *saved.warnings)))
