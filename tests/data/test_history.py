"""What is known of the past: there and back, and longer."""

from __future__ import annotations

import pytest
import torch

from pacbayes_fl.data.history import History, from_arrays, to_arrays
from pacbayes_fl.errors import DataError

PAST = History(
    ("y", "cloud"),
    "datetime",
    {"a": (torch.tensor([1, 2]), torch.tensor([[1.0, 0.5], [2.0, torch.nan]]).double()),
     "b": (torch.tensor([5]), torch.tensor([[3.0, 0.1]]).double())},
)  # fmt: skip


def test_a_history_survives_there_and_back() -> None:
    again = from_arrays(to_arrays(PAST, ["b", "a"]), ["b", "a"], "datetime")
    assert again is not None and again.columns == PAST.columns and again.kind == "datetime"
    for name in ("a", "b"):
        for mine, theirs in zip(PAST.clients[name], again.clients[name], strict=True):
            torch.testing.assert_close(mine, theirs, equal_nan=True, rtol=0, atol=0)
    assert to_arrays(None, ["a"]) == {} and from_arrays({}, ["a"], "") is None


def test_a_damaged_history_is_named() -> None:
    arrays = to_arrays(PAST, ["a", "b"])
    with pytest.raises(DataError, match="'history_name' is missing"):
        from_arrays({key: value for key, value in arrays.items() if key != "history_name"}, ["a", "b"], "")
    with pytest.raises(DataError, match=r"'history_client' must hold whole numbers in 0\.\.0"):
        from_arrays(arrays, ["a"], "")


def test_of_one_time_the_later_table_counts_first() -> None:
    later = PAST._replace(clients={"a": (torch.tensor([2]), torch.tensor([[9.0, 9.0]]).double())})
    both = PAST.extended(later)
    assert both.of("a", "y")[1].tolist() == [9.0, 1.0, 2.0] and both.of("b", "y")[1].tolist() == [3.0]
    assert PAST.extended(None) is PAST and not len(PAST.of("c", "y")[0]) and not len(PAST.of("a", "wind")[0])
    with pytest.raises(ValueError, match="histories of"):
        PAST.extended(later._replace(kind="number"))
