"""BNFed, PFNM (Yurochkin et al., ICML 2019): clients' hidden units are matched, and then averaged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import PrivacyError, StudyError
from pacbayes_fl.inference import map_estimate
from pacbayes_fl.inference.map_estimate import LocalDescent
from pacbayes_fl.methods.baselines.fedamp import Update
from pacbayes_fl.methods.baselines.point import PointEstimate, initial_weights
from pacbayes_fl.methods.options import Paper, part
from pacbayes_fl.methods.recipe import PAPER_ROUNDS, ROUNDS, SEARCH_NETWORK, LogUniform, MethodSummary, OneOf, Recipe
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP
from pacbayes_fl.noise import Noise
from pacbayes_fl.options import option
from pacbayes_fl.posteriors.weights.posterior import WeightPosterior
from pacbayes_fl.server import average
from pacbayes_fl.server.matching import Floats, Matching, nearest


class Server(NamedTuple):
    """The global network theta [D], and the seed of the matching and the number of rounds, [] int64 each."""

    theta: Tensor
    seed: Tensor
    rounds: Tensor


class Client(NamedTuple):
    """A client's network as it was sent, theta [K, D], and in how many rounds it took part [K], int64."""

    theta: Tensor
    rounds: Tensor


@final
@dataclass(frozen=True)
class BNFed(PointEstimate[Server, Server, Client, Update]):
    """BNFed (PFNM, Algorithm 1): networks of one hidden layer, whose units (incoming, bias, outgoing) are matched.

    Every client begins with a network of its own, and later with the atoms that its last units are nearest to. The
    global network has the atoms as its units; those that it does not need are 0, and stay so.

    Args:
        model: the likelihood.
        local: steps of a client.
        matching: of the units.
        units: of a client's network; the others of the model's are room for atoms. All when None.
        init_std: spread of the initial weights, of every client's own.
    """

    host_bound: ClassVar[str | None] = "units are matched by the Hungarian algorithm, on the CPU"

    personal_model: ClassVar[str] = "personal models are the global one"

    local: LocalDescent = part(
        LocalDescent,
        paper={
            "rate": Paper(0.5, "pFedBayes journal, Table 6; too large for plain steps: all units die"),
            "optimiser": Paper("sgd", "pFedBayes journal, section 6.2"),
        },
    )
    matching: Matching = part(Matching, paper={"popularity": Paper(2.0, "PFNM, eq. 8"), "sweeps": Paper(..., "none")})
    units: int | None = option(None, low=1)
    init_std: float = option(0.1, above=0)

    def __post_init__(self) -> None:
        """Check the ranges, and that the network has one hidden layer, wide enough."""
        super().__post_init__()
        if not isinstance(self.model, BayesianMLP) or len(self.model.sizes) != 3:
            what = "BNFed matches the units of one hidden layer, and the model is another network"
            raise StudyError(what, hint="model.kind = 'mlp' with one width")
        if self.width > self._sizes[1]:
            what = f"units must be at most {self._sizes[1]}, the model's width, got {self.units}"
            raise StudyError(what, hint="a larger model.widths")

    @property
    def _sizes(self) -> tuple[int, ...]:
        return self.model.sizes if isinstance(self.model, BayesianMLP) else ()

    @property
    def width(self) -> int:
        """Number of units of a client's network, L."""
        return self.units or self._sizes[1]

    def split(self, theta: Tensor) -> tuple[Floats, Floats]:
        """Cut a network into its units and what it has beside.

        Args:
            theta: [D].

        Returns:
            Units (incoming weights, bias, outgoing weights) [H, d + 1 + C], and the last biases [C], float64.
        """
        d, h, c = self._sizes
        first, bias, second, last = np.split(theta.double().cpu().numpy(), np.cumsum([d * h, h, h * c]))
        return np.hstack([first.reshape(d, h).T, bias[:, None], second.reshape(h, c)]), last

    def joined(self, units: Floats, last: Floats, like: Tensor) -> Tensor:
        """Make a network of its units; further ones are 0.

        Args:
            units: [A, d + 1 + C], A <= H.
            last: biases of the outputs [C].
            like: gives dtype and device [*].

        Returns:
            theta [D].
        """
        d, h, _ = self._sizes
        every = np.vstack([units, np.zeros((h - len(units), units.shape[1]))])
        parts = (every[:, :d].T, every[:, d], every[:, d + 1 :], last)
        return torch.from_numpy(np.concatenate([one.ravel() for one in parts])).to(like)

    def init_server(self, generator: torch.Generator) -> Server:
        """Draw a network, which is nobody's start, and the seed of the matching."""
        theta = initial_weights(self.model, self.init_std, generator)
        units, last = self.split(theta)
        seed = torch.randint(2**31, (), generator=generator)
        return Server(self.joined(units[: self.width], last, theta), seed, torch.zeros_like(seed))

    def init_clients(self, message: Server, batch: ClientBatch) -> Client:
        """Keep a place for a network that is drawn when the client first trains."""
        theta = torch.zeros_like(tensors.expand(message.theta, batch.clients))
        return Client(theta, torch.zeros_like(batch.size, dtype=torch.int64))

    def broadcast(self, server: Server) -> Server:
        """Send the global network."""
        return server

    def client(self, message: Server, state: Client, batch: ClientBatch, noise: Noise) -> tuple[Update, Client]:
        """Train a network of the client's own, or what the global one has become of it."""
        drawn = self.init_std * noise.fork().weights(state.theta)
        starts = [self._start(message, *one) for one in zip(state.theta, drawn, state.rounds, strict=True)]
        theta, _, loss = map_estimate.fit(self.model, self.local, torch.stack(starts), batch, noise)
        weight, ids = self.weight(batch.size), torch.tensor(batch.ids, dtype=torch.int64, device=theta.device)
        update = Update(theta, ids, weight, torch.ones_like(weight), loss.double())
        return update, Client(theta, state.rounds + 1)

    def _start(self, message: Server, theta: Tensor, drawn: Tensor, rounds: Tensor) -> Tensor:
        """Where a client begins, all [D]: at random, or at the atoms nearest to its units."""
        if not int(rounds):
            units, last = self.split(drawn + self.model.centre().to(drawn))
            return self.joined(units[: self.width], last, drawn)
        units, last = self.split(message.theta)
        atoms = units[np.abs(units).sum(1) > 0]
        return self.joined(atoms[nearest(self.split(theta)[0][: self.width], atoms)], last, theta)

    def weight(self, rows: Tensor) -> Tensor:
        """One for each client with rows, of rows [K]: [K]."""
        return average.client_weight(rows, "uniform")

    def server(self, server: Server, update: Update, n_clients: int) -> Server:
        """Match the units of all clients, and take the atoms' posterior means (PFNM, Algorithm 1, eq. 5)."""
        ids = update.ids.tolist()
        present = sorted((k for k in range(len(ids)) if update.weight[k] > 0), key=lambda k: ids[k])
        if not present:  # every client was dropped, which the engine reports
            return server
        units, last = zip(*(self.split(update.theta[k]) for k in present), strict=True)
        random = np.random.default_rng([int(server.seed), int(server.rounds)])
        _, atoms = self.matching.match([one[: self.width] for one in units], self._sizes[1], random)
        biases = self.matching.mean(np.sum(last, axis=0), np.full(1, float(len(present))))
        return Server(self.joined(atoms, biases, server.theta), server.seed, server.rounds + 1)

    def check_private(self) -> None:
        """Refuse: matching is not linear in what clients send."""
        what = "BNFed has no private release: its clients send networks whose units the server matches, one by one"
        raise PrivacyError(what, hint="train it without [privacy]")

    def position(self, message: Server) -> Tensor:
        """The global network [D]."""
        return message.theta

    def personalise(self, message: Server, state: Client, batch: ClientBatch, noise: Noise) -> WeightPosterior:
        """Give the global network, also to clients that never took part."""
        return self.global_model(message, state, batch, noise)

    def global_model(self, message: Server, state: Client, batch: ClientBatch, noise: Noise) -> WeightPosterior:
        """The global network itself."""
        return self.posterior(tensors.expand(message.theta, batch.clients), batch, noise)


RECIPE = Recipe(
    "BNFed: hidden units of the clients' networks are matched before they are averaged (PFNM)",
    BNFed,
    MethodSummary("network, one hidden layer", "map_estimate.fit", "Hungarian matching, MAP", "weights", "weights"),
    model="weights",
    presets={
        "recommended": {"federation": ROUNDS},
        "paper": {"federation": PAPER_ROUNDS},
        "authors-code": {
            "method": {"popularity": 1.0, "sigma0": 1.0, "sweeps": 5, "rate": 0.01, "optimiser": "sgd"},
            "federation": {"rounds": 1},
        },
    },
    search={
        "method.sigma": LogUniform(0.1, 1.0),
        "method.sigma0": LogUniform(1.0, 10.0),
        "method.gamma": OneOf((1e-3, 1.0, 50.0)),
        **SEARCH_NETWORK,
    },
)
