"""FedSI's numbers through laplace-torch with BackPACK, as the authors' code has them: what `speed_laplace` is held to.

The posterior covariance is inverted from its Cholesky factor, which spares laplace-torch the product of its own way.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from pacbayes_fl.data.torchvision_ops import ensure_importable
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP

ensure_importable()  # laplace-torch imports torchmetrics, which imports torchvision
from laplace import Laplace  # noqa: E402
from laplace.curvature import BackPackGGN  # noqa: E402

BATCH = 50


class Peer(NamedTuple):
    """A client's network in `torch.nn`.

    Args:
        module: linear layers with a ReLU between.
        position: where each of its parameters, flat, stands among ours [D].
        x: inputs [N, d].
        y: labels [N].
        alpha: prior variance.
    """

    module: nn.Sequential
    position: Tensor
    x: Tensor
    y: Tensor
    alpha: float

    @classmethod
    def of(cls, model: BayesianMLP, theta: Tensor, x: Tensor, y: Tensor, alpha: float) -> Peer:
        """Write a network in `torch.nn`.

        Args:
            model: ours.
            theta: its weights [D].
            x: inputs [N, d].
            y: labels [N].
            alpha: prior variance.

        Returns:
            The same network.
        """
        linear = [nn.Linear(a, b) for a, b in zip(model.sizes, model.sizes[1:], strict=False)]
        module = nn.Sequential(*[layer for one in linear for layer in (nn.ReLU(), one)][1:]).to(theta)
        flat = model.unflatten(torch.arange(model.dim))
        position = torch.cat([site.mT.flatten() if site.dim() == 2 else site for site in flat.values()])
        nn.utils.vector_to_parameters(theta[position], module.parameters())
        return cls(module, position, x, y, alpha)

    @property
    def theta(self) -> Tensor:
        """Its weights [D], in our order."""
        flat = nn.utils.parameters_to_vector(self.module.parameters()).detach()
        return torch.empty_like(flat).scatter(0, self.position, flat)

    def variances(self, index: Tensor) -> Tensor:
        """Infer a subnetwork's posterior.

        Args:
            index: positions among our weights [B].

        Returns:
            Posterior variances [B].
        """
        where = torch.empty_like(self.position).scatter(0, self.position, torch.arange(len(self.position)))
        precision: Tensor = self._fitted("subnetwork", "full", subnetwork_indices=where[index]).posterior_precision
        return torch.cholesky_inverse(torch.linalg.cholesky(precision)).diagonal()

    def choose(self, size: int, shared: int) -> Tensor:
        """Choose the weights of largest variance under a diagonal posterior.

        Args:
            size: B.
            shared: number of our first weights that may be chosen.

        Returns:
            Positions among our weights [B].
        """
        result: Tensor = self._fitted("all", "diag").posterior_variance
        variance = torch.empty_like(result).scatter(0, self.position, result)
        return variance[:shared].topk(size).indices.sort().values

    def descend(self, rows: list[Tensor], rate: float, shared: int) -> None:
        """Fit the representation under its prior by torch's Adam.

        Args:
            rows: positions of every minibatch [b].
            rate: learning rate.
            shared: number of our weights that are the representation.
        """
        free = list(self.module.parameters())[:-2]
        if shared != sum(p.numel() for p in free):
            raise ValueError("the representation ends before the last layer")
        start = [p.detach().clone() for p in free]
        optimiser = torch.optim.Adam(free, lr=rate)
        for at in rows:
            optimiser.zero_grad()
            pull = sum((p - q).square().sum() for p, q in zip(free, start, strict=True))
            (cross_entropy(self.module(self.x[at]), self.y[at]) + pull / (2 * self.alpha * len(self.y))).backward()
            optimiser.step()

    def _fitted(self, weights: str, structure: str, **options: Any) -> Any:
        result = Laplace(
            self.module,
            "classification",
            subset_of_weights=weights,
            hessian_structure=structure,
            prior_precision=1 / self.alpha,
            backend=BackPackGGN,
            **options,
        )
        result.fit(DataLoader(TensorDataset(self.x, self.y), batch_size=BATCH))
        return result
