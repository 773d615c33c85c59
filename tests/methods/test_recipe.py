"""A recipe: presets, what is left open, and methods built from it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from pacbayes_fl.errors import StudyError
from pacbayes_fl.methods.baselines.vanilla_gp import VanillaGP
from pacbayes_fl.methods.options import Paper
from pacbayes_fl.methods.recipe import HELD_OUT, HeldOutChoice, LogUniform, MethodSummary, OneOf, Recipe, Trials
from pacbayes_fl.models.functions.deep_kernel_gp import DeepKernelGP

SUMMARY = MethodSummary("model", "client", "server", "uploads", "keeps")
MODEL = DeepKernelGP(2, (3,), (3,))


def made(**options: Any) -> Recipe:
    return Recipe("Title", VanillaGP, SUMMARY, **options)


def test_presets_are_read_only_through_and_through_and_copy_what_they_are_given() -> None:
    values = {"rate": 1.0}
    table = made(presets={"paper": {"method": values}, "mine": {"federation": {"rounds": 3}}}).presets
    values["rate"] = 2.0
    assert table["paper"]["method"]["rate"] == 1.0
    assert dict(table["recommended"]) == {} and set(table) == {"recommended", "paper", "mine"}
    frozen: Any
    for frozen in (table, table["paper"], table["paper"]["method"]):
        with pytest.raises(TypeError):
            frozen["mine"] = {}


def test_what_a_paper_states_is_its_preset_and_a_preset_s_own_value_wins() -> None:
    paper = {"rate": Paper(0.5, "Table 1"), "steps": Paper(..., "many"), "init_std": Paper(0.1, "section 2")}
    recipe = made(paper=paper, presets={"paper": {"method": {"init_std": 0.2}}})
    assert dict(recipe.presets["paper"]["method"]) == {"rate": 0.5, "init_std": 0.2}
    assert recipe.placed["steps"].paper == Paper(..., "many")


def test_a_recipe_says_little_unless_told() -> None:
    recipe = made()
    assert (recipe.model, dict(recipe.search), recipe.rounds, recipe.federated) == ("functions", {}, True, True)
    assert set(recipe.presets) == {"recommended", "paper"} and not any(recipe.presets.values())
    with pytest.raises(dataclasses.FrozenInstanceError):
        recipe.title = "mine"  # type: ignore[misc]
    with pytest.raises(TypeError):
        recipe.search["x"] = OneOf((1,))  # type: ignore[index]
    assert recipe.held_out == () and recipe.options().rate == VanillaGP(MODEL).rate


def test_a_variant_has_other_defaults_and_what_is_fixed_is_no_option() -> None:
    recipe = made(variant={"rate": 0.5, "steps": 3}, fixed=("steps",), search={"method.rate": LogUniform(0.1, 1.0)})
    assert [field.name for field in dataclasses.fields(recipe.options)] == ["init_std", "rate"]
    assert recipe.options().rate == 0.5
    method: Any = recipe.make(MODEL, init_std=0.4)
    assert (method.init_std, method.rate, method.steps) == (0.4, 0.5, 3)
    with pytest.raises(TypeError, match="steps"):
        recipe.make(MODEL, steps=4)


@pytest.mark.parametrize("by_default", [True, False])
def test_what_is_left_open_is_chosen_before_a_method_is_built(by_default: bool) -> None:
    asks = HeldOutChoice("rate", (0.5, 0.1), by_default=by_default)
    recipe = made(held_out=(asks,), trials=Trials(7))
    assert recipe.options().trial_rounds == 7 and asks.candidates(None) == (0.5, 0.1)
    assert recipe.options().rate == (HELD_OUT if by_default else 0.01)
    with pytest.raises(StudyError, match="rate is still 'held-out'"):
        recipe.build(recipe.options(rate=HELD_OUT), MODEL)
    method: Any = recipe.make(MODEL)
    assert method.rate == (0.5 if by_default else 0.01)
    with pytest.raises(StudyError, match="trial_rounds must be at least 1, got 0"):
        recipe.options(trial_rounds=0)
    with pytest.raises(StudyError, match="trial_rounds must be at least 1, got 0"):
        Trials(0)
    assert HeldOutChoice("rate", lambda options: (options, 2)).candidates(1) == (1, 2)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"held_out": (HeldOutChoice("ratee", (1.0,)),)}, "names 'ratee', which is none of its options"),
        ({"held_out": (HeldOutChoice("rate", ()),)}, "values of 'rate' must be a tuple of candidates or a function"),
        ({"held_out": (HeldOutChoice("rate", [1.0]),)}, "values of 'rate' must be a tuple"),
        (
            {"held_out": (HeldOutChoice("rate", (1.0,)),), "trials": None},
            "leaves 'rate' to trials, and the recipe does",
        ),
        ({"held_out": (HeldOutChoice("steps", (1,)),), "fixed": ("steps",)}, "names 'steps', which is none of its"),
    ],
)
def test_what_is_left_open_can_be_chosen(given: dict[str, Any], said: str) -> None:
    with pytest.raises(StudyError, match=f"^held_out of the recipe of VanillaGP.* ?{said}"):
        made(**{"trials": Trials(), **given})
    made(held_out=(HeldOutChoice("rate", (1.0,), after=True),))  # one federation of all rounds, and no trial
