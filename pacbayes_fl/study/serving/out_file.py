"""Files that commands write beside a run: none takes the place of one that was read, or of one of the run."""

from __future__ import annotations

import contextlib
import os
import tomllib
from pathlib import Path

from pacbayes_fl.errors import StudyError
from pacbayes_fl.results.folder import FILES, FOLDERS, OTHERS, RELEASED


def check_apart(out: Path, folder: Path, *read: Path | None) -> None:
    """Refuse to write to a file that a command reads, or that a run or a release is made of.

    Args:
        out: the file to write.
        folder: of the run, or of the release.
        *read: files of rows that the command is given; None for none.

    Raises:
        StudyError: saying what the file is.
    """
    for path in filter(None, (*read, _source(folder))):
        with contextlib.suppress(OSError):  # one of them is not there
            if os.path.samefile(out, path):
                raise StudyError(f"{out} holds the rows that are read", hint="another --out")
    home, place = folder.resolve(), out.resolve()
    if place.is_relative_to(home):
        name = place.relative_to(home).parts[0]
        if (folder / RELEASED).is_file() or name in (*FILES, *FOLDERS, *OTHERS):
            raise StudyError(f"{out} is a file of what {folder} holds", hint="another --out")


def _source(folder: Path) -> Path | None:
    """Find the rows of a run's study, where they are a file."""
    try:
        study = tomllib.loads((folder / "study.toml").read_text("utf-8"))
        source = study["data"]["source"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Path(os.path.expandvars(source)) if isinstance(source, str) else None
