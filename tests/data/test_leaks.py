"""A training row that a lag tells a test row's target is refused, whatever the feature's name."""

from __future__ import annotations

import pytest
import torch

from pacbayes_fl.data.layout import Layout
from pacbayes_fl.data.leaks import check_leaks
from pacbayes_fl.data.user_tables import Table
from pacbayes_fl.errors import DataError


def check(feature: str, test: list[int], horizon: str | None = None, rows: int = 8) -> None:
    layout = Layout(features=(feature,), horizon=horizon)
    held = {"a": torch.tensor([k in test for k in range(rows)])}
    x = torch.zeros(rows, 1).double()
    wanted = layout.wanted(("sun",))
    times = {"a": torch.arange(rows)}
    table = Table({"a": (x, x[:, 0])}, (feature,), held, (), times, "number", made_of=wanted)
    check_leaks(table, held, layout)


@pytest.mark.parametrize("feature", ["lag:2", "roll:2"])
def test_test_rows_in_the_middle_leak_and_those_at_the_end_do_not(feature: str) -> None:
    with pytest.raises(DataError, match=f"client 'a': . of its 7 training rows have '{feature}' from its test rows"):
        check(feature, [3])
    check(feature, [6, 7])
    check(feature, [])
    check(f"{feature} of sun", [3])  # what is measured is no target


def test_a_rolling_mean_counts_from_the_horizon() -> None:
    check("roll:1", [4], horizon="4")  # (t - 5, t - 4] of rows up to 7 ends at 3
    with pytest.raises(DataError, match="1 of its 7 training rows"):
        check("roll:1", [4], horizon="3")
    with pytest.raises(DataError, match="2 of its 7 training rows"):
        check("roll:2", [4])
