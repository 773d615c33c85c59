"""Ridge regression, by client or pooled, by scikit-learn: a hard baseline on PV series."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.methods.base import Nothing
from pacbayes_fl.methods.baselines.centralised import CentralisedMethod, Rows, pool
from pacbayes_fl.methods.baselines.local_method import LocalMethod
from pacbayes_fl.methods.gp_choices import SCALE
from pacbayes_fl.methods.recipe import MethodSummary, Recipe
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.point import LinearPoint

_ALPHAS = (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3)
_SMALLEST_VARIANCE = 1e-8


class Linear(NamedTuple):
    """A fitted line.

    Args:
        weight: [d], in units of y per unit of x.
        bias: [].
        variance: leave-one-out residual variance [], in squared units of y.
    """

    weight: Tensor
    bias: Tensor
    variance: Tensor


def fit(x: Tensor, y: Tensor) -> Linear:
    """Fit ridge regression; the penalty is chosen by leave-one-out error on these rows.

    Args:
        x: inputs [R, d].
        y: targets [R].

    Returns:
        The line; with fewer than 3 rows the mean of y with variance 1, that of standardised targets.
    """
    if len(y) < 3:
        mean = y.mean() if len(y) else y.new_zeros(())
        return Linear(y.new_zeros(x.shape[1]), mean, y.new_ones(()))
    from sklearn.linear_model import RidgeCV  # a second of importing, for who fits one

    ridge = RidgeCV(alphas=_ALPHAS, store_cv_results=True).fit(x.cpu().numpy(), y.cpu().numpy())
    errors = ridge.cv_results_[:, _ALPHAS.index(float(ridge.alpha_))]
    weight = torch.from_numpy(np.asarray(ridge.coef_)).to(x)
    return Linear(weight, x.new_tensor(float(ridge.intercept_)), x.new_tensor(float(errors.mean())))


def _posterior(lines: list[Linear]) -> LinearPoint:
    weight, bias, variance = (torch.stack(parts) for parts in zip(*lines, strict=True))
    return LinearPoint(weight, bias, variance.clamp_min(_SMALLEST_VARIANCE))


@final
@dataclass(frozen=True)
class LocalRidge(LocalMethod[Nothing]):
    """Ridge regression of each client alone."""

    host_bound: ClassVar[str | None] = "scikit-learn fits it, on the CPU"
    leaves_rows_out: ClassVar[bool] = False

    def init_server(self, generator: torch.Generator) -> Nothing:
        """No client state."""
        return Nothing()

    def personalise(self, message: Nothing, state: Nothing, batch: ClientBatch, noise: Noise) -> LinearPoint:
        """Fit each client's rows."""
        return _posterior([fit(batch.x[k][batch.mask[k]], batch.y[k][batch.mask[k]]) for k in range(batch.clients)])


@final
@dataclass(frozen=True)
class PooledRidge(CentralisedMethod[Linear]):
    """One ridge regression on everybody's rows.

    Args:
        features: names of the d features.
    """

    leaves_rows_out: ClassVar[bool] = False

    features: tuple[str, ...]

    def init_server(self, generator: torch.Generator) -> Linear:
        """Predict zero before any row is seen."""
        zero = torch.zeros((), dtype=torch.float64)
        return Linear(zero.expand(len(self.features)).clone(), zero, torch.ones_like(zero))

    def server(self, server: Linear, update: Rows, n_clients: int) -> Linear:
        """Fit the pooled rows."""
        return fit(*pool(update))

    def personalise(self, message: Linear, state: Nothing, batch: ClientBatch, noise: Noise) -> LinearPoint:
        """Give every client the same line."""
        return _posterior([message] * batch.clients)


RECIPE = Recipe(
    "Ridge regression of each client alone (scikit-learn)",
    LocalRidge,
    MethodSummary("linear", "leave-one-out ridge", "nothing", "nothing", "nothing"),
    rounds=False,
    held_out=(SCALE,),
)

POOLED = Recipe(
    "One ridge regression on all data (scikit-learn)",
    PooledRidge,
    MethodSummary("linear", "nothing", "leave-one-out ridge", "all rows", "nothing"),
    rounds=False,
    held_out=(SCALE,),
)
