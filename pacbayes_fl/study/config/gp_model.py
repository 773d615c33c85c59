"""Table [model] of a method on functions: the deep-kernel GP prior."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType
from typing import ClassVar, Final, Literal, NamedTuple, TypeVar

import torch

from pacbayes_fl import options
from pacbayes_fl.data.linear_start import LinearStart
from pacbayes_fl.errors import PrivacyError, StudyError
from pacbayes_fl.methods import Recipe
from pacbayes_fl.methods.base import AnyMethod
from pacbayes_fl.methods.recipe import HELD_OUT
from pacbayes_fl.models.base import FunctionModel
from pacbayes_fl.models.functions.deep_kernel_gp import DeepKernelGP
from pacbayes_fl.models.inducing import AUTO, Inducing
from pacbayes_fl.models.likelihoods import NOISE_STD
from pacbayes_fl.options import option

Model = TypeVar("Model")
_POSITIVE: Final = "targets of one sign are learned under data.transform = 'log1p', with data.lower_bound = 0"
_LABELS: Final = "labels are learned by networks: data.task = 'classification', method.name = 'pfedbayes'"
_SHARES: Final = "shares are learned under data.transform = 'logit', with data.lower_bound = 0 and data.upper_bound = 1"
_ELSEWHERE: Final = MappingProxyType(
    dict.fromkeys(("poisson", "negative-binomial", "gamma", "exponential", "lognormal", "log-normal"), _POSITIVE)
    | dict.fromkeys(("bernoulli", "binomial", "categorical", "multinomial"), _LABELS)
    | {"beta": _SHARES}
)
"""What to write in the place of likelihoods that others have, by their names."""


class ModelSize(NamedTuple):
    """How many weights a model has, before it is made.

    Args:
        weights: their number, or less.
        options: of the study that decide it, in words.
    """

    weights: int
    options: str


@dataclass(frozen=True)
class GPModel:
    """Table [model]: the deep-kernel GP prior, `models.functions.deep_kernel_gp.DeepKernelGP`.

    Args:
        mean_widths: hidden units of the mean network's layers; "zero" is a zero mean, an empty list a linear one.
        kernel_widths: hidden units of the kernel network's layers.
        feature_dim: features that the kernel sees.
        learn_lengthscale: whether the kernel's lengthscale is a hyper-parameter that is learned.
        learn_outputscale: whether its output scale is.
        noise_std: of the Gaussian noise that learning starts from, in standardised units.
        linear: whether the mean has a linear term beside its network, and where learning starts: "none", as in the
            paper; "zero"; or "ridge", at the ridge regression of all existing clients' training rows, of which each
            sends sums once, and at the noise that it leaves. "auto" is "ridge" for federated methods, or "zero" where
            nobody may know anything of others' rows, and "none" for methods whose clients are alone or whose rows are
            pooled, or "zero" of these where `networks` is false.
        noise_widths: hidden units of the layers of a network that gives every input a noise of its own; "constant" is
            one noise for all inputs, as in the paper, an empty list a linear one.
        noise_spread: standard deviation of the noise network's weights, relative to that of the hyper-prior.
        linear_kernel: whether every client has slopes of its own, by a linear kernel beside the other whose scale is
            learned; "auto" is true where the mean has a linear term.
        networks: whether mean and kernel have networks beside these linear parts. Without, the prior is that of a
            regression with coefficients of every client's own around the federation's, whose spreads are learned: it
            goes on beyond the training rows as it was there.
        likelihood: noise around the function: "gaussian", as in the paper, or "student-t", with heavier tails. The
            latter learns a lower bound of the evidence, and says itself what shape errors have, so that `residuals` and
            conformal intervals are not for it; where `data.transform` leaves targets no mean under such tails, as
            "log1p" does, it needs a bound of the target, and where it leaves them no variance, a warning says that
            standard deviations of predictions say little.
        degrees_of_freedom: of Student-t noise, above 2; "learned" makes them a hyper-parameter.
        residuals: shape of the errors around predicted means, of which neither training nor certificates know:
            "gaussian", as the model has it, or a "mixture" of three normals for each client, fitted after the rounds to
            leave-one-out residuals, its own and the federation's, of which every client sends a histogram once.
        residual_share: of the federation's residuals in the mixture of a client that has many rows; with 0 nobody sends
            any.
        inducing: most inducing points through which evidence and posterior know a client's rows, chosen among them: a
            number for all clients, "none" for exact ones, or "auto", 200 for clients with more than 700 rows.
    """

    temperature: ClassVar[float] = 1.0
    single: ClassVar[bool] = False
    network_options: ClassVar[tuple[str, ...]] = ("mean_widths", "kernel_widths", "feature_dim")
    """Names of options that say how mean and kernel's networks are, and are idle where `networks` is false."""

    mean_widths: Literal["zero"] | tuple[int, ...] = option((32, 32), low=1)
    kernel_widths: tuple[int, ...] = option((32, 32), low=1)
    feature_dim: int = option(2, low=1)
    learn_lengthscale: bool = False
    learn_outputscale: bool = False
    noise_std: float = option(NOISE_STD, above=0)
    linear: Literal["auto", "none", "zero", "ridge"] = "auto"
    noise_widths: Literal["constant", "held-out"] | tuple[int, ...] = option("constant", low=1)
    noise_spread: float = option(0.5, above=0)
    linear_kernel: bool | Literal["auto", "held-out"] = "auto"
    networks: bool | Literal["held-out"] = True
    likelihood: str = option("gaussian", names=lambda: ("gaussian", "student-t"))
    degrees_of_freedom: float | Literal["learned"] = option("learned", above=2, symbol="nu")
    residuals: Literal["gaussian", "mixture", "held-out"] = "gaussian"
    residual_share: float = option(0.5, low=0, high=1)
    inducing: int | Literal["auto", "none"] = option("auto", low=1, symbol="M")

    def __post_init__(self) -> None:
        """Check the ranges, and what is not for Student-t noise whatever is tried."""
        if (other := _ELSEWHERE.get(self.likelihood.lower())) is not None:
            what = "[model] likelihood must be 'gaussian' or 'student-t', of targets that are any numbers"
            raise StudyError(f"{what}, got {self.likelihood!r}", hint=other)
        options.check(self, "[model]")
        if self.likelihood == "student-t" and self.residuals == "held-out":
            what = "[model] residuals = 'held-out' tries 'mixture', which likelihood = 'student-t' does not have"
            raise StudyError(what, hint="drop one of them: Student-t noise says itself what shape errors have")

    def settled(self, recipe: Recipe, private: bool, folds: bool) -> GPModel:
        """Say where learning starts, and with which kernel, if the table leaves it open.

        Args:
            recipe: of the method: only one that trains in rounds starts at a regression by itself.
            private: whether the run is private.
            folds: whether clients' priors may know nothing of their rows.

        Returns:
            The table without "auto".

        Raises:
            PrivacyError: when a private run would start at sums of all clients' rows.
            StudyError: when folds of clients would, or clients that are alone; when neither networks nor linear parts
                are left.
        """
        if self.linear == "auto":
            start: Literal["none", "zero", "ridge"] = "zero" if private or folds else "ridge"
            if not recipe.rounds:  # without networks nothing but linear parts knows the inputs
                start = "none" if self.networks else "zero"
            return replace(self, linear=start).settled(recipe, private, folds)
        if self.linear_kernel == "auto":
            return replace(self, linear_kernel=self.linear != "none").settled(recipe, private, folds)
        if self.networks is not True and self.linear == "none" and not self.linear_kernel:
            what, hint = f"[model] networks = {self.networks!r}", "model.linear = 'zero' gives it linear parts"
            if self.networks == HELD_OUT and "model.networks" not in {one.key for one in recipe.held_out}:
                what = f"{what} is not for this method, for which nothing is tried, and"
                hint = f"model.networks = true; or false, where {hint}"
            raise StudyError(f"{what} leaves no part of the prior that knows the inputs", hint=hint)
        if self.linear == "ridge" and (private or folds or (recipe.federated and not recipe.rounds)):
            kind = PrivacyError if private else StudyError
            why = "folds of clients may not know of them" if folds else "clients of this method are alone"
            why = "a private run releases nothing else of them" if private else why
            what = f"[model] linear = 'ridge' takes sums of all clients' rows, and {why}"
            raise kind(what, hint="model.linear = 'zero' learns the linear term from 0")
        return self

    @property
    def _has_linear_kernel(self) -> bool:
        return self.linear != "none" if isinstance(self.linear_kernel, str) else self.linear_kernel

    def build(
        self, shape: tuple[int, ...], classes: int | None = None, start: LinearStart | None = None
    ) -> DeepKernelGP:
        """Make the prior for inputs of d features.

        Args:
            shape: (d,), of one input.
            classes: None: such a prior is for regression.
            start: where learning starts, of a prior with a linear term; 0 when None.

        Returns:
            The prior.
        """
        features = math.prod(shape)
        if self.linear == "none":
            start = None
        elif start is None:
            start = LinearStart(torch.zeros(features, dtype=torch.float64), 0.0, self.noise_std)
        return DeepKernelGP(
            features,
            self.mean_widths if self.networks and self.mean_widths != "zero" else None,
            self.kernel_widths if self.networks else None,
            self.feature_dim,
            self.learn_lengthscale,
            self.learn_outputscale,
            self.noise_std,
            start,
            None if isinstance(self.noise_widths, str) else self.noise_widths,
            self.noise_spread,
            self._has_linear_kernel,
            self.degrees_of_freedom if self.likelihood == "student-t" else None,
        )

    def size(self, inputs: int, classes: int | None) -> ModelSize:
        """Count the weights of the networks.

        Args:
            inputs: d, numbers of one input.
            classes: None.

        Returns:
            Their number.
        """
        parts = (self.mean_widths, self.noise_widths) if self.networks else (self.noise_widths,)
        widths = [(inputs, *self.kernel_widths, self.feature_dim)] if self.networks else []
        widths += [(inputs, *part, 1) for part in parts if not isinstance(part, str)]
        weights = sum(map(fully_connected, widths))
        weights += 0 if self.linear == "none" else inputs + 2  # of the linear term, its bias and the outputscale
        weights += self._has_linear_kernel + (self.likelihood == "student-t" and self.degrees_of_freedom == "learned")
        return ModelSize(weights, "model.mean_widths, model.kernel_widths, model.noise_widths or model.feature_dim")


def with_points(model: Model, inducing: int | Literal["auto", "none"]) -> Model:
    """Give a prior over functions the inducing points that a study asks for.

    Args:
        model: any model; one that has points of its own keeps these, and a network has none.
        inducing: as in the table [model].

    Returns:
        The model, or a copy with the points.
    """
    if not isinstance(model, FunctionModel) or model.inducing is not None or inducing == "none":
        return model
    return model.with_inducing(AUTO if inducing == "auto" else Inducing(inducing))


def check_points(name: str, method: AnyMethod, inducing: int | Literal["auto", "none"]) -> None:
    """Check that a number of inducing points that a study asks for is used.

    Args:
        name: of the method.
        method: as built.
        inducing: as in the table [model].

    Raises:
        StudyError: when the method is no Gaussian process with such a prior, or has a number of its own.
    """
    used = isinstance(getattr(method, "model", None), FunctionModel) and not hasattr(method, "inducing")
    if isinstance(inducing, int) and not used:
        what = f"[model] inducing = {inducing} would count for nothing: {name} does not learn the prior of the table"
        own = (
            "method.inducing is its own number" if hasattr(method, "inducing") else "pac-pfl, pfedgp and vanilla-gp do"
        )
        raise StudyError(what, hint=own)


def fully_connected(sizes: Sequence[int]) -> int:
    """Count the weights and biases of a network.

    Args:
        sizes: numbers of units from the input to the output.

    Returns:
        Their number.
    """
    return sum((before + 1) * after for before, after in pairwise(sizes))
