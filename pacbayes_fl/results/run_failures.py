"""Runs that ended in an error before their last round: the same error would come again, so that none goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final, NamedTuple

from pacbayes_fl.errors import PacBayesFLError

FILE: Final = "ended.json"
"""The file of a run folder that says so."""
_ANEW: Final = "start anew"


class Ended(NamedTuple):
    """How a run ended.

    Args:
        saved: the last round that held; its state is in the folder.
        why: the error, in words.
        advice: what the error says to do; possibly nothing.
    """

    saved: int
    why: str
    advice: str = ""

    @property
    def hint(self) -> str:
        """What to do instead of going on."""
        anew = f"{_ANEW} with another --out"
        advice = self.advice if _ANEW in self.advice else "; ".join(filter(None, (self.advice, _ANEW)))
        there = advice.replace(_ANEW, anew)
        saved = f"predict, join and certify read round {self.saved}, which is saved" if self.saved else "no round held"
        return f"{there}; {saved}"


def to_json(saved: int, error: PacBayesFLError) -> bytes:
    """Write down how a run ended.

    Args:
        saved: the last round that held.
        error: that ended it.

    Returns:
        The contents of the file.
    """
    hint = error.hint or ""
    why = str(error).removesuffix(f" ({hint})")
    advice = "" if hint.startswith("nothing was changed") else hint
    return (json.dumps(Ended(saved, why, advice)._asdict(), indent=1) + "\n").encode()


def read(folder: Path) -> Ended | None:
    """Read how a run ended.

    Args:
        folder: of the run.

    Returns:
        What the file says; None for a run that was not ended by an error, or whose file cannot be read.
    """
    try:
        result = json.loads((folder / FILE).read_text("utf-8"))
        return Ended(int(result["saved"]), str(result["why"]), str(result["advice"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def ended_run(folder: Path) -> Path | None:
    """Find the run that ended in an error.

    Args:
        folder: of a run, or of a comparison.

    Returns:
        The folder of the run, in a comparison of the first by name; None where there is none.
    """
    return next((one for one in (folder, *sorted(folder.glob("*-seed*"))) if read(one) is not None), None)


def next_step(folder: Path, usual: str) -> str:
    """The remedy for an unfinished run or comparison.

    Args:
        folder: of it.
        usual: hint where it can go on.

    Returns:
        The hint.
    """
    run = ended_run(folder)
    ended = None if run is None else read(run)
    if run is None or ended is None:
        return usual
    whose = "" if run == folder else f"{run.name}: "
    return f"{whose}{ended.hint}"


def unfinished(folder: Path, what: str, usual: str) -> tuple[str, str]:
    """The reason why a run or a comparison has no results.

    Args:
        folder: of it.
        what: the folder is, where it can go on.
        usual: hint in that case.

    Returns:
        Message and hint of an error.
    """
    run = ended_run(folder)
    ended = None if run is None else read(run)
    if run is None or ended is None:
        return what, usual
    return f"{run} holds a run that ended in an error: {ended.why}", next_step(folder, usual)
