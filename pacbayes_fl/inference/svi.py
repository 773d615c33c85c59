"""Stochastic variational inference of many clients at once: steps on the personal posteriors q, and their gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.inference import elbo, turns
from pacbayes_fl.inference.optim import Adam, Optimiser, adam_init, step_
from pacbayes_fl.models.base import WeightModel, default
from pacbayes_fl.models.weights.bayesian_network import BayesianNetwork
from pacbayes_fl.noise import Noise
from pacbayes_fl.options import check, option
from pacbayes_fl.posteriors.weights.by_autograd import ByAutograd
from pacbayes_fl.posteriors.weights.family import AnyFamily, Draw, Precomputed, WeightDistribution
from pacbayes_fl.tensors import AnyTree


@dataclass(frozen=True)
class LocalInference:
    """How a client fits its posterior.

    Args:
        steps: minibatches per round, R; None where `epochs` says how many.
        inner: steps on q per minibatch.
        minibatch: rows, b.
        draws: Monte Carlo draws per step, a.
        rate: learning rate of the steps on q, eta_1.
        zeta: weight of the KL divergence; "certificate" leaves it to clients whose prior stays as it is, each of which
            takes that of a grid which gives it the least bound, and is 1, Bayes' rule, in rounds.
        data_scale: "rows" multiplies the minibatch's log likelihood by m_k / b (eq. 30); "sum" by 1 and "mean" by
            1 / b, as two public codes do.
        noise_std: standard deviation of the draws' eps; 1 but for the public codes, which take 0.001.
        divergence: "forward" is KL(q || w); "reverse" is KL(w || q), as in the FedSI authors' code.
        optimiser: of the steps on q, "adam" or plain gradient descent, "sgd".
        epochs: passes over a client's rows per round, each of ceil(m_k / b) minibatches; instead of `steps`.
    """

    steps: int | None = option(20, low=1, symbol="R")
    inner: int = option(1, low=1)
    minibatch: int = option(50, low=1, symbol="b")
    draws: int = option(1, low=1, symbol="a")
    rate: float = option(1e-3, above=0, symbol="eta_1")
    zeta: float | Literal["certificate"] = option(10.0, above=0, symbol="zeta")
    data_scale: Literal["rows", "sum", "mean"] = "rows"
    noise_std: float = option(1.0, above=0)
    divergence: Literal["forward", "reverse"] = "forward"
    optimiser: Optimiser = "adam"
    epochs: int | None = option(None, low=1)

    def __post_init__(self) -> None:
        """Check the ranges."""
        check(self)
        turns.check(self)

    @property
    def weight(self) -> float:
        """Weight of the KL divergence in a round."""
        return 1.0 if isinstance(self.zeta, str) else self.zeta

    @default
    def scale(self, batch: ClientBatch, rows: ClientBatch) -> Tensor:
        """Factor [K] of the minibatch's log likelihood, in the dtype of float64 until it is used."""
        if self.data_scale == "sum":
            return torch.ones_like(batch.size)
        drawn = rows.size.clamp_min(1.0)
        return batch.size / drawn if self.data_scale == "rows" else 1.0 / drawn

    @default
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
        """Differentiate what a step descends by the parameters of q; here the negative ELBO, as `loss_gradient`.

        The factor of the minibatch's log likelihood is scale [K]. The result is the scaled log likelihood [K], in nats,
        and the gradient, leaves [K, D], which the caller may overwrite.
        """
        if self.divergence == "forward":
            value, _, gradient = loss_gradient(
                model, q, prior, rows, draws, self.weight, scale, precomputed, with_kl=False
            )
            return value, gradient
        q_terms, prior_terms = precomputed  # KL(q || q) has slope 0
        value, _, gradient = loss_gradient(
            model, q, q, rows, draws, self.weight, scale, (q_terms, q_terms), with_kl=False
        )
        backwards = only_stochastic(model, prior_terms.kl_gradient_wrt_prior(q_terms))
        tensors.tree_map(lambda slope, other: slope.add_(other, alpha=self.weight), gradient, backwards)
        return value, gradient


def draw_of(q: WeightDistribution, noise: Noise, std: float = 1.0) -> Draw:
    """Take the random numbers of one draw, shrunk where a public code shrinks them.

    Args:
        q: leaves [K, D].
        noise: the clients' streams.
        std: factor of the normals; another one than 1 is for a mean field only.

    Returns:
        The draw [K, D].
    """
    draw = q.draw(noise)
    return draw if std == 1.0 else draw * std


def loss_gradient(
    model: WeightModel,
    q: AnyFamily,
    prior: AnyFamily,
    rows: ClientBatch,
    draws: Sequence[Draw],
    zeta: float,
    scale: Tensor,
    precomputed: tuple[Precomputed, Precomputed] | None = None,
    with_kl: bool = True,
) -> elbo.LossGradient[AnyFamily]:
    """Differentiate the negative ELBO by the parameters of q.

    Omega_k = -scale_k (1/a) sum_l ln p(y_k | theta_kl) + zeta KL(q_k || w)      (pFedBayes eq. 30, sFedBayes eq. 43)

    For a `BayesianNetwork` autograd goes through the network alone, and the family and its KL divergence are written
    out; any other Pyro program is differentiated as it stands, by `elbo.client_terms`. A family that is a `ByAutograd`
    draws all weights at once, and any program is asked for its log likelihood at these.

    Args:
        model: the likelihood.
        q: leaves [K, D].
        prior: w, leaves [K, D] or [D].
        rows: a minibatch.
        draws: random numbers of each of the a draws [K, D].
        zeta: weight of the KL divergence, positive.
        scale: m_k over the rows of the minibatch [K].
        precomputed: `q.precompute()` and `prior.precompute()`, where the caller has them.
        with_kl: whether to evaluate the KL divergence, which the gradient alone does not need.

    Returns:
        Log likelihood and KL divergence [K], in nats, and the gradient.
    """
    if isinstance(model, BayesianNetwork) or isinstance(q, ByAutograd):
        q_terms, prior_terms = (q.precompute(), prior.precompute()) if precomputed is None else precomputed
        log_likelihood, gradient = _hot_gradient(model, q_terms, prior_terms, rows, draws, zeta, scale)
        kl = divergence(model, q, prior) if with_kl else None
        return elbo.LossGradient(log_likelihood, kl, gradient)
    return elbo.defined_gradient(model, q, prior, rows, draws, zeta, scale)


def divergence(model: WeightModel, q: AnyTree, prior: AnyTree) -> Tensor:
    """KL(q || w) over the weights with uncertainty: the others are numbers, of which no divergence counts.

    Args:
        model: says which they are.
        q: a family with leaves [K, D], or what it has precomputed.
        prior: w, with leaves [K, D] or [D], of the same kind.

    Returns:
        [K], in nats, float64.
    """
    if model.deterministic:
        keep = model.stochastic_columns().to(next(iter(tensors.leaves(q).values())).device)
        q, prior = (tensors.tree_map(lambda leaf: leaf[..., keep], family) for family in (q, prior))
    value: Tensor = q.kl(prior)
    return value


def only_stochastic(model: WeightModel, slopes: AnyFamily) -> AnyFamily:
    """Leave weights without uncertainty out of a gradient: they have no scale and no part in the KL divergence.

    Args:
        model: says which they are.
        slopes: leaves [K, D].

    Returns:
        The same leaves [K, D], zero there.
    """
    if not model.deterministic:
        return slopes
    keep = model.stochastic_columns().to(slopes.loc)  # as numbers, which multiply several times as fast as bools
    return tensors.tree_map(lambda slope: slope * keep, slopes)


def _hot_gradient(
    model: WeightModel,
    q: Precomputed,
    prior: Precomputed,
    rows: ClientBatch,
    draws: Sequence[Draw],
    zeta: float,
    scale: Tensor,
) -> tuple[Tensor, AnyTree]:
    gradient = tensors.tree_map(lambda slope: slope.mul_(zeta), only_stochastic(model, q.kl_gradient(prior)))

    def loss(theta: Tensor) -> Tensor:
        return -scale * model.log_likelihood(theta, rows)

    return -add_mean_gradient(model, q, draws, loss, gradient), gradient


def add_mean_gradient(
    model: WeightModel,
    q: Precomputed,
    draws: Sequence[Draw],
    loss: Callable[[Tensor], Tensor],
    gradient: AnyTree,
) -> Tensor:
    """Add the gradient of a loss of weights, averaged over draws, by the parameters of q, in place.

    Args:
        model: says which weights are uncertain.
        q: `q.precompute()`.
        draws: random numbers of each of the a draws [K, D].
        loss: of weights [K, D], [K].
        gradient: that is added to, leaves [K, D].

    Returns:
        The mean loss [K].
    """
    values = []
    for draw in draws:
        with torch.enable_grad():
            theta = q.weights(draw).requires_grad_(True)
            value = loss(theta)
            (grad_weights,) = torch.autograd.grad(value.sum(), theta)
        grad_weights.mul_(1.0 / len(draws))
        grad_draw = q.vjp(draw, grad_weights)
        if model.deterministic:
            grad_draw = only_stochastic(model, grad_draw)._replace(loc=grad_draw.loc)
        tensors.tree_map(Tensor.add_, gradient, grad_draw)
        values.append(value.detach() / len(draws))
    return torch.stack(values).sum(0)


class Fitting(NamedTuple):
    """A posterior on its way.

    Args:
        q: leaves [K, D], overwritten by every step.
        precomputed: `q.precompute()`, made anew after every step.
        adam: moments of q, overwritten by every step.
    """

    q: AnyTree
    precomputed: Precomputed
    adam: Adam[AnyTree]


def personal_steps(
    model: WeightModel,
    local: LocalInference,
    state: Fitting,
    prior: tuple[AnyTree, Precomputed],
    rows: ClientBatch,
    scale: Tensor,
    noise: Noise,
    draw: Callable[[AnyTree, Noise], Draw],
    free: Tensor | None = None,
    active: Tensor | None = None,
) -> tuple[Fitting, Tensor]:
    """Take `inner` steps on q, in place, on one minibatch.

    Args:
        model: the likelihood.
        local: hyper-parameters.
        state: q and its moments; overwritten.
        prior: w, leaves [K, D] or [D], and `w.precompute()`.
        rows: the minibatch.
        scale: factor of its log likelihood [K].
        noise: the clients' streams.
        draw: takes q and the streams, gives the random numbers of a draw.
        free: [D] or [K, D], 1 for weights that may move and 0 for others; all when None.
        active: bool [K], True for clients that take the steps; all when None.

    Returns:
        The state, and the mean scaled log likelihood [K], in nats; 0 for a client that takes no step.
    """
    q, q_terms, adam = state
    w, w_terms = prior
    total = torch.zeros_like(scale)
    for _ in range(local.inner):
        draws = [draw(q, noise) for _ in range(local.draws)]
        value, gradient = local.slopes(model, q, w, rows, draws, scale, (q_terms, w_terms))
        if free is not None:
            gradient = tensors.tree_map(lambda slope: slope.mul_(free), gradient)
        adam = step_(q, gradient, adam, local.rate, local.optimiser, active)
        q_terms = q.bounded().precompute()
        total += (value if active is None else torch.where(active, value, 0.0)) / local.inner
    return Fitting(q, q_terms, adam), total


def fit(
    model: WeightModel,
    local: LocalInference,
    prior: AnyTree,
    batch: ClientBatch,
    noise: Noise,
    passes: int,
    draw: Callable[[AnyTree, Noise], Draw],
    free: Tensor | None = None,
) -> AnyTree:
    """Fit the posterior of clients that never trained, from the prior and against it; the prior stays as it is.

    Args:
        model: the likelihood.
        local: hyper-parameters.
        prior: w, leaves [K, D]; a client without rows stays there.
        batch: all rows of the clients.
        noise: the clients' streams.
        passes: times the minibatches of a round.
        draw: takes q and the streams, gives the random numbers of a draw.
        free: bool [D] or [K, D], True for weights that may move; all when None.

    Returns:
        q, leaves [K, D].
    """
    # one layout for both: a view's softplus may differ in its last bit, and Adam makes whole steps of such a slope
    prior = tensors.tree_map(Tensor.contiguous, prior)
    q = tensors.tree_map(torch.clone, prior)
    free = None if free is None else free.to(q.loc.dtype)  # numbers multiply several times as fast as bools
    state, against = Fitting(q, q.precompute(), adam_init(q, batch.clients)), (prior, prior.precompute())
    for active in turns.turns(local, batch, passes):
        rows, scale = minibatch(local, batch, noise, q.loc.dtype)
        state, _ = personal_steps(model, local, state, against, rows, scale, noise, draw, free, active)
    return state.q


def minibatch(
    local: LocalInference, batch: ClientBatch, noise: Noise, dtype: torch.dtype
) -> tuple[ClientBatch, Tensor]:
    """Draw a minibatch per client without replacement.

    Args:
        local: gives b and the scale.
        batch: all rows.
        noise: the clients' streams.
        dtype: of the factor.

    Returns:
        The rows, and the factor of their log likelihood [K].
    """
    at = noise.rows(batch.mask, local.minibatch)  # also where all rows are taken: padding must not move later draws
    rows = batch.rows(at) if local.minibatch < batch.mask.shape[1] else batch
    return rows, local.scale(batch, rows).to(dtype)
