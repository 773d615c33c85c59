"""Points are the pivots of a dense Cholesky factor, and end where rows are exhausted."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from pacbayes_fl.models.prior_values import embedded_covariance
from pacbayes_fl.posteriors.functions import pivoted
from pacbayes_fl.posteriors.functions.pivoted import EmbeddedKernel, choose

ROWS, SIZES = 9, (9, 5, 1, 0)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def kernel(scale: float = 1.0, seed: int = 0) -> EmbeddedKernel:
    linear = 0.3 * draw(4, 2, ROWS, 3, seed=seed + 1)
    return EmbeddedKernel(draw(4, 2, ROWS, 2, seed=seed), scale * (1 + draw(4, 2, seed=seed + 2).exp()), linear)


NOISE = 0.1 + draw(4, 2, ROWS, seed=7).square()
MASK = torch.arange(ROWS) < torch.tensor(SIZES).unsqueeze(1)


def greedy(covariance: np.ndarray, noise: np.ndarray, count: int) -> list[int]:
    """Rows of the largest rest of the prior variance over the noise, each from a dense solve."""
    chosen: list[int] = []
    for _ in range(min(count, len(covariance))):
        k_zx = covariance[chosen]
        q = (k_zx * np.linalg.solve(covariance[np.ix_(chosen, chosen)], k_zx)).sum(0) if chosen else 0.0
        chosen.append(int(((covariance.diagonal() - q) / noise).argmax()))
    return chosen


@pytest.mark.quick
def test_points_are_the_greedy_ones_and_the_factor_is_that_of_their_covariance() -> None:
    k = kernel()
    dense = embedded_covariance(k.embedding, k.embedding, k.outputscale, k.linear, k.linear)
    found = choose(k, NOISE, MASK, 4)
    lower = found.lower()
    for client, rows in enumerate(SIZES):
        for p in range(2):
            covariance = dense[client, p, :rows, :rows].numpy()
            expected = greedy(covariance, NOISE[client, p, :rows].numpy(), 4)
            used = found.used[client, p]
            assert found.at[client, p][used].tolist() == expected
            zz = covariance[np.ix_(expected, expected)]
            root = lower[client, p][used][:, used].numpy()
            np.testing.assert_allclose(root @ root.T, zz, rtol=1e-10, atol=1e-12)
            q = covariance[:, expected] @ np.linalg.solve(zz, covariance[expected]) if expected else covariance
            factor = found.factor[client, p]
            np.testing.assert_allclose((factor.T @ factor)[:rows, :rows], q, rtol=1e-9, atol=1e-11)
            np.testing.assert_allclose(found.left[client, p, :rows], (covariance - q).diagonal(), rtol=0, atol=1e-10)
            assert not factor[:, rows:].any() and not factor[~used].any()


@pytest.mark.parametrize("unit", [1.0, 1e-150, 1e150])
def test_repeated_rows_and_constant_columns_end_the_choice(unit: float) -> None:
    """A kernel of three different rows has rank three, in any unit of y."""
    z = draw(1, 1, 3, 2).repeat(1, 1, 4, 1)
    k = EmbeddedKernel(z, torch.full((1, 1), unit, dtype=torch.float64))
    found = choose(k, torch.full((1, 1, 12), 0.1 * unit, dtype=torch.float64), torch.ones(1, 12, dtype=torch.bool), 12)
    assert found.at.shape[-1] == 3 and len({row % 3 for row in found.at.flatten().tolist()}) == 3
    assert float(found.left.max()) < 1e-12 * unit
    assert choose(EmbeddedKernel(torch.zeros_like(z)), torch.ones(1, 1, 12), k_mask(12), 12).used.sum() == 1


def k_mask(rows: int) -> Tensor:
    return torch.ones(1, rows, dtype=torch.bool)


def test_padding_and_the_order_of_rows_change_nothing() -> None:
    k, order = kernel(), torch.randperm(ROWS, generator=torch.Generator().manual_seed(3))
    found = choose(k, NOISE, MASK, 5)
    turned = EmbeddedKernel(k.embedding[:, :, order], k.outputscale, k.linear[:, :, order])  # type: ignore[index]
    again = choose(turned, NOISE[:, :, order], MASK[:, order], 5)
    assert torch.equal(torch.where(again.used, order[again.at], 0), found.at)
    torch.testing.assert_close(again.left, found.left[:, :, order], rtol=0, atol=1e-12)
    alone = EmbeddedKernel(k.embedding[1:2, :, :5], k.outputscale[1:2], k.linear[1:2, :, :5])  # type: ignore[index]
    short = choose(alone, NOISE[1:2, :, :5], MASK[1:2, :5], 5)
    assert torch.equal(short.at, found.at[1:2])
    torch.testing.assert_close(short.factor, found.factor[1:2, ..., :5], rtol=0, atol=1e-12)


def test_a_device_that_does_not_stop_early_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    k = EmbeddedKernel(0.1 * draw(4, 2, ROWS, 2))
    short = choose(k, NOISE, MASK, ROWS)
    monkeypatch.setattr(pivoted.tensors, "on_host", lambda leaf: False)
    whole = choose(k, NOISE, MASK, ROWS)
    count = short.at.shape[-1]
    assert count < ROWS and not whole.used[..., count:].any()
    assert torch.equal(whole.factor[..., :count, :], short.factor) and torch.equal(whole.left, short.left)


def test_a_kernel_that_is_no_number_ends_the_choice_of_its_client_alone() -> None:
    k = EmbeddedKernel(torch.where(torch.arange(4).view(4, 1, 1, 1) == 1, torch.nan, draw(4, 2, ROWS, 2)))
    found = choose(k, NOISE, MASK, 3)
    assert not found.used[1, :, 1:].any() and found.left[1, :, :5].isnan().any()
    assert found.used[0].all() and found.left[0].isfinite().all()
