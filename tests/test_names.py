"""Names as text: what is shown prints, what is written reads back, and nothing is a formula, a path or mathematics."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import tomllib
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pacbayes_fl.data.cells import GAPS
from pacbayes_fl.names import (
    apart,
    from_cell,
    in_json,
    padded,
    printable,
    shortened,
    to_cell,
    to_drawing,
    to_folder,
    told_apart,
    width,
)
from pacbayes_fl.settings import to_toml
from tests.hostile import NAMES, STEERING

NUMERIC = {*"+-.,eEnaNA 0123456789"}
TEXT = st.text(max_size=30) | st.sampled_from(sorted(NAMES.values()))
PLAIN = ("polynomial", "pv-ew-150", "house_07", "pac-pfl rate=0.1", "pac-pfl mean_widths=[4, 2]", "Zürich", "-5")


def prints(text: str) -> bool:
    """By Unicode's categories: no control, format or private characters, no separators but the blank."""
    return all(c == " " or unicodedata.category(c)[0] not in "CZ" for c in text)


@given(TEXT)
def test_what_is_shown_prints_and_what_prints_is_shown_as_it_is(text: str) -> None:
    assert prints(printable(text)) and (printable(text) == text) == prints(text)
    assert printable(printable(text)) == printable(text)


@given(TEXT, st.integers(1, 40))
def test_a_text_that_is_shortened_fits_and_keeps_its_ends(text: str, columns: int) -> None:
    got, whole = shortened(text, columns), printable(text)
    assert width(got) <= columns and prints(got)
    if width(whole) <= columns:
        assert got == whole
    else:
        head, mark, tail = got.rpartition("\u2026") if got.count("\u2026") == 1 else ("", "\u2026", "")
        assert mark and whole.startswith(head) and whole.endswith(tail)
        assert columns - width(got) <= 1  # half an ideograph is none
    assert width(padded(got, columns)) == columns


def test_the_middle_goes() -> None:
    assert shortened("house_000000000001_east", 12) == "house_\u2026_east"
    assert shortened("\u5bb6" * 5, 7) == "\u5bb6\u5bb6\u2026\u5bb6"
    assert [shortened("abcd", n) for n in (1, 2, 3, 4)] == ["\u2026", "a\u2026", "a\u2026d", "abcd"]


@given(st.lists(TEXT, min_size=1, max_size=4))
def test_cells_read_back_and_are_no_formulas(names: list[str]) -> None:
    """Through the csv module, in the first column and in others; by the list of OWASP's page on CSV injection."""
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerow(map(to_cell, names))
    assert prints(file.getvalue().rstrip("\n"))
    (read,) = csv.reader(io.StringIO(file.getvalue()))
    assert [from_cell(cell) for cell in read] == names
    for cell in read:
        assert cell.lstrip()[:1] not in tuple("=+-@\t\r\uff1d\uff0b\uff0d\uff20") or set(cell) <= NUMERIC
        assert ";=" not in cell.replace(" ", "")


@given(
    st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(("{!r}", "{:f}", "{:,.2f}", "{:+.3e}", "{:.0f}."))
)
def test_a_number_stays_a_number_however_a_table_writes_it(number: float, form: str) -> None:
    text = form.format(number)
    swapped = text.translate(str.maketrans(".,", ",."))
    for one in (text, swapped, f" {text}", f"{text} ", re.sub(r"^-0\.(?=\d)", "-.", text)):
        assert to_cell(one) == one
        for more in ("+cmd|' /C calc'!A0", "\t", ";=1+1", "+1", "(1)"):
            assert to_cell(one + more).startswith("'") or not one.lstrip().startswith(("-", "+"))
    assert all(to_cell(gap) == gap for gap in (*GAPS, " - ", "-NaN"))


@given(st.lists(TEXT, min_size=1, max_size=4, unique=True))
def test_names_that_are_known_are_never_taken_apart_and_others_at_their_commas(known: list[str]) -> None:
    known = [name for name in known if name]
    assert apart(known, known) == known
    plain = [name for name in known if "," not in name and name == name.strip()]
    assert apart([", ".join(plain)] if len(plain) > 1 else plain, plain) == plain


@given(TEXT, TEXT)
def test_different_names_have_different_cells_and_folders(one: str, other: str) -> None:
    assert (to_cell(one) == to_cell(other)) == (one == other)
    assert (to_folder(one) == to_folder(other)) == (one == other)


@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_name_stays(name: str) -> None:
    assert printable(name) == to_cell(name) == shortened(name, 80) == to_drawing(name, 80) == name
    assert to_folder(name) == name or name == "-5"


@given(TEXT)
def test_a_folder_is_one_name_on_every_system(text: str) -> None:
    name = to_folder(text)
    assert Path(name).name == name and Path("C:", name).parts[-1] == name and prints(name)
    assert not set(name) & set('<>:"/\\|?*') and name[0] not in ".-~ " and name[-1] not in ". "
    assert len(name.encode()) <= 90 and name.split(".")[0].strip().upper() not in ("CON", "PRN", "AUX", "NUL", "COM1")


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_folder_of_any_name_lies_where_it_should(name: str, tmp_path: Path) -> None:
    for text in (name, "", "."):
        (tmp_path / to_folder(text)).mkdir()
    assert len(list(tmp_path.iterdir())) == 3 and len(list(tmp_path.parent.glob("*escaped*"))) == 0


@given(TEXT)
def test_json_and_toml_say_the_same_and_print(text: str) -> None:
    written = in_json(json.dumps({text: [text]}, ensure_ascii=False, indent=1))
    assert json.loads(written) == {text: [text]} and all(map(prints, written.split("\n")))
    table = to_toml({"name": text, "options": {"note": [text]}})
    assert tomllib.loads(table) == {"name": text, "options": {"note": [text]}} and all(map(prints, table.split("\n")))


def test_surrogates_do_not_stop_what_is_shown_or_written() -> None:
    """What Python makes of arguments that are no text."""
    for text in ("a\udcff", "\ud800"):
        assert prints(printable(text)) and from_cell(to_cell(text)) == text
        assert to_folder(text).encode() and to_cell(text).encode()
        assert json.loads(in_json(json.dumps(text, ensure_ascii=False)).encode()) == text


@pytest.mark.parametrize(
    ("value", "spread", "cell"),
    [
        (1 / 3, 0.1, "0.333333333"),
        (-123456.789012345, 1.0, "-123456.78901"),
        (100000001.6969227, 0.02, "100000001.696923"),
        (1e15 + 0.5, 1e-9, "1000000000000000.5"),
        (1e15 + 0.5, math.nan, "1e+15"),
        (1e15 + 0.5, 0.0, "1e+15"),
        (0.0, 0.1, "0"),
        (math.inf, 0.1, "inf"),
    ],
)
def test_digits_tell_a_hundred_thousandth_of_the_spread(value: float, spread: float, cell: str) -> None:
    assert told_apart(value, spread) == cell


@given(TEXT)
def test_nothing_is_mathematics(text: str) -> None:
    from matplotlib import cbook

    drawn = to_drawing(text, 60)
    assert not cbook.is_math_text(drawn) and all(map(prints, drawn.split("\n")))
    if len(text) < 50 and prints(text):
        assert drawn.replace(r"\$", "$") == text  # what matplotlib draws of it


def test_the_table_of_names_steers() -> None:
    """A table that has lost its sting would pass every test."""
    assert all(any(mark in name for name in NAMES.values()) for mark in STEERING)
