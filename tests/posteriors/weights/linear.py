"""A linear model with Gaussian noise, whose exact posterior is known in closed form, and fits without randomness."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.inference import svi
from pacbayes_fl.models.base import WeightModel
from pacbayes_fl.models.likelihoods import Gaussian
from pacbayes_fl.models.weights.bayesian_network import BayesianNetwork
from pacbayes_fl.posteriors.weights.mean_field import MeanField, rho_of

K, D = 2, 3
STD, PRIOR_STD = 0.5, 1.3


class Linear(BayesianNetwork):
    """y = x theta."""

    shapes = MappingProxyType({"theta": (D,)})

    def forward(self, weights: Any, rows: ClientBatch, reference: Any = None, traces: Any = None) -> Tensor:
        return rows.x @ weights["theta"].unsqueeze(-1)


def problem() -> tuple[WeightModel, ClientBatch, MeanField, MultivariateNormal]:
    """Return the model, rows of correlated inputs, a prior and the posteriors [K]."""
    generator = torch.Generator().manual_seed(0)
    inputs, mixing = torch.randn(K, 6, D, generator=generator, dtype=torch.float64), torch.eye(D, dtype=torch.float64)
    x = inputs @ (mixing + 0.8)
    y = x @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    batch = ClientBatch.pad([(x[0], y[0]), (x[1, :4], y[1, :4])])
    loc = torch.tensor([[0.3, 0.0, -0.4]], dtype=torch.float64).expand(K, D).clone()
    prior = MeanField(loc, rho_of(torch.full_like(loc, PRIOR_STD**2)))
    rows = batch.x * batch.mask.unsqueeze(-1)
    precision = rows.mT @ rows / STD**2 + torch.eye(D, dtype=torch.float64) / PRIOR_STD**2
    linear = (rows.mT @ batch.y.unsqueeze(-1)).squeeze(-1) / STD**2 + loc / PRIOR_STD**2
    mean = torch.linalg.solve(precision, linear)
    return Linear(Gaussian(STD), torch.float64), batch, prior, MultivariateNormal(mean, precision_matrix=precision)


def points(n: int) -> list[Tensor]:
    """Return 2n points [K, n], of mean 0 and covariance I: they integrate quadratics exactly."""
    corners = n**0.5 * torch.eye(n, dtype=torch.float64)
    return [point.expand(K, n) for point in torch.cat((corners, -corners))]


def best_fit(model: WeightModel, batch: ClientBatch, prior: Any, draws: Sequence[Any], start: Any = None) -> Any:
    """Minimise -E_q ln p(y | theta) + KL(q || prior) from a start or the prior, by L-BFGS with our gradients."""
    q = tensors.tree_map(torch.clone, prior if start is None else start)
    leaves, scale = list(tensors.leaves(q).values()), torch.ones(batch.clients, dtype=torch.float64)
    optimiser = torch.optim.LBFGS(
        leaves, max_iter=200, tolerance_grad=1e-8, tolerance_change=1e-14, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        result = svi.loss_gradient(model, q, prior, batch, draws, 1.0, scale)
        assert result.kl is not None
        for leaf, slope in zip(leaves, tensors.leaves(result.gradient).values(), strict=True):
            leaf.grad = slope
        return (result.kl - result.log_likelihood).sum()

    optimiser.step(closure)
    return q
