"""Table [model] of a study: a prior over functions or a network, and every kind of model by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType, ModuleType
from typing import Any, ClassVar, Final, Literal

import torch

from pacbayes_fl import options, settings
from pacbayes_fl.errors import StudyError, shown
from pacbayes_fl.methods.recipe import HELD_OUT
from pacbayes_fl.models.base import FunctionModel, WeightModel
from pacbayes_fl.models.likelihoods import (
    NOISE_STD,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
)
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP, BayesianNetwork
from pacbayes_fl.models.weights.convolutional import BayesianCNN, BayesianFedAvgCNN, BayesianVGG
from pacbayes_fl.options import OpenNames, by_name, option
from pacbayes_fl.plugins.references import INSTANCE
from pacbayes_fl.plugins.table import OpenTable
from pacbayes_fl.study.config.gp_model import GPModel, ModelSize, fully_connected

Over = Literal["functions", "weights"]


@dataclass(frozen=True)
class NetworkModel:
    """Table [model] of a method on networks with weights.

    Args:
        kind: see `KINDS`: "mlp" for flat rows and images; "cnn", "fedavg-cnn" and "vgg" for images.
        widths: hidden units of the MLP's layers.
        likelihood: of the targets; "auto" is categorical where they are labels, Gaussian otherwise, and
            "heteroscedastic" does the same with a noise that the network learns as a function of the input.
        noise_std: of the Gaussian likelihood, in standardised units; where the noise is learned, what that starts from;
            "held-out" takes the one under which rows are most likely that a federation with 0.4 was not given.
        dtype: of the weights, and of the rows that a method gets.
        temperature: T of predicted probabilities of classes, p^(1/T) / Z, of which training does not know; "held-out"
            lets a study choose the one under which validation rows, or where some clients have none a fifth of the
            training rows, are most likely for federations that were not given them.
    """

    kind: str = option("mlp", names=lambda: _names_over("weights"))
    widths: tuple[int, ...] = option((100,), low=1)
    likelihood: Literal["auto", "categorical", "gaussian", "heteroscedastic"] = "auto"
    noise_std: float | Literal["held-out"] = option(NOISE_STD, above=0)
    dtype: Literal["float32", "float64"] = "float32"
    temperature: float | Literal["held-out"] = option(1.0, above=0, symbol="T")
    network_options: ClassVar[tuple[str, ...]] = ()
    residuals: ClassVar[Literal["gaussian", "mixture"]] = "gaussian"
    residual_share: ClassVar[float] = 0.5
    inducing: ClassVar[int | Literal["auto", "none"]] = "none"

    def __post_init__(self) -> None:
        """Check the ranges, and that no noise is chosen where it is learned."""
        options.check(self, "[model]")
        if self.noise_std == HELD_OUT and self.likelihood == "heteroscedastic":
            what = "[model] noise_std = 'held-out' is of one noise for all inputs, and a heteroscedastic one is learned"
            raise StudyError(what, hint=f"model.noise_std = {NOISE_STD}, from which it starts")

    @property
    def single(self) -> bool:
        """Whether weights take four bytes each."""
        return self.dtype == "float32"

    def build(self, shape: tuple[int, ...], classes: int | None) -> BayesianNetwork:
        """Make the network for inputs of a shape.

        Args:
            shape: of one input: (d,) of a flat row, (channels, H, W) of an image.
            classes: C of labels 0..C-1; None for regression.

        Returns:
            The network.

        Raises:
            StudyError: when the likelihood or the temperature is not for these targets, or the kind not for these
                inputs.
        """
        if classes is None and self.temperature != 1.0:
            what = f"[model] temperature {self.temperature!r} is for classes, and the targets are numbers"
            raise StudyError(what, hint="leave it out; data.task = 'classification' makes labels of a table's targets")
        kind, likelihood = MODEL_KINDS[self.kind], self.likelihood_of(classes)
        if kind.images and len(shape) != 3:
            raise StudyError(
                f"[model] kind {self.kind!r} is for images, the data have rows of {math.prod(shape)} features",
                hint="set model.kind to 'mlp'",
            )
        network: BayesianNetwork = kind.make(self, shape, likelihood, torch.float32 if self.single else torch.float64)
        return network

    def size(self, inputs: int, classes: int | None) -> ModelSize:
        """Count the weights.

        Args:
            inputs: d, numbers of one input.
            classes: C of labels 0..C-1; None for regression.

        Returns:
            Their number.
        """
        return MODEL_KINDS[self.kind].size(self, inputs, self.likelihood_of(classes).outputs)

    def likelihood_of(self, classes: int | None) -> Likelihood:
        """Give the likelihood of targets.

        Args:
            classes: C of labels 0..C-1; None for numbers.

        Returns:
            The one that was asked for, or that goes with such targets.

        Raises:
            StudyError: when the one that was asked for is not for them.
        """
        if self.likelihood == ("categorical" if classes is None else "gaussian"):
            have = "numbers" if classes is None else f"labels of {classes} classes"
            hint = "set model.likelihood to 'auto'; data.task = 'classification' makes labels of a table's targets"
            raise StudyError(f"[model] likelihood {self.likelihood!r} is not for targets that are {have}", hint=hint)
        if classes is not None:
            return Categorical(classes)
        noise_std = NOISE_STD if self.noise_std == HELD_OUT else float(self.noise_std)
        return (HeteroscedasticGaussian if self.likelihood == "heteroscedastic" else Gaussian)(noise_std)


@dataclass(frozen=True)
class InstanceModel:
    """Table [model] of a run whose model, or whose method with its model, a program has given.

    Args:
        kind: "instance:" and the class of the model; "instance:none" of a method without one.
        temperature: as of a network.
        residuals: as of a `GPModel`.
        residual_share: likewise.
        inducing: likewise, of a Gaussian process without a rule of its own.
    """

    single: ClassVar[bool] = False
    network_options: ClassVar[tuple[str, ...]] = ()

    kind: str = f"{INSTANCE}none"
    temperature: float | Literal["held-out"] = option(1.0, above=0, symbol="T")
    residuals: Literal["gaussian", "mixture", "held-out"] = "gaussian"
    residual_share: float = option(0.5, low=0, high=1)
    inducing: int | Literal["auto", "none"] = option("auto", low=1, symbol="M")

    def __post_init__(self) -> None:
        """Check the ranges."""
        options.check(self, "[model]")

    @classmethod
    def of(cls, kind: str, table: GPModel | NetworkModel | InstanceModel) -> InstanceModel:
        """Keep what a table says of predictions.

        Args:
            kind: of the model that is given.
            table: of the study that it is given to.

        Returns:
            The table [model] of the run.
        """
        return cls(kind, table.temperature, table.residuals, table.residual_share, table.inducing)


def _no_network(
    table: NetworkModel, shape: tuple[int, ...], likelihood: Likelihood, dtype: torch.dtype
) -> BayesianNetwork:
    raise StudyError(f"[model] kind {table.kind!r} is no network")


def _unknown(table: NetworkModel, inputs: int, outputs: int) -> ModelSize:
    return ModelSize(0, "model.kind")


@dataclass(frozen=True)
class ModelKind:
    """A kind of model.

    Args:
        name: what studies call it.
        title: one line for people.
        over: what it is a prior over: "functions" or the "weights" of a network, as a method's `Recipe.model` asks for.
        table: dataclass of the table [model]: `GPModel`, `NetworkModel`, or one on these with options of its own.
        make: of a network: gives it from the table, the shape of one input, the likelihood and the dtype.
        images: whether it is for images alone.
        size: of a network: counts its weights from the table, the numbers of one input and the outputs; 0 where memory
            need not be judged before it is made.
    """

    name: str
    title: str
    over: Over
    table: type[GPModel] | type[NetworkModel]
    make: Callable[[Any, tuple[int, ...], Likelihood, torch.dtype], BayesianNetwork] = _no_network
    images: bool = False
    size: Callable[[Any, int, int], ModelSize] = _unknown


def _mlp(table: NetworkModel, shape: tuple[int, ...], likelihood: Likelihood, dtype: torch.dtype) -> BayesianNetwork:
    return BayesianMLP((math.prod(shape), *table.widths, likelihood.outputs), likelihood, dtype)


def _mlp_size(table: NetworkModel, inputs: int, outputs: int) -> ModelSize:
    return ModelSize(fully_connected((inputs, *table.widths, outputs)), "model.widths")


def _cnn(table: NetworkModel, shape: tuple[int, ...], likelihood: Likelihood, dtype: torch.dtype) -> BayesianNetwork:
    return BayesianCNN((shape[0], shape[1], shape[2]), likelihood, dtype)


def _fedavg_cnn(
    table: NetworkModel, shape: tuple[int, ...], likelihood: Likelihood, dtype: torch.dtype
) -> BayesianNetwork:
    return BayesianFedAvgCNN((shape[0], shape[1], shape[2]), likelihood, dtype)


def _vgg(table: NetworkModel, shape: tuple[int, ...], likelihood: Likelihood, dtype: torch.dtype) -> BayesianNetwork:
    return BayesianVGG((shape[0], shape[1], shape[2]), likelihood, dtype)


KINDS: Mapping[str, ModelKind] = by_name(
    ModelKind(
        "deep-kernel-gp",
        "Gaussian process whose mean and kernel see the input through networks",
        "functions",
        GPModel,
    ),
    ModelKind(
        "mlp",
        "ReLU network of fully connected layers, for flat rows and images",
        "weights",
        NetworkModel,
        _mlp,
        size=_mlp_size,
    ),
    ModelKind("cnn", "LeNet-5 with ReLU and max pooling", "weights", NetworkModel, _cnn, images=True),
    ModelKind(
        "fedavg-cnn",
        "CNN of PAC-PFL's images, 582,026 weights on 28 x 28 and 10 classes: FedAvg's without padding",
        "weights",
        NetworkModel,
        _fedavg_cnn,
        images=True,
    ),
    ModelKind("vgg", "small VGG with batch norm", "weights", NetworkModel, _vgg, images=True),
)
"""All kinds of models by name; the first one over functions or weights is the one without a word. A new one is one
more record here."""


def _kind(thing: object, module: ModuleType, name: str) -> ModelKind | None:
    """Take a kind of model whose table says of which kind it is."""
    if isinstance(thing, ModelKind) and "kind" not in {field.name for field in fields(thing.table)}:
        raise StudyError(f"{name}: the table of the model has no field kind", hint="add kind: str = 'NAME' to it")
    return thing if isinstance(thing, ModelKind) else None


MODEL_KINDS: Final = OpenTable(
    lambda: KINDS, "pacbayes_fl.models", "[model] kind", "a record pacbayes_fl.study.config.models.ModelKind", _kind
)
"""Every kind of model by name or reference."""


GIVEN: Final = MappingProxyType({"functions": FunctionModel, "weights": WeightModel})
"""Of which class a model is that a program gives a method on functions or on weights."""


def kinds_over(over: str) -> tuple[str, ...]:
    """Name the kinds of models over functions or weights.

    Args:
        over: "functions" or "weights".

    Returns:
        The names, the usual one first.
    """
    return tuple(name for name, kind in KINDS.items() if kind.over == over)


def _names_over(over: str) -> OpenNames:
    """Name what [model] kind takes: kinds over functions or weights, and all of packages, of which none is loaded."""
    return OpenNames((*kinds_over(over), *(name for name, _ in MODEL_KINDS.listing())))


def table_of(over: str, given: object = MappingProxyType({})) -> type[GPModel] | type[NetworkModel]:
    """The dataclass of a table [model].

    Args:
        over: what the method's model is a prior over.
        given: the table.

    Returns:
        The dataclass of the kind that it names, or of the usual one.
    """
    names = kinds_over(over)
    kind = given.get("kind") if isinstance(given, Mapping) else None
    own = MODEL_KINDS.get(kind) if isinstance(kind, str) and kind not in KINDS else None
    return KINDS[kind if kind in names else names[0]].table if own is None else own.table


def parse(over: str, given: Any, where: str) -> GPModel | NetworkModel:
    """Read a table [model].

    Args:
        over: what the method's model is a prior over.
        given: the table.
        where: what errors call it, such as "study.toml [model]".

    Returns:
        The dataclass of the kind that it names.

    Raises:
        StudyError: when there is no such kind, or as `settings.parse`.
    """
    table, names = table_of(over, given), _names_over(over)
    chosen = given.get("kind") if isinstance(given, Mapping) else None
    if isinstance(chosen, str) and chosen not in KINDS and chosen in MODEL_KINDS and MODEL_KINDS[chosen].over != over:
        what = f"{where} kind {chosen} is over {MODEL_KINDS[chosen].over}, and the method learns {over}"
        raise StudyError(what, hint=f"choose one of {', '.join(names)}, or another method")
    has_kind = "kind" in {field.name for field in fields(table)}
    if isinstance(given, Mapping) and "kind" in given and (has_kind or given["kind"] in names):
        if given["kind"] not in names:
            raise StudyError(f"{where} kind must be one of {', '.join(map(repr, names))}, got {shown(given['kind'])}")
        given = given if has_kind else {key: value for key, value in given.items() if key != "kind"}
    if isinstance(given, Mapping):
        _refuse_other(over, table, given, where)
    return settings.parse(table, given, where)


_KIND_OF: Final = MappingProxyType({"functions": "a Gaussian process", "weights": "a network"})
_KINDS_OF: Final = MappingProxyType({"functions": "Gaussian processes, such as pac-pfl", "weights": "networks"})


def _refuse_other(over: str, table: type, given: Mapping[str, object], where: str) -> None:
    """Refuse options of the other kind of model that every model answers for, with a constant where it has none."""
    other = "weights" if over == "functions" else "functions"
    theirs = {field.name for field in fields(table_of(other))} - {field.name for field in fields(table)}
    for key in given:
        if key in theirs and hasattr(table, key):
            what = f"{where}: {key} is an option of {_KIND_OF[other]}, and the method's model is {_KIND_OF[over]}"
            raise StudyError(what, hint=f"drop it, or choose a method on {_KINDS_OF[other]}")
