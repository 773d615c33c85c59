"""Certificates: bounds on true risks as pure functions of numbers, which check their assumptions."""

from __future__ import annotations

from pacbayes_fl.bounds.bernstein import empirical_bernstein
from pacbayes_fl.bounds.bound import ARGUMENTS, Bound
from pacbayes_fl.bounds.certificate import Certificate, MonteCarlo, trivial_bound
from pacbayes_fl.bounds.chain import recursive
from pacbayes_fl.bounds.client import alquier, catoni, gibbs, mcallester, pbb_lambda, pbb_quadratic, seeger, theorem_3_2
from pacbayes_fl.bounds.costs import client_privacy, drawn_risk, max_information, monte_carlo_risk
from pacbayes_fl.bounds.divergence import (
    bernoulli_gaussian_kl,
    diagonal_gaussian_kl,
    discrete_kl,
    full_gaussian_kl,
    gibbs_weights,
    gp_posterior_kl,
    mixture_kl,
)
from pacbayes_fl.bounds.further import anytime, one_draw, tandem
from pacbayes_fl.bounds.holdout import (
    holdout_betting,
    holdout_binomial,
    holdout_chernoff,
    holdout_for,
    holdout_hoeffding,
    holdout_kl,
)
from pacbayes_fl.bounds.kl_inverse import binary_kl, kl_inverse_lower, kl_inverse_upper
from pacbayes_fl.bounds.laws import check_bound
from pacbayes_fl.bounds.loss_table import OWN_LOSSES, loss_named
from pacbayes_fl.bounds.losses import (
    LOSSES,
    BoundedLoss,
    ClippedNLL,
    ClippedSquare,
    LossRange,
    SaturatingSquare,
    UnboundedLoss,
    ZeroOne,
)
from pacbayes_fl.bounds.normal_nll import NormalNLL
from pacbayes_fl.bounds.objective import Objective, objective
from pacbayes_fl.bounds.pac_pfl import (
    NotVacuous,
    confidence_factor,
    gibbs_epsilon,
    later_change,
    later_log_ratio,
    not_vacuous,
    theorem_delta,
)
from pacbayes_fl.bounds.premises import Premises, Provenance
from pacbayes_fl.bounds.printed import lemma_4_3, lemma_4_6, theorem_4_2
from pacbayes_fl.bounds.rates import Rate, bpfed_rate, cfedbayes_rate, pfedbayes_rate, sfedbayes_rate
from pacbayes_fl.bounds.record import from_record, to_record
from pacbayes_fl.bounds.server import new_clients, server_bound
from pacbayes_fl.bounds.size_weighted import size_weighted
from pacbayes_fl.bounds.sweep import Sweep, rows_needed, sweep
from pacbayes_fl.bounds.table import BOUNDS, OWN_BOUNDS, bound_named
from pacbayes_fl.bounds.unbounded import sub_gamma
from pacbayes_fl.posteriors.hyper_posterior import gibbs_tau

__all__ = [
    "ARGUMENTS",
    "BOUNDS",
    "LOSSES",
    "OWN_BOUNDS",
    "OWN_LOSSES",
    "Bound",
    "BoundedLoss",
    "Certificate",
    "ClippedNLL",
    "ClippedSquare",
    "LossRange",
    "MonteCarlo",
    "NormalNLL",
    "NotVacuous",
    "Objective",
    "Premises",
    "Provenance",
    "Rate",
    "SaturatingSquare",
    "Sweep",
    "UnboundedLoss",
    "ZeroOne",
    "alquier",
    "anytime",
    "bernoulli_gaussian_kl",
    "binary_kl",
    "bound_named",
    "bpfed_rate",
    "catoni",
    "cfedbayes_rate",
    "check_bound",
    "client_privacy",
    "confidence_factor",
    "diagonal_gaussian_kl",
    "discrete_kl",
    "drawn_risk",
    "empirical_bernstein",
    "from_record",
    "full_gaussian_kl",
    "gibbs",
    "gibbs_epsilon",
    "gibbs_tau",
    "gibbs_weights",
    "gp_posterior_kl",
    "holdout_betting",
    "holdout_binomial",
    "holdout_chernoff",
    "holdout_for",
    "holdout_hoeffding",
    "holdout_kl",
    "kl_inverse_lower",
    "kl_inverse_upper",
    "later_change",
    "later_log_ratio",
    "lemma_4_3",
    "lemma_4_6",
    "loss_named",
    "max_information",
    "mcallester",
    "mixture_kl",
    "monte_carlo_risk",
    "new_clients",
    "not_vacuous",
    "objective",
    "one_draw",
    "pbb_lambda",
    "pbb_quadratic",
    "pfedbayes_rate",
    "recursive",
    "rows_needed",
    "seeger",
    "server_bound",
    "sfedbayes_rate",
    "size_weighted",
    "sub_gamma",
    "sweep",
    "tandem",
    "theorem_3_2",
    "theorem_4_2",
    "theorem_delta",
    "to_record",
    "trivial_bound",
]
