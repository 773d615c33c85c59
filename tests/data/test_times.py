"""Times of every kind that a column may have, and what is refused with its client and its place."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pandas as pd
import pytest
import torch

from pacbayes_fl.data import times
from pacbayes_fl.errors import DataError


def parse(*values: Any) -> torch.Tensor:
    places = [f"t.csv line {i + 2}, column 't'" for i in range(len(values))]
    return times.parse(places, [*"ab" * len(values)][: len(values)], values)


@pytest.mark.parametrize(
    "texts",
    [
        ["2024-05-01T13:00", "2024-05-01 13:00:00.000001", "1969-12-31T23:59:59.999999", "2024-05-01"[:10] + "T00"],
        ["2024-05-01", "1900-02-28", "9999-12-31"],
        ["2024-10-27T02:30+02:00", "2024-10-27T02:30+01:00", "2024-10-27T01:30Z", "2024-10-26T20:30:00-05:00"],
    ],
)
def test_text_is_read_as_pandas_reads_it(texts: list[str]) -> None:
    mine = parse(*texts)
    theirs = [pd.Timestamp(text).value // 1000 if text[:4] != "9999" else None for text in texts]
    for one, other in zip(mine.tolist(), theirs, strict=True):
        assert other is None or one == other
    assert mine.dtype == torch.int64
    if texts[-1].startswith("9999"):
        assert mine[-1] == (datetime(9999, 12, 31) - datetime(1970, 1, 1)) // timedelta(microseconds=1)


def test_numbers_stay_what_they_are() -> None:
    assert parse("3", " 1 ", "2").tolist() == [3, 1, 2] and parse("3", "1").dtype == torch.int64
    assert parse("3", "1.5", "-1e3").tolist() == [3.0, 1.5, -1000.0] and parse("3", "1.5").dtype == torch.float64
    nanoseconds = [1714561200000000001, 1714561200000000000]  # no float64 tells them apart
    assert parse(*nanoseconds).tolist() == nanoseconds == parse(*map(str, nanoseconds)).tolist()
    assert parse("20240501", "20240430").tolist() == [20240501, 20240430]  # a number is a number
    assert parse(10**30, 1).tolist() == [1e30, 1.0]
    assert parse(Decimal("1.5"), Decimal("1")).tolist() == [1.5, 1.0]


def test_values_of_a_parquet_table_are_read_like_their_text() -> None:
    moment = datetime(2024, 5, 1, 13, 30, tzinfo=timezone(timedelta(hours=2)))
    assert parse(moment).tolist() == parse(moment.isoformat()).tolist() == parse(moment.astimezone(UTC)).tolist()
    assert parse(date(2024, 5, 1)).tolist() == parse("2024-05-01").tolist()
    assert parse(pd.Timestamp("2024-05-01 13:00")).tolist() == parse("2024-05-01 13:00").tolist()


@pytest.mark.parametrize(
    "value",
    [
        "",
        "monday",
        "31/12/2024",
        "2024-13-01",
        "nan",
        "inf",
        None,
        True,
        float("nan"),
        "24h",
        "2024_03_30",
        "1_0",
        10**400,
        "1" + "0" * 400,
        "\u0663\u0664",
    ],
)
def test_what_is_no_time_is_named_with_its_client_and_its_place(value: Any) -> None:
    with pytest.raises(DataError, match=r"^client 'b': t\.csv line 3, column 't': .* is no time \(ISO 8601, such as"):
        parse("2024-05-01", value)


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ("2024-05-01T13:00", "2024-05-01T13:00Z", "is a datetime with a time zone, .* is a datetime$"),
        (
            "2024-05-01T13:00",
            "2024-05-01",
            "'2024-05-01' is a date, and '2024-05-01T13:00', the first time, is a datetime",
        ),
        ("2024-05-01", "17", "'17' is a number, and '2024-05-01', the first time, is a date"),
        ("17", "2024-05-01T13:00+02:00", "is a datetime with a time zone, and '17', the first time, is a number"),
    ],
)
def test_times_of_two_kinds_are_refused_where_the_second_begins(first: str, second: str, words: str) -> None:
    with pytest.raises(DataError, match=rf"^client 'b': t\.csv line 3, column 't': .*{words.rstrip('$')}"):
        parse(first, second)


@pytest.mark.parametrize(
    "values", [(10**25 + 1, 10**25 + 2), ("9223372036854775809", "9223372036854775810"), (2**62, 2**62 + 1, 0.5)]
)
def test_times_that_no_number_of_64_bits_tells_apart_are_refused(values: tuple[Any, ...]) -> None:
    with pytest.raises(DataError, match=r"column 't': .* and .* are different times, and one number of 64 bits"):
        parse(*values)
    assert len(parse(*values[:1], *values[:1])) == 2  # equal ones are no trouble
