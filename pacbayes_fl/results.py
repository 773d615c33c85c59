"""What a run leaves behind: numbers and names, saved to and loaded from its run folder.

`rounds.jsonl` grows line by line while the run lives; the other files are written at the end, `metrics.json` last: a
folder that has it is a finished run. Every file is replaced as a whole or not at all.
"""

from __future__ import annotations

import contextlib
import copy
import csv
import io
import json
import math
import os
import platform
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from safetensors import SafetensorError

from pacbayes_fl import files, names
from pacbayes_fl.errors import UNREADABLE, CheckpointError, DamageWarning, DataError, ShapeError, StudyError, shown
from pacbayes_fl.results_folder import FILES, refuse_links, sync_folder
from pacbayes_fl.results_manifest import put, verify

if TYPE_CHECKING:  # imported where it is used: what a command line asks first needs no tensors
    import torch
    from torch import Tensor

GROUPS: Final = ("existing", "new")
SUPPOSED: Final = "_if_noise_were_secret"
SIMULATED_EPSILON: Final = f"epsilon{SUPPOSED}"
"""What an epsilon is called whose noise came from a seed, and so hides nothing from whoever knows that seed."""
TASKS: Final = ("regression", "classification")
_LABELS: Final = MappingProxyType({"privacy": dict, "selections": dict, "calibration_bins": int})  # what tables print
_FIXED: Final = ("id", "group", "name", "m")
_BLOCK: Final = 2**20  # numbers of bootstrap replicates that are held at once
_PACKAGES: Final = ("pacbayes_fl", "torch", "gpytorch", "linear_operator", "pyro-ppl", "numpy", "safetensors")


class Steps(NamedTuple):
    """How far the clients of a round went from what they were sent, each in all numbers that move the server together.

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
        values: numbers of the round by name: those of `metrics.recorded.RECORDED`, and in rounds that are evaluated
            the headline metric of the task (`metrics.table`) on test rows; classifiers have it for the personal models
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


@dataclass(frozen=True)
class ClientRow:
    """One line of `clients.csv`: a client's metrics in one group.

    Args:
        id: the stable client number.
        name: what tables call it.
        group: "existing" (took part in training) or "new" (never trained).
        m: its training rows.
        metrics: numbers by name; NaN says that the metric does not apply, absence that it was not taken. Classifiers
            have pm.accuracy, pm.nll, pm.brier, pm.ece and pm.mce of the personal model, averaged over draws of its
            weights, pm.mean_weights.accuracy and so on of its mean weights, and the same with gm. for a global model.
    """

    id: int
    name: str
    group: str
    m: int
    metrics: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what the table could not hold."""
        if self.group not in GROUPS:
            raise StudyError(f"group must be one of {', '.join(GROUPS)}, got {self.group!r}", client=self.name)
        if taken := [name for name in self.metrics if name in (*_FIXED, "n_clients", "")]:
            raise StudyError(f"metrics cannot be called {', '.join(map(repr, taken))}", client=self.name)


@dataclass(frozen=True, eq=False)
class Result:
    """Everything that tables, plots and reports read of one run.

    Args:
        study: name of the study.
        method: name of the method.
        seed: the run's seed.
        task: "regression" or "classification".
        rounds: one record a round.
        clients: one row per client and group.
        predictions: flat names "existing.mean" and so on: for each group x_train [K, N, d], y_train [K, N],
            mask_train [K, N], x_test [K, M, d], y_test, mask_test, mean, std, lower, upper, pit [K, M], with clients
            in the order of that group's rows and everything in the data's own units. Classification has y_test (int64)
            and mask_test (bool) [K, M], pm.probs (float32) [K, M, C], the personal models' probabilities averaged over
            draws, and gm.probs likewise where the method has a global model.
        labels: what can be said in JSON: names and units of features and target, notes, quantile levels; tuples come
            back as lists.
    """

    study: str
    method: str
    seed: int
    task: str
    rounds: tuple[RoundRecord, ...] = ()
    clients: tuple[ClientRow, ...] = ()
    predictions: Mapping[str, Tensor] = field(default_factory=dict)
    labels: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        """What was run, on how many clients, in one line; the numbers are in `summary`."""
        counts = [f"{sum(row.group == group for row in self.clients)} {group}" for group in GROUPS]
        ran = f"{self.method} on {self.study}, seed {self.seed}, {len(self.rounds)} rounds"
        told = f"{ran}, {' and '.join(counts)} clients, {self.task}: {', '.join(self.metrics)}"
        return f"Result({names.printable(told)})"

    @property
    def round(self) -> int:
        """The round whose models were scored: the last one, unless the labels say another."""
        return int(self.labels.get("round", self.rounds[-1].round if self.rounds else 0))

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of all metrics, in the order in which the clients' rows first mention them."""
        return tuple(dict.fromkeys(name for row in self.clients for name in row.metrics))

    def column(self, group: str, metric: str) -> list[float]:
        """Return a metric of every client of a group, in the order of the rows; NaN where a client has none."""
        return [float(row.metrics.get(metric, math.nan)) for row in self.clients if row.group == group]

    def not_finite(self, group: str, metric: str) -> dict[str, str]:
        """Name the clients of a group whose score is no finite number, with what it is: "nan", "inf" or "-inf"."""
        scores = {row.name: row.metrics[metric] for row in self.clients if row.group == group and metric in row.metrics}
        return {name: f"{score:g}" for name, score in scores.items() if not math.isfinite(score)}

    def summary(self, seed: int = 0) -> dict[str, Any]:
        """Summarise the clients of each group: what `metrics.json` holds.

        Clients weigh alike. `std` is the sample standard deviation over clients (ddof 1; 0 for one client), `interval`
        the 95 % percentile bootstrap of the mean over clients. Clients whose value is NaN are left out, and then
        the entry says over how many `n_clients` it was taken; `not_finite` names them, and those whose value is
        infinite, with what they have. A number that is not finite is None. A dot nests: "pm.accuracy" stands in
        `["pm"]["accuracy"]`.

        Args:
            seed: of the bootstrap.

        Returns:
            `{"study", "method", "seed", "task", "round", "groups": {"existing": {"n_clients", "rsmse": {"mean", "std",
            "median", "interval"}, ...}, "new": ...}}`, ready for JSON; a group without clients is absent. Where the run
            went on from an older round than its newest, which was damaged, "fell_back" says so.
        """
        return copy.deepcopy(self._summary) if seed == 0 else self._summarised(seed)

    @cached_property
    def _summary(self) -> dict[str, Any]:
        """What is written and then shown: with many clients its bootstrap takes seconds."""
        return self._summarised(0)

    def _summarised(self, seed: int) -> dict[str, Any]:
        groups: dict[str, Any] = {}
        for group in GROUPS:
            if not (n_clients := sum(row.group == group for row in self.clients)):
                continue
            groups[group] = {"n_clients": n_clients}
            columns = {metric: np.asarray(self.column(group, metric), dtype=np.float64) for metric in self.metrics}
            every = {metric: values[~np.isnan(values)] for metric, values in columns.items()}
            known = {metric: values for metric, values in every.items() if values.size}
            with np.errstate(invalid="ignore"):  # an infinite value has no spread; that becomes None
                found = nested_bootstraps([[values.tolist()] for values in known.values()], seed)
            intervals = dict(zip(known, found, strict=True))
            for metric, values in every.items():
                odd = self.not_finite(group, metric)
                if not (values.size or odd):  # a metric of other groups
                    continue
                entry = groups[group]
                for part in metric.split("."):
                    entry = entry.setdefault(part, {})
                entry.update(_statistics(values, intervals.get(metric, (math.nan,) * 3)))
                if values.size < n_clients:
                    entry["n_clients"] = int(values.size)
                if odd:
                    entry["not_finite"] = odd
        about = {"study": self.study, "method": self.method, "seed": self.seed, "task": self.task, "round": self.round}
        fell_back = {"fell_back": list(self.labels["fell_back"])} if "fell_back" in self.labels else {}
        return about | fell_back | {"groups": groups}

    def save(self, folder: Path | str) -> None:
        """Write the result files of a run folder, each at once and `metrics.json` last.

        Args:
            folder: the run folder, made if it does not exist.

        Raises:
            StudyError: when the labels are not JSON.
            CheckpointError: when a file cannot be written.
        """
        import safetensors.torch

        folder = Path(folder)
        try:
            labels = _json(self.labels)
        except (TypeError, ValueError) as error:
            raise StudyError(f"labels must be JSON: {error}") from error
        # a clone each, because safetensors refuses tensors that share memory
        tensors = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in self.predictions.items()}
        # without its metrics a folder counts as unfinished, so a crash from here on never shows a mixture as a result
        put(folder, {"metrics.json": None})
        written = {
            "rounds.jsonl": "".join(map(_line, self.rounds)).encode(),
            "clients.csv": _clients_csv(self).encode(),
            "predictions.safetensors": safetensors.torch.save(tensors),
            "labels.json": labels.encode(),
            "metrics.json": _json(self.summary()).encode(),
        }
        put(folder, written, last=True)

    def __eq__(self, other: object) -> bool:
        """Compare everything, numbers bit by bit; NaN equals NaN, and labels are compared as JSON."""
        if not isinstance(other, Result):
            return NotImplemented
        mine, theirs = self.predictions, other.predictions
        return (
            (self.study, self.method, self.seed, self.task) == (other.study, other.method, other.seed, other.task)
            and [*map(_line, self.rounds)] == [*map(_line, other.rounds)]
            and _clients_csv(self) == _clients_csv(other)
            and _json(self.labels) == _json(other.labels)
            and mine.keys() == theirs.keys()
            and all(_same(tensor, theirs[name]) for name, tensor in mine.items())
        )


def _same(a: Tensor, b: Tensor) -> bool:
    """Compare two tensors [*] with NaN equal to itself."""
    a, b = a.cpu(), b.cpu()
    return a.dtype == b.dtype and a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())


def _json(value: Any) -> str:
    return names.in_json(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)) + "\n"


def _statistics(values: np.ndarray, interval: tuple[float, float, float]) -> dict[str, Any]:
    def number(value: float) -> float | None:
        return float(value) if math.isfinite(value) else None

    mean, low, high = interval
    with np.errstate(invalid="ignore"):
        std = float(values.std(ddof=1)) if values.size > 1 else 0.0 if values.size else math.nan
        median = float(np.median(values)) if values.size else math.nan
    return {"mean": number(mean), "std": number(std), "median": number(median), "interval": [number(low), number(high)]}


def _clients_csv(result: Result) -> str:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    metrics = result.metrics
    table.writerow([*_FIXED, *map(names.to_cell, metrics)])
    for row in result.clients:  # repr of a float reads back as the same float; an empty cell is a metric not taken
        cells = [repr(float(row.metrics[name])) if name in row.metrics else "" for name in metrics]
        table.writerow([row.id, row.group, names.to_cell(row.name), row.m, *cells])
    return text.getvalue()


def no_run(folder: Path, missing: str) -> StudyError:
    """Say why a folder is not one of a finished run, and what it is instead.

    Args:
        folder: that was given for one.
        missing: what it has not.

    Returns:
        The error.
    """
    if not folder.is_dir():
        return StudyError(f"there is no folder {folder}", hint="runs are in runs/ where no --out was given")
    runs = sorted(path.parent.name for path in folder.glob("*-seed*/study.toml"))
    if runs and (folder / "compare.json").is_file():
        return StudyError(f"{folder} holds a comparison", hint=f"give one of its runs: {', '.join(runs[:6])}")
    if runs:
        hint = "run compare again with the same --out: finished runs are read"
        return StudyError(f"{folder} holds a comparison that has not finished", hint=hint)
    if any((folder / name).is_file() for name in FILES):
        hint = "has the run finished? resume with --resume"
        return StudyError(f"{folder} is not a finished run folder: {missing}", hint=hint)
    return StudyError(f"{folder} is not a run folder: {missing}", hint="`pacbayes-fl run` makes one")


def load(folder: Path | str) -> Result:
    """Read a finished run folder.

    Args:
        folder: where `Result.save` wrote.

    Returns:
        A result equal to the one that was saved.

    Raises:
        StudyError: when a file is missing, so that this is no finished run folder.
        DataError: naming the file that cannot be read.
        CheckpointError: when a link stands in place of a file.

    Warns:
        DamageWarning: of every other file of the folder that was altered or lost.
    """
    folder = Path(folder)
    refuse_links(folder)
    needed = ("metrics.json", "rounds.jsonl", "clients.csv", "predictions.safetensors", "labels.json")
    if missing := [name for name in needed if not (folder / name).is_file()]:
        raise no_run(folder, f"{' and '.join(missing)} {'are' if missing[1:] else 'is'} missing")
    import safetensors.torch

    with readable(folder / "metrics.json") as path:
        head = json.loads(path.read_text("utf-8"))
        study, method, seed, task = (_typed(head, key) for key in ("study", "method", "seed", "task"))
        if task not in TASKS:
            raise ValueError(f"'task' must be {' or '.join(TASKS)}, got {shown(task)}")
    with readable(folder / "clients.csv") as path, path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
        if tuple(rows[0][:4]) != _FIXED:
            raise ValueError(f"expected columns {', '.join(_FIXED)}, got {', '.join(rows[0][:4])}")
        metrics = [*map(names.from_cell, rows[0][4:])]
        clients = tuple(
            ClientRow(
                int(client),
                names.from_cell(name),
                group,
                int(m),
                {metric: float(cell) for metric, cell in zip(metrics, cells, strict=True) if cell},
            )
            for client, group, name, m, *cells in rows[1:]
        )
    with readable(folder / "predictions.safetensors") as path:
        predictions = safetensors.torch.load(path.read_bytes())
    with readable(folder / "labels.json") as path:
        labels = json.loads(path.read_text("utf-8"))
        for key, kind in _LABELS.items():
            if not isinstance(labels.get(key, kind()), kind):
                raise TypeError(f"{key!r} must be {kind.__name__}, got {shown(labels[key])}")
    result = Result(study, method, seed, task, read_rounds(folder), clients, predictions, labels)
    verify(folder, needed)  # what can be read may have been altered as well
    return result


def _typed(table: Mapping[str, Any], key: str) -> Any:
    """Take a value of the kind that is written under its name."""
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
        hint = "the file was damaged or edited; resume the run with --resume to write it again"
        raise DataError(f"{path} cannot be read: {error}", hint=hint) from error


def _line(record: RoundRecord) -> str:
    def number(value: float) -> float | str | None:  # JSON has no NaN and no infinity
        value = float(value)
        return value if math.isfinite(value) else None if math.isnan(value) else str(value)

    values = {name: number(value) for name, value in record.values.items()}
    line = {"round": record.round, "clients": record.clients, "dropped": list(record.dropped), "values": values}
    if record.histograms:  # most rounds have none
        line["histograms"] = {name: [*map(number, shares)] for name, shares in record.histograms.items()}
    if record.steps is not None:
        line["steps"] = record.steps._asdict()
    if record.reasons:
        line["reasons"] = dict(record.reasons)
    if record.undone or record.rates != 1.0:
        line |= {"undone": list(record.undone), "rates": record.rates}
    return names.in_json(json.dumps(line, ensure_ascii=False, allow_nan=False)) + "\n"


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
                file.write(_line(record).encode())
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


def _record(number: int, line: bytes) -> RoundRecord:
    def real(value: float | str | None) -> float:
        return math.nan if value is None else float(value)

    try:
        read = json.loads(line)
        values = {key: real(value) for key, value in read["values"].items()}
        histograms = {key: tuple(map(real, shares)) for key, shares in read.get("histograms", {}).items()}
        steps = read.get("steps")
        if steps is not None:
            steps = Steps(float(steps["median"]), float(steps["largest"]), str(steps["whose"]))
        reasons = {key: str(text) for key, text in read.get("reasons", {}).items()}
        undone, rates = tuple(map(str, read.get("undone", ()))), float(read.get("rates", 1.0))
        dropped = tuple(map(str, _typed(read, "dropped")))
        return RoundRecord(
            _typed(read, "round"), read["clients"], dropped, values, histograms, steps, reasons, undone, rates
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
        return tuple(_record(number, line) for number, line in _lines(path))


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
    for number, line in _lines(path):
        try:
            record = _record(number, line)
        except ValueError as error:
            warnings.warn(f"{path}, {error}: the record of that round is lost", DamageWarning, stacklevel=2)
            continue
        if record.round <= round:
            kept.append(record)
    put(path.parent, {path.name: "".join(map(_line, kept)).encode()}, grows=True)
    return tuple(kept)


def environment(device: torch.device | str = "cpu") -> dict[str, Any]:
    """Say on what a run was computed.

    Args:
        device: the device that it uses.

    Returns:
        Versions (None for a package that is not installed), device, threads and platform, ready for JSON.
    """
    from importlib import metadata

    import torch

    versions: dict[str, str | None] = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    device = torch.device(device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "versions": versions,
        "device": str(device),
        "device_name": name,
        "threads": torch.get_num_threads(),
        "platform": platform.platform(),
    }


def nested_bootstrap(
    values: Sequence[Sequence[float]], seed: int = 0, draws: int = 2000, level: float = 0.95
) -> tuple[float, float, float]:
    """Percentile bootstrap of a mean over seeds and clients.

    Seeds are drawn with replacement, and clients within them. When every seed has the same number of clients they
    are taken to be the same clients in the same order, and one draw of clients serves all seeds of a replicate
    (crossed, Owen's pigeonhole bootstrap): a client that is hard is hard under every seed, and drawing it anew for
    each would average that away and make the interval too narrow by up to sqrt(seeds). Should the clients in truth
    be different ones, the crossed draw only widens the interval: it counts noise of single entries up to 3 times,
    the nested one up to 2 times. With unequal numbers, clients are drawn for each drawn seed on its own (nested). A
    single seed is kept as it is: the interval then speaks of clients only. With few seeds the part that is due to
    seeds is too narrow by about sqrt((seeds - 1) / seeds), as in every percentile bootstrap.

    Args:
        values: `values[seed][client]`; a NaN makes all three numbers NaN.
        seed: of the bootstrap itself.
        draws: number of replicates.
        level: of the interval.

    Returns:
        The mean (every seed weighs alike), and the lower and upper end of the interval.

    Raises:
        ShapeError: when there is no seed, or a seed without clients.
        StudyError: when the level is outside (0, 1) or there is no draw.
    """
    return nested_bootstraps([values], seed, draws, level)[0]


def nested_bootstraps(
    many: Sequence[Sequence[Sequence[float]]], seed: int = 0, draws: int = 2000, level: float = 0.95
) -> list[tuple[float, float, float]]:
    """Do as `nested_bootstrap` for several metrics of the same seeds and clients, whom all of them draw alike.

    Which clients a replicate draws depends on the seed and on how many there are, not on their values: it is drawn once
    for all metrics of as many clients, a block of replicates at a time.

    Args:
        many: `many[metric][seed][client]`.
        seed: of the bootstrap itself.
        draws: number of replicates.
        level: of the interval.

    Returns:
        For each metric what `nested_bootstrap` gives, bit by bit.

    Raises:
        ShapeError, StudyError: as `nested_bootstrap`.
    """
    if not 0.0 < level < 1.0 or draws < 1:
        raise StudyError(f"level must be in (0, 1) and draws at least 1, got {level} and {draws}")
    found: list[tuple[float, float, float]] = []
    alike: dict[tuple[int, ...], list[int]] = {}
    rows = [[np.asarray(row, dtype=np.float64) for row in values] for values in many]
    for k, values in enumerate(rows):
        if not values or any(row.ndim != 1 or not row.size for row in values):
            what = f"values must hold at least one client for every seed, got lengths {[len(r) for r in many[k]]}"
            raise ShapeError(what)
        found.append((float(np.mean([row.mean() for row in values])), math.nan, math.nan))
        if all(np.isfinite(row).all() for row in values):
            alike.setdefault(tuple(row.size for row in values), []).append(k)
    for sizes, metrics in alike.items():
        replicates = _replicates([rows[k] for k in metrics], sizes, np.random.default_rng(seed), draws)
        for k, means in zip(metrics, replicates, strict=True):
            low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
            found[k] = (found[k][0], float(low), float(high))
    return found


def _replicates(
    many: list[list[np.ndarray]], sizes: tuple[int, ...], random: np.random.Generator, draws: int
) -> np.ndarray:
    """Means of bootstrap replicates of several metrics [M, draws], by the same draws of seeds and clients."""
    n_seeds, means = len(sizes), np.empty((len(many), draws))
    if len(set(sizes)) == 1:
        # how often each seed and each client was drawn: all that a replicate's mean depends on
        n = sizes[0]
        seeds = random.multinomial(n_seeds, np.full(n_seeds, 1 / n_seeds), size=draws)
        by_seed = [np.stack(values) if n_seeds == 1 else seeds @ np.stack(values) for values in many]
        step = max(1, _BLOCK // n)
        for at in range(0, draws, step):
            clients = random.multinomial(n, np.full(n, 1 / n), size=min(step, draws - at)).astype(np.float64)
            for mean, values in zip(means, by_seed, strict=True):
                drawn = values if n_seeds == 1 else values[at : at + step]
                mean[at : at + step] = (drawn * clients).sum(1) / (n_seeds * n)
        return means
    lengths = np.array(sizes)
    chosen = random.integers(n_seeds, size=(draws, n_seeds, 1))
    n_clients = lengths[chosen]
    position = random.integers(n_clients, size=(draws, n_seeds, max(sizes)))
    counted = np.arange(max(sizes)) < n_clients
    for mean, values in zip(means, many, strict=True):
        padded = np.zeros((n_seeds, max(sizes)))
        for row, target in zip(values, padded, strict=True):
            target[: row.size] = row
        mean[:] = ((padded[chosen, position] * counted).sum(2, keepdims=True) / n_clients).mean((1, 2))
    return means
