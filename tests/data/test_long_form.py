"""Arrays in long form: what they count to, and whose rows they are."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from pacbayes_fl.data.long_form import check_arrays, check_learned, count_classes, known_numbers, stated_or_counted
from pacbayes_fl.errors import DataError


def test_unsigned_numbers_become_those_of_torch_and_classes_are_counted() -> None:
    assert known_numbers(np.array([1, 2], dtype=np.uint16)).dtype == np.float64
    assert known_numbers(np.array([1, 2], dtype=np.uint8)).dtype == np.uint8
    assert count_classes("labels", 9.0, 5) == 10
    with pytest.raises(DataError, match="label 1000 would be one of 1001 classes of 5 rows"):
        count_classes("labels", 1000.0, 5)


LABELS = {"a": torch.tensor([0.0, 2.0]), "b": torch.tensor([1.0]), "c": torch.tensor([])}


def test_classes_that_are_stated_are_no_function_of_the_labels() -> None:
    """A private run says their number: neighbouring federations have the same."""
    fewer = {"a": LABELS["a"][:1], "b": LABELS["b"]}
    assert (stated_or_counted("t", LABELS, None), stated_or_counted("t", fewer, None)) == (3, 2)
    assert stated_or_counted("t", LABELS, 5) == stated_or_counted("t", fewer, 5) == 5
    assert stated_or_counted("t", {"a": LABELS["b"] * 0}, 2) == 2
    with pytest.raises(
        DataError, match=r"client 'a': label 2 is none of the 2 classes 0 to 1 that data\.classes states"
    ):
        stated_or_counted("t", LABELS, 2)
    with pytest.raises(DataError, match=r"t has only the label 0 \(.*data\.classes says"):
        stated_or_counted("t", {"a": LABELS["b"] * 0}, None)


def test_labels_that_no_row_of_training_has_are_named_with_the_rows_that_have_them() -> None:
    """Nobody learns them: labels that begin at 1 or have gaps, and those of test rows and new clients alone."""
    trained = torch.tensor([1, 3])
    with pytest.warns(
        UserWarning, match=r"^t: no row of training has label 0, 2 of the classes 0 to 3, nor any other row"
    ):
        check_learned("t", 4, trained, trained)
    with pytest.warns(UserWarning, match=r"has label 0 of the classes 0 to 3: .* 2 rows .*\(labels that do not begin"):
        check_learned("t", 4, torch.tensor([1, 2, 3]), torch.tensor([0, 0, 1]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_learned("t", 2, torch.tensor([1, 0]), torch.tensor([1]))


def test_a_file_may_state_more_classes_than_labels_may_tell_of() -> None:
    """Else the rows that a folder keeps of a run that states them could not be read again."""
    long = {"x": np.zeros((3, 1)), "y": np.zeros(3), "client": np.zeros(3, int), "test": np.zeros(3, bool)}
    long |= {"client_name": np.array(["a"]), "client_new": np.zeros(1, bool), "feature_name": np.array(["x"])}
    long |= {"feature_unit": np.array([""]), "target_name": np.array("y"), "target_unit": np.array("")}
    assert check_arrays(long | {"classes": np.array(2**16)}) == ((), 2**16)
    with pytest.raises(DataError, match="one of 65537 classes of 3 rows"):
        check_arrays(long | {"classes": np.array(2**16 + 1)})
