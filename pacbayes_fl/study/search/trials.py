"""The trials of a search, on disk after each of them: a search that was stopped goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pacbayes_fl.errors import CheckpointError, DataError, StudyError
from pacbayes_fl.federation import checkpoint
from pacbayes_fl.files import JsonMapping, JsonTable, refuse_link, verified, with_checksum
from pacbayes_fl.results.folder import write_atomic

FORMAT_VERSION: Final = 1
_MAY_CHANGE: Final = ("budget", "device", "threads", "checkpoint_every", "out")


@dataclass(frozen=True)
class Trial:
    """One configuration and its cross-validated scores.

    Args:
        values: dotted key -> value.
        scores: mean over clients of every score, over all held-out rows; infinite where training failed.
        failure: why it failed, or nothing.
    """

    values: JsonMapping
    scores: Mapping[str, float]
    failure: str = ""


class Trials:
    """Trials of a search by method and configuration, in a file of their own.

    Args:
        path: the file; nothing is written where it is None.
        asked: what is searched, as JSON: what may not differ between two starts, but for "budget".
        resume: go on with the trials that the file holds.

    Raises:
        StudyError: when the file holds a search that was not finished and `resume` is not asked for.
        CheckpointError: when it holds another search, naming what differs.
        DataError: when it is damaged.
    """

    def __init__(self, path: Path | None = None, asked: JsonMapping | None = None, resume: bool = False) -> None:
        """Read what there is."""
        self.path, self._asked = path, dict(asked or {})
        self._of: dict[str, list[list[Trial]]] = {}
        self._left: bytes | None = None  # the file as this search has seen it last
        if path is None:
            return
        refuse_link(path)
        if path.exists():
            saved, self._left = _read(path), path.read_bytes()
            if resume:
                checkpoint.check_study(saved["asked"], self._asked, _MAY_CHANGE, what="search")
                self._of = {name: [[*map(_trial, one)] for one in each] for name, each in saved["trials"].items()}
            elif not saved["finished"]:
                hint = "go on with --resume, remove it, or choose another --out"
                raise StudyError(f"{path} holds the trials of a search that was not finished", hint=hint)

    def known(self, method: str, number: int, values: JsonMapping) -> list[Trial] | None:
        """Give the trials of a configuration that were made before.

        Args:
            method: its name.
            number: of the configuration, from 0.
            values: of the configuration.

        Returns:
            A trial for every number of rounds; None where there are none yet.

        Raises:
            DataError: when they are of other values.
        """
        trials = self._of.get(method, [])
        if number >= len(trials):
            return None
        if any(trial.values.get(key) != value for trial in trials[number] for key, value in values.items()):
            what = f"{self.path}: configuration {number} of {method} is not the one that the search draws"
            raise DataError(what, hint="remove it, or choose another --out")
        return trials[number]

    def keep(self, method: str, trials: Sequence[Trial]) -> None:
        """Write down the trials of one more configuration.

        Args:
            method: its name.
            trials: one for every number of rounds.

        Raises:
            CheckpointError: when they cannot be written, or another search has written its own since.
        """
        self._of.setdefault(method, []).append(list(trials))
        self._write(finished=False)

    def finish(self) -> None:
        """Write down that nothing is left to be tried."""
        self._write(finished=True)

    def discard_failed(self) -> None:
        """Take the file away where no trial has come to anything: there is nothing to go on from."""
        tried = [trial for trials in self._of.values() for each in trials for trial in each]
        if self.path is not None and tried and all(trial.failure for trial in tried):
            self._refuse_other(self.path)
            self.path.unlink(missing_ok=True)
            self._left = None

    def _refuse_other(self, path: Path) -> None:
        """Leave alone what another search has written since."""
        if (path.read_bytes() if path.exists() else None) != self._left:
            hint = "wait for it to end, or choose another --out"
            raise CheckpointError(f"{path} was written by another search meanwhile", cause="in use", hint=hint)

    def __len__(self) -> int:
        """Count the configurations that were tried."""
        return sum(map(len, self._of.values()))

    def _write(self, finished: bool) -> None:
        if self.path is None:
            return
        body = {
            "format_version": FORMAT_VERSION,
            "asked": self._asked,
            "finished": finished,
            "trials": {name: [[_plain(one) for one in each] for each in trials] for name, trials in self._of.items()},
        }
        text = json.dumps(with_checksum(body), indent=1, allow_nan=False) + "\n"
        self._refuse_other(self.path)
        write_atomic(self.path, text.encode())
        self._left = text.encode()


def _plain(trial: Trial) -> list[object]:
    """Give a trial as JSON can hold it, numbers to the last bit and those that are not finite as text."""
    return [dict(trial.values), {name: repr(float(value)) for name, value in trial.scores.items()}, trial.failure]


def _trial(saved: Sequence[Any]) -> Trial:
    values, scores, failure = saved
    known = {key: _tuples(value) for key, value in values.items()}
    return Trial(known, {name: float(value) for name, value in scores.items()}, failure)


def _tuples(value: object) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _read(path: Path) -> JsonTable:
    hint = "remove it and search anew, or choose another --out"
    try:
        body = verified(path.read_text("utf-8"))
        version = body["format_version"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{path} is damaged: it holds the trials of a search", hint=hint) from error
    if version > FORMAT_VERSION:
        what = f"{path} has format {version}, this pacbayes_fl reads formats up to {FORMAT_VERSION}"
        raise DataError(what, hint="update pacbayes_fl")
    return body
