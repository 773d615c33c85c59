from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from data_gen.errors import DataGenError, fits, number, whole


def test_good_values_pass_as_plain_python() -> None:
    assert type(whole("seed", np.int64(3), 0)) is int
    assert number("noise_std", 1, 0.0) == 1.0
    assert isinstance(number("noise_std", np.float32(0.5)), float)


@pytest.mark.parametrize("value", [-1, 11, 1.0, True, "1", None])
def test_wrong_whole_numbers_are_named(value: Any) -> None:
    with pytest.raises(DataGenError, match="clients must be a whole number"):
        whole("clients", value, 0, 10)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "x", None, False, -0.1, 2])
def test_wrong_numbers_are_named(value: Any) -> None:
    with pytest.raises(DataGenError, match="outputscale must"):
        number("outputscale", value, 0.0, 1.0)


@pytest.mark.parametrize("value", [10**400, 2**100, 1e308])
def test_numbers_beyond_what_arrays_hold_are_named_in_few_words(value: Any) -> None:
    with pytest.raises(DataGenError, match="must") as caught:
        whole("clients", value, 0)
    assert len(str(caught.value)) < 200
    with pytest.raises(DataGenError, match="must"):
        number("noise_std", value)


def test_what_has_no_room_is_refused_with_both_sizes() -> None:
    fits("a kernel", 10**6, "samples")
    with pytest.raises(DataGenError, match=r"a kernel would take 1e\+06 GB .* the limit is .* GB.*lower samples"):
        fits("a kernel", 10**15, "samples")
