"""The table of methods: read-only, and every entry fit for a study, a command and a search."""

from __future__ import annotations

import dataclasses
import math
import tomllib
from typing import Any

import pytest

from pacbayes_fl import settings
from pacbayes_fl.errors import StudyError
from pacbayes_fl.methods import METHODS, Choice, LogUniform, PacPFLOptions, Recipe
from pacbayes_fl.methods.base import Method
from pacbayes_fl.methods.pac_pfl import PacPFL
from pacbayes_fl.models.deep_kernel_gp import DeepKernelGP
from pacbayes_fl.posteriors.particles import FlatHyperPrior, GaussianHyperPrior
from pacbayes_fl.study_file import Study

FEATURES = ("wind", "lag_1")
NAMES = tuple(METHODS)


def build(name: str, **options: Any) -> Method[Any, Any, Any, Any]:
    recipe = METHODS[name]
    return recipe.build(recipe.options(**options), DeepKernelGP(2, (3,), (3,)), FEATURES)


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
    assert recipe.title and all(recipe.product) and len(recipe.title.splitlines()) == 1
    assert build(name) == method or name in ("pac-pfl", "pfedgp", "vanilla-gp", "pooled-gp")  # a model is not compared


def test_options_reach_the_method() -> None:
    """Every option of the table is a field of the method, and has the value that was given."""
    given: dict[str, Any] = {
        "particles": 3,
        "tau": None,
        "lam": 2.0,
        "beta": 0.5,
        "n2": 1.0,
        "v": 0.25,
        "rate": 0.5,
        "optimiser": "ascent",
        "bandwidth": 0.7,
        "minibatch": 2,
        "minibatch_scale": "rows",
        "cohort_scale": "mean",
        "weighting": "equal",
    }
    method = build("pac-pfl", hyper_prior_std=0.9, **given)
    assert isinstance(method, PacPFL) and isinstance(method.hyper_prior, GaussianHyperPrior)
    assert {name: getattr(method, name) for name in given} == given
    assert method.hyper_prior.std == 0.9
    assert {*given, "hyper_prior_std"} == set(PacPFLOptions.__dataclass_fields__)
    one = build("pfedgp", init_std=0.4, rate=0.2, minibatch=3)
    assert isinstance(one, PacPFL) and isinstance(one.hyper_prior, FlatHyperPrior)
    assert (one.particles, one.tau, one.rate, one.minibatch, one.hyper_prior.std) == (1, 1.0, 0.2, 3, 0.4)
    alone: Any = build("vanilla-gp", init_std=0.4, rate=0.2, steps=7)
    assert (alone.init_std, alone.rate, alone.steps) == (0.4, 0.2, 7)
    pooled: Any = build("pooled-gp", init_std=0.4, rate=0.2, steps=7, inducing=5, exact_up_to=6)
    assert (pooled.init_std, pooled.rate, pooled.steps, pooled.inducing, pooled.exact_up_to) == (0.4, 0.2, 7, 5, 6)


def test_persistence_finds_its_column() -> None:
    method: Any = build("persistence")
    assert method.column == 1
    assert build("persistence", column="wind") == dataclasses.replace(method, column=0)
    with pytest.raises(
        StudyError, match=r"persistence needs a feature 'lag', the data have wind, lag_1 \(.*column=NAME"
    ):
        build("persistence", column="lag")


@pytest.mark.parametrize("name", NAMES)
def test_every_preset_is_a_valid_study(name: str) -> None:
    recipe = METHODS[name]
    assert {"recommended", "paper"} <= set(recipe.presets)
    for preset, parts in recipe.presets.items():
        table = Study.from_table({"method": {"name": name, "preset": preset}}).table()
        for part, values in parts.items():
            assert {key: table[part][key] for key in values} == settings.merge({}, values)
    assert recipe.presets["recommended"] == {}  # the defaults are what is recommended


def values_of(space: LogUniform | Choice) -> tuple[Any, ...]:
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
        study.recipe.build(study.method.options, study.model.build(2), FEATURES)


@pytest.mark.parametrize("name", [name for name, recipe in METHODS.items() if recipe.search])
def test_rounds_are_searched_where_there_are_rounds(name: str) -> None:
    recipe: Recipe = METHODS[name]
    assert ("federation.rounds" in recipe.search) == recipe.rounds
