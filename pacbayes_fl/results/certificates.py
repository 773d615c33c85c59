"""Tables of certificates: one per request, as JSON in the run folder."""

from __future__ import annotations

import contextlib
import json
import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from decimal import ROUND_CEILING, Context
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pacbayes_fl import names
from pacbayes_fl.errors import UNREADABLE, CheckpointError, DataError, StudyError, counted, kinds_checked
from pacbayes_fl.files import JsonMapping, JsonTable, checksum, sha256
from pacbayes_fl.results.client_rows import GROUPS
from pacbayes_fl.results.frames import frame
from pacbayes_fl.results.manifest import put

if TYPE_CHECKING:
    from pandas import DataFrame

FOLDER: Final = "certificates"
FORMAT_VERSION: Final = 1
"""Of the tables: 1 is the first that is written into them."""
_NUMBERS: Final = ("risk", "kl", "bound", "test_risk", "trivial", "holdout_risk", "holdout_bound", "share")


class OldFormatError(DataError):
    """A table of certificates was written before its format changed."""


@dataclass(frozen=True)
class CertifiedClient:
    """One row of the table: a client's bound beside its risks.

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
        trivial: the same bound, from as many rows, for a predictor that needs no learning; NaN where nobody knows one.
        holdout_risk: empirical risk, on the rows of the bound, of the predictor that was fixed before them; NaN where
            no hold-out bound was asked for.
        holdout_bound: on its true risk. It holds together with `bound`: they share delta.
        share: how far the certified posterior is on the way from the prior, 0, to that which the rows gave, 1; NaN
            where there is none.
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
    trivial: float = math.nan
    holdout_risk: float = math.nan
    holdout_bound: float = math.nan
    share: float = math.nan

    def __post_init__(self) -> None:
        """Refuse a group that no table has."""
        if self.group not in GROUPS:
            raise StudyError(f"group must be one of {', '.join(GROUPS)}, got {self.group!r}", client=self.name)

    def cells(self, beside: bool) -> list[str]:
        """Write the line for a table that people read.

        Args:
            beside: whether it has a hold-out bound.

        Returns:
            Name, rows, risk, divergence, bound, test risk and its rows; fixed risk and hold-out bound.
        """
        first = [self.name, str(self.rows), f"{self.risk:.4f}", f"{self.kl:.3f}", rounded_up(self.bound)]
        rest = [f"{self.test_risk:.4f}", str(self.test_rows)]
        return [*first, *rest, *([f"{self.holdout_risk:.4f}", rounded_up(self.holdout_bound)] if beside else [])]

    def notes(self, high: float) -> list[str]:
        """Say what is remarkable of the line.

        Args:
            high: largest value of the loss.

        Returns:
            Notes for people.
        """
        return [
            *(["vacuous"] if is_vacuous(self.bound, high, self.trivial) else []),
            *(["test risk above the bound"] if self.test_risk > self.bound else []),
            *([f"{self.repeats} further rows repeat others and do not count"] if self.repeats else []),
        ]


@dataclass(frozen=True, repr=False)
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
        number: which request of the same rows it is, from 1 (`certified.jsonl`); None where none are counted.
        model: "round", "state" and "split" of what was certified, as `model_of` gives them; empty without a run folder.
        holdout: records as `certificates`, of the hold-out bounds beside them; empty where none was asked for.
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
    summary: JsonMapping = field(default_factory=dict)
    certificates: JsonMapping = field(default_factory=dict)
    labels: JsonMapping = field(default_factory=dict)
    asked: str = ""
    number: int | None = None
    model: JsonMapping = field(default_factory=dict)
    holdout: JsonMapping = field(default_factory=dict)

    def __repr__(self) -> str:
        """What is bounded, for how many clients, and why not, in one line."""
        why = [f"{group}: no certificate: {'; '.join(reasons)}" for group, reasons in self.reasons.items() if reasons]
        who = counted(len(self.clients), "client")
        what = f"{self.theorem}, delta {self.delta:g}, {who} of {self.method} on {self.study}"
        return f"CertifiedRun({names.printable('; '.join([what, *why]))})"

    def _repr_html_(self) -> str:
        """A line a client, for notebooks."""
        columns = {name: values for name, values in self._columns().items() if name != "trivial"}
        return names.as_html(repr(self), [*columns], [*zip(*columns.values(), strict=True)])

    def to_pandas(self) -> DataFrame:
        """Give the lines of the table as a data frame.

        Returns:
            A row per client, with the fields of `CertifiedClient` and whether the row is a certificate.

        Raises:
            PacBayesFLError: when pandas is not installed.
        """
        return frame(self._columns())

    def _columns(self) -> dict[str, list[object]]:
        columns = {one.name: [getattr(client, one.name) for client in self.clients] for one in fields(CertifiedClient)}
        return columns | {"valid": [not self.reasons.get(client.group) for client in self.clients]}

    @property
    def stem(self) -> str:
        """File names of the table."""
        return names.to_folder(self.asked or self.bound)

    @property
    def valid(self) -> dict[str, bool]:
        """Whether the lines of each group are certificates."""
        return {group: not reasons for group, reasons in self.reasons.items()}

    def holdout_text(self, group: str) -> str:
        """Say what the hold-out bounds of a group are on, and how they share delta with the bounds beside them.

        Args:
            group: "existing" or "new".

        Returns:
            A line for people.
        """
        values = [line.holdout_bound for line in self.clients if line.group == group]
        own, beside = self.labels["delta_shares"]["bound"], self.labels["delta_shares"]["hold-out bound"]
        return (
            f"median hold-out bound {rounded_up(statistics.median(values))}, on {self.labels['predictor'][group]}; both"
            f" bounds of a line hold at once: {own:g} of delta is the bound's, {beside:g} the hold-out bound's"
        )

    def of_client(self, line: CertifiedClient) -> JsonMapping:
        """Give what the table says of one client, as JSON can hold it.

        Args:
            line: of the table.

        Returns:
            The line, and the bound, theorem, risk and delta that it shares with others; None for NaN.
        """
        common = ("study", "method", "seed", "bound", "asked", "theorem", "risk", "low", "high", "delta", "number")
        table = {name: getattr(self, name) for name in common}
        return {"table": _plain(table | {"model": self.model}), **_plain(vars(line))}

    @kinds_checked
    def save(self, folder: Path | str) -> Path:
        """Write the table below a run folder.

        JSON has no NaN and no infinity: they are stored as null and as "inf". The table says its format.

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
            lines = [vars(client) for client in self.clients]
            table = _plain({"format_version": FORMAT_VERSION, "valid": self.valid, **vars(self), "clients": lines})
            text = json.dumps(table | {"checksum": checksum(table)}, indent=1, allow_nan=False) + "\n"
        except TypeError as error:
            raise StudyError(f"what is said of the bound {self.bound!r} must be JSON: {error}") from error
        try:
            put(folder, {f"{FOLDER}/{path.name}": text.encode()}, last=True)
        except OSError as error:
            raise CheckpointError(f"cannot write {path}: {error.strerror}", cause=error.strerror) from error
        return path


def _plain(value: object) -> Any:
    """Give a value as JSON can hold it."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


def _client(line: JsonMapping) -> CertifiedClient:
    numbers = {name: math.nan if line[name] is None else float(line[name]) for name in _NUMBERS}
    return CertifiedClient(**{**line, **numbers})


def load(path: Path | str) -> CertifiedRun:
    """Read a table, and compare its lines with the records of their certificates.

    Args:
        path: the file that `CertifiedRun.save` wrote.

    Returns:
        The table.

    Raises:
        OldFormatError: when an older version wrote it.
        DataError: when it cannot be read, was edited, a newer version wrote it, or a line is not what its record says.
    """
    hint = "the file was damaged or edited; certify again"
    try:
        table = json.loads(Path(path).read_text("utf-8"))
        seal = table.pop("checksum", None)
        intact = seal == checksum(table)
        _check_format(path, table, intact, seal is not None)
        table.pop("valid", None)  # follows from the reasons
        clients = tuple(_client(line) for line in table.pop("clients"))
        for name in ("low", "high", "delta"):
            table[name] = float(table[name])
        result = CertifiedRun(**table, clients=clients)
        wrong = "an entry is not what its checksum was made of" if not intact else _disagreement(result)
    except DataError:
        raise
    except UNREADABLE as error:
        raise DataError(f"{path} cannot be read as certificates: {error}", hint=hint) from error
    if wrong:
        raise DataError(f"{path} cannot be read as certificates: {wrong}", hint=hint)
    return result


def _check_format(path: Path | str, table: JsonTable, intact: bool, sealed: bool) -> None:
    """Take the format out of a table, and refuse any other than the one that this version reads."""
    version = table.pop("format_version", 0)
    if version < FORMAT_VERSION and (intact or (not sealed and {"bound", "theorem", "clients"} <= table.keys())):
        raise OldFormatError(f"{path} was written by an older version of pacbayes_fl", hint="certify the run again")
    if version > FORMAT_VERSION and intact:
        what = f"{path} has format {version}, this pacbayes_fl reads formats up to {FORMAT_VERSION}"
        raise DataError(what, cause="written by a later version", hint="update pacbayes_fl")


def _disagreement(table: CertifiedRun) -> str:
    """Name a line that is not what the record of its group says; nothing where all are."""
    for group in dict.fromkeys(line.group for line in table.clients):
        lines = [line for line in table.clients if line.group == group]
        record = table.certificates.get(group)
        if record is None or not record["valid"] or table.reasons.get(group, [""]):
            return f"{group} clients have lines, and no valid certificate"
        columns = {"bound": record["value"]}
        if (beside := table.holdout.get(group)) is not None:
            if not beside["valid"]:
                return f"{group} clients have hold-out bounds, and no valid certificate of them"
            columns |= {"holdout_bound": beside["value"], "holdout_risk": beside["terms"]["risk"]}
        elif any(math.isfinite(line.holdout_bound) for line in lines):
            return f"{group} clients have hold-out bounds, and no certificate of them"
        if isinstance(record["value"], list):  # a line a client; that of an average has sums of its own
            terms = {"risk": "risk", "kl": "kl", "rows": "n"}
            columns |= {name: record["terms"][key] for name, key in terms.items() if key in record["terms"]}
        for name, values in columns.items():
            column = values if isinstance(values, list) else [values]
            if len(column) != len(lines):
                return f"{group} clients have {len(lines)} lines, and {len(column)} certificates"
            for line, value in zip(lines, column, strict=True):
                if not math.isclose(getattr(line, name), float(value), rel_tol=1e-12):
                    return f"{name} of {line.name} is {getattr(line, name):g}, and its record says {float(value):g}"
    return ""


def model_of(folder: Path | str, round: int | None = None) -> JsonTable:
    """The state of a run folder to which current certificates refer.

    Args:
        folder: of the run.
        round: which one; the newest on disk when None.

    Returns:
        "round", "state", the SHA-256 of its tensors' file, and "split", the fingerprint of which rows are training and
        test rows; None for what is not there.
    """
    folder = Path(folder)
    root = folder / "checkpoints"
    if round is None:
        rounds = [int(path.name[6:]) for path in root.glob("round_*") if path.name[6:].isdecimal()]
        round = max(rounds, default=None)
    state = split = None
    with contextlib.suppress(OSError):
        state = sha256(root / f"round_{round or 0:06d}" / "state.safetensors")
    with contextlib.suppress(*UNREADABLE):
        split = json.loads((folder / "environment.json").read_text("utf-8"))["data"]["split_sha256"]
    return {"round": round, "state": state, "split": split}


def stale(table: CertifiedRun, folder: Path | str) -> str:
    """The reason why a table does not refer to the current state of a run folder.

    Args:
        table: of certificates.
        folder: of the run.

    Returns:
        The reason; nothing where it is.
    """
    now, then = model_of(folder), table.model
    if not then:
        return "it does not say which round of which run it is of"
    if then["round"] != now["round"]:
        return f"it is of round {then['round']}, and the run is at round {now['round']}"
    if then["state"] != now["state"]:
        return f"the run's state at round {now['round']} is not the one that was certified"
    return "" if then["split"] == now["split"] else "the run's rows are not those that were certified"


def tables_of(folder: Path | str, on_stale: Callable[[str], None] | None = None) -> list[CertifiedRun]:
    """Read the tables of a run folder that refer to its current state.

    Args:
        folder: the run folder.
        on_stale: told of every table that is of an earlier round, of another state or of other rows, or of an older
            format, which is left out; such a table is an error when None.

    Returns:
        The tables, by the name of the bound; none where the run was not certified.

    Raises:
        DataError: when one cannot be read, was edited, is stale or of an older format.
    """
    result = []
    for path in sorted((Path(folder) / FOLDER).glob("*.json")):
        try:
            table = load(path)
        except OldFormatError as error:
            if on_stale is None:
                raise
            on_stale(str(error))
            continue
        reason = stale(table, folder)
        if reason and on_stale is None:
            raise DataError(f"{path} is stale: {reason}", hint="certify again")
        if reason and on_stale is not None:
            on_stale(f"{path} is stale: {reason}; certify again")
        else:
            result.append(table)
    return result


def is_vacuous(value: float, high: float, trivial: float = math.nan) -> bool:
    """Whether a bound says no more than the range of the loss, or than that of a predictor without any learning.

    Args:
        value: the bound.
        high: largest value of the loss.
        trivial: the bound of the trivial predictor from as many rows; NaN where nobody knows one.

    Returns:
        True also for NaN.
    """
    return math.isnan(value) or value >= high or value >= trivial


def rounded_up(value: float, digits: int = 4) -> str:
    """Write a bound in few digits, which read back as the number or as more.

    Args:
        value: the bound.
        digits: significant ones.

    Returns:
        Text without exponent.
    """
    return f"{Context(prec=digits, rounding=ROUND_CEILING).create_decimal(repr(float(value))).normalize():f}"
