"""Blocks of rows: contiguous, of equal size but for one row, and padding in none."""

from __future__ import annotations

import pytest
import torch

from pacbayes_fl.data.blocks import blocks


@pytest.mark.parametrize("rows", [0, 1, 3, 5, 7, 150])
def test_blocks_are_contiguous_and_differ_by_at_most_one_row(rows: int) -> None:
    mask = torch.arange(160) < rows
    number = blocks(mask.unsqueeze(0), 5)[0]
    assert (number[rows:] == -1).all()
    own = number[:rows]
    assert (own.diff() >= 0).all() and (not rows or (own[0] == 0 and own.max() < 5))
    sizes = torch.bincount(own, minlength=5)
    assert sizes.max() - sizes.min() <= 1 and sizes.sum() == rows


def test_each_client_has_blocks_of_its_own() -> None:
    mask = torch.tensor([[True] * 4, [True, True, False, False]])
    assert blocks(mask, 2).tolist() == [[0, 0, 1, 1], [0, 1, -1, -1]]
