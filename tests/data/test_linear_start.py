"""The federation's ridge regression from sums: against scikit-learn's Bayesian ridge and the rows themselves."""

from __future__ import annotations

import math

import pytest
import torch
from sklearn.linear_model import Ridge
from torch import Tensor

from pacbayes_fl.data import linear_start
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.linear_start import LinearMoments, linear_moments, pooled_ridge


def rows(offset: float = 0.0, noise: float = 0.5) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    weight = torch.tensor([1.0, -2.0, 0.0], dtype=torch.float64)
    clients = []
    for m in (5, 1, 12, 3):
        x = torch.randn(m, 3, generator=generator, dtype=torch.float64) + offset
        clients.append(
            (x, x @ weight + 4.0 * offset + noise * torch.randn(m, generator=generator, dtype=torch.float64))
        )
    return clients


def log_evidence(x: Tensor, y: Tensor, penalty: float) -> float:
    """ln N(y | b, s^2 (I + x x' / lambda)) of centred rows, at the s^2 that maximises it."""
    x, y = x - x.mean(0), y - y.mean()
    shape = torch.eye(len(y), dtype=x.dtype) + x @ x.T / penalty
    variance = float(y @ torch.linalg.solve(shape, y)) / len(y)
    covariance = variance * shape
    return float(torch.distributions.MultivariateNormal(torch.zeros_like(y), covariance).log_prob(y))


@pytest.mark.parametrize("offset", [0.0, 3.0])
def test_the_line_is_scikit_learn_s_at_the_penalty_of_highest_evidence(offset: float) -> None:
    clients = rows(offset=offset)
    x, y = (torch.cat(parts) for parts in zip(*clients, strict=True))
    start = pooled_ridge(linear_moments(ClientBatch.pad(clients)))
    penalties = linear_start._PENALTIES
    best = max(penalties, key=lambda penalty: log_evidence(x, y, penalty))
    ridge = Ridge(alpha=best, solver="cholesky").fit(x.numpy(), y.numpy())
    torch.testing.assert_close(start.weight, torch.from_numpy(ridge.coef_), rtol=1e-9, atol=1e-10)
    assert start.bias == pytest.approx(ridge.intercept_, rel=1e-9, abs=1e-9)
    centred = x - x.mean(0), y - y.mean()
    shape = torch.eye(len(y), dtype=x.dtype) + centred[0] @ centred[0].T / best
    residual = float(centred[1] @ torch.linalg.solve(shape, centred[1]))
    assert start.noise_std == pytest.approx(math.sqrt(residual / (4 + 0 + 11 + 2)), rel=1e-9)  # of 5, 1, 12, 3 rows
    assert penalties[0] < best < penalties[-1]


def test_sums_add_up_over_clients_and_padding_is_no_row() -> None:
    clients = rows()
    moments = linear_moments(ClientBatch.pad(clients))
    x, y = (torch.cat(parts) for parts in zip(*clients, strict=True))
    z = torch.cat((x, torch.ones(len(x), 1, dtype=x.dtype)), 1)
    for found, expected in zip(moments, (z.T @ z, z.T @ y, y @ y), strict=True):
        torch.testing.assert_close(found.sum(0), expected)
    assert moments.inputs[:, -1, -1].tolist() == [5, 1, 12, 3]


def test_lines_without_residuals_and_federations_without_rows_or_signal_give_finite_starts() -> None:
    exact = pooled_ridge(linear_moments(ClientBatch.pad(rows(noise=0.0))))
    assert 1e-2 <= exact.noise_std < 0.1
    torch.testing.assert_close(exact.weight, torch.tensor([1.0, -2.0, 0.0], dtype=torch.float64), atol=0.01, rtol=0.01)
    empty = LinearMoments(*(torch.zeros(2, *shape, dtype=torch.float64) for shape in ((4, 4), (4,), ())))
    none = pooled_ridge(empty)
    assert none.weight.tolist() == [0, 0, 0] and (none.bias, none.noise_std) == (0.0, 1.0)
    generator = torch.Generator().manual_seed(0)
    noise = [tuple(torch.randn(40, *d, generator=generator, dtype=torch.float64) for d in ((3,), ())) for _ in range(3)]
    lost = pooled_ridge(linear_moments(ClientBatch.pad([(x, y) for x, y in noise])))
    assert float(lost.weight.norm()) < 0.1 and lost.noise_std == pytest.approx(1.0, abs=0.15)
    flat = pooled_ridge(linear_moments(ClientBatch.pad([(x, torch.full((40,), 2.0)) for x, _ in noise])))
    assert (
        flat.bias == pytest.approx(2.0) and float(flat.weight.norm()) < 1e-6 and flat.noise_std == pytest.approx(1e-2)
    )
    single = pooled_ridge(linear_moments(ClientBatch.pad([(x[:1], y[:1]) for x, y in noise])))
    assert single.weight.tolist() == [0, 0, 0] and single.noise_std == 1.0  # a row alone is its own mean
