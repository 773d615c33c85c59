"""Pooling: all real rows of all clients that take part, and nothing else."""

from __future__ import annotations

import torch

from pacbayes_fl import tensors
from pacbayes_fl.methods.baselines.centralised import pool, send
from tests.laws.cases import federation

BATCH = federation(3)


def test_every_real_row_is_pooled_once_and_in_order() -> None:
    x, y = pool(send(BATCH))
    assert len(y) == int(BATCH.size.sum()) == 19
    assert torch.equal(x, torch.cat([BATCH.x[k][BATCH.mask[k]] for k in range(4)]))
    assert torch.equal(y, torch.cat([BATCH.y[k][BATCH.mask[k]] for k in range(4)]))


def test_clients_of_weight_zero_are_left_out() -> None:
    update = send(BATCH)._replace(weight=torch.tensor([1.0, 0.0, 1.0, 0.0]))
    kept = tensors.select(send(BATCH), torch.tensor([0, 2]))
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(pool(update), pool(kept), strict=True))
    assert len(pool(update)[1]) == 4


def test_rows_are_sent_as_they_are() -> None:
    update = send(BATCH)
    assert update.x is BATCH.x and update.y is BATCH.y and update.mask is BATCH.mask
    assert update.weight.tolist() == [1.0] * 4
