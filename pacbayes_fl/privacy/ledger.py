"""The ledger: what was spent is on disk before anything is released.

`RUN/privacy.json` counts the releases of a federation by their charges. A charge is written, synced and renamed into
place before its noise is even drawn: a crash in between counts a release that nobody saw, never the other way round. A
run that goes on from an older round pays for the rounds that it repeats, with fresh noise. The smallest delta that
releases were paid for with stays beside them: a larger one, as fewer clients would have by default, would make what was
spent look like less. One process at a time may write; a run holds the lock of its folder anyway.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from pacbayes_fl.errors import PrivacyError
from pacbayes_fl.privacy.accounting import Budget, Charge, Statement, epsilon, rounded, rounds_within, statement
from pacbayes_fl.privacy.mechanisms import Cohorts
from pacbayes_fl.results_manifest import put

FORMAT_VERSION: Final = 1
NAME: Final = "privacy.json"
_AHEAD: Final = 1024


class Ledger:
    """Releases of one federation, counted on disk, and the budget that stops them.

    Args:
        folder: the run folder, which exists.
        budget: what all releases may cost together, those on disk included; its delta counts where it is not larger
            than the one on disk.
        released: how many releases the state to go on with has seen; a ledger that knows of fewer was lost.
        ahead: releases that are looked ahead for at once, since one account by PLD takes a second: those that a run
            still plans, so that one account is all it needs.

    Raises:
        PrivacyError: when the ledger on disk is damaged, of a later version, or knows of fewer releases than that.
    """

    def __init__(self, folder: Path | str, budget: Budget, released: int = 0, ahead: int = _AHEAD) -> None:
        """Read what was spent."""
        self.path, self._ahead = Path(folder) / NAME, max(1, ahead)
        self._entries, delta = _read(self.path)
        self.budget = budget if delta is None else replace(budget, delta=min(budget.delta, delta))
        self._limit: tuple[Charge, int, bool] | None = None  # of one charge, how many releases in all, and may be more
        if len(self) < released:
            what = f"{self.path} knows of {len(self)} releases, the run of {released}"
            raise PrivacyError(f"{what}: what was spent is not known", hint="start anew in another folder")

    def __len__(self) -> int:
        """Count the releases."""
        return sum(count for _, count in self._entries)

    @property
    def charges(self) -> tuple[Charge, ...]:
        """One a release, in their order."""
        return tuple(charge for charge, count in self._entries for _ in range(count))

    def epsilon(self) -> float:
        """Epsilon spent so far, at the budget's delta and by its method."""
        return epsilon(self.charges, self.budget.delta, self.budget.method)

    def statement(self) -> Statement:
        """Say what was spent so far, in every currency."""
        return statement(self.charges, self.budget.delta)

    def room(self, charge: Charge) -> int:
        """Count the releases that the budget still allows, as far as it looks ahead.

        Args:
            charge: of each of them.

        Returns:
            The number, possibly 0.
        """
        known = self._limit
        if known is None or known[0] != charge or (known[1] == len(self) and known[2]):
            more = rounds_within(charge, self.budget, self.charges, self._ahead)
            self._limit = known = charge, len(self) + more, more == self._ahead
        return known[1] - len(self)

    def afford(self, charge: Charge, round: int | None = None) -> None:
        """Refuse a release that the budget does not allow.

        Args:
            charge: of the release.
            round: number of the round, for the error.

        Raises:
            PrivacyError: when the budget would be exceeded.
        """
        if self.room(charge) < 1:
            raise PrivacyError(
                f"one more release would exceed (epsilon, delta) = ({rounded(self.budget.epsilon)}, "
                f"{rounded(self.budget.delta)}); {len(self)} releases have spent epsilon = {rounded(self.epsilon())}",
                round=round,
                cause="budget spent",
                hint="the model of the last round is what this budget buys",
            )

    def spend(self, charge: Charge, round: int | None = None) -> int:
        """Pay for one release: on return it is on disk.

        Args:
            charge: of the release.
            round: number of the round, for the error.

        Returns:
            The serial number of the release, counted from 0: no two have the same, so noise may be drawn from it.

        Raises:
            PrivacyError: when the budget would be exceeded; nothing is written then, and nothing may be released.
            CheckpointError: when it cannot be written; nothing may be released then.
        """
        self.afford(charge, round)
        serial = len(self)
        last, count = self._entries[-1] if self._entries else (None, 0)
        entries = [*self._entries[:-1], (charge, count + 1)] if last == charge else [*self._entries, (charge, 1)]
        _write(self.path, entries, self.budget.delta)
        self._entries = entries
        return serial


def _write(path: Path, entries: list[tuple[Charge, int]], delta: float) -> None:
    releases = [asdict(charge) | {"count": n} for charge, n in entries]
    body = {"format_version": FORMAT_VERSION, "delta": delta, "releases": releases}
    put(path.parent, {path.name: json.dumps(body | {"sha256": _digest(body)}, indent=1).encode()})


def _read(path: Path) -> tuple[list[tuple[Charge, int]], float | None]:
    """Read entries and delta; none where there is no file. A damaged ledger is never taken for an empty one."""
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return [], None
    except (OSError, UnicodeDecodeError) as error:
        raise _damaged(path) from error
    try:
        body = json.loads(text)
        intact = body.pop("sha256") == _digest(body)
        version = body["format_version"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(path) from error
    if not intact:
        raise _damaged(path)
    if version != FORMAT_VERSION:
        what = f"{path} has ledger format {version}, this pacbayes_fl reads {FORMAT_VERSION}"
        raise PrivacyError(what, hint="update pacbayes_fl")
    return [_entry(saved) for saved in body["releases"]], body.get("delta")  # the first ledgers had none


def _entry(saved: Mapping[str, Any]) -> tuple[Charge, int]:
    cohorts = Cohorts(**saved["cohorts"])
    return Charge(saved["kind"], saved["multiplier"], saved["coordinates"], cohorts), saved["count"]


def _damaged(path: Path) -> PrivacyError:
    what = f"{path} is damaged or cannot be read: what was spent is not known"
    return PrivacyError(what, hint="restore the file, or start anew in another folder")


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
