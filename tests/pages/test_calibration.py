"""Calibration of numbers: the mean distance from the diagonal is that of a loop over levels and clients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from pacbayes_fl.pages.calibration import calibration, lowest_coverage
from pacbayes_fl.pages.markup import to_html
from pacbayes_fl.results.records import Result


def test_the_distance_is_that_of_a_loop(numbers: Result) -> None:
    pit, mask = (numbers.predictions[f"existing.{name}"].numpy() for name in ("pit", "mask_test"))
    distances = [
        abs(np.mean(pit[k][mask[k]] <= level) - level) for k in range(len(pit)) for level in np.linspace(0, 1, 21)
    ]
    rows = [replace(row, metrics={"rsmse": row.metrics["rsmse"]}) for row in numbers.clients]
    made = calibration(replace(numbers, clients=tuple(rows)))
    assert made is not None
    text = to_html(made)
    assert f"over clients, at 21 levels: {np.mean(distances):.3f}" in text
    assert "predicted quantile level" in text and "confidence level" not in text
    assert "95 % band" in text


def test_the_calibration_error_is_that_of_the_table(numbers: Result) -> None:
    made = calibration(numbers)
    assert made is not None
    text, groups = to_html(made), numbers.summary()["groups"]
    for group in ("existing", "new"):
        assert f"Calibration error {groups[group]['ce']['mean']:.4g}, as in the results" in text
    assert "levels:" not in text


def test_without_probabilities_there_is_no_section(numbers: Result) -> None:
    assert calibration(replace(numbers, predictions={})) is None
    lost = {name: t * float("nan") if name.endswith("pit") else t for name, t in numbers.predictions.items()}
    assert calibration(replace(numbers, predictions=lost)) is None


def test_clients_whose_intervals_miss_are_marked(numbers: Result) -> None:
    upper = numbers.predictions["existing.upper"].clone()
    upper[2] = numbers.predictions["existing.lower"][2]
    broken = replace(numbers, predictions={**numbers.predictions, "existing.upper": upper})
    result = lowest_coverage(broken, "existing")
    assert result["client_02"] == (0.0, True) and not result["client_00"][1]
    assert lowest_coverage(replace(numbers, predictions={"x": torch.zeros(1)}), "existing") == {}
