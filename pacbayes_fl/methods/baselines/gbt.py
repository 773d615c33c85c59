"""Gradient-boosted trees, by client or pooled, by scikit-learn: what a practitioner would try first on a table."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import ClassVar, NamedTuple, final

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.blocks import blocks
from pacbayes_fl.inference.boosting import Boosting, forest_of, grow, left_out
from pacbayes_fl.methods.base import Nothing
from pacbayes_fl.methods.baselines.centralised import CentralisedMethod, Rows
from pacbayes_fl.methods.baselines.local_method import LocalMethod
from pacbayes_fl.methods.options import part
from pacbayes_fl.methods.recipe import LogUniform, MethodSummary, OneOf, Recipe, Search
from pacbayes_fl.noise import Noise
from pacbayes_fl.options import check, option
from pacbayes_fl.posteriors.trees import Forest, TreePosterior, beside, no_trees, side_by_side

_SMALLEST_VARIANCE = 1e-8
_GROWN = "scikit-learn grows its trees, on the CPU"


class Fitted(NamedTuple):
    """Trees, and what they leave of rows that they did not see.

    Args:
        forest: leaves [1, T, L] and [1].
        variance: mean squared residual of every row under trees grown without its fold [1], in squared units of y.
    """

    forest: Forest
    variance: Tensor


def fitted(boosting: Boosting, x: Tensor, y: Tensor, fold: Tensor, by_fold: Tensor | None = None) -> Fitted:
    """Grow trees on all rows, and others without each fold for the variance.

    Args:
        boosting: hyper-parameters.
        x: inputs [R, d].
        y: targets [R].
        fold: of every row [R], numbers below F.
        by_fold: inputs as they are where a fold is left out [F, R, d]; x when None.

    Returns:
        The fit; with fewer than 3 rows the mean of y with variance 1, that of standardised targets.
    """
    if not fold.any():  # of clients with one row each
        fold = torch.arange(len(y), device=fold.device).remainder(2)
        by_fold = None if by_fold is None else by_fold[:1].expand(2, -1, -1)  # in which nothing is known of any client
    if len(y) < 3:
        mean = (y.double().sum() / max(1, len(y))).view(1)
        return _on(x.device, Fitted(no_trees()._replace(baseline=mean), torch.ones_like(mean)))
    errors = y.double().cpu() - left_out(boosting, x if by_fold is None else by_fold, y, fold)
    variance = errors.square().mean().view(1).clamp_min(_SMALLEST_VARIANCE)
    return _on(x.device, Fitted(forest_of(grow(boosting, x, y)), variance))


def _on(device: torch.device, tree: Fitted) -> Fitted:
    return tensors.tree_map(lambda leaf: leaf.to(device), tree)


def summaries(x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """Summarise clients by the mean products of target and features: their correlations, in standardised units.

    u_kj = 1/m_k sum_i x_kij y_ki

    Args:
        x: inputs [K, N, d].
        y: targets [K, N].
        mask: rows that count [K, N], bool.

    Returns:
        [K, d], float64; 0 for a client without rows.
    """
    kept = torch.where(mask, y, 0.0).double()
    return torch.einsum("knd,kn->kd", x.double(), kept) / mask.sum(1, keepdim=True).clamp_min(1)


@final
@dataclass(frozen=True)
class LocalGBT(LocalMethod[Nothing]):
    """Boosted trees of each client alone, with Gaussian residuals.

    Args:
        boosting: how trees are grown.
        folds: contiguous blocks of a client's rows, each predicted without itself for the variance of the residuals.
    """

    host_bound: ClassVar[str | None] = _GROWN
    leaves_rows_out: ClassVar[bool] = False

    boosting: Boosting = part(Boosting)
    folds: int = option(5, low=2)

    def __post_init__(self) -> None:
        """Check the ranges."""
        check(self)

    def init_server(self, generator: torch.Generator) -> Nothing:
        """No state."""
        return Nothing()

    def personalise(self, message: Nothing, state: Nothing, batch: ClientBatch, noise: Noise) -> TreePosterior:
        """Grow trees on each client's rows."""
        fold = blocks(batch.mask, self.folds)
        rows = zip(batch.x, batch.y, fold, batch.mask, strict=True)
        each = [fitted(self.boosting, x[real], y[real], out[real]) for x, y, out, real in rows]
        forest, variance = side_by_side([one.forest for one in each]), torch.cat([one.variance for one in each])
        return TreePosterior(forest, variance, batch.x.new_zeros(batch.clients, 0))


@final
@dataclass(frozen=True)
class PooledGBT(CentralisedMethod[Fitted]):
    """Boosted trees on everybody's rows, which may see whose rows they are by numbers of each client's training rows.

    Args:
        boosting: how trees are grown.
        folds: contiguous blocks of every client's rows; all clients' blocks of one number are predicted without them,
            for the variance of the residuals.
        client_features: whether trees also see the mean products of target and features in the client's training rows.
    """

    host_bound: ClassVar[str | None] = _GROWN
    leaves_rows_out: ClassVar[bool] = False
    personal_model: ClassVar[str] = "personal models are the pooled one, at numbers of each client's own rows"

    boosting: Boosting = part(partial(Boosting, trees=250, shrinkage=0.05, leaves=16, smallest_leaf=20))
    folds: int = option(5, low=2)
    client_features: bool = True

    def __post_init__(self) -> None:
        """Check the ranges."""
        check(self)

    def init_server(self, generator: torch.Generator) -> Fitted:
        """Predict zero before any row is seen."""
        return Fitted(no_trees(), torch.ones(1, dtype=torch.float64))

    def server(self, server: Fitted, update: Rows, n_clients: int) -> Fitted:
        """Grow trees on the pooled rows; numbers of a client are those of the rows that trees may know."""
        real = update.real
        fold = blocks(real, self.folds)
        inputs = [self._inputs(update, real & (fold != out))[real] for out in range(self.folds)]
        return fitted(self.boosting, self._inputs(update, real)[real], update.y[real], fold[real], torch.stack(inputs))

    def _inputs(self, rows: Rows, known: Tensor) -> Tensor:
        """Features, and numbers of the clients' known rows [K, N] behind them: [K, N, d + S]."""
        return beside(rows.x, self._summaries(rows.x, rows.y, known))

    def _summaries(self, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        return summaries(x, y, mask) if self.client_features else x.new_zeros(len(x), 0)

    def personalise(self, message: Fitted, state: Nothing, batch: ClientBatch, noise: Noise) -> TreePosterior:
        """Give every client the same trees, at numbers of its own rows."""
        own = self._summaries(batch.x, batch.y, batch.mask)
        return TreePosterior(message.forest, message.variance.expand(batch.clients), own)


_SEARCH: Search = MappingProxyType(
    {
        "method.trees": OneOf((60, 120, 250)),
        "method.shrinkage": LogUniform(0.02, 0.2),
        "method.leaves": OneOf((4, 8, 16)),
    }
)

RECIPE = Recipe(
    "Gradient-boosted trees of each client alone (scikit-learn)",
    LocalGBT,
    MethodSummary("boosted trees", "boosting.grow", "nothing", "nothing", "nothing"),
    rounds=False,
    search=_SEARCH,
)

POOLED = Recipe(
    "Gradient-boosted trees on all data (scikit-learn)",
    PooledGBT,
    MethodSummary("boosted trees", "nothing", "boosting.grow", "all rows", "nothing"),
    rounds=False,
    search=_SEARCH,
)
