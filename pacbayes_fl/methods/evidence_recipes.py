"""Recipe of PAC-PFL on networks: priors over weights learned by their sampled evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, Literal

from pacbayes_fl.errors import StudyError
from pacbayes_fl.inference.svi import LocalInference
from pacbayes_fl.methods.pac_pfl.bnn import PacPFLBNN
from pacbayes_fl.methods.pac_pfl.svgd import MinibatchScale
from pacbayes_fl.methods.recipe import Choice, HeldOut, LogUniform, Product, Recipe, presets
from pacbayes_fl.methods.titles import TITLES
from pacbayes_fl.models.base import WeightModel
from pacbayes_fl.posteriors.hyper_posterior import weight_hyper_prior
from pacbayes_fl.server.svgd import Bandwidth


@dataclass(frozen=True)
class PacPFLBNNOptions:
    """Table [method] of PAC-PFL on networks; fields as in `methods.pac_pfl.bnn.PacPFLBNN`, and of its parts.

    The hyper-prior has means within `mean_std` of the model's centre, and rhos within `rho_std` of `init_rho`; the
    first means are within `init_std`.
    Priors weigh alike: their sampled evidence (eq. 37) is that of the luckiest draws, and no better on held-out rows.
    `personal_steps` or `personal_epochs`, `personal_rate` and `personal_minibatch` are of the clients' own posteriors.
    `posterior = "held-out"` lets a study choose it by the log likelihood of training rows that federations of
    `trial_rounds` rounds were not given.
    """

    particles: int = 3
    mean_std: float = 1.0
    init_rho: float = -3.0
    rho_std: float = 1.0
    init_std: float = 0.1
    tau: float | None = 1.0
    lam: float | None = None
    beta: float | None = None
    n2: float = 0.0
    v: float = 1e-4
    train_draws: int = 5
    rate: float = 2e-3
    optimiser: Literal["adam", "ascent"] = "adam"
    bandwidth: Bandwidth | float = "off-diagonal"
    minibatch: int | None = 20
    minibatch_scale: MinibatchScale = "inside"
    cohort_scale: Literal["sum", "mean"] = "sum"
    weighting: Literal["evidence", "equal"] = "equal"
    posterior: Literal["held-out", "importance", "svi", "svgd"] = "held-out"
    trial_rounds: int = 100
    personal_steps: int | None = 50
    personal_epochs: int | None = None
    personal_rate: float = 3e-3
    personal_minibatch: int = 50
    draws: int = 20
    importance_draws: int = 100
    companions: int = 5

    def __post_init__(self) -> None:
        """Refuse a choice in no time."""
        if self.trial_rounds < 1:
            raise StudyError("trial_rounds must be at least 1")


def _pac_pfl_bnn(options: PacPFLBNNOptions, model: WeightModel, features: Sequence[str]) -> PacPFLBNN:
    if options.posterior == "held-out":
        raise StudyError("posterior is still 'held-out'", hint="a run of a study chooses it")
    hyper_prior = weight_hyper_prior(model, options.init_rho, options.mean_std, options.rho_std, options.init_std)
    local = LocalInference(
        steps=options.personal_steps,
        epochs=options.personal_epochs,
        minibatch=options.personal_minibatch,
        rate=options.personal_rate,
        zeta=1.0,
    )
    own = {one.name for one in fields(PacPFLBNN)} & {one.name for one in fields(options)}
    return PacPFLBNN(model, hyper_prior, local=local, **{name: getattr(options, name) for name in own})


_ROUNDS: Mapping[str, Any] = MappingProxyType({"rounds": 1000, "cohort": 10})  # cheap ones: a gradient each

EVIDENCE_RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        "pac-pfl-bnn": Recipe(
            TITLES["pac-pfl-bnn"],
            federated=True,
            rounds=True,
            options=PacPFLBNNOptions,
            build=_pac_pfl_bnn,
            product=Product(
                "Bayesian network, mean field",
                "sampled_evidence.particle_scores",
                "svgd.direction",
                "score [K, P, 2D]",
                "nothing",
            ),
            model="weights",
            presets=presets(
                recommended={"federation": _ROUNDS},
                paper={"method": {"particles": 3, "weighting": "evidence"}, "federation": _ROUNDS},
            ),
            search=MappingProxyType(
                {
                    "method.rate": LogUniform(5e-4, 1e-2),
                    "method.tau": LogUniform(0.05, 1.0),
                    "method.mean_std": LogUniform(0.1, 3.0),
                    "method.init_rho": Choice((-4.0, -3.0, -1.5)),
                    "method.train_draws": Choice((5, 20)),
                    "federation.rounds": Choice((250, 500, 1000)),
                }
            ),
            held_out=(HeldOut("posterior", lambda options: ("svi", "importance", "svgd")),),
        ),
    }
)
"""Methods by name."""
