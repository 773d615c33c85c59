"""What the laws range over: every method of the table, on tiny ragged federations, and a toy that keeps state.

A method that enters `METHODS` is covered without a change here; one on networks with weights also with labels. The toy
draws noise, keeps state on its clients and is not additive, so that the laws bind even where no method of the table
does these things.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from typing import Any, NamedTuple, final

import gpytorch
import torch
from torch import Tensor
from torch.distributions import Laplace

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.methods import METHODS, Recipe
from pacbayes_fl.methods.base import AnyMethod, Method
from pacbayes_fl.models.base import FunctionModel, WeightModel
from pacbayes_fl.models.functions.deep_kernel_gp import DeepKernelGP
from pacbayes_fl.models.functions.gpytorch_prior import GPyTorchPrior
from pacbayes_fl.models.inducing import Inducing
from pacbayes_fl.models.likelihoods import Categorical, Gaussian
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP
from pacbayes_fl.noise import Engine, Noise
from pacbayes_fl.posteriors.point import LinearPoint
from pacbayes_fl.posteriors.weights.families import Family
from pacbayes_fl.testing.scene import CLASSES as CLASSES
from pacbayes_fl.testing.scene import SIZES as SIZES
from pacbayes_fl.testing.scene import Scene, federation, played, strangers_of
from pacbayes_fl.testing.scene import assert_close as assert_close
from pacbayes_fl.testing.scene import bits as bits
from pacbayes_fl.testing.scene import identified as identified
from pacbayes_fl.testing.scene import numbers as numbers

FEATURES = ("lag_1", "x_1", "x_2")
CHEAP: dict[str, dict[str, Any]] = {
    "functions": {"steps": 3, "particles": 3, "inducing": 4, "exact_up_to": 8}
    | {"trees": 3, "leaves": 3, "smallest_leaf": 1},
    "weights": {"steps": 2, "inner": 2, "minibatch": 4, "draws": 3, "join_passes": 1, "finetune": 1, "clusters": 2}
    | {"rate": 1e-2, "prior_rate": 2e-2, "alpha": 0.1, "personal_alpha": 0.3, "posterior": "svi"}
    | {"adapt_steps": 2, "personal_steps": 2, "personal_minibatch": 4, "importance_draws": 4, "svgd_particles": 3},
}
SEED = 11
VARIATIONAL = ("pfedbayes", "sfedbayes", "cfedbayes", "bpfed")
_TWO_SHAPES = (*VARIATIONAL, "fedavg", "fedsi", "pac-pfl-bnn")
"""Of the methods on networks, those in both dimensions: the others reach rows through the same descent as fedavg."""
_LONG: dict[str, Any] = {"steps": None, "epochs": 2}
_LAPLACE: dict[str, dict[str, Any]] = {
    "wide": {"fraction": 0.7, "predictive": "probit"},
    "random": {"subnetwork": "random", "fraction": 0.3, "predictive": "draws", "weighting": "rows"},
    "last-layer": {"subnetwork": "last-layer", "finetune": 2, "train_head": True},
    "divide": {"subnetwork": "curvature", "prior": "divide", "personal_subnetwork": "random", "personal_alpha": 0.4},
    "code": {"subnetwork": "magnitude", "upload": "curvature", "prior_weight": 0.1, "floor": 1e-3, "predictive": "map"},
}


class ToyServer(NamedTuple):
    centre: Tensor  # [d]
    rounds: Tensor  # []


class ToyMessage(NamedTuple):
    centre: Tensor  # [d]


class ToyClient(NamedTuple):
    mean: Tensor  # [K, d]
    memory: Tensor  # [K, d], of past means; not sent
    seen: Tensor  # [K] int64


class ToyUpdate(NamedTuple):
    value: Tensor  # [K, d]
    weight: Tensor  # [K]


@final
@dataclass(frozen=True)
class Toy(Method[ToyServer, ToyMessage, ToyClient, ToyUpdate]):
    """Noisy running means of minibatches, for laws about state and noise."""

    d: int

    def init_server(self, generator: torch.Generator) -> ToyServer:
        return ToyServer(
            torch.randn(self.d, generator=generator, dtype=torch.float64), torch.zeros((), dtype=torch.int64)
        )

    def init_clients(self, message: ToyMessage, batch: ClientBatch) -> ToyClient:
        seen = torch.zeros(batch.clients, dtype=torch.int64, device=batch.x.device)
        centre = tensors.expand(message.centre, batch.clients)
        return ToyClient(centre.clone(), torch.zeros_like(centre), seen)

    def broadcast(self, server: ToyServer) -> ToyMessage:
        return ToyMessage(server.centre)

    def client(
        self, message: ToyMessage, state: ToyClient, batch: ClientBatch, noise: Noise
    ) -> tuple[ToyUpdate, ToyClient]:
        rows = batch.rows(noise.rows(batch.mask, 3))
        mean = (rows.x * rows.mask.unsqueeze(-1)).sum(1) / rows.size.clamp_min(1.0).unsqueeze(-1)
        mean = 0.5 * state.mean + 0.3 * mean + 0.2 * message.centre + 0.1 * noise.normal(mean)
        return ToyUpdate(mean, self.weight(batch.size)), ToyClient(mean, 0.9 * state.memory + mean, state.seen + 1)

    def weight(self, rows: Tensor) -> Tensor:
        return rows

    def server(self, server: ToyServer, update: ToyUpdate, n_clients: int) -> ToyServer:
        return ToyServer(tensors.weighted_mean(update.value, update.weight), server.rounds + 1)

    def client_deltas(self, message: ToyMessage, update: ToyUpdate) -> ToyMessage:
        return ToyMessage(update.value - message.centre)

    def from_release(self, message: ToyMessage, mean: ToyMessage, clients: float) -> ToyUpdate:
        return ToyUpdate(message.centre + mean.centre, torch.ones(len(mean.centre), dtype=torch.float64))

    def personalise(self, message: ToyMessage, state: ToyClient, batch: ClientBatch, noise: Noise) -> LinearPoint:
        bias = state.mean.mean(1) + 0.1 * noise.normal(state.mean[:, 0])
        return LinearPoint(state.mean, bias, torch.ones_like(bias))


def strangers(d: int, labelled: bool = False) -> ClientBatch:
    """Return clients that never trained, the last one without rows."""
    return strangers_of(federation(d, labelled), CLASSES if labelled else None)


def deep(d: int) -> FunctionModel:
    return DeepKernelGP(d, (3,), (3,))


def rich(d: int) -> FunctionModel:
    return DeepKernelGP(d, (3,), (3,), learn_outputscale=True, noise_widths=(2,), linear_kernel=True)


def with_points(d: int) -> FunctionModel:
    return rich(d).with_inducing(Inducing(3))


def plain(d: int) -> FunctionModel:
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
    return GPyTorchPrior(gpytorch.means.ConstantMean(), kernel, d)


def network(d: int) -> WeightModel:
    return BayesianMLP((d, 4, 1), Gaussian(), torch.float64)


def classifier(d: int) -> WeightModel:
    return BayesianMLP((d, 4, CLASSES), Categorical(CLASSES), torch.float64)


def rows_for(name: str) -> ClientBatch:
    """Return clients of one feature whose targets a method of the table, or the toy, can learn."""
    return federation(1, name in METHODS and labels_only(METHODS[name]))


def labels_only(recipe: Recipe) -> bool:
    """Whether a method learns nothing but labels."""
    return recipe.learns == ("classification",)


def model_of(recipe: Recipe) -> Any:
    """Return the smallest model of two features that a method takes."""
    if recipe.model == "functions":
        return DeepKernelGP(2, (3,), (3,))
    return BayesianMLP((2, 3, 3), Categorical(3)) if labels_only(recipe) else BayesianMLP((2, 3, 1), Gaussian())


def from_recipe(recipe: Recipe, d: int, options: dict[str, Any] | None = None, model: Any = None) -> AnyMethod:
    """Build a method of the table at the price of a test."""
    known = {field.name for field in fields(recipe.options)}
    values = {name: value for name, value in (CHEAP[recipe.model] | (options or {})).items() if name in known}
    usual = {"functions": deep, "weights": classifier if labels_only(recipe) else network}
    model = model or usual[recipe.model]
    return recipe.build(recipe.options(**values), model(d), FEATURES[:d])


def with_family(family: Any, d: int) -> AnyMethod:
    """Build pFedBayes over other distributions than the mean field."""
    return replace(from_recipe(METHODS["pfedbayes"], d), family=family, rank=2)


@dataclass(frozen=True)
class Case:
    """A method in a form, with an engine of noise, for numbers or for labels."""

    name: str
    build: Any
    noise: Engine = "philox"
    labelled: bool = False
    dimensions: tuple[int, ...] = tuple(SIZES)

    def __str__(self) -> str:
        name = f"{self.name}-labels" if self.labelled else self.name
        return f"{name}-{self.noise}" if self.noise == "generators" else name

    def federation(self, d: int) -> ClientBatch:
        """Return the clients that train."""
        return federation(d, self.labelled)

    def strangers(self, d: int) -> ClientBatch:
        """Return clients that never trained."""
        return strangers(d, self.labelled)


def _cases() -> Iterator[Case]:
    for name, recipe in METHODS.items():
        if labels_only(recipe):
            continue
        shapes = (3,) if recipe.model == "weights" and name not in _TWO_SHAPES else tuple(SIZES)
        yield Case(name, partial(from_recipe, recipe), dimensions=shapes)
        if recipe.model == "functions" and "minibatch" in {field.name for field in fields(recipe.options)}:
            batches = Case(f"{name}-minibatch", partial(from_recipe, recipe, options={"minibatch": 4}))
            yield from (batches, replace(batches, noise="generators"))
    scaled = {"minibatch": 3, "minibatch_scale": "outside", "cohort_scale": "mean", "optimiser": "ascent"}
    yield Case("pac-pfl-scaled-minibatch", partial(from_recipe, METHODS["pac-pfl"], options=scaled))
    equal = {"weighting": "equal"}
    yield Case("pac-pfl-rich", partial(from_recipe, METHODS["pac-pfl"], options=equal, model=rich))
    yield Case("pac-pfl-gpytorch", partial(from_recipe, METHODS["pac-pfl"], model=plain))
    yield Case("pac-pfl-inducing", partial(from_recipe, METHODS["pac-pfl"], model=with_points))
    other: dict[str, Any] = {
        "restart": True,
        "keep_moments": False,
        "weighting": "rows",
        "train_draws": 2,
        "divergence": "reverse",
    }
    other |= {"upload": "tracked", "optimiser": "sgd", "noise_std": 0.5, "data_scale": "mean", "clusters": 3}
    other |= {"rate": 1e-3, "prior_rate": 2e-3}  # at which plain descent does not diverge
    for name in ("pfedbayes", "cfedbayes", "bpfed", "fedavg-ft", "local"):
        yield Case(f"{name}-other", partial(from_recipe, METHODS[name], options=other), dimensions=(1,))
    sparse = {"inclusion": 0.31, "threshold": 0.3, "temperature": 0.7, "restart": True, "beta": 2.0}
    yield Case("sfedbayes-sparse", partial(from_recipe, METHODS["sfedbayes"], options=sparse), dimensions=(3,))
    printed: dict[str, Any] = {
        "slab_average": "uniform",
        "optimiser": "sgd",
        "prior_optimiser": "sgd",
        "weighting": "rows",
    }
    printed |= {"rate": 1e-3, "prior_rate": 2e-3}
    yield Case("sfedbayes-printed", partial(from_recipe, METHODS["sfedbayes"], options=printed), dimensions=(1,))
    for name in VARIATIONAL:
        matched = {"aggregation": "moments", "beta": 0.7, "prior": "divide"} | _LONG
        yield Case(f"{name}-moments", partial(from_recipe, METHODS[name], options=matched), dimensions=(3,))
        both = matched | {"aggregation": "tracked-moments"}
        yield Case(f"{name}-tracked-moments", partial(from_recipe, METHODS[name], options=both), dimensions=(1,))
    for name in ("pfedbayes", "bpfed", "fedavg-ft", "local", "fedsi"):
        yield Case(f"{name}-epochs", partial(from_recipe, METHODS[name], options=_LONG), dimensions=(1,))
    dropping = {"aggregation": "moments", "prior": "divide", "threshold": 0.2, "inclusion": 0.3, "weighting": "rows"}
    for name in ("sfedbayes", "bpfed"):
        yield Case(f"{name}-moments-rows", partial(from_recipe, METHODS[name], options=dropping), dimensions=(1,))
    forms: dict[str, dict[str, Any]] = {"per-fedavg": {"variant": "exact"}, "pfedme": {"restart": True, **_LONG}}
    for name, form in forms.items():
        yield Case(f"{name}-other", partial(from_recipe, METHODS[name], options=form), dimensions=(1,))
    heavy = {"server_momentum": 0.9, "optimiser": "sgd", "momentum": 0.5}
    for name, step in {"momentum": heavy, "adaptive": {"server": "yogi"}}.items():
        yield Case(f"fedavg-server-{name}", partial(from_recipe, METHODS["fedavg"], options=step), dimensions=(1,))
    moved = {"server": "adam", "server_rate": 0.1}
    yield Case("cfedbayes-server-adaptive", partial(from_recipe, METHODS["cfedbayes"], options=moved), dimensions=(1,))
    for name, laplace in _LAPLACE.items():
        yield Case(f"fedsi-{name}", partial(from_recipe, METHODS["fedsi"], options=laplace), dimensions=(3,))
    bnn, whole = METHODS["pac-pfl-bnn"], {"minibatch": None, "beta": 3.0, "cohort_scale": "mean", "optimiser": "ascent"}
    yield Case("pac-pfl-bnn-importance", partial(from_recipe, bnn, options={"posterior": "importance"}), "generators")
    yield Case("pac-pfl-bnn-svgd", partial(from_recipe, bnn, options={"posterior": "svgd"}), dimensions=(3,))
    yield Case("pac-pfl-bnn-whole", partial(from_recipe, bnn, options=whole | {"weighting": "equal"}), dimensions=(1,))
    apart = {"mean_below": 1e9, "longest_above": 0.0}  # splits in every round
    yield Case("fedcfl-apart", partial(from_recipe, METHODS["fedcfl"], options=apart), dimensions=(1,))
    yield Case("pfedbayes-full-rank", partial(with_family, "full-rank"), dimensions=(3,))
    yield Case("pfedbayes-low-rank", partial(with_family, "low-rank"), dimensions=(1,))
    yield Case("pfedbayes-laplace", partial(with_family, Family.from_distribution(Laplace)), dimensions=(1,))
    yield from (Case("toy", Toy), Case("toy", Toy, "generators"))


def _labelled_cases() -> Iterator[Case]:
    for name, recipe in METHODS.items():
        if "classification" in recipe.learns:
            yield Case(name, partial(from_recipe, recipe, model=classifier), "generators", True, (3,))
    halves = {"criterion": "predictive", "node_scale": "nodes"}
    halved = partial(from_recipe, METHODS["pfedgp-tree"], options=halves, model=classifier)
    yield Case("pfedgp-tree-predictive", halved, "generators", True, (3,))
    for name, laplace in _LAPLACE.items():
        build = partial(from_recipe, METHODS["fedsi"], options=laplace, model=classifier)
        yield Case(f"fedsi-{name}", build, "generators", True, (3,))


ALL = tuple(_cases())
"""Methods that predict numbers."""

LABELLED = tuple(_labelled_cases())
"""Methods that predict labels."""

BY_EPOCHS = tuple(
    Case(f"{name}-epochs", partial(from_recipe, recipe, options=_LONG), labelled=labels_only(recipe), dimensions=(3,))
    for name, recipe in METHODS.items()
    if recipe.model == "weights" and "epochs" in {field.name for field in fields(recipe.options)}
)
"""All methods on networks that can go through their rows, which long and short clients of a call do unlike times."""

FEDERATED = tuple(case for case in ALL if case.build(1).federated)
FEDERATED_LABELLED = tuple(case for case in LABELLED if case.build(3).federated)


@cache
def scene(case: Case, d: int) -> Scene:
    """Play two rounds; laws look at the third. Nobody changes what this returns, as a law of its own checks."""
    plan = FederationPlan(rounds=2, seed=SEED, noise=case.noise)
    return played(case.build(d), case.federation(d), case.strangers(d), plan)
