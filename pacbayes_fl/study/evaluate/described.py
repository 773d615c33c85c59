"""What can be said of the numbers of a run, wherever its clients are."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from types import MappingProxyType

from pacbayes_fl import settings
from pacbayes_fl.data import tables
from pacbayes_fl.data.scaling import Shared
from pacbayes_fl.files import JsonMapping, JsonTable
from pacbayes_fl.methods.base import AnyMethod
from pacbayes_fl.methods.options import flat_options
from pacbayes_fl.results import run_settings
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
    notes: JsonMapping = MappingProxyType({}),
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
        notes: how options were chosen that the study has left open.

    Returns:
        What tables and figures say of its numbers.
    """
    metrics = metrics_of(study, dataset.task)
    differences: JsonTable = {
        "differs_from_paper": {key: list(pair) for key, pair in study.differences().items()},
        run_settings.LABEL: run_settings.asked(_table(study), notes),
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


def _table(study: Study) -> JsonTable:
    """The values of a study, with the options of a method that a program has given, which are in no table."""
    table, given = study.table(), study.instances.method
    if given is not None:
        options = {one.name: settings.plain(attrgetter(at)(given)) for at, one in flat_options(type(given)).items()}
        table["method"] = {**table["method"], **options}
    return table
