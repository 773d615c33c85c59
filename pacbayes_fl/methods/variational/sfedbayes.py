"""sFedBayes: pFedBayes with weights that are exactly zero or Gaussian (journal, Algorithm 2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, final

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import StudyError
from pacbayes_fl.methods import private_steps
from pacbayes_fl.methods.options import Paper
from pacbayes_fl.methods.recipe import ROUNDS, SEARCH_NETWORK, MethodSummary, OneOf, Recipe
from pacbayes_fl.methods.variational.base import (
    EVERYBODY,
    OWN_LABELS,
    OWN_ROWS,
    SEARCH,
    TRIALS,
    ZETAS,
    PersonalPosteriors,
    moments_of,
    towards,
    zeta_among,
)
from pacbayes_fl.methods.variational.pfedbayes import (
    Client,
    Fit,
    apply_delta_to,
    deltas_of,
    fit_of,
    mean_over_clients,
    start_clients,
    track_prior,
)
from pacbayes_fl.noise import Noise
from pacbayes_fl.options import option
from pacbayes_fl.posteriors.weights.mean_field import MeanField, initial_mean_field
from pacbayes_fl.posteriors.weights.posterior import WeightPosterior
from pacbayes_fl.posteriors.weights.spike_slab import TEMPERATURE, SpikeSlab, SpikeSlabDraw
from pacbayes_fl.server import average, moments
from pacbayes_fl.server.moments import Moments
from pacbayes_fl.server.step import Memoryless, State

SlabAverage = Literal["inclusion", "uniform"]


class Server(NamedTuple):
    """The global distribution w, leaves [D], and the state of the server's optimiser."""

    w: SpikeSlab
    moments: State = Memoryless()


class SparseUpload(NamedTuple):
    """The upload (mu, rho, lambda), or moments instead of mu and rho; a dropped weight has lambda = 0.

    Args:
        slab: mu and rho, or mean and variance, leaves [K, D]; of a dropped weight the server's own.
        inclusion: lambda [K, D], a probability and not its logit, so that 0 can be sent and averaged.
    """

    slab: MeanField | Moments
    inclusion: Tensor


class Update(NamedTuple):
    """Localised global distributions of clients, or their mean with the sums of the rest.

    Args:
        w: leaves [K, D].
        weight: in the server's average [K].
        clients: number of clients behind a row [K].
        fit: leaves [K].
        sent: share of the weights that were sent [K].
        kept: expected share of active weights [K]; see `SFedBayes.describe`.
    """

    w: SparseUpload
    weight: Tensor
    clients: Tensor
    fit: Fit
    sent: Tensor
    kept: Tensor


def sparse_bytes(sent: Tensor, dim: int, width: int) -> tuple[Tensor, Tensor]:
    """Count the bytes of an upload, dense and with the dropped weights left out.

    Args:
        sent: share of weights sent [*]; NaN where it is not released, and the bytes are NaN then.
        dim: D.
        width: bytes of a number.

    Returns:
        Bytes of three numbers per weight [*]; and of three per weight sent plus a bit mask, where that is
        less [*].
    """
    dense = torch.where(sent.isnan(), torch.nan, torch.full_like(sent, 3 * width * dim))
    return dense, torch.minimum(sent * dense + (dim + 7) // 8, dense)


@final
@dataclass(frozen=True)
class SFedBayes(PersonalPosteriors[Server, Client, Update]):
    """sFedBayes (Algorithm 2, eqs. 32-34 and 40-43); fields as in `variational.base.Variational`, and more.

    Args:
        beta: extrapolation of the server: 1 takes the clients' average, more goes beyond it.
        inclusion: initial lambda of every weight.
        threshold: weights whose lambda is below it are not sent, and not used in predictions; Algorithm 2 has none.
        slab_average: weighs clients in the averages of mu and rho, or of the slabs' moments, weight by weight: by their
            "inclusion" lambda, so that E theta of the average is the average of E theta and who drops a weight has no
            part in them; or "uniform", as Algorithm 2 is printed, which then asks for a threshold of 0. lambda is
            averaged over all clients. With moments, "inclusion" is the minimiser of sum_k KL(q_k || w).
        temperature: tau of the gates' relaxed gradient (eq. 41).

    Example:
        >>> import torch
        >>> from pacbayes_fl import BayesianMLP, ClientBatch, FederationPlan, Gaussian, SFedBayes, run_rounds
        >>> x = torch.linspace(-1, 1, 8).unsqueeze(1)
        >>> batch = ClientBatch.pad([(x, k * x[:, 0]) for k in range(3)])
        >>> method = SFedBayes(BayesianMLP((1, 4, 1), Gaussian()), inclusion=0.5)
        >>> kept = run_rounds(method, batch, FederationPlan(rounds=2)).server.w.inclusion
        >>> bool(((kept > 0.4) & (kept < 0.6)).all())  # two rounds decide about no weight yet
        True
    """

    beta: float = option(1.0, above=0, symbol="beta")
    inclusion: float = option(0.99, above=0, below=1, symbol="lambda", paper=Paper(..., "0.5 or 0.99, Table 2"))
    threshold: float = option(0.0, low=0, below=1)
    slab_average: SlabAverage = option("inclusion", paper=Paper("uniform", "Algorithm 2"))
    temperature: float = option(TEMPERATURE, above=0, symbol="tau")

    def __post_init__(self) -> None:
        """Check the ranges, and that the options of the gates go together."""
        super().__post_init__()
        if self.local.noise_std != 1.0:
            raise StudyError(f"noise_std must be 1 for gates that are drawn, got {self.local.noise_std:g}")
        if self.slab_average == "uniform" and self.threshold:
            what = f"slab_average = 'uniform' has no place for dropped weights, and threshold is {self.threshold:g}"
            raise StudyError(what, hint="slab_average = 'inclusion', or threshold = 0")

    def init_server(self, generator: torch.Generator) -> Server:
        """Draw v^0 = (mu^0, rho^0, lambda^0)."""
        slab = initial_mean_field(self.model, self.init_std, self.init_rho, generator)
        inclusion = torch.full_like(slab.loc, self.inclusion).masked_fill(~self.model.stochastic_columns(), 1.0)
        w = SpikeSlab(*slab, torch.logit(inclusion)).bounded()
        return Server(w, self.step.start(w))

    def init_clients(self, message: Server, batch: ClientBatch) -> Client:
        """Initialise at the global distribution."""
        return start_clients(tensors.expand(message.w, batch.clients), batch.clients, self.aggregation)

    def client(self, message: Server, state: Client, batch: ClientBatch, noise: Noise) -> tuple[Update, Client]:
        """Fit q, track it with w, and drop weights whose lambda is below the threshold (Algorithm 2, ClientUpdate)."""
        start = tensors.expand(message.w, batch.clients)
        new, w, log_likelihood = track_prior(
            self.model, self.local, self.tracking, state, start, batch, noise, self.draw
        )
        fit = fit_of(self.model, self.local.weight, log_likelihood, new.q, w, message.w)
        weight = self.weight(batch.size)
        uploaded = new.q if self.sends_moments else w
        keep = uploaded.inclusion >= self.threshold
        slab, known = self._form(uploaded.slab), self._form(start.slab)
        slab = tensors.tree_map(lambda own, other: torch.where(keep, own, other), slab, known)
        sent = SparseUpload(slab, uploaded.inclusion * keep)
        shares = keep.double().mean(1), self.describe(new)["kept"]
        return Update(sent, weight, torch.ones_like(weight), fit, *shares), new

    def server(self, server: Server, update: Update, n_clients: int) -> Server:
        """Average mean, scale and inclusion, and extrapolate (Algorithm 2, last line), and step there."""
        result, old = self._joined(update.w, update.weight), server.w
        inclusion = torch.lerp(old.inclusion, result.inclusion, self.beta).clamp(0.0, 1.0)
        kept = (
            result.inclusion > 0 if self.slab_average == "inclusion" else torch.ones_like(inclusion, dtype=torch.bool)
        )
        slab = tensors.tree_map(lambda new, own: torch.where(kept, new, own), result.slab, self._form(old.slab))
        if isinstance(slab, Moments):
            new = towards(old.slab, slab, self.beta, self.model.stochastic_columns())
        else:
            new = average.extrapolate(old.slab, slab, self.beta)
        logit = torch.where(inclusion == old.inclusion, old.logit, torch.logit(inclusion))
        w, state = self.step(old, SpikeSlab(*new, logit).bounded(), server.moments)
        return Server(w.bounded(), state)

    def client_deltas(self, message: Server, update: Update) -> SparseUpload:
        """Change of (mu, rho, lambda) in this round [K, D].

        Dropped weights are included so that the release does not reveal them. Changes of the slabs are multiplied by
        lambda, their weight in the average.
        """
        slab = deltas_of(update.w.slab, message.w.slab)
        if self.slab_average == "inclusion":
            slab = tensors.tree_map(lambda step: step * update.w.inclusion, slab)
        return SparseUpload(slab, update.w.inclusion - message.w.inclusion)

    def from_release(self, message: Server, mean: SparseUpload, clients: float) -> Update:
        """Apply the released mean step [1, D]; inclusion is clamped to [0, 1].

        A slab with lambda near 0 is divided by `moments.LEAST` instead of a lambda that may be noise alone.
        """
        inclusion = (message.w.inclusion + mean.inclusion).clamp(0.0, 1.0)
        step = mean.slab
        if self.slab_average == "inclusion":
            step = tensors.tree_map(lambda leaf: leaf / inclusion.clamp_min(moments.LEAST), step)
        w = SparseUpload(apply_delta_to(step, message.w.slab), inclusion)
        unknown = private_steps.unknown(inclusion)
        return Update(
            w, private_steps.unit_weights(inclusion), unknown, Fit(unknown, unknown, unknown), unknown, unknown
        )

    def personalise_trained(self, message: Server, state: Client, batch: ClientBatch, noise: Noise) -> WeightPosterior:
        """The client's q without weights under the threshold."""
        return self.posterior(state.q.pruned(self.threshold), batch, noise)

    def global_model(self, message: Server, state: Client, batch: ClientBatch, noise: Noise) -> WeightPosterior:
        """The global distribution w itself, without the weights under the threshold."""
        return self.posterior(tensors.expand(message.w, batch.clients).pruned(self.threshold), batch, noise)

    def describe(self, state: Client) -> Mapping[str, Tensor]:
        """Expected share of active weights [K]: the mean of lambda, 0 under the threshold."""
        return {"kept": state.q.pruned(self.threshold).inclusion.double().mean(1)}

    def reduce(self, update: Update) -> Update:
        """Average the clients of a chunk."""
        return average.reduced(update, "w", self._joined)

    def _form(self, slab: MeanField) -> MeanField | Moments:
        """The part of a slab that is sent."""
        return moments_of(slab) if self.sends_moments else slab

    def _joined(self, sent: SparseUpload, weight: Tensor) -> SparseUpload:
        """One tuple for those of all clients: lambda averaged, slabs weighed by `slab_average`; leaves [D]."""
        inclusion = tensors.weighted_mean(sent.inclusion, weight)
        share = weight.unsqueeze(1).to(inclusion).expand(sent.inclusion.shape)
        if self.slab_average == "inclusion":
            share = share * sent.inclusion
        if isinstance(sent.slab, Moments):
            return SparseUpload(moments.match(sent.slab, share), inclusion)
        return SparseUpload(tensors.weighted_mean(sent.slab, share), inclusion)

    def report(self, server: Server, update: Update) -> Mapping[str, Tensor]:
        """Fit of the clients, shares of weights sent and active, and bytes per client of an upload."""
        clients = update.clients.sum().clamp_min(1.0)
        means = mean_over_clients(update.fit, update.clients)
        means |= {"sent": update.sent.sum() / clients, "kept": update.kept.sum() / clients}
        dense, sparse = sparse_bytes(means["sent"], self.model.dim, update.w.inclusion.element_size())
        return means | {"bytes_dense": dense, "bytes_sparse": sparse}

    def refit(self, w: SpikeSlab, rows: ClientBatch, noise: Noise, free: Tensor | None = None) -> SpikeSlab:
        """Fit q against a distribution that may be pruned; gates that are shut stay shut.

        Args:
            w: leaves [K, D]; left as it is.
            rows: the clients' rows.
            noise: a fork of their streams.
            free: bool [K, D], True for weights that may move; all with uncertainty that were not pruned when None.

        Returns:
            Leaves [K, D]; w itself for a client whose fit diverged.
        """
        shut = w.logit == -torch.inf
        free = ~shut if free is None else free & ~shut
        almost = w._replace(logit=w.logit.clamp_min(-15.0))  # Adam's steps need a finite logit
        q: SpikeSlab = self.fit_from(almost, rows, noise, free)
        return q._replace(logit=torch.where(shut, -torch.inf, q.logit))

    def draw(self, q: SpikeSlab, noise: Noise) -> SpikeSlabDraw:
        """Take the random numbers of one draw, with the gates' temperature."""
        return q.draw(noise)._replace(temperature=self.temperature)


RECIPE = Recipe(
    "sFedBayes: pFedBayes with weights that are exactly zero or Gaussian",
    SFedBayes,
    MethodSummary("Bayesian network, spike and slab", "svi", "average.extrapolate", "w with inclusion", "q, two Adams"),
    model="weights",
    presets={"recommended": {"federation": ROUNDS}, "paper": {"federation": EVERYBODY}},
    search={**SEARCH, "method.inclusion": OneOf((0.5, 0.9, 0.99)), **SEARCH_NETWORK},
    held_out=(zeta_among(*ZETAS),),
    trials=TRIALS,
    own_rows=OWN_ROWS,
    own_labels=OWN_LABELS,
    paper={"restart": Paper(True, "Algorithm 2")},
)
