"""Arrays in long form: what they count to, and whose rows they are."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pacbayes_fl.data.long_form import count_classes, known_numbers, rows_of_clients
from pacbayes_fl.errors import DataError


def test_rows_come_client_after_client_in_their_order() -> None:
    owner, part = np.array([1, 0, 1, 2, 0]), torch.tensor([True, True, True, False, True])
    (rows, sizes), (others, rest) = rows_of_clients(owner, 3, (part, ~part))
    assert (rows.tolist(), sizes, others.tolist(), rest) == ([1, 4, 0, 2], [2, 2, 0], [3], [0, 0, 1])


def test_unsigned_numbers_become_those_of_torch_and_classes_are_counted() -> None:
    assert known_numbers(np.array([1, 2], dtype=np.uint16)).dtype == np.float64
    assert known_numbers(np.array([1, 2], dtype=np.uint8)).dtype == np.uint8
    assert count_classes("labels", 9.0, 5) == 10
    with pytest.raises(DataError, match="label 1000 would be one of 1001 classes of 5 rows"):
        count_classes("labels", 1000.0, 5)
