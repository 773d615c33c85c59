"""Recipes of FedSI: every option reaches the method, and presets say what the paper and the public code do."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args, get_type_hints

import pytest

from pacbayes_fl.errors import StudyError
from pacbayes_fl.inference.map_estimate import LocalDescent
from pacbayes_fl.inference.subnetwork import (
    LargestCurvature,
    LargestMagnitude,
    LargestVariance,
    LastLayer,
    RandomShare,
)
from pacbayes_fl.methods import METHODS
from pacbayes_fl.methods.fedsi import FedSI
from pacbayes_fl.methods.laplace_recipes import ALPHAS, LAPLACE_RECIPES, PERSONAL_ALPHAS, RULES
from pacbayes_fl.models.likelihoods import Categorical
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP

MODEL = BayesianMLP((2, 4, 3), Categorical(3))
NAMES = ("fedsi", "fedsi-fac")
LOCAL = {field.name for field in dataclasses.fields(LocalDescent)}
PLACES = {"fraction": "choice.fraction"} | {name: f"local.{name}" for name in LOCAL}
ELSEWHERE = {
    "subnetwork",
    "personal_subnetwork",
    "personal_alpha",
    "trial_rounds",
}  # below, and for the study


CHOSEN: dict[str, Any] = {"alpha": 0.1, "personal_alpha": "round"}


def build(name: str, **options: Any) -> Any:
    recipe = LAPLACE_RECIPES[name]
    return recipe.build(recipe.options(**(CHOSEN | options)), MODEL, ())


def preset(name: str, which: str) -> Any:
    """Build a preset; what it leaves open is as usual."""
    values = LAPLACE_RECIPES[name].presets[which].get("method", {})
    return build(name, **{key: value for key, value in values.items() if value != "held-out"})


def another(options: type, name: str, usual: Any) -> Any:
    """Return a valid value of an option that is not the usual one."""
    if isinstance(usual, bool):
        return not usual
    if isinstance(usual, str):
        return next(word for word in get_args(get_type_hints(options)[name]) if word != usual)
    if usual is None:
        return 0.25
    if name == "personal_sites":
        return 3
    return usual + 3 if isinstance(usual, int) else 0.5 * usual if usual else 0.125


def value(method: Any, path: str) -> Any:
    for part in path.split("."):
        method = getattr(method, part)
    return method


def test_both_are_in_the_table() -> None:
    assert set(LAPLACE_RECIPES) == set(NAMES) and all(METHODS[name] is LAPLACE_RECIPES[name] for name in NAMES)
    assert all(recipe.model == "weights" and recipe.federated and recipe.rounds for recipe in LAPLACE_RECIPES.values())
    with pytest.raises(TypeError):
        LAPLACE_RECIPES["mine"] = LAPLACE_RECIPES["fedsi"]  # type: ignore[index]


@pytest.mark.parametrize("name", NAMES)
def test_every_option_reaches_the_method(name: str) -> None:
    options = LAPLACE_RECIPES[name].options
    assert type(build(name)) is FedSI and build(name).model is MODEL and build(name, alpha=0.7).alpha == 0.7
    for field in dataclasses.fields(options):
        if field.name in ELSEWHERE | {"alpha"}:
            continue
        default, path = getattr(options(), field.name), PLACES.get(field.name, field.name)
        given = another(options, field.name, default) if field.name != "epochs" else 3
        rest = {"steps": None} if field.name == "epochs" else {}
        assert value(build(name), path) == default, field.name
        assert value(build(name, **{field.name: given}, **rest), path) == given != default, field.name


def test_options_and_the_method_have_the_same_defaults() -> None:
    usual, plain = build("fedsi", personal_subnetwork="same"), FedSI(MODEL, alpha=0.1)
    for field in dataclasses.fields(FedSI):
        assert getattr(usual, field.name) == getattr(plain, field.name), field.name


def test_a_rule_has_a_name() -> None:
    rules: dict[str, Any] = {
        "variance": LargestVariance(0.3),
        "magnitude": LargestMagnitude(0.3),
        "random": RandomShare(0.3),
    }
    rules |= {"curvature": LargestCurvature(0.3), "last-layer": LastLayer()}
    for name, rule in rules.items():
        found = build("fedsi", subnetwork=name, fraction=0.3).choice
        assert found == rule and type(found) is type(rule)
        other = build("fedsi", subnetwork="variance", personal_subnetwork=name, fraction=0.3)
        assert other.personal_choice == rule and type(other.personal_choice) is type(rule)
        assert other.choice == LargestVariance(0.3)
    assert build("fedsi", personal_subnetwork="same").personal_choice is None
    assert set(RULES) == set(rules) == set(get_args(get_type_hints(LAPLACE_RECIPES["fedsi"].options)["subnetwork"]))


def test_the_factorised_variant_has_all_weights_of_the_representation() -> None:
    method = build("fedsi-fac")
    assert method.covariance == "diagonal" and method.choice == LargestVariance(1.0)
    assert build("fedsi").covariance == "full" and build("fedsi").choice == LargestVariance(0.01)
    assert build("fedsi").personal_choice == LargestMagnitude(0.01) and method.personal_choice is None


@pytest.mark.parametrize("name", NAMES)
def test_an_alpha_that_was_not_chosen_builds_no_method(name: str) -> None:
    recipe = LAPLACE_RECIPES[name]
    assert recipe.options().alpha == "held-out"
    assert recipe.options().personal_alpha == ("held-out" if name == "fedsi" else "round")
    with pytest.raises(StudyError, match="alpha is still 'held-out'"):
        recipe.build(recipe.options(), MODEL, ())
    alpha, rule, personal = recipe.held_out
    assert [(one.option, one.after) for one in recipe.held_out] == [
        ("alpha", False),
        ("personal_subnetwork", True),
        ("personal_alpha", True),
    ]
    for one, values in ((alpha, ALPHAS), (rule, RULES), (personal, PERSONAL_ALPHAS)):
        assert one.candidates(recipe.options()) == values and len(set(values)) == len(values)
        with pytest.raises(StudyError, match=f"{one.option} is still 'held-out'"):
            build(name, **{one.option: "held-out"})
    for value in ALPHAS:
        assert build(name, alpha=value).alpha == value
    for value in PERSONAL_ALPHAS:
        assert build(name, personal_alpha=value).personal_alpha == value
    with pytest.raises(StudyError, match="trial_rounds must be at least 1"):
        recipe.options(trial_rounds=0)


@pytest.mark.parametrize("name", NAMES)
def test_presets_are_what_the_paper_prints(name: str) -> None:
    """Section IV.A: prior variance 1e-4, Adam at 1e-2, minibatches of 50, 10 epochs, 800 rounds, eq. 19, 1 / C."""
    paper = preset(name, "paper")
    assert paper.alpha == 1e-4 and paper.predictive == "probit" and paper.weighting == "uniform"
    assert paper.local == LocalDescent(steps=None, epochs=10, minibatch=50, rate=1e-2, optimiser="adam")
    assert paper.choice == LargestVariance(0.05 if name == "fedsi" else 1.0) and paper.prior == "cumulative"
    assert paper.personal_choice is None is paper.personal_alpha
    assert paper.upload == "variance" and not paper.train_head and paper.prior_weight is None
    assert LAPLACE_RECIPES[name].presets["paper"]["federation"]["rounds"] == 800


@pytest.mark.parametrize("name", NAMES)
def test_presets_are_what_the_public_code_does(name: str) -> None:
    code = preset(name, "authors-code")
    assert code.local == LocalDescent(steps=20, minibatch=100, rate=0.1, optimiser="sgd")
    assert (code.upload, code.alpha, code.floor, code.prior_weight) == ("curvature", 1e4, 1e-3, 1e-4)
    assert (code.train_head, code.finetune, code.weighting, code.predictive) == (True, 99, "rows", "map")
    assert LAPLACE_RECIPES[name].presets["authors-code"]["federation"]["rounds"] + code.finetune == 800


@pytest.mark.parametrize("name", NAMES)
def test_every_preset_builds_and_what_is_searched_is_an_option(name: str) -> None:
    recipe = LAPLACE_RECIPES[name]
    for which, parts in recipe.presets.items():
        assert type(preset(name, which)) is FedSI and set(parts) <= {"method", "model", "federation"}
    options = {field.name for field in dataclasses.fields(recipe.options)}
    assert "federation.rounds" in recipe.search
    assert all(key.split(".", 1)[1] in options for key in recipe.search if key.startswith("method."))
