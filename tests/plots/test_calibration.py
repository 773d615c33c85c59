"""The calibration curve shows what eq. 41 measures."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection

from pacbayes_fl.metrics import calibration_error, empirical_frequencies
from pacbayes_fl.plots import NothingToDrawError, calibration_curve
from pacbayes_fl.posteriors.predictive import NormalMixture
from pacbayes_fl.results.records import Result

pytestmark = pytest.mark.filterwarnings("error")


def drawn(axis: Axes, label: str) -> Any:
    """Return x and y of a line, [2, H]."""
    (result,) = [line for line in axis.lines if line.get_label() == label]
    return np.asarray(result.get_data(), dtype=np.float64)


def test_lines_and_bands_are_the_frequencies_of_the_metrics(result: Result) -> None:
    figure = calibration_curve(result)
    assert [axis.get_title() for axis in figure.axes] == ["existing clients (12)", "new clients (6)"]
    for axis, group in zip(figure.axes, ("existing", "new"), strict=True):
        mean, std, y, mask = (result.predictions[f"{group}.{name}"] for name in ("mean", "std", "y_test", "mask_test"))
        predictive = NormalMixture(mean.new_zeros(mean.shape[0], 1), mean.unsqueeze(1), std.square().unsqueeze(1))
        each = empirical_frequencies(predictive, y, mask)
        size = mask.sum(1, keepdim=True).double()
        pooled = (each * size).sum(0) / size.sum()
        np.testing.assert_allclose(drawn(axis, "all test rows"), [np.linspace(0, 1, 20), pooled.numpy()], atol=1e-12)
        (band,) = [patch for patch in axis.collections if isinstance(patch, PolyCollection)]
        low, high = np.quantile(each.numpy(), [0.05, 0.95], axis=0)
        corners = np.asarray(band.get_paths()[0].vertices)
        for level, ends in zip(np.linspace(0, 1, 20), np.stack([low, high], 1), strict=True):
            edge = corners[np.isclose(corners[:, 0], level), 1]
            np.testing.assert_allclose([edge.min(), edge.max()], ends, atol=1e-12)
        error = calibration_error(predictive, y, mask).mean().item()
        assert axis.texts[0].get_text() == f"mean CE over clients {error:.3f}"
        np.testing.assert_array_equal(drawn(axis, "perfect calibration"), [[0, 1], [0, 1]])
        assert (axis.get_xlabel(), axis.get_ylabel()) == ("predicted quantile level", "share of targets below")
    figure.canvas.draw()


def test_padding_and_clients_without_test_rows_do_not_count(result: Result) -> None:
    pit, mask = result.predictions["existing.pit"], result.predictions["existing.mask_test"].clone()
    mask[2] = False
    garbage = {
        "existing.pit": pit.masked_fill(~mask, math.nan),
        "existing.mask_test": mask,
    }
    (axis,) = calibration_curve(replace(result, predictions=garbage)).axes
    assert axis.get_title() == "existing clients (11)"
    expected = [(pit[mask].numpy() <= level).mean() for level in np.linspace(0, 1, 20)]
    np.testing.assert_allclose(drawn(axis, "all test rows")[1], expected, atol=1e-15)


def test_a_single_client_has_no_band(made: Callable[..., Result]) -> None:
    (axis,) = calibration_curve(made(existing=1, new=0)).axes
    assert not axis.collections


def test_a_run_without_probabilities_is_refused(result: Result) -> None:
    nothing = {"existing.pit": torch.full((1, 2), math.nan), "existing.mask_test": torch.ones(1, 2, dtype=torch.bool)}
    for predictions in ({}, nothing):
        with pytest.raises(NothingToDrawError, match="pit"):
            calibration_curve(replace(result, predictions=predictions))
