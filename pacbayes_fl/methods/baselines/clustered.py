"""IFCA (Ghosh et al., NeurIPS 2020) and FeSEM (Xie et al., 2022): several global networks, each client has one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple, final

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import StudyError
from pacbayes_fl.inference import map_estimate
from pacbayes_fl.inference.map_estimate import LocalDescent
from pacbayes_fl.methods import private_steps
from pacbayes_fl.methods.baselines.averaging import Server
from pacbayes_fl.methods.baselines.point import BPFED_BASELINES, PointEstimate, initial_weights, mean_loss
from pacbayes_fl.methods.clustering import Clustering, memberships
from pacbayes_fl.methods.options import Paper, part
from pacbayes_fl.methods.recipe import PAPER_ROUNDS, ROUNDS, SEARCH_NETWORK, MethodSummary, OneOf, Recipe
from pacbayes_fl.noise import Noise
from pacbayes_fl.options import option
from pacbayes_fl.posteriors.weights.posterior import WeightPosterior
from pacbayes_fl.server import average, clusters
from pacbayes_fl.server.aggregations import AggregationRule, Rule
from pacbayes_fl.server.step import SERVER_STEP, Memoryless, ServerStep, State


class Centres(NamedTuple):
    """Global weights theta [J, D], the rounds that made them [], and the state of the server's optimiser."""

    theta: Tensor
    rounds: Tensor
    moments: State = Memoryless()


class Client(NamedTuple):
    """State of a client: its last weights [K, D], of IFCA [K, 0], and its last cluster [K], -1 of one that is new."""

    theta: Tensor
    cluster: Tensor


class Update(NamedTuple):
    """Locally trained weights of clients.

    Args:
        theta: [K, D].
        cluster: where each belongs [K], int64.
        weight: in its cluster's average [K].
        clients: 1 for every client that took part [K].
        loss: mean negative log likelihood per row over the local steps [K], in nats.
        moved: whether the client has changed its cluster [K], 0 or 1.
    """

    theta: Tensor
    cluster: Tensor
    weight: Tensor
    clients: Tensor
    loss: Tensor
    moved: Tensor


@final
@dataclass(frozen=True)
class Clustered(Clustering, PointEstimate[Centres, Centres, Client, Update]):
    """Clients train the network of their cluster, and the server averages every cluster's members.

    IFCA (Algorithm 1): j_k = argmin_j F_k(theta_j), the loss of the client's training rows.
    FeSEM (eqs. 5-7): r_k = argmin_j |theta_k - c_j|^2, from what the client sent last; one that never trained chooses
    by the loss. A client's E-step on what it sends, against the centres that it was sent, is the server's E-step.

    Args:
        model: the likelihood.
        local: steps of a client.
        clusters: number of clusters, J.
        assignment: clients choose by the "loss" of their rows (IFCA) or by the distance of their "weights" (FeSEM).
        averaging: of the clusters' "members", or over "all" clients of the round, sum_members (theta_k - theta_j) / m,
            which with one local step is IFCA's gradient averaging.
        start: how clusters come to differ, which equal ones never would. "uploads": in the first round all clients
            start from the same weights, and the server groups what they send by k-means; "random": every cluster has
            its own start, as in the papers, so that all clients may choose the same one for ever.
        weighting: of clients in their cluster's average.
        step: how far the server goes towards the averages.
        init_std: spread of the initial weights.
    """

    personal_model: ClassVar[str] = "personal models are those of the client's cluster"

    local: LocalDescent = part(
        LocalDescent,
        paper={
            **BPFED_BASELINES,
            "rate": Paper(0.01, "pFedBayes, section 6.2, of FedAvg; that of IFCA and FeSEM is not stated"),
            "optimiser": Paper("sgd", "Ghosh et al., Algorithm 1"),
        },
    )
    clusters: int = option(2, low=1, symbol="J", paper=Paper(2, "pFedBayes journal, Table 3"))
    assignment: Literal["loss", "weights"] = "loss"
    averaging: Literal["members", "all"] = "members"
    start: Literal["uploads", "random"] = option("uploads", paper=Paper("random", "Ghosh et al., section 6"))
    weighting: average.Weighting = option(
        "rows", paper=Paper("uniform", "Ghosh et al., Algorithm 1; Xie et al., eq. 7")
    )
    step: ServerStep = part(ServerStep, names=SERVER_STEP)
    init_std: float = option(0.1, above=0)

    def init_server(self, generator: torch.Generator) -> Centres:
        """Draw the initial weights, for every cluster its own or one for all."""
        drawn = range(self.clusters if self.start == "random" else 1)
        theta = torch.stack([initial_weights(self.model, self.init_std, generator) for _ in drawn])
        theta = theta.expand(self.clusters, -1).clone()
        return Centres(theta, torch.zeros((), dtype=torch.int64), self.step.start(theta))

    def init_clients(self, message: Centres, batch: ClientBatch) -> Client:
        """Belong to no cluster."""
        cluster = torch.full_like(batch.size, -1, dtype=torch.int64)
        return Client(self._kept(tensors.expand(message.theta[0], batch.clients)).clone(), cluster)

    def broadcast(self, server: Centres) -> Centres:
        """Send the weights of all clusters."""
        return Centres(server.theta, server.rounds)

    def assign(self, message: Centres, state: Client, batch: ClientBatch) -> Tensor:
        """Choose the cluster of every client, of equally good ones the first: [K], int64."""
        centres = message.theta.unbind(0)
        with torch.no_grad():
            scores = [self.model.log_likelihood(tensors.expand(one, batch.clients), batch) for one in centres]
        cluster = torch.stack(scores).argmax(0)
        if self.assignment == "loss":
            return cluster
        return torch.where(state.cluster < 0, cluster, clusters.nearest(state.theta, message.theta))

    def client(self, message: Centres, state: Client, batch: ClientBatch, noise: Noise) -> tuple[Update, Client]:
        """Train the weights of the client's cluster."""
        cluster = self.assign(message, state, batch)
        theta, _, loss = map_estimate.fit(self.model, self.local, message.theta[cluster], batch, noise)
        if self.assignment == "weights":
            cluster = clusters.nearest(theta, message.theta)
        weight = self.weight(batch.size)
        moved = (cluster != state.cluster).to(weight)
        update = Update(theta, cluster, weight, torch.ones_like(weight), loss.double(), moved)
        return update, Client(self._kept(theta), cluster)

    def weight(self, rows: Tensor) -> Tensor:
        """As `weighting` says, of rows [K]: [K]."""
        return average.client_weight(rows, self.weighting)

    def server(self, server: Centres, update: Update, n_clients: int) -> Centres:
        """Average every cluster's members, and step there; an empty one stays."""
        cluster = self.founded(server.rounds, update.cluster, update.theta, update.weight)
        mean, weight = clusters.mean(update.theta, cluster, update.weight, server.theta)
        if self.averaging == "all":
            share = (weight / weight.sum().clamp_min(torch.finfo(weight.dtype).tiny)).to(server.theta).unsqueeze(1)
            mean = torch.lerp(server.theta, mean, share)
        theta, moments = self.step(server.theta, mean, server.moments, weight > 0)
        return Centres(theta, server.rounds + 1, moments)

    def client_deltas(self, message: Centres, update: Update) -> Server:
        """Change of the weights in the slot of the client's cluster [K, J, D], 0 elsewhere."""
        step = update.theta - message.theta[update.cluster]
        member = torch.nn.functional.one_hot(update.cluster, self.clusters).unsqueeze(-1)
        return Server(member.to(step) * step.unsqueeze(1))

    def check_private(self) -> None:
        """Refuse a start from k-means over single clients' uploads, and weights by rows."""
        self.check_withheld()
        private_steps.alike(self.weighting)

    def from_release(self, message: Centres, mean: Server, clients: float) -> Update:
        """Move every cluster by J times its slot's mean [1, J, D]: the sum over its members divided by c / J.

        With averaging over all clients that is exact; how many members a cluster has is not known.
        """
        theta = message.theta + self.clusters * mean.theta[0]
        weight, unknown = (make(theta, self.clusters) for make in (private_steps.unit_weights, private_steps.unknown))
        return Update(theta, torch.arange(self.clusters, device=theta.device), weight, unknown, unknown, unknown)

    def check_members(self, rule: AggregationRule) -> None:
        """Refuse sums in place of means."""
        if self.averaging == "all":
            what = f"averaging = 'all' sums the steps of members, and aggregate = {rule.name!r} joins them to one"
            raise StudyError(what, hint="method.averaging = 'members'")

    def aggregated(self, message: Centres, update: Update, rule: Rule) -> Update:
        """Join every cluster's members; one with fewer than the rule needs stays as it is, as an empty one does."""
        steps, statistics = self.client_deltas(message, update), {"loss": update.loss, "moved": update.moved}
        joined = clusters.by_rule(rule, steps, update.cluster, update.weight, statistics)
        cluster = torch.arange(self.clusters, device=update.cluster.device)
        theta = message.theta + joined.step.theta
        return Update(theta, cluster, joined.trusted, joined.members, **joined.statistics)

    def personalise(self, message: Centres, state: Client, batch: ClientBatch, noise: Noise) -> WeightPosterior:
        """Give the weights of the client's cluster."""
        theta = message.theta[self.assign(message, state, batch)]
        return self.posterior(theta, batch, noise)

    def global_model(self, message: Centres, state: Client, batch: ClientBatch, noise: Noise) -> WeightPosterior:
        """The weights of the client's cluster."""
        return self.personalise(message, state, batch, noise)

    def report(self, server: Centres, update: Update) -> Mapping[str, Tensor]:
        """Mean training loss, how many clients changed their cluster, and how many clusters have members."""
        return mean_loss(update) | memberships(update.cluster, update.clients, update.moved, self.clusters)

    def _kept(self, theta: Tensor) -> Tensor:
        """What a client keeps of its weights [K, D]: all of them, or nothing [K, 0]."""
        return theta if self.assignment == "weights" else theta[:, :0]


RECIPE = Recipe(
    "IFCA: several global networks, of which every client takes the one that fits its rows best",
    Clustered,
    MethodSummary("network", "assignment, map_estimate.fit", "clusters.mean", "weights, cluster", "cluster"),
    model="weights",
    presets={
        "recommended": {"federation": ROUNDS},
        "paper": {"federation": PAPER_ROUNDS},
        "authors-code": {
            "method": {
                **{"steps": 10, "minibatch": 100_000, "rate": 0.1, "optimiser": "sgd"},  # of all rows
                **{"start": "random", "weighting": "uniform"},
            },
            "federation": {"rounds": 300},
        },
    },
    search={"method.clusters": OneOf((1, 2, 3, 4)), **SEARCH_NETWORK},
    fixed=("assignment",),
)

FESEM = replace(
    RECIPE,
    title="FeSEM: several global networks, of which every client takes the one next to its own",
    summary=MethodSummary("network", "E-step, map_estimate.fit", "clusters.mean", "weights, cluster", "weights"),
    presets={
        **RECIPE.presets,
        "authors-code": {
            "method": {
                **{"steps": None, "epochs": 10, "minibatch": 10, "rate": 0.03, "optimiser": "sgd"},
                **{"start": "random", "weighting": "uniform"},
            },
            "federation": PAPER_ROUNDS,
        },
    },
    variant={"assignment": "weights"},
    fixed=("assignment", "averaging"),
)
