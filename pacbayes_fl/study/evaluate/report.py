"""What the scores of regression and of classification have in common: metrics, states, and the form of a report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from pacbayes_fl.errors import StudyError
from pacbayes_fl.federation.client_states import Kept
from pacbayes_fl.federation.federation_state import FederationState
from pacbayes_fl.files import JsonTable
from pacbayes_fl.methods.base import AnyMethod
from pacbayes_fl.results import metrics as table
from pacbayes_fl.results.client_rows import ClientRows
from pacbayes_fl.results.metrics import Metric, of_task
from pacbayes_fl.study.data import ScaledGroup
from pacbayes_fl.study.file import Study


class Report(NamedTuple):
    """Rows of `clients.csv` and tensors of `predictions.safetensors` for one group."""

    rows: ClientRows
    predictions: dict[str, Tensor]


def metrics_of(study: Study, task: str) -> dict[str, Metric]:
    """The metrics of a study's runs.

    Args:
        study: its table [report] has the options of metrics.
        task: "regression" or "classification".

    Returns:
        Metrics by name, in the order of the columns of result files, with the study's values of their options.

    Raises:
        StudyError: when a metric of one's own is not of this task, or two have one name.
    """
    result = of_task(task)
    for name in study.report.metrics:
        metric = study.metric(name)
        if task not in metric.tasks:
            what = f"[report] metrics: {name} is of {' and '.join(metric.tasks)}, and the study of {task}"
            raise StudyError(what, hint="drop it, or name the task among its tasks")
        if (other := result.get(metric.name, metric)) != metric:
            raise StudyError(f"[report] metrics: two are called {other.name!r}", hint="give each a name of its own")
        result[metric.name] = metric
    return {name: metric.at(vars(study.report)) for name, metric in result.items()}


def notes(metrics: Mapping[str, Metric]) -> JsonTable:
    """Describe metrics (`labels.json`).

    Args:
        metrics: with the values of their options.

    Returns:
        A part of `labels.json`: a note by metric, and the values of options that axes say.
    """
    result = {name: value for metric in metrics.values() for name, value in metric.labels().items()}
    own = {name: metric.meaning for name, metric in metrics.items() if name not in table.METRICS}
    better = {name: metrics[name].better for name in own}
    return result | ({"own_metrics": own, "own_better": better} if own else {})


def state_of(method: AnyMethod, state: FederationState, group: str, scaled: ScaledGroup) -> FederationState:
    """Give the state in which a group personalises: its own for existing clients, a fresh one for new clients.

    Args:
        method: the algorithm.
        state: of the federation.
        group: "existing" or "new".
        scaled: the group's rows.

    Returns:
        The state, with as many clients as the group has.
    """
    if group == "existing":
        return state
    return state._replace(kept=Kept.start(method, method.broadcast(state.server), scaled.train))
