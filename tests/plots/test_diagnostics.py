"""The figure of diagnostics draws what the learning curve leaves out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.axes import Axes

from pacbayes_fl.plots import NothingToDrawError, diagnostics, learning_curve
from pacbayes_fl.results.client_rows import ClientRow
from pacbayes_fl.results.records import Result
from pacbayes_fl.results.rounds import RoundRecord

pytestmark = pytest.mark.filterwarnings("error")


def points(axis: Axes) -> tuple[list[float], list[float]]:
    x, y = np.asarray(axis.lines[0].get_data(), dtype=np.float64)
    return x.tolist(), y.tolist()


def test_numbers_of_rounds_stand_against_the_round(result: Result) -> None:
    (axis,) = diagnostics(result).axes
    assert (axis.get_title(), axis.get_xlabel(), axis.get_ylabel()) == ("duration of rounds", "round", "time (s)")
    assert points(axis) == ([record.round for record in result.rounds], [0.1] * len(result.rounds))


def test_together_with_the_learning_curve_it_draws_every_number_once(classes: Callable[..., Result]) -> None:
    values = {"loss": 1.0, "uncertain": 3.0, "own": 2.0, "pm.accuracy": 0.5, "validation.pm.accuracy": 0.25}
    result = replace(classes(), rounds=tuple(RoundRecord(number, 2, (), values) for number in (1, 2)))
    titles = [axis.get_title() for figure in (learning_curve(result), diagnostics(result)) for axis in figure.axes]
    assert titles == [
        *("test accuracy, personal model", "training loss of the clients"),
        *("weights that somebody is uncertain of", "own", "accuracy, validation rows, personal model"),
    ]


def test_what_a_method_says_of_clients_is_a_histogram_of_the_existing_ones(result: Result) -> None:
    kept = (0.1, 0.1, 0.9, float("nan"))
    rows = [ClientRow(k, str(k), "existing", 3, {"kept": value, "rsmse": 1.0}) for k, value in enumerate(kept)]
    rows.append(ClientRow(9, "9", "new", 3, {"rsmse": 1.0}))
    (axis,) = diagnostics(replace(result, rounds=(), clients=tuple(rows))).axes
    assert sum(patch.get_height() for patch in axis.patches) == 3  # type: ignore[attr-defined]
    assert (axis.get_title(), axis.get_xlabel()) == ("weights kept, by client", "share of weights")
    assert all(float(tick).is_integer() for tick in axis.get_yticks())


def test_a_run_without_such_numbers_is_refused(result: Result) -> None:
    with pytest.raises(NothingToDrawError, match="nothing beside its learning curve"):
        diagnostics(replace(result, rounds=(RoundRecord(1, 2, (), {"rsmse": 1.0, "seconds": float("nan")}),)))
