"""How a study says that each column is scaled."""

from __future__ import annotations

from pacbayes_fl.study.config.parts import DataPart
from pacbayes_fl.study.rows.column_kinds import asked

COLUMNS = ("x", "cap", "hour:sin", "roof=flat", "y")


def test_what_a_study_says_of_a_column_stands_above_what_it_says_of_all() -> None:
    given = DataPart(
        features=("x", "hour:cyclic"), categorical=("roof",), client_features=("cap",), column_scale={"x": "shrunk"}
    )
    assert asked(given, COLUMNS, labels=False) == ["shrunk", "pooled", "none", "none", "client"]
    assert asked(DataPart(), COLUMNS, labels=False) == [None, None, None, None, "client"]
    assert asked(DataPart(scale="none"), COLUMNS, labels=False) == ["none"] * 5
    assert asked(DataPart(scale="pooled"), COLUMNS, labels=True) == [*["pooled"] * 4, "none"]
