"""Results of a finished run: numbers and names, saved to and loaded from its run folder.

The files are written at the end, `metrics.json` last: a folder that has it is a finished run. Every file is replaced as
a whole or not at all.
"""

from __future__ import annotations

import copy
import json
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal

from pacbayes_fl import names
from pacbayes_fl.errors import StudyError, counted, kinds_checked, meant, shown
from pacbayes_fl.files import JsonMapping, JsonTable
from pacbayes_fl.results import calibration, run_failures, run_settings
from pacbayes_fl.results.client_rows import FIXED, GROUPS, ClientRow, ClientRows, members, read_csv
from pacbayes_fl.results.folder import FILES, RELEASED, RELEASED_MODEL, refuse_links
from pacbayes_fl.results.frames import frame
from pacbayes_fl.results.manifest import put, put_written, verify
from pacbayes_fl.results.rounds import RoundRecord, read_rounds, readable, to_line, typed

if TYPE_CHECKING:  # imported where it is used: what a command line asks first needs no tensors
    import numpy as np
    import torch
    from pandas import DataFrame
    from torch import Tensor

SUPPOSED: Final = "_if_noise_were_secret"
SIMULATED_EPSILON: Final = f"epsilon{SUPPOSED}"
"""What an epsilon is called whose noise came from a seed, and so hides nothing from whoever knows that seed."""
TASKS: Final = ("regression", "classification")
_LABELS: Final = MappingProxyType(  # what tables print
    {"privacy": dict, "selections": dict, "calibration_bins": int, "group_sizes": dict, run_settings.LABEL: dict}
)
_PACKAGES: Final = ("pacbayes_fl", "torch", "gpytorch", "linear_operator", "pyro-ppl", "numpy", "safetensors")


@dataclass(frozen=True, eq=False)
class Result:
    """Everything that tables, plots and reports read of one run.

    Args:
        study: name of the study.
        method: name of the method.
        seed: the run's seed.
        task: "regression" or "classification".
        rounds: one record a round.
        clients: one row per client and group, kept as `ClientRows`.
        predictions: flat names "existing.mean" and so on: for each group x_train [K, N, d], y_train [K, N],
            mask_train [K, N], x_test [K, M, d], y_test, mask_test, mean, std, lower, upper, pit [K, M], with clients
            in the order of that group's rows and everything in the data's own units; pit_below [K, M], where targets
            have probabilities of their own, and coverage_by [K, M], the column that `report.coverage_by` names;
            time_train [K, N] and time_test [K, M], where rows have times, in the units that the label "time" says.
            Classification has y_test (int64)
            and mask_test (bool) [K, M], pm.probs (float32) [K, M, C], the personal models' probabilities averaged over
            draws, and gm.probs likewise where the method has a global model.
        labels: what can be said in JSON: names and units of features and target, notes, quantile levels; tuples come
            back as lists.

    Example:
        >>> import pacbayes_fl as fl
        >>> result = fl.run(fl.Study.from_toml("polynomial", ["federation.rounds=2", "method.particles=2"]))
        >>> result.method, result.round, result.task
        ('pac-pfl', 2, 'regression')
        >>> len(result.column("existing", "rsmse")), len(result.column("new", "rsmse"))  # a number for each client
        (24, 24)
    """

    study: str
    method: str
    seed: int
    task: str
    rounds: tuple[RoundRecord, ...] = ()
    clients: Sequence[ClientRow] = ()
    predictions: Mapping[str, Tensor] = field(default_factory=dict)
    labels: JsonMapping = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Take the rows of clients apart."""
        object.__setattr__(self, "clients", ClientRows.of(self.clients))

    @property
    def rows(self) -> ClientRows:
        """The rows of clients, by column."""
        return ClientRows.of(self.clients)

    def __repr__(self) -> str:
        """What was run, on how many clients, in one line; the numbers are in `summary`."""
        sizes = {group: self.rows.size_of(group) for group in GROUPS}
        ran = f"{self.method} on {self.study}, seed {self.seed}, {counted(len(self.rounds), 'round')}"
        text = f"{ran}, {members(sizes)}, {self.task}: {', '.join(self.metrics)}"
        return f"Result({names.printable(text)})"

    def _repr_html_(self) -> str:
        """What every group has on average, for notebooks."""
        rows = [
            [group, name, entry["mean"], *entry["interval"], entry["median"]]
            for group, metrics in self.summary()["groups"].items()
            for name in self.metrics
            if (entry := nested(metrics, name)) is not None
        ]
        title = f"{self.method} on {self.study}, seed {self.seed}, round {self.round}: mean over clients"
        return names.as_html(title, ("clients", "metric", "mean", "95 % from", "to", "median"), rows)

    def to_pandas(self, table: Literal["clients", "rounds"] = "clients") -> DataFrame:
        """Give the scores of the clients, or the numbers of the rounds, as a data frame.

        Args:
            table: "clients", a row per client and group as in `clients.csv`; or "rounds", a row per round.

        Returns:
            A column for every number, NaN where a row has none.

        Raises:
            StudyError: of another table.
            PacBayesFLError: when pandas is not installed.
        """
        if table == "clients":
            about = [(row.id, row.group, row.name, row.m) for row in self.clients]
            numbers, fixed = [row.metrics for row in self.clients], FIXED
        elif table == "rounds":
            about = [(one.round, one.clients, len(one.dropped)) for one in self.rounds]  # type: ignore[misc]
            numbers, fixed = [one.values for one in self.rounds], ("round", "clients", "dropped")  # type: ignore[assignment]
        else:
            raise StudyError(f"table must be 'clients' or 'rounds', got {shown(table)}")
        known = dict.fromkeys(name for row in numbers for name in row)
        columns = {name: [row[at] for row in about] for at, name in enumerate(fixed)}
        return frame({**columns, **{name: [row.get(name, math.nan) for row in numbers] for name in known}})

    @property
    def round(self) -> int:
        """The round whose models were scored: the last one, unless the labels say another."""
        return int(self.labels.get("round", self.rounds[-1].round if self.rounds else 0))

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of all metrics, in the order in which the clients' rows first mention them."""
        return self.rows.metrics

    def column(self, group: str, metric: str) -> list[float]:
        """Return a metric of every client of a group, in the order of the rows; NaN where a client has none.

        Args:
            group: "existing" or "new".
            metric: its name, as a column of `clients.csv`.

        Returns:
            One number a client; none of a group without clients.

        Raises:
            StudyError: when there is no such group or metric.
        """
        from pacbayes_fl.results.metrics import METRICS

        known = {*self.rows.metrics, *METRICS}
        if group not in GROUPS:
            raise StudyError(f"there is no group {shown(group)}", hint=" or ".join(GROUPS))
        if metric not in known and metric.rpartition(".")[2].removesuffix("_raw") not in METRICS:
            raise StudyError(f"there is no metric {shown(metric)}", hint=meant(metric, known))
        return self.rows.column(group, metric)

    def not_finite(self, group: str, metric: str) -> dict[str, str]:
        """Name the clients of a group with a non-finite score, and the score: "nan", "inf" or "-inf"."""
        own = (self.rows.names(group), self.rows.column(group, metric), self.rows.taken(group, metric))
        return {n: f"{score:g}" for n, score, taken in zip(*own, strict=True) if taken and not math.isfinite(score)}

    def summary(self, seed: int = 0) -> JsonTable:
        """Summarise the clients of each group, as in `metrics.json`.

        Clients weigh alike. `std` is the sample standard deviation over clients (ddof 1), `interval` the 95 %
        percentile bootstrap of the mean over clients; one client has neither. Clients whose value is NaN are left out,
        and then the entry says over how many `n_clients` it was taken; `not_finite` names them, and those whose value
        is infinite, with what they have. A number that is not finite is None. A dot nests: "pm.accuracy" stands in
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
    def _summary(self) -> JsonTable:
        """What is written and then shown: with many clients its bootstrap takes seconds."""
        return self._summarised(0)

    def _summarised(self, seed: int) -> JsonTable:
        import numpy as np

        from pacbayes_fl.results.bootstrap import nested_bootstraps

        groups: JsonTable = {}
        for group in GROUPS:
            if not (n_clients := self.rows.size_of(group)):
                continue
            groups[group] = {"n_clients": n_clients}
            columns = {metric: np.asarray(self.rows.column(group, metric), dtype=np.float64) for metric in self.metrics}
            every = {metric: values[~np.isnan(values)] for metric, values in columns.items()}
            known = {metric: values for metric, values in every.items() if values.size}
            with np.errstate(invalid="ignore"):  # an infinite value has no spread; that becomes None
                result = nested_bootstraps([[values.tolist()] for values in known.values()], seed)
            intervals = dict(zip(known, result, strict=True))
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

    @kinds_checked
    def save(self, folder: Path | str) -> None:
        """Write the result files of a run folder, each at once and `metrics.json` last.

        Args:
            folder: the run folder, made if it does not exist.

        Raises:
            StudyError: when the labels are not JSON.
            CheckpointError: when a file cannot be written.
        """
        from pacbayes_fl.results import tensor_file

        folder = Path(folder)
        try:
            labels = _json(self.labels)
        except (TypeError, ValueError) as error:
            raise StudyError(f"labels must be JSON: {error}") from error
        # without its metrics a folder counts as unfinished, so a crash from here on never shows a mixture as a result
        put(folder, {"metrics.json": None})
        written: dict[str, bytes | None] = {
            "rounds.jsonl": "".join(map(to_line, self.rounds)).encode(),
            "labels.json": labels.encode(),
            "metrics.json": _json(self.summary()).encode(),
        }
        put_written(folder, "predictions.safetensors", lambda file: tensor_file.write(file, self.predictions))
        put_written(folder, "clients.csv", self.rows.write_csv)
        tables = calibration.every_table(self, GROUPS)
        if tables:
            put_written(folder, calibration.FILE, lambda file: calibration.write_csv(file, tables))
        else:
            written[calibration.FILE] = None
        put(folder, written, last=True)

    def __eq__(self, other: object) -> bool:
        """Compare everything, numbers bit by bit; NaN equals NaN, and labels are compared as JSON."""
        if not isinstance(other, Result):
            return NotImplemented
        own, others = self.predictions, other.predictions
        return (
            (self.study, self.method, self.seed, self.task) == (other.study, other.method, other.seed, other.task)
            and [*map(to_line, self.rounds)] == [*map(to_line, other.rounds)]
            and self.rows == other.rows
            and _json(self.labels) == _json(other.labels)
            and own.keys() == others.keys()
            and all(_same(tensor, others[name]) for name, tensor in own.items())
        )


def nested(entry: JsonMapping, metric: str) -> JsonMapping | None:
    """Look a metric up in a group of a summary.

    Args:
        entry: of the group.
        metric: its name, dotted.

    Returns:
        Its numbers; None where the group has none.
    """
    for part in metric.split("."):
        entry = entry.get(part, {})
    return entry if "mean" in entry else None


def _same(a: Tensor, b: Tensor) -> bool:
    """Compare two tensors [*] with NaN equal to itself."""
    a, b = a.cpu(), b.cpu()
    return a.dtype == b.dtype and a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())


def _json(value: object) -> str:
    return names.in_json(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)) + "\n"


def _statistics(values: np.ndarray, interval: tuple[float, float, float]) -> JsonTable:
    import numpy as np

    def number(value: float) -> float | None:
        return float(value) if math.isfinite(value) else None

    mean, low, high = interval
    with np.errstate(invalid="ignore"):
        std = float(values.std(ddof=1)) if values.size > 1 else math.nan
        median = float(np.median(values)) if values.size else math.nan
    return {"mean": number(mean), "std": number(std), "median": number(median), "interval": [number(low), number(high)]}


def no_run(folder: Path, missing: str) -> StudyError:
    """The reason why a folder is not one of a finished run.

    Args:
        folder: that was given for one.
        missing: what it has not.

    Returns:
        The error.
    """
    if not folder.is_dir():
        return StudyError(f"there is no folder {folder}", hint="runs are in runs/ where no --out was given")
    if (folder / RELEASED).is_file():
        what = f"{folder} is a release of a run, which holds its model and none of its results"
        return StudyError(what, hint="show and plot take the run, and join takes a release")
    runs = sorted(path.parent.name for path in folder.glob("*-seed*/study.toml"))
    if runs and (folder / "compare.json").is_file():
        return StudyError(f"{folder} holds a comparison", hint=f"give one of its runs: {', '.join(runs[:6])}")
    if runs:
        usual = "run compare again with the same --out: finished runs are read"
        what, hint = run_failures.unfinished(folder, f"{folder} holds a comparison that has not finished", usual)
        return StudyError(what, hint=hint)
    if (folder / RELEASED_MODEL).is_file() and not (folder / "manifest.json").is_file():
        what = f"{folder} holds what is left of a release that was stopped: {RELEASED} is missing"
        return StudyError(what, hint="remove it, and release the run again")
    if any((folder / name).is_file() for name in FILES):
        what, usual = f"{folder} is not a finished run folder: {missing}", "has the run finished? resume with --resume"
        what, hint = run_failures.unfinished(folder, what, usual)
        return StudyError(what, hint=hint)
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

    Example:
        >>> import pacbayes_fl as fl
        >>> from pacbayes_fl.results.records import load
        >>> study = fl.Study.from_toml("polynomial", ["federation.rounds=2", "method.particles=2"])
        >>> fl.run(study, "kept_run") == load("kept_run")
        True
    """
    folder = Path(folder)
    refuse_links(folder)
    needed = ("metrics.json", "rounds.jsonl", "clients.csv", "predictions.safetensors", "labels.json")
    if missing := [name for name in needed if not (folder / name).is_file()]:
        raise no_run(folder, f"{' and '.join(missing)} {'are' if missing[1:] else 'is'} missing")
    from pacbayes_fl.results import tensor_file

    with readable(folder / "metrics.json") as path:
        head = json.loads(path.read_text("utf-8"))
        study, method, seed, task = (typed(head, key) for key in ("study", "method", "seed", "task"))
        if task not in TASKS:
            raise ValueError(f"'task' must be {' or '.join(TASKS)}, got {shown(task)}")
    with readable(folder / "clients.csv") as path, path.open(encoding="utf-8", newline="") as file:
        clients = read_csv(file)
    with readable(folder / "predictions.safetensors") as path:
        with path.open("rb") as file:
            predictions = tensor_file.read(file)
    with readable(folder / "labels.json") as path:
        labels = json.loads(path.read_text("utf-8"))
        for key, kind in _LABELS.items():
            if not isinstance(labels.get(key, kind()), kind):
                raise TypeError(f"{key!r} must be {kind.__name__}, got {shown(labels[key])}")
    if run_settings.LABEL not in labels and (asked := run_settings.saved(folder)):  # of a run of an earlier version
        labels = {**labels, run_settings.LABEL: asked}
    result = Result(study, method, seed, task, read_rounds(folder), clients, predictions, labels)
    verify(folder, needed)  # what can be read may have been altered as well
    return result


def environment(device: torch.device | str = "cpu") -> JsonTable:
    """The device of a run.

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
