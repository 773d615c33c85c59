"""What posteriors of laplace-torch are over, and what of their networks they leave alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from pacbayes_fl import certify_model
from pacbayes_fl.certificates.laplace_gaussians import gaussian_of, learned_beside, left_alone, uncertain
from pacbayes_fl.data.torchvision_ops import ensure_importable
from pacbayes_fl.errors import AssumptionError

FINE: dict[str, Any] = {"source": "data-free", "independent": True, "draws": 5}


def rows() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0] > 0).long()


def made(*between: nn.Module, frozen: bool = False, fit: bool = True, **kind: Any) -> Any:
    ensure_importable()
    from laplace import Laplace

    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 3), *between, nn.Tanh(), nn.Linear(3, 2)).eval()
    network[0].requires_grad_(not frozen)
    settings = {"subset_of_weights": "all", "hessian_structure": "full", **kind}
    result = Laplace(network, "classification", **settings)
    if fit:
        result.fit(DataLoader(TensorDataset(*rows()), 40))
    return result


@pytest.mark.parametrize("kind", ["frozen", "norm"])
def test_a_prior_of_all_weights_pays_for_what_rows_may_have_made(kind: str) -> None:
    # a layer that learned from the rows, and then was frozen, was in no divergence
    posterior = made(frozen=True) if kind == "frozen" else made(nn.BatchNorm1d(3))
    with pytest.raises(AssumptionError, match="'own' is of all weights, got frozen ones or averages of a batch norm"):
        certify_model(posterior, "own", rows(), **FINE)
    assert certify_model(posterior, made(frozen=True) if kind == "frozen" else made(nn.BatchNorm1d(3)), rows(), **FINE)


def test_buffers_of_a_networks_own_are_constants() -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("shift", torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.shift

    posterior = made(Shifted())
    assert not learned_beside(posterior) and len(left_alone(posterior)) == 1
    assert certify_model(posterior, "own", rows(), **FINE).valid


def test_what_has_no_gaussian_of_all_weights_is_refused_by_name() -> None:
    indices = torch.arange(4)
    with pytest.raises(AssumptionError, match="FullLaplace must be fitted before it is certified"):
        certify_model(made(fit=False), "own", rows(), **FINE)
    part = made(subset_of_weights="subnetwork", subnetwork_indices=indices)
    with pytest.raises(AssumptionError, match="over all weights or the last layer, got a FullSubnetLaplace"):
        certify_model(part, "own", rows(), **FINE)


@pytest.mark.parametrize("structure", ["full", "diag", "kron"])
@pytest.mark.parametrize("subset", ["all", "last_layer"])
def test_gaussians_are_those_that_are_drawn_from(subset: str, structure: str) -> None:
    posterior = made(subset_of_weights=subset, hessian_structure=structure)
    mean, covariance = gaussian_of(posterior)
    size = 17 if subset == "all" else 8
    assert mean.shape == (size,) and sum(each.numel() for each in uncertain(posterior, posterior.model)) == size
    drawn = posterior.sample(20_000, generator=torch.Generator().manual_seed(0)).double()
    scale = covariance.diagonal().sqrt()
    assert bool((((drawn.mean(0) - mean) / scale).abs() < 0.05).all())
    assert bool(((drawn.T.cov() - covariance).abs() < 0.05 * scale * scale.unsqueeze(1)).all())
