"""PAC-Bayes with Backprop at every client, with the federation's distribution as prior (Perez-Ortiz et al. 2021)."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import partial
from typing import final

from pacbayes_fl.bounds import client
from pacbayes_fl.bounds.objective import Trainable
from pacbayes_fl.inference.svi import LocalInference
from pacbayes_fl.methods.options import Paper, part
from pacbayes_fl.methods.recipe import ROUNDS, SEARCH_NETWORK, LogUniform, MethodSummary, OneOf
from pacbayes_fl.methods.variational import pfedbayes
from pacbayes_fl.methods.variational.base import Aggregation, zeta_among
from pacbayes_fl.methods.variational.bound_descent import BoundDescent
from pacbayes_fl.methods.variational.pfedbayes import PFedBayes
from pacbayes_fl.options import option, same


@final
@dataclass(frozen=True)
class PBB(PFedBayes):
    """PBB: rounds learn priors as those of pFedBayes do, and whoever starts at one that stays descends a bound.

    These are new clients, clients with later rows and, of a run with `report.certify`, the posteriors of certificates:
    their priors have learned from the other part of the rows. A prior is the better the less it errs, so that rounds
    weigh the divergence a tenth as much as Bayes' rule does; Perez-Ortiz et al. learn theirs without any.

    Args:
        local: steps on q in rounds, which learn the priors.
        bound_delta: probability with which the bound may fail.

    Example:
        >>> from pacbayes_fl import PBB, BayesianMLP, Categorical
        >>> method = PBB(BayesianMLP((4, 8, 3), Categorical(3)), bound="mcallester", bound_delta=0.05)
        >>> method.local.zeta, method.refining.bound, method.refining.delta  # an ELBO in the rounds, then the bound
        (0.1, 'mcallester', 0.05)
    """

    local: LocalInference = part(partial(LocalInference, zeta=0.1), names={"draws": "train_draws"})
    aggregation: Aggregation = same(PFedBayes, "aggregation", "tracked-moments")
    init_rho: float = same(PFedBayes, "init_rho", -4.0)
    bound: Trainable = same(BoundDescent, "bound")
    bound_delta: float = option(0.025, above=0, below=1, symbol="delta", paper=Paper(0.025, "section 7"))
    p_min: float = same(BoundDescent, "p_min")
    temperature: float = same(BoundDescent, "temperature")

    @property
    def refining(self) -> LocalInference:
        """The steps of a round, down the bound."""
        own = {field.name: getattr(self.local, field.name) for field in fields(LocalInference)}
        own["zeta"] = self.local.weight  # of no use: the bound weighs
        return BoundDescent(
            **own, bound=self.bound, delta=self.bound_delta, p_min=self.p_min, temperature=self.temperature
        )


RECIPE = replace(
    pfedbayes.RECIPE,
    title="PBB: PAC-Bayes with Backprop at each client, from the federation's distribution as prior",
    method=PBB,
    summary=MethodSummary(
        "Bayesian network, mean field", "svi, then a bound", "average.extrapolate", "w", "q, two Adams"
    ),
    presets={"recommended": {"federation": ROUNDS}},
    search={
        "method.bound": OneOf((client.PBB_QUADRATIC.name, client.MCALLESTER.name)),
        "method.zeta": LogUniform(0.03, 3.0),
        **SEARCH_NETWORK,
    },
    held_out=(zeta_among(0.1, 1.0, 0.01, 10.0),),
)
