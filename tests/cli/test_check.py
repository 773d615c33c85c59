"""The command `check` looks at a table by a guess or by a study, and prints what there is."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.answers import Call
from tests.tiny import rows, write_csv


def test_a_table_is_looked_at_without_a_study(call: Call, tmp_path: Path) -> None:
    write_csv(tmp_path / "rows.csv", rows())
    code, out, err = call("check", "rows.csv", "--no-cost")
    assert (code, err) == (0, "")
    assert out.splitlines()[:2] == [
        "clients: column 'client'; target 'y', numbers; all others are features",
        "rows: 55 rows of 6 clients (2 of them new), 18 of them test rows; smallest new_0 7, median existing_0 9, "
        "largest existing_1 12",
    ]


def test_a_study_says_what_the_columns_are(call: Call, tmp_path: Path) -> None:
    write_csv(tmp_path / "rows.csv", [{"who": row["client"], "watt": row["y"], "wind": row["wind"]} for row in rows()])
    (tmp_path / "mine.toml").write_text('[data]\nsource = "other.csv"\nclient = "who"\ntarget = "watt"\n')
    code, out, err = call("check", "rows.csv", "--study", "mine.toml", "--set", "method.name=ridge", "--json")
    assert (code, err) == (0, "")
    got = json.loads(out)
    assert got["refused"] == [] and got["findings"][0]["clients"]["existing_1"] == 12 and got["cost"]["seconds"] > 0


def test_what_init_says_of_columns_check_says_too(call: Call, tmp_path: Path) -> None:
    write_csv(tmp_path / "rows.csv", [{**row, "note": f"note {k}"} for k, row in enumerate(rows())])
    looked = call("check", "rows.csv", "--no-cost").out.splitlines()
    begun = call("init", "--data", "rows.csv").out.splitlines()
    assert "features: " in looked[0] and "note" not in looked[0] and looked[0] == begun[0]
    assert looked[2] == f"columns: {begun[1]}" and not any(line.startswith("not used") for line in looked)
    assert all("data.features" not in line for line in looked)
    chosen = call("check", "rows.csv", "--no-cost", "--set", 'data.features=["wind"]').out.splitlines()
    assert "features: wind" in chosen[0] and any(line.startswith("not used: lag_1, note: no f") for line in chosen)


def test_the_method_that_is_named_is_timed_also_where_a_study_has_another(call: Call, tmp_path: Path) -> None:
    write_csv(tmp_path / "rows.csv", rows())
    (tmp_path / "mine.toml").write_text('[data]\nsource = "rows.csv"\n[method]\nname = "ridge"\n')
    assert call("check", "rows.csv", "--study", "mine.toml", "--method", "pfedgp", "--json").code == 0
    answer = call("check", "rows.csv", "--study", "mine.toml", "--method", "ridgge")
    assert answer.code == 1 and "unknown method 'ridgge'" in answer.err


def test_numbers_of_rows_are_found_and_left_out_of_a_guess(call: Call, tmp_path: Path) -> None:
    write_csv(tmp_path / "rows.csv", [{"": at, **row} for at, row in enumerate(rows())])
    (tmp_path / "mine.toml").write_text('[data]\nsource = "rows.csv"\n')
    out = call("check", "rows.csv", "--study", "mine.toml", "--no-cost").out
    assert "row numbers: '' numbers the rows of the file" in out and "data.features names those that are used" in out
    out = call("check", "rows.csv", "--no-cost").out
    assert "column '' is left out: it numbers" in out and "row numbers:" not in out and "not used" not in out


def test_columns_that_are_not_there_are_wrong(call: Call, tmp_path: Path) -> None:
    write_csv(tmp_path / "rows.csv", rows())
    answer = call("check", "rows.csv", "--target", "watt")
    assert answer.code == 1 and "has no column 'watt'" in answer.err
