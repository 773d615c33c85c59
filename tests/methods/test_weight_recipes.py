"""Methods on networks as the table builds them: every option arrives, at the method or at its local steps."""

from __future__ import annotations

from typing import Any

import pytest

from pacbayes_fl.errors import StudyError
from pacbayes_fl.methods.weight_recipes import WEIGHT_RECIPES
from pacbayes_fl.models.bayesian_network import BayesianMLP
from pacbayes_fl.models.likelihoods import Gaussian


def build(name: str, **options: Any) -> Any:
    recipe = WEIGHT_RECIPES[name]
    return recipe.build(recipe.options(**options), BayesianMLP((2, 3, 1), Gaussian()), ("wind", "lag_1"))


def test_options_of_networks_reach_the_method_and_its_local_steps() -> None:
    local = {"steps": 3, "inner": 2, "minibatch": 7, "rate": 0.5, "zeta": 0.25, "data_scale": "sum", "noise_std": 0.5}
    method = build("pfedbayes", **local, train_draws=4, prior_rate=0.125, keep_moments=False, beta=0.5, draws=9)
    assert {name: getattr(method.local, name) for name in local} == local and method.local.draws == 4
    assert (method.tracking.rate, method.tracking.keep_moments, method.beta, method.draws) == (0.125, False, 0.5, 9)
    clustered = build("cfedbayes", clusters=3, assign_draws=2)
    assert (clustered.clusters, clustered.assign_draws) == (3, 2)
    alone = build("local", steps=3, rate=0.5, optimiser="sgd")
    assert (alone.local.steps, alone.local.rate, alone.local.optimiser) == (3, 0.5, "sgd")
    assert build("fedavg-ft", finetune=6).finetune == 6 and build("fedavg").finetune == 0


def test_a_number_of_clusters_that_is_still_to_be_chosen_builds_nothing() -> None:
    with pytest.raises(StudyError, match=r"clusters is still 'held-out' \(a run of a study chooses"):
        build("cfedbayes", clusters="held-out")
    with pytest.raises(StudyError, match="max_clusters and cluster_rounds must be at least 1"):
        build("cfedbayes", max_clusters=0)


WORDS = {"data_scale": "sum", "divergence": "reverse", "upload": "tracked", "optimiser": "sgd", "start": "random"}


@pytest.mark.parametrize("name", WEIGHT_RECIPES)
def test_an_option_that_is_changed_changes_the_method(name: str) -> None:
    """None is read and forgotten."""
    plain = fields(build(name))
    for option, value in vars(WEIGHT_RECIPES[name].options()).items():
        if option in ("max_clusters", "cluster_rounds"):  # of the study that chooses the number of clusters
            continue
        if (name, option) == ("sfedbayes", "noise_std"):
            with pytest.raises(StudyError, match="noise_std must be 1 for gates"):
                build(name, noise_std=0.5)
            continue
        other: Any = WORDS.get(option)
        if option == "weighting":
            other = "rows" if value == "uniform" else "uniform"
        elif isinstance(value, bool):
            other = not value
        elif not isinstance(value, str):
            other = value + 1 if isinstance(value, int) else value / 2
        assert fields(build(name, **{option: other})) != plain, option


def fields(method: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(method).items() if name != "model"}  # a model is not compared
