"""Descriptions: all that has a name can be described, from its record, and examples are what can be run."""

from __future__ import annotations

import shlex

import pytest

from pacbayes_fl import cli, settings
from pacbayes_fl.bounds import BOUNDS, LOSSES
from pacbayes_fl.cli.listing import LISTED
from pacbayes_fl.cli.parser import parser
from pacbayes_fl.data.partitions import PARTITIONS
from pacbayes_fl.errors import StudyError
from pacbayes_fl.methods import METHODS
from pacbayes_fl.options import options_of
from pacbayes_fl.study import describe as study_describe
from pacbayes_fl.study.config.listing import listing
from pacbayes_fl.study.describe import describe, every_name
from pacbayes_fl.study.file import Study

NAMES = [name for names in every_name().values() for name in names]


def test_all_that_is_listed_can_be_described() -> None:
    kinds = [what for what in LISTED if what not in ("bounds", "losses", "recorded", "studies")]
    listed = [*BOUNDS, *LOSSES, *(name for what in kinds for name, _ in listing(what))]
    assert {name for name in listed if "FILE" not in name and "NAME" not in name} <= set(NAMES)
    assert {"cnn", "natural", "federation", "report.certify", "privacy"} < set(NAMES)
    assert all(names for names in every_name().values()) and len(every_name()) >= 7


@pytest.mark.law
@pytest.mark.parametrize("name", NAMES)
def test_examples_are_commands_and_studies(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for result in describe(name):
        assert result.name == name and result.title and result.examples
        for example in result.examples:
            program, *arguments = shlex.split(example)
            if program == "python":
                exec(arguments[1])
                assert "Help on function" in capsys.readouterr().out
                continue
            options = parser().parse_args(arguments)
            assert program == "pacbayes-fl"
            if options.command == "run":
                study = Study.from_toml(options.study, options.sets)
                assert name in example and settings.to_toml(study.table())
            if options.command == "bound":
                assert cli.main(arguments) == 0, capsys.readouterr().err


@pytest.mark.parametrize("name", METHODS)
def test_a_method_shows_every_option_with_the_values_of_its_presets(name: str) -> None:
    (result,) = describe(name)
    shown = {row.cells[0]: row for table in result.options for row in table.rows}
    presets = METHODS[name].presets
    assert set(options_of(METHODS[name].options)) <= set(shown)
    for column, preset in enumerate(presets, start=1):
        table = Study.from_table({"method": {"name": name, "preset": preset}}).table()
        for key, row in shown.items():
            part, _, option = key.rpartition(".")
            value = table[part or "method"][option]
            if (key, value) == ("model.linear", "ridge"):  # what the option's "auto" is for this method
                value = "auto"
            assert row.cells[column] == settings.to_value(value), (key, preset)
    for preset, parts in presets.items():
        for part, values in parts.items():
            assert {key if part == "method" else f"{part}.{key}" for key in values} <= set(shown), preset


def test_an_option_says_what_it_may_be_and_what_it_means() -> None:
    (result,) = describe("federation")
    (row,) = (row for table in result.options for row in table.rows if row.cells[0] == "min_clients")
    assert row.cells[1] == "1"
    assert row.text.startswith("A whole number (at least 1). ") and "good clients" in row.text


def test_a_bound_says_what_it_assumes_and_a_metric_which_end_is_good() -> None:
    (result,) = describe("seeger")
    assert [text for label, text in result.facts if label == "assumes"] == [*BOUNDS["seeger"].assumptions]
    (result,) = describe("accuracy")
    assert dict(result.facts)["better"] == "higher" and dict(result.facts)["task"] == "classification"


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("pac-plf", "did you mean 'pac-pfl'?"),
        ("seger", "did you mean 'seeger'?"),
        ("federated", "did you mean 'federation'?"),
        ("?", "valid: pac-pfl, "),
    ],
)
def test_a_name_that_nothing_has_is_refused_with_the_nearest(word: str, hint: str) -> None:
    with pytest.raises(StudyError) as caught:
        describe(word)
    assert str(caught.value).startswith(f"nothing is called '{word}' ({hint}")


def test_a_hyper_prior_of_the_users_is_described_by_its_docstring() -> None:
    (result,) = describe("tests.user_objects:any_hyper_prior")
    assert (result.family, result.title) == ("hyper-prior", "Make a hyper-prior of any model.")
    assert dict(result.facts)["methods"].split(", ") == ["pac-pfl", "pfedgp", "pac-pfl-bnn"]


def test_a_name_of_two_things_is_described_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_describe, "PARTITIONS", {**PARTITIONS, "mlp": PARTITIONS["labels"]})
    assert [result.family for result in describe("mlp")] == ["kind of model", "partition"]


def test_any_folder_of_images_is_described() -> None:
    (result,) = describe("my/photos/")
    assert result.title == describe("FOLDER/")[0].title and {"size", "new", "test_share"} <= {
        row.cells[0] for row in result.options[0].rows
    }
