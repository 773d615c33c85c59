"""Reliability, confusion and entropy of classifiers: as scikit-learn and a loop have them."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import confusion_matrix

from pacbayes_fl.pages.classes import class_names, classes, uncertainty_rounds
from pacbayes_fl.pages.markup import to_html
from pacbayes_fl.results.records import Result


def test_confusion_is_that_of_scikit_learn(labelled: Result) -> None:
    p = labelled.predictions
    mask = p["existing.mask_test"]
    expected = confusion_matrix(p["existing.y_test"][mask], p["existing.pm.probs"][mask].argmax(-1))
    made = classes(labelled)
    assert made is not None
    text = to_html(made)
    first = text.split("Confusion, personal model, existing clients")[1]
    counts = [int(one) for one in re.findall(r'class="heat h\d">(\d+)<', first)][:16]
    assert np.array(counts).reshape(4, 4).tolist() == expected.tolist()


def test_the_calibration_error_is_that_of_a_loop(labelled: Result) -> None:
    mask = labelled.predictions["existing.mask_test"]
    probs, y = labelled.predictions["existing.pm.probs"][mask].double(), labelled.predictions["existing.y_test"][mask]
    confidence, right = probs.max(1).values.numpy(), (probs.argmax(1) == y).numpy()
    error = 0.0
    for low in np.arange(10) / 10:
        own = (confidence > low) & (confidence <= low + 0.1)
        error += abs(right[own].sum() - confidence[own].sum()) / len(y)
    made = classes(labelled)
    assert made is not None and f"together {error:.3f}, by 10 bins" in to_html(made)


def without(result: Result, client: int, group: str = "existing") -> tuple[Result, Result]:
    """Give a client of a result probabilities that are NaN, and leave its rows out altogether."""
    p = result.predictions
    probs, mask = p[f"{group}.pm.probs"].clone(), p[f"{group}.mask_test"].clone()
    probs[client], mask[client] = torch.nan, False
    lost, fewer = {**p, f"{group}.pm.probs": probs}, {**p, f"{group}.mask_test": mask}
    return replace(result, predictions=lost), replace(result, predictions=fewer)


def test_rows_without_probabilities_are_in_no_figure_and_no_table(labelled: Result) -> None:
    """The first of the NaNs would be the most probable class."""
    lost, fewer = (
        {name: one for name, one in given.predictions.items() if ".gm." not in name} for given in without(labelled, 0)
    )
    mine, expected = (classes(replace(labelled, predictions=given)) for given in (lost, fewer))
    assert mine is not None and expected is not None and to_html(mine) == to_html(expected)


def test_many_classes_are_told_by_their_most_frequent_confusions(labelled: Result) -> None:
    probs = torch.full((1, 80, 40), 1e-3)
    y = torch.arange(80).remainder(40).unsqueeze(0)
    probs[0, torch.arange(80), (y[0] + 1) % 40] = 0.9
    given = {
        "existing.pm.probs": probs,
        "existing.y_test": y,
        "existing.mask_test": torch.ones(1, 80, dtype=torch.bool),
    }
    made = classes(replace(labelled, predictions=given))
    assert made is not None
    text = to_html(made)
    assert "Most frequent confusions" in text and text.count("<tr>") == 31  # a head and 30 pairs


def test_names_of_classes_are_used_where_they_are_known(labelled: Result) -> None:
    assert class_names(labelled, 4) == ["0", "1", "2", "3"]
    assert class_names(replace(labelled, labels={"class_name": ["<i>a", "b"]}), 2) == ["<i>a", "b"]


@pytest.mark.parametrize("kept", [True, False])
def test_without_predictions_there_are_rounds_alone(labelled: Result, kept: bool) -> None:
    result = labelled if kept else replace(labelled, predictions={})
    assert (classes(result) is not None) == kept
    assert uncertainty_rounds(result) is None  # of this result no round has histograms
