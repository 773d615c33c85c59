"""A year of houses, and the line of a table for every number of points."""

from __future__ import annotations

import pytest

from benchmarks.large_clients import TEST, main, year_of


def test_a_year_has_all_its_hours_and_others_to_predict_where_few_train() -> None:
    few = year_of(1, 20)
    assert few.train.x.shape == (1, 20, 15) and few.test.y.shape == (1, TEST)
    assert abs(float(few.train.y.mean())) < 1e-9 and bool(few.test.x.isfinite().all())
    assert year_of(1, None).train.x.shape[1] == 8760


def test_the_table_has_a_line_for_every_number_of_points_and_the_exact_one(capsys: pytest.CaptureFixture[str]) -> None:
    main(["accuracy", "--rows", "20", "--houses", "1", "--rounds", "1", "--points", "5"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[1] for line in lines] == ["5", "exact"] and len({line.count("|") for line in lines}) == 1
