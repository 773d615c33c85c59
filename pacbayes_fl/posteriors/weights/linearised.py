"""Predictions of a network that is linear in its weights around an estimate (FedSI eqs. 16-19)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Literal

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import caller_stacklevel, listed
from pacbayes_fl.models.base import WeightModel
from pacbayes_fl.models.weights.jacobian import Linearised, linearise
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.classes import ClassMixture, average_log_probs
from pacbayes_fl.posteriors.point import PointMass
from pacbayes_fl.posteriors.predictive import NormalMixture
from pacbayes_fl.posteriors.weights.laplace import GaussianWeights, PartlyKnown
from pacbayes_fl.posteriors.weights.posterior import Predictive, WeightPosterior, rows_of

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

    Example:
        >>> import torch
        >>> from pacbayes_fl.posteriors.weights.linearised import probit_log_probs
        >>> outputs, variance = torch.tensor([2.0, 0.0]).double(), torch.tensor([4.0, 4.0]).double()
        >>> probit_log_probs(outputs, variance).exp().numpy().round(3).tolist()  # less sure than softmax
        [0.777, 0.223]
    """
    return (outputs * (1.0 + math.pi / 8.0 * variance).rsqrt()).log_softmax(-1)


@dataclass(frozen=True, eq=False)
class LinearisedPosterior:
    """Gaussian weights of K clients under a model that is linearised around their estimate.

    f_lin(x, theta) = f(x, loc) + J(x) (theta - loc)      (FedSI eq. 17)

    Targets that are numbers get N(f, Sigma(x) + noise variance) (eq. 18). Labels get "probit" (eq. 19), "monte-carlo"
    (softmax averaged over draws of the linearised logits), "draws" (the network itself, averaged over draws of the
    weights: the Gibbs predictor of the posterior, for numbers too) or "map" (no uncertainty).

    Logits are drawn with the weights, f + J(x) (theta_s - loc): they have the covariance Sigma(x), which is neither
    formed nor factored: it is singular wherever fewer weights than classes are uncertain, and a pass through the layers
    costs less than to solve for every row.

    A client whose precision cannot be factored, as in float32 under a prior so wide that rounding outweighs it, or
    whose variances leave the range of numbers, is predicted with its estimate alone, and named in a warning.

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

    @property
    def networks(self) -> WeightPosterior:
        """The hypotheses that certificates are on: networks of the Gaussian's weights, themselves not linear in them.

        A drawn one is its weights alone, without the estimate that `predict` linearises at.
        """
        return WeightPosterior(self.model, self.gaussian, self.draws, self.noise, self.reference)

    def predict(self, x: Tensor) -> Predictive:
        """Predict with the uncertainty of the weights.

        Args:
            x: inputs [K, N, *feature].

        Returns:
            A distribution over classes, or a normal, with batch shape [K, N]; of a client for whom a number of it would
            not be finite, that at the estimate.

        Warns:
            UserWarning: of clients who are predicted with the estimate alone; of those on a device `tell` does.
        """
        if self.predictive == "map":
            return self.predict_at_mean(x)
        if not tensors.on_host(self.loc):  # which is not asked: whether all weights are finite decides there
            return self._predict(x, PartlyKnown(self.gaussian, self._lost))
        result = self._predict(x, self.gaussian)
        astray = ~self._usable(result, self.gaussian)
        if not bool(astray.any()):
            return result
        known = PartlyKnown(self.gaussian, astray)
        certain = self._predict(x, known)
        self._say(astray & self._usable(certain, known))
        return certain

    def tell(self) -> None:
        """Warn of clients that were predicted with the estimate alone, where this is known on a device only."""
        if "_lost" in vars(self) and not tensors.on_host(self.loc):
            self._say(self._lost & tensors.finite(self.loc))

    @cached_property
    def _fixed(self) -> WeightModel:
        """The model, with the statistics of the training rows at the estimate."""
        return self.model if self.reference is None else self.model.with_statistics(self.loc, self.reference)

    @cached_property
    def _lost(self) -> Tensor:
        """Clients whom the Gaussian gives no finite weights [K]."""
        return ~self._finite(self.gaussian)

    def _finite(self, gaussian: GaussianWeights) -> Tensor:
        return tensors.finite(gaussian.step(gaussian.draw(self.noise.copy())))

    def _usable(self, predictions: Predictive, gaussian: GaussianWeights) -> Tensor:
        """Which clients have numbers in their predictions [K], and finite ones where they are means and variances."""
        if isinstance(predictions, ClassMixture):  # a class may be impossible
            return ~predictions.log_probs.isnan().flatten(1).any(1)
        if isinstance(predictions, NormalMixture):
            return tensors.finite({"means": predictions.means, "variances": predictions.variances})
        return self._finite(gaussian)  # not all others have moments

    def _say(self, certain: Tensor) -> None:
        """Warn of clients [K] whose uncertainty is left out; inputs that no weights can predict are not its fault."""
        if self.reference is None:
            names = [f"client {one}" for one in self.noise.ids]
        else:
            names = [repr(name) for name in self.reference.names]
        those = [name for name, one in zip(names, certain.tolist(), strict=True) if one]
        if those:
            warnings.warn(
                f"the linearised posterior of {listed(those)} gives no finite predictions in "
                f"{str(self.loc.dtype).removeprefix('torch.')}: they are predicted with the estimate alone, without "
                "uncertainty of the weights; smaller prior variances (personal_alpha, alpha), fewer uncertain weights "
                "(fraction) or model.dtype = 'float64' may help",
                stacklevel=caller_stacklevel(),
            )

    def _predict(self, x: Tensor, gaussian: GaussianWeights) -> Predictive:
        if self.predictive == "draws":
            return WeightPosterior(self.model, gaussian, self.draws, self.noise, self.reference).predict(x)
        blocks = [self._block(block, gaussian) for block in x.split(self._rows(x), 1)]
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

    def sample_hypotheses(self, x: Tensor, draws: int, noise: Noise) -> Iterator[TorchDistribution]:
        """Draw networks, which are not linear in their weights, whatever `predictive` is.

        Args:
            x: inputs [K, N, *feature].
            draws: S, networks.
            noise: the clients' streams; see `WeightPosterior.sample_hypotheses`.

        Yields:
            p(y | x, theta_s), batch shape [K, N].
        """
        return self.networks.sample_hypotheses(x, draws, noise)

    def _rows(self, x: Tensor) -> int:
        """Rows whose Jacobian by the weights that count is not too large."""
        one = linearise(self._fixed, self.loc, rows_of(x[:, :1], self.noise), self.reference)
        held = 0 if self._drawn(one) else self.gaussian.held
        return max(1, _NUMBERS // max(1, one.outputs.numel() * held + one.jacobian.numel()))

    def _drawn(self, linearised: Linearised) -> bool:
        """Whether predictions are averages over draws of the linearised outputs."""
        return linearised.noise is None and self.predictive == "monte-carlo"

    def _block(self, x: Tensor, gaussian: GaussianWeights) -> Predictive:
        linearised = linearise(self._fixed, self.loc, rows_of(x, self.noise), self.reference)
        if self._drawn(linearised):
            return ClassMixture(average_log_probs(self._log_probs(linearised, gaussian)))
        covariance, outputs = gaussian.output_covariance(linearised.jacobian), linearised.outputs.double()
        if linearised.noise is not None:
            variance = covariance[..., 0, 0] + linearised.noise.double()
            return NormalMixture(outputs.new_zeros(len(x), 1), outputs.mT, variance.unsqueeze(1))
        return ClassMixture(probit_log_probs(outputs, covariance.diagonal(dim1=-2, dim2=-1)))

    def _log_probs(self, linearised: Linearised, gaussian: GaussianWeights) -> Iterator[Tensor]:
        """Log probabilities [K, N, C] of every draw of the weights, the same draws for every row."""
        noise, outputs = self.noise.copy(), linearised.outputs.double()
        for _ in range(self.draws):
            step = gaussian.step(gaussian.draw(noise))
            yield (outputs + linearised.jacobian.moved(step)).log_softmax(-1)
