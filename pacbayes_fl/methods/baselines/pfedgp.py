"""pFedGP for regression: one shared deep kernel, learned by the server's Adam on the clients' summed log evidence.

Achituve et al. (2021), in the adaptation of PAC-PFL section 8.6.2: "a special case of our algorithm when using a single
prior in SVGD and a very wide hyper-prior", with a zero mean (as originally) or a network mean, which the model decides.
"""

from __future__ import annotations

from typing import Any, cast

from pacbayes_fl.methods.gp_choices import GP_SEARCH, NETWORKS, NOISE, OWN_ROWS, PRIOR, RATE, SCALE, STDS, STEPS, TRIALS
from pacbayes_fl.methods.pac_pfl.gp import PacPFL
from pacbayes_fl.methods.recipe import HELD_OUT, HeldOutChoice, MethodSummary, Recipe
from pacbayes_fl.models.base import FunctionModel
from pacbayes_fl.posteriors.hyper_posterior import CentredFlatHyperPrior

RECIPE = Recipe(
    "pFedGP for regression: one particle, flat hyper-prior",
    PacPFL,
    MethodSummary("deep-kernel GP", "evidence.particle_scores", "Adam", "score [K, 1, D]", "nothing"),
    presets={"paper": {"model": {"linear": "none"}}},
    search={"method.init_std": STDS, "federation.rounds": STEPS, **GP_SEARCH},
    held_out=(
        HeldOutChoice("init_std", (0.3, 0.1, 1.0), by_default=False, clients=True),
        SCALE,
        NOISE,
        RATE,
        NETWORKS,
        *PRIOR,
    ),
    trials=TRIALS,
    own_rows={**OWN_ROWS, "method": {"init_std": HELD_OUT}},  # a single draw is a function of its own
    variant={"hyper_prior": CentredFlatHyperPrior(), "particles": 1, "minibatch_scale": "none"},  # tau is but a scale
    fixed=(
        *("particles", "tau", "lam", "beta", "n2", "v", "optimiser", "bandwidth"),
        *("minibatch_scale", "cohort_scale", "weighting"),
    ),
)


def pfedgp(model: FunctionModel, **options: Any) -> PacPFL:
    """Build pFedGP from PAC-PFL's parts.

    Args:
        model: prior with hyper-parameters theta.
        **options: `init_std`, `rate` and `minibatch`, as PAC-PFL and its flat hyper-prior have them; a minibatch's own
            evidence is ascended.

    Returns:
        The method.

    Example:
        >>> from pacbayes_fl import DeepKernelGP, pfedgp
        >>> method = pfedgp(DeepKernelGP(1, (4,), (4,)), rate=0.01)
        >>> type(method).__name__, method.particles, type(method.hyper_prior).__name__
        ('PacPFL', 1, 'FlatHyperPrior')
    """
    return cast(PacPFL, RECIPE.make(model, **options))
