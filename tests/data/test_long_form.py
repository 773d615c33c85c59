"""Arrays in long form: what they count to, and whose rows they are."""

from __future__ import annotations

import numpy as np
import pytest

from pacbayes_fl.data.long_form import count_classes, known_numbers
from pacbayes_fl.errors import DataError


def test_unsigned_numbers_become_those_of_torch_and_classes_are_counted() -> None:
    assert known_numbers(np.array([1, 2], dtype=np.uint16)).dtype == np.float64
    assert known_numbers(np.array([1, 2], dtype=np.uint8)).dtype == np.uint8
    assert count_classes("labels", 9.0, 5) == 10
    with pytest.raises(DataError, match="label 1000 would be one of 1001 classes of 5 rows"):
        count_classes("labels", 1000.0, 5)
