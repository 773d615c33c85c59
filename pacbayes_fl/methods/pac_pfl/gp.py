"""PAC-PFL with Gaussian processes: a distribution over priors, learned by federated SVGD (Algorithms 1 and 2).

Algorithm 1, the server, is `FederatedSVGD`, which PAC-PFL on networks (`methods.pac_pfl.bnn`) shares:

    2  draw phi_1, ..., phi_k from the hyper-prior P                                         `init_server`
    3  for t = 1, ..., T                                                                     `federation.engine`
    4      draw a cohort of c clients                                                        `federation.engine`
    6      G_i = Client_Update(b, phi_1, ..., phi_k) for each of them                        `broadcast`, `client`
    7      G = 1/c sum_i G_i                                                                 `reduce`, `server`
    9      grad ln Q*(phi_l) = grad ln P(phi_l) + tau n G_l          (eq. 40)                `server`
   11      phi_l += eta/k sum_j [k(phi_j, phi_l) grad ln Q*(phi_j) + grad k(phi_j, phi_l)]   `svgd.direction` (eq. 39)

Algorithm 2, Client_Update, is `PacPFL.client`:

    2  draw a minibatch of b rows of S_i                                                     `drawn_rows`
    4  G_il = grad ln Z_m_i(P_phi_l, minibatch)                      (eq. 33)                `evidence.particle_scores`

The posteriors of clients (eqs. 35-37) are `PacPFL.personalise`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Generic, Literal, NamedTuple, Protocol, TypeVar, final

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import StudyError
from pacbayes_fl.inference import evidence
from pacbayes_fl.inference.optim import Adam, adam, adam_init, sgd
from pacbayes_fl.methods import private_steps
from pacbayes_fl.methods.base import Method, Nothing, RefinedPosterior
from pacbayes_fl.methods.gp_choices import GP_SEARCH, NETWORKS, NOISE, OWN_ROWS, PRIOR, RATE, SCALE, STDS, STEPS, TRIALS
from pacbayes_fl.methods.options import Paper, part
from pacbayes_fl.methods.recipe import HELD_OUT, HeldOutChoice, LogUniform, MethodSummary, Recipe
from pacbayes_fl.models.base import FunctionModel, default
from pacbayes_fl.noise import Noise
from pacbayes_fl.options import OpenNames, check, option
from pacbayes_fl.posteriors.functions.conditioning import Conditioned, condition, refined, tempered
from pacbayes_fl.posteriors.hyper_posterior import (
    HYPER_PRIORS,
    CentredHyperPrior,
    HyperPosterior,
    HyperPrior,
    gibbs_tau,
    is_hyper_prior,
)
from pacbayes_fl.posteriors.predictive import LearnedPriors
from pacbayes_fl.server import svgd

Model = TypeVar("Model")
MinibatchScale = Literal["inside", "outside", "none"]


class Server(NamedTuple):
    """Particles phi [P, D] and the moments of their optimiser."""

    particles: Tensor
    adam: Adam[Tensor]


class Message(NamedTuple):
    """Particles phi [P, D]: the moments stay at home."""

    particles: Tensor


class Scored(Protocol):
    """Scores of clients [K, P, D], or their sum over `weight` clients [1, P, D]."""

    @property
    def score(self) -> Tensor:
        """Gradient of the log evidence [K, P, D], in nats per unit of phi."""

    @property
    def log_evidence(self) -> Tensor:
        """Log evidence ln Z [K, P], in nats."""

    @property
    def weight(self) -> Tensor:
        """Number of clients behind a row [K]."""


Scores = TypeVar("Scores", bound=Scored)


@dataclass(frozen=True)
class FederatedSVGD(Method[Server, Message, Nothing, Scores], Generic[Model, Scores]):
    """The server's half, Algorithm 1, for priors of any kind; clients keep nothing.

    A subclass says what the priors are: how a client differentiates its log evidence by them (Algorithm 2), and what
    posterior it has under them.

    Args:
        model: what phi are the parameters of a prior of.
        hyper_prior: distribution of phi, or what makes it of the model, such as `CentredHyperPrior(0.5)`.
        particles: number of priors that stand for the hyper-posterior, k.
        tau: exponent of the evidence in the hyper-posterior (eq. 40), or None to take it from lam, beta and n2. Those
            of Corollary 4.4 are in (0, 1); 1, which counts every row once, is the limit as n2 + v goes to 0.
        lam: lambda of Theorem 4.2.
        beta: temperature of the clients' posteriors.
        n2: clients that expect new samples.
        v: small constant of Theorem 4.2.
        rate: learning rate of the particles, eta.
        optimiser: "adam" on the SVGD direction, or "ascent" (eq. 39 as printed).
        bandwidth: rule of the SVGD kernel, or its h.
        minibatch: rows b per client and round, all when None.
        minibatch_scale: what the b rows count for. With Z(c) the prior expectation of the product of their likelihoods
            to the power c, "inside" takes ln Z(m_k / b), Algorithm 2 as printed (beta = m_k on the mean loss of the b
            rows; for a GP the noise s^2 becomes s^2 b / m_k), "outside" m_k / b ln Z(1), and "none" ln Z(1), whose tau
            depends on b. They agree where b is at least m_k; elsewhere no one of them is unbiased for ln Z.
        cohort_scale: "sum" restores the sum over all n clients when a cohort is drawn (eq. 40); "mean" averages over
            the cohort, which makes tau depend on n (Algorithm 1, line 7, as printed).
        weighting: of the priors' posteriors in the predictive mixture, by "evidence" (eq. 37) or "equal".
        own_hyper_prior: a hyper-prior in place of the method's, such as "mine.py:MY_PRIOR", or a function there that
            makes it of the model; what the options of the method's own say is then idle.
    """

    objective: ClassVar[str | None] = "log_evidence"
    beta_tempers: ClassVar[bool] = False
    """True where beta is the clients' temperature too, and not only a number behind tau."""
    personal_messages: ClassVar[bool] = False
    """True where `client` and `personalise` take particles that differ between clients, [K, P, D]."""

    model: Model
    hyper_prior: HyperPrior = part(
        CentredHyperPrior,
        names={"std": "hyper_prior_std"},
        paper={"std": Paper(..., "tuned by cross-validation, Table 4")},
    )
    particles: int = option(4, low=1, symbol="k", paper=Paper(4, "section 8.6.2"))
    tau: float | None = option(1.0, above=0, symbol="tau", paper=Paper(..., "above 1 / (1 + n beta), section 8.6.2"))
    lam: float | None = option(
        None, above=0, symbol="lambda", paper=Paper(..., "tuned by cross-validation, Table 4: tau says as much")
    )
    beta: float | None = option(None, above=0, symbol="beta", paper=Paper(..., "m_i, section 8.6.2 and Table 4"))
    n2: float = option(0.0, low=0, symbol="n_2")
    v: float = option(1e-4, low=0, symbol="v", paper=Paper(1e-4, "Table 4"))
    rate: float = option(1e-2, above=0, symbol="eta", paper=Paper(..., "tuned by cross-validation, Table 4"))
    optimiser: Literal["adam", "ascent"] = option("adam", paper=Paper("ascent", "Algorithm 1, eq. 39"))
    bandwidth: svgd.Bandwidth | float = option("off-diagonal", above=0, symbol="h")
    minibatch: int | None = option(None, low=1, symbol="b", paper=Paper(..., "not stated, Table 4"))
    minibatch_scale: MinibatchScale = option("inside", paper=Paper("inside", "Algorithm 2"))
    cohort_scale: Literal["sum", "mean"] = option("sum", paper=Paper("sum", "eq. 40; Algorithm 1 prints the mean"))
    weighting: Literal["evidence", "equal"] = option("evidence", paper=Paper("evidence", "eq. 37"))
    own_hyper_prior: str | None = option(
        None, names=lambda: OpenNames(HYPER_PRIORS), hint="a reference, such as 'mine.py:MY_PRIOR'"
    )

    def __post_init__(self) -> None:
        """Centre the hyper-prior on the model, and check the ranges and the choice of tau."""
        check(self)
        given = self.hyper_prior if self.own_hyper_prior is None else HYPER_PRIORS[self.own_hyper_prior]
        made = given if is_hyper_prior(given) or not callable(given) else given(self.model)
        if not is_hyper_prior(made):
            what = f"{self.own_hyper_prior or 'hyper_prior'} must give a hyper-prior, got {type(made).__name__}"
            raise StudyError(what, hint="a hyper-prior has sample(particles, generator) and score(particles)")
        object.__setattr__(self, "hyper_prior", made)
        if self.tau is None and (self.lam is None or self.beta is None):
            raise StudyError("tau is None, so lam and beta are needed", hint="tau = lam / (lam + beta n (n2 + v))")
        idle = self.lam is not None or (self.beta is not None and not self.beta_tempers)
        if self.tau is not None and idle:
            raise StudyError("tau is given, so lam and beta would not count", hint="tau = 'none' takes it from them")
        if self.tau is None and self.lam is not None and self.beta is not None:
            gibbs_tau(self.lam, self.beta, 1, self.n2, self.v)  # refuses a lambda that Theorem 4.2 does not allow

    def init_server(self, generator: torch.Generator) -> Server:
        """Draw the particles from the hyper-prior (Algorithm 1, line 2)."""
        particles = self.hyper_prior.sample(self.particles, generator)
        return Server(particles, adam_init(particles))

    def init_clients(self, message: Message, batch: ClientBatch) -> Nothing:
        """No client state."""
        return Nothing()

    def broadcast(self, server: Server) -> Message:
        """Send the particles (Algorithm 1, line 6)."""
        return Message(server.particles)

    def server(self, server: Server, update: Scores, n_clients: int) -> Server:
        """Move the particles along the SVGD direction (Algorithm 1, lines 7-11; eqs. 39-40), in units of `units`."""
        present = update.weight.sum().clamp_min(1.0).to(update.score.dtype)
        restored = (n_clients if self.cohort_scale == "sum" else 1.0) / present
        tau = gibbs_tau(self.lam or 0.0, self.beta or 0.0, n_clients, self.n2, self.v) if self.tau is None else self.tau
        hyper_posterior = HyperPosterior(server.particles, self.hyper_prior)
        score = hyper_posterior.score() + tau * restored * update.score.sum(0)
        units = self.units(server.particles)
        particles, moments = server.particles / units, server.adam
        downhill = -svgd.direction(particles, score * units, self.bandwidth)
        if self.optimiser == "ascent":
            particles = sgd(particles, downhill, self.rate)
        else:
            particles, moments = adam(particles, downhill, moments, self.rate)
        return Server(particles * units, moments)

    @default
    def units(self, particles: Tensor) -> Tensor:
        """Units in which particles move.

        Args:
            particles: phi [P, D].

        Returns:
            [D], or [] of all coordinates.
        """
        return particles.new_ones(())

    def client_deltas(self, message: Message, update: Scores) -> dict[str, Tensor]:
        """The score of all particles together [K, P, D]: one vector, so that one clip bounds it."""
        return {"score": update.score}

    def check_private(self) -> None:
        """Scores may be released, whatever the options."""

    def drawn_rows(self, batch: ClientBatch, noise: Noise) -> ClientBatch:
        """Draw a minibatch of every client's rows (Algorithm 2, line 2).

        Args:
            batch: all rows.
            noise: the clients' streams; nothing is drawn from them where all rows are asked for.

        Returns:
            The rows; the batch itself where no client has more of them.
        """
        if self.minibatch is None:
            return batch
        at = noise.rows(batch.mask, self.minibatch)  # also where all rows are taken: padding must not move later draws
        return batch.rows(at) if self.minibatch < batch.mask.shape[1] else batch

    def minibatch_weights(self, batch: ClientBatch, rows: ClientBatch) -> tuple[Tensor, Tensor]:
        """The factor by which the evidence of a minibatch is scaled (Algorithm 2, line 4).

        Args:
            batch: all rows of K clients.
            rows: those that `drawn_rows` took of them.

        Returns:
            The power of every row's likelihood inside the expectation, and the factor of its logarithm [K], float64.
        """
        ratio = torch.where(rows.size > 0, batch.size / rows.size.clamp_min(1.0), 1.0)
        one = torch.ones_like(ratio)
        return {"inside": (ratio, one), "outside": (one, ratio), "none": (one, one)}[self.minibatch_scale]

    def reduce(self, update: Scores) -> Scores:
        """Sum the clients of a chunk: the server needs no more."""
        return tensors.total(update)

    def report(self, server: Server, update: Scores) -> Mapping[str, Tensor]:
        """Mean log evidence per client, size of the summed score, spread of the particles."""
        present = update.weight.sum().clamp_min(1.0)
        return {
            "log_evidence": update.log_evidence.sum(0).mean() / present,
            "score_norm": update.score.sum(0).norm(),
            "spread": svgd.spread(server.particles),
            **self.counts(update),
        }

    @default
    def counts(self, update: Scores) -> Mapping[str, Tensor]:
        """Further numbers [] of a round for its record."""
        return {}


class Update(NamedTuple):
    """Scores of clients, or their sum over `weight` of them.

    Args:
        score: gradient of the log evidence [K, P, D], in nats per unit of phi.
        log_evidence: ln Z [K, P], in nats.
        weight: number of clients behind a row [K].
        jittered: number of them that needed jitter under some particle [K].
    """

    score: Tensor
    log_evidence: Tensor
    weight: Tensor
    jittered: Tensor


@final
@dataclass(frozen=True)
class PacPFL(FederatedSVGD[FunctionModel, Update]):
    """The client's half, Algorithm 2, with Gaussian processes (eqs. 33-40); fields as in `FederatedSVGD`, and one more.

    The model is a prior over functions with hyper-parameters phi; a flat hyper-prior with one particle makes pFedGP.
    beta = m_i makes Z the marginal likelihood.

    Args:
        preconditioner: of SVGD and its optimiser. "none", as in the paper, takes steps of the same size for all
            hyper-parameters; "spreads" takes them in phi / s, with the model's own spreads s (`FunctionModel.spreads`),
            so that what may go far, such as an outputscale, does so in as many rounds as what may not; "model" leaves
            it to the model: its own prior takes these without networks, and steps of the same size with them.

    Example:
        >>> import torch
        >>> from pacbayes_fl import ClientBatch, DeepKernelGP, FederationPlan, PacPFL, join, run_rounds
        >>> x = torch.linspace(-1, 1, 8, dtype=torch.float64).unsqueeze(1)
        >>> batch = ClientBatch.pad([(x, torch.sin(3 * x[:, 0]) + 0.1 * k) for k in range(3)])
        >>> method = PacPFL(DeepKernelGP(1, (4,), (4,)), particles=2)
        >>> server = run_rounds(method, batch, FederationPlan(rounds=5)).server
        >>> new = ClientBatch.pad([(x[:n], torch.sin(3 * x[:n, 0])) for n in (1, 8)], ["one row", "eight rows"])
        >>> one, eight = join(method, server, new, seed=0).predict(x[3:4].expand(2, 1, 1)).variance[:, 0].tolist()
        >>> one > eight
        True
    """

    personal_messages: ClassVar[bool] = True

    preconditioner: Literal["model", "none", "spreads"] = option("model", paper=Paper("none", "Algorithm 1, eq. 39"))

    def units(self, particles: Tensor) -> Tensor:
        """The model's units or spreads, where it has some and they are asked for, else 1.

        Args:
            particles: phi [P, D].

        Returns:
            [D], or [] of all coordinates.
        """
        spreads = None if self.preconditioner == "none" else self.model.spreads()
        if spreads is None:
            return particles.new_ones(())
        return (spreads.units if self.preconditioner == "model" else spreads.prior).to(particles)

    def client(self, message: Message, state: Nothing, batch: ClientBatch, noise: Noise) -> tuple[Update, Nothing]:
        """Differentiate the log evidence of a minibatch by every particle (Algorithm 2)."""
        rows = self.drawn_rows(batch, noise)
        power, factor = (None, None) if rows is batch else self.minibatch_weights(batch, rows)
        score, log_evidence, jitter = evidence.particle_scores(self.model, message.particles, rows, power)
        if factor is not None:
            factor = factor.to(score).unsqueeze(-1)
            score, log_evidence = score * factor.unsqueeze(-1), log_evidence * factor
        jittered = (jitter > 0).any(1).to(batch.size)
        update = Update(score, log_evidence, torch.ones_like(batch.size), jittered)
        return update, state

    def from_release(self, message: Message, mean: Mapping[str, Tensor], clients: float) -> Update:
        """Make the sum of scores out of their mean [1, P, D]: the server restores the sum over all from it (eq. 40)."""
        score, unknown = mean["score"] * clients, private_steps.unknown(mean["score"])
        log_evidence = unknown.to(score).unsqueeze(1).expand(score.shape[:2])
        return Update(score, log_evidence, private_steps.unit_weights(score) * clients, unknown)

    def personalise(self, message: Message, state: Nothing, batch: ClientBatch, noise: Noise) -> Conditioned:
        """Condition every particle's GP on the client's rows (eqs. 35-37); no training, for new clients too."""
        theta = message.particles.expand(batch.clients, *message.particles.shape[-2:])
        return condition(self.model, theta, batch, self.weighting)

    def absorb(self, message: Message, state: Nothing, seen: ClientBatch, rows: ClientBatch, noise: Noise) -> Nothing:
        """`personalise` conditions on all rows."""
        return state

    def refine(self, prior: Conditioned, seen: ClientBatch, rows: ClientBatch, noise: Noise) -> RefinedPosterior:
        """Condition the particles' GPs on all rows: the exact posterior again, from P whose particles stay as they are.

        Args:
            prior: P, of the rows `seen`.
            seen: rows of K clients.
            rows: later rows of theirs.
            noise: not used.

        Returns:
            Q, and a bound on KL(Q || P) [K]; see `posteriors.functions.conditioning.refined`.
        """
        return RefinedPosterior(*refined(prior, seen, rows, self.weighting))

    def learned_priors(self, server: Server) -> LearnedPriors:
        """Give the particles: clients condition a Gaussian process on their rows under each."""

        def conditioned(theta: Tensor, batch: ClientBatch) -> Conditioned:
            return condition(self.model, theta, batch, "equal")

        def to_a_power(theta: Tensor, batch: ClientBatch, power: float) -> Conditioned | None:
            return tempered(self.model, theta, batch, torch.full_like(batch.y, power), "equal")

        return LearnedPriors(server.particles, self.hyper_prior, conditioned, self.particles, to_a_power)

    def counts(self, update: Update) -> Mapping[str, Tensor]:
        """Clients whose covariances needed jitter."""
        return {"jittered": update.jittered.sum()}

    def footprint(self, rows: int) -> int:
        """Numbers per client: one covariance per particle."""
        rows = rows if self.minibatch is None else min(rows, self.minibatch)
        return self.particles * (self.model.footprint(rows) + self.model.dim)


def _rates(options: PacPFL) -> tuple[float, ...]:
    """Candidates: the steps of plain ascent are as long as the scores, which sum over all rows of the federation."""
    return (1e-2, 3e-3) if options.optimiser == "adam" else (1e-3, 1e-4, 1e-5)


RECIPE = Recipe(
    "PAC-PFL: a hyper-posterior over GP priors by federated SVGD",
    PacPFL,
    MethodSummary("deep-kernel GP", "evidence.particle_scores", "svgd.direction", "score [K, P, D]", "nothing"),
    presets={"paper": {"method": {"rate": HELD_OUT}, "model": {"linear": "none"}, "federation": {"rounds": 1000}}},
    search={
        "method.tau": LogUniform(0.05, 1.0),
        "method.hyper_prior_std": STDS,
        "federation.rounds": STEPS,
        **GP_SEARCH,
    },
    held_out=(
        SCALE,
        NOISE,
        HeldOutChoice("hyper_prior_std", (0.3, 1.0), by_default=False, clients=True, whole=True, better="most"),
        HeldOutChoice("tau", (1.0, 0.3, 0.1), by_default=False, clients=True),
        RATE._replace(values=_rates),
        HeldOutChoice("bandwidth", ("off-diagonal", "independent"), by_default=False, clients=True),
        NETWORKS._replace(whole=True),
        *PRIOR,
    ),
    trials=TRIALS,
    own_rows={**OWN_ROWS, "method": {"hyper_prior_std": HELD_OUT}},  # .3 is too narrow for functions that turn often
)
