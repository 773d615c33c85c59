"""Methods on functions as the table builds them: every option arrives."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from pacbayes_fl.errors import StudyError
from pacbayes_fl.methods.base import Method
from pacbayes_fl.methods.function_recipes import FUNCTION_RECIPES, PacPFLOptions
from pacbayes_fl.methods.pac_pfl import PacPFL
from pacbayes_fl.models.deep_kernel_gp import DeepKernelGP
from pacbayes_fl.posteriors.particles import FlatHyperPrior, GaussianHyperPrior


def build(name: str, **options: Any) -> Method[Any, Any, Any, Any]:
    recipe = FUNCTION_RECIPES[name]
    return recipe.build(recipe.options(**options), DeepKernelGP(2, (3,), (3,)), ("wind", "lag_1"))


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
