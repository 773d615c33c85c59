"""Bases of the variational methods: hyper-parameters, draws, and the posteriors that clients keep."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Literal, TypeVar

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.bounds import Objective, Premises, SaturatingSquare, ZeroOne, client
from pacbayes_fl.bounds.risk import gibbs_risk
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import StudyError
from pacbayes_fl.files import JsonTable
from pacbayes_fl.inference import svi
from pacbayes_fl.inference.optim import Optimiser
from pacbayes_fl.inference.svi import LocalInference
from pacbayes_fl.methods import private_steps
from pacbayes_fl.methods.base import Method, RefinedPosterior
from pacbayes_fl.methods.newcomers import TrainsNewcomers
from pacbayes_fl.methods.options import Paper, part
from pacbayes_fl.methods.recipe import (
    HELD_OUT,
    PAPER_ROUNDS,
    Defaults,
    HeldOutChoice,
    LogUniform,
    OneOf,
    Search,
    Trials,
)
from pacbayes_fl.models.base import WeightModel, default
from pacbayes_fl.models.weights.bayesian_network import BayesianNetwork
from pacbayes_fl.noise import Noise
from pacbayes_fl.options import check, option
from pacbayes_fl.posteriors.weights.family import Draw
from pacbayes_fl.posteriors.weights.mean_field import MeanField, rho_of
from pacbayes_fl.posteriors.weights.posterior import WeightPosterior
from pacbayes_fl.server import average, moments
from pacbayes_fl.server.moments import Moments
from pacbayes_fl.server.step import SERVER_STEP, Memoryless, ServerStep
from pacbayes_fl.tensors import AnyTree

Server = TypeVar("Server")
Client = TypeVar("Client")
Update = TypeVar("Update")
Aggregation = Literal["tracked", "moments", "tracked-moments"]
"""Of what the server makes the next global distribution; see `Variational`."""


@dataclass(frozen=True)
class PriorTracking:
    """How a client lets its copy of the global distribution follow its posterior.

    Args:
        rate: learning rate of the steps on w, eta_2.
        keep_moments: keep both optimisers' moments between rounds (public codes), or begin anew.
        restart: begin every round at q = w (as sFedBayes's Algorithm 2 has it), or go on from the last q.
        optimiser: of the steps on w: "adam", or plain gradient descent, "sgd". Adam's steps of one size make the
            clients' mean a kind of median: the solution of the federation's problem (eq. 5) is no fixed point of it.
    """

    rate: float = option(1e-3, above=0, symbol="eta_2")
    keep_moments: bool = True
    restart: bool = False
    optimiser: Optimiser = "adam"

    def __post_init__(self) -> None:
        """Check the ranges."""
        check(self)


@dataclass(frozen=True)
class Variational(Method[Server, Server, Client, Update], Generic[Server, Client, Update]):
    """A method whose clients fit distributions over weights; its message is what the server knows of them.

    Args:
        model: the likelihood.
        local: steps on q.
        tracking: steps on w.
        aggregation: "tracked": clients let w follow q and the server averages their w, as the papers' algorithms have
            it; "moments": clients send E and E^2 of q and take no steps on w, and the server matches the moments of
            all, which solves its problem exactly (`server.moments.match`); "tracked-moments": the same, but within a
            round w follows q, so that it holds q back less, and the fixed point is no longer that of eq. 5.
        weighting: of clients in the server's average.
        step: how far the server goes towards what it makes of the clients' w.
        init_std: spread of the initial means.
        init_rho: initial rho of every weight.
        draws: draws of the weights over which predictions are averaged.
        join_passes: times the minibatches of a round for a client that never trained.
    """

    objective: ClassVar[str | None] = "elbo"

    model: WeightModel
    local: LocalInference = part(
        LocalInference,
        names={"draws": "train_draws"},
        paper={
            "rate": Paper(1e-3, "section 6.2, Table 4"),
            "zeta": Paper(10.0, "section 6.2, Table 4"),
            "data_scale": Paper("rows", "eq. 30"),
            "noise_std": Paper(1.0, "eq. 29"),
            "divergence": Paper("forward", "eq. 30"),
        },
    )
    tracking: PriorTracking = part(
        PriorTracking,
        names={"rate": "prior_rate", "optimiser": "prior_optimiser"},
        paper={"rate": Paper(1e-3, "section 6.2, Table 4")},
    )
    aggregation: Aggregation = option("tracked", paper=Paper("tracked", "Algorithm 1"))
    weighting: average.Weighting = option("uniform", paper=Paper("uniform", "Algorithm 1"))
    step: ServerStep = part(ServerStep, names=SERVER_STEP)
    init_std: float = option(0.1, above=0)
    init_rho: float = option(-2.5, low=-40, high=40, symbol="rho_0", paper=Paper(-2.5, "section 6.2, Table 4"))
    draws: int = option(20, low=1)
    join_passes: int = option(10, low=1)

    def __post_init__(self) -> None:
        """Check the ranges, and that the aggregation and the divergence go together."""
        check(self)
        if self.sends_moments and self.local.divergence == "reverse":
            what = (
                f"aggregation = {self.aggregation!r} minimises KL(q || w), and divergence = 'reverse' is of KL(w || q)"
            )
            raise StudyError(what, hint="divergence = 'forward', or aggregation = 'tracked'")

    @property
    def sends_moments(self) -> bool:
        """Whether clients send moments of q instead of their w."""
        return self.aggregation != "tracked"

    def about(self) -> JsonTable:
        """Over how many draws it predicts, and which path the gradient takes."""
        path = "closed-form KL, written-out gradient" if isinstance(self.model, BayesianNetwork) else "Pyro traces"
        text = f"predictions averaged over {self.draws} draws of the weights; mean_weights: one pass at their means"
        return {"draws": self.draws, "average": text, "inference": path} | self.about_own()

    @default
    def about_own(self) -> dict[str, str]:
        """What labels should say of this method beside."""
        return {}

    @default
    def broadcast(self, server: Server) -> Server:
        """Send everything but what the server's optimiser remembers."""
        whole: Any = server
        sent: Server = whole._replace(moments=Memoryless())
        return sent

    def check_private(self) -> None:
        """Refuse weights by rows, which are private, and what depends on single clients."""
        self.check_withheld()
        private_steps.alike(self.weighting)

    @default
    def check_withheld(self) -> None:
        """Raise PrivacyError where the server needs what a private round withholds."""

    @default
    def footprint(self, rows: int) -> int:
        """Numbers per client, as the model counts them."""
        return self.model.footprint(rows)

    def weight(self, rows: Tensor) -> Tensor:
        """As `weighting` says, of rows [K]: [K]."""
        return average.client_weight(rows, self.weighting)

    @property
    @default
    def refining(self) -> LocalInference:
        """Steps on q where w stays as it is: of new clients, on later rows, and of a certificate's posterior."""
        return self.local

    @default
    def draw(self, q: AnyTree, noise: Noise) -> Draw:
        """Take the random numbers of one draw from the clients' streams."""
        return svi.draw_of(q, noise, self.local.noise_std)

    def posterior(self, q: AnyTree, batch: ClientBatch, noise: Noise) -> WeightPosterior:
        """Make a distribution over weights predict, with S draws.

        Args:
            q: leaves [K, D].
            batch: the clients' training rows, whose statistics a network may need.
            noise: their streams.

        Returns:
            The posterior.
        """
        return WeightPosterior(self.model, q, self.draws, noise, batch, self.local.noise_std)

    def refine(self, prior: WeightPosterior, seen: ClientBatch, rows: ClientBatch, noise: Noise) -> RefinedPosterior:
        """Fit q on more rows from the distribution P that `personalise` gave and against it (eq. 30 with w = P).

        Both are over the same networks: statistics for normalisation stay those of P. Draws are
        those of q itself, also for a preset that shrinks them.

        Args:
            prior: P, leaves [K, D].
            seen: rows that P was conditioned on; unused, since P determines the update.
            rows: the others.
            noise: the clients' streams.

        Returns:
            Q with leaves [K, D], that of a client without rows P itself, and KL(Q || P) [K], in nats, float64.
        """
        q = self.refit(prior.family, rows, noise.fork())
        posterior = WeightPosterior(self.model, q, self.draws, noise, prior.reference)
        return RefinedPosterior(posterior, q.kl(prior.family).clamp_min(0.0))

    @default
    def refit(self, w: AnyTree, rows: ClientBatch, noise: Noise, free: Tensor | None = None) -> AnyTree:
        """Fit q with w as initial value and as prior; deterministic weights do not change.

        Args:
            w: leaves [K, D]; left as it is.
            rows: the clients' rows.
            noise: a fork of their streams.
            free: bool [K, D], True for weights that may move; all with uncertainty when None.

        Returns:
            Leaves [K, D]; w itself for a client whose fit diverged.
        """
        return self.fit_from(w, rows, noise, free)

    def fit_from(self, w: AnyTree, rows: ClientBatch, noise: Noise, free: Tensor | None) -> AnyTree:
        """Fit q as `refit` does where all parameters of the family are finite.

        Args:
            w: leaves [K, D]; left as it is.
            rows: the clients' rows.
            noise: a fork of their streams.
            free: bool [K, D], True for weights that may move; all with uncertainty when None.

        Returns:
            Leaves [K, D]; w itself for a client whose fit diverged.
        """
        if self.model.deterministic:
            uncertain = self.model.stochastic_columns().to(w.loc.device)
            free = uncertain if free is None else free & uncertain
        exact = replace(self, local=replace(self.local, noise_std=1.0))
        q = self.fit_against(exact.refining, w, rows, noise, exact.draw, free)
        return tensors.where(tensors.finite(q), q, w)

    def fit_against(
        self,
        local: LocalInference,
        w: AnyTree,
        rows: ClientBatch,
        noise: Noise,
        draw: Callable[[AnyTree, Noise], Draw],
        free: Tensor | None,
    ) -> AnyTree:
        """Fit q from a distribution that stays and against it, with the zeta of `local` or each client's own.

        With zeta = "certificate" a client takes of `ZETAS` that whose q has the least kl^-1(L^, (KL + ln(xi / delta)) /
        m), L^ estimated by draws. A certificate pays nothing for the choice: its bound holds for all q at once, and the
        draws that estimate its risk are others. (A choice among priors would cost ln of their number.)

        Args:
            local: hyper-parameters.
            w: leaves [K, D].
            rows: the clients' rows.
            noise: a fork of their streams.
            draw: takes q and the streams, gives the random numbers of a draw.
            free: bool [D] or [K, D], True for weights that may move; all when None.

        Returns:
            q, leaves [K, D].
        """
        if local.zeta != "certificate":
            return svi.fit(self.model, local, w, rows, noise, self.join_passes, draw, free)
        least, result = torch.full_like(rows.size, torch.inf), w
        premises = Premises(loss=ZeroOne() if not rows.y.is_floating_point() else SaturatingSquare())
        bound = Objective(client.SEEGER, rows.size.clamp_min(1.0), 0.05, premises)
        for zeta in ZETAS:
            own = noise.copy()  # what is left of it after the fit judges the result
            q = svi.fit(self.model, replace(local, zeta=zeta), w, rows, own, self.join_passes, draw, free)
            posterior = WeightPosterior(self.model, q, self.draws, own, rows)
            risk, _ = gibbs_risk(posterior, rows, premises.loss, self.draws, own)
            value, *_ = bound.slopes(risk, svi.divergence(self.model, q, w).clamp_min(0.0))
            better = value < least  # False also for what is no number
            least, result = torch.where(better, value, least), tensors.where(better, q, result)
        return result


@dataclass(frozen=True)
class PersonalPosteriors(
    TrainsNewcomers[Server, Client, WeightPosterior],
    Variational[Server, Client, Update],
    Generic[Server, Client, Update],
):
    """A variational method whose clients keep q, and their optimisers' moments, from round to round."""

    def is_new(self, state: Any) -> Tensor:
        """Which clients have not taken a step: bool [K]."""
        fresh: Tensor = state.adam_q.steps == 0
        return fresh

    @default
    def train_newcomers(self, message: Any, state: Any, batch: ClientBatch, noise: Noise) -> Any:
        """Fit q from the global distribution w and against it."""
        w = tensors.expand(message.w, batch.clients)
        return state._replace(q=self.fit_against(self.refining, w, batch, noise.fork(), self.draw, None))

    @default
    def personalise_trained(self, message: Server, state: Any, batch: ClientBatch, noise: Noise) -> WeightPosterior:
        """Give the client's q."""
        return self.posterior(state.q, batch, noise)

    @default
    def absorb(self, message: Server, state: Any, seen: ClientBatch, rows: ClientBatch, noise: Noise) -> Any:
        """Fit q to the later rows, with the q before them as prior."""
        return state._replace(q=self.filtered(message, state, seen, rows, noise))

    def filtered(
        self, message: Any, state: Any, seen: ClientBatch, rows: ClientBatch, noise: Noise, free: Tensor | None = None
    ) -> AnyTree:
        """Fit q to later rows against the posterior before: q' = argmin E_q[-ln p(rows)] + max(zeta, 1) KL(q || p).

        This is streaming variational Bayes (Broderick et al. 2013, eq. 4); exact posteriors of a conjugate model do not
        depend on the order of batches. A zeta below 1 lets q leave the federation's distribution, and would let q'
        leave its own rows.

        Args:
            message: of the server.
            state: of K clients that have trained.
            seen: rows that their q has learned from.
            rows: the later ones.
            noise: their streams.
            free: bool [D], True for weights that may move; all with uncertainty when None.

        Returns:
            q', leaves [K, D].
        """
        known = self.personalise_trained(message, state, seen, noise)
        local = replace(self.local, zeta=max(self.local.weight, 1.0), data_scale="rows")
        method = self if isinstance(self.local.zeta, str) else replace(self, local=local)
        return method.refit(known.family, rows, noise.fork(), free)


def moments_of(q: MeanField) -> Moments:
    """Mean and variance of every weight, as sent by clients and as given by moment matching.

    Args:
        q: leaves [*, D].

    Returns:
        Leaves [*, D].
    """
    return Moments(q.loc, q.scale.square())


def towards(old: MeanField, fitted: Moments, beta: float, stochastic: Tensor) -> MeanField:
    """Go from the server's distribution towards matched moments, or beyond them; a variance that stays keeps its rho.

    Args:
        old: leaves [*, D].
        fitted: leaves [*, D].
        beta: of `moments.extrapolate`.
        stochastic: bool [D], False for weights without uncertainty, which have a mean alone.

    Returns:
        Leaves [*, D].
    """
    before = moments_of(old)
    mean, variance = moments.extrapolate(before, fitted, beta)
    moved = stochastic.to(old.rho.device) & (variance != before.variance)  # what rho_of rounds is no step
    rho = torch.where(moved, rho_of(variance), old.rho)
    return MeanField(mean, rho).bounded()


EVERYBODY: Mapping[str, Any] = MappingProxyType({**PAPER_ROUNDS, "train": "all"})
"""The same, and all clients train whoever sends (Algorithms 1-3 of pFedBayes, sFedBayes and cFedBayes)."""

PUBLIC_CODE: Mapping[str, Any] = MappingProxyType(
    {"steps": 20, "inner": 5, "minibatch": 100, "noise_std": 1e-3, "init_rho": -3.0, "weighting": "rows"}
)
"""Options that the public codes of pFedBayes and BPFed share."""

SEARCH: Search = MappingProxyType(
    {
        "method.prior_rate": LogUniform(3e-4, 1e-2),
        "method.zeta": LogUniform(0.1, 10.0),
        "method.init_rho": OneOf((-4.0, -3.0, -2.5)),
    }
)
"""What a search varies of every variational method."""

ZETAS = (10.0, 1.0, 0.1, 0.01)
"""Weights of the KL divergence, that of the journal first: for 250 rows of a client, and too much for a few dozen."""


def zeta_among(*values: float) -> HeldOutChoice:
    """Let a study leave the weight of the KL divergence open.

    Args:
        *values: candidates, the usual one first.

    Returns:
        The choice, by clients that are held out as well as rows: no client has too few rows for it.
    """
    return HeldOutChoice("zeta", values, by_default=False, clients=True)


TRIALS = Trials(trial_rounds=20)
"""Of rounds after which candidates are judged: with four fifths of the clients in each of two federations, four
candidates cost about .8 times the 160 rounds of a run."""

OWN_ROWS: Defaults = MappingProxyType({"method": MappingProxyType({"zeta": HELD_OUT})})
"""How far few rows may take a posterior from its prior depends on it; nobody has tuned it for this file."""

OWN_LABELS: Defaults = MappingProxyType(
    {"federation": MappingProxyType({"rounds": HELD_OUT}), "model": MappingProxyType({"temperature": HELD_OUT})}
)
"""How long classes may be learned from few rows, and how sure the result may be of them. Posteriors of numbers are kept
from overfitting by the divergence alone: fewer rounds are better on some tables and worse on others."""
