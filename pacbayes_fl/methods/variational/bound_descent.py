"""Local steps of a client that descend a PAC-Bayes bound on its risk, in place of the negative ELBO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from pyro.distributions import Categorical
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.bounds import BOUNDS, ClippedNLL, Objective, Premises, SaturatingSquare
from pacbayes_fl.bounds.objective import QUADRATIC, Trainable
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.inference import svi
from pacbayes_fl.inference.svi import LocalInference
from pacbayes_fl.models.base import WeightModel
from pacbayes_fl.options import option
from pacbayes_fl.posteriors.weights.family import Draw, Precomputed
from pacbayes_fl.tensors import AnyTree


@dataclass(frozen=True)
class BoundDescent(LocalInference):
    """Steps of a client down a bound on its risk, n B(L^(q), KL(q || w)), where other methods go up the ELBO.

    L^ is of the clipped negative log likelihood of labels, or of 1 - exp(-e^2) of real targets, on the minibatch.

    Args:
        bound: on whose value clients are trained.
        delta: probability with which it may fail.
        p_min: probability of a label below which nothing gets worse.
        temperature: beta of Catoni's form over the client's rows.
    """

    bound: Trainable = QUADRATIC
    delta: float = option(0.025, above=0, below=1)
    p_min: float = option(1e-5, above=0, below=1)
    temperature: float = option(1.0, above=0)

    def slopes(
        self,
        model: WeightModel,
        q: AnyTree,
        prior: AnyTree,
        rows: ClientBatch,
        draws: Sequence[Draw],
        scale: Tensor,
        precomputed: tuple[Precomputed, Precomputed],
    ) -> tuple[Tensor, AnyTree]:
        """Differentiate the bound by the chain rule, from its slopes in risk and divergence; with scale [K] as m_k / b.

        The result is -n L^ [K], and the gradient.
        """

        def risk(theta: Tensor) -> Tensor:
            one = model.observation(theta, rows)
            labels = isinstance(one, Categorical)
            losses = ClippedNLL(self.p_min)(one.logits, rows.y) if labels else SaturatingSquare()(one.mean, rows.y)
            return torch.where(rows.mask, losses, 0.0).sum(1) / rows.size.clamp_min(1.0)

        q_terms, prior_terms = precomputed
        of_risk = tensors.tree_map(torch.zeros_like, q)
        value = svi.add_mean_gradient(model, q_terms, draws, risk, of_risk)
        n = (scale.double() * rows.size).round().clamp_min(1.0)
        beta = {"beta": self.temperature * n} if "beta" in BOUNDS[self.bound].needs else {}
        bound = Objective(BOUNDS[self.bound], n, self.delta, Premises(loss=ClippedNLL(self.p_min)), beta)
        _, *slopes = bound.slopes(value, svi.divergence(model, q_terms, prior_terms).clamp_min(0.0))
        of_kl = svi.only_stochastic(model, q_terms.kl_gradient(prior_terms))

        by_risk, by_kl = (n * slope for slope in slopes)

        def chained(data: Tensor, divergence: Tensor) -> Tensor:
            shape = (-1, *[1] * (data.dim() - 1))
            return data.mul_(by_risk.to(data).view(shape)).addcmul_(divergence, by_kl.to(data).view(shape))

        return -n * value, tensors.tree_map(chained, of_risk, of_kl)
