"""The recipe of PAC-PFL on networks: every option reaches the method, and what is left open builds none."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args, get_type_hints

import pytest
import torch

from pacbayes_fl.errors import StudyError
from pacbayes_fl.inference.svi import LocalInference
from pacbayes_fl.methods import METHODS
from pacbayes_fl.methods.evidence_recipes import EVIDENCE_RECIPES, PacPFLBNNOptions
from pacbayes_fl.methods.pac_pfl.bnn import PacPFLBNN
from pacbayes_fl.models.likelihoods import Categorical
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP
from pacbayes_fl.posteriors.hyper_posterior import DiagonalHyperPrior

MODEL = BayesianMLP((2, 4, 3), Categorical(3))
RECIPE = EVIDENCE_RECIPES["pac-pfl-bnn"]
LOCAL = {"personal_steps": "steps", "personal_rate": "rate", "personal_minibatch": "minibatch"}
LOCAL |= {"personal_epochs": "epochs"}
HYPER_PRIOR = ("mean_std", "init_rho", "rho_std", "init_std")
APART = {*LOCAL, *HYPER_PRIOR, "trial_rounds", "lam", "tau"}


def build(**options: Any) -> PacPFLBNN:
    made = RECIPE.build(RECIPE.options(**{"posterior": "svi"} | options), MODEL, ())
    assert isinstance(made, PacPFLBNN)
    return made


def another(name: str, usual: Any) -> Any:
    """Return a valid value of an option that is not the usual one."""
    if isinstance(usual, str) and name != "bandwidth":
        return next(w for w in get_args(get_type_hints(PacPFLBNNOptions)[name]) if w not in (usual, "held-out"))
    if usual is None or name == "bandwidth":
        return 3.0
    return 2 * usual + 1


def test_it_is_a_method_of_the_table_on_networks() -> None:
    assert METHODS["pac-pfl-bnn"] is RECIPE and RECIPE.model == "weights" and RECIPE.federated and RECIPE.rounds
    assert build().model is MODEL


def test_every_option_reaches_the_method() -> None:
    names = {field.name for field in dataclasses.fields(PacPFLBNNOptions)} - APART
    assert {"particles", "bandwidth", "posterior", "beta"} < names
    for name in names:
        usual = getattr(PacPFLBNNOptions(posterior="svi"), name)
        given = another(name, usual)
        assert getattr(build(), name) == usual and getattr(build(**{name: given}), name) == given != usual, name
    derived = build(tau=None, lam=9.0, beta=2.0)
    assert (derived.tau, derived.lam, derived.beta) == (None, 9.0, 2.0)


def test_steps_of_clients_have_their_own_options() -> None:
    assert build().local == LocalInference(
        steps=PacPFLBNNOptions().personal_steps,
        minibatch=PacPFLBNNOptions().personal_minibatch,
        rate=PacPFLBNNOptions().personal_rate,
        zeta=1.0,
    )
    for option, field in LOCAL.items():
        rest = {"personal_steps": None} if field == "epochs" else {}
        assert getattr(build(**{option: 7}, **rest).local, field) == 7


def test_the_hyper_prior_is_made_of_its_options() -> None:
    prior = build(mean_std=2.0, init_rho=-3.0, rho_std=0.5, init_std=0.25).hyper_prior
    assert isinstance(prior, DiagonalHyperPrior)
    d = MODEL.dim
    assert (prior.loc[d:] == -3.0).all() and not prior.loc[:d].any()
    assert prior.std.tolist() == [2.0] * d + [0.5] * d
    assert torch.equal(prior.start_std, torch.tensor([0.25] * d + [0.0] * d))


def test_a_posterior_that_was_not_chosen_builds_no_method() -> None:
    with pytest.raises(StudyError, match="posterior is still 'held-out'"):
        build(posterior="held-out")
    with pytest.raises(StudyError, match="trial_rounds must be at least 1"):
        PacPFLBNNOptions(trial_rounds=0)
    (asked,) = RECIPE.held_out
    assert asked.option == "posterior"
    assert set(asked.candidates(RECIPE.options())) == {"importance", "svi", "svgd"}


def test_the_paper_has_three_particles_and_weighs_them_by_their_evidence() -> None:
    paper = build(**RECIPE.presets["paper"]["method"])
    assert (paper.particles, paper.beta, paper.v) == (3, None, 1e-4)
    assert (paper.weighting, paper.bandwidth) == ("evidence", "off-diagonal")  # eq. 37; Liu and Wang's median
