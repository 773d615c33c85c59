"""The learning curve shows the numbers of the rounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.axes import Axes

from pacbayes_fl.errors import StudyError
from pacbayes_fl.plots import NothingToDrawError, learning_curve
from pacbayes_fl.results.records import Result
from pacbayes_fl.results.rounds import RoundRecord

pytestmark = pytest.mark.filterwarnings("error")


def drawn(axis: Axes, line: int = 0) -> tuple[list[float], list[float]]:
    """Return x and y of a line."""
    x, y = np.asarray(axis.lines[line].get_data(), dtype=np.float64)
    return x.tolist(), y.tolist()


def test_panels_hold_the_values_of_the_rounds(result: Result) -> None:
    figure = learning_curve(result)
    assert [axis.get_xlabel() for axis in figure.axes] == ["round"] * 3
    assert [axis.get_ylabel() for axis in figure.axes] == ["RSMSE", "mean log evidence (nats)", "particle spread"]
    for axis, name in zip(figure.axes, ("rsmse", "log_evidence", "spread"), strict=True):
        records = [record for record in result.rounds if name in record.values]
        assert drawn(axis) == ([record.round for record in records], [record.values[name] for record in records])
    assert drawn(figure.axes[0])[0] == [20, 40, 60, 80, 100, 120]  # evaluation rounds alone
    figure.canvas.draw()


def test_rounds_that_dropped_a_client_are_marked_with_its_name(result: Result) -> None:
    figure = learning_curve(result)
    for axis in figure.axes:
        assert drawn(axis, 1)[0] == [37, 80]
    (text,) = figure.legends[0].get_texts()
    assert text.get_text() == "round without client_03, client_07"
    calm = replace(result, rounds=tuple(replace(record, dropped=()) for record in result.rounds))
    assert not learning_curve(calm).legends


def test_numbers_that_are_not_finite_are_left_out(result: Result) -> None:
    values = [{"rsmse": 1.0}, {"rsmse": math.nan}, {"rsmse": math.inf, "spread": math.nan}, {"rsmse": 0.5}]
    rounds = tuple(RoundRecord(number, 3, (), line) for number, line in enumerate(values, 1))
    (axis,) = learning_curve(replace(result, rounds=rounds)).axes
    assert drawn(axis)[0] == [1, 4]


def test_one_round_and_chosen_values(result: Result) -> None:
    figure = learning_curve(replace(result, rounds=result.rounds[:1]), ["seconds", "spread"])
    values = result.rounds[0].values
    assert [drawn(axis)[1] for axis in figure.axes] == [[values["seconds"]], [values["spread"]]]
    figure.canvas.draw()


def test_both_accuracies_share_a_panel(classes: Callable[..., Result]) -> None:
    result = classes()
    figure = learning_curve(result)
    assert [axis.get_ylabel() for axis in figure.axes] == ["accuracy", "mean ELBO (nats)"]
    accuracy = figure.axes[0]
    records = [record for record in result.rounds if "pm.accuracy" in record.values]
    for number, (model, style) in enumerate((("pm", "-"), ("gm", "--"))):
        assert accuracy.lines[number].get_linestyle() == style
        values = [record.values[f"{model}.accuracy"] for record in records]
        assert drawn(accuracy, number) == ([0, 5, 10, 15, 20, 25, 30], values)
    legend = accuracy.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["personal model", "global model"]
    apart = learning_curve(classes("fedavg"), ["gm.accuracy", "pm.accuracy", "loss"])
    assert [axis.get_title() for axis in apart.axes] == [
        "test accuracy, global model",
        "test accuracy, personal model",
        "training loss of the clients",
    ]
    alone = tuple(replace(r, values={k: v for k, v in r.values.items() if k != "pm.accuracy"}) for r in result.rounds)
    assert learning_curve(replace(result, rounds=alone)).axes[0].get_ylabel() == "accuracy, global model"
    figure.canvas.draw()


def test_a_run_without_such_numbers_is_refused(result: Result) -> None:
    with pytest.raises(NothingToDrawError, match="log_evidence"):
        learning_curve(replace(result, rounds=()))
    with pytest.raises(StudyError, match="recorded any of mine"):
        learning_curve(result, ["mine"])
