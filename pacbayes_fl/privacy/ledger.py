"""The ledger: costs are on disk before a release, and releases are kept.

`RUN/privacy.json` counts the releases of a federation by their charges. A release is written in one piece with its
charge, as `RUN/release.safetensors`, before anything is made of it: from then on it is paid, and it counts until it
stands in privacy.json too. A crash before that has released nothing and costs nothing; after a crash later on the round
takes the release that is there, so that none is paid for and lost. Both files are synced and renamed into place. A run
that goes on from an older round pays for the rounds that it repeats, with fresh noise. Releases outside of rounds are
made once, and each stays in a file of its own. The smallest delta that releases
were paid for with stays beside them: a larger one, as fewer clients would have by default, would make what was spent
look like less. One process at a time may write; a run holds the lock of its folder anyway.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from torch import Tensor

from pacbayes_fl.errors import UNREADABLE, CheckpointError, PrivacyError, caller_stacklevel
from pacbayes_fl.files import JsonMapping, verified, with_checksum
from pacbayes_fl.privacy import release_file
from pacbayes_fl.privacy.accounting import Budget, epsilon, rounds_within
from pacbayes_fl.privacy.charges import ROUND, Charge, charge_of
from pacbayes_fl.privacy.guarantees import Statement, rounded, statement
from pacbayes_fl.privacy.release_file import Release
from pacbayes_fl.privacy.shared_ledger import Shared, SharedLedger
from pacbayes_fl.results.manifest import put
from pacbayes_fl.results.records import SIMULATED_EPSILON

FORMAT_VERSION: Final = 1
NAME: Final = "privacy.json"
RELEASE: Final = "release.safetensors"
OUTSIDE: Final = ("scaling", "residuals")
"""Messages that clients send once and outside of rounds: each release is kept for good, in a file of its own."""

_AHEAD: Final = 1024
Entries = list[tuple[Charge, int]]  # equal charges in a row with their number
Keys = tuple[str, ...]


class Ledger:
    """Releases of one federation, counted on disk, and the budget that stops them.

    Args:
        folder: the run folder, which exists.
        budget: what all releases may cost together, those on disk included; its delta counts where it is not larger
            than the one on disk.
        released: how many releases the state to go on with has seen; a ledger that knows of fewer was lost.
        ahead: releases that are looked ahead for at once, since one account by PLD takes a second: those that a run
            still plans, so that one account is all it needs.
        simulated: whether noise and cohorts come from a seed.

    Raises:
        PrivacyError: when the ledger on disk is damaged, of a later version, knows of fewer releases than that, or is
            of a simulation and this is none, or the other way round.
    """

    def __init__(
        self,
        folder: Path | str,
        budget: Budget,
        released: int = 0,
        ahead: int = _AHEAD,
        simulated: bool | None = None,
    ) -> None:
        """Read what was spent."""
        self.path, self._ahead, self._seen = Path(folder) / NAME, max(1, ahead), released
        self._entries, delta, randomness, self._keys, found, self._short = _paid(self.path)
        self._shared: SharedLedger | None = None
        self._cohort, self._halved, self._undone = tuple[int, ...](), 0, tuple[str, ...]()
        self._uncounted: tuple[int, ...] | None = None
        self._release = found.pop(ROUND)
        self._outside = {name: one for name, one in found.items() if one is not None}
        self._reserved = dict[str, Charge]()
        self.budget = budget if delta is None else replace(budget, delta=min(budget.delta, delta))
        self.simulated = randomness == "simulation" if simulated is None else simulated
        if randomness is not None and (randomness == "simulation") != self.simulated:
            what = f"{self.path} has releases whose randomness is of the {randomness}, and those to come would not be"
            raise PrivacyError(what, hint="set privacy.randomness back, or start anew in another folder")
        self._limit: tuple[Charge, int, bool] | None = None  # of one charge, how many releases in all, and may be more
        newest = [one.serial + 1 for one in (self._release, *self._outside.values()) if one is not None]
        known = max(released, *newest, 0)
        if len(self) < known:
            what = f"{self.path} knows of {len(self)} releases, the run of {known}"
            raise PrivacyError(f"{what}: what was spent is not known", hint="start anew in another folder")

    def __len__(self) -> int:
        """Count the releases."""
        return sum(count for _, count in self._entries)

    @property
    def charges(self) -> tuple[Charge, ...]:
        """One a release, in their order."""
        return tuple(charge for charge, count in self._entries for _ in range(count))

    def position(self, charge: Charge) -> int:
        """Count the releases in a row of one charge that the next one follows.

        Args:
            charge: of the next one.

        Returns:
            The number; 0 after another charge.
        """
        last, count = self._entries[-1] if self._entries else (None, 0)
        return count if last == charge else 0

    def epsilon(self) -> float:
        """Epsilon spent so far, at the budget's delta and by its method."""
        return epsilon(self.charges, self.budget.delta, self.budget.method)

    def statement(self) -> Statement:
        """The guarantee of all releases so far, in every privacy notion."""
        return statement(self.charges, self.budget.delta)._replace(simulated=self.simulated)

    def room(self, charge: Charge) -> int:
        """Count the releases that the budget still allows, as far as it looks ahead.

        Args:
            charge: of each of them.

        Returns:
            The number, possibly 0.
        """
        known = self._limit
        if known is None or known[0] != charge or (known[1] == len(self) and known[2]):
            others = [one for name, one in self._reserved.items() if name != charge.message]
            more = rounds_within(charge, self.budget, [*others, *self.charges], self._ahead)
            self._limit = known = charge, len(self) + more, more == self._ahead
        return known[1] - len(self)

    def join(self, shared: SharedLedger, charge: Charge, first: int, last: int) -> None:
        """Reserve in a ledger of several runs what this one has spent and plans.

        Args:
            shared: this run's place there; it pays for every release from here on, too.
            charge: of a round.
            first: the next round.
            last: round after which the run ends.

        Raises:
            PrivacyError: when its budget would be exceeded, or it is damaged or lost.
            CheckpointError: when something cannot be written.
        """
        others = [one for one in self._reserved.values() if one.message != charge.message]
        rounds = max(0, last - first + 1 - (self.kept(first) is not None))
        planned = [charge] * min(rounds, self.room(charge))
        shared.join(self._keys, self.charges, [*others, *planned], self._keep_keys)
        self._shared = shared

    def settle(self) -> Shared | None:
        """Give back what the shared ledger has reserved for a run that has ended.

        Returns:
            What all runs on the same rows have spent; None where none is shared.
        """
        return None if self._shared is None else self._shared.settle(self.charges)

    def _keep_keys(self, keys: Sequence[str]) -> None:
        self._keys = tuple(keys)
        put(self.path.parent, {NAME: self._bytes(self._entries)})

    def _bytes(self, entries: Entries) -> bytes:
        return _ledger_bytes(entries, self.budget.delta, self.simulated, self._keys)

    def check_budget(self, charge: Charge, round: int | None = None) -> None:
        """Refuse a release that the budget does not allow.

        Args:
            charge: of the release.
            round: number of the round, for the error.

        Raises:
            PrivacyError: when the budget would be exceeded.
        """
        if self.room(charge) < 1:
            name = SIMULATED_EPSILON if self.simulated else "epsilon"
            raise PrivacyError(
                f"one more release would exceed ({name}, delta) = ({rounded(self.budget.epsilon)}, "
                f"{rounded(self.budget.delta)}); {len(self)} releases have spent {name} = {rounded(self.epsilon())}",
                round=round,
                cause="budget spent",
                hint="the model of the last round is what this budget buys",
            )
        if self._shared is not None:
            self._shared.cover([*self.charges, charge])

    def reserve(self, charges: Sequence[Charge]) -> None:
        """Keep a part of the budget for releases outside of rounds that are still to come.

        Args:
            charges: one a release; of those that are on disk nothing is kept.
        """
        self._reserved = {one.message: one for one in charges if one.message not in self._outside}
        self._limit = None

    def outside(self, message: str, about: str) -> Release | None:
        """Give a release outside of rounds that was paid for: its noise is never drawn again.

        Args:
            message: one of `OUTSIDE`.
            about: what else it is a function of.

        Returns:
            The release; None where it has to be paid for.
        """
        known = self._outside.get(message)
        if known is None or known.about != about:
            return None
        self._write_count()
        return known

    def kept(self, round: int) -> Release | None:
        """Give the release of a round that was paid for and then cut short: no state has seen it yet.

        Args:
            round: number of the round.

        Returns:
            The release; None where the round has to be paid for.
        """
        last = self._release
        unseen = last is not None and last.round == round and self._seen <= last.serial == len(self) - 1
        return last if unseen else None

    def invite(self, cohort: Sequence[int], halved: int = 0, undone: Sequence[str] = ()) -> None:
        """Draw the cohort of the next release.

        Args:
            cohort: ids of the clients.
            halved: how often the learning rates of its round have been halved.
            undone: why earlier releases of its round were undone.
        """
        self._cohort, self._halved, self._undone = tuple(cohort), halved, tuple(undone)
        self._uncounted = None

    def leave_out(self, uncounted: Sequence[int]) -> None:
        """Take down, for the next release, whose answers are not in it: after a crash nobody can tell.

        Args:
            uncounted: ids of clients that were asked.
        """
        self._uncounted = tuple(uncounted)

    def take(self, release: Release) -> None:
        """Mark a release as used by the saved state.

        Args:
            release: as `kept` gives it.
        """
        self._write_count()
        self._seen = release.serial + 1

    def _write_count(self) -> None:
        """Write down the releases that were paid for where a crash came before the count."""
        if self._short:
            put(self.path.parent, {NAME: self._bytes(self._entries)})
            self._short = False

    def spend(
        self,
        charge: Charge,
        round: int | None = None,
        mean: Mapping[str, Tensor] | None = None,
        about: str = "",
        first: Mapping[str, bytes] = MappingProxyType({}),
    ) -> int:
        """Pay for one release: on return it is on disk.

        Args:
            charge: of the release.
            round: number of the round, also for the error.
            mean: what is to be released, flat names with tensors [1, *], which nobody has seen yet: it is written in
                one piece with its charge. None where it need not outlive a crash.
            about: of a release outside of rounds, what else it is a function of.
            first: files that have to be on disk before the release is, by name.

        Returns:
            The serial number of the release, counted from 0: no two have the same, so noise may be drawn from it.

        Raises:
            PrivacyError: when the budget would be exceeded; nothing is written then, and nothing may be released.
            CheckpointError: when it cannot be written; nothing may be released then.
        """
        self.check_budget(charge, round)
        serial = len(self)
        entries, folder = _with(self._entries, charge), self.path.parent
        release, files = None, {**first, NAME: self._bytes(entries)}
        if mean is not None and round is not None:
            release = Release(serial, round, charge, (), mean, about=about)
            if charge.message == ROUND:
                release = release._replace(cohort=self._cohort, uncounted=self._uncounted)
                release = release._replace(halved=self._halved, undone=self._undone)
            files = {**first, file_of(charge.message): release_file.to_bytes(release), **files}
        try:
            put(folder, files)
        except CheckpointError:
            kept = None if release is None else _read_release(folder / file_of(charge.message), list(entries))
            if kept is not None and kept.serial == serial:  # paid, although the other file could not be written
                self._entries = entries
                self._remember(release)
            raise
        self._entries, self._seen, self._short = entries, serial + 1, False
        self._remember(release)
        return serial

    def _remember(self, release: Release | None) -> None:
        """Keep a release at hand that is on disk."""
        if release is None:
            return
        if release.charge.message == ROUND:
            self._release = release
        else:
            self._outside[release.charge.message] = release
            self._reserved.pop(release.charge.message, None)
            self._limit = None


def file_of(message: str) -> str:
    """Name the file of a release.

    Args:
        message: "round", or one of `OUTSIDE`.

    Returns:
        Its name in a run folder.
    """
    return RELEASE if message == ROUND else f"release_{message}.safetensors"


def to_release(path: Path) -> bytes:
    """Read a ledger as everybody may: orders of cohorts, which are fingerprints of all clients' ids, become numbers.

    Args:
        path: of a run's ledger.

    Returns:
        A ledger of the same releases, as a file.

    Raises:
        PrivacyError: when it is not there or damaged.
    """
    entries, delta, randomness, *_ = _paid(path)
    if delta is None:
        raise _damaged(path)
    orders = dict.fromkeys(charge.cohorts.order for charge, _ in entries if charge.cohorts.order)
    numbers = {order: str(number) for number, order in enumerate(orders, 1)} | {"": ""}
    numbered = [
        (replace(charge, cohorts=replace(charge.cohorts, order=numbers[charge.cohorts.order])), count)
        for charge, count in entries
    ]
    return _ledger_bytes(numbered, delta, randomness == "simulation", ())


def keys_of(path: Path) -> tuple[str, ...]:
    """Give the keys under which a ledger of several runs knows what a run has spent.

    Args:
        path: of the run's ledger.

    Returns:
        The keys; none of a run that has spent nothing, or nothing that is shared.

    Raises:
        PrivacyError: when it is damaged.
    """
    entries, _, _, keys = _read(path)
    return keys if entries else ()


def _with(entries: Entries, charge: Charge) -> Entries:
    """Count one more charge."""
    last, count = entries[-1] if entries else (None, 0)
    return [*entries[:-1], (charge, count + 1)] if last == charge else [*entries, (charge, 1)]


def _read_release(path: Path, entries: Entries) -> Release | None:
    """Read the newest release; of one that is damaged only that it was paid for counts."""
    if not path.is_file():
        return None
    try:
        return release_file.read(path)
    except UNREADABLE as error:
        if not entries:
            raise _damaged(path) from error
        text = "counted as one more release, and its round is paid for again"
        warnings.warn(f"{path} is damaged or cannot be read: {text}", stacklevel=caller_stacklevel())
        entries[:] = _with(entries, entries[-1][0])
        return None


def _ledger_bytes(entries: Entries, delta: float, simulated: bool, keys: Sequence[str]) -> bytes:
    releases = [asdict(charge) | {"count": n} for charge, n in entries]
    randomness = "simulation" if simulated else "system"
    body = {"format_version": FORMAT_VERSION, "delta": delta, "randomness": randomness, "releases": releases}
    body |= {"shared": [*keys]} if keys else {}
    return json.dumps(with_checksum(body), indent=1).encode()


def _read(path: Path) -> tuple[Entries, float | None, str | None, Keys]:
    """Read entries, delta, randomness and keys in a shared ledger; none where there is no file.

    Damage is never taken for an empty ledger.
    """
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return [], None, None, ()
    except (OSError, UnicodeDecodeError) as error:
        raise _damaged(path) from error
    try:
        body = verified(text)
        version = body["format_version"]
    except UNREADABLE as error:
        raise _damaged(path) from error
    if version != FORMAT_VERSION:
        what = f"{path} has ledger format {version}, this pacbayes_fl reads {FORMAT_VERSION}"
        raise PrivacyError(what, hint="update pacbayes_fl")
    try:
        entries = [_entry(saved) for saved in body["releases"]]
        more = body.get("delta"), body.get("randomness"), tuple(body.get("shared", ()))  # the first ledgers had none
        return entries, *more
    except UNREADABLE as error:
        raise _damaged(path) from error


def _paid(path: Path) -> tuple[Entries, float | None, str | None, Keys, dict[str, Release | None], bool]:
    """Read a ledger, count the releases beside it that a crash left out, and say whether there are any."""
    entries, delta, randomness, keys = _read(path)
    found = {name: _read_release(path.with_name(file_of(name)), entries) for name in (ROUND, *OUTSIDE)}
    before = list(entries)  # with one more for a release that is damaged, which the next one to be paid for writes down
    for one in sorted((one for one in found.values() if one is not None), key=lambda one: one.serial):
        if one.serial == sum(count for _, count in entries):
            entries = _with(entries, one.charge)
    return entries, delta, randomness, keys, found, entries != before


def _entry(saved: JsonMapping) -> tuple[Charge, int]:
    return charge_of(saved), saved["count"]


def _damaged(path: Path) -> PrivacyError:
    what = f"{path} is damaged or cannot be read: what was spent is not known"
    return PrivacyError(what, hint="restore the file, or start anew in another folder")
