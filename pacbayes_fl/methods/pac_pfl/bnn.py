"""PAC-PFL with Bayesian networks: a distribution over priors of the weights, learned by federated SVGD."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple, final

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import AssumptionError, ShapeError, caller_stacklevel, listed
from pacbayes_fl.files import JsonTable
from pacbayes_fl.inference import sampled_evidence, svi, weight_svgd
from pacbayes_fl.inference.svi import LocalInference
from pacbayes_fl.methods import private_steps
from pacbayes_fl.methods.base import Nothing, RefinedPosterior
from pacbayes_fl.methods.options import Paper, part
from pacbayes_fl.methods.pac_pfl.gp import FederatedSVGD, Message
from pacbayes_fl.methods.recipe import HeldOutChoice, LogUniform, MethodSummary, OneOf, Recipe, Trials
from pacbayes_fl.models.base import WeightModel
from pacbayes_fl.noise import Noise
from pacbayes_fl.options import option, same
from pacbayes_fl.posteriors.hyper_posterior import HyperPrior, NetworkHyperPrior
from pacbayes_fl.posteriors.point import PointMass
from pacbayes_fl.posteriors.weights.mean_field import MeanField
from pacbayes_fl.posteriors.weights.mixture import FamilyMixture, MixturePosterior, WeightedSamples
from pacbayes_fl.server import svgd

MIN_EFFECTIVE_DRAWS = 1.5
"""Effective draws below which one draw carries a sum of several."""

Doubts = Callable[[], None] | None
"""Warns of clients whom few draws stand for; None where nothing is left to say."""


class Update(NamedTuple):
    """Scores of clients, or their sum over `weight` of them.

    Args:
        score: gradient of the estimated log evidence by (mu, rho) [K, P, 2D], in nats per unit.
        log_evidence: ln Z~ [K, P], in nats.
        weight: number of clients behind a row [K].
        effective: effective number of draws behind ln Z~ [K, P].
    """

    score: Tensor
    log_evidence: Tensor
    weight: Tensor
    effective: Tensor


@dataclass(frozen=True)
class Tempered(LocalInference):
    """Steps towards a tempered posterior.

    Args:
        beta: temperature of the mean log likelihood; None stands for m_k.
    """

    beta: float | None = option(None, above=0, symbol="beta")

    def scale(self, batch: ClientBatch, rows: ClientBatch) -> Tensor:
        """Factor [K] of the minibatch's log likelihood."""
        return sampled_evidence.tempering(self.beta, batch, rows)


@final
@dataclass(frozen=True)
class PacPFLBNN(FederatedSVGD[WeightModel, Update]):
    """PAC-PFL on networks (Algorithms 1 and 2, eqs. 37-40); the server's half as in `methods.pac_pfl.gp.FederatedSVGD`.

    A prior is a diagonal Gaussian over the weights, a particle phi its (mu, rho) [2 D]. One round is one gradient, of a
    minibatch under L draws. beta tempers the clients' posteriors; None stands for m_k, which makes Z the marginal
    likelihood. Priors weigh alike by default: their sampled evidence (eq. 37) is dominated by the largest draws. What a
    client does with the priors that it gets, the paper leaves open.

    Args:
        train_draws: L of eq. 38.
        posterior: of a client under each prior. "svi" fits a mean field, "svgd" moves weights themselves, "importance"
            weighs draws from the prior: no training at all, good where clients have few rows.
        local: the steps of "svi" and "svgd".
        draws: S, of predictions by "svi".
        importance_draws: L' draws of every prior that are weighed by "importance", and by the weights of eq. 37.
        svgd_particles: J, particles per prior of "svgd".

    Example:
        >>> import torch
        >>> from pacbayes_fl import BayesianMLP, ClientBatch, FederationPlan, Gaussian, PacPFLBNN, run_rounds
        >>> x, network = torch.linspace(-1, 1, 8).unsqueeze(1), BayesianMLP((1, 4, 1), Gaussian())
        >>> batch = ClientBatch.pad([(x, k * x[:, 0]) for k in range(3)])
        >>> particles = run_rounds(PacPFLBNN(network, particles=5), batch, FederationPlan(rounds=2)).server.particles
        >>> particles.shape, network.dim  # a prior is the mean and rho of every weight
        (torch.Size([5, 26]), 13)
    """

    beta_tempers: ClassVar[bool] = True
    personal_messages: ClassVar[bool] = True
    personal_model: ClassVar[str] = "personal models are posteriors under the last round's priors"

    hyper_prior: HyperPrior = part(
        NetworkHyperPrior, paper={"mean_std": Paper(..., "tuned by cross-validation, Table 4")}
    )
    particles: int = option(3, low=1, symbol="k", paper=Paper(3, "section 8.6.3"))
    rate: float = same(FederatedSVGD, "rate", default=2e-3)
    optimiser: Literal["adam", "ascent"] = "adam"
    minibatch: int | None = same(FederatedSVGD, "minibatch", default=20)
    weighting: Literal["evidence", "equal"] = same(FederatedSVGD, "weighting", default="equal")
    train_draws: int = option(5, low=1, symbol="L", paper=Paper(..., "not stated, Table 4"))
    posterior: Literal["importance", "svi", "svgd"] = "svi"
    local: LocalInference = part(
        partial(LocalInference, steps=50, rate=3e-3, zeta=1.0),
        names={name: f"personal_{name}" for name in ("steps", "epochs", "rate", "minibatch")},
        others=False,
    )
    draws: int = option(20, low=1)
    importance_draws: int = option(100, low=1)
    svgd_particles: int = option(5, low=1, symbol="J")

    @property
    def finite_posterior(self) -> bool:
        """Whether hypotheses are weighed draws of the priors."""
        return self.posterior == "importance"

    def about(self) -> JsonTable:
        """Which posterior it predicts with, and over how many draws or particles."""
        each, text = {
            "importance": (self.importance_draws, "draws of every prior, weighed by their likelihood"),
            "svi": (self.draws, "draws of the mean-field posterior under every prior"),
            "svgd": (self.svgd_particles, "particles under every prior"),
        }[self.posterior]
        average = f"predictions averaged over {each} {text}; mean_weights: over the posteriors' means"
        return {"draws": each, "average": average, "inference": f"sampled evidence (eq. 38), then {self.posterior}"}

    def client(self, message: Message, state: Nothing, batch: ClientBatch, noise: Noise) -> tuple[Update, Nothing]:
        """Differentiate the log evidence of a minibatch by every particle (Algorithm 2)."""
        rows = self.drawn_rows(batch, noise)
        power, factor = self.minibatch_weights(batch, rows)
        scale = power * sampled_evidence.tempering(self.beta, batch, batch)
        score, log_evidence, effective = sampled_evidence.particle_scores(
            self.model, message.particles, rows, scale, self.train_draws, noise
        )
        factor = factor.unsqueeze(-1)
        score, log_evidence = score * factor.to(score).unsqueeze(-1), log_evidence * factor
        return Update(score, log_evidence, torch.ones_like(batch.size), effective), state

    def from_release(self, message: Message, mean: Mapping[str, Tensor], clients: float) -> Update:
        """Rescale the released mean score [1, P, 2D] to the sum over clients, from which the server restores eq. 40."""
        score = mean["score"] * clients
        unknown = private_steps.unknown(score).to(score).unsqueeze(1).expand(score.shape[:2])
        return Update(score, unknown, private_steps.unit_weights(score) * clients, unknown)

    def personalise(self, message: Message, state: Nothing, batch: ClientBatch, noise: Noise) -> MixturePosterior:
        """Mix the client's posteriors under all priors by their evidence (eq. 37), for new clients too."""
        priors = sampled_evidence.prior_of(message.particles)
        components = _one_by_one(priors, batch.clients)
        kept = noise.copy()  # draws of others after this one must not move a posterior
        if self.posterior == "importance":
            log_weights, means, doubts = self._weighed(priors, batch, noise)
            return WeightedSamples(self.model, components, log_weights, kept, means, batch, doubts)
        fits = [result for prior in components for result in self._fits(prior, batch, noise)]
        each, seen = len(fits) // len(components), self.draws if self.posterior == "svi" else 1
        share, doubts = self._shares(priors, batch, noise)
        share = share.repeat_interleave(each, 1) - math.log(each * seen)
        means, log_weights = tuple(fit.mean() for fit in fits), share.unsqueeze(-1).expand(-1, -1, seen)
        return FamilyMixture(self.model, tuple(fits), log_weights, kept, means, batch, doubts)

    def absorb(self, message: Message, state: Nothing, seen: ClientBatch, rows: ClientBatch, noise: Noise) -> Nothing:
        """`personalise` infers from all rows."""
        return state

    def refine(self, prior: Any, seen: ClientBatch, rows: ClientBatch, noise: Noise) -> RefinedPosterior:
        """Reweight the same draws by all rows, or continue every mean-field fit from P with P as prior.

        Networks that normalise by statistics of rows keep those of P, so that Q and P are over the same networks.

        Args:
            prior: P, of the rows `seen`.
            seen: rows of K clients.
            rows: later rows of theirs, in the same order.
            noise: the clients' streams, for "svi".

        Returns:
            Q and KL(Q || P) [K]: that of weights on a list, or a bound for mixtures whose components keep P's weights
            and, where a fit diverged, P's mean field.

        Raises:
            AssumptionError: for "svgd", whose points have no density.
            ShapeError: when the clients are others.
        """
        if self.posterior == "svgd":
            raise AssumptionError(
                "a posterior of particles is infinitely far from any other: no bound holds of it",
                hint="posterior = 'importance' or 'svi'",
            )
        if not prior.noise.ids == seen.ids == rows.ids:
            raise ShapeError(f"rows must be of clients {prior.noise.ids}, got those of {seen.ids} and {rows.ids}")
        result: FamilyMixture | WeightedSamples
        if self.posterior == "importance":
            priors = tensors.tree_map(lambda *leaves: torch.stack(leaves, 1), *prior.components)
            log_weights, means, doubts = self._weighed(priors, seen.extend(rows), prior.noise)
            result = replace(prior, log_weights=log_weights, means=means, doubts=doubts)
        else:
            fits = tuple(self._fitted_on(one, rows, noise) for one in prior.components)
            result = replace(prior, components=fits, means=tuple(fit.mean() for fit in fits))
        return RefinedPosterior(result, result.kl(prior))

    def global_model(self, message: Message, state: Nothing, batch: ClientBatch, noise: Noise) -> FamilyMixture:
        """The mixture of the priors with equal weights: the posterior of a client without rows."""
        components = _one_by_one(sampled_evidence.prior_of(message.particles), batch.clients)
        alike = torch.zeros(batch.clients, len(components), self.draws, dtype=torch.float64, device=batch.x.device)
        means = tuple(prior.loc for prior in components)
        return FamilyMixture(
            self.model, components, alike - math.log(len(components) * self.draws), noise, means, batch
        )

    def _fits(self, prior: MeanField, batch: ClientBatch, noise: Noise) -> list[Any]:
        """Posteriors under one prior, leaves [K, D]; all priors use the same minibatches and draws."""
        if self.posterior == "svi":
            return [self._fitted(prior, batch, noise)]
        local, forked = Tempered(**asdict(self.local), beta=self.beta), noise.fork()
        start = torch.stack([prior.weights(prior.draw(forked)) for _ in range(self.svgd_particles)], 1)
        towards = partial(svgd.direction, rule=self.bandwidth)
        result = weight_svgd.fit(self.model, local, prior, start, batch, forked, towards)
        return [PointMass(theta) for theta in result.unbind(1)]

    def _fitted(self, prior: MeanField, batch: ClientBatch, noise: Noise, free: Tensor | None = None) -> MeanField:
        """Fit a mean field [K, D] from its prior and against it; weights that are not `free` [D] stay as they are."""
        local = Tempered(**asdict(self.local), beta=self.beta)
        result: MeanField = svi.fit(self.model, local, prior, batch, noise.fork(), 1, svi.draw_of, free)
        return result

    def _fitted_on(self, prior: MeanField, rows: ClientBatch, noise: Noise) -> MeanField:
        """Fit a mean field [K, D] on; weights that are numbers stay as they are, and so does all where a fit fails."""
        result = self._fitted(prior, rows, noise, self.model.stochastic_columns().to(prior.loc.device))
        return tensors.where(tensors.finite(result), result, prior)

    def _values(self, priors: MeanField, batch: ClientBatch, noise: Noise) -> Tensor:
        """Terms of eq. 38 for all rows [K, P, L'], of the draws that `noise` gives next; it still gives them."""
        scale = sampled_evidence.tempering(self.beta, batch, batch)
        return sampled_evidence.log_values(self.model, priors, batch, scale, self.importance_draws, noise.copy())

    def _shares(self, priors: MeanField, batch: ClientBatch, noise: Noise) -> tuple[Tensor, Doubts]:
        """Log weights of the priors [K, P], and their doubts: eq. 37b with the estimated evidence, or all alike."""
        if self.weighting == "equal":
            count = priors.loc.shape[-2]
            alike = torch.full((batch.clients, count), -math.log(count), dtype=torch.float64, device=batch.x.device)
            return alike, None
        values = self._values(priors, batch, noise)
        doubts = self._doubts(values, _effective(values.log_softmax(-1)).amin(1), batch.names)
        return values.logsumexp(-1).log_softmax(-1), doubts

    def _weighed(
        self, priors: MeanField, batch: ClientBatch, noise: Noise
    ) -> tuple[Tensor, tuple[Tensor, ...], Doubts]:
        """Log weights of draws from all priors [K, P, L'], mean weights [K, D] by each prior's draws, and doubts."""
        values = self._values(priors, batch, noise)
        within, count = values.log_softmax(-1), values.shape[1]
        if self.weighting == "evidence":
            log_weights = values.flatten(1).log_softmax(-1).view(values.shape)
        else:
            log_weights = within - math.log(count)
        each = log_weights.flatten(1) if self.weighting == "evidence" else within
        effective = _effective(each)
        doubts = self._doubts(values, effective if self.weighting == "evidence" else effective.mean(1), batch.names)
        again, like = noise.copy(), sampled_evidence.one_of(priors.loc, batch.clients)
        eps = torch.zeros_like(like.unsqueeze(1).expand(-1, count, -1))
        for weight in within.exp().to(like).unbind(-1):
            eps.addcmul_(weight.unsqueeze(-1), again.weights(like).unsqueeze(1))
        return log_weights, priors.weights(eps).unbind(1), doubts

    def _doubts(self, values: Tensor, effective: Tensor, names: Sequence[str]) -> Doubts:
        """Warn where numbers can be read at once, and leave it to the evaluation where a device has them."""
        if not tensors.on_host(values):
            return partial(self._look_at, values, effective, names)
        self._look_at(values, effective, names)
        return None

    def _look_at(self, values: Tensor, effective: Tensor, names: Sequence[str]) -> None:
        """Warn of clients whose sums over draws [K, P, L'] are none, or a single draw by effective numbers [K]."""
        none = [
            name for name, one in zip(names, values.amax((1, 2)).tolist(), strict=True) if one <= sampled_evidence.NONE
        ]
        if none:
            warnings.warn(
                f"the likelihood of {listed(none, 3)} is zero under every draw of every prior",
                stacklevel=caller_stacklevel(),
            )
        few = [
            name
            for name, one in zip(names, effective.tolist(), strict=True)
            if one < MIN_EFFECTIVE_DRAWS and name not in none
        ]
        if few and self.importance_draws > 2:
            what, then = {
                "importance": ("posterior", "take posterior = 'svi'"),
                "svi": ("priors' weights", "take weighting = 'equal'"),
                "svgd": ("priors' weights", "take weighting = 'equal'"),
            }[self.posterior]
            warnings.warn(
                f"{what} of {listed(few, 3)} stand on one draw of {self.importance_draws} from a prior: {then}, or "
                "more importance_draws",
                stacklevel=caller_stacklevel(),
            )

    def counts(self, update: Update) -> Mapping[str, Tensor]:
        """Effective draws of the mean client."""
        return {"effective_samples": update.effective.sum(0).mean() / update.weight.sum().clamp_min(1.0)}

    def remark(self, values: Mapping[str, float]) -> str | None:
        """Warn when one draw dominates the evidence: the gradient is then that of the largest draw."""
        if self.train_draws <= 2 or not values["effective_samples"] < MIN_EFFECTIVE_DRAWS:
            return None
        return (
            f"one of {self.train_draws} draws carries the evidence of most clients, and the gradient is that of the "
            "largest: a smaller beta, or narrower priors (init_rho), let more of them count"
        )

    def footprint(self, rows: int) -> int:
        """Numbers per client: a gradient for every particle, and the activations of the network."""
        rows = rows if self.minibatch is None else min(rows, self.minibatch)
        svgd_particles = self.svgd_particles**2 if self.posterior == "svgd" else 0  # distances of all pairs
        return max(self.particles * (self.model.footprint(rows) + self.model.dim), svgd_particles * self.model.dim)


def _effective(log_weights: Tensor) -> Tensor:
    """Effective number of draws 1 / sum w^2 [K, *] of normalised log weights [K, *, L]."""
    return (2.0 * log_weights).exp().sum(-1).reciprocal()


def _one_by_one(priors: MeanField, clients: int) -> tuple[MeanField, ...]:
    """Give K clients views of each of P priors: from leaves [P, D] or [K, P, D] to P times leaves [K, D]."""
    count = priors.loc.shape[-2]
    return tuple(
        tensors.tree_map(lambda leaf, p=p: leaf.select(-2, p).expand(clients, -1), priors) for p in range(count)
    )


ROUNDS: Mapping[str, object] = MappingProxyType({"rounds": 1000, "cohort": 10})  # cheap ones: a gradient each

RECIPE = Recipe(
    "PAC-PFL on networks: a hyper-posterior over priors of the weights by federated SVGD",
    PacPFLBNN,
    MethodSummary(
        "Bayesian network, mean field",
        "sampled_evidence.particle_scores",
        "svgd.direction",
        "score [K, P, 2D]",
        "nothing",
    ),
    model="weights",
    presets={"recommended": {"federation": ROUNDS}, "paper": {"federation": ROUNDS}},
    search={
        "method.rate": LogUniform(5e-4, 1e-2),
        "method.tau": LogUniform(0.05, 1.0),
        "method.mean_std": LogUniform(0.1, 3.0),
        "method.init_rho": OneOf((-4.0, -3.0, -1.5)),
        "method.train_draws": OneOf((5, 20)),
        "federation.rounds": OneOf((250, 500, 1000)),
    },
    held_out=(HeldOutChoice("posterior", ("svi", "importance", "svgd")),),
    trials=Trials(trial_rounds=100),
)
