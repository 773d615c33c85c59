"""PAC-PFL whose server takes one of several priors by the clients' evidence: what little privacy can pay for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple, final

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import PrivacyError
from pacbayes_fl.files import JsonTable
from pacbayes_fl.inference import evidence
from pacbayes_fl.methods import private_steps
from pacbayes_fl.methods.base import Method, Nothing, RefinedPosterior, no_average
from pacbayes_fl.methods.pac_pfl.gp import Message, PacPFL, Server
from pacbayes_fl.models.base import FunctionModel
from pacbayes_fl.noise import Noise, generator_from_text
from pacbayes_fl.posteriors.functions.conditioning import Conditioned
from pacbayes_fl.posteriors.predictive import LearnedPriors

_AT_ONCE: Final = 64
"""Candidates under which clients have their evidence at the same time."""
_WORST: Final = 1e6
"""Nats of regret for a candidate whose covariance cannot be factored."""


class Regrets(NamedTuple):
    """What clients would lose by a candidate, or which one was chosen.

    Args:
        regret: max_j ln Z_j - ln Z_c of every client and candidate [K, C], in nats; of a release 0 for the one that was
            chosen and 1 elsewhere.
        weight: number of clients behind a row [K].
    """

    regret: Tensor
    weight: Tensor


@final
@dataclass(frozen=True)
class PriorChoice(Method[Server, Message, Nothing, Regrets]):
    """PAC-PFL with Gaussian processes and one particle, whose rounds choose it among candidates.

    A round has C candidates phi_c, which anybody can draw: the particle so far, and proposals around it,

    phi_c = phi_0 + sqrt(1 - r^2) (phi - phi_0) + r (xi_c - phi_0),   xi_c ~ hyper-prior,   r = 1 in the first round,

    which for a Gaussian hyper-prior around phi_0 leave it as it is (preconditioned Crank-Nicolson, Cotter et al. 2013).
    Clients send their regrets max_j ln Z(phi_j) - ln Z(phi_c), and the server takes the candidate of the least sum. A
    private round releases which one that is by the exponential mechanism, whose cost does not grow with the length of
    phi: for pure epsilon and few clients noise on a gradient leaves nothing of it.

    Args:
        inner: the method, which conditions on the chosen prior.
        candidates: C.
        step: r.
        seed: of the candidates, which are public.
    """

    inner: PacPFL
    candidates: int
    step: float
    seed: int

    host_bound: ClassVar[str | None] = "candidates are drawn by the number of the round, on the CPU"

    def __post_init__(self) -> None:
        """Check that there is one prior to choose, and more than one to choose it from."""
        if self.inner.particles != 1:
            what = f"the exponential mechanism chooses one prior, got method.particles = {self.inner.particles}"
            raise PrivacyError(what, hint="method.particles = 1")
        if self.candidates < 2 or not 0 < self.step <= 1:
            what = f"a choice takes at least 2 candidates and a step in (0, 1], got {self.candidates} and {self.step}"
            raise PrivacyError(what, hint="privacy.candidates = 400, privacy.candidate_step = 0.6")

    @property
    def model(self) -> FunctionModel:
        """What phi are the parameters of a prior of."""
        return self.inner.model

    @property
    def objective(self) -> str | None:  # type: ignore[override]
        """As in the wrapped method."""
        return self.inner.objective

    @property
    def row_by_row(self) -> bool:
        """As in the wrapped method."""
        return self.inner.row_by_row

    def proposals(self, particles: Tensor, round: int) -> Tensor:
        """Draw the candidates of a round, the same for whoever knows the particle.

        Args:
            particles: phi [1, D].
            round: its number, from 1.

        Returns:
            [C, D], the particle itself first.
        """
        generator = generator_from_text(f"candidates/{self.seed}/{round}")
        fresh: Tensor = self.inner.hyper_prior.sample(self.candidates - 1, generator).to(particles)
        if round <= 1:
            return torch.cat((particles, fresh))
        centre = self.model.location().to(particles)
        kept = math.sqrt(1.0 - self.step**2)
        return torch.cat((particles, centre + kept * (particles - centre) + self.step * (fresh - centre)))

    def init_server(self, generator: torch.Generator) -> Server:
        """As in the wrapped method: a draw from the hyper-prior."""
        return self.inner.init_server(generator)

    def init_clients(self, message: Message, batch: ClientBatch) -> Nothing:
        """No client state."""
        return Nothing()

    def broadcast(self, server: Server) -> Message:
        """Send the particle."""
        return Message(server.particles)

    def client(self, message: Message, state: Nothing, batch: ClientBatch, noise: Noise) -> tuple[Regrets, Nothing]:
        """Give the regrets of every client under the candidates of the round."""
        candidates = self.proposals(message.particles, noise.round)
        parts = [evidence.particle_evidence(self.model, part, batch) for part in candidates.split(_AT_ONCE)]
        known = torch.nan_to_num(torch.cat(parts, 1).double(), nan=-math.inf, posinf=-math.inf, neginf=-math.inf)
        regret = torch.nan_to_num(known.amax(1, keepdim=True) - known, nan=0.0, posinf=_WORST)
        return Regrets(regret, torch.ones_like(batch.size)), state

    def server(self, server: Server, update: Regrets, n_clients: int) -> Server:
        """Take the candidate of the least summed regret."""
        candidates = self.proposals(server.particles, int(server.adam.steps) + 1)
        best = update.regret.sum(0).argmin()
        return Server(candidates[best].unsqueeze(0), server.adam._replace(steps=server.adam.steps + 1))

    def client_deltas(self, message: Message, update: Regrets) -> dict[str, Tensor]:
        """The regrets [K, C]."""
        return {"regret": update.regret}

    def check_private(self) -> None:
        """Choices may be released, whatever the options."""

    def check_average(self) -> None:
        """Refuse: the mean of priors that were chosen is one that nobody has chosen."""
        raise no_average(self, "every round chooses one of a list of priors")

    def from_release(self, message: Message, mean: Mapping[str, Tensor], clients: float) -> Regrets:
        """Make regrets of a choice [1, C] that is 1 at the chosen candidate and 0 elsewhere."""
        chosen = mean["regret"]
        return Regrets(1.0 - chosen, private_steps.unit_weights(chosen) * clients)

    def reduce(self, update: Regrets) -> Regrets:
        """Sum the clients of a chunk."""
        return tensors.total(update)

    def report(self, server: Server, update: Regrets) -> Mapping[str, Tensor]:
        """Whether the round has taken another prior than the one before."""
        return {"moved": (update.regret.sum(0).argmin() > 0).double()}

    def personalise(self, message: Message, state: Nothing, batch: ClientBatch, noise: Noise) -> Conditioned:
        """As in the wrapped method, under the chosen prior."""
        return self.inner.personalise(message, state, batch, noise)

    def absorb(self, message: Message, state: Nothing, seen: ClientBatch, rows: ClientBatch, noise: Noise) -> Nothing:
        """As in the wrapped method."""
        return self.inner.absorb(message, state, seen, rows, noise)

    def refine(self, prior: Any, seen: ClientBatch, rows: ClientBatch, noise: Noise) -> RefinedPosterior:
        """As in the wrapped method."""
        return self.inner.refine(prior, seen, rows, noise)

    def refined_from(self, prior: Any, seen: ClientBatch) -> Any:
        """As in the wrapped method."""
        return self.inner.refined_from(prior, seen)

    def learned_priors(self, server: Server) -> LearnedPriors:
        """As in the wrapped method."""
        return self.inner.learned_priors(server)

    def about(self) -> JsonTable:
        """Labels of the wrapped method, and among how many priors a round chooses."""
        return self.inner.about() | {"candidates": self.candidates}

    def footprint(self, rows: int) -> int:
        """Numbers per client: one covariance per candidate that is looked at together, and the regrets."""
        return min(self.candidates, _AT_ONCE) * self.model.footprint(rows) + self.candidates
