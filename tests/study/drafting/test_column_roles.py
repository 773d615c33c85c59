"""What columns look like: codes from mistakes, names of clients from other names, marks from columns of one's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from pacbayes_fl.errors import StudyError
from pacbayes_fl.study.drafting.column_roles import (
    client,
    cycles,
    like_dates,
    not_target,
    odd_codes,
    own_marks,
    unread_numbers,
    why_left_out,
)

CODES = [str(k) for k in range(1, 10)]


@pytest.mark.parametrize(
    ("values", "odd"),
    [
        ([*CODES, "X"] * 4, ["X"]),
        ([*CODES * 4, "X"], []),  # once: a mistake
        (["0.5", "1.5", "X"] * 4, []),
        ([*map(str, range(30)), "X"] * 4, []),
        (CODES * 4, []),
    ],
)
def test_codes_are_few_whole_numbers_and_words_that_come_again(values: list[str], odd: list[str]) -> None:
    assert odd_codes(values) == odd


@pytest.mark.parametrize(
    ("values", "own"),
    [
        (["train", "test"], ()),
        (["Train", "valid"], ()),
        (["train", "?"], ()),
        (["a", "b"], ("split",)),
        ([""], ("split",)),
    ],
)
def test_a_column_marks_rows_where_any_of_its_words_does(values: list[str], own: tuple[str, ...]) -> None:
    assert own_marks({"split": values}, ()) == own
    assert own_marks({"split": values}, ("split",)) == ("split",)


@pytest.mark.parametrize("name", ["ID", "subject", "house_id", "TownID", "Sites", "plant no"])
def test_a_name_of_clients_goes_before_the_only_words(name: str) -> None:
    flag, who = ["y", "n"] * 6, [str(k % 3) for k in range(12)]
    assert client(Path("t.csv"), {"flag": flag, name: who})[0] == name
    for other in ([str(k) for k in range(12)], ["0", "1"] * 6, [*who[:-1], ""], [f"{one}.5" for one in who]):
        got, said = client(Path("t.csv"), {"flag": flag, name: other})
        assert got == "flag" and "makes 2 clients" in said[0]
    assert client(Path("t.csv"), {"flag": flag, "client": flag, name: who}) == ("client", [])


@pytest.mark.parametrize("name", ["acid", "paid", "grid", "width", "classify"])
def test_other_names_are_not_of_clients(name: str) -> None:
    with pytest.raises(StudyError, match="none of its columns hold texts"):
        client(Path("t.csv"), {name: [str(k % 3) for k in range(12)]})


def test_few_words_are_numbered_and_dates_are_not() -> None:
    assert "0 for 'N', 1 for 'Y', and then --target r" in not_target("r", ["Y", "N"], "x")
    assert not_target("r", ["2024-05-01"], "x").endswith(
        "holds dates and was not taken for the target, but 'x', the last of numbers; --target names another"
    )
    assert not_target("r", [*"abcdefgh"], "x").endswith("--target names another")
    assert not_target("r", ["Y", "Y"], "x").endswith("it holds one word, 'Y', where classes are two or more")


@pytest.mark.parametrize("text", ["1,234", "0,5", "45%", "12 %", "$3.50", "-€1.000,25", "12€", "1 234", "1'234.5"])
def test_numbers_in_a_form_that_is_not_read_are_said_to_be_numbers(text: str) -> None:
    for values in ([text] * 4, [text, text, text, "7"], ["7", "8.5", "9", text]):
        why = why_left_out(values, [f"line {k}" for k in range(2, 6)])
        assert f"{text!r} in line" in why and why.endswith(
            "numbers are read as 1234.5, without commas, units and signs"
        )
        assert unread_numbers(values) == text and f"holds {text!r} and was" in not_target("r", values, "x")


def test_months_of_years_are_dates_and_other_pairs_are_none() -> None:
    assert like_dates(["2024-01", "2024-12", "1999/7"])
    for text in ("2024-13", "2024.01", "10-20", "2024-01x"):
        assert not like_dates(["2024-01", text])


@pytest.mark.parametrize("text", ["a1", "10-20", "1,2,3", "12 kg", "v1.2.3", "1.5.2024"])
def test_other_texts_are_words_or_dates(text: str) -> None:
    assert unread_numbers([text, "1,234"]) is None and "are read as 1234.5" not in not_target("r", [text, "1"], "x")
    assert unread_numbers(["7", "8.5"]) is None


def hours(count: int, mark: str = "") -> list[object]:
    return [f"2024-05-{1 + h // 24:02d}T{h % 24:02d}:00{mark}" for h in range(count)]


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (hours(49), ("hour",)),
        (hours(48), ()),  # from the first to the last it does not come twice
        (hours(49, "Z"), ("hour",)),
        ([*hours(15 * 24), ""], ("hour", "dayofweek")),
        ([f"2024-05-{1 + day:02d}T06:00" for day in range(15)], ("dayofweek",)),
        ([f"2024-05-{1 + day:02d}" for day in range(15)] * 3, ("dayofweek",)),
        ([f"2024-05-{1 + 7 * week:02d}" for week in range(4)], ()),  # always the same day of the week
        ([f"{year}-{month:02d}-07" for year in range(2020, 2023) for month in range(1, 13)], ("dayofyear",)),
        ([f"{year}-01-01" for year in range(2000, 2009)], ()),
        ([*range(900)], ()),
        (["2024-05-01"], ()),
        (["", ""], ()),
        (["2024-05-01", "soon"], ()),
    ],
)
def test_cycles_are_those_that_come_twice_and_that_rows_resolve(values: list[object], names: tuple[str, ...]) -> None:
    assert cycles(values) == tuple(f"{name}:cyclic" for name in names)
