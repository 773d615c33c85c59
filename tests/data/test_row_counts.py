"""A client that repeats its rows moves nobody else's scale or regression further than the client in the middle may."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from pacbayes_fl.data import linear_start, scaling
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.linear_start import linear_moments, pooled_ridge
from pacbayes_fl.data.row_counts import counted, counted_rows, different_rows, one_row
from pacbayes_fl.data.scaling import ColumnScale
from pacbayes_fl.data.sent_moments import SentMoments

M, OFTEN = 20, 20_000
Rows = tuple[Tensor, Tensor]


def honest(clients: int = 6) -> list[Rows]:
    generator = torch.Generator().manual_seed(5)
    parts = []
    for _ in range(clients):
        x = torch.randn(M, 2, generator=generator, dtype=torch.float64)
        y = x @ torch.tensor([1.0, -0.5], dtype=x.dtype) + 0.3 * torch.randn(M, generator=generator, dtype=x.dtype)
        parts.append((x, y))
    return parts


def with_repeats(times: int) -> ClientBatch:
    """Six clients, and one whose only row, three standard deviations of the noise off, stands so often."""
    x, y = torch.tensor([[1.5, -1.0]], dtype=torch.float64), torch.tensor([1.0], dtype=torch.float64)
    return ClientBatch.pad([*honest(), (x.expand(times, 2), y.expand(times))])


def rmse(batch: ClientBatch) -> float:
    """Error of the pooled line on the rows of the six others."""
    line = pooled_ridge(linear_moments(batch))
    x, y = (torch.cat(part) for part in zip(*honest(), strict=True))
    return float((y - x @ line.weight - line.bias).square().mean().sqrt())


def test_the_rule_is_the_loop_over_clients() -> None:
    size = torch.tensor([4, 9, 50, 50, 0, 7, 3], dtype=torch.float64)
    different = torch.tensor([4, 1, 2, 30, 0, 7, 1], dtype=torch.float64)
    usual = sorted(m for m in size.tolist() if m)[2]  # the lower one of the two in the middle
    expected = [min(m, max(u, usual)) for m, u in zip(size.tolist(), different.tolist(), strict=True)]
    assert counted(size, different).tolist() == expected == [4, 7, 7, 30, 0, 7, 3]
    assert counted(torch.zeros(2), torch.zeros(2)).tolist() == [0, 0]


def test_rows_that_differ_are_counted_as_numpy_does() -> None:
    generator = torch.Generator().manual_seed(0)
    parts = [torch.randint(-1, 2, (m, 3), generator=generator).double() for m in (1, 8, 30, 12)]
    batch = ClientBatch.pad([(part[:, :2] * -1.0, part[:, 2]) for part in parts])  # -0 is 0
    expected = [len(np.unique(part.numpy(), axis=0)) for part in parts]
    assert different_rows(batch).tolist() == expected != [1, 8, 30, 12]
    assert counted_rows(batch).tolist() == counted(batch.size, torch.tensor(expected)).tolist()
    labels = replace(batch, y=batch.y.long())
    assert different_rows(labels).tolist() == expected


@pytest.mark.parametrize("kind", ["pooled", "shrunk"])
def test_one_row_counts_as_often_as_a_client_has_rows_in_the_middle(kind: ColumnScale) -> None:
    usual, often = (scaling.settle(with_repeats(times), [kind] * 3) for times in (M, OFTEN))
    for name in ("mean", "std", "between", "spread"):
        one, other = getattr(usual, name), getattr(often, name)
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)
    line, other_line = (pooled_ridge(linear_moments(with_repeats(times))) for times in (M, OFTEN))
    torch.testing.assert_close(line.weight, other_line.weight, rtol=1e-10, atol=1e-12)
    assert line.bias == pytest.approx(other_line.bias) and line.noise_std == pytest.approx(other_line.noise_std)
    sent = SentMoments.of(with_repeats(OFTEN))
    told = scaling.settle_moments(SentMoments.from_rows(sent.names, sent.to_rows(), 3, False), [kind] * 3)
    torch.testing.assert_close(told.std, often.std, rtol=1e-8, atol=0)


def test_the_others_move_by_no_more_than_one_client_can_move_them(monkeypatch: pytest.MonkeyPatch) -> None:
    alone, batch = scaling.settle(ClientBatch.pad(honest()), ["pooled"] * 3), with_repeats(OFTEN)
    moved = (scaling.settle(batch, ["pooled"] * 3).mean - alone.mean).abs()
    row = torch.tensor([1.5, -1.0, 1.0], dtype=torch.float64)
    assert bool((moved <= (row - alone.mean).abs() / 7 * (1 + 1e-9)).all())  # w_k / sum w of the distance
    without, held = rmse(ClientBatch.pad(honest())), rmse(batch)
    monkeypatch.setattr(linear_start, "counted_rows", lambda rows: rows.size.double())
    unheld = rmse(batch)
    assert without < held < 1.25 * without and unheld > 1.8 * without


def test_tables_without_repeats_keep_every_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [(x[: 3 + 4 * k], y[: 3 + 4 * k]) for k, (x, y) in enumerate(honest(5))]
    batch = ClientBatch.pad(parts)
    assert counted_rows(batch).tolist() == [3, 7, 11, 15, 19]
    kinds: tuple[ColumnScale, ...] = ("pooled", "shrunk")
    settled = [scaling.settle(batch, [kind] * 3) for kind in kinds]
    moments = linear_moments(batch)
    monkeypatch.setattr(scaling, "counted_rows", lambda rows: rows.size)
    monkeypatch.setattr(linear_start, "counted_rows", lambda rows: rows.size.double())
    for kind, known in zip(kinds, settled, strict=True):
        before = scaling.settle(batch, [kind] * 3)
        assert all(torch.equal(getattr(before, name), getattr(known, name)) for name in ("mean", "std"))
    assert all(torch.equal(one, other) for one, other in zip(linear_moments(batch), moments, strict=True))


def test_who_has_but_one_row_is_who_has_one_different_row() -> None:
    """Also where only targets differ, of wide features, of none, and where padding holds other numbers."""
    x = torch.randn(4, 2, 3, generator=torch.Generator().manual_seed(1))
    same, other = x[:1].expand(4, 2, 3), torch.tensor([1.0, 1.0, 1.0, 2.0])
    batch = ClientBatch.pad([(same, other[:1].expand(4)), (same, other), (x, other), (x[:1], other[:1])])
    batch = replace(batch, x=torch.where(batch.mask[..., None, None], batch.x, 7.0))
    assert one_row(batch).tolist() == (different_rows(batch) == 1).tolist() == [True, False, False, True]
