"""pFedMe (Dinh, Tran and Nguyen, NeurIPS 2020): the server averages what minimises the clients' Moreau envelopes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, final

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.inference import map_estimate, turns
from pacbayes_fl.inference.map_estimate import GaussianPrior, LocalDescent
from pacbayes_fl.methods.base import RATE
from pacbayes_fl.methods.baselines.personal import PersonalWeights, Trained
from pacbayes_fl.methods.options import Paper, part
from pacbayes_fl.methods.recipe import PAPER_ROUNDS, ROUNDS, SEARCH_NETWORK, LogUniform, MethodSummary, Recipe
from pacbayes_fl.noise import Noise
from pacbayes_fl.options import option
from pacbayes_fl.server import average


@final
@dataclass(frozen=True)
class PFedMe(PersonalWeights):
    """pFedMe (Algorithm 1): w descends F_k(w) = min_theta f_k(theta) + (lambda / 2) |theta - w|^2.

    For every minibatch theta_k takes K steps towards that minimum, and w_k <- w_k - eta lambda (w_k - theta_k). The
    server's step of beta towards the mean of the w_k is `server_rate`.

    Args:
        local: minibatches of a round, and the rate of the steps on theta, eta_p.
        weighting: of clients in the average.
        lam: strength of the pull of theta_k towards w_k.
        inner: steps on theta_k for every minibatch.
        eta: rate of the steps on w_k.
        restart: whether these steps begin at w_k; else where those for the last minibatch of the round ended.
        personal: which weights are the personal model: "theta", or "w", as the authors' code measures.
        decay: of theta_k, as the authors' code has it in these steps.
    """

    local: LocalDescent = part(
        LocalDescent,
        paper={
            "steps": Paper(20, "experiments, R"),
            "minibatch": Paper(20, "experiments"),
            "rate": Paper(0.01, "pFedBayes, section 6.2"),
            "optimiser": Paper("sgd", "Algorithm 1"),
        },
    )
    weighting: average.Weighting = option("uniform", paper=Paper("uniform", "Algorithm 1"))
    lam: float = option(1.0, above=0, symbol="lambda", paper=Paper(15.0, "pFedBayes, section 6.2"))
    inner: int = option(5, low=1, symbol="K", paper=Paper(5, "experiments"))
    eta: float = option(0.075, above=0, symbol="eta", paper=Paper(0.01, "pFedBayes, section 6.2"), metadata=RATE)
    restart: bool = False
    personal: Literal["theta", "w"] = option("theta", paper=Paper("theta", "the solution of the inner problem"))
    decay: float = option(0.0, low=0)

    def train(self, theta: Tensor, own: Tensor, batch: ClientBatch, noise: Noise) -> Trained:
        """Descend the envelope from the global weights theta [K, D]; the earlier `own` [K, D] is not used."""
        w, own = theta, theta
        inner, total = replace(self.local, steps=self.inner, epochs=None), torch.zeros_like(theta[:, 0])
        for active in turns.turns(self.local, batch):
            rows = map_estimate.minibatch(self.local, batch, noise)
            start = w if self.restart else own
            near, _, loss = map_estimate.fit(self.model, inner, start, rows, noise, prior=self._pull(w))
            after = w - self.eta * self.lam * (w - near)
            if active is not None:
                near, after = (tensors.where(active, *pair) for pair in ((near, own), (after, w)))
            own, w, total = near, after, total + (loss if active is None else torch.where(active, loss, 0.0))
        kept = own if self.personal == "theta" else w
        return Trained(w, kept, turns.mean_over(self.local, batch, total))

    def newcomer(self, theta: Tensor, batch: ClientBatch, noise: Noise) -> Tensor:
        """Descend towards the minimum near the global weights theta [K, D], for a client that never took part."""
        return map_estimate.fit(
            self.model, self.local, theta, batch, noise, self.join_passes, prior=self._pull(theta)
        ).theta

    def _pull(self, w: Tensor) -> GaussianPrior:
        strength = self.lam + self.decay
        return GaussianPrior(w * (self.lam / strength), torch.ones_like(w), strength)


RECIPE = Recipe(
    "pFedMe: personal models near global weights that minimise the clients' Moreau envelopes",
    PFedMe,
    MethodSummary("network", "map_estimate.fit, proximal", "mean", "weights", "own weights"),
    model="weights",
    presets={
        "recommended": {"federation": ROUNDS},
        "paper": {"federation": PAPER_ROUNDS},
        "authors-code": {
            "method": {"minibatch": 20, "personal": "w", "lam": 15.0, "eta": 0.005, "decay": 1e-3, "weighting": "rows"},
            "federation": PAPER_ROUNDS,
        },
    },
    search={**SEARCH_NETWORK, "method.lam": LogUniform(0.1, 30.0)},
)
