"""PBB: rounds are those of pFedBayes, and posteriors descend a bound; the rest is in `test_bound_descent`."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch

from pacbayes_fl.inference import svi
from pacbayes_fl.inference.svi import LocalInference
from pacbayes_fl.methods import METHODS
from pacbayes_fl.methods.variational.bound_descent import BoundDescent
from pacbayes_fl.methods.variational.pbb import PBB
from pacbayes_fl.models.likelihoods import Categorical
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP
from pacbayes_fl.noise import Noise
from tests.methods.variational.test_bound_descent import clients

MODEL = BayesianMLP((2, 3, 3), Categorical(3), torch.float64)


def test_its_options_are_those_of_pfedbayes_and_of_the_bound() -> None:
    names = {field.name for field in fields(METHODS["pbb"].options)}  # type: ignore[arg-type]
    others = {field.name for field in fields(METHODS["pfedbayes"].options)}  # type: ignore[arg-type]
    assert names - others == {"bound", "bound_delta", "p_min", "temperature"} and names > others
    made = METHODS["pbb"].make(MODEL, bound="mcallester", bound_delta=0.01, rate=0.02, zeta="certificate")
    own = {field.name: getattr(made.local, field.name) for field in fields(LocalInference)}
    assert isinstance(made, PBB)
    assert made.refining == BoundDescent(**{**own, "zeta": 1.0}, bound="mcallester", delta=0.01)


def test_rounds_are_those_of_pfedbayes_and_the_posterior_of_a_certificate_descends_the_bound() -> None:
    options: dict[str, Any] = {"steps": 3, "minibatch": 4, "join_passes": 2, "rate": 0.01, "init_rho": -2.0}
    options |= {"zeta": 0.1, "aggregation": "tracked-moments"}
    batch = clients(True)
    locs, rounds, priors = [], [], []
    for name in ("pbb", "pfedbayes"):
        method: Any = METHODS[name].make(MODEL, **options)
        message = method.broadcast(method.init_server(torch.Generator().manual_seed(0)))
        update, _ = method.client(message, method.init_clients(message, batch), batch, Noise(0, 1, batch.ids))
        rounds.append(update.w.mean)
        prior = method.global_model(message, None, batch, Noise(0, 1, batch.ids))
        refined = method.refine(prior, batch, batch, Noise(0, 2, batch.ids))
        assert bool((refined.kl > 0).all()) and refined.kl.dtype == torch.float64
        locs.append(refined.posterior.family.loc)
        priors.append(prior.family)
    assert torch.equal(*rounds) and not torch.allclose(*locs)
    by_hand = svi.fit(
        MODEL,
        METHODS["pbb"].make(MODEL, **options).refining,
        priors[0],
        batch,
        Noise(0, 2, batch.ids).fork(),
        2,
        svi.draw_of,
    )
    assert torch.equal(by_hand.loc, locs[0])
