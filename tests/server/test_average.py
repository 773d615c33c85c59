"""Averages of what clients send, and the server's step towards them."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.nn.functional import softplus

from pacbayes_fl import tensors
from pacbayes_fl.models.likelihoods import inverse_softplus
from pacbayes_fl.posteriors.weights.mean_field import MeanField
from pacbayes_fl.server import average

UPLOADS = MeanField(*torch.tensor([[[0.5], [2.0], [1.1]], [[-2.0], [-2.5], [-3.3]]], dtype=torch.float64))
ONES = torch.ones(3, dtype=torch.float64)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("beta", "expected"), [(0.5, (1.1, -2.8)), (1.0, (1.2, -2.6)), (2.0, (1.4, -2.2))], ids=["half", "all", "beyond"]
)
def test_the_server_goes_towards_the_average_and_beyond(beta: float, expected: tuple[float, float]) -> None:
    old = MeanField(torch.tensor([1.0], dtype=torch.float64), torch.tensor([-3.0], dtype=torch.float64))
    new = average.extrapolate(old, tensors.weighted_mean(UPLOADS, ONES), beta)
    assert (new.loc.item(), new.rho.item()) == pytest.approx(expected, rel=1e-13)
    assert (old.loc.item(), old.rho.item()) == (1.0, -3.0)


def test_averaging_means_and_rhos_is_no_barycentre_and_is_what_the_algorithm_says() -> None:
    """The mean KL divergence to the uploads is 1.43 nats, where the best Gaussian has 0.68."""
    loc, std = torch.tensor([0.5, -0.2, 0.1], dtype=torch.float64), (0.1, 0.3, 0.2)
    uploads = MeanField(
        loc.view(3, 1), torch.tensor([inverse_softplus(s) for s in std], dtype=torch.float64).view(3, 1)
    )
    mean = tensors.weighted_mean(uploads, ONES)
    assert mean.loc.item() == pytest.approx(0.13333333333333333, rel=1e-14)
    assert softplus(mean.rho).item() == pytest.approx(0.18333231603483, rel=1e-12)
    assert uploads.kl(mean).mean().item() == pytest.approx(1.4262537487525793, rel=1e-12)

    def divergence(point: Tensor) -> float:
        w = MeanField(*torch.as_tensor(point, dtype=torch.float64).view(2, 1))
        return float(uploads.kl(w).mean())

    best = minimize(divergence, [0.0, -1.0], tol=1e-12)
    assert best.fun == pytest.approx(0.6809296504757208, rel=1e-9)
    assert float(softplus(torch.tensor(best.x[1]))) ** 2 == pytest.approx(0.12888888888888891, rel=1e-5)


def test_clients_weigh_alike_or_by_rows_and_nothing_without_rows() -> None:
    size = torch.tensor([3.0, 0.0, 1.0], dtype=torch.float64)
    assert average.client_weight(size, "uniform").tolist() == [1.0, 0.0, 1.0]
    assert average.client_weight(size, "rows").tolist() == [3.0, 0.0, 1.0]
    got = tensors.weighted_mean(UPLOADS, average.client_weight(size, "rows"))
    assert got.loc.item() == pytest.approx((3 * 0.5 + 1.1) / 4, rel=1e-14)


class Of(NamedTuple):
    w: MeanField
    weight: Tensor


def test_averages_of_averages_are_the_average_of_all() -> None:
    weight = torch.tensor([3.0, 1.0, 0.5], dtype=torch.float64)
    parts = [torch.tensor([0, 1]), torch.tensor([2])]
    chunks = [average.reduced(Of(tensors.select(UPLOADS, part), weight[part]), "w") for part in parts]
    assert all(chunk.w.loc.shape == (1, 1) for chunk in chunks)
    both = tensors.cat(chunks)
    joined = tensors.weighted_mean(both.w, both.weight)
    whole = tensors.weighted_mean(UPLOADS, weight)
    for got, expected in zip(joined, whole, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-14, atol=0)
    empty = average.reduced(Of(UPLOADS, 0 * weight), "w")  # a chunk of clients without rows
    assert not any(leaf.any() for leaf in empty.w)


def test_every_weight_may_be_averaged_over_clients_of_its_own() -> None:
    leaf = torch.tensor([[1.0, 2.0, 3.0], [5.0, -2.0, 7.0]], dtype=torch.float64)
    share = torch.tensor([[1.0, 0.0, 0.0], [3.0, 0.5, 0.0]], dtype=torch.float64)
    assert tensors.weighted_mean(leaf, share).tolist() == [4.0, -2.0, 0.0]


class Sent(NamedTuple):
    theta: Tensor
    weight: Tensor
    loss: Tensor


def test_a_chunk_is_reduced_to_the_mean_of_what_is_averaged_and_the_sums_of_the_rest() -> None:
    theta = torch.tensor([[1.0, 2.0], [5.0, -2.0], [9.0, 9.0]], dtype=torch.float64)
    update = Sent(theta, torch.tensor([1.0, 3.0, 0.0]).double(), torch.tensor([0.5, 0.25, 4.0]).double())
    got = average.reduced(update, "theta")
    assert isinstance(got, Sent)
    assert (got.theta.tolist(), got.weight.tolist(), got.loss.tolist()) == ([[4.0, -1.0]], [4.0], [4.75])
