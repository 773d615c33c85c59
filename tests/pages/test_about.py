"""The paragraph, the warnings and how to repeat a run are made from its folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pacbayes_fl.pages import about
from pacbayes_fl.pages.about import Known
from pacbayes_fl.pages.markup import to_html
from pacbayes_fl.results.client_rows import ClientRow
from pacbayes_fl.results.records import Result

NOTHING = Known({}, {}, [], {}, "")


def test_the_paragraph_says_who_what_and_how(numbers: Result, labelled: Result) -> None:
    study = {"data": {"source": "houses.csv", "transform": "log1p"}, "federation": {"cohort": 5}}
    text = about.paragraph(numbers, study)
    for words in (
        *(
            "pac_pfl was trained on the study polynomial",
            "12 existing clients",
            "6 new clients",
            "9 to 12 training rows",
        ),
        *("houses.csv", "It predicts power in kW from 2 features", "learned as log1p", "3360 test rows", "120 rounds"),
        *("5 clients took part in each", "Seed 1."),
    ):
        assert words in text, words
    assert "4 classes" in about.paragraph(labelled, {}) and "The run is private" in about.paragraph(labelled, {})
    served = about.paragraph(replace(numbers, clients=(), rounds=(), predictions={}), {})
    assert "nodes of a deployment" in served and "each node keeps those of its clients" in served
    assert "test rows" not in served


def test_words_of_a_column_are_one_feature(numbers: Result) -> None:
    names = ["kWp", "roof=flat", "roof=gable", "roof=hip", "town=Bern", "a=b", "roof"]
    said = about.paragraph(replace(numbers, labels={**numbers.labels, "feature_name": names}), {})
    assert "from 5 features (kWp, roof of 3 words, town=Bern, a=b, roof)" in said


def test_warnings_are_those_of_the_run_and_those_of_its_numbers(numbers: Result, labelled: Result) -> None:
    row = ClientRow(99, "odd", "new", 3, {"rsmse": float("inf")})
    result = replace(numbers, clients=(*numbers.clients, row), labels={**numbers.labels, "fell_back": ["round 7"]})
    made = about.warnings(result, NOTHING._replace(warned=["first", "first"], later="2 rows"))
    assert made is not None
    text = to_html(made)
    for words in ("first", "round 7", "odd (inf) in rsmse", "left out of rounds 3 times", "undone", "Updated since"):
        assert words in text, words
    assert text.count("<li>first") == 1
    private = about.warnings(labelled, NOTHING)
    assert private is not None and "delta is weak" in to_html(private)
    assert about.warnings(replace(labelled, labels={}), NOTHING) is None
    for clients, said in ((labelled.clients, True), ((), False)):  # of a deployment the paragraph says it
        made = about.warnings(replace(labelled, labels={}, clients=clients, predictions={}), NOTHING)
        assert ("no figures of these" in ("" if made is None else to_html(made))) is said


def test_how_to_repeat_has_commands_versions_and_hashes(numbers: Result) -> None:
    environment = {
        "versions": {"torch": "2.0", "none": None},
        "device": "cpu",
        "data": {"sha256": "abc", "file_sha256": "f11e", "split_sha256": {"mnist": "def"}},
    }
    result = replace(numbers, labels={**numbers.labels, "differs_from_paper": {"method.rate": [0.1, 0.2]}})
    text = to_html(
        about.repeat(result, Known({"a": {"b": [1]}}, environment, [], {"study.toml": "123"}, ""), ["run <x>"])
    )
    for words in ("run &lt;x&gt;", "2.0", "not installed", "abc", "f11e", "def", "123", "method.rate", "a.b", "cpu"):
        assert words in text, words


def test_a_folder_without_files_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text("= broken")
    (tmp_path / "environment.json").write_text("[1]")
    assert about.known_of(tmp_path) == NOTHING
