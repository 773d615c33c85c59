"""What a run has chosen by held-out rows, as its folder keeps it: a run that goes on need not choose again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from pacbayes_fl import settings
from pacbayes_fl.errors import UNREADABLE, DataError
from pacbayes_fl.files import JsonMapping, JsonTable
from pacbayes_fl.results.manifest import put
from pacbayes_fl.study.config.choices import ROUNDS, every, kind_of, with_value
from pacbayes_fl.study.file import Study

FILE: Final = "choice.json"
"""What a run folder calls its choice."""


def remember(folder: Path, notes: JsonMapping) -> None:
    """Write a choice into a run folder.

    Args:
        folder: of the run.
        notes: what `held_out.choose` says.

    Raises:
        CheckpointError: when it cannot be written.
    """
    put(folder, {FILE: (json.dumps(notes, indent=1) + "\n").encode()})


def recall(study: Study, folder: Path) -> tuple[Study, JsonTable]:
    """Take the choice that a run folder holds.

    Args:
        study: any; one that leaves nothing to be chosen is given back.
        folder: of a run.

    Returns:
        The study with what was chosen, and what labels should say of it, if anything.

    Raises:
        DataError: when the choice cannot be read.
    """
    if not study.held_out or not (folder / FILE).is_file():
        return study, {}
    notes = kept(folder)
    try:
        for asked in study.held_out:
            value = notes[asked.key]["chosen"]
            read: object = settings.parse(
                kind_of(study, asked), {asked.option: value}, f"{folder / FILE}:"
            )  # of the option's type
            study = with_value(study, asked, getattr(read, asked.option))
        return study, notes
    except UNREADABLE as error:
        raise _unreadable(folder, error) from error


def kept(folder: Path | None) -> JsonTable:
    """Read how the options of a run were chosen.

    Args:
        folder: of the run; None of one that is kept nowhere.

    Returns:
        What labels say of it, by key of the option; nothing where nothing was left open.

    Raises:
        DataError: when the choice cannot be read.
    """
    if folder is None or not (folder / FILE).is_file():
        return {}
    try:
        return dict(json.loads((folder / FILE).read_text("utf-8")))
    except UNREADABLE as error:
        raise _unreadable(folder, error) from error


def _unreadable(folder: Path, error: Exception) -> DataError:
    return DataError(f"{folder / FILE} cannot be read: {error}", hint="choose another --out")


def errors_of(notes: JsonMapping) -> Tensor | None:
    """Take the residuals of the held-out rows that chose the number of rounds.

    Args:
        notes: of a choice.

    Returns:
        Their histogram [BINS], float64; None where rounds were not chosen, or errors are not given their shape.
    """
    note = notes.get(ROUNDS.key)
    errors = note.get("errors") if isinstance(note, Mapping) else None
    return None if errors is None else torch.tensor(errors, dtype=torch.float64)


def without_choice(study: Study, folder: Path) -> Study:
    """Undo a run folder's choice: rows reserved from now on have influenced it.

    Args:
        study: of the run, with what was chosen.
        folder: of the run.

    Returns:
        The study as it was before the choice; the same where nothing was chosen.

    Raises:
        DataError: when the choice cannot be read.
    """
    notes = kept(folder)
    settled = [one for one in every(study.recipe) if one.key in notes]
    for asked in settled:
        study = with_value(study, asked, "held-out")
    return study
