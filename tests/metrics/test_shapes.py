"""The check of a shape against letters."""

from __future__ import annotations

import pytest
import torch

from pacbayes_fl.errors import ShapeError
from pacbayes_fl.metrics.shapes import require


def test_letters_are_bound_to_the_sizes_that_come() -> None:
    assert require("y", torch.zeros(3, 5), "K N") == {"K": 3, "N": 5}
    assert require("y", torch.zeros(3, 5), "K N", K=3) == {"K": 3, "N": 5}
    assert require("value", torch.zeros(()), "") == {}


def test_a_star_stands_for_any_number_of_further_dimensions() -> None:
    for shape in ((3, 5), (3, 5, 2), (3, 5, 2, 0)):
        assert require("x", torch.zeros(shape), "K N *") == {"K": 3, "N": 5}
    with pytest.raises(ShapeError):
        require("x", torch.zeros(3), "K N *")


def test_a_number_stands_for_itself_and_a_letter_means_one_size() -> None:
    assert require("pair", torch.zeros(2, 7), "2 N") == {"N": 7}
    assert require("square", torch.zeros(4, 4), "N N") == {"N": 4}
    for tensor, pattern in ((torch.zeros(3, 7), "2 N"), (torch.zeros(4, 5), "N N"), (torch.zeros(4, 4), "N")):
        with pytest.raises(ShapeError):
            require("t", tensor, pattern)


def test_sizes_of_one_call_serve_the_next() -> None:
    sizes = require("y", torch.zeros(2, 3), "K N")
    require("mask", torch.zeros(2, 3), "K N", **sizes)
    with pytest.raises(ShapeError, match=r"^mask must be \[K N\] with K=2, N=3, got \[2, 4\]$"):
        require("mask", torch.zeros(2, 4), "K N", **sizes)


def test_the_error_names_tensor_pattern_and_shape() -> None:
    with pytest.raises(ShapeError, match=r"^y must be a tensor \[K N\], got list \(torch\.as_tensor makes one\)$"):
        require("y", [[0.0]], "K N")  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match=r"^x must be \[K N \*\], got \[6\]$"):
        require("x", torch.zeros(6), "K N *")
