"""Recipes of FedSI and its factorised variant: Laplace approximations on networks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from pacbayes_fl.errors import StudyError
from pacbayes_fl.inference.map_estimate import LocalDescent
from pacbayes_fl.inference.subnetwork import (
    LargestCurvature,
    LargestMagnitude,
    LargestVariance,
    LastLayer,
    RandomShare,
    SubnetworkChoice,
)
from pacbayes_fl.methods.fedsi import FedSI
from pacbayes_fl.methods.recipe import Choice, HeldOut, LogUniform, Product, Recipe, Search, presets
from pacbayes_fl.methods.titles import TITLES
from pacbayes_fl.models.base import WeightModel
from pacbayes_fl.posteriors.weights.linearised import LinearisedPredictive
from pacbayes_fl.server.average import Weighting

ALPHAS = (1e-2, 1e-1, 1e-3, 1.0, 1e-4)
"""Prior variances among which held-out training rows choose; of equally good ones the first."""

PERSONAL_ALPHAS = (0.1, 0.3, 0.03, 1.0, 0.01, 3.0, 1e-3, 10.0)
"""The same of personal models."""

RULES = ("curvature", "random", "variance", "magnitude", "last-layer")
"""Rules among which they choose."""


Rule = Literal["variance", "curvature", "last-layer", "random", "magnitude"]
"""A rule of `inference.subnetwork` by its name; "variance" is the paper's."""


@dataclass(frozen=True)
class FedSIOptions:
    """Table [method] of FedSI; fields as in `LocalDescent` and `methods.fedsi.FedSI`.

    `subnetwork` names the rule of the rounds, `personal_subnetwork` that of the personal models' posteriors ("same" is
    that of the rounds), `fraction` is their share E of the representation; `personal_alpha = "round"` takes the last
    round's prior for theirs.

    "held-out" lets a study choose by the log likelihood of training rows that a federation was not given: `alpha` among
    `ALPHAS`, by federations of `trial_rounds` rounds; `personal_alpha` among `PERSONAL_ALPHAS` and
    `personal_subnetwork` among `RULES`, which training does not know of, after all rounds of one more federation.

    Of the weights of largest variance, the paper's, most have no curvature (of 785 on MNIST 746), so that predictions
    do not change: personal models take others.
    """

    steps: int | None = 20
    epochs: int | None = None
    minibatch: int = 50
    rate: float = 1e-3
    optimiser: Literal["adam", "sgd"] = "adam"
    subnetwork: Rule = "variance"
    personal_subnetwork: Rule | Literal["same", "held-out"] = "magnitude"
    fraction: float = 0.01
    covariance: Literal["full", "diagonal"] = "full"
    alpha: float | Literal["held-out"] = "held-out"
    personal_alpha: float | Literal["round", "held-out"] = "held-out"
    trial_rounds: int = 20
    predictive: LinearisedPredictive = "monte-carlo"
    draws: int = 20
    finetune: int = 5
    personal_sites: int = 2
    train_head: bool = False
    upload: Literal["variance", "curvature"] = "variance"
    prior: Literal["cumulative", "divide"] = "cumulative"
    prior_weight: float | None = None
    floor: float = 0.0
    weighting: Weighting = "uniform"
    init_std: float = 0.1

    def __post_init__(self) -> None:
        """Refuse a search in no time."""
        if self.trial_rounds < 1:
            raise StudyError(f"trial_rounds must be at least 1, got {self.trial_rounds}")

    def choice(self, rule: Rule) -> SubnetworkChoice:
        """Make a rule of its name."""
        return LastLayer() if rule == "last-layer" else _SHARES[rule](self.fraction)


_SHARES: Mapping[str, Callable[[float], SubnetworkChoice]] = MappingProxyType(
    {
        "variance": LargestVariance,
        "curvature": LargestCurvature,
        "random": RandomShare,
        "magnitude": LargestMagnitude,
    }
)


@dataclass(frozen=True)
class FedSIFacOptions(FedSIOptions):
    """Table [method] of FedSI-Fac: every weight of the representation, independent, with the variance of the rounds.

    One variance for both: chosen apart, the rounds' is tried under a personal variance that suits no factorised
    posterior, and comes out too large.
    """

    personal_subnetwork: Rule | Literal["same", "held-out"] = "same"
    personal_alpha: float | Literal["round", "held-out"] = "round"
    fraction: float = 1.0
    covariance: Literal["full", "diagonal"] = "diagonal"


_METHOD = (
    *("covariance", "predictive", "draws", "finetune", "personal_sites", "train_head", "upload"),
    "prior",
    *("prior_weight", "floor", "weighting", "init_std"),
)


def _fedsi(options: FedSIOptions, model: WeightModel, features: Sequence[str]) -> FedSI:
    for one in (_ALPHA, *_PERSONAL):
        if getattr(options, one.option) == "held-out":
            raise StudyError(f"{one.option} is still 'held-out'", hint="a run of a study chooses it")
    rule = options.personal_subnetwork
    personal = None if rule == "same" or rule == "held-out" else options.choice(rule)
    local = LocalDescent(options.steps, options.minibatch, options.rate, options.optimiser, options.epochs)
    values = {name: getattr(options, name) for name in _METHOD}
    values |= {"alpha": options.alpha}
    if not isinstance(options.personal_alpha, str):
        values |= {"personal_alpha": options.personal_alpha}
    return FedSI(model, local, options.choice(options.subnetwork), personal, **values)


_ROUNDS: Mapping[str, Any] = MappingProxyType({"rounds": 160})
_PAPER: Mapping[str, Any] = MappingProxyType(
    {"subnetwork": "variance", "personal_subnetwork": "same", "personal_alpha": "round", "prior": "cumulative"}
    | {"alpha": 1e-4, "rate": 1e-2, "minibatch": 50, "steps": None, "epochs": 10, "predictive": "probit"}
)
_PAPER_ROUNDS: Mapping[str, Any] = MappingProxyType({"rounds": 800})
# The public code sends the curvature as if it were a variance, takes alpha for a precision, trains all layers in 700
# rounds, and in 99 more the decision layers alone; it predicts without uncertainty. Not followed: it chooses E % of all
# weights, the decision layers' among them, by variances under a prior of variance 1.
_PUBLIC_CODE: Mapping[str, Any] = MappingProxyType(
    {"steps": 20, "minibatch": 100, "rate": 0.1, "optimiser": "sgd", "train_head": True, "finetune": 99}
    | {"upload": "curvature", "alpha": 1e4, "prior_weight": 1e-4, "floor": 1e-3, "weighting": "rows"}
    | {"personal_subnetwork": "same", "personal_alpha": "round", "predictive": "map"}
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
_ALPHA = HeldOut("alpha", lambda options: ALPHAS)
_PERSONAL = (
    HeldOut("personal_subnetwork", lambda options: RULES, after=True),
    HeldOut("personal_alpha", lambda options: PERSONAL_ALPHAS, after=True),
)


def _recipe(title: str, options: type, posterior: str, share: float, **variant: Any) -> Recipe:
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
            paper={"method": {**_PAPER, "fraction": share}, "federation": _PAPER_ROUNDS},
            **{"authors-code": {"method": {**_PUBLIC_CODE, "fraction": share}, "federation": _PUBLIC_ROUNDS}},
        ),
        search=_SEARCH,
        held_out=(_ALPHA, *_PERSONAL),
        variant=MappingProxyType({name.replace("__", "."): value for name, value in variant.items()}),
    )


LAPLACE_RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        "fedsi": _recipe(
            TITLES["fedsi"],
            FedSIOptions,
            "subnetwork Laplace",
            0.05,
            personal_choice=LargestMagnitude(0.01),
            personal_alpha=PERSONAL_ALPHAS[0],
        ),
        "fedsi-fac": _recipe(
            TITLES["fedsi-fac"],
            FedSIFacOptions,
            "diagonal Laplace",
            1.0,
            choice__fraction=1.0,
            covariance="diagonal",
        ),
    }
)
"""Methods by name."""
