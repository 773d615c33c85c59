"""The record of every round: `rounds.jsonl` grows by a line a round while a run lives."""

from __future__ import annotations

import contextlib
import csv
import json
import math
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError

from pacbayes_fl import files, names
from pacbayes_fl.errors import UNREADABLE, CheckpointError, DamageWarning, DataError, shown
from pacbayes_fl.files import JsonMapping, JsonTable
from pacbayes_fl.results import run_failures
from pacbayes_fl.results.folder import sync_folder
from pacbayes_fl.results.manifest import put


class Steps(NamedTuple):
    """Norms of the clients' deltas in a round, each over all released numbers together.

    Args:
        median: of the norms of their steps, in the units of what they send.
        largest: of these norms.
        whose: name of the client with the largest.
    """

    median: float
    largest: float
    whose: str


@dataclass(frozen=True)
class RoundRecord:
    """One line of `rounds.jsonl`.

    Args:
        round: rounds finished, counted from 1.
        clients: how many took part; of a private round how many were expected.
        dropped: names of clients that were left out for a fault.
        values: numbers of the round by name: those of `results.recorded.RECORDED`, and in rounds that are evaluated
            the headline metric of the task (`results.metrics`) on test rows; classifiers have it for personal models
            ("pm.") and the global model ("gm."), and both with "validation." in front on validation rows. Private
            rounds have the epsilon spent so far (in a simulation as `SIMULATED_EPSILON`) where they are evaluated, and
            nothing else that tells of clients.
        histograms: shares by bin, by name. "entropy.CLIENT" holds the shares of that client's test rows whose
            predictive entropy over ln C lies in each of equal bins on [0, 1].
        steps: norms of the clients' steps; None in private rounds, and where no client moves the server.
        reasons: why somebody was left out, or something that came did not count, by the name of who sent it.
        undone: why the round was undone and played again with learning rates halved, each time.
        rates: factor of the study's learning rates in this round.
    """

    round: int
    clients: int
    dropped: tuple[str, ...] = ()
    values: Mapping[str, float] = field(default_factory=dict)
    histograms: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    steps: Steps | None = None
    reasons: Mapping[str, str] = field(default_factory=dict)
    undone: tuple[str, ...] = ()
    rates: float = 1.0


def typed(table: JsonMapping, key: str) -> Any:
    """Take a value of the kind that is written under its name.

    Args:
        table: as it was read.
        key: the name.

    Returns:
        The value.

    Raises:
        TypeError: when it is of another kind.
        KeyError: when there is none.
    """
    kind = int if key in ("seed", "round", "clients") else list if key == "dropped" else str
    if type(table[key]) is not kind:
        raise TypeError(f"{key!r} must be {kind.__name__}, got {shown(table[key])}")
    return table[key]


@contextlib.contextmanager
def readable(path: Path) -> Iterator[Path]:
    """Turn whatever is wrong with the contents of a file into an error that names it.

    Args:
        path: of the file.

    Yields:
        The path.

    Raises:
        DataError: naming the file and what is wrong.
    """
    try:
        yield path
    except (*UNREADABLE, SafetensorError, csv.Error) as error:
        usual = "the file was damaged or edited; resume the run with --resume to write it again"
        hint = run_failures.next_step(path.parent, usual)
        raise DataError(f"{path} cannot be read: {error}", hint=hint) from error


def to_line(record: RoundRecord) -> str:
    """Write a record as `read_rounds` takes it.

    Args:
        record: of a round.

    Returns:
        A line of JSON.
    """

    def number(value: float) -> float | str | None:  # JSON has no NaN and no infinity
        value = float(value)
        return value if math.isfinite(value) else None if math.isnan(value) else str(value)

    values = {name: number(value) for name, value in record.values.items()}
    entry: JsonTable = {
        "round": record.round,
        "clients": record.clients,
        "dropped": list(record.dropped),
        "values": values,
    }
    if record.histograms:  # most rounds have none
        entry["histograms"] = {name: [*map(number, shares)] for name, shares in record.histograms.items()}
    if record.steps is not None:
        entry["steps"] = record.steps._asdict()
    if record.reasons:
        entry["reasons"] = dict(record.reasons)
    if record.undone or record.rates != 1.0:
        entry |= {"undone": list(record.undone), "rates": record.rates}
    return names.in_json(json.dumps(entry, ensure_ascii=False, allow_nan=False)) + "\n"


def append_round(folder: Path | str, record: RoundRecord) -> None:
    """Add one line to `rounds.jsonl`; it is on disk when this returns, or not there at all.

    Write a round's line before its checkpoint: `truncate_rounds` drops a line too many, nothing restores a lost one.

    Args:
        folder: the run folder.
        record: the round that has just finished.

    Raises:
        CheckpointError: when the line cannot be written.
    """
    path = Path(folder) / "rounds.jsonl"
    try:
        with files.opened(path, "ab") as file:
            end = file.tell()
            try:
                file.write(to_line(record).encode())
                file.flush()
                os.fsync(file.fileno())
                if end == 0:
                    sync_folder(path.parent)
            except OSError:
                with contextlib.suppress(OSError):  # half a line would join the next one
                    os.ftruncate(file.fileno(), end)
                raise
    except OSError as error:
        raise CheckpointError(
            f"cannot write {path}: {error.strerror}", round=record.round, cause=error.strerror
        ) from error


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Number the whole lines; what stands after the last newline is a line that was cut short."""
    if path.is_file():
        yield from enumerate(path.read_bytes().split(b"\n")[:-1], 1)


def _record(number: int, text: bytes) -> RoundRecord:
    def real(value: float | str | None) -> float:
        return math.nan if value is None else float(value)

    try:
        read = json.loads(text)
        values = {key: real(value) for key, value in read["values"].items()}
        histograms = {key: tuple(map(real, shares)) for key, shares in read.get("histograms", {}).items()}
        steps = read.get("steps")
        if steps is not None:
            steps = Steps(float(steps["median"]), float(steps["largest"]), str(steps["whose"]))
        reasons = {key: str(text) for key, text in read.get("reasons", {}).items()}
        undone, rates = tuple(map(str, read.get("undone", ()))), float(read.get("rates", 1.0))
        dropped = tuple(map(str, typed(read, "dropped")))
        return RoundRecord(
            typed(read, "round"), read["clients"], dropped, values, histograms, steps, reasons, undone, rates
        )
    except UNREADABLE as error:
        raise ValueError(f"line {number}: {error}") from error


def read_rounds(folder: Path | str) -> tuple[RoundRecord, ...]:
    """Read `rounds.jsonl`, of a finished or a living run.

    Args:
        folder: the run folder.

    Returns:
        The records in order, without a last line that was cut short; empty when there is no file.

    Raises:
        DataError: naming the line that cannot be read.
    """
    with readable(Path(folder) / "rounds.jsonl") as path:
        return tuple(_record(number, text) for number, text in _lines(path))


def truncate_rounds(folder: Path | str, round: int) -> tuple[RoundRecord, ...]:
    """Drop the lines of rounds that no checkpoint covers, and a torn last line; damaged ones go with a warning.

    Args:
        folder: the run folder.
        round: the round that the run resumes from; later ones are dropped.

    Returns:
        The records that stay.

    Raises:
        CheckpointError: when the file cannot be replaced.
    """
    path = Path(folder) / "rounds.jsonl"
    kept = []
    for number, text in _lines(path):
        try:
            record = _record(number, text)
        except ValueError as error:
            warnings.warn(f"{path}, {error}: the record of that round is lost", DamageWarning, stacklevel=2)
            continue
        if record.round <= round:
            kept.append(record)
    put(path.parent, {path.name: "".join(map(to_line, kept)).encode()}, grows=True)
    return tuple(kept)
