"""Bayesian networks as Pyro programs, with the same likelihood as a plain function of the weights."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType

import pyro
import torch
from pyro import poutine
from pyro.distributions import TorchDistribution
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import ShapeError
from pacbayes_fl.models.base import WeightModel, WeightPrior
from pacbayes_fl.models.likelihoods import Likelihood
from pacbayes_fl.models.weights.layers import Traces, fully_connected, fully_connected_by_row

Weights = Mapping[str, Tensor]


class BayesianNetwork(WeightModel):
    """A network whose weights are random: `forward` says all, for the Pyro program and for the hot path.

    Args:
        likelihood: of the targets given the outputs.
        dtype: of the weights.

    Example:
        >>> import torch
        >>> from pacbayes_fl import BayesianNetwork, ClientBatch, Gaussian
        >>> class Line(BayesianNetwork):
        ...     shapes = {"slope": ()}
        ...     def forward(self, weights, rows, reference=None, traces=None):
        ...         return weights["slope"][:, None, None] * rows.x
        >>> batch = ClientBatch.pad([(torch.ones(3, 1), torch.ones(3))], dtype=torch.float32)
        >>> round(Line(Gaussian(1.0)).log_likelihood(torch.tensor([[1.0]]), batch).item(), 4)  # -3/2 ln(2 pi)
        -2.7568
    """

    def __init__(self, likelihood: Likelihood, dtype: torch.dtype = torch.float32) -> None:
        """Store the likelihood and the dtype."""
        self.likelihood, self.dtype = likelihood, dtype

    @abstractmethod
    def forward(
        self,
        weights: Weights,
        rows: ClientBatch,
        reference: ClientBatch | None = None,
        traces: Traces | None = None,
    ) -> Tensor:
        """Apply the networks of K clients.

        Args:
            weights: [K, *shape] by site.
            rows: inputs [K, N, *feature]; a network without batch statistics looks at `x` alone.
            reference: rows whose statistics normalise, the client's training rows; the rows themselves when None.
            traces: where a network records its layers, for Jacobians by layer factors; one that does not is
                differentiated weight by weight.

        Returns:
            Outputs [K, N, C], the parameters of the likelihood.
        """

    def model(self, batch: ClientBatch, prior: WeightPrior, zeta: float, scale: Tensor) -> None:
        """Draw the weights and observe the targets: the definition that the hot path is held to.

        theta_m ~ w, scaled by zeta; y_j ~ p(. | f_theta(x_j)), scaled by m_k / b      (pFedBayes eq. 30)

        Args:
            batch: rows [K, N, *feature].
            prior: of the weights.
            zeta: weight of the KL divergence.
            scale: m_k over the rows of the minibatch [K].
        """
        with pyro.plate("clients", batch.clients, dim=-1):
            with poutine.scale(scale=zeta):
                weights = self.draw_weights(prior)
            targets = self.likelihood.distribution(self.forward(weights, batch))
            with poutine.scale(scale=scale):
                pyro.sample("y", targets.mask(batch.mask).to_event(1), obs=batch.y)

    def observation(
        self, weights: Tensor, batch: ClientBatch, reference: ClientBatch | None = None
    ) -> TorchDistribution:
        """Distribution of each target given flat weights [K, D]; see `WeightModel.observation`."""
        with pyro.validation_enabled(False):  # it would ask the device
            return self.likelihood.distribution(self.forward(self.unflatten(weights), batch, reference))

    def log_likelihood_by_row(self, weights: Tensor, batch: ClientBatch) -> Tensor:
        """Log likelihood of every row: the observed site of `model` without Pyro.

        Args:
            weights: flat [K, D].
            batch: rows [K, N, *feature].

        Returns:
            [K, N], in nats.
        """
        return self.likelihood.log_prob(self.forward(self.unflatten(weights), batch), batch.y)


class BayesianMLP(BayesianNetwork):
    """ReLU network of fully connected layers; 784-100-10 has the papers' 79,510 weights.

    Args:
        sizes: numbers of units from the flattened input to the output.
        likelihood: of the targets given the outputs.
        dtype: of the weights.

    Example:
        >>> from pacbayes_fl import BayesianMLP, Categorical
        >>> BayesianMLP((4, 8, 3), Categorical(3)).dim  # 4 x 8 + 8 + 8 x 3 + 3 weights
        67
    """

    def __init__(self, sizes: Sequence[int], likelihood: Likelihood, dtype: torch.dtype = torch.float32) -> None:
        """Name the weights of every layer."""
        super().__init__(likelihood, dtype)
        self.sizes = tuple(sizes)

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Weights [in, out] and biases [out] of every layer: weight_0, bias_0, weight_1, ..."""
        shapes: dict[str, tuple[int, ...]] = {}
        for layer, (n_in, n_out) in enumerate(pairwise(self.sizes)):
            shapes |= {f"weight_{layer}": (n_in, n_out), f"bias_{layer}": (n_out,)}
        return MappingProxyType(shapes)

    def forward(
        self,
        weights: Weights,
        rows: ClientBatch,
        reference: ClientBatch | None = None,
        traces: Traces | None = None,
    ) -> Tensor:
        """Outputs [K, N, C] of the networks; see `BayesianNetwork.forward`."""
        x = rows.x.flatten(2)
        if x.shape[2] != self.sizes[0]:
            raise ShapeError(
                f"x must have the {self.sizes[0]} inputs of the network, sizes[0], got {x.shape[2]} features"
            )
        return fully_connected(x.to(self.dtype), weights, len(self.sizes) - 1, traces)

    def observation_by_row(
        self, loc: Tensor, scale: Tensor, rows: ClientBatch
    ) -> Callable[[Callable[[Tensor], Tensor]], TorchDistribution] | None:
        """Distribution of each target where every row has weights of its own; see `fully_connected_by_row`.

        Args:
            loc: means of independent normal weights, flat [K, D].
            scale: their standard deviations [K, D].
            rows: inputs [K, N, *feature].

        Returns:
            A function that takes standard normals in the shape of a tensor [K, N, *] and gives distributions of batch
            shape [K, N]; None of a subclass that computes something else, or ties weights.
        """
        own, names = type(self), ("forward", "observation", "unflatten")
        if any(getattr(own, name) is not getattr(BayesianMLP, name) for name in names):
            return None
        x, both = rows.x.flatten(2).to(self.dtype), (self.unflatten(loc), self.unflatten(scale))
        outputs = fully_connected_by_row(x, *both, len(self.sizes) - 1)

        def drawn(normal: Callable[[Tensor], Tensor]) -> TorchDistribution:
            with pyro.validation_enabled(False):
                return self.likelihood.distribution(outputs(normal))

        return drawn
