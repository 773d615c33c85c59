"""Clustered federated learning (Sattler et al., TNNLS 2020): one network, split where clients pull it apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, final

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import PrivacyError
from pacbayes_fl.inference import map_estimate
from pacbayes_fl.methods.base import in_range
from pacbayes_fl.methods.baselines.clustered import Update
from pacbayes_fl.methods.baselines.point import PointEstimate, initial_weights, mean_loss
from pacbayes_fl.methods.clustering import memberships
from pacbayes_fl.methods.options import Paper
from pacbayes_fl.methods.recipe import PAPER_ROUNDS, ROUNDS, SEARCH_NETWORK, LogUniform, MethodSummary, Recipe
from pacbayes_fl.noise import Noise
from pacbayes_fl.options import option
from pacbayes_fl.posteriors.weights.posterior import WeightPosterior
from pacbayes_fl.server import average, clusters

_TINY = torch.finfo(torch.float64).tiny


class Server(NamedTuple):
    """What the server holds: room for J clusters, of which the first ones are in use.

    Args:
        theta: weights of the clusters [J, D].
        parent: cluster that a cluster was split from [J], int64; -1 of the first one and of those not in use.
        stay: mean direction of the steps of those that stayed in the parent, at the split [J, D].
        leave: of those that left [J, D].
        used: number of clusters []; int64.
        scale: mean length of the steps of the first round [], float64.
    """

    theta: Tensor
    parent: Tensor
    stay: Tensor
    leave: Tensor
    used: Tensor
    scale: Tensor


class Client(NamedTuple):
    """What a client keeps.

    Args:
        direction: of its last step [K, D], of length 1.
        cluster: its last cluster [K], int64; -1 of a new client.
        seen: number of clusters that there were then [K], int64.
    """

    direction: Tensor
    cluster: Tensor
    seen: Tensor


@final
@dataclass(frozen=True)
class FedCFL(PointEstimate[Server, Server, Client, Update]):
    """FedCFL (Algorithms 1 and 4): a cluster whose mean step is short while some client's is long is split in two.

    |mean_k step_k| < eps_1 and max_k |step_k| > eps_2, and then the two sides whose largest cosine across is smallest,
    alpha, if gamma < sqrt((1 - alpha) / 2). One cluster is split in a round. The server sends the mean directions of
    both sides, by which clients find theirs; it splits only where all that sent a step do. A client that never trained
    takes the cluster that fits its rows best (the paper trains it down the tree, for which parents' weights are kept).

    Args:
        model: the likelihood.
        local: steps of a client.
        max_clusters: number of clusters that there is room for.
        mean_below: eps_1, in the unit of `relative`; 0 never splits.
        longest_above: eps_2, in the same unit.
        gamma: bound on how far apart the steps of alike clients are; 0 splits whatever the angle.
        relative: lengths are in units of the mean length of the first round's steps, instead of plain ones.
        weighting: of clients in their cluster's average.
        init_std: spread of the initial weights.
    """

    personal_model: ClassVar[str] = "personal models are those of the client's cluster"

    max_clusters: int = option(4, low=1)
    mean_below: float = option(0.3, low=0, symbol="eps_1")
    longest_above: float = option(0.5, low=0, symbol="eps_2")
    gamma: float = option(0.0, low=0, high=1, symbol="gamma_max")
    relative: bool = option(True, paper=Paper(False, "Sattler et al., Algorithm 1"))
    weighting: average.Weighting = option("rows", paper=Paper("rows", "Sattler et al., eq. 4"))
    init_std: float = option(0.1, above=0)

    def init_server(self, generator: torch.Generator) -> Server:
        """Draw the weights of the only cluster."""
        theta = initial_weights(self.model, self.init_std, generator).expand(self.max_clusters, -1).clone()
        parent = torch.full((self.max_clusters,), -1)
        scale = torch.zeros((), dtype=torch.float64)
        return Server(
            theta, parent, torch.zeros_like(theta), torch.zeros_like(theta), torch.ones_like(parent[0]), scale
        )

    def init_clients(self, message: Server, batch: ClientBatch) -> Client:
        """Belong to no cluster."""
        nowhere = torch.full_like(batch.size, -1, dtype=torch.int64)
        return Client(torch.zeros_like(tensors.expand(message.theta[0], batch.clients)), nowhere, nowhere.clone())

    def broadcast(self, server: Server) -> Server:
        """Send the clusters and how they were split."""
        return server

    def assign(self, message: Server, state: Client, batch: ClientBatch) -> Tensor:
        """Follow the splits since the client's last round; the cluster of least loss for a new one: [K], int64."""
        with torch.no_grad():
            scores = [self.model.log_likelihood(tensors.expand(c, batch.clients), batch) for c in message.theta]
        fits = torch.stack(scores, 1)
        there = torch.arange(self.max_clusters, device=fits.device) < message.used
        cluster = torch.where(state.cluster < 0, torch.where(there, fits, -torch.inf).argmax(1), state.cluster)
        left = (state.direction @ message.leave.T) > (state.direction @ message.stay.T)  # [K, J]
        for j in range(1, self.max_clusters):
            news = (state.cluster >= 0) & (state.seen <= j) & there[j] & (cluster == message.parent[j])
            cluster = torch.where(news & left[:, j], j, cluster)
        return cluster

    def client(self, message: Server, state: Client, batch: ClientBatch, noise: Noise) -> tuple[Update, Client]:
        """Train the weights of the client's cluster."""
        cluster = self.assign(message, state, batch)
        start = message.theta[cluster]
        theta, _, loss = map_estimate.fit(self.model, self.local, start, batch, noise)
        weight = self.weight(batch.size)
        moved = (cluster != state.cluster).to(weight)
        update = Update(theta, cluster, weight, torch.ones_like(weight), loss.double(), moved)
        seen = message.used.expand(batch.clients).clone()
        return update, Client(_unit(theta - start).to(theta), cluster, seen)

    def weight(self, rows: Tensor) -> Tensor:
        """As `weighting` says, of rows [K]: [K]."""
        return average.client_weight(rows, self.weighting)

    def possible(self, update: Update) -> Tensor:
        """Whether there is such a cluster too: bool [K]."""
        return in_range(update) & (update.cluster >= 0) & (update.cluster < self.max_clusters)

    def server(self, server: Server, update: Update, n_clients: int) -> Server:
        """Split a cluster that is pulled apart, and average every cluster's members."""
        steps, present = (update.theta - server.theta[update.cluster]).double(), update.weight > 0
        lengths, unit = torch.where(present, torch.linalg.vector_norm(steps, dim=1), 0.0), _unit(steps)
        first = lengths.sum() / present.sum().clamp_min(1)
        scale = torch.where(server.scale > 0, server.scale, first)
        unit_of = scale if self.relative else torch.ones_like(scale)
        some, at = self._pulled_apart(server, update, lengths, unit_of)
        member = present & (update.cluster == at)
        leaves, alpha = clusters.bipartition(unit @ unit.T, member, lengths)
        stay, leave = (_mean_of(unit, member & side) for side in (~leaves, leaves))
        routed = (((unit @ leave) > (unit @ stay)) == leaves) | ~member
        agreed = some & (member & leaves).any() & routed.all() & (self.gamma < ((1 - alpha) / 2).sqrt())
        cluster = torch.where(agreed & member & leaves, server.used, update.cluster)
        theta, _ = clusters.mean(update.theta, cluster, update.weight, server.theta)
        new = agreed & (torch.arange(self.max_clusters, device=theta.device) == server.used)
        return Server(
            theta,
            torch.where(new, at, server.parent),
            torch.where(new.unsqueeze(1), stay.to(theta), server.stay),
            torch.where(new.unsqueeze(1), leave.to(theta), server.leave),
            server.used + agreed,
            scale,
        )

    def check_private(self) -> None:
        """Refuse: the directions of single clients' steps split clusters."""
        what = "FedCFL has no private release: its clients send steps of which the server compares single ones"
        raise PrivacyError(what, hint="train it without [privacy]")

    def personalise(self, message: Server, state: Client, batch: ClientBatch, noise: Noise) -> WeightPosterior:
        """Give the weights of the client's cluster."""
        theta = message.theta[self.assign(message, state, batch)]
        return self.posterior(theta, batch, noise)

    def global_model(self, message: Server, state: Client, batch: ClientBatch, noise: Noise) -> WeightPosterior:
        """The weights of the client's cluster."""
        return self.personalise(message, state, batch, noise)

    def describe(self, state: Client) -> Mapping[str, Tensor]:
        """Every client's last cluster; -1 for one that never trained."""
        return {"cluster": state.cluster.double()}

    def report(self, server: Server, update: Update) -> Mapping[str, Tensor]:
        """Mean training loss, how many clients changed their cluster, and how many clusters have members."""
        return mean_loss(update) | memberships(update.cluster, update.clients, update.moved, self.max_clusters)

    def _pulled_apart(self, server: Server, update: Update, lengths: Tensor, unit: Tensor) -> tuple[Tensor, Tensor]:
        """Say whether a cluster is to be split and there is room for it [], and the first such cluster []."""
        steps = (update.theta - server.theta[update.cluster]).double()
        total, weight = clusters.sums({"step": steps}, update.cluster, update.weight, self.max_clusters)
        mean = torch.linalg.vector_norm(total["step"] / weight.clamp_min(_TINY).unsqueeze(1), dim=1)
        member = torch.nn.functional.one_hot(update.cluster, self.max_clusters).T.bool() & (update.weight > 0)  # [J, K]
        longest = torch.where(member, lengths, 0.0).amax(1)
        apart = (mean < self.mean_below * unit) & (longest > self.longest_above * unit) & (member.sum(1) > 1)
        return apart.any() & (server.used < self.max_clusters), apart.long().argmax()


def _unit(steps: Tensor) -> Tensor:
    """Divide steps [K, D] by their lengths, float64; one of length 0 stays."""
    length: Tensor = torch.linalg.vector_norm(steps.double(), dim=1, keepdim=True)
    return steps.double() / length.clamp_min(_TINY)


def _mean_of(unit: Tensor, member: Tensor) -> Tensor:
    return torch.where(member.unsqueeze(1), unit, 0.0).sum(0) / member.sum().clamp_min(1)


RECIPE = Recipe(
    "FedCFL: one network, split in two wherever the steps of clients point apart while their mean vanishes",
    FedCFL,
    MethodSummary(
        "network", "map_estimate.fit", "bipartition, clusters.mean", "weights, cluster", "direction, cluster"
    ),
    model="weights",
    presets={
        "recommended": {"federation": ROUNDS},
        "paper": {
            "method": {"optimiser": "sgd", "rate": 0.1, "momentum": 0.9, "mean_below": 0.4, "longest_above": 1.6},
            "federation": PAPER_ROUNDS,
        },
    },
    search={"method.mean_below": LogUniform(0.05, 0.8), **SEARCH_NETWORK},
)
