"""How often the rows of a bound were asked: every request stands in a file of the run, and later ones pay for it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pacbayes_fl import files
from pacbayes_fl.errors import UNREADABLE, CheckpointError
from pacbayes_fl.files import JsonMapping, JsonTable
from pacbayes_fl.results.certificates import FOLDER
from pacbayes_fl.results.folder import FILES
from pacbayes_fl.results.manifest import extend, problems, read

FILE = "certified.jsonl"
"""What a run folder calls the requests for certificates of its rows: a line each, of which none is ever removed."""

ARRIVED = "arrived"
"""Under which a request of a bound at all numbers of rows says which updates had come, in their order.

It holds of one sequence of rows: with more updates it is the same request, on a line with the same number, and where
others came, as in a copy of the folder, another one.
"""


@dataclass(frozen=True)
class Turn:
    """Which request of the same rows this is.

    Args:
        number: from 1; a request that was made before, of the same round, keeps its number.
        entry: of the file.
        folder: of the run; None where a run has none, and nothing is counted.
        reason: why the number of earlier requests is unknown; empty where it is known.
    """

    number: int = 1
    entry: JsonMapping | None = None
    folder: Path | None = None
    reason: str = ""

    def keep(self) -> None:
        """Write the request down, unless it stands there.

        Raises:
            CheckpointError: when another request came first, or the file cannot be written.
        """
        if self.folder is None or self.entry is None:
            return
        path = self.folder / FILE
        with _beside(self.folder), _locked(path) as file:
            extend(self.folder, FILE)
            now = _number(self.folder, self.entry)
            if now != self.number:
                what = f"request {self.number} of these rows became request {now} while it was answered"
                raise CheckpointError(what, cause="another request", hint="certify again")
            if not any(_holds(line, self.entry, self.number) for line in _lines(path)):
                file.write("" if _ends(path) else "\n")  # after half a line, which counts as one
                file.write(json.dumps({"number": self.number, **self.entry}) + "\n")
                file.flush()
                os.fsync(file.fileno())
            extend(self.folder, FILE)


def turn(folder: Path | None, entry: JsonMapping) -> Turn:
    """Take the number of a request.

    The runs that are known of are those in folders beside this one whose data have the same `split_sha256`, or are of
    the same file byte by byte: runs with other seeds, methods or columns, among which somebody may choose by their
    certificates. Of runs elsewhere, of copies of the rows in other files, and of logs that were removed together with
    their tables, nothing is known here.

    Args:
        folder: of the run; None where a run has none.
        entry: all that tells one request from another, as JSON: bound and settings, "round", "state" and "split" of
            what is certified, and "tables", by which delta is shared; `ARRIVED` of a bound at all numbers of rows.

    Returns:
        The number, or why there is none.
    """
    if folder is None:
        return Turn()
    entry = json.loads(json.dumps({**entry, "file": _file_of(folder)}))
    others = [name for name in FILES if name != FILE]
    if read(folder) is not None and (what := problems(folder, without=[*others, "checkpoints/"]).get(FILE)):
        return Turn(reason=f"{folder / FILE} {what}: how often the rows were asked is not known")
    known = {line.get("number") for line in _lines(folder / FILE)}
    for path in sorted((folder / FOLDER).glob("*.json")):
        with contextlib.suppress(*UNREADABLE):  # of damage it is told where tables are read
            number = json.loads(path.read_text("utf-8")).get("number")
            if number is not None and number not in known:
                what = f"{path} is request {number} of these rows, which {FILE} does not hold"
                return Turn(reason=f"{what}: how often the rows were asked is not known")
    tables = entry.get("tables")
    for line in _known(folder, entry):
        if line and line.get("tables") != tables:  # 1 / N and 1 / (k (k + 1)) may sum to more than 1
            what = f"request {line['number']} of these rows was made with report.certify.tables = {line.get('tables')}"
            return Turn(reason=f"{what}, and this one with {tables}: by one rule alone their shares sum to delta")
    return Turn(_number(folder, entry), entry, folder)


def share(number: int, tables: int | None) -> int | None:
    """The divisor of delta for the k-th request on the same rows.

    The k-th gets delta / (k (k + 1)). As sum_k 1 / (k (k + 1)) = 1, all certificates that are ever made of the rows
    hold together with probability 1 - delta by the union bound, however many they become and whenever somebody stops,
    as long as what is asked does not depend on the numbers of earlier ones; with N tables settled beforehand each gets
    delta / N. Who lets the numbers choose what to ask next, such as the beta, counts the values that it could have
    been: `tried`.

    Args:
        number: k, from 1.
        tables: N, if it was settled.

    Returns:
        k (k + 1), or N; None for a request beyond N.
    """
    if tables is None:
        return number * (number + 1)
    return tables if number <= tables else None


def _file_of(folder: Path) -> str | None:
    """Fingerprint of the file or the generated rows that a run was made of, whichever columns and cut it took."""
    with contextlib.suppress(*UNREADABLE):
        known = json.loads((folder / "environment.json").read_text("utf-8"))["data"]
        result = known.get("file_sha256", known.get("sha256"))
        return result if isinstance(result, str) else None  # of images there are several, of which rows are drawn
    return None


def _number(folder: Path, entry: JsonMapping) -> int:
    known = _known(folder, entry)
    for line in _lines(folder / FILE):
        if line and _asked_before(line, entry):
            number = int(line["number"])
            same = [each for each in known if each and _asked_before(each, {**entry, ARRIVED: []}, number)]
            if all(_one_sequence(each, entry) for each in same):
                return number
    numbers = [int(line["number"]) for line in known if line]
    return 1 + max(len(known) - _continued(known), *numbers, 0)


def _continued(lines: Sequence[JsonMapping]) -> int:
    """Count the lines of requests that stand on a line before with fewer updates."""
    plain = [json.dumps({**line, ARRIVED: None}, sort_keys=True) for line in lines]
    return sum(bool(line.get(ARRIVED)) and plain[at] in plain[:at] for at, line in enumerate(lines))


def _known(folder: Path, entry: JsonMapping) -> list[JsonTable]:
    """Requests of the same rows, here and in folders beside; empty what cannot be read."""
    here = folder.resolve()
    beside = {path.resolve() for path in here.parent.glob(f"*/{FILE}")} - {here / FILE}  # links lead to one file
    others = [line for path in sorted(beside) for line in _lines(path) if _same_rows(line, entry)]
    return _lines(folder / FILE) + others


def _same_rows(line: JsonMapping, entry: JsonMapping) -> bool:
    """Whether two requests are of one file, or of the same rows; columns and cuts may have been chosen by them."""
    file = entry.get("file")
    return line.get("split") == entry["split"] or (file is not None and line.get("file") == file)


def _lines(path: Path) -> list[JsonTable]:
    """Read the requests of a file; what cannot be read is one of which nothing else is known."""
    result: list[JsonTable] = []
    if path.is_file():
        for text in path.read_bytes().split(b"\n"):
            with contextlib.suppress(*UNREADABLE):
                line = json.loads(text)
                result.append(line if isinstance(line, dict) and isinstance(line.get("number"), int) else {})
                continue
            if text.strip():
                result.append({})
    return result


def _asked_before(line: JsonMapping, entry: JsonMapping, number: int | None = None) -> bool:
    """Whether a request is one that stands there; lines of before files were compared do not say theirs."""
    stands = {"file": entry.get("file"), **line, ARRIVED: None}
    asked = {"file": None, **entry, "number": line.get("number") if number is None else number, ARRIVED: None}
    return stands == asked and _one_sequence(line, entry)


def _one_sequence(line: JsonMapping, entry: JsonMapping) -> bool:
    """Whether of the updates of two requests those of one begin those of the other."""
    pairs = zip(line.get(ARRIVED, ()), entry.get(ARRIVED, ()), strict=False)
    return all(one == other for one, other in pairs)


def _holds(line: JsonMapping, entry: JsonMapping, number: int) -> bool:
    """Whether a line is of a request, with all updates that had come."""
    here = len(line.get(ARRIVED, ())) >= len(entry.get(ARRIVED, ()))
    return bool(line) and here and _asked_before(line, entry, number)


def _ends(path: Path) -> bool:
    """Whether a file is empty or ends with a whole line."""
    data = path.read_bytes()
    return not data or data.endswith(b"\n")


@contextlib.contextmanager
def _beside(folder: Path) -> Iterator[None]:
    """Let requests in folders beside this one wait, where a system can lock a folder: they count each other's."""
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            parent = os.open(folder.resolve().parent, os.O_RDONLY)
            held.callback(os.close, parent)
            fcntl.flock(parent, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[IO[str]]:
    try:
        with files.opened(path, "a", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
    except OSError as error:
        raise CheckpointError(f"cannot write {path}: {error.strerror}", cause=error.strerror) from error
