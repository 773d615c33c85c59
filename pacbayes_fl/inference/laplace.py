"""The Laplace approximation on a subnetwork: which weights are uncertain, their Gaussian, and how rows sharpen it."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import AssumptionError
from pacbayes_fl.inference import curvature, subnetwork
from pacbayes_fl.inference.curvature import SubnetworkPrecision
from pacbayes_fl.inference.subnetwork import Candidates, SubnetworkChoice
from pacbayes_fl.models.base import WeightModel
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.weights.laplace import DiagonalGaussian, GaussianWeights, SubnetworkGaussian

Covariance = Literal["full", "diagonal"]


class Sharpened(NamedTuple):
    """A Gaussian that has seen more rows.

    Args:
        gaussian: Q, around the same weights.
        kl: KL(Q || P) from the one before [K], in nats, float64.
    """

    gaussian: GaussianWeights
    kl: Tensor


def choose(
    rule: SubnetworkChoice,
    model: WeightModel,
    theta: Tensor,
    batch: ClientBatch,
    prior: Tensor,
    shared: int,
    noise: Noise,
) -> tuple[Tensor, Tensor]:
    """Choose the uncertain weights by their curvature on the clients' rows      (FedSI eqs. 11, 14).

    Args:
        rule: of the choice.
        model: the likelihood.
        theta: MAP estimates [K, D].
        batch: the clients' rows.
        prior: variances g of all weights [K, D].
        shared: number of weights of the representation, R, which come first.
        noise: the clients' streams, for a rule that draws.

    Returns:
        Diagonal curvature [K, D], in nats per squared unit of a weight, and the subnetwork's positions [K, B].
    """
    ggn = curvature.diagonal_ggn(model, theta, batch)
    return ggn, subnetwork.choose(rule, candidates(model, theta, ggn, prior, shared), noise)


def candidates(model: WeightModel, theta: Tensor, ggn: Tensor, prior: Tensor, shared: int) -> Candidates:
    """List the candidates for uncertain weights: all that are not deterministic in the model.

    Args:
        model: the likelihood.
        theta: MAP estimates [K, D].
        ggn: diagonal curvature [K, D], in nats per squared unit of a weight.
        prior: variances g of all weights [K, D].
        shared: number of weights of the representation, R, which come first.

    Returns:
        Input of a choice rule.
    """
    stochastic = model.stochastic_columns()
    first = torch.arange(model.dim) < shared
    return Candidates(theta, diagonal(ggn, prior), ggn, prior, stochastic & first, stochastic & ~first)


def infer(
    model: WeightModel,
    theta: Tensor,
    batch: ClientBatch,
    index: Tensor,
    ggn: Tensor,
    prior: Tensor,
    covariance: Covariance,
) -> GaussianWeights:
    """Posterior of a subnetwork's weights around the estimate; the others are numbers      (FedSI eqs. 11, 12, 15).

    Args:
        model: the likelihood.
        theta: MAP estimates [K, D].
        batch: the clients' rows.
        index: positions of the subnetwork [K, B].
        ggn: diagonal curvature [K, D], in nats per squared unit of a weight.
        prior: variances g of all weights [K, D].
        covariance: of the chosen weights.

    Returns:
        N(theta, Sigma).
    """
    variance = only(diagonal(ggn, prior), index)
    if covariance == "diagonal":
        return DiagonalGaussian(theta, variance)
    curved, factor = curvature.precision(model, theta, batch, subnetwork.curved(index, ggn), prior)
    return SubnetworkGaussian(theta, curved, factor, variance.scatter(1, curved, 0.0))


def add_rows(model: WeightModel, gaussian: GaussianWeights, rows: ClientBatch) -> Sharpened:
    """Add the curvature of more rows to the precision of a Gaussian that `infer` gave, P = N(theta, Sigma).

    Estimate and subnetwork stay: they are known from other rows. A chosen weight without curvature so far, which P has
    apart, becomes correlated where the new rows depend on it.

    Args:
        model: the likelihood.
        gaussian: P.
        rows: that P has not seen.

    Returns:
        Q and its divergence from P.

    Raises:
        AssumptionError: when P is of another kind.
    """
    if isinstance(gaussian, SubnetworkGaussian):
        theta = gaussian.loc
        known = SubnetworkPrecision(gaussian.chosen, gaussian.factor)
        more = reached(gaussian, curvature.diagonal_ggn(model, theta, rows))
        chosen, factor, kl = curvature.add_rows(model, theta, rows, known, more, gaussian.variance)
        return Sharpened(SubnetworkGaussian(theta, chosen, factor, gaussian.variance.scatter(1, chosen, 0.0)), kl)
    if isinstance(gaussian, DiagonalGaussian):
        ggn = curvature.diagonal_ggn(model, gaussian.loc, rows)
        variance = gaussian.variance / (1.0 + gaussian.variance * ggn)
        return Sharpened(DiagonalGaussian(gaussian.loc, variance), shrinking_kl(variance, gaussian.variance))
    raise AssumptionError(f"the prior must be one that `personalise` gave, got {type(gaussian).__name__}")


def diagonal(ggn: Tensor, prior: Tensor) -> Tensor:
    """Marginal variances under a diagonal Laplace approximation, 1 / (H_rr + 1 / g_r)      (FedSI eq. 11).

    Args:
        ggn: diagonal curvature [K, D].
        prior: variances g [K, D].

    Returns:
        [K, D], in squared units of a weight.
    """
    return (ggn + prior.reciprocal()).reciprocal()


def only(values: Tensor, index: Tensor) -> Tensor:
    """Keep the values of some weights, 0 elsewhere.

    Args:
        values: [K, D].
        index: positions [K, B].

    Returns:
        [K, D].
    """
    return torch.zeros_like(values).scatter(1, index, values.gather(1, index))


def reached(gaussian: SubnetworkGaussian, ggn: Tensor) -> Tensor:
    """Take the uncertain weights that are correlated with none, and will be: those on which new rows depend.

    Args:
        gaussian: whose weights.
        ggn: diagonal curvature of the new rows [K, D].

    Returns:
        Positions [K, M]; see `subnetwork.curved`.
    """
    independent = gaussian.variance != 0
    count = int(independent.sum(1).max())  # the same for every client: a subnetwork has one size
    return subnetwork.curved(torch.argsort(~independent, dim=1, stable=True)[:, :count], ggn)


def shrinking_kl(variance: Tensor, prior: Tensor) -> Tensor:
    """KL divergence between Gaussians of independent weights and equal means.

    KL = 1/2 sum_r [v_r / g_r - 1 - ln(v_r / g_r)]

    Args:
        variance: v [K, D], in squared units of a weight.
        prior: g [K, D]; 0 for a weight that is known, to both.

    Returns:
        [K], in nats, float64.
    """
    v, g = variance.double(), prior.double()
    change = (v - g) / g
    return 0.5 * torch.where(g == 0, 0.0, change - change.log1p()).sum(1)
