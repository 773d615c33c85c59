"""What was asked of a run, as its labels keep it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pacbayes_fl.results.grouping import settings_of
from pacbayes_fl.results.run_settings import LABEL, asked, saved
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.run import run
from tests.tiny import tiny

pytestmark = pytest.mark.filterwarnings("error")


def test_the_settings_are_what_numbers_depend_on() -> None:
    first = asked(Study.from_toml("polynomial", ["method.tau=2"]).table(), {})
    assert (first["method.tau"], first["federation.rounds"], first["data.options.samples"]) == (2.0, 100, 10)
    idle = ["method.tau=2", "seed=7", "federation.threads=1", "federation.checkpoint_every=3", "report.page=false"]
    assert asked(Study.from_toml("polynomial", idle).table(), {}) == first
    assert not any(key.startswith("privacy.") for key in first if key != "privacy.epsilon")
    assert json.loads(json.dumps(first)) == first


def test_what_held_out_rows_chose_was_asked_to_be_held_out() -> None:
    notes = {
        "federation.rounds": {"chosen": 28, "scores": {}, "rule": "mean"},
        "tau": {"chosen": 2.0},
        "rate": "one half of the study's",
    }
    tables = [Study.from_toml("polynomial", [f"federation.rounds={n}", f"method.tau={n}"]).table() for n in (28, 40)]
    one, two = (asked(table, notes) for table in tables)
    assert one == two and one["federation.rounds"] == one["method.tau"] == "held-out" and one["method.rate"] == 0.01
    assert asked(tables[0], {}) != asked(tables[1], {})


def test_a_run_says_what_was_asked_of_it_and_an_older_folder_too(tmp_path: Path) -> None:
    study = tiny()
    done = run(study, tmp_path / "run")
    assert done.labels[LABEL] == asked(study.table(), {}) == saved(tmp_path / "run") == settings_of(done)
    (tmp_path / "run" / "choice.json").write_text('{"federation.rounds": {"chosen": 2}}')
    assert saved(tmp_path / "run")["federation.rounds"] == "held-out"
    (tmp_path / "run" / "study.toml").write_text("[")
    assert saved(tmp_path / "run") == saved(tmp_path) == {}
