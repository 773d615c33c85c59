"""The reliability diagram shows what the metrics of classification measure."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.container import BarContainer

from pacbayes_fl.errors import StudyError
from pacbayes_fl.metrics import ece, mce, reliability
from pacbayes_fl.plots import NothingToDrawError, reliability_diagram
from pacbayes_fl.posteriors.classes import ClassMixture
from pacbayes_fl.results.records import Result

pytestmark = pytest.mark.filterwarnings("error")
Maker = Callable[..., Result]


def bars(axis: Axes) -> list[BarContainer]:
    return [container for container in axis.containers if isinstance(container, BarContainer)]


def heights(bar: BarContainer) -> list[float]:
    return [patch.get_height() for patch in bar.patches]


def at(axis: Axes, label: str) -> tuple[float, float]:
    """Return the first x and the first y of a line."""
    (line,) = [line for line in axis.lines if line.get_label() == label]
    x, y = np.asarray(line.get_data(), dtype=np.float64)
    return float(x[0]), float(y[0])


def test_a_client_without_probabilities_is_left_out(classes: Maker) -> None:
    """The first of the NaNs would be the most probable class."""
    result = classes()
    p = result.predictions
    probs, mask = p["existing.pm.probs"].clone(), p["existing.mask_test"].clone()
    probs[2], mask[2] = torch.nan, False
    lost, fewer = (
        reliability_diagram(replace(result, predictions={**p, **other}), 10, "pm").axes
        for other in ({"existing.pm.probs": probs}, {"existing.mask_test": mask})
    )
    assert lost[0].get_title() == "existing clients (5)"
    assert [axis.get_title() for axis in lost] == [axis.get_title() for axis in fewer]
    assert heights(bars(lost[0])[0]) == heights(bars(fewer[0])[0])


@pytest.mark.parametrize(("model", "bins"), [("pm", 10), ("gm", 7)])
def test_bars_and_lines_are_those_of_the_metrics(model: str, bins: int, classes: Maker) -> None:
    result = classes()
    figure = reliability_diagram(result, bins, model)
    for column, (group, clients) in enumerate((("existing", 6), ("new", 2))):
        top, bottom = figure.axes[column], figure.axes[column + 2]
        assert top.get_title() == f"{group} clients ({clients})"
        probs, y, mask = (result.predictions[f"{group}.{name}"] for name in (f"{model}.probs", "y_test", "mask_test"))
        own = ClassMixture(probs.double().log())
        pooled = ClassMixture(probs.double().log().flatten(0, 1).unsqueeze(0))
        rows = (y.flatten().unsqueeze(0), mask.flatten().unsqueeze(0))
        count, accuracy, confidence = (part[0].numpy() for part in reliability(pooled, *rows, bins))
        filled = count > 0
        right, gap = bars(top)
        np.testing.assert_allclose(np.array(heights(right))[filled], accuracy[filled], atol=1e-12)
        assert not np.array(heights(right))[~filled].any() and not np.array(heights(gap))[~filled].any()
        for place in np.flatnonzero(filled):
            patch = gap.patches[place]
            ends = sorted((patch.get_y(), patch.get_y() + patch.get_height()))
            np.testing.assert_allclose(ends, sorted((accuracy[place], confidence[place])), atol=1e-12)
            assert patch.get_x() == pytest.approx(place / bins) and patch.get_width() == pytest.approx(1 / bins)
        np.testing.assert_allclose(heights(*bars(bottom)), count / count.sum(), atol=1e-15)
        right_on_average = ((probs.argmax(-1) == y) & mask).sum().item() / mask.sum().item()
        sure_on_average = probs.double().amax(-1)[mask].mean().item()
        assert at(top, "average accuracy")[1] == pytest.approx(right_on_average)
        assert at(top, "average confidence")[0] == pytest.approx(sure_on_average)
        assert at(bottom, "average accuracy")[0] == pytest.approx(right_on_average)
        assert at(bottom, "average confidence")[0] == pytest.approx(sure_on_average)
        numbers = [f"{metric(pooled, *rows, bins).item():.3f}" for metric in (ece, mce)]
        means = [f"{metric(own, y, mask, bins).mean().item():.3f}" for metric in (ece, mce)]
        assert bottom.get_title() == (
            f"pooled rows: ECE {numbers[0]}, MCE {numbers[1]}\nmean over clients: {means[0]}, {means[1]}"
        )
    figure.canvas.draw()


def test_the_bins_are_those_of_the_results_own_calibration_error(classes: Maker) -> None:
    result = classes()
    for drawn, bins in ((result, 10), (replace(result, labels={**result.labels, "calibration_bins": 20}), 20)):
        figure = reliability_diagram(drawn)
        assert len(bars(figure.axes[0])[0].patches) == bins and f"{bins} bins" in figure.get_suptitle()
        expected = reliability_diagram(result, bins)
        assert [axis.get_title() for axis in figure.axes] == [axis.get_title() for axis in expected.axes]


def test_padding_and_clients_without_test_rows_do_not_count(classes: Maker) -> None:
    result = classes(new=0)
    mask = result.predictions["existing.mask_test"].clone()
    mask[2] = False
    part = {
        "existing.y_test": result.predictions["existing.y_test"].masked_fill(~mask, -1),
        "existing.mask_test": mask,
        "existing.pm.probs": result.predictions["existing.pm.probs"].masked_fill(~mask.unsqueeze(-1), math.nan),
    }
    top, bottom = reliability_diagram(replace(result, predictions=part)).axes
    assert top.get_title() == "existing clients (5)"
    assert sum(heights(*bars(bottom))) == pytest.approx(1.0)
    assert at(bottom, "average confidence")[0] == pytest.approx(
        result.predictions["existing.pm.probs"].double().amax(-1)[mask].mean().item()
    )


def test_what_cannot_be_drawn_is_refused(result: Result, classes: Maker) -> None:
    personal = {name: value for name, value in classes().predictions.items() if ".gm." not in name}
    empty = {name: torch.zeros_like(value) for name, value in personal.items()}
    for case, model in (
        (result, "pm"),
        (replace(result, predictions=personal), "gm"),
        (classes(existing=0, new=0), "pm"),
    ):
        with pytest.raises(NothingToDrawError, match=rf"{model}\.probs"):
            reliability_diagram(case, model=model)
    with pytest.raises(NothingToDrawError):
        reliability_diagram(replace(result, predictions=empty))
    with pytest.raises(StudyError, match="model must be one of pm, gm"):
        reliability_diagram(classes(), model="lm")
    with pytest.raises(StudyError, match="bins"):
        reliability_diagram(classes(), 0)
