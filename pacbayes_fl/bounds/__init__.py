"""Certificates: bounds on true risks as pure functions of numbers, which refuse what they cannot vouch for."""

from __future__ import annotations

from pacbayes_fl.bounds.certificate import Certificate, MonteCarlo, Premises, Provenance
from pacbayes_fl.bounds.client import (
    BOUNDS,
    alquier,
    catoni,
    gibbs,
    max_information,
    mcallester,
    monte_carlo_risk,
    pbb_lambda,
    pbb_quadratic,
    seeger,
    theorem_3_2,
)
from pacbayes_fl.bounds.divergence import (
    bernoulli_gaussian_kl,
    diagonal_gaussian_kl,
    discrete_kl,
    full_gaussian_kl,
    gibbs_weights,
    gp_posterior_kl,
    mixture_kl,
)
from pacbayes_fl.bounds.kl_inverse import binary_kl, kl_inverse_lower, kl_inverse_upper
from pacbayes_fl.bounds.losses import (
    LOSSES,
    BoundedLoss,
    ClippedNLL,
    ClippedSquare,
    LossRange,
    SaturatingSquare,
    ZeroOne,
    loss_named,
)

__all__ = [
    "BOUNDS",
    "LOSSES",
    "BoundedLoss",
    "Certificate",
    "ClippedNLL",
    "ClippedSquare",
    "LossRange",
    "MonteCarlo",
    "Premises",
    "Provenance",
    "SaturatingSquare",
    "ZeroOne",
    "alquier",
    "bernoulli_gaussian_kl",
    "binary_kl",
    "catoni",
    "diagonal_gaussian_kl",
    "discrete_kl",
    "full_gaussian_kl",
    "gibbs",
    "gibbs_weights",
    "gp_posterior_kl",
    "kl_inverse_lower",
    "kl_inverse_upper",
    "loss_named",
    "max_information",
    "mcallester",
    "mixture_kl",
    "monte_carlo_risk",
    "pbb_lambda",
    "pbb_quadratic",
    "seeger",
    "theorem_3_2",
]
