import json
from pathlib import Path

import pytest

from benchmarks import tables

PAPER = json.loads((tables.REFERENCE / "pac_pfl_table6.json").read_text(encoding="utf-8"))


def cell(metric: str, mean: float) -> dict[str, object]:
    return {"method": "pac-pfl", "group": "new", "metric": metric, "mean": mean, "low": 0.1, "high": 0.9, "seeds": 5}


def test_the_papers_cells_are_found_by_study_method_and_group() -> None:
    assert tables.published(PAPER, "pv-ew-150-bern", "pac-pfl", "existing") == (0.41, 0.04)
    assert tables.published(PAPER, "pv-s-150", "vanilla-gp", "new") == (0.69, 0.12)
    assert tables.published(PAPER, "pv-s-150", "ridge", "new") is None
    assert tables.published(PAPER, "mine", "pac-pfl", "new") is None


def test_our_numbers_stand_beside_theirs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = {"study": "polynomial", "cells": [cell("rsmse", 0.5), cell("ce", 0.25), cell("nlpd", 1.0)]}
    (tmp_path / "compare.json").write_text(json.dumps(summary), encoding="utf-8")
    tables.main([str(tmp_path)])
    row = "| pac-pfl | new | 0.500 [0.100, 0.900] | 0.65 | 0.250 [0.100, 0.900] | 0.16 | 1.000 | - |"
    printed = capsys.readouterr().out
    assert row in printed and "polynomial, 5 seeds" in printed
