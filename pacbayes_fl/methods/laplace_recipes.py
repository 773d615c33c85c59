"""Recipes of FedSI and its factorised variant: Laplace approximations on networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from pacbayes_fl.errors import StudyError
from pacbayes_fl.inference.map_estimate import LocalDescent
from pacbayes_fl.inference.subnetwork import (
    LargestMagnitude,
    LargestVariance,
    LastLayer,
    RandomShare,
    SubnetworkChoice,
)
from pacbayes_fl.methods.fedsi import FedSI
from pacbayes_fl.methods.recipe import Choice, HeldOut, LogUniform, Product, Recipe, Search, presets
from pacbayes_fl.models.base import WeightModel
from pacbayes_fl.posteriors.linearised import LinearisedPredictive
from pacbayes_fl.server.average import Weighting

ALPHAS = (1e-2, 1e-1, 1e-3, 1.0, 1e-4)
"""Prior variances among which held-out training rows choose; of equally good ones the first."""


@dataclass(frozen=True)
class FedSIOptions:
    """Table [method] of FedSI; fields as in `LocalDescent` and `methods.fedsi.FedSI`.

    `subnetwork` names the rule of `inference.subnetwork`, `fraction` is its share E of the representation.
    `alpha = "held-out"` lets a study choose among `ALPHAS` by the log likelihood of training rows that federations of
    `trial_rounds` rounds were not given.
    """

    steps: int | None = 20
    epochs: int | None = None
    minibatch: int = 50
    rate: float = 1e-3
    optimiser: Literal["adam", "sgd"] = "adam"
    subnetwork: Literal["variance", "last-layer", "random", "magnitude"] = "variance"
    fraction: float = 0.05
    covariance: Literal["full", "diagonal"] = "full"
    alpha: float | Literal["held-out"] = "held-out"
    trial_rounds: int = 20
    predictive: LinearisedPredictive = "monte-carlo"
    draws: int = 20
    finetune: int = 5
    personal_sites: int = 2
    train_head: bool = False
    upload: Literal["variance", "curvature"] = "variance"
    prior_weight: float | None = None
    floor: float = 0.0
    weighting: Weighting = "uniform"
    init_std: float = 0.1

    def __post_init__(self) -> None:
        """Refuse a search in no time."""
        if self.trial_rounds < 1:
            raise StudyError(f"trial_rounds must be at least 1, got {self.trial_rounds}")

    def choice(self) -> SubnetworkChoice:
        """The rule by its name."""
        if self.subnetwork == "last-layer":
            return LastLayer()
        if self.subnetwork == "random":
            return RandomShare(self.fraction)
        return (LargestVariance if self.subnetwork == "variance" else LargestMagnitude)(self.fraction)


@dataclass(frozen=True)
class FedSIFacOptions(FedSIOptions):
    """Table [method] of FedSI-Fac: every weight of the representation, independent."""

    fraction: float = 1.0
    covariance: Literal["full", "diagonal"] = "diagonal"


_METHOD = (
    *("covariance", "predictive", "draws", "finetune", "personal_sites", "train_head", "upload"),
    *("prior_weight", "floor", "weighting", "init_std"),
)


def _fedsi(options: FedSIOptions, model: WeightModel, features: Sequence[str]) -> FedSI:
    if isinstance(options.alpha, str):
        raise StudyError(f"alpha is still {options.alpha!r}", hint="a run of a study chooses it")
    local = LocalDescent(options.steps, options.minibatch, options.rate, options.optimiser, options.epochs)
    values = {name: getattr(options, name) for name in _METHOD}
    return FedSI(model, local, options.choice(), alpha=options.alpha, **values)


_ROUNDS: Mapping[str, Any] = MappingProxyType({"rounds": 160})
_PAPER: Mapping[str, Any] = MappingProxyType(
    {"alpha": 1e-4, "rate": 1e-2, "minibatch": 50, "steps": None, "epochs": 10, "predictive": "probit"}
)
_PAPER_ROUNDS: Mapping[str, Any] = MappingProxyType({"rounds": 800})
# The public code sends the curvature as if it were a variance, takes alpha for a precision, trains all layers in 700
# rounds, and in 99 more the decision layers alone; it predicts without uncertainty. Not followed: it chooses E % of all
# weights, the decision layers' among them, by variances under a prior of variance 1.
_PUBLIC_CODE: Mapping[str, Any] = MappingProxyType(
    {"steps": 20, "minibatch": 100, "rate": 0.1, "optimiser": "sgd", "train_head": True, "finetune": 99}
    | {"upload": "curvature", "alpha": 1e4, "prior_weight": 1e-4, "floor": 1e-3, "weighting": "rows"}
    | {"predictive": "map"}
)
_PUBLIC_ROUNDS: Mapping[str, Any] = MappingProxyType({"rounds": 701})
_SEARCH: Search = MappingProxyType(
    {
        "method.alpha": LogUniform(1e-4, 1.0),
        "method.finetune": Choice((5, 10, 20)),
        "method.rate": LogUniform(3e-4, 3e-3),
        "federation.rounds": Choice((40, 80, 160)),
    }
)
_HELD_OUT = HeldOut("alpha", lambda options: ALPHAS)


def _recipe(title: str, options: type, posterior: str) -> Recipe:
    return Recipe(
        title,
        federated=True,
        rounds=True,
        options=options,
        build=_fedsi,
        product=Product(
            f"network, {posterior}", "map_estimate.fit, curvature", "moments.average", "means, variances", "head"
        ),
        model="weights",
        presets=presets(
            recommended={"federation": _ROUNDS},
            paper={"method": _PAPER, "federation": _PAPER_ROUNDS},
            **{"authors-code": {"method": _PUBLIC_CODE, "federation": _PUBLIC_ROUNDS}},
        ),
        search=_SEARCH,
        held_out=_HELD_OUT,
    )


LAPLACE_RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        "fedsi": _recipe(
            "FedSI: full-covariance Laplace on the weights of largest variance, the others point estimates",
            FedSIOptions,
            "subnetwork Laplace",
        ),
        "fedsi-fac": _recipe(
            "FedSI-Fac: diagonal Laplace on the whole representation", FedSIFacOptions, "diagonal Laplace"
        ),
    }
)
"""Methods by name."""
