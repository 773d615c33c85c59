"""Recipes of the methods on networks with weights: the variational family and its point-mass baselines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from pacbayes_fl.errors import StudyError
from pacbayes_fl.inference.map_estimate import LocalDescent
from pacbayes_fl.inference.optim import Optimiser
from pacbayes_fl.inference.svi import LocalInference
from pacbayes_fl.methods.baselines.fedavg import FedAvg
from pacbayes_fl.methods.baselines.local import LocalOnly
from pacbayes_fl.methods.recipe import Choice, HeldOut, LogUniform, Product, Recipe, Search, presets
from pacbayes_fl.methods.titles import TITLES
from pacbayes_fl.methods.variational.base import Aggregation, PriorTracking
from pacbayes_fl.methods.variational.bpfed import BPFed, PersonalPrior
from pacbayes_fl.methods.variational.cfedbayes import CFedBayes
from pacbayes_fl.methods.variational.pfedbayes import PFedBayes
from pacbayes_fl.methods.variational.sfedbayes import SFedBayes, SlabAverage
from pacbayes_fl.models.base import WeightModel
from pacbayes_fl.posteriors.weights.spike_slab import TEMPERATURE
from pacbayes_fl.server.average import Weighting


@dataclass(frozen=True)
class VariationalOptions:
    """What all variational methods have: fields of `LocalInference` and `PriorTracking`, and of the methods.

    `train_draws` is a; `rate` and `optimiser` are of the steps on q, `prior_rate` (eta_2) and `prior_optimiser` of
    those on w. Exactly one of `steps` and `epochs` is a number.
    """

    steps: int | None = 20
    epochs: int | None = None
    inner: int = 1
    minibatch: int = 50
    train_draws: int = 1
    rate: float = 1e-3
    optimiser: Optimiser = "adam"
    prior_rate: float = 1e-3
    prior_optimiser: Optimiser = "adam"
    aggregation: Aggregation = "tracked"
    zeta: float = 10.0
    data_scale: Literal["rows", "sum", "mean"] = "rows"
    noise_std: float = 1.0
    divergence: Literal["forward", "reverse"] = "forward"
    keep_moments: bool = True
    restart: bool = False
    weighting: Weighting = "uniform"
    init_std: float = 0.1
    init_rho: float = -2.5
    draws: int = 20
    join_passes: int = 10

    def local(self) -> LocalInference:
        """The steps on q."""
        names = (
            *("steps", "epochs", "inner", "minibatch", "rate", "optimiser", "zeta"),
            *("data_scale", "noise_std", "divergence"),
        )
        return LocalInference(draws=self.train_draws, **{name: getattr(self, name) for name in names})

    def tracking(self) -> PriorTracking:
        """The steps on w."""
        return PriorTracking(self.prior_rate, self.keep_moments, self.restart, self.prior_optimiser)

    def common(self) -> dict[str, Any]:
        """Arguments of every variational method."""
        names = ("aggregation", "weighting", "init_std", "init_rho", "draws", "join_passes")
        return {"local": self.local(), "tracking": self.tracking()} | {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class PFedBayesOptions(VariationalOptions):
    """Table [method] of pFedBayes."""

    beta: float = 1.0


@dataclass(frozen=True)
class SFedBayesOptions(VariationalOptions):
    """Table [method] of sFedBayes; fields as in `methods.variational.sfedbayes.SFedBayes`."""

    beta: float = 1.0
    inclusion: float = 0.99
    threshold: float = 0.0
    slab_average: SlabAverage = "inclusion"
    temperature: float = TEMPERATURE


@dataclass(frozen=True)
class CFedBayesOptions(VariationalOptions):
    """Table [method] of cFedBayes; fields as in `methods.variational.cfedbayes.CFedBayes`.

    `clusters = "held-out"` lets a study choose J in 1..`max_clusters` by the log likelihood of training rows that
    federations of `trial_rounds` rounds were not given.
    """

    beta: float = 1.0
    clusters: int | Literal["held-out"] = 2
    max_clusters: int = 4
    trial_rounds: int = 40
    assign_draws: int = 5
    start: Literal["uploads", "random"] = "uploads"

    def __post_init__(self) -> None:
        """Refuse a search among no clusters, or in no time."""
        if self.max_clusters < 1 or self.trial_rounds < 1:
            raise StudyError("max_clusters and trial_rounds must be at least 1")


@dataclass(frozen=True)
class BPFedOptions(VariationalOptions):
    """Table [method] of BPFed; fields as in `BPFed`. Its KL divergence has weight 1 (eq. 10)."""

    zeta: float = 1.0
    personal_sites: int = 2
    upload: Literal["posterior", "tracked"] = "posterior"
    prior: PersonalPrior = "cumulative"


@dataclass(frozen=True)
class FedAvgOptions:
    """Table [method] of FedAvg and FedAvg-FT; fields as in `LocalDescent` and `methods.baselines.fedavg.FedAvg`."""

    steps: int | None = 20
    epochs: int | None = None
    minibatch: int = 50
    rate: float = 1e-3
    optimiser: Optimiser = "adam"
    weighting: Weighting = "rows"
    init_std: float = 0.1


@dataclass(frozen=True)
class FineTunedOptions(FedAvgOptions):
    """Table [method] of FedAvg-FT."""

    finetune: int = 5


@dataclass(frozen=True)
class LocalOptions:
    """Table [method] of local training; fields as in `methods.baselines.local.LocalOnly`."""

    steps: int | None = 20
    epochs: int | None = None
    minibatch: int = 50
    rate: float = 1e-3
    optimiser: Optimiser = "adam"
    init_std: float = 0.1
    join_passes: int = 10


def _local(options: FedAvgOptions | LocalOptions) -> LocalDescent:
    return LocalDescent(options.steps, options.minibatch, options.rate, options.optimiser, options.epochs)


def _pfedbayes(options: PFedBayesOptions, model: WeightModel, features: Sequence[str]) -> PFedBayes:
    return PFedBayes(model, beta=options.beta, **options.common())


def _sfedbayes(options: SFedBayesOptions, model: WeightModel, features: Sequence[str]) -> SFedBayes:
    names = ("beta", "inclusion", "threshold", "slab_average", "temperature")
    return SFedBayes(model, **{name: getattr(options, name) for name in names}, **options.common())


def _cfedbayes(options: CFedBayesOptions, model: WeightModel, features: Sequence[str]) -> CFedBayes:
    if isinstance(options.clusters, str):
        raise StudyError(f"clusters is still {options.clusters!r}", hint="a run of a study chooses the number")
    names = ("beta", "clusters", "assign_draws", "start")
    return CFedBayes(model, **{name: getattr(options, name) for name in names}, **options.common())


def _bpfed(options: BPFedOptions, model: WeightModel, features: Sequence[str]) -> BPFed:
    return BPFed(
        model, **{name: getattr(options, name) for name in ("personal_sites", "upload", "prior")}, **options.common()
    )


def _fedavg(options: FedAvgOptions, model: WeightModel, features: Sequence[str]) -> FedAvg:
    finetune = options.finetune if isinstance(options, FineTunedOptions) else 0
    return FedAvg(model, _local(options), options.weighting, finetune, options.init_std)


def _local_only(options: LocalOptions, model: WeightModel, features: Sequence[str]) -> LocalOnly:
    return LocalOnly(model, _local(options), options.init_std, options.join_passes)


_ROUNDS: Mapping[str, Any] = MappingProxyType({"rounds": 160})
_PAPER_ROUNDS: Mapping[str, Any] = MappingProxyType({"rounds": 800})
_ALL_TRAIN: Mapping[str, Any] = MappingProxyType({**_PAPER_ROUNDS, "train": "all"})  # Algorithms 1-3, whoever sends
_EPOCHS: Mapping[str, Any] = MappingProxyType({"steps": None, "epochs": 10, "minibatch": 50})  # BPFed, FedSI
_PAPER: Mapping[str, Any] = MappingProxyType({"zeta": 10.0, "rate": 1e-3, "prior_rate": 1e-3, "init_rho": -2.5})
_PUBLIC_CODE: Mapping[str, Any] = MappingProxyType(
    {"steps": 20, "inner": 5, "minibatch": 100, "noise_std": 1e-3, "init_rho": -3.0, "weighting": "rows"}
)


def _searching(**spaces: LogUniform | Choice) -> Search:
    """Add a method's own spaces to those that all have."""
    own = {f"method.{name}": space for name, space in spaces.items()}
    return MappingProxyType({**own, "method.rate": LogUniform(3e-4, 3e-3), "federation.rounds": Choice((40, 80, 160))})


_VARIATIONAL: Search = MappingProxyType(
    {"prior_rate": LogUniform(3e-4, 1e-2), "zeta": LogUniform(0.1, 10.0), "init_rho": Choice((-4.0, -3.0, -2.5))}
)

WEIGHT_RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        "pfedbayes": Recipe(
            TITLES["pfedbayes"],
            federated=True,
            rounds=True,
            options=PFedBayesOptions,
            build=_pfedbayes,
            product=Product("Bayesian network, mean field", "svi", "average.extrapolate", "w", "q, two Adams"),
            model="weights",
            presets=presets(
                recommended={"federation": _ROUNDS},
                paper={"method": _PAPER, "federation": _ALL_TRAIN},
                **{
                    "authors-code": {
                        "method": {**_PUBLIC_CODE, "zeta": 0.5, "data_scale": "sum"},
                        "federation": _PAPER_ROUNDS,
                    }
                },
            ),
            search=_searching(**_VARIATIONAL),
        ),
        "sfedbayes": Recipe(
            TITLES["sfedbayes"],
            federated=True,
            rounds=True,
            options=SFedBayesOptions,
            build=_sfedbayes,
            product=Product(
                "Bayesian network, spike and slab", "svi", "average.extrapolate", "w with inclusion", "q, two Adams"
            ),
            model="weights",
            presets=presets(
                recommended={"federation": _ROUNDS},
                paper={"method": {**_PAPER, "restart": True, "slab_average": "uniform"}, "federation": _ALL_TRAIN},
            ),
            search=_searching(**_VARIATIONAL, inclusion=Choice((0.5, 0.9, 0.99))),
        ),
        "cfedbayes": Recipe(
            TITLES["cfedbayes"],
            federated=True,
            rounds=True,
            options=CFedBayesOptions,
            build=_cfedbayes,
            product=Product(
                "Bayesian network, mean field", "assignment, svi", "clusters.mean", "w, cluster", "q, two Adams"
            ),
            model="weights",
            presets=presets(recommended={"federation": _ROUNDS}, paper={"method": _PAPER, "federation": _ALL_TRAIN}),
            search=_searching(**_VARIATIONAL, clusters=Choice((1, 2, 3, 4))),
            held_out=(HeldOut("clusters", lambda options: tuple(range(1, options.max_clusters + 1))),),
        ),
        "bpfed": Recipe(
            TITLES["bpfed"],
            federated=True,
            rounds=True,
            options=BPFedOptions,
            build=_bpfed,
            product=Product("Bayesian network, mean field", "svi", "average.mean", "shared part", "personal part"),
            model="weights",
            presets=presets(
                recommended={"federation": _ROUNDS},
                paper={"method": {"zeta": 1.0, "rate": 1e-3, **_EPOCHS}, "federation": _PAPER_ROUNDS},
                **{
                    "authors-code": {
                        "method": {
                            **_PUBLIC_CODE,
                            "zeta": 5e-5,
                            "data_scale": "mean",
                            "divergence": "reverse",
                            "upload": "tracked",
                        },
                        "federation": _PAPER_ROUNDS,
                    }
                },
            ),
            search=_searching(**_VARIATIONAL),
        ),
        "fedavg": Recipe(
            TITLES["fedavg"],
            federated=True,
            rounds=True,
            options=FedAvgOptions,
            build=_fedavg,
            product=Product("network", "map_estimate.fit", "weighted mean", "weights", "nothing"),
            model="weights",
            presets=presets(
                recommended={"federation": _ROUNDS},
                paper={"method": {"optimiser": "sgd", "rate": 0.01, **_EPOCHS}, "federation": _PAPER_ROUNDS},
            ),
            search=_searching(),
        ),
        "fedavg-ft": Recipe(
            TITLES["fedavg-ft"],
            federated=True,
            rounds=True,
            options=FineTunedOptions,
            build=_fedavg,
            product=Product("network", "map_estimate.fit", "weighted mean", "weights", "nothing"),
            model="weights",
            presets=presets(
                recommended={"federation": _ROUNDS},
                paper={"method": {"optimiser": "sgd", "rate": 0.01, **_EPOCHS}, "federation": _PAPER_ROUNDS},
            ),
            variant=MappingProxyType({"finetune": 5}),
            search=_searching(finetune=Choice((1, 5, 20))),
        ),
        "local": Recipe(
            TITLES["local"],
            federated=True,
            rounds=True,
            options=LocalOptions,
            build=_local_only,
            product=Product("network", "map_estimate.fit", "nothing", "nothing", "weights, Adam"),
            model="weights",
            presets=presets(
                recommended={"federation": _ROUNDS}, paper={"method": _EPOCHS, "federation": _PAPER_ROUNDS}
            ),
            search=_searching(),
        ),
    }
)
"""Methods by name."""
