"""Every number that a run of any method records is in a table of records, and drawn; and nothing else is."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pacbayes_fl.methods import METHODS
from pacbayes_fl.plots import NothingToDrawError, diagnostics, learning_curve, uncertainty_histograms
from pacbayes_fl.plots.learning import drawn_by_default
from pacbayes_fl.plots.style import metric_label
from pacbayes_fl.results.client_rows import ClientRow
from pacbayes_fl.results.metrics import MEAN_WEIGHTS, MODELS, VALIDATION, metric_of
from pacbayes_fl.results.recorded import RECORDED
from pacbayes_fl.results.records import Result
from pacbayes_fl.results.rounds import RoundRecord
from pacbayes_fl.study.run import run
from tests.plots.conftest import make_classes, make_result
from tests.tiny import on_csv, quick, rows, write_csv
from tests.tiny_images import tiny_images, write_root

pytestmark = [pytest.mark.law, pytest.mark.filterwarnings("ignore")]

Runner = Callable[..., Result]
ROUNDS = ["federation.rounds=2", "report.evaluate_every=1"]
NUMBERS = tuple(name for name, recipe in METHODS.items() if "regression" in recipe.learns)
LABELLED = tuple(name for name, recipe in METHODS.items() if "classification" in recipe.learns)
PRIVATE = {  # what only some runs record
    randomness: ["privacy.epsilon=50", "privacy.clip=1", f"privacy.randomness={randomness}", "method.weighting=uniform"]
    for randomness in ("simulation", "system")
}
PRIVATE["following"] = [*PRIVATE["system"], "privacy.clip_quantile=0.5"]


@pytest.fixture(scope="module")
def regression(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    folder = tmp_path_factory.mktemp("rows")
    table = write_csv(folder / "rows.csv", rows())

    @cache
    def made(method: str, *sets: str) -> Result:
        out = folder / "-".join([method, *sets]) if sets else None  # a private run keeps a ledger
        return run(on_csv(table, *quick(method), *ROUNDS, *sets), out)

    return made


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    root = write_root(tmp_path_factory.mktemp("images"))

    @cache
    def made(method: str) -> Result:
        return run(tiny_images(root, *quick(method), *ROUNDS))

    return made


DRAWN: set[Any] = set()
"""What the figures of an earlier method have shown: those of the same records are the same."""


def numbers_of_rounds(result: Result) -> list[str]:
    return list(dict.fromkeys(name for record in result.rounds for name in record.values))


def is_known(name: str, place: str) -> bool:
    """Whether a key is a column of a metric, with the parts that a name can have, or a record of its place."""
    *parts, _ = name.split(".")
    if metric_of(name):
        return set(parts) <= {*MODELS, MEAN_WEIGHTS, VALIDATION}
    return name in RECORDED and place in RECORDED[name].of


def check(result: Result) -> None:
    """Check that everything that a run recorded is known and drawn."""
    rounds = numbers_of_rounds(result)
    assert not [name for name in rounds if not is_known(name, "rounds")]
    assert not [name for name in result.metrics if not is_known(name, "clients")]
    histograms = {name.split(".")[0] for record in result.rounds for name in record.histograms}
    assert all("histograms" in RECORDED[name].of for name in histograms)
    finite = {name for one in result.rounds for name, value in one.values.items() if math.isfinite(value)}
    described = [name for name in result.metrics if name in RECORDED]
    recorded = (result.task, frozenset(finite), frozenset(described), frozenset(histograms))
    if recorded in DRAWN:
        return
    labels = []
    for draw in (learning_curve, diagnostics):
        try:
            labels += [text for axis in draw(result).axes for text in (axis.get_ylabel(), axis.get_xlabel())]
        except NothingToDrawError:
            continue
    both = tuple(name for name in finite if name in drawn_by_default() and name.split(".")[0] in MODELS)
    for name in [*finite, *described]:
        shared = len(both) > 1 and name in both  # of both models in one panel
        assert (metric_label(name.rpartition(".")[2], result) if shared else metric_label(name, result)) in labels, name
    if histograms:
        assert uncertainty_histograms(result).axes
    DRAWN.add(recorded)


@pytest.mark.parametrize("method", NUMBERS)
def test_what_a_method_records_of_numbers_is_known_and_drawn(method: str, regression: Runner) -> None:
    check(regression(method))


@pytest.mark.parametrize("method", LABELLED)
def test_what_a_method_records_of_labels_is_known_and_drawn(method: str, labelled: Runner) -> None:
    check(labelled(method))


@pytest.mark.parametrize("randomness", PRIVATE)
def test_what_a_private_run_records_is_known_and_drawn(randomness: str, regression: Runner) -> None:
    check(regression("fedavg", *PRIVATE[randomness]))


def without_score(folder: Path) -> Result:
    """Run with a client whose test targets do not vary, so that its RSMSE does not exist."""
    flat = [{**row, "y": 1.0} if (row["client"], row["split"]) == ("existing_0", "test") else row for row in rows()]
    result = run(on_csv(write_csv(folder / "flat.csv", flat), *quick("fedavg"), *ROUNDS))
    check(result)
    return result


def test_nothing_is_in_the_table_or_in_the_learning_curve_that_no_run_records(
    regression: Runner, labelled: Runner, tmp_path: Path
) -> None:
    clipped, unscored = regression("fedavg", "federation.aggregate=clipped"), without_score(tmp_path)
    private = [regression("fedavg", *sets) for sets in PRIVATE.values()]
    everything = (
        [regression(name) for name in NUMBERS] + [labelled(name) for name in LABELLED] + [clipped, unscored, *private]
    )
    recorded = {name for result in everything for name in (*numbers_of_rounds(result), *result.metrics)}
    recorded |= {name.split(".")[0] for result in everything for one in result.rounds for name in one.histograms}
    assert RECORDED.keys() <= recorded
    assert set(drawn_by_default()) <= recorded


def test_a_number_that_is_in_no_table_is_found(regression: Runner) -> None:
    result = regression("fedavg")
    for spoilt in (
        RoundRecord(1, 2, (), {"own": 1.0}),
        RoundRecord(1, 2, (), {"fm.accuracy": 1.0}),
        RoundRecord(1, 2, (), {"cluster": 1.0}),  # of clients alone
    ):
        with pytest.raises(AssertionError):
            check(Result("s", "m", 0, "regression", (spoilt,), result.clients))
    with pytest.raises(AssertionError):
        check(Result("s", "m", 0, "regression", (), (ClientRow(0, "a", "existing", 3, {"spread": 1.0}),)))


@pytest.mark.parametrize("method", LABELLED)
def test_results_of_classifiers_made_for_figures_hold_what_such_a_run_records(method: str, labelled: Runner) -> None:
    made, real = make_classes(method), labelled(method)
    assert set(numbers_of_rounds(made)) - {"gm.accuracy"} <= set(numbers_of_rounds(real))
    of_both = {f"gm.{name.removeprefix('pm.')}" for name in real.metrics} | set(real.metrics)
    assert set(made.metrics) <= of_both


def test_results_made_for_figures_hold_what_such_a_run_records(regression: Runner) -> None:
    made, real = make_result("pac-pfl"), regression("pac-pfl")
    assert set(numbers_of_rounds(made)) <= set(numbers_of_rounds(real))
    assert set(made.metrics) <= set(real.metrics)
    assert set(made.predictions) <= set(real.predictions)
