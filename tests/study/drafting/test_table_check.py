"""A look at a table says what a run would refuse and what it would leave out, and reads it as a run does."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from pacbayes_fl.errors import DataError, PacBayesFLError
from pacbayes_fl.study.drafting.init import look, roles, write
from pacbayes_fl.study.drafting.table_check import check, study_of
from pacbayes_fl.study.run import run
from tests.tiny import Row, write_csv


def houses(length: int = 12) -> list[Row]:
    """Rows of two houses with a gap, a night that comes twice, a word and a blank."""
    table: list[Row] = []
    for k, roof in enumerate(("flat", "steep")):
        for at in range(length):
            table.append(
                {
                    "house": f"house_{k}",
                    "when": f"2024-05-{at + 1 + 6 * (at > 7):02d}",
                    "cloud": float("nan") if (k, at) == (1, 3) else 0.1 * at * at,
                    "roof": roof,
                    "kw": 0.5 * at - k,
                }
            )
    return table


def test_what_a_run_would_refuse_is_told_with_all_else(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "houses.csv", houses())
    study = study_of(path, look(path, "house"), "ridge", ["data.missing=refuse"])
    assert (study.data.time, study.data.target, study.data.categorical) == ("when", "kw", ("roof",))
    got = check(path, study, cost=False)
    topics = {one.topic: one for one in got.findings}
    assert [*topics] == ["rows", "words", "missing", "gaps", "client features"]
    assert topics["missing"].clients == {"house_1": 1.0} and "data.missing = 'drop'" in topics["missing"].advice
    assert topics["gaps"].clients == {"house_0": 1, "house_1": 1}  # the row that lacks a value leaves none
    (refused,) = got.refused
    assert "line 17, column 'cloud'" in refused and got.cost is None
    sets = ['data.features=["lag:2 days of cloud"]', "data.missing=drop"]
    few = study_of(path, look(path, "house"), "ridge", sets)
    assert "not used" not in {one.topic for one in check(path, few, cost=False).findings}  # categorical, as guessed
    few = study_of(path, look(path, "house"), "ridge", [*sets, "data.categorical=[]"])
    said = {one.topic: one.text for one in check(path, few, cost=False).findings}
    assert said["not used"] == "roof: no features (data.features)"
    better = check(path, study_of(path, look(path, "house"), "ridge", ["data.missing=median"]))
    assert better.refused == () and better.cost is not None and better.cost.largest == 9
    assert better.to_json()["cost"]["rounds"] == 1
    assert any(line.startswith("cost: about") for line in better.lines())


@pytest.mark.parametrize("labels", [False, True])
@pytest.mark.parametrize("method", ["ridge", "fedavg"])
def test_what_is_checked_is_what_init_writes(method: str, labels: bool, tmp_path: Path) -> None:
    """A table with a gap, words, dates, a note and an empty column; targets that are numbers, or could be labels."""
    table: list[Row] = [
        {**row, "kw": float(at % 2) if labels else row["kw"], "note": "nice", "on": "", "spare": None}
        for at, row in enumerate(houses(24))
    ]
    path = write_csv(tmp_path / "houses.csv", table)
    columns = look(path, "house", "kw")
    looked = study_of(path, columns, method)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert write(path, method, tmp_path / "houses.toml", columns).study == looked
    assert looked.data.missing == "drop" and (looked.data.task == "classification") == (labels and method == "fedavg")
    got = check(path, looked, cost=False, remarks=columns.remarks)
    assert not got.refused and [one.text for one in got.findings if one.topic == "columns"] == [
        "column 'note' is left out: it holds one word",
        "column 'on' is left out: it holds no value",
        "column 'spare' is left out: it holds no value",
        "'when' orders rows and is no feature: "
        'data.features = ["cloud", "roof", "dayofweek:cyclic"] learns its cycles',
    ]
    assert "not used" not in {one.topic for one in got.findings}
    assert roles(looked).endswith("features: cloud, roof; words: roof; rows that lack a value are left out")


def test_repeats_on_both_sides_are_refused_by_the_run_and_said(tmp_path: Path) -> None:
    table = [{"client": "a", "x": float(k % 6), "y": float(k % 6)} for k in range(16)]
    path = write_csv(tmp_path / "rows.csv", table)
    got = check(path, study_of(path, look(path), "ridge"), cost=False)
    assert [one.clients for one in got.findings if one.topic == "repeats across the split"] == [{"a": 4}]
    assert len(got.refused) == 1 and "data.duplicate_rows = 'allow'" in got.refused[0]
    assert not check(path, study_of(path, look(path), "ridge", ["data.duplicate_rows=allow"]), cost=False).refused


def test_a_target_beyond_its_row_s_bound_is_said_by_its_line_with_all_else(tmp_path: Path) -> None:
    table = [{"client": "a", "cap": 5.0 + k % 3, "y": float(k % 5 + 4 * (k == 9))} for k in range(16)]
    path = write_csv(tmp_path / "rows.csv", table)
    got = check(path, study_of(path, look(path), "ridge", ["data.upper_bound=cap", "data.duplicate_rows=allow"]))
    assert len(got.findings) > 1 and got.cost is not None
    (refused,) = got.refused
    assert "'a': has a target of 8, beyond its row's bounds [-inf, 5] (line 11)" in refused


@pytest.mark.parametrize("cost", [False, True])
@pytest.mark.parametrize(
    ("method", "sets", "said"),
    [
        (
            "pac-pfl",
            ("data.transform=log1p",),
            "has a target of -1 (line 14), and data.transform = 'log1p' takes those above -1 alone",
        ),
        ("gbt", ("report.intervals=conformal",), "needs leave-one-out residuals, which gbt does not have"),
        ("gbt", ("data.scale=held-out",), "data.scale = 'held-out' is not for gbt"),
    ],
)
def test_what_method_and_target_refuse_is_said_whether_or_not_a_round_is_timed(
    method: str, sets: tuple[str, ...], said: str, cost: bool, tmp_path: Path
) -> None:
    path = write_csv(tmp_path / "houses.csv", houses())
    study = study_of(path, look(path, "house"), method, ["data.missing=drop", *sets])
    (refused,) = check(path, study, cost=cost).refused
    assert said in refused
    with pytest.raises(PacBayesFLError) as error:
        run(study)
    assert str(error.value) == refused


def test_a_table_that_cannot_be_read_at_all_is_refused(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "rows.csv", [{"client": "a", "x": 1.0, "y": 1.0}])
    study = study_of(path, look(path), "ridge")
    (refused,) = check(path, study).refused
    assert "'a'" in refused
    with pytest.raises(DataError, match="there is no file"):
        check(tmp_path / "gone.csv", study)


def test_lengths_are_told_of_a_table_that_would_be_refused_and_of_one_whose_clients_lack_all_lags(
    tmp_path: Path,
) -> None:
    hours = [
        (f"house_{k}", f"2024-05-{1 + at // 24:02d}T{at % 24:02d}:00", at % 7 + k) for k in (0, 1) for at in range(40)
    ]
    short = [("house_2", f"2024-05-01T{at:02d}:00", at) for at in range(3)]
    table = [{"client": client, "when": when, "y": y} for client, when, y in (*hours, *short)]
    path = write_csv(tmp_path / "hours.csv", table)
    sets = ['data.features=["hour:cyclic", "lag:24h"]', "data.missing=drop"]
    got = check(path, study_of(path, look(path), "ridge", sets), cost=False)  # house_2 has no median either
    assert got.refused == () and got.findings[0].text.startswith("32 rows of 2 clients")
    (gone,) = [one for one in got.findings if one.topic == "no clients"]
    assert gone.clients == {"house_2": 3.0} and "too few rows of house_2 (3 rows in the table)" in gone.text
    twice = write_csv(tmp_path / "twice.csv", [*table, table[0]])
    got = check(twice, study_of(twice, look(twice), "ridge", sets), cost=False)
    assert "comes twice" in got.refused[0]
    assert got.findings[0].text == "84 rows of 3 clients; smallest house_2 3, largest house_0 41"


def test_a_column_that_is_the_same_in_all_rows_is_said_to_be(tmp_path: Path) -> None:
    table: list[Row] = [{**row, "land": "AT"} for row in houses() if row["cloud"] == row["cloud"]]
    path = write_csv(tmp_path / "houses.csv", table)
    study = study_of(path, look(path, "house"), "ridge", ["data.categorical=[]", 'data.features=["cloud"]'])
    said = {one.topic: one.text for one in check(path, study, cost=False).findings}
    assert said["not used"] == "roof, land (the same in all rows): no features (data.features)"
