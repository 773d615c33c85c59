"""Recipes of the methods on Gaussian processes, and of the linear baselines beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from pacbayes_fl.errors import StudyError
from pacbayes_fl.methods.baselines.persistence import Persistence
from pacbayes_fl.methods.baselines.pfedgp import pfedgp
from pacbayes_fl.methods.baselines.pooled_gp import PooledGP
from pacbayes_fl.methods.baselines.ridge import LocalRidge, PooledRidge
from pacbayes_fl.methods.baselines.vanilla_gp import VanillaGP
from pacbayes_fl.methods.pac_pfl.gp import PacPFL
from pacbayes_fl.methods.pac_pfl.svgd import MinibatchScale
from pacbayes_fl.methods.recipe import Choice, LogUniform, Product, Recipe, Search, presets
from pacbayes_fl.methods.titles import TITLES
from pacbayes_fl.models.base import FunctionModel
from pacbayes_fl.posteriors.hyper_posterior import GaussianHyperPrior
from pacbayes_fl.server.svgd import Bandwidth


@dataclass(frozen=True)
class PacPFLOptions:
    """Table [method] of PAC-PFL; fields as in `methods.pac_pfl.gp.PacPFL`, and the std of the Gaussian hyper-prior."""

    hyper_prior_std: float = 0.3
    particles: int = 4
    tau: float | None = 1.0
    lam: float | None = None
    beta: float | None = None
    n2: float = 0.0
    v: float = 1e-4
    rate: float = 1e-2
    optimiser: Literal["adam", "ascent"] = "adam"
    bandwidth: Bandwidth | float = "off-diagonal"
    minibatch: int | None = None
    minibatch_scale: MinibatchScale = "inside"
    cohort_scale: Literal["sum", "mean"] = "sum"
    weighting: Literal["evidence", "equal"] = "evidence"


@dataclass(frozen=True)
class PFedGPOptions:
    """Table [method] of pFedGP; fields as in `methods.baselines.pfedgp.pfedgp`."""

    init_std: float = 0.3
    rate: float = 1e-2
    minibatch: int | None = None


@dataclass(frozen=True)
class VanillaGPOptions:
    """Table [method] of the vanilla GP; fields as in `methods.baselines.vanilla_gp.VanillaGP`."""

    init_std: float = 0.3
    rate: float = 1e-2
    steps: int = 200


@dataclass(frozen=True)
class PooledGPOptions:
    """Table [method] of the pooled GP; fields as in `methods.baselines.pooled_gp.PooledGP`."""

    init_std: float = 0.3
    rate: float = 1e-2
    steps: int = 200
    inducing: int = 200
    exact_up_to: int = 2000


@dataclass(frozen=True)
class NoOptions:
    """Table [method] of a method that has nothing to choose."""


@dataclass(frozen=True)
class PersistenceOptions:
    """Table [method] of persistence: the feature that holds the last known target."""

    column: str = "lag_1"


_STDS, _STEPS = LogUniform(0.05, 1.0), Choice((50, 100, 200))
_NETWORKS: Search = MappingProxyType(
    {
        "method.rate": LogUniform(1e-3, 3e-2),
        "model.mean_widths": Choice(("zero", (), (8, 8), (16, 16), (32, 32))),
        "model.kernel_widths": Choice(((8, 8), (16, 16), (32, 32))),
    }
)


def _searching(**spaces: LogUniform | Choice) -> Search:
    """Add a method's own spaces, `part__key`, to those of its networks and their learning rate."""
    return MappingProxyType({**{key.replace("__", "."): space for key, space in spaces.items()}, **_NETWORKS})


def _pac_pfl(options: PacPFLOptions, model: FunctionModel, features: Sequence[str]) -> PacPFL:
    values = {name: getattr(options, name) for name in PacPFLOptions.__dataclass_fields__ if name != "hyper_prior_std"}
    return PacPFL(model, GaussianHyperPrior(model.location(), options.hyper_prior_std), **values)


def _pfedgp(options: PFedGPOptions, model: FunctionModel, features: Sequence[str]) -> PacPFL:
    return pfedgp(model, options.init_std, options.rate, options.minibatch)


def _vanilla(options: VanillaGPOptions, model: FunctionModel, features: Sequence[str]) -> VanillaGP:
    return VanillaGP(model, options.init_std, options.rate, options.steps)


def _pooled(options: PooledGPOptions, model: FunctionModel, features: Sequence[str]) -> PooledGP:
    return PooledGP(model, options.init_std, options.rate, options.steps, options.inducing, options.exact_up_to)


def _persistence(options: PersistenceOptions, model: FunctionModel, features: Sequence[str]) -> Persistence:
    if options.column not in features:
        raise StudyError(
            f"persistence needs a feature {options.column!r}, the data have {', '.join(features)}",
            hint="it is for series; name the column with --set method.column=NAME",
        )
    return Persistence(features.index(options.column))


FUNCTION_RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        "pac-pfl": Recipe(
            TITLES["pac-pfl"],
            federated=True,
            rounds=True,
            options=PacPFLOptions,
            build=_pac_pfl,
            product=Product(
                "deep-kernel GP", "evidence.particle_scores", "svgd.direction", "score [K, P, D]", "nothing"
            ),
            presets=presets(paper={"method": {"optimiser": "ascent", "rate": 1e-3}, "federation": {"rounds": 1000}}),
            search=_searching(
                method__tau=LogUniform(0.05, 1.0), method__hyper_prior_std=_STDS, federation__rounds=_STEPS
            ),
        ),
        "pfedgp": Recipe(
            TITLES["pfedgp"],
            federated=True,
            rounds=True,
            options=PFedGPOptions,
            build=_pfedgp,
            product=Product("deep-kernel GP", "evidence.particle_scores", "Adam", "score [K, 1, D]", "nothing"),
            search=_searching(method__init_std=_STDS, federation__rounds=_STEPS),
        ),
        "vanilla-gp": Recipe(
            TITLES["vanilla-gp"],
            federated=True,
            rounds=False,
            options=VanillaGPOptions,
            build=_vanilla,
            product=Product("deep-kernel GP", "evidence.particle_scores", "nothing", "nothing", "nothing"),
            search=_searching(method__init_std=_STDS, method__steps=_STEPS),
        ),
        "pooled-gp": Recipe(
            TITLES["pooled-gp"],
            federated=False,
            rounds=False,
            options=PooledGPOptions,
            build=_pooled,
            product=Product("deep-kernel GP", "nothing", "evidence or collapsed bound", "all rows", "nothing"),
            search=_searching(method__init_std=_STDS, method__steps=_STEPS),
        ),
        "ridge": Recipe(
            TITLES["ridge"],
            federated=True,
            rounds=False,
            options=NoOptions,
            build=lambda options, model, features: LocalRidge(),
            product=Product("linear", "leave-one-out ridge", "nothing", "nothing", "nothing"),
        ),
        "pooled-ridge": Recipe(
            TITLES["pooled-ridge"],
            federated=False,
            rounds=False,
            options=NoOptions,
            build=lambda options, model, features: PooledRidge(len(features)),
            product=Product("linear", "nothing", "leave-one-out ridge", "all rows", "nothing"),
        ),
        "persistence": Recipe(
            TITLES["persistence"],
            federated=True,
            rounds=False,
            options=PersistenceOptions,
            build=_persistence,
            product=Product("lag 1", "mean squared change", "nothing", "nothing", "nothing"),
        ),
    }
)
"""Methods by name."""
