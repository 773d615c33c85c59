"""Tables between semicolons and tabs are those between commas, and what cannot be told is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from pacbayes_fl.data import csv_text, times
from pacbayes_fl.errors import DataError

BETWEEN_COMMAS = """house,when,x,words,y
"a,1",01.05.2024 13:00,1.5,dry; 3.5,2
b,1.5.2024 9:05,,,-0.25e-3
b,02.05.2024 00:00:30,nan,7,.5
"""
BETWEEN_SEMICOLONS = """house;when;x;words;y
a,1;01.05.2024 13:00;1,5;"dry; 3.5";2
b;1.5.2024 9:05;;;-0,25e-3
b;02.05.2024 00:00:30;nan;7;,5
"""


@pytest.mark.parametrize(
    "text",
    [
        BETWEEN_SEMICOLONS,
        BETWEEN_SEMICOLONS.replace('"dry; 3.5"', "dry| 3.5").replace(";", "\t").replace("|", ";"),
        BETWEEN_COMMAS.replace('"', "")
        .replace("; 3", "| 3")
        .replace("a,1", "a/1")
        .replace(",", "\t")
        .replace("a/1", "a,1")
        .replace("|", ";"),
    ],
    ids=["semicolons", "tabs", "tabs_and_points"],
)
def test_other_separators_and_decimal_commas_give_the_same_columns(text: str, tmp_path: Path) -> None:
    expected, got = tmp_path / "commas.csv", tmp_path / "other.csv"
    expected.write_text(BETWEEN_COMMAS)
    got.write_text(text)
    assert csv_text.read(got) == csv_text.read(expected)


def test_commas_stay_what_they_are_between_commas(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('client,x\na,"1,5"\n')
    assert csv_text.read(tmp_path / "t.csv")[0] == {"client": ["a"], "x": ["1,5"]}  # which no number is


@pytest.mark.parametrize("separator", [";", "\t"])
def test_a_comma_in_the_name_of_a_column_is_no_separator(separator: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(separator.join(("client", "x", "power, net\na", "1,5", "2,5\n")))
    assert csv_text.read(tmp_path / "t.csv")[0] == {"client": ["a"], "x": ["1.5"], "power, net": ["2.5"]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("c;x;y\na;1.200;2,5\n", r"line 2, column 'x': '1.200' may be .* column 'y' has decimal commas \(write '1200'"),
        ("c;x;y\na;1;2;3\n", r"line 2: expected 3 values \(is a semicolon missing"),
        ('c,x,y\n"a\nb",1,2\n\n"c\n\nd",1\n', r"line 5: expected 3 values"),
        ("c;c;y\na;1;2\n", "two columns 'c'"),
    ],
)
def test_what_cannot_be_told_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        csv_text.read(tmp_path / "t.csv")


@pytest.mark.parametrize("text", ["c;x;y\na;1.25;2,5\n", "c;x;y\na;1.200;2.5\n", "c;x;y\n1.200,5;1.200,5;2\n"])
def test_what_is_clear_or_no_number_stays(text: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(text)
    columns, _ = csv_text.read(tmp_path / "t.csv")
    assert [columns["c"][0], columns["x"][0]] == text.splitlines()[1].split(";")[:2]


@pytest.mark.parametrize(
    ("dotted", "iso"),
    [
        ("27.10.2024 02:30", "2024-10-27T02:30"),
        ("1.5.2024 9:05", "2024-05-01T09:05"),
        ("01.05.2024", "2024-05-01"),
        ("1.5.2024 9:05:07", "2024-05-01T09:05:07"),
    ],
)
def test_dotted_dates_are_day_month_year(dotted: str, iso: str) -> None:
    assert times.read(dotted) == times.read(iso) is not None


@pytest.mark.parametrize("text", ["13.13.2024", "1.5.24", "1.5", "31.02.2024 10:00", "1/5/2024", "1.5.2024 25:00"])
def test_other_dates_are_none(text: str) -> None:
    assert (found := times.read(text)) is None or found.kind == "number"
