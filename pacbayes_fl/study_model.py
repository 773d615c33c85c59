"""Table [model] of a study: a prior over functions or a network, and which of the two a method takes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import torch

from pacbayes_fl.errors import StudyError
from pacbayes_fl.methods import METHODS
from pacbayes_fl.models.bayesian_network import BayesianMLP, BayesianNetwork
from pacbayes_fl.models.convolutional import BayesianCNN, BayesianVGG
from pacbayes_fl.models.deep_kernel_gp import DeepKernelGP
from pacbayes_fl.models.likelihoods import NOISE_STD, Categorical, Gaussian, Likelihood


@dataclass(frozen=True)
class ModelPart:
    """Table [model]: the deep-kernel GP prior; fields as in `models.deep_kernel_gp.DeepKernelGP`.

    `mean_widths = "zero"` is a zero mean, `[]` a linear one.
    """

    mean_widths: Literal["zero"] | tuple[int, ...] = (32, 32)
    kernel_widths: tuple[int, ...] = (32, 32)
    feature_dim: int = 2
    learn_lengthscale: bool = False
    learn_outputscale: bool = False
    noise_std: float = NOISE_STD

    def __post_init__(self) -> None:
        """Refuse numbers that mean nothing."""
        widths = (*self.kernel_widths, *(() if self.mean_widths == "zero" else self.mean_widths), self.feature_dim)
        if any(width < 1 for width in widths):
            raise StudyError(f"[model] widths and feature_dim must be at least 1, got {', '.join(map(str, widths))}")
        if not 0 < self.noise_std < math.inf:
            raise StudyError(f"[model] noise_std must be positive, got {self.noise_std:g}")

    def build(self, input_dim: int) -> DeepKernelGP:
        """Make the prior for inputs of d features."""
        return DeepKernelGP(
            input_dim,
            None if self.mean_widths == "zero" else self.mean_widths,
            self.kernel_widths,
            self.feature_dim,
            self.learn_lengthscale,
            self.learn_outputscale,
            self.noise_std,
        )


@dataclass(frozen=True)
class NetworkPart:
    """Table [model] of a method on networks with weights.

    Args:
        kind: "mlp" for flat rows and images; "cnn" and "vgg" for images.
        widths: hidden units of the MLP's layers.
        likelihood: of the targets; "auto" is categorical where they are labels, Gaussian otherwise.
        noise_std: of the Gaussian likelihood, in standardised units.
        dtype: of the weights, and of the rows that a method gets.
        temperature: T of predicted probabilities of classes, p^(1/T) / Z, of which training does not know; "held-out"
            lets a study choose the one under which training rows that a federation was not given are most likely.
    """

    kind: Literal["mlp", "cnn", "vgg"] = "mlp"
    widths: tuple[int, ...] = (100,)
    likelihood: Literal["auto", "categorical", "gaussian"] = "auto"
    noise_std: float = NOISE_STD
    dtype: Literal["float32", "float64"] = "float32"
    temperature: float | Literal["held-out"] = 1.0

    def __post_init__(self) -> None:
        """Refuse numbers that mean nothing."""
        if any(width < 1 for width in self.widths):
            raise StudyError(f"[model] widths must be at least 1, got {', '.join(map(str, self.widths))}")
        if not 0 < self.noise_std < math.inf:
            raise StudyError(f"[model] noise_std must be positive, got {self.noise_std:g}")
        if not (self.temperature == "held-out" or 0 < self.temperature < math.inf):
            raise StudyError(f"[model] temperature must be positive and finite, got {self.temperature:g}")

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
        likelihood, dtype = self._likelihood(classes), torch.float32 if self.dtype == "float32" else torch.float64
        if self.kind == "mlp":
            return BayesianMLP((math.prod(shape), *self.widths, likelihood.outputs), likelihood, dtype)
        if len(shape) != 3:
            raise StudyError(
                f"[model] kind {self.kind!r} is for images, the data have rows of {math.prod(shape)} features",
                hint="set model.kind to 'mlp'",
            )
        channels, height, width = shape
        return (BayesianCNN if self.kind == "cnn" else BayesianVGG)((channels, height, width), likelihood, dtype)

    def _likelihood(self, classes: int | None) -> Likelihood:
        wanted = self.likelihood if self.likelihood != "auto" else "gaussian" if classes is None else "categorical"
        if (wanted == "categorical") != (classes is not None):
            have = "numbers" if classes is None else f"labels of {classes} classes"
            hint = "set model.likelihood to 'auto'; data.task = 'classification' makes labels of a table's targets"
            raise StudyError(f"[model] likelihood {wanted!r} is not for targets that are {have}", hint=hint)
        return Gaussian(self.noise_std) if classes is None else Categorical(classes)


MODELS: Mapping[str, type[ModelPart] | type[NetworkPart]] = MappingProxyType(
    {"functions": ModelPart, "weights": NetworkPart}
)
"""What the table [model] holds, by what a method's model is (`Recipe.model`)."""


def check_task(method: str, classification: bool) -> None:
    """Refuse a method of regression on data with classes.

    Args:
        method: name of `METHODS`.
        classification: whether the targets are labels.

    Raises:
        StudyError: saying which methods can learn them.
    """
    if classification and METHODS[method].model != "weights":
        able = ", ".join(name for name, recipe in METHODS.items() if recipe.model == "weights")
        raise StudyError(
            f"{method} is a method of regression, and the data have classes",
            hint=f"choose one of {able}, such as --set method.name=pfedbayes",
        )
