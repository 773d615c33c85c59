"""What can be said of the numbers of a run, wherever its clients are."""

from __future__ import annotations

from collections.abc import Sequence

from pacbayes_fl.data import tables
from pacbayes_fl.data.scaling import Shared
from pacbayes_fl.files import JsonTable
from pacbayes_fl.methods.base import AnyMethod
from pacbayes_fl.results.client_rows import ClientRows
from pacbayes_fl.results.folder import leaving
from pacbayes_fl.results.rounds import RoundRecord
from pacbayes_fl.study.evaluate import classification, coverage, regression
from pacbayes_fl.study.evaluate.report import metrics_of
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.rows import scaling


def labels(
    study: Study,
    method: AnyMethod,
    round: int,
    dataset: tables.Dataset,
    shared: Shared,
    rows: ClientRows,
    rounds: Sequence[RoundRecord],
) -> JsonTable:
    """Describe a run (`labels.json`).

    Args:
        study: what was run.
        method: the algorithm.
        round: the last.
        dataset: gives the columns.
        shared: how they were scaled.
        rows: of all groups.
        rounds: of the run.

    Returns:
        What tables and figures say of its numbers.
    """
    metrics = metrics_of(study, dataset.task)
    differences: JsonTable = {
        "differs_from_paper": {key: list(pair) for key, pair in study.differences().items()},
        "round": round,
        "files": leaving(study.privacy.epsilon is not None and study.privacy.randomness == "system"),
        **({} if method.raw_units else scaling.labels(shared, dataset)),
    }
    if "test_rows" in dataset.provenance:
        differences["test_rows"] = dataset.provenance["test_rows"]
    if dataset.classes is not None:
        own = classification.labels(method, rows, rounds, metrics)
        return {"classes": dataset.classes, "target_name": dataset.target.name} | own | differences
    options = {**study.recipe.variant, **study.table()["method"]}
    own = regression.labels(options, dataset.features, dataset.target, metrics)
    columns = coverage.labels(study, dataset) | coverage.time_labels(study, dataset)
    return own | method.about() | columns | differences
