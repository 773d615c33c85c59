"""A network whose predictions are mixed with those of a client's own rows that are nearest to a new one."""

from __future__ import annotations

from dataclasses import dataclass

import pyro
import torch
from pyro.distributions import Categorical, Normal
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import StudyError
from pacbayes_fl.models.weights.bayesian_network import BayesianNetwork
from pacbayes_fl.models.weights.layers import Traces
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.classes import ClassMixture
from pacbayes_fl.posteriors.predictive import NormalMixture
from pacbayes_fl.posteriors.weights.posterior import rows_of

_ROWS = 1024  # whose distances are in memory at a time


@dataclass(frozen=True, eq=False)
class NeighbourPosterior:
    """Networks of K clients, and the k rows of a client whose embeddings are nearest to a new row's.

    p(y | x) = (1 - lambda) p(y | x, theta) + lambda sum_i a_i 1[y = y_i],  a_i ~ exp(-|phi(x) - phi(x_i)| / sigma)

    over the nearest rows i (kNN-Per, section 3), phi the input of the last layer. Rows as near as the k-th are all
    counted. Of real targets the means are mixed, and the network's variance stays.

    Args:
        model: the network.
        theta: its weights [K, D].
        rows: of the clients; one without any has the network alone.
        noise: names the clients.
        share: lambda.
        neighbours: k.
        scale: sigma, in units of the embedding.
    """

    model: BayesianNetwork
    theta: Tensor
    rows: ClientBatch
    noise: Noise
    share: float
    neighbours: int
    scale: float

    @property
    def uncertain(self) -> bool:
        """Whether predictions average over several weights: no."""
        return False

    def predict(self, x: Tensor) -> ClassMixture | NormalMixture:
        """Mix the network's prediction and that of the nearest rows.

        Args:
            x: inputs [K, N, *feature].

        Returns:
            A distribution over classes, or a normal, with batch shape [K, N].

        Raises:
            StudyError: when the network's targets are neither classes nor normal.
        """
        outputs, embedded = self._embedded(rows_of(x, self.noise))
        with pyro.validation_enabled(False):  # it would ask the device
            own = self.model.likelihood.distribution(outputs)
        share = torch.where(self.rows.mask.any(1), self.share, 0.0).double().view(-1, 1, 1)
        if isinstance(own, Categorical):
            labels = torch.nn.functional.one_hot(self.rows.y.long(), outputs.shape[-1])
            near, log_probs = self._near(embedded, labels).log(), own.logits.log_softmax(-1).double()
            mixed = torch.logaddexp((1 - share).log() + log_probs, share.log() + near)
            return ClassMixture(torch.where(share > 0, mixed, log_probs).to(outputs))
        if not isinstance(own, Normal):
            what = f"kNN-Per mixes classes or means of normals, got targets of {type(own).__name__}"
            raise StudyError(what, hint="method.name = 'fedavg-ft'")
        near = self._near(embedded, self.rows.y.unsqueeze(-1)).squeeze(-1)
        mean = torch.lerp(own.mean.double(), near, share.squeeze(-1))
        return NormalMixture(mean.new_zeros(len(x), 1), mean.unsqueeze(1), own.variance.double().unsqueeze(1))

    def predict_at_mean(self, x: Tensor) -> ClassMixture | NormalMixture:
        """As `predict`, at inputs x [K, N, *feature]: there are no other weights."""
        return self.predict(x)

    def _embedded(self, rows: ClientBatch) -> tuple[Tensor, Tensor]:
        """Outputs of the networks [K, N, C], and the inputs of their last layers [K, N, F], float64."""
        traces: Traces = []
        with torch.no_grad():
            outputs = self.model.forward(self.model.unflatten(self.theta), rows, self.rows, traces)
        return outputs, traces[-1].input.double()

    def _near(self, embedded: Tensor, targets: Tensor) -> Tensor:
        """Average targets [K, M, T] of the nearest rows for embeddings [K, N, F]: [K, N, T], 0 without rows."""
        known, mask = self._embedded(self.rows)[1], self.rows.mask.unsqueeze(1)
        parts = []
        for part in embedded.split(_ROWS, 1):
            distance = torch.cdist(part, known, compute_mode="donot_use_mm_for_euclid_dist")
            distance = torch.where(mask, distance, torch.inf)
            last = distance.kthvalue(min(self.neighbours, distance.shape[2]), 2, keepdim=True).values
            near = mask & (distance <= last)
            closest = torch.where(mask.any(2, keepdim=True), distance.amin(2, keepdim=True), 0.0)
            weight = torch.where(near, torch.exp((closest - distance) / self.scale), 0.0)
            parts.append(weight / weight.sum(2, keepdim=True).clamp_min(1.0) @ targets.double())
        return torch.cat(parts, 1)
