"""What certifying a run leaves behind: a table for everything that was asked for, as JSON in its run folder."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, Context, Decimal
from pathlib import Path
from typing import Any, Final

from pacbayes_fl.errors import CheckpointError, DataError, StudyError
from pacbayes_fl.results import GROUPS, write_atomic

FOLDER: Final = "certificates"
_NUMBERS: Final = ("risk", "kl", "bound", "test_risk")


@dataclass(frozen=True)
class CertifiedClient:
    """One line of the table: a client's bound beside what it bounds.

    Args:
        name: of the client.
        group: "existing" or "new".
        rows: of the bound, n: those that count.
        risk: empirical risk on them, in the unit of the loss; an estimate where hypotheses were drawn, and where rows
            are left out the largest on any rows that may be the client's own.
        kl: of the posterior from the prior, in nats.
        bound: on the true risk, in the unit of the loss.
        test_risk: empirical risk of the same posterior on the client's test rows; NaN without any.
        test_rows: their number.
        repeats: further rows of the client that n leaves out, since they repeat others or stand among those that the
            prior saw.
    """

    name: str
    group: str
    rows: int
    risk: float
    kl: float
    bound: float
    test_risk: float
    test_rows: int
    repeats: int = 0

    def __post_init__(self) -> None:
        """Refuse a group that no table has."""
        if self.group not in GROUPS:
            raise StudyError(f"group must be one of {', '.join(GROUPS)}, got {self.group!r}", client=self.name)


@dataclass(frozen=True)
class CertifiedRun:
    """Certificates of a run: every line of the table holds on its own with probability at least 1 - delta.

    Args:
        study: name of the study.
        method: name of the method.
        seed: of the run.
        bound: name of the bound, as a command calls it.
        theorem: of the bound, in words.
        risk: which risk is bounded, in words.
        low: smallest value of the loss.
        high: its largest value, which says nothing: the trivial level.
        delta: of each line.
        clients: one line a client.
        reasons: why the lines of a group are no certificates, by group; an empty list where they are.
        summary: further bounds by name, such as on the average over clients: what `bounds.to_record` makes of them.
        certificates: the same of the lines, by group.
        labels: what else should be said, such as how rows were shared out and where priors came from.
        asked: the bound and its settings, as file names have them; the bound alone when empty.
    """

    study: str
    method: str
    seed: int
    bound: str
    theorem: str
    risk: str
    low: float
    high: float
    delta: float
    clients: tuple[CertifiedClient, ...]
    reasons: Mapping[str, list[str]] = field(default_factory=dict)
    summary: Mapping[str, Any] = field(default_factory=dict)
    certificates: Mapping[str, Any] = field(default_factory=dict)
    labels: Mapping[str, Any] = field(default_factory=dict)
    asked: str = ""

    @property
    def stem(self) -> str:
        """What files of the table are called."""
        return self.asked or self.bound

    @property
    def valid(self) -> dict[str, bool]:
        """Whether the lines of each group are certificates."""
        return {group: not reasons for group, reasons in self.reasons.items()}

    def save(self, folder: Path | str) -> Path:
        """Write the table below a run folder.

        JSON has no NaN and no infinity: they are stored as null and as "inf".

        Args:
            folder: the run folder.

        Returns:
            The file, `certificates/ASKED.json`.

        Raises:
            StudyError: when the summary, the certificates or the labels are not JSON.
            CheckpointError: when it cannot be written.
        """
        path = Path(folder) / FOLDER / f"{self.stem}.json"
        try:
            table = {"valid": self.valid, **vars(self), "clients": [vars(client) for client in self.clients]}
            text = json.dumps(_plain(table), indent=1, allow_nan=False) + "\n"
        except TypeError as error:
            raise StudyError(f"what is said of the bound {self.bound!r} must be JSON: {error}") from error
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(f"cannot write {path}: {error.strerror}", cause=error.strerror) from error
        write_atomic(path, text.encode())
        return path


def _plain(value: Any) -> Any:
    """Give a value as JSON can hold it."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


def _client(line: Mapping[str, Any]) -> CertifiedClient:
    numbers = {name: math.nan if line[name] is None else float(line[name]) for name in _NUMBERS}
    return CertifiedClient(**{**line, **numbers})


def load(path: Path | str) -> CertifiedRun:
    """Read a table.

    Args:
        path: the file that `CertifiedRun.save` wrote.

    Returns:
        The table.

    Raises:
        DataError: when it cannot be read.
    """
    try:
        table = json.loads(Path(path).read_text("utf-8"))
        table.pop("valid", None)  # follows from the reasons
        clients = tuple(_client(line) for line in table.pop("clients"))
        for name in ("low", "high", "delta"):
            table[name] = float(table[name])
        return CertifiedRun(**table, clients=clients)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(
            f"{path} cannot be read as certificates: {error}", hint="the file was damaged or edited; certify again"
        ) from error


def tables_of(folder: Path | str) -> list[CertifiedRun]:
    """Read all tables of a run folder.

    Args:
        folder: the run folder.

    Returns:
        The tables, by the name of the bound; none where the run was not certified.

    Raises:
        DataError: when one cannot be read.
    """
    return [load(path) for path in sorted((Path(folder) / FOLDER).glob("*.json"))]


def is_vacuous(value: float, high: float) -> bool:
    """Whether a bound says no more than the range of the loss.

    Args:
        value: the bound.
        high: largest value of the loss.

    Returns:
        True also for NaN.
    """
    return math.isnan(value) or value >= high


def rounded_up(value: float, digits: int = 4) -> str:
    """Write a bound in few digits, never as less than it is.

    Args:
        value: the bound.
        digits: significant ones.

    Returns:
        Text without exponent.
    """
    return f"{Context(prec=digits, rounding=ROUND_CEILING).create_decimal(Decimal(value)).normalize():f}"
