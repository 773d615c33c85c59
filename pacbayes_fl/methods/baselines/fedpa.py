"""FedPA (Al-Shedivat et al., ICLR 2021): the mode of the product of the clients' posteriors, by averaging."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import StudyError
from pacbayes_fl.files import JsonTable
from pacbayes_fl.inference import map_estimate
from pacbayes_fl.inference.map_estimate import LocalDescent
from pacbayes_fl.methods.base import Nothing
from pacbayes_fl.methods.baselines.averaging import Server, Stateless, Update
from pacbayes_fl.methods.baselines.point import POINT_ESTIMATE
from pacbayes_fl.methods.options import Paper, part
from pacbayes_fl.methods.recipe import PAPER_ROUNDS, ROUNDS, SEARCH_NETWORK, LogUniform, MethodSummary, Recipe
from pacbayes_fl.noise import Noise
from pacbayes_fl.options import option
from pacbayes_fl.posteriors.weights.posterior import WeightPosterior


def direction(start: Tensor, samples: Tensor, rho: float) -> Tensor:
    """Turn samples of a client's posterior into the step that it asks for, Sigma^{-1} (theta - mu).

    Sigma = rho_l I + (1 - rho_l) S with the samples' covariance S (divisor l - 1) and rho_l = 1 / (1 + (l - 1) rho).
    By Woodbury's identity, with centred samples C and z = theta - mu, it is (1 + (l - 1) rho) [z - rho C^T (I +
    rho C C^T)^{-1} C z]: O(l^2 D).

    Args:
        start: theta [K, D].
        samples: [K, l, D].
        rho: how much of the samples' covariance is believed, 0 for none.

    Returns:
        Delta [K, D].
    """
    mean = samples.mean(1)
    centred, z = (samples - mean.unsqueeze(1)).double(), (start - mean).double()
    gram = torch.eye(samples.shape[1], dtype=torch.float64, device=z.device) + rho * centred @ centred.mT
    inner = torch.linalg.solve(gram, (centred @ z.unsqueeze(-1)))
    step: Tensor = (1 + (samples.shape[1] - 1) * rho) * (z - rho * (centred.mT @ inner).squeeze(-1))
    return step.to(start.dtype)


@final
@dataclass(frozen=True)
class FedPA(Stateless):
    """FedPA (Algorithms 1 to 3): clients send Sigma^{-1} (theta - mu) of their posteriors, found by averaged iterates.

    The mean of `sample_steps` iterates in a row is a sample (iterate-averaged stochastic gradients): of a posterior
    whose temperature is the rate of plain steps, so that nothing of it is calibrated.

    Args:
        local: steps of a client.
        rho: how much of the covariance of l samples is believed, see `direction`; 0 averages iterates alone. What
            clients send grows by 1 + (l - 1) rho: where that is far from 1 the server's rate should be smaller.
        mixing: share of a round's steps before the first sample.
        sample_steps: iterates whose mean is a sample; where a round has fewer, it has one sample.
        burn_in_rounds: first rounds, in which clients send their last iterate as FedAvg does.
    """

    personal_model: ClassVar[str] = "personal models are the global one"

    local: LocalDescent = part(
        LocalDescent,
        names={name: name for name in ("steps", "minibatch", "rate", "optimiser", "momentum")},
        others=False,
        paper={
            "rate": Paper(0.02, "authors' code, EMNIST"),
            "minibatch": Paper(20, "authors' code, EMNIST"),
            "momentum": Paper(0.9, "authors' code, EMNIST"),
            "optimiser": Paper("sgd", "Algorithm 3"),
        },
    )
    rho: float = option(0.01, low=0, symbol="rho")
    mixing: float = option(0.2, low=0, below=1)
    sample_steps: int = option(4, low=1)
    burn_in_rounds: int = option(40, low=0)

    def __post_init__(self) -> None:
        """Check the ranges, and that the number of iterates is known."""
        super().__post_init__()
        if self.local.steps is None:
            raise StudyError("FedPA counts the iterates of a round, and epochs do not say them", hint="steps = 20")

    def about(self) -> JsonTable:
        """How many samples stand for a posterior."""
        return {**POINT_ESTIMATE, "samples": self._plan()[2]}

    def client(self, message: Server, state: Nothing, batch: ClientBatch, noise: Noise) -> tuple[Update, Nothing]:
        """Sample from the global weights on, and ask for a step of Sigma^{-1} (theta - mu) (Algorithm 2)."""
        start = tensors.expand(message.theta, batch.clients)
        first, width, number = self._plan()
        samples, iterates = start.new_zeros(batch.clients, number, self.model.dim), iter(range(first + width * number))

        def add(theta: Tensor, t: int) -> None:
            if 0 <= t - first - 1 < width * number:
                samples[:, (t - first - 1) // width] += theta / width

        def slope(theta: Tensor, rows: ClientBatch) -> tuple[Tensor, Tensor]:
            add(theta, next(iterates, -1))
            return map_estimate.gradient(self.model, theta, rows)

        last, _, loss = map_estimate.descend(self.local, start, batch, noise, slope)
        add(last, self.local.steps or 0)
        burnt_in = noise.round > self.burn_in_rounds
        return self.sent(start - direction(start, samples, self.rho) if burnt_in else last, loss, batch), state

    def _plan(self) -> tuple[int, int, int]:
        """Steps before the first sample, steps of a sample, and number of samples."""
        steps = self.local.steps or 0
        first = int(self.mixing * steps)
        width = min(self.sample_steps, steps - first)
        return first, width, (steps - first) // width

    def personalise(self, message: Server, state: Nothing, batch: ClientBatch, noise: Noise) -> WeightPosterior:
        """Give the global weights."""
        return self.posterior(tensors.expand(message.theta, batch.clients), batch, noise)

    def footprint(self, rows: int) -> int:
        """Numbers per client: the model's and the samples."""
        return self.model.footprint(rows) + self._plan()[2] * self.model.dim


RECIPE = Recipe(
    "FedPA: the mode of the product of the clients' posteriors",
    FedPA,
    MethodSummary("network", "averaged iterates, Woodbury", "weighted mean, momentum", "step", "nothing"),
    model="weights",
    presets={
        "recommended": {"federation": ROUNDS},
        "paper": {"method": {"server_rate": 0.5, "server_momentum": 0.9}, "federation": PAPER_ROUNDS},
    },
    search={**SEARCH_NETWORK, "method.rho": LogUniform(1e-3, 0.3)},
)
