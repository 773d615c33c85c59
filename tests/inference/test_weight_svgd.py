"""Weights as particles of a personal posterior, against a linear regression's posterior in closed form."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.inference.svi import LocalInference
from pacbayes_fl.inference.weight_svgd import fit
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.weights.mean_field import MeanField
from pacbayes_fl.server.svgd import direction
from tests.inference.test_sampled_evidence import LINE, Curve, clients
from tests.methods.by_hand import randn

STD = 0.5  # of the noise


def prior(clients: int) -> MeanField:
    return MeanField(0.3 * randn(1, clients, LINE.dim), 0.2 * randn(2, clients, LINE.dim))


def exact(q: MeanField, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and covariance of the posterior of one client."""
    design = torch.cat((x, torch.ones_like(x[:, :1])), -1)
    precision = torch.diag(1 / q.scale.square()) + design.T @ design / STD**2
    mean = torch.linalg.solve(precision, q.loc / q.scale.square() + design.T @ y / STD**2)
    return mean, torch.linalg.inv(precision)


def fitted(batch: ClientBatch, q: MeanField, svgd_particles: int, steps: int = 1500, minibatch: int = 50) -> Tensor:
    local = LocalInference(steps=steps, minibatch=minibatch, rate=0.02, zeta=1.0)
    start = q.loc.unsqueeze(1) + randn(3, batch.clients, svgd_particles, LINE.dim)
    return fit(LINE, local, q, start, batch, Noise(1, 0, batch.ids), direction)


def test_one_particle_is_the_most_probable_weights() -> None:
    batch, q = clients("line", 6, 0, 3), prior(3)
    theta = fitted(batch, q, 1)[:, 0]
    for k in range(3):
        real = batch.mask[k]
        mean, _ = exact(tensors.tree_map(lambda leaf, k=k: leaf[k], q), batch.x[k][real], batch.y[k][real])
        torch.testing.assert_close(theta[k], mean, rtol=0, atol=1e-4)
    torch.testing.assert_close(theta[1], q.loc[1], rtol=0, atol=1e-4)  # without rows: the prior's mode


@pytest.mark.slow
def test_particles_spread_like_the_posterior() -> None:
    batch, q = clients("line", 6, 3), prior(2)
    theta = fitted(batch, q, 40)
    for k in range(2):
        real = batch.mask[k]
        mean, covariance = exact(tensors.tree_map(lambda leaf, k=k: leaf[k], q), batch.x[k][real], batch.y[k][real])
        std = covariance.diagonal().sqrt()
        assert ((theta[k].mean(0) - mean).abs() < 0.1 * std).all()
        assert ((theta[k].std(0) / std - 1).abs() < 0.25).all()


@pytest.mark.parametrize("change", [lambda b: b, lambda b: b.trim()])
def test_clients_do_not_feel_each_other(change: Callable[[ClientBatch], ClientBatch]) -> None:
    batch, q = clients("line", 6, 9, 2), prior(3)
    whole = fitted(batch, q, 4, 5, 3)
    for k in range(3):
        at = torch.tensor([k])
        start = q.loc.unsqueeze(1) + randn(3, 3, 4, LINE.dim)
        local = LocalInference(steps=5, minibatch=3, rate=0.02, zeta=1.0)
        one = change(batch.select(at))
        alone = fit(LINE, local, tensors.select(q, at), start[at], one, Noise(1, 0, one.ids), direction)
        torch.testing.assert_close(alone[0], whole[k], rtol=1e-9, atol=1e-9)


def test_a_number_feels_no_prior_and_the_start_stays_as_it_is() -> None:
    model, batch = Curve(), clients("program", 4)
    q = MeanField(torch.zeros(1, 3, dtype=torch.float64), torch.full((1, 3), -20.0, dtype=torch.float64))
    q.rho[:, :2] = 0.0
    start = randn(5, 1, 2, 3)
    kept = start.clone()
    local = LocalInference(steps=400, rate=0.05, zeta=1.0)
    theta = fit(model, local, q, start, batch, Noise(1, 0, batch.ids), direction)
    assert torch.equal(start, kept)
    assert not theta.requires_grad and theta.isfinite().all()
    residual = batch.y[0] - torch.sin(batch.x[0] @ theta[0, :, :2].T).T
    assert (
        (theta[0, :, 2] - residual.mean(1)).abs() < 0.15
    ).all()  # least squares, not drawn to 0 with force 1 / 4e-18
