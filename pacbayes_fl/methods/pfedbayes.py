"""pFedBayes: the prior of every client is the learned global distribution (journal and ICML papers, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.inference import elbo, svi
from pacbayes_fl.inference.svi import LocalInference
from pacbayes_fl.methods import release
from pacbayes_fl.methods.variational import PriorTracking, Variational, check_beta
from pacbayes_fl.models.base import WeightModel
from pacbayes_fl.noise import Noise
from pacbayes_fl.optim import Adam, adam_, adam_init
from pacbayes_fl.posteriors.family import Draw
from pacbayes_fl.posteriors.mean_field import MeanField, initial_mean_field
from pacbayes_fl.posteriors.weights import WeightPosterior
from pacbayes_fl.server import average


class Server(NamedTuple):
    """The global distribution w, leaves [D]."""

    w: MeanField


class Client(NamedTuple):
    """What a client keeps: its posterior q, and the moments of both optimisers; leaves [K, *]."""

    q: Any
    adam_q: Adam[Any]
    adam_w: Adam[Any]


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
        w: leaves [K, D].
        weight: in the server's average [K].
        clients: number of clients behind a row [K].
        fit: leaves [K].
    """

    w: Any
    weight: Tensor
    clients: Tensor
    fit: Fit


def track_prior(
    model: WeightModel,
    local: LocalInference,
    tracking: PriorTracking,
    state: Client,
    w: Any,
    batch: ClientBatch,
    noise: Noise,
    draw: Callable[[Any, Noise], Draw],
) -> tuple[Client, Any, Tensor]:
    """Alternate steps on q and on w for R minibatches (Algorithm 1, ClientUpdate).

    q descends eq. 30, w descends KL(q || w) with q fixed (eq. 31).

    Args:
        model: the likelihood.
        local: hyper-parameters of the steps on q.
        tracking: hyper-parameters of the steps on w.
        state: of the clients; left as it is.
        w: the global distribution as the clients got it, leaves [K, D]; left as it is.
        batch: the clients' rows.
        noise: their streams.
        draw: takes q and the streams, gives the random numbers of a draw.

    Returns:
        The clients' new state, their w, leaves [K, D], and the mean scaled log likelihood [K], in nats.
    """
    w = tensors.tree_map(torch.clone, w)
    q = tensors.tree_map(torch.clone, w if tracking.restart else state.q)
    adam_q, adam_w = (
        tensors.tree_map(torch.clone, adam) if tracking.keep_moments else adam_init(w, batch.clients)
        for adam in (state.adam_q, state.adam_w)
    )
    mine, theirs = svi.Fitting(q, q.opened(), adam_q), w.opened()
    total = torch.zeros(batch.clients, dtype=q.loc.dtype, device=q.loc.device)
    for _ in range(local.steps):
        rows, scale = svi.minibatch(local, batch, noise, q.loc.dtype)
        mine, log_likelihood = svi.personal_steps(model, local, mine, (w, theirs), rows, scale, noise, draw)
        forward = local.divergence == "forward"
        slope = mine.opened.kl_gradient_of_prior(theirs) if forward else theirs.kl_gradient(mine.opened)
        adam_w = adam_(w, elbo.only_stochastic(model, slope), adam_w, tracking.rate)
        theirs = w.bounded().opened()
        total += log_likelihood / local.steps
    if model.deterministic:  # no divergence draws these along
        keep = model.stochastic_columns().to(w.loc.device)
        w.loc.copy_(torch.where(keep, w.loc, q.loc))
    return Client(q, mine.adam, adam_w), w, total


def fit_of(model: WeightModel, zeta: float, log_likelihood: Tensor, q: Any, own: Any, common: Any) -> Fit:
    """Say how well posteriors fit after a round.

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
    log_likelihood, kl = log_likelihood.double(), elbo.divergence(model, q, own)
    since = kl if own is common else elbo.divergence(model, q, common)
    return Fit(log_likelihood, kl, log_likelihood - zeta * since)


def start_clients(w: Any, clients: int) -> Client:
    """Begin clients at the global distribution, optimisers at rest.

    Args:
        w: leaves [K, D].
        clients: K.

    Returns:
        Leaves [K, *]; no step has been taken, which tells a client that never trained.
    """
    q = tensors.tree_map(torch.clone, w)
    return Client(q, adam_init(q, clients), adam_init(q, clients))


def never_trained(state: Client) -> Tensor:
    """Say which clients have not taken a step: bool [K]."""
    return state.adam_q.steps == 0


def per_client(fit: Fit, clients: Tensor) -> dict[str, Tensor]:
    """Average the numbers of a round over clients, for its record.

    Args:
        fit: of the clients, or sums of it, leaves [K].
        clients: number of clients behind a row [K].

    Returns:
        Means [] over the clients of the round, in nats.
    """
    return {name: value.sum() / clients.sum().clamp_min(1.0) for name, value in fit._asdict().items()}


def stepped(w: Any) -> Update:
    """Make an update of distributions that were released, with equal weights and nothing else told.

    Args:
        w: leaves [J, D].

    Returns:
        Leaves [J, *].
    """
    rows = len(w.loc)
    unknown = release.withheld(w.loc, rows)
    return Update(w, release.ones(w.loc, rows), unknown, Fit(unknown, unknown, unknown))


@final
@dataclass(frozen=True)
class PFedBayes(Variational[Server, Client, Update]):
    """pFedBayes (Algorithm 1, eqs. 5-9 and 29-31); fields as in `methods.variational.Variational`, and one more.

    Args:
        beta: extrapolation of the server.
    """

    beta: float = 1.0

    def __post_init__(self) -> None:
        """Refuse hyper-parameters that mean nothing."""
        super().__post_init__()
        check_beta(self.beta)

    def init_server(self, generator: torch.Generator) -> Server:
        """Draw v^0 = (mu^0, rho^0)."""
        return Server(initial_mean_field(self.model, self.init_std, self.init_rho, generator))

    def init_clients(self, message: Server, batch: ClientBatch) -> Client:
        """Begin at the global distribution."""
        return start_clients(tensors.expand(message.w, batch.clients), batch.clients)

    def client(self, message: Server, state: Client, batch: ClientBatch, noise: Noise) -> tuple[Update, Client]:
        """Fit q and let w follow (Algorithm 1, ClientUpdate)."""
        w = tensors.expand(message.w, batch.clients)
        new, w, log_likelihood = track_prior(self.model, self.local, self.tracking, state, w, batch, noise, self.draw)
        weight = average.client_weight(batch.size, self.weighting)
        fit = fit_of(self.model, self.local.zeta, log_likelihood, new.q, w, message.w)
        return Update(w, weight, torch.ones_like(weight), fit), new

    def server(self, server: Server, update: Update, n_clients: int) -> Server:
        """Average and extrapolate (Algorithm 1, last line)."""
        mean = tensors.weighted_mean(update.w, update.weight)
        return Server(average.extrapolate(server.w, mean, self.beta).bounded())

    def payload(self, message: Server, update: Update) -> MeanField:
        """How far w went in a round, mean and rho [K, D]."""
        moved: MeanField = release.steps(update.w, message.w, self.weighting)
        return moved

    def received(self, message: Server, mean: MeanField, clients: float) -> Update:
        """Go as far as the clients' mean step [1, D]."""
        return stepped(release.arrived(mean, message.w))

    def personalise(self, message: Server, state: Client, batch: ClientBatch, noise: Noise) -> WeightPosterior:
        """Give the client's q; one that never trained fits it against w first."""
        w = tensors.expand(message.w, batch.clients)
        q = self.with_newcomers(state.q, never_trained(state), w, batch, noise.fork())
        return self.posterior(q, batch, noise)

    def global_model(self, message: Server, state: Client, batch: ClientBatch, noise: Noise) -> WeightPosterior:
        """The global distribution w itself, for every client."""
        return self.posterior(tensors.expand(message.w, batch.clients), batch, noise)

    def reduce(self, update: Update) -> Update:
        """Average the clients of a chunk."""
        reduced: Update = average.reduced(update, "w")
        return reduced

    def report(self, server: Server, update: Update) -> Mapping[str, Tensor]:
        """Mean scaled log likelihood, KL divergence and evidence lower bound of the clients."""
        return per_client(update.fit, update.clients)
