"""A ledger that runs on the same rows share: what they spend together, in one file with one budget.

A run reserves all that it plans before its first round, and what it has not spent is given back when it ends; one that
was interrupted keeps its part until it is finished. Two runs compose at a client if both saw one of its rows. So the
budget holds for every client as runs have it, and for every single row where they deal rows to clients differently.

The file is replaced as a whole, under a lock beside it, and has a checksum. It knows rows by fingerprints of 8 bytes
under a salt of its own, by which whoever has the file reads nothing, but can check a guess of a row. It knows runs by
keys that are drawn anew whenever a run goes on, and how many releases each has made before its last: of two copies of
a run folder that both go on, the second is another run, as what it will release is, and so is a copy that has missed
releases of the first.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import json
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from pacbayes_fl.errors import UNREADABLE, PrivacyError, listed
from pacbayes_fl.files import JsonMapping, opened, verified, with_checksum
from pacbayes_fl.privacy.accounting import Budget, epsilon
from pacbayes_fl.privacy.charges import Charge, charge_of
from pacbayes_fl.privacy.guarantees import rounded
from pacbayes_fl.results.folder import write_atomic

FORMAT_VERSION: Final = 4  # 1 knew rows to the bit alone, 2 in one order of their columns, 3 not what runs had made
_PRINT: Final = 8  # bytes: of 10^6 fingerprints beside 10^6 others, two agree by chance with 5e-8
_PATIENCE: Final = 120.0  # seconds; who holds the lock adds up a few accounts

Prints = Mapping[str, frozenset[bytes]]
"""Fingerprints of rows by client."""


@dataclass(frozen=True)
class Run:
    """What the file knows of a run.

    Args:
        folder: its name, for people.
        spent: its releases by charge, with those that are still to come while it is not finished.
        prints: salted fingerprints of the rows that it has trained with, whoever has left since, as the file has them:
            every release is written down, and most have no use for them.
        made: those releases that are known to have been made; the last one of a run that goes on may be missing.
        finished: whether nothing more is to come.
    """

    folder: str
    spent: Counter[Charge]
    prints: str
    made: Counter[Charge]
    finished: bool = False

    @property
    def rows(self) -> frozenset[bytes]:
        """The fingerprints."""
        data = base64.b64decode(self.prints, validate=True)
        return frozenset(data[at : at + _PRINT] for at in range(0, len(data), _PRINT))


@dataclass(frozen=True)
class Content:
    """What the file holds.

    Args:
        salt: of fingerprints.
        budget: of all runs together, at every client.
        simulated: whether noise comes from seeds.
        runs: by key.
    """

    salt: bytes
    budget: Budget
    simulated: bool
    runs: Mapping[str, Run]


class Shared(NamedTuple):
    """What all runs of a ledger have spent at the client of a run who paid most.

    Args:
        epsilon: with the delta of the budget, what unfinished runs have reserved included.
        budget: of the file.
        runs: how many other runs saw rows of that client.
        client: its name.
    """

    epsilon: float
    budget: Budget
    runs: int
    client: str


class SharedLedger:
    """One run's place in a shared ledger.

    Args:
        path: of the file.
        total: epsilon that all runs may spend together; None for that of the file, which exists then.
        delta: of a new file.
        simulated: whether this run's noise comes from a seed.
        rows: fingerprints of what it trains with.
        folder: name of the run's folder, for people.
        payers: keys of the runs that are known to have taken part, by name, none of one whose keys are not known:
            without them there is no new file, and a file that does not know them is an older copy.
    """

    def __init__(
        self,
        path: Path | str,
        total: float | None,
        delta: float,
        simulated: bool,
        rows: Prints,
        folder: str,
        payers: Mapping[str, Sequence[str]] = MappingProxyType({}),
    ) -> None:
        """Nothing is read yet."""
        self.path, self._total, self._delta = Path(path), total, delta
        self._simulated, self._rows, self._folder, self._payers = simulated, rows, folder, payers
        self._key, self._reserved, self._made = "", Counter[Charge](), Counter[Charge]()

    def join(
        self,
        known: Sequence[str],
        made: Sequence[Charge],
        planned: Sequence[Charge],
        keep: Callable[[Sequence[str]], None],
    ) -> None:
        """Reserve what a run has spent and plans, or find that it has.

        A folder that knows of fewer releases than the file says that the run has made is an older copy of it: what it
        will release is another run's.

        Args:
            known: keys under which the run may stand in the file; none where it is new.
            made: charges of the releases that it has made.
            planned: charges of those to come.
            keep: writes keys to the run's folder, before they stand in the file.

        Raises:
            PrivacyError: when the budget would be exceeded, there is no budget, the file is damaged, lost, of another
                budget or of another randomness, or cohorts follow an order; nothing is written then.
            CheckpointError: when it cannot be written.
        """
        charges, count = [*made, *planned], Counter(made)
        _refuse_orders(charges)
        with self._locked():
            if known and not made and not self.path.exists():
                what = f"{self.path} is not there, and this run stands in it, or was to before it was stopped"
                hint = "restore the file; if there was none, remove the run's folder, which has released nothing"
                raise PrivacyError(f"{what}: what runs on the same rows have spent is not known", hint=hint)
            content = self._content(new=not known)
            self._refuse_older(content)
            mine = next((key for key in known if key in content.runs and content.runs[key].made <= count), None)
            before = Counter[Charge]() if mine is None else content.runs[mine].spent
            runs = {key: run for key, run in content.runs.items() if key != mine}
            wanted = before | Counter(charges)
            if wanted != before:
                self._check(replace(content, runs=runs), wanted, len(charges))
            key = secrets.token_hex(8)
            keep([key] if mine is None else [mine, key])
            seen = frozenset() if mine is None else content.runs[mine].rows  # of clients that have left since, too
            rows = seen.union(*self._salted(content.salt).values())
            self._write(replace(content, runs={**runs, key: Run(self._folder, wanted, _packed(rows), count)}))
            self._key, self._reserved, self._made = key, wanted, count

    def cover(self, charges: Sequence[Charge]) -> None:
        """Write down what a run has made, and reserve more where it needs more than it had planned.

        One that repeats a round needs more. One whose place a copy of its folder has taken is refused.

        Args:
            charges: one a release, of those made and of the next.

        Raises:
            PrivacyError: when the budget would be exceeded, with the cause "budget spent", or the file does not know
                the run any more.
            CheckpointError: when it cannot be written.
        """
        made, wanted = Counter(charges[:-1]), self._reserved | Counter(charges)
        if made == self._made and wanted == self._reserved:
            return
        _refuse_orders(charges)
        with self._locked():
            content = self._content()
            if wanted != self._reserved:
                runs = {key: run for key, run in content.runs.items() if key != self._key}
                self._check(replace(content, runs=runs), wanted, len(charges))
            self._put(content, Run(self._folder, wanted, content.runs[self._key].prints, made))
            self._reserved, self._made = wanted, made

    def settle(self, charges: Sequence[Charge]) -> Shared:
        """Give back what a run that has ended did not spend.

        Args:
            charges: one a release.

        Returns:
            What all runs together have spent.

        Raises:
            PrivacyError, CheckpointError: as `cover`.
        """
        with self._locked():
            content, spent = self._content(), Counter(charges)
            run = Run(self._folder, spent, content.runs[self._key].prints, spent, finished=True)
            self._put(content, run)
            self._reserved = self._made = spent
            return self._worst(replace(content, runs={k: v for k, v in content.runs.items() if k != self._key}), spent)

    def _put(self, content: Content, run: Run) -> None:
        self._write(replace(content, runs={**content.runs, self._key: run}))

    def _check(self, others: Content, charges: Counter[Charge], releases: int) -> None:
        """Refuse charges that would exceed the budget beside other runs."""
        worst = self._worst(others, charges)
        if worst.epsilon <= others.budget.epsilon * (1 + 1e-9):
            return
        before = self._worst(others, Counter(), worst.client)
        at = f"at delta = {rounded(others.budget.delta)}"
        raise PrivacyError(
            f"{self.path} allows epsilon = {rounded(others.budget.epsilon)} {at} for all runs on the same rows; "
            f"at client {worst.client!r} {_others(worst.runs)} spent or reserved {rounded(before.epsilon)}, and with "
            f"the {releases} releases of this one it would be {rounded(worst.epsilon)}",
            cause="budget spent",
            hint="a smaller privacy.epsilon, or fewer rounds",
        )

    def _worst(self, others: Content, charges: Counter[Charge], client: str | None = None) -> Shared:
        """Compose a run with those that saw rows of its clients, for the client for whom that is most."""
        found, seen = dict[frozenset[str], str](), {key: run.rows for key, run in others.runs.items()}
        for name, rows in self._salted(others.salt).items():
            if client in (None, name):
                found.setdefault(frozenset(key for key, own in seen.items() if own & rows), name)
        results, known = [], dict[frozenset[tuple[Charge, int]], float]()
        for keys, name in found.items():
            total = sum((others.runs[key].spent for key in sorted(keys)), charges)
            if len({charge.cohorts.neighbours for charge in total}) > 1:
                what = f"runs in {self.path} on rows of client {name!r} hide another change of the data than this one"
                raise PrivacyError(what, hint="set privacy.neighbours to theirs, or privacy.cohort with it")
            same = frozenset(total.items())
            if same not in known:
                known[same] = epsilon([*total.elements()], others.budget.delta, others.budget.method)
            results.append(Shared(known[same], others.budget, len(keys), name))
        return max(results, key=lambda one: one.epsilon)

    def _salted(self, salt: bytes) -> dict[str, frozenset[bytes]]:
        return {
            name: frozenset(hashlib.blake2b(row, digest_size=_PRINT, key=salt).digest() for row in rows)
            for name, rows in self._rows.items()
        }

    def _content(self, new: bool = False) -> Content:
        """Read the file, or begin a new one."""
        if new and not self.path.exists():
            if self._payers:
                runs = listed([*map(repr, self._payers)], 1)
                what = f"{self.path} is not there, and run {runs} beside this one took part in it"
                hint = "restore the file from a copy; a ledger that begins without them needs another name"
                raise PrivacyError(f"{what}: what runs on the same rows have spent is not known", hint=hint)
            if self._total is None:
                what = f"{self.path} is not there, and a new ledger needs a budget for all runs on the same rows"
                raise PrivacyError(what, hint="privacy.total = the epsilon that they may spend together")
            return Content(secrets.token_bytes(16), Budget(self._total, self._delta), self._simulated, {})
        content = read(self.path)
        if self._key and self._key not in content.runs:
            what = f"{self.path} no longer knows this run: it is another file, or another copy of the run went on"
            raise PrivacyError(what, hint="restore the file, or go on with the other copy")
        if self._total not in (None, content.budget.epsilon):
            what = f"{self.path} was made with a budget of epsilon = {content.budget.epsilon:g}"
            raise PrivacyError(f"{what}, got privacy.total = {self._total:g}", hint="leave privacy.total out")
        if self._simulated != content.simulated:
            here, there = ("a simulation", "secret") if self._simulated else ("secret", "of simulations")
            what = f"noise of runs in {self.path} is {there}, and that of this run would be {here}"
            raise PrivacyError(what, hint="another privacy.ledger, or set privacy.randomness")
        return content

    def _refuse_older(self, content: Content) -> None:
        """Refuse a file that does not know another run which has spent: a copy that went on has taken its place."""
        known = {key for keys in self._payers.values() if not content.runs.keys().isdisjoint(keys) for key in keys}
        lost = [name for name, keys in self._payers.items() if name != self._folder and keys and known.isdisjoint(keys)]
        if lost:
            what = f"{self.path} does not know of run {listed([*map(repr, lost)], 1)} beside this one, which took part"
            hint = "restore the newest copy, or go on with that run, which says what it has spent"
            raise PrivacyError(f"{what}: it is an older copy, and what was spent since is not known", hint=hint)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other processes from the file."""
        beside = self.path.with_name(self.path.name + ".lock")
        if not self.path.parent.is_dir():
            what = f"privacy.ledger = {self.path}: there is no folder {self.path.parent}"
            raise PrivacyError(what, hint="make it, or choose another path")
        with opened(beside, "a") as file:
            until = time.monotonic() + _PATIENCE
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > until:
                        what = f"{self.path} has been locked by another process for {_PATIENCE:g} seconds"
                        raise PrivacyError(what, hint="wait for that one to end") from None
                    time.sleep(0.05)
            yield

    def _write(self, content: Content) -> None:
        body = {
            "format_version": FORMAT_VERSION,
            "salt": content.salt.hex(),
            "epsilon": content.budget.epsilon,
            "delta": content.budget.delta,
            "randomness": "simulation" if content.simulated else "system",
            "runs": {key: _saved(run) for key, run in content.runs.items()},
        }
        write_atomic(self.path, json.dumps(with_checksum(body), indent=1).encode())


def _refuse_orders(charges: Sequence[Charge]) -> None:
    """Refuse cohorts in order: every run begins the order anew, so that runs together are no one run that goes on."""
    if any(charge.cohorts.kind == "in-order" for charge in charges):
        what = "cohorts in order are accounted for in a row, and a shared ledger has several runs"
        raise PrivacyError(what, hint="another privacy.cohort, or no privacy.ledger")


def read(path: Path) -> Content:
    """Read a shared ledger.

    Args:
        path: of the file.

    Returns:
        What it holds.

    Raises:
        PrivacyError: when it is missing, damaged or of another version: what was spent is not known then.
    """
    what = f"{path} is missing, damaged or cannot be read: what runs on the same rows have spent is not known"
    hint = "restore the file from a copy"
    try:
        body = verified(path.read_text("utf-8"))
        if body["format_version"] != FORMAT_VERSION:
            what = f"{path} has ledger format {body['format_version']}, this pacbayes_fl reads {FORMAT_VERSION}"
            hint = "update pacbayes_fl"
            if body["format_version"] < FORMAT_VERSION:
                what = f"{what}, which knows more of rows and runs"
                hint = "another file, whose privacy.total is less by what runs of this one have spent (labels.json)"
            raise ValueError("it is of another version")
        runs = {key: _run(saved) for key, saved in body["runs"].items()}
        budget = Budget(body["epsilon"], body["delta"])
        return Content(bytes.fromhex(body["salt"]), budget, body["randomness"] == "simulation", runs)
    except (OSError, *UNREADABLE) as error:
        raise PrivacyError(what, hint=hint) from error


def _others(runs: int) -> str:
    return "one other has" if runs == 1 else f"{runs} others have"


def _saved(run: Run) -> JsonMapping:
    releases = [asdict(charge) | {"count": count, "made": run.made[charge]} for charge, count in run.spent.items()]
    return {"folder": run.folder, "finished": run.finished, "releases": releases, "rows": run.prints}


def _packed(rows: frozenset[bytes]) -> str:
    return base64.b64encode(b"".join(sorted(rows))).decode()


def _run(saved: JsonMapping) -> Run:
    spent, made = (
        Counter({charge_of(each): int(each[name]) for each in saved["releases"]}) for name in ("count", "made")
    )
    return Run(saved["folder"], spent, str(saved["rows"]), made, saved["finished"])
