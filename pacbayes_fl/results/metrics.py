"""The table of metrics: one record each, from which a run's scores, tables, figures, labels and searches are made.

Nothing is imported here that computes: a record names its function, which is loaded when it is first called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

from pacbayes_fl.errors import several
from pacbayes_fl.files import JsonMapping, JsonTable

if TYPE_CHECKING:
    from torch import Tensor

Task = Literal["regression", "classification"]
Function = Callable[..., "Tensor"]

PERSONAL: Final = "pm"
MODELS: Final[Mapping[str, str]] = MappingProxyType({PERSONAL: "personal model", "gm": "global model"})
"""The models of a classifier, by the first part of the names of their scores."""
MEAN_WEIGHTS: Final = "mean_weights"  # middle part of a score at the mean of the weights, not averaged over draws
VALIDATION: Final = "validation"  # first part of a score that is of validation rows
PARTS: Final = MappingProxyType({**MODELS, MEAN_WEIGHTS: "at the mean weights", VALIDATION: "validation rows"})
"""What the parts of a score's name in front of its metric mean."""
PLAIN, RAW, ALL_MODELS = "{}", "{}_raw", tuple(f"{model}.{{}}" for model in MODELS)
CALIBRATION_ERROR, COVERAGE = "ce", "coverage_95"  # of shares of rows below levels, and in the intervals of a run
DIVIDES_BY_SPREAD: Final = "rsmse"  # of a client's test targets, of which a single one has none


@dataclass(frozen=True)
class Option:
    """A setting of a study on which a metric depends: values under different settings are not comparable.

    Args:
        argument: name of the metric's argument.
        setting: its name in the study's table [report], and in the labels of a run.
        default: of a run that does not say.
        text: what axes and labels say of the value, such as "{} bins"; nothing where empty.
        sentence: what tables say of the value; nothing where empty.
    """

    argument: str
    setting: str
    default: Any
    text: str = ""
    sentence: str = ""


@dataclass(frozen=True)
class Metric:
    """A number that compares a client's predictions with its test rows: `(predictive, y, mask) -> [K]`, float64.

    The columns that it fills are named by patterns: "{}", "{}_raw" in the data's units, "pm.{}" and "gm.{}" by model.

    Args:
        name: in files and tables.
        label: on axes.
        unit: of its values on axes; nothing where empty.
        function: `(predictive, y, mask, **options) -> [K]`, or where it stands, as "package.module:name".
        better: which end is the good one; neither where empty.
        tasks: what it is a metric of.
        meaning: one sentence on what it is.
        options: of the study, that the function takes.
        raw: how it goes over to the data's own units: times their unit, as a log density, or not at all.
        note: what labels say of it, a template with the settings of its options; nothing where empty.
        run: columns that the table of a run shows.
        place: position among the columns of the table of a run; those of one place stand in the order of `METRICS`.
        comparison: columns that the table of a comparison shows; the files have all.
        boxes: columns whose spread over clients is drawn when nobody asks for others.
        headline: whether it is the score of its task that learning curves, progress and sweeps show; one per task.
        search: under which name a search can make it small; not at all where empty.
        summed: the number of a row from whose mean a search computes it, the first for every task.
        ends: least and largest value that it can have; None where there is no end.
        values: of the options, by setting.

    Example:
        >>> import torch, pacbayes_fl as fl
        >>> worst = lambda predictive, y, mask: torch.where(mask, (y - predictive.mean).abs(), 0.0).amax(1)
        >>> metric = fl.Metric("worst", "worst error", "", worst, "lower", ("regression",), "largest error of a client")
        >>> study = fl.Study.from_toml("polynomial", ["method.name=ridge"])
        >>> len(fl.run(study, metrics=[metric]).column("existing", "worst"))
        24
    """

    name: str
    label: str
    unit: str
    function: str | Function
    better: Literal["lower", "higher", ""]
    tasks: tuple[Task, ...]
    meaning: str
    options: tuple[Option, ...] = ()
    raw: Literal["times unit", "log density", ""] = ""
    note: str = ""
    run: tuple[str, ...] = ()
    place: int = 9
    comparison: tuple[str, ...] = ()
    boxes: tuple[str, ...] = ()
    headline: bool = False
    search: str = ""
    summed: Literal["loss", "log density", ""] = ""
    ends: tuple[float | None, float | None] = (None, None)
    values: JsonMapping = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse a lone text where several are meant."""
        for name in ("tasks", "options", "run", "comparison", "boxes"):
            several(name, getattr(self, name))

    def __call__(self, predictive: object, y: Tensor, mask: Tensor) -> Tensor:
        """Score predictions.

        Args:
            predictive: predictions for the same rows, [K, N].
            y: targets [K, N], in the unit of the predictive, or integer labels.
            mask: bool [K, N], True on real rows.

        Returns:
            A number per client [K]; NaN for a client without rows.

        Raises:
            ShapeError: when y, mask and the predictive disagree in shape.
        """
        function = self.function
        if isinstance(function, str):
            module, _, name = function.partition(":")
            function = getattr(import_module(module), name)
        given = {one.argument: self.values[one.setting] for one in self.options if one.setting in self.values}
        scores: Tensor = function(predictive, y, mask, **given)
        return scores

    def at(self, settings: JsonMapping) -> Metric:
        """Take the values of the options from a study.

        Args:
            settings: by name, as in its table [report].

        Returns:
            The metric with these values.
        """
        return replace(self, values={one.setting: settings.get(one.setting, one.default) for one in self.options})

    def labels(self) -> JsonTable:
        """Describe the metric under the settings of a run.

        Returns:
            Its note, and before it the values of options that axes say; nothing for a metric without a note.
        """
        said = {one.setting: self.values.get(one.setting, one.default) for one in self.options}
        shown = {one.setting: said[one.setting] for one in self.options if one.text}
        return {**shown, self.name: self.note.format(**said)} if self.note else {}


BINS: Final = Option("bins", "calibration_bins", 10, "{} bins", "{} bins of confidence")
_REGRESSION, _CLASSIFICATION = "pacbayes_fl.metrics.regression", "pacbayes_fl.metrics.classification"
_CALIBRATION = "pacbayes_fl.metrics.calibration"
_STANDARD = "standard deviations of the client's targets"
_BINNED = "top-label, {calibration_bins} bins of equal width (lo, hi] on [0, 1]"
_positive, _share = partial(Metric, ends=(0.0, None)), partial(Metric, ends=(0.0, 1.0))
_ROWS = (
    _positive(
        name="rsmse",
        label="RSMSE",
        unit="",
        function=f"{_REGRESSION}:rsmse",
        better="lower",
        tasks=("regression",),
        meaning="root mean squared error over the standard deviation of the client's test targets",
        note="root mean squared error over the population std of the client's test targets",
        run=(PLAIN,),
        comparison=(PLAIN,),
        boxes=(PLAIN,),
        headline=True,
        search="rsmse",
        summed="loss",
    ),
    _positive(
        name="rmse",
        label="RMSE",
        unit=_STANDARD,
        function=f"{_REGRESSION}:rmse",
        better="lower",
        tasks=("regression",),
        meaning="root mean squared error of the predictive mean",
        raw="times unit",
        run=(RAW,),
    ),
    _share(
        name="ce",
        label="calibration error",
        unit="",
        function=f"{_CALIBRATION}:calibration_error",
        better="lower",
        tasks=("regression",),
        meaning="mean distance between confidence levels and how many targets lie below their quantiles (eq. 41)",
        options=(Option("levels", "levels", "paper"),),
        note="eq. 41, mean absolute residual, levels {levels!r}",
        run=(PLAIN,),
        comparison=(PLAIN,),
        boxes=(PLAIN,),
    ),
    Metric(
        name="nlpd",
        label="NLPD",
        unit="nats per row",
        function=f"{_REGRESSION}:nlpd",
        better="lower",
        tasks=("regression",),
        meaning="negative log predictive density of the targets, mean over rows",
        raw="log density",
        note="nats per row, standardised by the client's training rows; nlpd_raw in the data's units",
        run=(PLAIN,),
        comparison=(PLAIN,),
        search="nlpd",
        summed="log density",
    ),
    _positive(
        name="crps",
        label="CRPS",
        unit=_STANDARD,
        function=f"{_REGRESSION}:crps",
        better="lower",
        tasks=("regression",),
        meaning="continuous ranked probability score, mean over rows",
        raw="times unit",
        run=(PLAIN,),
        comparison=(PLAIN,),
    ),
    _share(
        name=COVERAGE,
        label="coverage of the 95 % interval",
        unit="",
        function=f"{_CALIBRATION}:interval_coverage",
        better="",
        tasks=("regression",),
        meaning="share of targets inside the central 95 % interval",
    ),
    _share(
        name="accuracy",
        label="accuracy",
        unit="",
        function=f"{_CLASSIFICATION}:accuracy",
        better="higher",
        tasks=("classification",),
        meaning="share of rows whose most probable class is the label",
        run=ALL_MODELS,
        place=0,
        comparison=ALL_MODELS,
        boxes=ALL_MODELS,
        headline=True,
        search="error",
        summed="loss",
    ),
    _positive(
        name="nll",
        label="negative log likelihood",
        unit="nats per row",
        function=f"{_CLASSIFICATION}:nll",
        better="lower",
        tasks=("classification",),
        meaning="negative log likelihood of the labels, mean over rows",
        note="nats per row",
        run=ALL_MODELS[:1],
        comparison=ALL_MODELS[:1],
        search="nll",
        summed="log density",
    ),
    Metric(
        name="brier",
        label="Brier score",
        unit="",
        function=f"{_CLASSIFICATION}:brier",
        better="lower",
        tasks=("classification",),
        meaning="squared distance between probabilities and label, summed over classes, mean over rows",
        note="sum over classes, in [0, 2]",
        ends=(0.0, 2.0),
        run=ALL_MODELS[:1],
        comparison=ALL_MODELS[:1],
    ),
    _share(
        name="ece",
        label="expected calibration error",
        unit="",
        function=f"{_CLASSIFICATION}:ece",
        better="lower",
        tasks=("classification",),
        meaning="mean distance between confidence and accuracy over bins of confidence",
        options=(BINS,),
        note=f"{_BINNED}, l1 norm",
        run=ALL_MODELS,
        place=1,
        comparison=ALL_MODELS,
        boxes=ALL_MODELS[:1],
    ),
    _share(
        name="mce",
        label="maximum calibration error",
        unit="",
        function=f"{_CLASSIFICATION}:mce",
        better="lower",
        tasks=("classification",),
        meaning="largest distance between confidence and accuracy among bins of confidence",
        options=(BINS,),
        note=f"{_BINNED}, largest gap",
        comparison=ALL_MODELS[:1],
    ),
)

METRICS: Mapping[str, Metric] = MappingProxyType({metric.name: metric for metric in _ROWS})
"""Every metric by name; within a task in the order of the columns of result files."""


def of_task(task: str) -> dict[str, Metric]:
    """Select the metrics of a task.

    Args:
        task: "regression" or "classification".

    Returns:
        The records by name, in the order of `METRICS`.
    """
    return {name: metric for name, metric in METRICS.items() if task in metric.tasks}


def metric_of(column: str) -> Metric | None:
    """Look up the metric of a column of a run's scores.

    Args:
        column: such as "pm.mean_weights.ece" or "rmse_raw".

    Returns:
        The record; None for a column that is not a metric's.
    """
    name = column.rpartition(".")[2]
    return METRICS.get(name) or METRICS.get(name.removesuffix(RAW.format("")))


def is_raw(column: str) -> bool:
    """Whether a column holds a metric in the data's own units.

    Args:
        column: such as "rmse_raw".

    Returns:
        True where it is the raw form of a metric.
    """
    return column.rpartition(".")[2] not in METRICS and metric_of(column) is not None


def headline(task: str) -> Metric:
    """Give the metric that stands for a task where there is room for one.

    Args:
        task: "regression" or "classification".

    Returns:
        The record.
    """
    return next(metric for metric in of_task(task).values() if metric.headline)


def headline_column(task: str) -> str:
    """Name the column of a task's headline metric, for classifiers that of the personal models.

    Args:
        task: "regression" or "classification".

    Returns:
        Such as "pm.accuracy".
    """
    return headline(task).comparison[0].format(headline(task).name)


def headlines() -> dict[str, str]:
    """Name the columns of the headline metrics of all tasks.

    Returns:
        Columns by task.
    """
    return {task: headline_column(task) for metric in METRICS.values() for task in metric.tasks}


def run_columns(task: str) -> tuple[str, ...]:
    """Name the columns that the table of a run shows.

    Args:
        task: "regression" or "classification".

    Returns:
        Columns, model by model.
    """
    placed = sorted(of_task(task).values(), key=lambda metric: metric.place)
    return _by_pattern([(pattern, metric) for metric in placed for pattern in metric.run])


def comparison_columns(task: str) -> tuple[str, ...]:
    """Name the columns that the table of a comparison shows.

    Args:
        task: "regression" or "classification".

    Returns:
        Columns, model by model.
    """
    return _by_pattern([(pattern, metric) for metric in of_task(task).values() for pattern in metric.comparison])


def _by_pattern(wanted: list[tuple[str, Metric]]) -> tuple[str, ...]:
    """Sort columns by their pattern: all of the personal models before those of the global model."""
    patterns = dict.fromkeys(pattern for pattern, _ in wanted)
    return tuple(pattern.format(metric.name) for first in patterns for pattern, metric in wanted if pattern == first)


def box_columns() -> tuple[str, ...]:
    """Name the columns whose spread over clients is drawn by default.

    Returns:
        Columns of all tasks.
    """
    return tuple(pattern.format(metric.name) for metric in METRICS.values() for pattern in metric.boxes)


def search_scores(task: str) -> tuple[str, ...]:
    """Name the scores that a search can minimise.

    Args:
        task: "regression" or "classification".

    Returns:
        Names, the one from rows' losses, which is the default, before the one from their log densities.
    """
    return tuple(one.search for kind in ("loss", "log density") for one in of_task(task).values() if one.summed == kind)
