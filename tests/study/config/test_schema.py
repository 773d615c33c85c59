"""The JSON Schema of a study: it accepts what a study accepts, and refuses what one look at a value shows."""

from __future__ import annotations

import dataclasses
import tomllib
from dataclasses import dataclass
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from pacbayes_fl import settings
from pacbayes_fl.data import image_sets
from pacbayes_fl.errors import PacBayesFLError
from pacbayes_fl.methods import METHODS
from pacbayes_fl.options import Range, option, options_of
from pacbayes_fl.study.config import sources
from pacbayes_fl.study.config.keys import PARTS
from pacbayes_fl.study.config.listing import BUNDLED
from pacbayes_fl.study.config.models import KINDS, ModelKind, NetworkModel, table_of
from pacbayes_fl.study.config.parts import DataPart
from pacbayes_fl.study.config.schema import schema
from pacbayes_fl.study.data import load
from pacbayes_fl.study.file import Study
from tests.faults import fuzz

SCHEMA = schema()
VALIDATOR = Draft202012Validator(SCHEMA)
IMAGES = {"method": {"name": "fedavg"}}
PLAIN = ("0", "1", "0.5", '"none"', "true", "[1]")
PRESETS = [(name, preset) for name, recipe in METHODS.items() for preset in recipe.presets]


def errors(table: dict[str, Any]) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in VALIDATOR.iter_errors(table)]


def study_of(assignment: str, method: str) -> dict[str, Any]:
    table: dict[str, Any] = {}
    settings.override(table, f"method.name={method}")
    settings.override(table, assignment)
    return table


@pytest.mark.slow
def test_it_is_a_schema_of_its_draft() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == Draft202012Validator.META_SCHEMA["$id"]


@pytest.mark.parametrize("file", sorted(BUNDLED.glob("*.toml")), ids=lambda file: file.stem)
def test_every_bundled_study_is_valid(file: Any) -> None:
    assert errors(tomllib.loads(file.read_text(encoding="utf-8"))) == []


def test_a_folder_of_images_has_options_of_its_own() -> None:
    """Also those of images without owners, and none of published ones."""
    for source in ("photos/", "../my photos", "/data/photos"):
        for own in (
            {"size": 32, "colour": "grey", "new": ["anna"]},
            {"partition": "dirichlet", "clients": 4, "alpha": 0.3},
        ):
            assert errors(IMAGES | {"data": {"source": source, "options": own}}) == []
        for own, text in (({"root": "x"}, "'root' was unexpected"), ({"size": 0}, "0 is not valid")):
            assert any(text in one for one in errors(IMAGES | {"data": {"source": source, "options": own}}))


@pytest.mark.parametrize("source", ["made/photos.npz", "photos.NPZ"])
def test_an_archive_of_images_has_those_of_a_folder_but_for_what_files_are_brought_to(source: str) -> None:
    for own in ({"new": ["anna"]}, {"partition": "dirichlet", "clients": 4, "alpha": 0.3}, {"classes": ["a", "b"]}):
        assert errors(IMAGES | {"data": {"source": source, "options": own}}) == []
    for name, value in (("size", 32), ("colour", "grey"), ("root", "x")):
        found = errors(IMAGES | {"data": {"source": source, "options": {name: value}}})
        assert any(f"'{name}' was unexpected" in one for one in found)


@pytest.mark.law
@pytest.mark.parametrize(("name", "preset"), PRESETS)
def test_every_preset_is_valid_as_it_is_and_with_every_value_written_out(name: str, preset: str) -> None:
    study = Study.from_table({"method": {"name": name, "preset": preset}})
    assert errors({"method": {"name": name, "preset": preset}}) == []
    assert errors(tomllib.loads(study.to_toml())) == []
    assert errors({"methods": {name: {"model": study.table()["model"]}}}) == []


@pytest.mark.parametrize("name", sources.every())
def test_every_option_of_data_is_valid_at_its_default(name: str) -> None:
    method = {"name": "fedavg"} if name in image_sets.domains() else {}
    given = {key: settings.plain(option.default) for key, option in sources.options_of(name).items()}
    assert given and errors({"method": method, "data": {"source": name, "options": given}}) == []
    assert errors({"data": {"source": "rows.csv"}}) == []


def test_a_private_study_and_a_simulation_are_valid() -> None:
    assert errors({"privacy": {"epsilon": 1.0}}) == errors({"privacy": {"epsilon": "none", "clip": 2}}) == []
    assert errors({"privacy": {"epsilon_if_noise_were_secret": 1.0, "randomness": "simulation"}}) == []
    assert errors({"privacy": {"clip": 1.0}})


@pytest.mark.parametrize(
    ("table", "place"),
    [
        ({"modle": {}}, "$: Additional properties are not allowed ('modle' was unexpected)"),
        ({"model": {"kernel_width": [1]}}, "$.model: Additional properties are not allowed ('kernel_width'"),
        ({"method": {"tua": 1.0}}, "$.method: Additional properties are not allowed ('tua'"),
        ({"method": {"name": "pac-plf"}}, "$.method.name"),
        ({"method": {"name": 3}}, "$.method.name"),
        ({"method": {"preset": "papers"}}, "$.method.preset: 'papers' is not one of ["),
        (
            {"method": {"name": "pfedgp", "particles": 7}},
            "$.method: Additional properties are not allowed ('particles'",
        ),
        ({"methods": {"rigde": {}}}, "$.methods: 'rigde' does not match any of the regexes"),
        ({"methods": {"pfedgp": {"data": {"time": "t"}}}}, "$.methods.pfedgp.data: Additional properties"),
        ({"methods": {"pfedgp": {"method": {"tau": 1}}}}, "$.methods.pfedgp.method: Additional properties"),
        ({"methods": {"fedavg": {"model": {"mean_widths": "zero"}}}}, "$.methods.fedavg.model: Additional properties"),
        ({"method": {"name": "fedavg"}, "model": {"feature_dim": 2}}, "$.model: Additional properties are not allowed"),
        ({"model": {"widths": [7]}}, "$.model: Additional properties are not allowed ('widths'"),
        ({"method": 3}, "$.method: 3 is not of type 'object'"),
        ({"seed": -1}, "$.seed: -1 is less than the minimum of 0"),
        ({"seed": 2**32}, "$.seed: 4294967296 is greater than the maximum"),
        ({"seed": True}, "$.seed: True is not of type 'integer'"),
        ({"name": " "}, "$.name: ' ' does not match"),
        ({"federation": {"device": "gpu"}}, "$.federation.device: 'gpu' is not one of ['auto', 'cpu', 'cuda']"),
        ({"federation": {"rounds": 1.5}}, "$.federation.rounds: 1.5 is not valid under any"),
        ({"federation": {"cohort": "all"}}, "$.federation.cohort: 'all' is not valid under any"),
        ({"report": {"certify": {"folds": 1}}}, "$.report.certify.folds: 1 is less than the minimum of 2"),
        ({"data": {"test": {"share": 1}}}, "$.data.test.share: 1 is greater than or equal to the maximum of 1"),
        ({"data": {"options": {"sample": 3}}}, "$.data.options: Additional properties are not allowed ('sample'"),
        ({"data": {"options": {"samples": 0.5}}}, "$.data.options.samples: 0.5 is not of type 'integer'"),
        ({"data": {"source": "pv-s", "options": {"modes": 2}}}, "$.data.options: Additional properties are not"),
        ({"data": {"source": "pv-s", "options": {"mode": "real"}}}, "$.data.options.mode: 'real' is not one of ["),
        (IMAGES | {"data": {"source": "mnist-rotated", "options": {"modes": 2}}}, "$.data.options: Additional"),
        (IMAGES | {"data": {"source": "mnist", "options": {"alpha": 0}}}, "$.data.options.alpha: 0 is less than or"),
        (
            IMAGES | {"data": {"source": "mnist", "options": {"partition": "label"}}},
            "$.data.options.partition: 'label'",
        ),
        ({"model": {"mean_widths": "zer"}}, "$.model.mean_widths: 'zer' is not valid under any"),
    ],
)
def test_a_wrong_study_is_not_valid_at_the_place_where_it_is_wrong(table: dict[str, Any], place: str) -> None:
    assert any(error.startswith(place) for error in errors(table)), errors(table)
    with pytest.raises(PacBayesFLError):
        load(Study.from_table(table))


@pytest.mark.law
@pytest.mark.parametrize("method", METHODS)
def test_it_refuses_nothing_that_a_study_accepts(method: str) -> None:
    common = [key for key in fuzz.common_keys() if not key.startswith("data.options.")]  # which are read by `load`
    own = fuzz.keys(method)
    keys = own | dict.fromkeys(common if method == "pac-pfl" else (), 2)
    accepted = 0
    for key, count in keys.items():  # an option that an earlier method has too is met with one value
        for value in (*PLAIN, *fuzz.values(f"schema {key}", 4)) if count == 2 else fuzz.values(f"schema {key}", 1):
            try:
                table = study_of(f"{key}={value}", method)
                Study.from_table(table)
            except PacBayesFLError:
                continue
            accepted += 1
            assert errors(table) == [], (key, value)
    assert accepted >= sum(count == 2 for count in own.values())


@dataclass(frozen=True)
class Deeper(NetworkModel):
    """Table [model] of a kind with an option of its own.

    Args:
        depth: layers.
    """

    depth: int = option(2, low=1)


def test_a_kind_of_model_with_a_table_of_its_own_has_its_own_options(monkeypatch: pytest.MonkeyPatch) -> None:
    more = {**KINDS, "deeper": ModelKind("deeper", "a deeper network", "weights", Deeper)}
    monkeypatch.setattr("pacbayes_fl.study.config.models.KINDS", more)
    monkeypatch.setattr("pacbayes_fl.study.config.schema.KINDS", more)
    validator = Draft202012Validator(schema())
    for kind, valid in (("deeper", True), ("mlp", False), (None, False)):
        table = IMAGES | {"model": {"depth": 3, "widths": [4]} | ({"kind": kind} if kind else {})}
        assert validator.is_valid(table) is valid
    assert validator.is_valid(IMAGES | {"model": {"kind": "cnn"}})
    assert not validator.is_valid(IMAGES | {"model": {"kind": "deeper", "depth": 0}})
    assert not validator.is_valid({"model": {"kind": "deeper"}})


def ranges(cls: type) -> list[tuple[str, Range]]:
    return [(name, option.range) for name, option in options_of(cls).items() if option.range != Range()]


TABLES = [("data", DataPart, "ridge"), *((part, kind, "ridge") for part, kind in PARTS)]
TABLES += [("model", table_of(METHODS[name].model), name) for name in ("ridge", "fedavg")]
TABLES += [("method", recipe.options, name) for name, recipe in METHODS.items()]


@pytest.mark.law
@pytest.mark.parametrize(("part", "kind", "method"), TABLES, ids=lambda each: getattr(each, "__name__", each))
def test_numbers_outside_of_their_ranges_are_refused_as_studies_refuse_them(part: str, kind: type, method: str) -> None:
    for name, bounds in ranges(kind):
        beyond = [bounds.above, bounds.below, *(b - 1 for b in [bounds.low] if b), *(b + 1 for b in [bounds.high] if b)]
        for number in (each for each in beyond if each is not None and abs(each) < 1e30):
            whole = number == round(number) and isinstance(getattr(kind(), name, 0), int | None)
            table = {"method": {"name": method}} | {part: {name: int(number) if whole else float(number)}}
            table["method"]["name"] = method
            with pytest.raises(PacBayesFLError):
                Study.from_table(table)
            assert errors(table), (name, number)


def test_every_option_is_explained_with_its_default() -> None:
    """A key without a default or description would be an empty bubble in an editor."""
    for place, table in SCHEMA["$defs"].items():
        for name, entry in table["properties"].items():
            assert "default" in entry, (place, name)
    federation = SCHEMA["$defs"]["federation"]["properties"]
    assert federation["cohort"]["anyOf"] == [
        {"type": "integer", "minimum": 1, "maximum": 2**32 - 1},
        {"enum": ["none"]},
    ]
    assert federation["device"] == {
        "description": '"auto" takes CUDA where there is one.',
        "default": "auto",
        "enum": ["auto", "cpu", "cuda"],
    }


def test_defaults_are_the_studys() -> None:
    for name, recipe in METHODS.items():
        usual = settings.as_table(recipe.options())
        given = {key: entry["default"] for key, entry in SCHEMA["$defs"][f"method.{name}"]["properties"].items()}
        assert given == usual
    assert dataclasses.fields(DataPart)[0].default == SCHEMA["properties"]["data"]["properties"]["source"]["default"]


def test_references_to_objects_of_ones_own_are_accepted_where_studies_take_them() -> None:
    own = {"method": {"name": "mine.py:Mine", "anything": 3}, "model": {"kind": "package.module:KIND", "depth": 2}}
    own |= {"data": {"source": "mine.py:SOURCE", "options": {"clients": 3}}}
    own |= {"methods": {"mine.py:Mine": {"method": {"anything": 4}}}}
    own |= {"privacy": {"epsilon": 1.0, "mechanism": "mine.py:NOISE", "subspace": 3, "directions": "mine.py:basis"}}
    own |= {"federation": {"aggregate": "mine.py:RULE", "faulty": 1}}
    assert errors(own) == []
    assert errors({"federation": {"aggregate": "krum"}})
    partition = {"data": {"source": "mnist", "options": {"partition": "mine.py:BLOCKS"}}, "method": {"name": "fedavg"}}
    assert errors(partition) == []
    for wrong in (
        {"method": {"name": "nothing"}},
        {"model": {"kind": "nothing"}, "method": {"name": "fedavg"}},
        {"methods": {"nothing": {}}},
        {"privacy": {"epsilon": 1.0, "mechanism": "nothing"}},
        {"data": {"source": "mnist", "options": {"partition": "nothing"}}, "method": {"name": "fedavg"}},
    ):
        assert errors(wrong), wrong
