"""Cells: what is a number, a word or a gap, and where it stands."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pacbayes_fl.data.cells import GAPS, Cells, check_labels, check_names, names_rows, numbers, owners, words
from pacbayes_fl.errors import DataError


def column(*values: object) -> Cells:
    return Cells(Path("t.csv"), "sun", values, [f"line {k + 2}" for k in range(len(values))], ["a"] * len(values))


def test_numbers_are_those_of_python_and_booleans_are_zero_and_one() -> None:
    texts = ("0.1", "1e-3", " 7 ", "-0", "123456789.123456789")
    assert numbers(column(*texts)).tolist() == [float(text) for text in texts]
    assert numbers(column("True", "false", "TRUE", "0.5", True, False)).tolist() == [1, 0, 1, 0.5, 1, 0]


def test_gaps_are_missing_where_they_may_be_and_named_elsewhere() -> None:
    gaps = ("", "NaN", "NA", "n/a", "null", "None", "-", " ", None, float("nan"))
    assert np.isnan(numbers(column(*gaps), GAPS)).all()
    for gap in gaps:
        with pytest.raises(DataError, match=r"t\.csv line 3, column 'sun': .* is not a (finite )?number"):
            numbers(column("1", gap))
    assert words(column("flat", "", None, float("nan"), " west "), GAPS) == ["flat", None, None, None, "west"]
    with pytest.raises(DataError, match=r"line 3, column 'sun': a category is missing \(data.missing"):
        words(column("flat", ""))


@pytest.mark.parametrize("value", ["1_000", "٢", "west", "inf", "1,5", object()])
def test_what_is_no_number_is_named_with_its_place(value: object) -> None:
    with pytest.raises(DataError, match="line 2, column 'sun'"):
        numbers(column(value, "1"), GAPS)


@pytest.mark.parametrize(
    ("name", "values", "does"),
    [
        ("", ["1", "2", "3"], True),
        ("Unnamed: 0", [0.0, 1.0, 2.0], True),
        ("__index_level_0__", [0.0, 3.0, 4.0], True),
        ("Unnamed: 0.1", ["7", "3", "12"], True),
        ("", ["0", "1", "2", "0", "1", "0"], True),
        ("rownames", ["Mazda RX4", "Datsun 710"], True),
        ("", ["3", "3", "1"], False),
        ("", ["0.5", "1.5"], False),
        ("", ["a", "b", "a"], False),
        ("step", ["1", "2", "3"], False),
        ("", ["1"], False),
        ("", ["", "1"], False),
    ],
)
def test_columns_without_a_name_that_number_rows_are_found(name: str, values: list[object], does: bool) -> None:
    assert names_rows(name, values) is does


def test_names_and_labels_are_checked() -> None:
    assert owners(column("007", 7)) == ["007", "7"]
    with pytest.raises(DataError, match="line 3, column 'sun': the client's name is blank"):
        owners(column("a", " "))
    with pytest.raises(DataError, match="differs from 'a' by what nobody sees"):
        check_names(["a", "a "])
    check_labels(column("0", "1", ""), np.array([0.0, 1.0, np.nan]))
    with pytest.raises(DataError, match=r"line 3, column 'sun': 0\.5 is not a label"):
        check_labels(column("0", "0.5"), np.array([0.0, 0.5]))
