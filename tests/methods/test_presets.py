"""Presets say what papers print and what public codes do."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from pacbayes_fl.inference.map_estimate import LocalDescent
from pacbayes_fl.inference.subnetwork import (
    LargestCurvature,
    LargestMagnitude,
    LargestVariance,
    LastLayer,
    RandomShare,
    Rule,
)
from pacbayes_fl.methods import METHODS
from pacbayes_fl.methods.fedsi import ALPHAS, PERSONAL_ALPHAS, RULES
from pacbayes_fl.models.likelihoods import Categorical
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP

MODEL = BayesianMLP((2, 4, 3), Categorical(3))
NETWORKS = [name for name, recipe in METHODS.items() if recipe.model == "weights"]
FEDSI = ("fedsi", "fedsi-fac")


def make(name: str, **options: Any) -> Any:
    return METHODS[name].make(MODEL, **options)


def preset(name: str, which: str) -> Any:
    return make(name, **METHODS[name].presets[which].get("method", {}))


@pytest.mark.parametrize("name", NETWORKS)
def test_every_preset_builds(name: str) -> None:
    for which, parts in METHODS[name].presets.items():
        assert type(preset(name, which)) is METHODS[name].method
        assert set(parts) <= {"method", "model", "federation"}


def test_presets_are_what_papers_print() -> None:
    for name in ("pfedbayes", "sfedbayes", "cfedbayes"):
        paper = preset(name, "paper")
        assert (paper.local.zeta, paper.local.rate, paper.tracking.rate, paper.init_rho) == (10.0, 1e-3, 1e-3, -2.5)
        assert (paper.local.data_scale, paper.local.noise_std, paper.weighting) == ("rows", 1.0, "uniform")
        assert paper.tracking.restart == (name == "sfedbayes")  # Algorithm 2, and Algorithm 1 does not say so
    assert preset("sfedbayes", "paper").slab_average == "uniform"
    assert preset("bpfed", "paper").local.zeta == 1.0 and preset("bpfed", "paper").upload == "posterior"
    assert preset("fedavg", "paper").local == LocalDescent(None, 50, 0.01, "sgd", 10)
    assert preset("local", "paper").local == LocalDescent(None, 50, 1e-3, "adam", 10)
    for name in ("bpfed", *FEDSI):
        local = preset(name, "paper").local
        assert (local.steps, local.epochs, local.minibatch, local.optimiser) == (None, 10, 50, "adam")


def test_presets_are_what_public_codes_do() -> None:
    """Zeta divided by their number of epochs, a summed or mean loss, eps of 0.001, weights by rows."""
    code = preset("pfedbayes", "authors-code")
    assert (code.local.zeta, code.local.data_scale, code.local.noise_std) == (10.0 / 20, "sum", 1e-3)
    assert (code.local.steps, code.local.inner, code.local.minibatch, code.weighting) == (20, 5, 100, "rows")
    code = preset("bpfed", "authors-code")
    assert code.local.zeta == pytest.approx(1e-3 / 20) and code.local.data_scale == "mean"
    assert (code.local.divergence, code.upload) == ("reverse", "tracked")


def test_fedavg_is_fine_tuned_by_its_other_name_alone() -> None:
    assert make("fedavg").finetune == 0 and make("fedavg-ft").finetune == 5
    assert "finetune" not in METHODS["fedavg"].options.__dataclass_fields__


def test_pac_pfl_has_the_paper_s_particles_and_weighs_them_by_their_evidence() -> None:
    paper = preset("pac-pfl-bnn", "paper")
    assert (paper.particles, paper.beta, paper.v) == (3, None, 1e-4)
    assert (paper.weighting, paper.bandwidth) == ("evidence", "off-diagonal")  # eq. 37; Liu and Wang's median
    stated = METHODS["pac-pfl"].presets["paper"]["method"]
    assert (stated["particles"], stated["optimiser"], stated["weighting"]) == (4, "ascent", "evidence")


@pytest.mark.parametrize(("name", "share"), [("fedsi", 0.05), ("fedsi-fac", 1.0)])
def test_fedsi_is_the_paper_s_and_the_public_code_s(name: str, share: float) -> None:
    paper = preset(name, "paper")
    assert (paper.alpha, paper.local.rate, paper.predictive, paper.prior) == (1e-4, 1e-2, "probit", "cumulative")
    assert paper.choice == paper.personal_choice == LargestVariance(share) and paper.personal_alpha == "round"
    assert paper.upload == "variance" and not paper.train_head and paper.prior_weight is None
    assert METHODS[name].presets["paper"]["federation"]["rounds"] == 800
    code = preset(name, "authors-code")
    assert code.local == LocalDescent(steps=20, minibatch=100, rate=0.1, optimiser="sgd")
    assert (code.upload, code.alpha, code.floor, code.prior_weight) == ("curvature", 1e4, 1e-3, 1e-4)
    assert (code.train_head, code.finetune, code.weighting, code.predictive) == (True, 99, "rows", "map")
    assert METHODS[name].presets["authors-code"]["federation"]["rounds"] + code.finetune == 800
    assert code.choice == code.personal_choice == LargestVariance(share)


def test_a_rule_has_a_name() -> None:
    rules: dict[Rule, Any] = {
        "variance": LargestVariance(0.3),
        "magnitude": LargestMagnitude(0.3),
        "random": RandomShare(0.3),
        "curvature": LargestCurvature(0.3),
        "last-layer": LastLayer(),
    }
    for name, rule in rules.items():
        result = make("fedsi", subnetwork=name, fraction=0.3)
        assert result.choice == rule and type(result.choice) is type(rule)
        other = make("fedsi", subnetwork="variance", personal_subnetwork=name, fraction=0.3)
        assert other.personal_choice == rule and type(other.personal_choice) is type(rule)
        assert other.choice == LargestVariance(0.3)
    assert set(RULES) == set(rules) == set(get_args(Rule))


def test_the_factorised_variant_has_all_weights_of_the_representation() -> None:
    method = make("fedsi-fac")
    assert method.covariance == "diagonal" and method.choice == method.personal_choice == LargestVariance(1.0)
    assert make("fedsi").covariance == "full" and make("fedsi").choice == LargestVariance(0.01)
    assert make("fedsi").personal_choice == LargestMagnitude(0.01)


@pytest.mark.parametrize("name", FEDSI)
def test_what_fedsi_leaves_open(name: str) -> None:
    usual = METHODS[name].options()
    assert (usual.alpha, usual.personal_alpha) == ("held-out", "held-out" if name == "fedsi" else "round")
    assert [(one.option, one.values, one.after) for one in METHODS[name].held_out] == [
        ("alpha", ALPHAS, False),
        ("personal_subnetwork", RULES, True),
        ("personal_alpha", PERSONAL_ALPHAS, True),
    ]
    assert make(name).alpha == ALPHAS[0]
