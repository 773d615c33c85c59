"""pFedGP for classes (Achituve et al., NeurIPS 2021): a shared embedding, and each client's own tree of GP classifiers.

The paper draws Polya-Gamma variables by Gibbs steps; here they have a mean field (Wenzel et al., AAAI 2019), without
draws, so that the objective is a lower bound of the log evidence and the posterior has a divergence from its prior.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, Literal, final

import torch
from torch import Tensor
from torch.nn.functional import normalize

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import StudyError
from pacbayes_fl.files import JsonTable
from pacbayes_fl.inference import map_estimate
from pacbayes_fl.inference.map_estimate import LocalDescent
from pacbayes_fl.methods.base import Nothing, RefinedPosterior
from pacbayes_fl.methods.baselines.averaging import Server, Stateless, Update
from pacbayes_fl.methods.options import Paper, part
from pacbayes_fl.methods.recipe import PAPER_ROUNDS, ROUNDS, SEARCH_NETWORK, LogUniform, MethodSummary, OneOf, Recipe
from pacbayes_fl.models.weights.bayesian_network import BayesianNetwork
from pacbayes_fl.noise import Noise
from pacbayes_fl.options import option
from pacbayes_fl.posteriors.functions import class_tree, polya_gamma
from pacbayes_fl.posteriors.functions.class_tree import ClassTree, SphereKernel, TreePosterior
from pacbayes_fl.posteriors.weights.posterior import rows_of
from pacbayes_fl.server import average


@final
@dataclass(frozen=True)
class PFedGPTree(Stateless):
    """pFedGP (Algorithm 1): clients descend the evidence of the GP classifiers on the network's outputs, of length 1.

    Each round a client splits its own classes in two by their mean embeddings, again and again; every split has a GP
    classifier of the rows of its classes. The outputs of the network, as many as there are classes, are the embedding.

    Args:
        model: the network; its likelihood says how many classes there are, and nothing else.
        local: steps of a client; a minibatch has GPs of its own.
        kernel: of the functions, on embeddings of length 1.
        criterion: "bound", of the log evidence, or "predictive", the log likelihood of one half of a round's
            rows given the other one.
        node_scale: "rows" divides the objective by the client's rows, "nodes" that of every classifier by its own.
        updates: of the mean field in a training step; after any number the objective is a bound.
        personal_updates: of the mean field of a personal model; too few make it less certain than it should be.
        unseen: probability that is spread over all classes, so that one without rows is not impossible.
        weighting: of clients in the average.
    """

    personal_model: ClassVar[str] = "personal models are GP classifiers of the clients' rows on the shared embedding"

    model: BayesianNetwork
    local: LocalDescent = part(
        LocalDescent,
        paper={
            "steps": Paper(1, "public code"),
            "minibatch": Paper(100_000, "pFedGP-full: all rows"),
            "rate": Paper(0.05, "pFedBayes, Table 3, and public code"),
            "optimiser": Paper("sgd", "public code"),
            "momentum": Paper(0.9, "public code"),
        },
    )
    kernel: SphereKernel = part(
        SphereKernel,
        paper={"outputscale": Paper(8.0, "public code"), "lengthscale": Paper(1.0, "public code")},
    )
    criterion: Literal["bound", "predictive"] = option("bound", paper=Paper("bound", "section 4, L_ML"))
    node_scale: Literal["rows", "nodes"] = "rows"
    updates: int = option(4, low=1, paper=Paper(..., "Gibbs steps instead"))
    personal_updates: int = option(16, low=1, paper=Paper(..., "Gibbs steps instead"))
    unseen: float = option(1e-4, above=0, below=1, paper=Paper(..., "a class without rows is impossible"))
    weighting: average.Weighting = option("uniform", paper=Paper("uniform", "Algorithm 1"))

    def __post_init__(self) -> None:
        """Check the ranges, and that there are classes."""
        super().__post_init__()
        likelihood = getattr(self.model, "likelihood", None)
        if not isinstance(self.model, BayesianNetwork) or likelihood is None or (likelihood.classes or 0) < 2:
            what = f"a network with a likelihood of at least two classes, got {type(self.model).__name__}"
            what += "" if likelihood is None else f" with {type(likelihood).__name__}"
            raise StudyError(f"pFedGP's trees need {what}", hint="method.name = 'pfedgp' is for numbers")

    def about(self) -> JsonTable:
        """Closed forms and quadrature: nothing is drawn."""
        return {
            "draws": 1,
            "average": "over functions by quadrature; mean_weights: at the mean functions",
            "inference": "Polya-Gamma mean field of a Gaussian process at every node of the client's tree of classes",
        }

    def client(self, message: Server, state: Nothing, batch: ClientBatch, noise: Noise) -> tuple[Update, Nothing]:
        """Grow the tree, and descend the negative objective from the shared weights."""
        theta = tensors.expand(message.theta, batch.clients)
        with torch.no_grad():
            tree = self._tree(self._embedding(theta, batch), batch)
        predictive = self.criterion == "predictive"
        rows = self._halved(batch, noise.fork()) if predictive else batch
        slope = partial(self._predictive_slope if predictive else self._slope, tree)
        theta, _, loss = map_estimate.descend(self.local, theta, rows, noise, slope)
        return self.sent(theta, loss, batch), state

    def global_model(self, message: Server, state: Nothing, batch: ClientBatch, noise: Noise) -> None:
        """None: the shared embedding predicts no class before it has seen some rows."""

    def personalise(self, message: Server, state: Nothing, batch: ClientBatch, noise: Noise) -> TreePosterior:
        """Grow the tree and condition its classifiers on the client's rows; no training, for new clients too."""
        theta = tensors.expand(message.theta, batch.clients)

        def embed(x: Tensor) -> Tensor:
            return self._embedding(theta, batch if x is batch.x else rows_of(x, noise), batch)

        with torch.no_grad():
            tree = self._tree(embed(batch.x), batch)
        return self._condition(embed, tree, batch)

    def absorb(self, message: Server, state: Nothing, seen: ClientBatch, rows: ClientBatch, noise: Noise) -> Nothing:
        """`personalise` conditions on all rows."""
        return state

    def refine(self, prior: TreePosterior, seen: ClientBatch, rows: ClientBatch, noise: Noise) -> RefinedPosterior:
        """Condition the classifiers of the same trees on all rows.

        Rows of classes that are no leaves count nowhere. A client of whom no rows were seen has a tree of all classes.

        Args:
            prior: P, of the rows `seen`.
            seen: rows of K clients.
            rows: later rows of theirs.
            noise: not used.

        Returns:
            Q, and KL(Q || P) [K], in nats, float64: exact, whatever the mean fields are worth.
        """
        before = self.refined_from(prior, seen)
        posterior = self._condition(before.embed, before.tree, seen.extend(rows))
        return RefinedPosterior(posterior, posterior.kl_from(before))

    def refined_from(self, prior: TreePosterior, seen: ClientBatch) -> TreePosterior:
        """P with trees of all classes for clients of whom no rows were seen."""
        return self._condition(prior.embed, class_tree.with_leaves(prior.tree), seen)

    def footprint(self, rows: int) -> int:
        """Numbers per client: the network's, or one covariance per classifier."""
        return max(self.model.footprint(rows), (self._classes - 1) * rows**2)

    @property
    def _classes(self) -> int:
        """C."""
        return self.model.likelihood.classes or 0

    def _embedding(self, theta: Tensor, rows: ClientBatch, reference: ClientBatch | None = None) -> Tensor:
        """Outputs of the networks theta [K, D] brought to length 1 [K, N, C], float64."""
        outputs = self.model.forward(self.model.unflatten(theta), rows, reference)
        return normalize(outputs.double(), dim=-1)

    def _tree(self, z: Tensor, batch: ClientBatch) -> ClassTree:
        return class_tree.grow(*class_tree.class_means(z, batch, self._classes))

    def _condition(self, embed: class_tree.Embed, tree: ClassTree, batch: ClientBatch) -> TreePosterior:
        return class_tree.condition(embed, self.kernel, tree, batch, self.personal_updates, self.unseen)

    def _halved(self, batch: ClientBatch, noise: Noise) -> ClientBatch:
        """Mark one half of every client's rows, drawn at random, by labels from C on: the other half predicts them."""
        order = noise.rows(batch.mask, batch.mask.shape[1])
        marked = torch.arange(order.shape[1], device=order.device) < (batch.size // 2).unsqueeze(1)
        return replace(batch, y=batch.y + self._classes * torch.zeros_like(batch.y).scatter(1, order, marked.long()))

    def _weights(self, kappa: Tensor) -> Tensor:
        """Share of every classifier [K, P] in the objective of a row, from the labels [K, P, N] that it counts."""
        rows = (kappa != 0).sum(-1, dtype=kappa.dtype)
        counted = rows if self.node_scale == "nodes" else (kappa != 0).any(1).sum(-1, keepdim=True).to(rows)
        return torch.where(rows > 0, 1.0, 0.0) / counted.clamp_min(1.0)

    def _slope(self, tree: ClassTree, theta: Tensor, rows: ClientBatch) -> tuple[Tensor, Tensor]:
        """Negative lower bound per row [K], in nats, and its gradient [K, D] with c held, where the mean field is."""
        kappa = tree.kappa(rows.y, rows.mask)
        with torch.enable_grad():
            leaf = theta.detach().requires_grad_(True)
            z = self._embedding(leaf, rows)
            gram = self.kernel(z, z)
            kernel, weight = gram.detach().unsqueeze(1), self._weights(kappa)
            c = polya_gamma.fit(kernel, kappa, self.updates)
            conditioned = polya_gamma.given(kernel, kappa, c)
            by_kernel = polya_gamma.kernel_gradient(conditioned, weight)
            (slope,) = torch.autograd.grad(-(by_kernel * gram).sum(), leaf)
        loss = -(weight * polya_gamma.lower_bound(conditioned, kappa, c)).sum(1)
        return loss.to(theta), slope

    def _predictive_slope(self, tree: ClassTree, theta: Tensor, rows: ClientBatch) -> tuple[Tensor, Tensor]:
        """Negative log likelihood of the marked rows given the others [K], in nats per row, and its gradient [K, D].

        The mean field of the others is held, as draws of omega are.
        """
        marked = rows.y >= self._classes
        kappa = tree.kappa(rows.y % self._classes, rows.mask)
        told, asked = (torch.where(which.unsqueeze(1), kappa, 0.0) for which in (~marked, marked))
        with torch.enable_grad():
            leaf = theta.detach().requires_grad_(True)
            z = self._embedding(leaf, rows)
            kernel = self.kernel(z, z).unsqueeze(1)
            conditioned = polya_gamma.given(kernel, told, polya_gamma.fit(kernel.detach(), told, self.updates))
            mean, variance = conditioned.marginals(kernel, kernel.diagonal(dim1=-2, dim2=-1))
            likely = polya_gamma.log_probability(2.0 * asked * mean, variance.clamp_min(1e-12))
            loss = -(self._weights(asked) * torch.where(asked != 0, likely, 0.0).sum(-1)).sum(1)
            (slope,) = torch.autograd.grad(loss.sum(), leaf)
        return loss.detach().to(theta), slope


# The public code predicts one half of the rows from the other, split class by class, by exp(E[ln sigma(f)]), which is
# too low for one of the two children; it decays weights by 1e-3 and clips gradients at 50. None of these is followed.
PUBLIC_CODE: Mapping[str, Any] = MappingProxyType(
    {"steps": 1, "minibatch": 100_000, "rate": 0.05, "optimiser": "sgd", "momentum": 0.9}
    | {"criterion": "predictive", "node_scale": "nodes"}
)

RECIPE = Recipe(
    "pFedGP: a shared embedding under each client's own tree of GP classifiers",
    PFedGPTree,
    MethodSummary(
        "network, GP classifiers", "polya_gamma.kernel_gradient, map_estimate.descend", "mean", "weights", "nothing"
    ),
    model="weights",
    tasks=("classification",),
    presets={
        "recommended": {"federation": ROUNDS},
        "paper": {"federation": PAPER_ROUNDS},
        "authors-code": {"method": PUBLIC_CODE, "federation": {"rounds": 1000, "cohort": 5}},
    },
    search={**SEARCH_NETWORK, "method.outputscale": LogUniform(1.0, 32.0), "method.minibatch": OneOf((25, 50, 100))},
)
