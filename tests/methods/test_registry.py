"""The table of methods: read-only, and every entry fit for a study, a command and a search."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
import tomllib
from typing import Any

import pytest
import torch

from pacbayes_fl import settings
from pacbayes_fl.methods import METHODS, HeldOutChoice, LogUniform, OneOf, Recipe
from pacbayes_fl.methods.base import Method
from pacbayes_fl.methods.registry import Registry
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.residuals import LeaveOneOut
from pacbayes_fl.study.file import Study
from pacbayes_fl.testing.scene import federation
from tests.laws.cases import labels_only, model_of

FEATURES = ("wind", "lag_1")
NAMES = tuple(METHODS)


def build(name: str, **options: Any) -> Method[Any, Any, Any, Any]:
    recipe = METHODS[name]
    return recipe.build(answered(recipe, recipe.options(**options)), model_of(recipe), FEATURES)


def answered(recipe: Recipe, options: Any) -> Any:
    """Take the first candidate of what is left open, as a study's choice would take one."""
    asks = [one for one in recipe.held_out if getattr(options, one.option, None) == "held-out"]
    return dataclasses.replace(options, **{one.option: one.candidates(options)[0] for one in asks})


def test_the_table_is_read_only() -> None:
    with pytest.raises(TypeError):
        METHODS["mine"] = METHODS["ridge"]  # type: ignore[index]
    for recipe in METHODS.values():
        with pytest.raises(dataclasses.FrozenInstanceError):
            recipe.title = "mine"  # type: ignore[misc]
        for table in (recipe.search, recipe.presets, *recipe.presets.values()):
            with pytest.raises(TypeError):
                table["mine"] = {}  # type: ignore[index]
    with pytest.raises(TypeError):
        METHODS["pac-pfl"].presets["paper"]["method"]["rate"] = 1.0  # type: ignore[index]


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_builds_what_it_says(name: str) -> None:
    recipe, method = METHODS[name], build(name)
    assert isinstance(method, Method)
    assert method.federated == recipe.federated
    assert dataclasses.is_dataclass(method) and dataclasses.is_dataclass(recipe.options)
    assert recipe.title and all(recipe.summary) and len(recipe.title.splitlines()) == 1
    assert build(name) == method or hasattr(method, "model")  # a model is not compared


@pytest.mark.parametrize("name", NAMES)
def test_every_preset_is_a_valid_study(name: str) -> None:
    recipe = METHODS[name]
    assert {"recommended", "paper"} <= set(recipe.presets)
    for preset, parts in recipe.presets.items():
        table = Study.from_table({"method": {"name": name, "preset": preset}}).table()
        for part, values in parts.items():
            told = {key: settings.NONE if value is None else value for key, value in values.items()}
            assert {key: table[part][key] for key in values} == settings.merge({}, told)
    assert "method" not in recipe.presets["recommended"]  # the defaults are what is recommended


def test_titles_are_read_without_importing_a_method() -> None:
    assert METHODS.titles() == {name: recipe.title for name, recipe in METHODS.items()}
    code = "import sys; from pacbayes_fl.methods import METHODS; list(METHODS), METHODS.titles(), 'ridge' in METHODS; "
    subprocess.run([sys.executable, "-c", f"{code}assert 'torch' not in sys.modules"], check=True)


def test_a_method_is_loaded_when_it_is_asked_for_and_once() -> None:
    registry = Registry({"mine": "baselines.ridge:POOLED"})
    assert len(registry) == 1 and [*registry] == ["mine"] and "ridge" not in registry
    assert registry["mine"] is registry["mine"] is METHODS["pooled-ridge"]
    with pytest.raises(KeyError):
        registry["ridge"]


def test_where_all_clients_train_and_a_cohort_is_heard() -> None:
    """Algorithms 1-3 of pFedBayes, sFedBayes and cFedBayes; the other papers train the clients that were drawn."""
    train = {
        (name, preset): Study.from_table({"method": {"name": name, "preset": preset}}).federation.train
        for name, recipe in METHODS.items()
        for preset in recipe.presets
    }
    everybody = {(name, "paper") for name in ("pfedbayes", "sfedbayes", "cfedbayes")}
    assert {key for key, value in train.items() if value == "all"} == everybody


@pytest.mark.parametrize("name", [name for name in NAMES if METHODS[name].model == "functions"])
def test_a_recipe_names_the_servers_own_optimiser(name: str) -> None:
    words = METHODS[name].summary.server.lower()
    optimiser = getattr(build(name), "optimiser", "none")
    assert all((word in words) <= (word == optimiser) for word in ("adam", "ascent"))


@pytest.mark.parametrize("name", [name for name in NAMES if METHODS[name].model == "functions"])
def test_a_method_says_whether_its_models_leave_rows_out(name: str) -> None:
    """What a study is refused by before its first round, and not found out by after the last."""
    method, batch = build(name, **({"column": "wind"} if name == "persistence" else {})), federation(2)
    message = method.broadcast(method.init_server(torch.Generator().manual_seed(0)))
    noise = Noise(0, 0, batch.ids)
    posterior = method.personalise(message, method.init_clients(message, batch), batch, noise)
    assert isinstance(posterior, LeaveOneOut) == method.leaves_rows_out


def values_of(space: LogUniform | OneOf) -> tuple[Any, ...]:
    return (space.low, space.high) if isinstance(space, LogUniform) else space.values


@pytest.mark.parametrize(("name", "key"), [(name, key) for name, recipe in METHODS.items() for key in recipe.search])
def test_every_searched_value_is_a_valid_value_of_a_study(name: str, key: str) -> None:
    part, field = key.split(".")
    space = METHODS[name].search[key]
    assert len(values_of(space)) > 1
    if isinstance(space, LogUniform):
        assert 0 < space.low < space.high < math.inf
    for value in values_of(space):
        text = settings.to_value(value)
        study = Study.from_table({"method": {"name": name}}, sets=[f"{key}={text}"])
        assert study.table()[part][field] == tomllib.loads(f"v = {text}")["v"]
        model = study.model.build((2,), 3 if labels_only(study.recipe) else None)
        study.recipe.build(answered(study.recipe, study.method.options), model, FEATURES)


@pytest.mark.parametrize("name", [name for name, recipe in METHODS.items() if recipe.search])
def test_rounds_are_searched_where_there_are_rounds(name: str) -> None:
    recipe: Recipe = METHODS[name]
    assert ("federation.rounds" in recipe.search) == recipe.rounds


@pytest.mark.parametrize(("name", "asks"), [(name, asks) for name in NAMES for asks in METHODS[name].held_out])
def test_what_can_be_left_open_is_an_option_with_candidates(name: str, asks: HeldOutChoice) -> None:
    recipe, own = METHODS[name], asks.table == "method"
    left = settings.parse(recipe.options, {asks.option: "held-out"} if own else {}, "[method]")
    candidates = asks.candidates(left)
    assert len(set(candidates)) == len(candidates) >= 2 and "held-out" not in candidates
    for candidate in candidates:
        assert not own or isinstance(build(name, **{asks.option: candidate}), Method)
        table = settings.merge({"method": {"name": name}}, {asks.table: {asks.option: candidate}})
        assert asks not in Study.from_table(table).held_out
    study = Study.from_table(settings.merge({"method": {"name": name}}, {asks.table: {asks.option: "held-out"}}))
    usual = recipe.options()
    also = [one for one in recipe.held_out if one is not asks and getattr(usual, one.option, None) == "held-out"]
    assert set(study.held_out) == {asks, *also} and Study.from_table(study.table()) == study
