"""cFedBayes: several global distributions, of which every client takes the likeliest (journal, Algorithm 3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, final

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.inference.optim import Adam
from pacbayes_fl.methods.clustering import Clustering, memberships
from pacbayes_fl.methods.recipe import ROUNDS, SEARCH_NETWORK, HeldOutChoice, MethodSummary, OneOf, Recipe, Trials
from pacbayes_fl.methods.variational import pfedbayes
from pacbayes_fl.methods.variational.base import (
    EVERYBODY,
    OWN_LABELS,
    OWN_ROWS,
    SEARCH,
    TRIALS,
    ZETAS,
    PersonalPosteriors,
    moments_of,
    towards,
    zeta_among,
)
from pacbayes_fl.methods.variational.pfedbayes import (
    Fit,
    apply_delta_to,
    deltas_of,
    fit_of,
    mean_over_clients,
    start_clients,
    track_prior,
)
from pacbayes_fl.noise import Noise
from pacbayes_fl.options import option
from pacbayes_fl.posteriors.weights.mean_field import MeanField, initial_mean_field
from pacbayes_fl.posteriors.weights.posterior import WeightPosterior
from pacbayes_fl.server import average, clusters
from pacbayes_fl.server.aggregations import Rule
from pacbayes_fl.server.step import Memoryless, State
from pacbayes_fl.tensors import AnyTree


class Server(NamedTuple):
    """Global distributions w^1..w^J, leaves [J, D], the rounds that made them [], and the state of the optimiser."""

    w: MeanField
    rounds: Tensor
    moments: State = Memoryless()


class Client(NamedTuple):
    """State of a client: q and both optimisers' moments, leaves [K, *], and its last cluster [K]."""

    q: AnyTree
    adam_q: Adam[AnyTree]
    adam_w: Adam[AnyTree]
    cluster: Tensor


class Update(NamedTuple):
    """Localised global distributions of clients.

    Args:
        w: leaves [K, D]; moments of q where those are what is sent.
        cluster: where each belongs [K], int64.
        weight: in its cluster's average [K].
        clients: 1 for every client that took part [K].
        fit: leaves [K].
        moved: whether the client has changed its cluster [K], 0 or 1.
    """

    w: AnyTree
    cluster: Tensor
    weight: Tensor
    clients: Tensor
    fit: Fit
    moved: Tensor


@final
@dataclass(frozen=True)
class CFedBayes(Clustering, PersonalPosteriors[Server, Client, Update]):
    """cFedBayes (Algorithm 3, eqs. 44-45 and 54-57); fields as in `variational.base.Variational`, and more.

    Args:
        clusters: number of clusters, J.
        assign_draws: Monte Carlo draws of the expected log likelihood (eq. 45), over all training rows.
        beta: extrapolation of the server: 1 takes the clients' average, more goes beyond it.
        start: how clusters come to differ, which equal ones never would. "uploads": in the first round all clients
            start from one v^0, and the server groups what they send by k-means; "random": every cluster has a v^0 of
            its own, and clients choose from the first round on (eq. 45), which often ends in a poor local optimum.

    Example:
        >>> import torch
        >>> from pacbayes_fl import BayesianMLP, CFedBayes, ClientBatch, FederationPlan, Gaussian, run_rounds
        >>> x = torch.linspace(-1, 1, 8).unsqueeze(1)
        >>> batch = ClientBatch.pad([(x, slope * x[:, 0]) for slope in (-1.0, 1.0, -1.0, 1.0)])
        >>> method = CFedBayes(BayesianMLP((1, 1), Gaussian()), clusters=2)
        >>> first, second, third, fourth = run_rounds(method, batch, FederationPlan(rounds=3)).clients.cluster.tolist()
        >>> first == third, second == fourth, first == second
        (True, True, False)
    """

    clusters: int = option(2, low=1, symbol="J")
    assign_draws: int = option(5, low=1)
    beta: float = option(1.0, above=0, symbol="beta")
    start: Literal["uploads", "random"] = "uploads"

    def init_server(self, generator: torch.Generator) -> Server:
        """Draw v^0, for every cluster its own or one for all."""
        distinct = self.clusters if self.start == "random" else 1
        w = initial_mean_field(self.model, self.init_std, self.init_rho, generator, distinct)
        w = tensors.tree_map(lambda leaf: leaf.expand(self.clusters, -1).clone(), w)
        return Server(w, torch.zeros((), dtype=torch.int64), self.step.start(w))

    def init_clients(self, message: Server, batch: ClientBatch) -> Client:
        """Initialise at the first cluster; a client's first round starts from the cluster that it chooses."""
        first = tensors.tree_map(lambda leaf: leaf[0], message.w)
        start = start_clients(tensors.expand(first, batch.clients), batch.clients, self.aggregation)
        return Client(*start, torch.full_like(start.adam_q.steps, -1))

    def assign(self, message: Server, batch: ClientBatch, noise: Noise) -> Tensor:
        """Choose the cluster under which a client's training rows are likeliest.

        k_i = argmax_k E_{w^k}[ln p(D^i | theta)]      (eq. 45), the same draws for every k

        Args:
            message: leaves [J, D].
            batch: all training rows.
            noise: the clients' streams.

        Returns:
            [K], int64.
        """
        one = tensors.tree_map(lambda leaf: leaf[0], message.w)
        draws = [self.draw(tensors.expand(one, batch.clients), noise) for _ in range(self.assign_draws)]
        scores = []
        with torch.no_grad():
            for k in range(self.clusters):
                w = tensors.expand(tensors.tree_map(lambda leaf, k=k: leaf[k], message.w), batch.clients)
                result = [self.model.log_likelihood(w.weights(draw), batch) for draw in draws]
                scores.append(torch.stack(result).mean(0))
        return torch.stack(scores).argmax(0)

    def client(self, message: Server, state: Client, batch: ClientBatch, noise: Noise) -> tuple[Update, Client]:
        """Choose a cluster, then fit q and let the cluster's w follow (Algorithm 3, ClientUpdate)."""
        cluster = self.assign(message, batch, noise)
        start = tensors.select(message.w, cluster)
        before = pfedbayes.Client(tensors.where(self.is_new(state), start, state.q), state.adam_q, state.adam_w)
        new, w, log_likelihood = track_prior(
            self.model, self.local, self.tracking, before, start, batch, noise, self.draw
        )
        fit = fit_of(self.model, self.local.weight, log_likelihood, new.q, w, start)
        weight = self.weight(batch.size)
        moved = (cluster != state.cluster).to(weight)
        sent = moments_of(new.q) if self.sends_moments else w
        update = Update(sent, cluster, weight, torch.ones_like(weight), fit, moved)
        return update, Client(*new, cluster)

    def server(self, server: Server, update: Update, n_clients: int) -> Server:
        """Average or match every cluster's members, extrapolate, and step; an empty one stays (Algorithm 3)."""
        cluster = self.founded(server.rounds, update.cluster, update.w[0], update.weight)
        if self.sends_moments:
            fitted, weight = clusters.matched(update.w, cluster, update.weight, moments_of(server.w))
            mean = towards(server.w, fitted, self.beta, self.model.stochastic_columns())
        else:
            joined, weight = clusters.mean(update.w, cluster, update.weight, server.w)
            mean = average.extrapolate(server.w, joined, self.beta)
        w, state = self.step(server.w, mean, server.moments, weight > 0)
        return Server(w.bounded(), server.rounds + 1, state)

    def client_deltas(self, message: Server, update: Update) -> AnyTree:
        """Change of w or of the moments in the slot of the client's cluster [K, J, D], 0 elsewhere."""
        moved = deltas_of(update.w, tensors.select(message.w, update.cluster))
        member = torch.nn.functional.one_hot(update.cluster, self.clusters).unsqueeze(-1)
        return tensors.tree_map(lambda leaf: member.to(leaf) * leaf.unsqueeze(1), moved)

    def from_release(self, message: Server, mean: AnyTree, clients: float) -> Update:
        """Move every cluster by J times its slot's mean [1, J, D], in E and E^2 where moments are sent.

        That is the sum over its members divided by c / J, what it would have if all were equally large: how many it
        has is not known, so that a small cluster goes slower than its mean and a large one faster.
        """
        w = apply_delta_to(tensors.tree_map(lambda slots: self.clusters * slots[0], mean), message.w)
        sent = pfedbayes.update_from_release(w)
        cluster = torch.arange(self.clusters, device=sent.weight.device)
        return Update(w, cluster, sent.weight, sent.clients, sent.fit, sent.clients)

    def aggregated(self, message: Server, update: Update, rule: Rule) -> Update:
        """Join every cluster's members; one with fewer than the rule needs stays as it is, as an empty one does."""
        steps, statistics = self.client_deltas(message, update), {"fit": update.fit, "moved": update.moved}
        joined = clusters.by_rule(rule, steps, update.cluster, update.weight, statistics)
        w, cluster = apply_delta_to(joined.step, message.w), torch.arange(self.clusters, device=update.cluster.device)
        return Update(w, cluster, joined.trusted, joined.members, **joined.statistics)

    def train_newcomers(self, message: Server, state: Client, batch: ClientBatch, noise: Noise) -> Client:
        """Choose a cluster, and fit q against it."""
        forked = noise.fork()
        w = tensors.select(message.w, self.assign(message, batch, forked))
        return state._replace(q=self.fit_against(self.refining, w, batch, forked, self.draw, None))

    def global_model(self, message: Server, state: Client, batch: ClientBatch, noise: Noise) -> WeightPosterior:
        """The global distribution of the client's cluster."""
        w = tensors.select(message.w, self.assign(message, batch, noise))
        return self.posterior(w, batch, noise)

    def report(self, server: Server, update: Update) -> Mapping[str, Tensor]:
        """Fit of the clients, how many changed their cluster, and how many clusters have members."""
        means = mean_over_clients(update.fit, update.clients)
        return means | memberships(update.cluster, update.clients, update.moved, self.clusters)


@dataclass(frozen=True)
class ClusterTrials(Trials):
    """How a study chooses the number of clusters.

    Args:
        max_clusters: the largest number of clusters that is tried; all numbers from 1 are.
    """

    max_clusters: int = option(4, low=1)


RECIPE = Recipe(
    "cFedBayes: several global distributions, of which every client takes the likeliest",
    CFedBayes,
    MethodSummary("Bayesian network, mean field", "assignment, svi", "clusters.mean", "w, cluster", "q, two Adams"),
    model="weights",
    presets={"recommended": {"federation": ROUNDS}, "paper": {"federation": EVERYBODY}},
    search={**SEARCH, "method.clusters": OneOf((1, 2, 3, 4)), **SEARCH_NETWORK},
    held_out=(
        zeta_among(*ZETAS)._replace(rounds=TRIALS.trial_rounds),  # half of those that show how many clusters there are
        HeldOutChoice("clusters", lambda options: tuple(range(1, options.max_clusters + 1)), by_default=False),
    ),
    trials=ClusterTrials(trial_rounds=40),
    own_rows=OWN_ROWS,
    own_labels=OWN_LABELS,
)
