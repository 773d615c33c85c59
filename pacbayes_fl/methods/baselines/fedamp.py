"""FedAMP and HeurFedAMP (Huang et al., AAAI 2021): every client is pulled towards the clients that are like it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple, final

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import PrivacyError, StudyError
from pacbayes_fl.inference import map_estimate
from pacbayes_fl.inference.map_estimate import Descended, GaussianPrior, LocalDescent
from pacbayes_fl.methods.baselines.point import PointEstimate, initial_weights
from pacbayes_fl.methods.newcomers import TrainsNewcomers
from pacbayes_fl.methods.options import Paper, part
from pacbayes_fl.methods.recipe import PAPER_ROUNDS, ROUNDS, SEARCH_NETWORK, LogUniform, MethodSummary, OneOf, Recipe
from pacbayes_fl.noise import Noise
from pacbayes_fl.options import option
from pacbayes_fl.posteriors.weights.posterior import WeightPosterior

_TINY = torch.finfo(torch.float64).tiny


class Server(NamedTuple):
    """What the server holds: the common start theta [D], and the last weights of clients [N, D] by their ids [N].

    An id of -1 marks room for a client.
    """

    theta: Tensor
    models: Tensor
    ids: Tensor


class Client(NamedTuple):
    """A client's weights theta [K, D], and in how many rounds it has taken part [K], int64."""

    theta: Tensor
    rounds: Tensor


class Update(NamedTuple):
    """Locally trained weights of clients.

    Args:
        theta: [K, D].
        ids: of the clients [K], int64.
        weight: 0 for a client that is left out [K].
        clients: 1 for every client that took part [K].
        loss: mean negative log likelihood per row over the local steps [K], in nats.
    """

    theta: Tensor
    ids: Tensor
    weight: Tensor
    clients: Tensor
    loss: Tensor


@final
@dataclass(frozen=True)
class FedAMP(TrainsNewcomers[Server, Client, WeightPosterior], PointEstimate[Server, Server, Client, Update]):
    """FedAMP (Algorithm 1): w_k <- argmin f_k(w) + lambda / (2 alpha) |w - u_k|^2 with u_k = sum_j xi_kj w_j.

    xi_kj = alpha exp(-|w_k - w_j|^2 / sigma) / sigma, xi_kk = 1 - sum_j xi_kj      (FedAMP, A(x) = 1 - exp(-x / sigma))
    xi_kj = (1 - own) softmax_j(sigma cos(w_k, w_j)), xi_kk = own                   (HeurFedAMP)

    The server sends the last weights of all clients, and each mixes its own u_k: for few clients that may see each
    other's weights. One that never trained is pulled towards their mean.

    Args:
        model: the likelihood.
        local: steps of a client.
        attention: who is alike, by the "distance" of weights or by their "cosine" (HeurFedAMP).
        clients: number of clients that there is room for, N.
        lam: strength of the pull.
        alpha: step of the mixing; where the weights of others would add up to more than 1, they are scaled to 1.
        sigma: width of the distances, or inverse temperature of the cosines.
        own: weight of a client's own weights in its mixture.
        from_start: cosines of how far clients went from the common start, instead of their weights, whose cosines are
            all near 1.
        begin: where local steps begin, at the "mixture" u_k or at the client's "own" weights.
        join_passes: times the minibatches of a round, for a client that never trained.
        init_std: spread of the initial weights, the same for all clients.
    """

    server_holds: ClassVar[str | None] = "every client's weights and its id"

    personal_model: ClassVar[str] = "personal models as the clients' last local steps left them"

    local: LocalDescent = part(
        LocalDescent,
        paper={
            "rate": Paper(0.01, "pFedBayes journal, Table 8"),
            "optimiser": Paper("sgd", "Huang et al., section 4, stochastic gradient descent"),
        },
    )
    attention: Literal["distance", "cosine"] = "distance"
    clients: int = option(100, low=1, symbol="N")
    lam: float = option(0.1, low=0, symbol="lambda")
    alpha: float = option(1.0, above=0, symbol="alpha")
    sigma: float = option(25.0, above=0, symbol="sigma")
    own: float = option(0.5, low=0, high=1, symbol="alpha", paper=Paper(0.5, "pFedBayes journal, Table 8"))
    from_start: bool = option(True, paper=Paper(False, "Huang et al., HeurFedAMP"))
    begin: Literal["mixture", "own"] = "mixture"
    join_passes: int = option(10, low=1)
    init_std: float = option(0.1, above=0)

    def init_server(self, generator: torch.Generator) -> Server:
        """Draw the weights with which every client begins."""
        theta = initial_weights(self.model, self.init_std, generator)
        return Server(theta, theta.new_zeros(self.clients, len(theta)), torch.full((self.clients,), -1))

    def init_clients(self, message: Server, batch: ClientBatch) -> Client:
        """Begin at the common start."""
        theta = tensors.expand(message.theta, batch.clients).clone()
        return Client(theta, torch.zeros_like(batch.size, dtype=torch.int64))

    def broadcast(self, server: Server) -> Server:
        """Send the weights of all clients."""
        return server

    def shares(self, message: Server, state: Client, ids: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Say how much of every other client's weights, and of its own, is in a client's mixture.

        Args:
            message: weights of N clients.
            state: of K clients.
            ids: of them.

        Returns:
            xi_kj [K, N], 0 for the client itself, and xi_kk [K], float64.
        """
        others = (message.ids >= 0) & (message.ids != _column(ids, message.ids))
        start = message.theta if self.from_start or self.attention == "distance" else torch.zeros_like(message.theta)
        mine, theirs = (state.theta - start).double(), (message.models - start).double()
        inner = mine @ theirs.T
        squares = mine.square().sum(1, keepdim=True), theirs.square().sum(1)
        count = others.sum(1, keepdim=True).clamp_min(1)
        if self.attention == "distance":
            distances = (squares[0] + squares[1] - 2 * inner).clamp_min(0.0)
            xi = torch.where(others, self.alpha / self.sigma * torch.exp(-distances / self.sigma), 0.0)
            xi = xi / xi.sum(1, keepdim=True).clamp_min(1.0)
        else:
            cosine = inner / (squares[0] * squares[1]).sqrt().clamp_min(_TINY)
            xi = torch.where(others, self.sigma * cosine, -torch.inf)
            xi = torch.where(others, (1 - self.own) * torch.softmax(torch.where(others.any(1, True), xi, 0.0), 1), 0.0)
        xi = torch.where((state.rounds == 0).unsqueeze(1), others.double() / count, xi)
        return xi, 1 - xi.sum(1)

    def client(self, message: Server, state: Client, batch: ClientBatch, noise: Noise) -> tuple[Update, Client]:
        """Mix, and train near the mixture."""
        theta, _, loss = self._near_mixture(message, state, batch, noise)
        weight = torch.ones_like(batch.size)
        ids = _column(batch.ids, message.ids).squeeze(1)
        return Update(theta, ids, weight, torch.ones_like(weight), loss.double()), Client(theta, state.rounds + 1)

    def server(self, server: Server, update: Update, n_clients: int) -> Server:
        """Put the clients' weights in the place of their last ones; new clients take free room in the order of ids."""
        if n_clients > self.clients:
            what = f"clients must be at least {n_clients}, as many as the federation has, got {self.clients}"
            raise StudyError(what, hint=f"method.clients = {n_clients}")
        present = update.weight > 0
        known = (update.ids.unsqueeze(1) == server.ids) & present.unsqueeze(1)  # [K, N]
        new, free = present & ~known.any(1), server.ids < 0
        rank = ((update.ids < update.ids.unsqueeze(1)) & new).sum(1)
        room = new.unsqueeze(1) & free & (rank.unsqueeze(1) == free.cumsum(0) - 1)
        taken, row = (known | room).any(0), (known | room).long().argmax(0)
        models = torch.where(taken.unsqueeze(1), update.theta[row], server.models)
        return Server(server.theta, models, torch.where(taken, update.ids[row], server.ids))

    def check_private(self) -> None:
        """Refuse: other clients receive what one sends."""
        what = "FedAMP has no private release: its clients send weights that other clients receive"
        raise PrivacyError(what, hint="train it without [privacy]")

    def train_newcomers(self, message: Server, state: Client, batch: ClientBatch, noise: Noise) -> Client:
        """Train near the mean of all clients' weights."""
        return state._replace(theta=self._near_mixture(message, state, batch, noise, self.join_passes).theta)

    def personalise_trained(self, message: Server, state: Client, batch: ClientBatch, noise: Noise) -> WeightPosterior:
        """Give the client's weights."""
        return self.posterior(state.theta, batch, noise)

    def _near_mixture(
        self, message: Server, state: Client, batch: ClientBatch, noise: Noise, passes: int = 1
    ) -> Descended:
        """Descend f_k(w) + lambda / (2 alpha) |w - u_k|^2."""
        xi, own = self.shares(message, state, batch.ids)
        mixture = (xi @ message.models.double() + own.unsqueeze(1) * state.theta.double()).to(state.theta)
        pull = GaussianPrior(mixture, torch.ones_like(mixture), self.lam / self.alpha) if self.lam else None
        start = mixture if self.begin == "mixture" else state.theta
        return map_estimate.fit(self.model, self.local, start, batch, noise, passes, prior=pull)


def _column(ids: Sequence[int], like: Tensor) -> Tensor:
    return torch.tensor(ids, dtype=torch.int64, device=like.device).unsqueeze(1)


RECIPE = Recipe(
    "FedAMP: every client its own network, near those of clients that are close to it",
    FedAMP,
    MethodSummary("network", "map_estimate.fit, proximal", "table of weights", "weights", "weights"),
    model="weights",
    presets={
        "recommended": {"federation": ROUNDS},
        "paper": {"federation": PAPER_ROUNDS},
    },
    search={"method.lam": LogUniform(1e-3, 10.0), "method.sigma": LogUniform(1.0, 100.0), **SEARCH_NETWORK},
    fixed=("attention", "own", "from_start"),
)

HEURISTIC = replace(
    RECIPE,
    title="HeurFedAMP: every client its own network, near those of clients whose weights point where its own do",
    variant={"attention": "cosine"},
    search={"method.lam": LogUniform(1e-3, 10.0), "method.own": OneOf((0.1, 0.3, 0.5)), **SEARCH_NETWORK},
    fixed=("attention",),
)
