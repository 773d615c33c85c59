"""The table of results agrees with the summary; boxes name who lies apart, and say what they cut."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pacbayes_fl.pages.markup import to_html
from pacbayes_fl.pages.scores import better, boxes, label, results, spreads
from pacbayes_fl.results.comparison import shown_columns
from pacbayes_fl.results.records import Result, nested


def test_the_table_has_every_metric_of_every_group_with_its_direction(numbers: Result, labelled: Result) -> None:
    for result in (numbers, labelled):
        text = to_html(results(result))
        for group, entry in result.summary()["groups"].items():
            assert f"{group} ({entry['n_clients']})" in text
            for name in shown_columns(result):
                own = nested(entry, name)
                assert own is not None and f"{own['mean']:.4g}" in text and label(name, result).split(",")[0] in text
        assert "is better" in text
    assert (better("rsmse"), better("pm.accuracy"), better("coverage_95")) == (
        "lower is better",
        "higher is better",
        "",
    )
    assert label("rmse_raw", numbers) == "RMSE (kW)"
    assert label("pm.accuracy", labelled) == "accuracy, personal model"


def test_boxes_count_the_clients_that_they_draw(numbers: Result) -> None:
    first, *others = numbers.clients
    lost = replace(numbers, clients=(replace(first, metrics={**first.metrics, "rsmse": float("nan")}), *others))
    text = "".join(to_html(one) for one in spreads(lost))
    assert 'aria-label="RSMSE. existing (11): median' in text and "calibration error. existing (12): median" in text


def test_who_lies_beyond_the_whiskers_is_named() -> None:
    values = np.array([1.0, 1.1, 1.2, 1.3, 1.4, 2.2, np.nan])
    names = [f"house_{k}" for k in range(7)]
    text = to_html(boxes("error", "lower is better", [("existing", values, names)]))
    assert "beyond the whiskers: house_5 2.2" in text and "beyond the axis" not in text
    assert "error (lower is better)" in text and 'class="box"' in text


def test_a_point_far_away_does_not_squash_the_box_and_is_said() -> None:
    values = np.array([1.0, 1.1, 1.2, 1.3, 1.4, 900.0])
    text = to_html(boxes("error", "", [("existing", values, [f"h{k}" for k in range(6)])]))
    assert "h5 900" in text and "1 beyond the axis" in text
    assert not {"500", "1000"} & set(text.replace("<", ">").split(">"))  # ticks


@pytest.mark.parametrize("values", [[2.0], [1.0, 3.0], [1.0] * 6])
def test_few_clients_are_points_and_equal_ones_no_fault(values: list[float]) -> None:
    text = to_html(boxes("error", "", [("existing", np.array(values), [f"h{k}" for k in range(len(values))])]))
    assert ('class="box"' in text) == (len(values) >= 5)
    assert ("points alone" in text) == (len(values) < 5)
