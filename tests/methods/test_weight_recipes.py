"""Recipes on networks: every option reaches the method, and presets say what papers and public codes do."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args, get_type_hints

import pytest

from pacbayes_fl.errors import StudyError
from pacbayes_fl.inference.map_estimate import LocalDescent
from pacbayes_fl.methods.baselines.fedavg import FedAvg
from pacbayes_fl.methods.baselines.local import LocalOnly
from pacbayes_fl.methods.variational.bpfed import BPFed
from pacbayes_fl.methods.variational.cfedbayes import CFedBayes
from pacbayes_fl.methods.variational.pfedbayes import PFedBayes
from pacbayes_fl.methods.variational.sfedbayes import SFedBayes
from pacbayes_fl.methods.weight_recipes import WEIGHT_RECIPES
from pacbayes_fl.models.likelihoods import Categorical
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP

MODEL = BayesianMLP((2, 4, 3), Categorical(3))
PLACES = {"train_draws": "local.draws", "prior_rate": "tracking.rate", "prior_optimiser": "tracking.optimiser"}
LOCAL = ("steps", "inner", "minibatch", "rate", "zeta", "data_scale", "noise_std", "divergence", "optimiser", "epochs")
TRACKING = ("keep_moments", "restart")
FOR_THE_STUDY = {"max_clusters", "trial_rounds"}  # which chooses the number of clusters
KINDS = {
    "pfedbayes": PFedBayes,
    "sfedbayes": SFedBayes,
    "cfedbayes": CFedBayes,
    "bpfed": BPFed,
    "fedavg": FedAvg,
    "fedavg-ft": FedAvg,
    "local": LocalOnly,
}


def build(name: str, **options: Any) -> Any:
    recipe = WEIGHT_RECIPES[name]
    return recipe.build(recipe.options(**options), MODEL, ())


def another(options: type, name: str, usual: Any) -> Any:
    """Return a valid value of an option that is not the usual one."""
    if isinstance(usual, str):
        return next(word for word in get_args(get_type_hints(options)[name]) if word != usual)
    if isinstance(usual, bool):
        return not usual
    if name == "personal_sites":
        return 3
    return 1 + 2 * usual if isinstance(usual, int) else 0.875 * usual if usual else 0.125


def place(name: str) -> str:
    prefix = "local." if name in LOCAL else "tracking." if name in TRACKING else ""
    return PLACES.get(name, prefix + name)


def value(method: Any, path: str) -> Any:
    for part in path.split("."):
        method = getattr(method, part)
    return method


def test_these_methods_work_on_networks() -> None:
    assert set(KINDS) <= set(WEIGHT_RECIPES)
    assert all(recipe.model == "weights" and recipe.federated for recipe in WEIGHT_RECIPES.values())
    with pytest.raises(TypeError):
        WEIGHT_RECIPES["mine"] = WEIGHT_RECIPES["local"]  # type: ignore[index]


@pytest.mark.parametrize("name", KINDS)
def test_every_option_reaches_the_method(name: str) -> None:
    recipe = WEIGHT_RECIPES[name]
    options = [field.name for field in dataclasses.fields(recipe.options)]
    skipped = FOR_THE_STUDY | ({"noise_std"} if name == "sfedbayes" else set())  # gates are drawn in full
    assert type(build(name)) is KINDS[name] and build(name).model is MODEL
    for option in set(options) - skipped:
        default = getattr(recipe.options(), option)
        given = another(recipe.options, option, default) if option != "epochs" else 3
        rest = {"steps": None} if option == "epochs" else {}
        assert value(build(name), place(option)) == default, option
        assert value(build(name, **{option: given}, **rest), place(option)) == given != default, option


def test_a_number_of_clusters_that_was_not_chosen_builds_no_method() -> None:
    with pytest.raises(StudyError, match="clusters is still 'held-out'"):
        build("cfedbayes", clusters="held-out")
    for name in FOR_THE_STUDY:
        with pytest.raises(StudyError, match="max_clusters and trial_rounds must be at least 1"):
            build("cfedbayes", **{name: 0})


def test_fedavg_is_fine_tuned_by_its_other_name_alone() -> None:
    assert build("fedavg").finetune == 0 and build("fedavg-ft").finetune > 0
    assert "finetune" not in {field.name for field in dataclasses.fields(WEIGHT_RECIPES["fedavg"].options)}
    assert build("fedavg", optimiser="sgd", rate=0.1).local == LocalDescent(
        build("fedavg").local.steps, build("fedavg").local.minibatch, 0.1, "sgd"
    )


def preset(name: str, which: str) -> Any:
    return build(name, **WEIGHT_RECIPES[name].presets[which].get("method", {}))


@pytest.mark.parametrize("name", KINDS)
def test_every_preset_builds(name: str) -> None:
    for which, parts in WEIGHT_RECIPES[name].presets.items():
        assert type(preset(name, which)) is KINDS[name]
        assert set(parts) <= {"method", "model", "federation"}


def test_presets_are_what_papers_print() -> None:
    for name in ("pfedbayes", "sfedbayes", "cfedbayes"):
        paper = preset(name, "paper")
        assert (paper.local.zeta, paper.local.rate, paper.tracking.rate, paper.init_rho) == (10.0, 1e-3, 1e-3, -2.5)
        assert (paper.local.data_scale, paper.local.noise_std, paper.weighting) == ("rows", 1.0, "uniform")
    assert preset("sfedbayes", "paper").tracking.restart  # Algorithm 2, and Algorithm 1 does not say so
    assert preset("bpfed", "paper").local.zeta == 1.0 and preset("bpfed", "paper").upload == "posterior"
    assert preset("fedavg", "paper").local.optimiser == "sgd"


def test_presets_are_what_public_codes_do() -> None:
    """Zeta divided by their number of epochs, a summed or mean loss, eps of 0.001, weights by rows."""
    code = preset("pfedbayes", "authors-code")
    assert (code.local.zeta, code.local.data_scale, code.local.noise_std) == (10.0 / 20, "sum", 1e-3)
    assert (code.local.steps, code.local.inner, code.local.minibatch, code.weighting) == (20, 5, 100, "rows")
    code = preset("bpfed", "authors-code")
    assert code.local.zeta == pytest.approx(1e-3 / 20) and code.local.data_scale == "mean"
    assert (code.local.divergence, code.upload) == ("reverse", "tracked")


@pytest.mark.parametrize("name", KINDS)
def test_what_is_searched_is_an_option_or_of_another_part(name: str) -> None:
    recipe = WEIGHT_RECIPES[name]
    options = {field.name for field in dataclasses.fields(recipe.options)}
    assert "federation.rounds" in recipe.search
    assert all(key.split(".", 1)[1] in options for key in recipe.search if key.startswith("method."))
