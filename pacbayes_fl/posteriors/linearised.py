"""Predictions of a network that is linear in its weights around an estimate (FedSI eqs. 16-19)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Literal

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.models.base import WeightModel
from pacbayes_fl.models.jacobian import linearise
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.base import NormalMixture
from pacbayes_fl.posteriors.classes import ClassMixture, average_log_probs
from pacbayes_fl.posteriors.point import PointMass
from pacbayes_fl.posteriors.subnetwork import GaussianWeights
from pacbayes_fl.posteriors.weights import Predictive, WeightPosterior, rows_of

LinearisedPredictive = Literal["monte-carlo", "probit", "draws", "map"]
"""How labels are predicted; see `LinearisedPosterior`."""

PREDICTIVES: Mapping[LinearisedPredictive, str] = MappingProxyType(
    {
        "monte-carlo": "softmax averaged over draws of the linearised network's logits",
        "probit": "softmax of the linearised network's logits, each softened by its variance",
        "draws": "predictions of the network averaged over draws of the weights",
        "map": "no uncertainty: predictions at the estimate",
    }
)
"""The same in words for people."""

_NUMBERS = 2**25  # that the Jacobian of a block of rows may hold


def probit_log_probs(outputs: Tensor, variance: Tensor) -> Tensor:
    """Soften logits by their variances, one by one.

    ln softmax(kappa f), kappa = (1 + pi s^2 / 8)^-1/2      (FedSI eq. 19)

    The equation's Phi is the softmax: the factor pi / 8 makes a logistic function of a probit. Covariances between
    logits are not looked at, which over-corrects where logits move together, and makes it matter how a program writes
    its logits: Pyro's Categorical normalises them, a network's are raw.

    Args:
        outputs: logits f [*, C].
        variance: s^2 of each logit [*, C].

    Returns:
        Log probabilities [*, C].
    """
    return (outputs * (1.0 + math.pi / 8.0 * variance).rsqrt()).log_softmax(-1)


def sampled_log_probs(outputs: Tensor, covariance: Tensor, draws: Tensor, jitter: float = 1e-12) -> Tensor:
    """Average the softmax over draws of the logits.

    ln 1/S sum_s softmax(f + L eps_s), L L' = Sigma

    Args:
        outputs: logits f [K, N, C].
        covariance: Sigma of the logits [K, N, C, C].
        draws: eps [K, S, C], the same for every row.
        jitter: share of the mean variance that is added to each, to factor a covariance that is singular but for
            rounding.

    Returns:
        Log probabilities [K, N, C].
    """
    scale = covariance.diagonal(dim1=-2, dim2=-1).mean(-1, keepdim=True)
    added = (jitter * scale).clamp_min(torch.finfo(covariance.dtype).tiny).expand_as(outputs)
    factor, failed = torch.linalg.cholesky_ex(covariance + torch.diag_embed(added))
    factor = factor.masked_fill((failed > 0)[..., None, None], torch.nan)
    moved = (outputs + (factor @ eps[:, None, :, None]).squeeze(-1) for eps in draws.unbind(1))
    return average_log_probs(one.log_softmax(-1) for one in moved)


@dataclass(frozen=True, eq=False)
class LinearisedPosterior:
    """Gaussian weights of K clients under a model that is linearised around their estimate.

    f_lin(x, theta) = f(x, loc) + J(x) (theta - loc)      (FedSI eq. 17)

    Targets that are numbers get N(f, Sigma(x) + noise variance) (eq. 18). Labels get "probit" (eq. 19), "monte-carlo"
    (softmax averaged over draws of the linearised logits, with their covariances), "draws" (the network itself,
    averaged over draws of the weights: the Gibbs predictor of the posterior, for numbers too) or "map" (no
    uncertainty).

    Args:
        model: the likelihood.
        loc: estimate theta [K, D].
        infer: computes the Gaussian around it when it is first needed.
        predictive: how labels are predicted.
        draws: S, for "monte-carlo" and "draws".
        noise: the clients' streams; every prediction takes the same draws.
        reference: the clients' training rows, for a network that normalises by their statistics.
    """

    model: WeightModel
    loc: Tensor
    infer: Callable[[], GaussianWeights]
    predictive: LinearisedPredictive
    draws: int
    noise: Noise
    reference: ClientBatch | None = None

    @property
    def uncertain(self) -> bool:
        """Whether predictions differ from those at the estimate."""
        return self.predictive != "map"

    @cached_property
    def gaussian(self) -> GaussianWeights:
        """The weights' distribution."""
        return self.infer()

    def predict(self, x: Tensor) -> Predictive:
        """Predict with the uncertainty of the weights.

        Args:
            x: inputs [K, N, *feature].

        Returns:
            A distribution over classes, or a normal, with batch shape [K, N].
        """
        if self.predictive == "map":
            return self.predict_at_mean(x)
        if self.predictive == "draws":
            return WeightPosterior(self.model, self.gaussian, self.draws, self.noise, self.reference).predict(x)
        blocks = [self._block(block) for block in x.split(self._rows(x), 1)]
        if isinstance(blocks[0], ClassMixture):
            return ClassMixture(torch.cat([block.log_probs for block in blocks if isinstance(block, ClassMixture)], 1))
        normals = [block for block in blocks if isinstance(block, NormalMixture)]
        means, variances = (torch.cat([getattr(one, name) for one in normals], 2) for name in ("means", "variances"))
        return NormalMixture(normals[0].log_weights, means, variances)

    def predict_at_mean(self, x: Tensor) -> Predictive:
        """Predict with the estimate alone.

        Args:
            x: inputs [K, N, *feature].

        Returns:
            As `predict`.
        """
        return WeightPosterior(self.model, PointMass(self.loc), 1, self.noise, self.reference).predict(x)

    def drawn(self, x: Tensor, draws: int, noise: Noise) -> Iterator[TorchDistribution]:
        """Draw networks, which are not linear in their weights, whatever `predictive` is.

        Args:
            x: inputs [K, N, *feature].
            draws: S, networks.
            noise: the clients' streams; see `WeightPosterior.drawn`.

        Yields:
            p(y | x, theta_s), batch shape [K, N].
        """
        return WeightPosterior(self.model, self.gaussian, draws, noise, self.reference).drawn(x, draws, noise)

    def _rows(self, x: Tensor) -> int:
        """Rows whose Jacobian by the weights that count is not too large."""
        one = linearise(self.model, self.loc, rows_of(x[:, :1], self.noise), self.reference)
        return max(1, _NUMBERS // max(1, one.outputs.numel() * self.gaussian.held + one.jacobian.numel()))

    def _block(self, x: Tensor) -> Predictive:
        found = linearise(self.model, self.loc, rows_of(x, self.noise), self.reference)
        covariance, outputs = self.gaussian.output_covariance(found.jacobian), found.outputs.double()
        if found.noise is not None:
            variance = covariance[..., 0, 0] + found.noise.double()
            return NormalMixture(outputs.new_zeros(len(x), 1), outputs.mT, variance.unsqueeze(1))
        if self.predictive == "probit":
            return ClassMixture(probit_log_probs(outputs, covariance.diagonal(dim1=-2, dim2=-1)))
        draws = self.noise.copy().weights(outputs.new_empty(len(x), self.draws, outputs.shape[-1]))
        rounding = outputs.shape[-1] ** 2 * torch.finfo(self.loc.dtype).eps
        return ClassMixture(sampled_log_probs(outputs, covariance, draws, rounding))
