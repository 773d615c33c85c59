"""pFedBayes: the prior of every client is the learned global distribution (journal and ICML papers, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import StudyError
from pacbayes_fl.inference import svi, turns
from pacbayes_fl.inference.optim import Adam, adam_init, step_
from pacbayes_fl.inference.svi import LocalInference
from pacbayes_fl.methods import private_steps
from pacbayes_fl.methods.options import Paper
from pacbayes_fl.methods.recipe import PAPER_ROUNDS, ROUNDS, SEARCH_NETWORK, MethodSummary, Recipe
from pacbayes_fl.methods.variational.base import (
    EVERYBODY,
    OWN_LABELS,
    OWN_ROWS,
    PUBLIC_CODE,
    SEARCH,
    TRIALS,
    ZETAS,
    Aggregation,
    PersonalPosteriors,
    PriorTracking,
    moments_of,
    towards,
    zeta_among,
)
from pacbayes_fl.models.base import WeightModel
from pacbayes_fl.noise import Noise
from pacbayes_fl.options import OpenNames, option
from pacbayes_fl.posteriors.weights.families import FAMILIES, Family
from pacbayes_fl.posteriors.weights.family import Draw, VariationalFamily
from pacbayes_fl.posteriors.weights.mean_field import Diagonal
from pacbayes_fl.posteriors.weights.posterior import WeightPosterior
from pacbayes_fl.server import average, moments
from pacbayes_fl.server.moments import Moments
from pacbayes_fl.server.step import Memoryless, State
from pacbayes_fl.tensors import AnyTree


class Server(NamedTuple):
    """The global distribution w, leaves [*] of one of the method's family, and the state of the server's optimiser."""

    w: AnyTree
    moments: State = Memoryless()


class Client(NamedTuple):
    """State of a client: its posterior q, and the moments of both optimisers; leaves [K, *]."""

    q: AnyTree
    adam_q: Adam[AnyTree]
    adam_w: Adam[AnyTree]


class Fit(NamedTuple):
    """How well posteriors fit, the numbers of a record.

    Args:
        log_likelihood: mean over the local steps, scaled as the loss is [K], in nats.
        kl: KL(q || w) after the last step, from the client's own w [K], in nats.
        elbo: log_likelihood - zeta KL(q || w) from the w that the client got [K], in nats: its term of the federation's
            evidence lower bound, whose w is the same for all.
    """

    log_likelihood: Tensor
    kl: Tensor
    elbo: Tensor


class Update(NamedTuple):
    """Localised global distributions of clients, or their mean with the sums of the rest.

    Args:
        w: leaves [K, D]; moments of q where those are what is sent.
        weight: in the server's average [K].
        clients: number of clients behind a row [K].
        fit: leaves [K].
    """

    w: AnyTree
    weight: Tensor
    clients: Tensor
    fit: Fit


def track_prior(
    model: WeightModel,
    local: LocalInference,
    tracking: PriorTracking,
    state: Client,
    w: AnyTree,
    batch: ClientBatch,
    noise: Noise,
    draw: Callable[[AnyTree, Noise], Draw],
    follows: Tensor | None = None,
) -> tuple[Client, AnyTree, Tensor]:
    """Alternate steps on q and on w for R minibatches (Algorithm 1, ClientUpdate).

    q descends eq. 30, w descends KL(q || w) with q fixed (eq. 31). Clients that keep no moments of w leave it alone.

    Args:
        model: the likelihood.
        local: hyper-parameters of the steps on q.
        tracking: hyper-parameters of the steps on w.
        state: of the clients; left as it is.
        w: the global distribution as the clients got it, leaves [K, D]; left as it is.
        batch: the clients' rows.
        noise: their streams.
        draw: takes q and the streams, gives the random numbers of a draw.
        follows: bool [D], True for weights whose w follows; all with uncertainty when None.

    Returns:
        The clients' new state, their w, leaves [K, D], and the mean scaled log likelihood [K], in nats.
    """
    w = tensors.tree_map(torch.clone, w)
    q = tensors.tree_map(torch.clone, w if tracking.restart else state.q)
    adam_q, adam_w = (
        tensors.tree_map(torch.clone if tracking.keep_moments else torch.zeros_like, adam)
        for adam in (state.adam_q, state.adam_w)
    )
    follows = None if follows is None else follows.to(w.loc)  # numbers multiply several times as fast as bools
    tracks = all(moment.shape == leaf.shape for moment, leaf in zip(adam_w.first, w, strict=True))
    fitting, w_terms = svi.Fitting(q, q.precompute(), adam_q), w.precompute()
    total = torch.zeros(batch.clients, dtype=q.loc.dtype, device=q.loc.device)
    for active in turns.turns(local, batch):
        rows, scale = svi.minibatch(local, batch, noise, q.loc.dtype)
        fitting, log_likelihood = svi.personal_steps(
            model, local, fitting, (w, w_terms), rows, scale, noise, draw, active=active
        )
        total += log_likelihood
        if not tracks:
            continue
        forward = local.divergence == "forward"
        slope = (
            fitting.precomputed.kl_gradient_wrt_prior(w_terms) if forward else w_terms.kl_gradient(fitting.precomputed)
        )
        slope = svi.only_stochastic(model, slope)
        if follows is not None:
            slope = tensors.tree_map(lambda leaf: leaf * follows, slope)
        adam_w = step_(w, slope, adam_w, tracking.rate, tracking.optimiser, active)
        w_terms = w.bounded().precompute()
    if model.deterministic:  # no divergence draws these along
        keep = model.stochastic_columns().to(w.loc.device)
        w.loc.copy_(torch.where(keep, w.loc, q.loc))
    return Client(q, fitting.adam, adam_w), w, turns.mean_over(local, batch, total)


def fit_of(model: WeightModel, zeta: float, log_likelihood: Tensor, q: AnyTree, own: AnyTree, common: AnyTree) -> Fit:
    """Fit of the posteriors after a round.

    Args:
        model: says which weights are uncertain.
        zeta: weight of the KL divergence.
        log_likelihood: mean over the local steps, scaled as the loss is [K], in nats.
        q: after the last step, leaves [K, D].
        own: the clients' own w after it, leaves [K, D].
        common: w as the clients got it, leaves [D] or [K, D].

    Returns:
        Leaves [K], float64.
    """
    log_likelihood, kl = log_likelihood.double(), svi.divergence(model, q, own)
    since = kl if own is common else svi.divergence(model, q, common)
    return Fit(log_likelihood, kl, log_likelihood - zeta * since)


def start_clients(w: AnyTree, clients: int, aggregation: Aggregation) -> Client:
    """Initialise clients at the global distribution, with zero optimiser moments.

    Args:
        w: leaves [K, D].
        clients: K.
        aggregation: with "moments" clients take no steps on w, and keep none of their moments: leaves [K, 0].

    Returns:
        Leaves [K, *]; no step has been taken, which tells a client that never trained.
    """
    q = tensors.tree_map(torch.clone, w)
    followed = q if aggregation != "moments" else tensors.tree_map(lambda leaf: leaf[:, :0], q)
    return Client(q, adam_init(q, clients), adam_init(followed, clients))


def mean_over_clients(fit: Fit, clients: Tensor) -> dict[str, Tensor]:
    """Average the numbers of a round over clients, for its record.

    Args:
        fit: of the clients, or sums of it, leaves [K].
        clients: number of clients behind a row [K].

    Returns:
        Means [] over the clients of the round, in nats.
    """
    return {name: value.sum() / clients.sum().clamp_min(1.0) for name, value in fit._asdict().items()}


def deltas_of(sent: AnyTree, known: AnyTree) -> AnyTree:
    """Difference of a distribution, or of the moments of q, from a public one.

    Args:
        sent: leaves [K, D].
        known: leaves [D] or [K, D].

    Returns:
        Leaves [K, D], whose mean `apply_delta_to` adds to the public one.
    """
    if isinstance(sent, Moments):
        return moments.deviations(sent, moments_of(known))
    return private_steps.deltas(sent, known)


def apply_delta_to(mean: AnyTree, known: AnyTree) -> AnyTree:
    """Add the mean of the clients' `deltas_of` to the public distribution.

    Args:
        mean: leaves [J, D].
        known: leaves [D] or [J, D].

    Returns:
        Leaves [J, D].
    """
    if isinstance(mean, Moments):
        return moments.from_deviations(mean, moments_of(known))
    return private_steps.apply_delta(mean, known)


def update_from_release(w: AnyTree) -> Update:
    """Build the update from released distributions, with unit weights and NaN for all other numbers.

    Args:
        w: distributions or their moments, leaves [J, D].

    Returns:
        Leaves [J, *].
    """
    like, rows = w[0], len(w[0])
    unknown = private_steps.unknown(like, rows)
    return Update(w, private_steps.unit_weights(like, rows), unknown, Fit(unknown, unknown, unknown))


@dataclass(frozen=True)
class PFedBayes(PersonalPosteriors[Server, Client, Update]):
    """pFedBayes (Algorithm 1, eqs. 5-9 and 29-31); fields as in `methods.variational.base.Variational`, and some more.

    The server averages unconstrained parameters, coordinate by coordinate: mu and rho of the paper's mean field; of a
    full covariance mu, and its Cholesky factor with the diagonal before softplus; of a low rank its factor likewise.

    Args:
        beta: extrapolation of the server: 1 takes the clients' average, more goes beyond it.
        family: of q and w: the paper's "mean-field", Gaussians of "full-rank" or "low-rank" covariance, or one of your
            own, such as "mine.py:MY_FAMILY" with one of `Family.from_distribution`, which a program gives itself; all
            but the first with gradients by automatic differentiation.
        rank: directions of a "low-rank" covariance.

    Example:
        >>> import torch
        >>> from pacbayes_fl import BayesianMLP, ClientBatch, FederationPlan, Gaussian, PFedBayes, join, run_rounds
        >>> x = torch.linspace(-1, 1, 8).unsqueeze(1)
        >>> batch = ClientBatch.pad([(x, k * x[:, 0]) for k in range(3)])
        >>> method = PFedBayes(BayesianMLP((1, 4, 1), Gaussian(noise_std=0.5)))
        >>> server = run_rounds(method, batch, FederationPlan(rounds=2)).server
        >>> variance = join(method, server, batch, seed=0).predict(batch.x).variance
        >>> variance.shape, bool((variance > 0.5**2).all())  # uncertain weights beside the noise
        (torch.Size([3, 8]), True)
    """

    beta: float = option(1.0, above=0, symbol="beta")
    family: str | VariationalFamily = option(
        "mean-field", names=lambda: OpenNames(FAMILIES), paper=Paper("mean-field", "eqs. 7-8")
    )
    rank: int = option(10, low=1)

    def __post_init__(self) -> None:
        """Check the ranges, and that family, model and upload are compatible."""
        super().__post_init__()
        self.distributions.check(self.model)
        if isinstance(self.distributions, Diagonal):
            return
        if self.sends_moments or self.local.noise_std != 1.0:
            what = f"aggregation = {self.aggregation!r} and noise_std = {self.local.noise_std:g} are of a mean field"
            hint = "aggregation = 'tracked', noise_std = 1"
            raise StudyError(f"{what}, and the family is {self.distributions}", hint=hint)

    @property
    def distributions(self) -> VariationalFamily:
        """The family of q and w."""
        return Family.named(self.family, self.rank) if isinstance(self.family, str) else self.family

    def init_server(self, generator: torch.Generator) -> Server:
        """Draw v^0 = (mu^0, rho^0), and the family's other parameters."""
        w = self.distributions.initial(self.model, self.init_std, self.init_rho, generator)
        return Server(w, self.step.start(w))

    def init_clients(self, message: Server, batch: ClientBatch) -> Client:
        """Initialise at the global distribution."""
        return start_clients(tensors.expand(message.w, batch.clients), batch.clients, self.aggregation)

    def client(self, message: Server, state: Client, batch: ClientBatch, noise: Noise) -> tuple[Update, Client]:
        """Fit q and let w follow (Algorithm 1, ClientUpdate)."""
        w = tensors.expand(message.w, batch.clients)
        new, w, log_likelihood = track_prior(self.model, self.local, self.tracking, state, w, batch, noise, self.draw)
        weight = self.weight(batch.size)
        fit = fit_of(self.model, self.local.weight, log_likelihood, new.q, w, message.w)
        sent = moments_of(new.q) if self.sends_moments else w
        return Update(sent, weight, torch.ones_like(weight), fit), new

    def server(self, server: Server, update: Update, n_clients: int) -> Server:
        """Average and extrapolate (Algorithm 1, last line), or match moments, and step there."""
        if self.sends_moments:
            result = moments.match(update.w, update.weight)
            mean = towards(server.w, result, self.beta, self.model.stochastic_columns())
        else:
            mean = average.extrapolate(server.w, tensors.weighted_mean(update.w, update.weight), self.beta)
        w, state = self.step(server.w, mean, server.moments)
        return Server(w.bounded(), state)

    def client_deltas(self, message: Server, update: Update) -> AnyTree:
        """How far w went in a round, mean and rho [K, D]; or how the moments of q deviate from those of w."""
        return deltas_of(update.w, message.w)

    def from_release(self, message: Server, mean: AnyTree, clients: float) -> Update:
        """Apply the released mean step [1, D]."""
        return update_from_release(apply_delta_to(mean, message.w))

    def global_model(self, message: Server, state: Client, batch: ClientBatch, noise: Noise) -> WeightPosterior:
        """The global distribution w itself, for every client."""
        return self.posterior(tensors.expand(message.w, batch.clients), batch, noise)

    def footprint(self, rows: int) -> int:
        """Numbers per client, as the model and the family count them."""
        return self.model.footprint(rows) + self.distributions.held(self.model.dim)

    def about_own(self) -> dict[str, str]:
        """The family where it is another one than the paper's, and the path that its gradient takes."""
        if isinstance(self.distributions, Diagonal):
            return {}
        return {"family": str(self.distributions), "inference": "KL and gradients by autograd"}

    def reduce(self, update: Update) -> Update:
        """Average the clients of a chunk."""
        join = moments.match if self.sends_moments else tensors.weighted_mean
        return average.reduced(update, "w", join)

    def report(self, server: Server, update: Update) -> Mapping[str, Tensor]:
        """Mean scaled log likelihood, KL divergence and evidence lower bound of the clients."""
        return mean_over_clients(update.fit, update.clients)


RECIPE = Recipe(
    "pFedBayes: the prior of every client is the learned global distribution",
    PFedBayes,
    MethodSummary("Bayesian network, mean field", "svi", "average.extrapolate", "w", "q, two Adams"),
    model="weights",
    presets={
        "recommended": {"federation": ROUNDS},
        "paper": {"federation": EVERYBODY},
        "authors-code": {"method": {**PUBLIC_CODE, "zeta": 0.5, "data_scale": "sum"}, "federation": PAPER_ROUNDS},
    },
    search={**SEARCH, **SEARCH_NETWORK},
    held_out=(zeta_among(*ZETAS),),
    trials=TRIALS,
    own_rows=OWN_ROWS,
    own_labels=OWN_LABELS,
)
