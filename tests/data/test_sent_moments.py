"""What clients send of their columns scales them as their rows do."""

from __future__ import annotations

import pytest
import torch

from pacbayes_fl.data import scaling
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.moments import columns_of, moments_of
from pacbayes_fl.data.scaling import ColumnScale
from pacbayes_fl.data.sent_moments import SentMoments
from pacbayes_fl.errors import ShapeError

SIZES = (5, 1, 7, 3, 4)


def clients(unit: float = 1.0, far: float = 1.0) -> ClientBatch:
    """Give columns that vary, that tell clients apart, that are constant, and that are far from 0."""
    generator = torch.Generator().manual_seed(1)
    rows = []
    for k, m in enumerate(SIZES):
        x = torch.randn(m, 4, generator=generator, dtype=torch.float64)
        x[:, 1], x[:, 2], x[:, 3] = float(k), 2.0, 1e6 + x[:, 3]
        size = far if k == 4 else 1.0
        rows.append((unit * size * x, unit * size * torch.randn(m, generator=generator, dtype=torch.float64)))
    return ClientBatch.stack(rows, tuple(f"c{k}" for k in range(len(SIZES))), tuple(range(len(SIZES))))


def travelled(batch: ClientBatch) -> SentMoments:
    sent = SentMoments.of(batch)
    return SentMoments.from_rows(batch.names, sent.to_rows(), batch.x.shape[2] + 1, sent.labels)


@pytest.mark.parametrize("unit", [1.0, 1e-150, 1e150])
def test_moments_of_all_rows_follow(unit: float) -> None:
    batch = clients(unit)
    columns = columns_of(batch)
    expected = moments_of(columns.flatten(0, 1).unsqueeze(0), batch.mask.flatten().unsqueeze(0))
    whole = travelled(batch).whole
    torch.testing.assert_close(whole.mean, expected.mean, rtol=1e-13, atol=0)
    torch.testing.assert_close(whole.std, expected.std, rtol=1e-8, atol=1e-15 * unit)
    assert whole.flat.tolist() == expected.flat.tolist() == [[False, False, True, False, False]]


@pytest.mark.filterwarnings("ignore:.*do not vary", "ignore:.*far from that")
@pytest.mark.parametrize("kind", ["pooled", "shrunk", "client", None])
@pytest.mark.parametrize("far", [1.0, 1e7])
def test_columns_are_scaled_as_by_rows(kind: ColumnScale | None, far: float) -> None:
    batch = clients(far=far)
    asked: list[ColumnScale | None] = [kind, None, kind, kind, kind]
    expected, got = scaling.settle(batch, asked), scaling.settle_moments(travelled(batch), asked)
    assert got.kinds == expected.kinds
    for one, other in zip(got[1:3], expected[1:3], strict=True):
        assert isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-15)
    assert (got.between is None) == (expected.between is None)
    if got.between is not None and got.spread is not None:
        torch.testing.assert_close(got.between, expected.between, rtol=1e-8, atol=1e-15)
        torch.testing.assert_close(got.spread, expected.spread, rtol=1e-8, atol=1e-15)


def test_what_is_no_moment_is_refused() -> None:
    rows = SentMoments.of(clients()).to_rows()
    for at, value in ((0, -1.0), (1, -1.0), (7, -1.0), (4, torch.nan)):
        wrong = rows.clone()
        wrong[2, at] = value
        with pytest.raises(ShapeError):
            SentMoments.from_rows(clients().names, wrong, 5, False)
    with pytest.raises(ShapeError, match="17 finite numbers a client"):
        SentMoments.from_rows(clients().names, rows[:, :-1], 5, False)
