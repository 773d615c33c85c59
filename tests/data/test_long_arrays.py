"""Arrays in files: made, taken over, and released a block of rows at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from data_gen import rooms
from pacbayes_fl import tensors
from pacbayes_fl.data import long_arrays


def test_an_array_has_the_dtype_that_was_asked_for_and_holds_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "MAPPED", 64)
    for dtype in (np.float64, np.float32, np.int64, np.uint8, np.bool_):
        for size in (0, 3, 100):
            made = long_arrays.mapped_array(size, dtype)
            assert made.dtype == dtype and made.shape == (size,) and not made.any() and made.flags.writeable


def test_somebody_elses_array_in_a_file_is_released_with_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "LARGE", 1)
    array, known = rooms.zeros(8, np.float64), len(tensors.KNOWN)
    for given in (array, array[:, None], np.zeros(3), torch.zeros(3).numpy()):
        long_arrays.adopt(given)
    assert len(tensors.KNOWN) == known + 1
    array[:] = 3.0
    tensors.release_mapped()
    assert array.tolist() == [3.0] * 8


def test_rows_are_cut_into_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_arrays, "ROWS", 3)
    assert [list(range(7))[own] for own in long_arrays.row_blocks(7)] == [[0, 1, 2], [3, 4, 5], [6]]
    assert list(long_arrays.row_blocks(0)) == []
