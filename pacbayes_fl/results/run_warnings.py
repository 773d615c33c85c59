"""What a run warned of, kept in its folder: on a terminal it is gone by the time somebody reads the numbers."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TextIO

from pacbayes_fl.errors import UNREADABLE, one_line

FILE: Final = "warnings.json"
"""The file of a run folder with what the run warned of."""


@contextmanager
def heard() -> Iterator[list[str]]:
    """Write down warnings while they are shown as ever.

    Yields:
        Their texts in order, each once; it grows. What is ignored or was shown before, as filters say, is not among
        them.
    """
    said, usual = list[str](), warnings.showwarning

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if (text := one_line(str(message))) not in said:
            said.append(text)
        usual(message, category, filename, lineno, file, line)

    warnings.showwarning = show
    try:
        yield said
    finally:
        warnings.showwarning = usual


def to_json(said: Sequence[str]) -> bytes | None:
    """Write warnings down.

    Args:
        said: their texts.

    Returns:
        The contents of the file; None where there is nothing to say.
    """
    return (json.dumps({"warnings": list(said)}, indent=1) + "\n").encode() if said else None


def read(folder: Path) -> list[str]:
    """Read what a run warned of.

    Args:
        folder: of the run.

    Returns:
        The texts; none where the file is missing or cannot be read, which the manifest's check tells.
    """
    try:
        return [str(text) for text in json.loads((folder / FILE).read_text("utf-8"))["warnings"]]
    except UNREADABLE:
        return []
