"""FedSI: MAP estimates with a Laplace approximation on the weights of largest variance (FedSI, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple, final

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import PrivacyError, StudyError
from pacbayes_fl.files import JsonTable
from pacbayes_fl.inference import curvature, laplace, map_estimate, subnetwork
from pacbayes_fl.inference.map_estimate import GaussianPrior, LocalDescent
from pacbayes_fl.inference.subnetwork import Rule, SubnetworkChoice
from pacbayes_fl.methods import private_steps
from pacbayes_fl.methods.base import Method, RefinedPosterior
from pacbayes_fl.methods.baselines.point import initial_weights
from pacbayes_fl.methods.fine_tuning import FineTuned
from pacbayes_fl.methods.options import Paper, part
from pacbayes_fl.methods.recipe import (
    PAPER_ROUNDS,
    ROUNDS,
    HeldOutChoice,
    LogUniform,
    MethodSummary,
    OneOf,
    Recipe,
    Trials,
)
from pacbayes_fl.models.base import WeightModel
from pacbayes_fl.noise import Noise
from pacbayes_fl.options import check, option
from pacbayes_fl.posteriors.predictive import Posterior
from pacbayes_fl.posteriors.weights.laplace import GaussianWeights
from pacbayes_fl.posteriors.weights.linearised import PREDICTIVES, LinearisedPosterior, LinearisedPredictive
from pacbayes_fl.server import average, moments, sites
from pacbayes_fl.server.moments import Moments
from pacbayes_fl.server.sites import Site

ALPHAS = (1e-2, 1e-1, 1e-3, 1.0, 1e-4)
"""Prior variances among which held-out rows choose; of equally good ones the first."""

PERSONAL_ALPHAS = (0.1, 0.3, 0.03, 1.0, 0.01, 3.0, 1e-3, 10.0)
"""The same of personal models."""

RULES: tuple[Rule, ...] = ("curvature", "random", "variance", "magnitude", "last-layer")
"""Rules of personal models among which they choose."""

PRIORS: Mapping[str, str] = MappingProxyType(
    {
        "cumulative": "averaged posteriors of the round before: rows count once for every round that their client took "
        "part in, so that variances are those of no single posterior",
        "divide": "averaged posteriors of the round before without the client's own contribution: its rows count once",
    }
)
"""What a round's prior is, in words for people, by the option `prior`."""


class Server(NamedTuple):
    """State of the server.

    Args:
        moments: averaged means and variances [D] of the representation, variance 0 where nobody is uncertain; the
            decision layers' means are those with which clients begin.
    """

    moments: Moments


class Message(NamedTuple):
    """The prior of a round: means and positive variances [D]."""

    prior: Moments


class Client(NamedTuple):
    """State of a client.

    Args:
        head: weights of its decision layers [K, H].
        flat: chosen weights without curvature, in the last round [K].
        site: its last contribution to the prior of the representation, leaves [K, R]; [K, 0] where nobody takes it out.
    """

    head: Tensor
    flat: Tensor
    site: Site


class Update(NamedTuple):
    """Updates of clients, or their mean with the sums of the other leaves.

    Args:
        moments: of the representation [K, R]: MAP estimates, and posterior variances that are 0 outside of the
            subnetwork.
        weight: in the server's average [K].
        clients: number of clients behind a row [K].
        loss: mean negative log likelihood per row over the local steps [K], in nats.
        flat: chosen weights without curvature [K].
    """

    moments: Moments
    weight: Tensor
    clients: Tensor
    loss: Tensor
    flat: Tensor


@final
@dataclass(frozen=True)
class FedSI(FineTuned[Client], Method[Server, Message, Client, Update]):
    """FedSI (Algorithm 1, eqs. 10-19), and FedSI-Fac with `covariance = "diagonal"` over the whole representation.

    Args:
        model: the likelihood; its first sites are the representation, its last ones the decision layers.
        local: steps towards the MAP estimate.
        subnetwork: rule by which weights are uncertain in the rounds, by its name or, in a program, a rule itself. Of
            the weights of largest "variance", the paper's, most have no curvature (of 785 on MNIST 746), so that
            predictions do not change: personal models take others.
        personal_subnetwork: the same of the personal models' posteriors; "same" is that of the rounds.
        fraction: share of the representation's weights that a rule chooses, E.
        covariance: of the chosen weights, "full" or "diagonal".
        alpha: prior variance of weights that nobody found uncertain, in squared units of a weight.
        personal_alpha: prior variance of the uncertain weights of a personal model, in squared units of a weight;
            "round" is that of the last round's prior, as in the paper.
        predictive: how labels are predicted, see `LinearisedPosterior`.
        draws: draws over which predictions by sampling are averaged.
        finetune: passes of `local.steps` minibatches on the decision layers at personalisation.
        personal_sites: number of last sites that are the decision layers; 2 are the last layer's weight and bias.
        train_head: train the decision layers in every round too, and keep them, as the authors' code does; the paper
            leaves them as they began.
        upload: "variance" of the posterior, or its "curvature" without the prior, as the authors' code does.
        prior: "cumulative" takes the averaged posteriors of a round for the prior of the next one, as the paper does: a
            row counts once for every round, the precision of one client after T rounds is 1 / alpha + T H. "divide"
            takes the client's own last contribution out of its prior first, so that it is 1 / alpha + H; see
            `server.sites.without`.
        prior_weight: factor of the prior in the loss per row; 1 / m_k when None.
        floor: least prior variance of an uncertain weight.
        weighting: of clients in the server's average.
        init_std: spread of the initial weights, the same for all clients.

    Example:
        >>> from pacbayes_fl import BayesianMLP, Categorical, FedSI
        >>> FedSI(BayesianMLP((784, 100, 10), Categorical(10))).shared  # of 79,510 weights those that may be uncertain
        78500
    """

    personal_model: ClassVar[str] = (
        "personal models of the averaged representation, uncertain where the client's own rows leave it so, and "
        "decision layers that were fine-tuned"
    )

    released_whole: ClassVar[str | None] = "variances"
    objective: ClassVar[str | None] = "loss"

    model: WeightModel
    local: LocalDescent = part(
        LocalDescent,
        paper={
            "steps": Paper(None, "10 epochs instead"),
            "epochs": Paper(10, "section IV, implementation details"),
            "minibatch": Paper(50, "section IV, hyperparameters"),
            "rate": Paper(1e-2, "section IV, hyperparameters"),
            "optimiser": Paper("adam", "section IV, implementation details"),
        },
    )
    subnetwork: Rule | SubnetworkChoice = option("variance", paper=Paper("variance", "eq. 14"))
    personal_subnetwork: Rule | Literal["same"] | SubnetworkChoice = option(
        "magnitude", paper=Paper("same", "section III.A, step 4")
    )
    fraction: float = option(
        0.01, above=0, high=1, symbol="E", paper=Paper(0.05, "section IV.B for the MLP; 0.07 for the CNN")
    )
    covariance: Literal["full", "diagonal"] = option("full", paper=Paper("full", "eq. 15"))
    alpha: float = option(ALPHAS[0], above=0, symbol="alpha", paper=Paper(1e-4, "section IV, hyperparameters"))
    personal_alpha: float | Literal["round"] = option(
        PERSONAL_ALPHAS[0], above=0, paper=Paper("round", "section III.A, step 4")
    )
    predictive: LinearisedPredictive = option("monte-carlo", paper=Paper("probit", "eq. 19"))
    draws: int = option(20, low=1)
    finetune: int = option(5, low=0)
    personal_sites: int = option(2, low=1)
    train_head: bool = option(False, paper=Paper(False, "Algorithm 1"))
    upload: Literal["variance", "curvature"] = option("variance", paper=Paper("variance", "Algorithm 1"))
    prior: Literal["cumulative", "divide"] = option("cumulative", paper=Paper("cumulative", "section III.B"))
    prior_weight: float | None = option(None, low=0, paper=Paper(None, "eq. 10"))
    floor: float = option(0.0, low=0)
    weighting: average.Weighting = option("uniform", paper=Paper("uniform", "Algorithm 1"))
    init_std: float = option(0.1, above=0)

    def __post_init__(self) -> None:
        """Check the ranges, and that the upload has a contribution to be taken out."""
        check(self)
        if self.prior == "divide" and self.upload == "curvature":
            what = "prior = 'divide' takes a posterior's contribution out of the prior, and a curvature is no posterior"
            raise StudyError(what, hint="upload = 'variance'")
        self.model.shared(self.personal_sites)  # refuses a number of sites that leaves one part empty

    def about(self) -> JsonTable:
        """Which weights are uncertain, and how predictions use them."""
        covariance = "full covariance on a subnetwork" if self.covariance == "full" else "diagonal covariance"
        return {
            "draws": self.draws if self.predictive in ("monte-carlo", "draws") else 1,
            "average": f"{PREDICTIVES[self.predictive]}; mean_weights: one pass at the estimate",
            "inference": f"maximum a posteriori, Laplace approximation with {covariance}, generalised Gauss-Newton",
            "prior": PRIORS[self.prior],
        }

    @property
    def choice(self) -> SubnetworkChoice:
        """The rule of the rounds."""
        return subnetwork.rule(self.subnetwork, self.fraction) if isinstance(self.subnetwork, str) else self.subnetwork

    @property
    def personal_choice(self) -> SubnetworkChoice:
        """The rule of the personal models."""
        own = self.personal_subnetwork
        if not isinstance(own, str):
            return own
        return self.choice if own == "same" else subnetwork.rule(own, self.fraction)

    @property
    def shared(self) -> int:
        """Number of weights of the representation, R, which come first."""
        return self.model.shared(self.personal_sites)

    def init_server(self, generator: torch.Generator) -> Server:
        """Draw mu^0 and the phi^0 with which every client begins; nothing is uncertain yet."""
        mean = initial_weights(self.model, self.init_std, generator)
        return Server(Moments(mean, torch.zeros_like(mean)))

    def init_clients(self, message: Message, batch: ClientBatch) -> Client:
        """Initialise at the common decision layers."""
        head = message.prior.mean[self.shared :].expand(batch.clients, -1).clone()
        nothing = batch.size.new_zeros(batch.clients, self.shared if self.prior == "divide" else 0)
        return Client(head, torch.zeros_like(batch.size), Site(nothing, nothing.clone()))

    def broadcast(self, server: Server) -> Message:
        """Send the prior of the round: weights without uncertainty get the variance alpha (section III.B)."""
        mean, variance = server.moments
        return Message(Moments(mean, moments.prior_variance(variance, self.alpha, self.floor)))

    def client(self, message: Message, state: Client, batch: ClientBatch, noise: Noise) -> tuple[Update, Client]:
        """Fit the MAP estimate, choose the subnetwork and infer its posterior (Algorithm 1, eqs. 10-15)."""
        forked = noise.fork()
        known = self._prior(message, state)
        theta, loss = self._fit(known, state, message, batch, noise)
        prior = known.variance
        ggn, index = laplace.choose(self.choice, self.model, theta, batch, prior, self.shared, forked)
        variance = laplace.only(ggn if self.upload == "curvature" else laplace.diagonal(ggn, prior), index)
        if self.upload == "variance" and self.covariance == "full":
            subset = subnetwork.curved(index, ggn)
            marginal = curvature.marginal_variance(self.model, theta, batch, subset, prior)
            variance = variance.scatter(1, subset, marginal)
        sent = Moments(theta[:, : self.shared], variance[:, : self.shared])
        weight = self.weight(batch.size)
        flat = (ggn.gather(1, index) == 0).sum(1, dtype=torch.float64)
        site = sites.contribution(known, sent) if self.prior == "divide" else state.site
        after = Client(theta[:, self.shared :].clone(), flat, site)
        return Update(sent, weight, torch.ones_like(weight), loss.double(), flat), after

    def weight(self, rows: Tensor) -> Tensor:
        """As `weighting` says, of rows [K]: [K]."""
        return average.client_weight(rows, self.weighting)

    def server(self, server: Server, update: Update, n_clients: int) -> Server:
        """Average means and variances (Algorithm 1, last line of the server)."""
        result = moments.average(update.moments, update.weight)
        joined = tensors.tree_map(lambda new, old: torch.cat((new, old[self.shared :])), result, server.moments)
        return Server(joined)

    def client_deltas(self, message: Message, update: Update) -> Moments:
        """How far the means went in a round [K, R], and variances as they are: 0 outside of the subnetwork."""
        return private_steps.deltas(update.moments, self._known(message))

    def position(self, message: Message) -> Tensor:
        """The means [D]: variances are bounded by the prior's, and curvatures have units of their own."""
        return message.prior.mean

    def check_private(self) -> None:
        """Refuse uploads of curvatures, and weights by rows, which are private."""
        if self.upload == "curvature":
            what = "upload = 'curvature' has no largest value, so that noise could make it anything"
            raise PrivacyError(what, hint="method.upload = 'variance'")
        private_steps.alike(self.weighting)

    def from_release(self, message: Message, mean: Moments, clients: float) -> Update:
        """Apply the released mean step [1, R]; variances are clamped to [0, prior variance]."""
        theta, variance = private_steps.apply_delta(mean, self._known(message))
        unknown, variance = private_steps.unknown(theta), variance.clamp_min(0.0)
        if self.upload == "variance":
            variance = variance.minimum(message.prior.variance[: self.shared])
        return Update(Moments(theta, variance), private_steps.unit_weights(theta), unknown, unknown, unknown)

    def personalise(self, message: Message, state: Client, batch: ClientBatch, noise: Noise) -> LinearisedPosterior:
        """Fine-tune the decision layers, then infer the subnetwork around the global means (section III.A, step 4)."""
        forked = noise.fork()
        theta = self._joined(message, state)
        if self.finetune:
            head = torch.arange(self.model.dim, device=theta.device) >= self.shared
            theta = map_estimate.fit(
                self.model, self.local, theta, batch, forked.copy(), self.finetune, free=head
            ).theta
        return self._around(theta, message, state, batch, forked, noise)

    def personalise_again(
        self, posterior: Posterior, message: Message, state: Client, batch: ClientBatch, noise: Noise
    ) -> LinearisedPosterior:
        """Infer the Gaussian anew around decision layers that are fine-tuned already."""
        if not isinstance(posterior, LinearisedPosterior):
            return self.personalise(message, state, batch, noise)
        return self._around(posterior.loc, message, state, batch, noise.fork(), noise)

    def refine(
        self, prior: LinearisedPosterior, seen: ClientBatch, rows: ClientBatch, noise: Noise
    ) -> RefinedPosterior:
        """Add the curvature of more rows to the precision of the Gaussian that `personalise` gave: P becomes Q.

        Args:
            prior: P.
            seen: rows that P was conditioned on; unused, since P determines the update.
            rows: the others.
            noise: the clients' streams.

        Returns:
            Q around the same estimate, and KL(Q || P) [K], in nats, float64.
        """
        q, kl = laplace.add_rows(self.model, prior.gaussian, rows)
        options = (self.predictive, self.draws, noise, prior.reference)
        return RefinedPosterior(LinearisedPosterior(self.model, prior.loc, lambda: q, *options), kl)

    def describe(self, state: Client) -> Mapping[str, Tensor]:
        """Chosen weights without curvature: their posterior is the prior."""
        return {"without_curvature": state.flat}

    def reduce(self, update: Update) -> Update:
        """Average the clients of a chunk."""
        return average.reduced(update, "moments")

    def report(self, server: Server, update: Update) -> Mapping[str, Tensor]:
        """Mean loss, chosen weights without curvature per client, and the number of weights uncertain at any client."""
        clients = update.clients.sum().clamp_min(1.0)
        uncertain = (server.moments.variance[: self.shared] > 0).sum()
        return {
            "loss": update.loss.sum() / clients,
            "without_curvature": update.flat.sum() / clients,
            "uncertain": uncertain,
        }

    def footprint(self, rows: int) -> int:
        """Numbers per client: the subnetwork's precision outweighs the weights."""
        if self.covariance == "diagonal":
            return self.model.footprint(rows)
        nothing = laplace.candidates(self.model, *(torch.empty(0),) * 3, self.shared)
        chosen = max(rule.size(nothing) for rule in (self.choice, self.personal_choice))
        return max(self.model.footprint(rows), chosen**2)

    def _known(self, message: Message) -> Moments:
        """Where the clients' steps begin [R]; the prior's alpha stands for no variance."""
        mean = message.prior.mean[: self.shared]
        return Moments(mean, torch.zeros_like(mean))

    def _fit(
        self, known: Moments, state: Client, message: Message, batch: ClientBatch, noise: Noise
    ) -> tuple[Tensor, Tensor]:
        """MAP estimates of the representation under the clients' priors (eq. 10), from the global means."""
        representation = torch.arange(self.model.dim, device=batch.mask.device) < self.shared
        variance = torch.where(representation, known.variance, torch.inf)  # the head has no prior
        prior = GaussianPrior(known.mean, variance, self.prior_weight)
        free = None if self.train_head else representation
        start = self._joined(message, state)
        theta, _, loss = map_estimate.fit(self.model, self.local, start, batch, noise, prior=prior, free=free)
        return theta, loss

    def _around(
        self, theta: Tensor, message: Message, state: Client, batch: ClientBatch, forked: Noise, noise: Noise
    ) -> LinearisedPosterior:
        """The posterior around weights whose decision layers are the clients' own."""
        prior = self._prior(message, state).variance
        if not isinstance(self.personal_alpha, str):
            prior = torch.full_like(prior, self.personal_alpha)
        infer = partial(self._infer, theta, prior, batch, forked)
        return LinearisedPosterior(self.model, theta, infer, self.predictive, self.draws, noise, batch)

    def _infer(self, theta: Tensor, prior: Tensor, batch: ClientBatch, noise: Noise) -> GaussianWeights:
        ggn, index = laplace.choose(self.personal_choice, self.model, theta, batch, prior, self.shared, noise.copy())
        return laplace.infer(self.model, theta, batch, index, ggn, prior, self.covariance)

    def _prior(self, message: Message, state: Client) -> Moments:
        """Every client's prior of all weights [K, D]; the decision layers' variance is alpha."""
        known: Moments = tensors.expand(message.prior, len(state.head))
        return known if self.prior == "cumulative" else sites.without(known, state.site, self.alpha)

    def _joined(self, message: Message, state: Client) -> Tensor:
        """The global representation with the clients' own decision layers [K, D]."""
        return torch.cat((message.prior.mean[: self.shared].expand(len(state.head), -1), state.head), 1)


# The public code sends the curvature as if it were a variance, takes alpha for a precision, trains all layers in 700
# rounds, then the decision layers alone, and predicts without uncertainty. Not followed: its rule, among all weights.
PUBLIC_CODE: Mapping[str, Any] = MappingProxyType(
    {"steps": 20, "minibatch": 100, "rate": 0.1, "optimiser": "sgd", "train_head": True, "finetune": 99}
    | {"upload": "curvature", "alpha": 1e4, "prior_weight": 1e-4, "floor": 1e-3, "weighting": "rows"}
    | {"personal_subnetwork": "same", "personal_alpha": "round", "predictive": "map"}
)
PUBLIC_ROUNDS: Mapping[str, Any] = MappingProxyType({"rounds": 701})
USUAL: Mapping[str, Any] = MappingProxyType(
    {"recommended": MappingProxyType({"federation": ROUNDS}), "paper": MappingProxyType({"federation": PAPER_ROUNDS})}
)

RECIPE = Recipe(
    "FedSI: full-covariance Laplace on a subnetwork, the other weights point estimates",
    FedSI,
    MethodSummary(
        "network, subnetwork Laplace", "map_estimate.fit, curvature", "moments.average", "means, variances", "head"
    ),
    model="weights",
    presets={**USUAL, "authors-code": {"method": {**PUBLIC_CODE, "fraction": 0.05}, "federation": PUBLIC_ROUNDS}},
    search={
        "method.alpha": LogUniform(1e-4, 1.0),
        "method.finetune": OneOf((5, 10, 20)),
        "method.rate": LogUniform(3e-4, 3e-3),
        "federation.rounds": OneOf((40, 80, 160)),
    },
    held_out=(
        HeldOutChoice("alpha", ALPHAS),
        HeldOutChoice("personal_subnetwork", RULES, after=True, by_default=False),
        HeldOutChoice("personal_alpha", PERSONAL_ALPHAS, after=True),
    ),
    trials=Trials(trial_rounds=20),
)

# One variance for the rounds and the personal models: chosen apart, the rounds' is tried under a personal variance that
# suits no factorised posterior, and comes out too large.
FACTORISED = replace(
    RECIPE,
    title="FedSI-Fac: diagonal Laplace on the whole representation",
    summary=RECIPE.summary._replace(model="network, diagonal Laplace"),
    presets={**USUAL, "authors-code": {"method": PUBLIC_CODE, "federation": PUBLIC_ROUNDS}},
    variant={"fraction": 1.0, "covariance": "diagonal", "personal_subnetwork": "same", "personal_alpha": "round"},
    held_out=(*RECIPE.held_out[:2], RECIPE.held_out[2]._replace(by_default=False)),
    paper={"fraction": Paper(1.0, "all weights"), "covariance": Paper("diagonal", "section IV, baselines")},
)
