"""Summaries of clients' rows, against numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.summaries import settle_summaries, summarise, summary_inputs, summary_names, with_inputs

ONE = torch.ones((), dtype=torch.float64)


def federation(*sizes: int) -> ClientBatch:
    random = torch.Generator().manual_seed(4)
    rows = [(torch.randn(m, 2, generator=random, dtype=torch.float64), k + 1.0) for k, m in enumerate(sizes)]
    return ClientBatch.pad(
        [(50 * x + k, k * (x @ torch.tensor([1.0, -k], dtype=torch.float64)) + 3.0 - k) for x, k in rows],
        allow_empty=True,
    )


def test_summaries_are_numpy_s() -> None:
    batch = federation(9, 30, 4)
    got, errors = summarise(batch, ONE)
    for k, m in enumerate((9, 30, 4)):
        x, y = batch.x[k, :m].numpy(), batch.y[k, :m].numpy()
        expected = [np.log(y.std()), y.mean() / np.hypot(y.mean(), y.std())]
        expected += [np.arctanh(np.corrcoef(x[:, j], y)[0, 1]) for j in range(2)]
        np.testing.assert_allclose(got[k], expected, rtol=1e-10)
        np.testing.assert_allclose(errors[k, 2:], np.full(2, 1 / (m - 3)))
    assert len(summary_names(["a", "b", "y"])) == got.shape[1] == 4


def test_variances_are_those_of_many_clients_that_are_alike() -> None:
    random = torch.Generator().manual_seed(0)
    z = torch.randn(4000, 40, 2, generator=random, dtype=torch.float64)
    x, y = z[..., :1], 0.6 * z[..., 0] + 0.8 * z[..., 1] + 0.7
    batch = ClientBatch.stack(list(zip(x, y, strict=True)), [str(k) for k in range(4000)], list(range(4000)))
    numbers, errors = summarise(batch, ONE)
    torch.testing.assert_close(numbers.var(0), errors.mean(0), rtol=0.1, atol=0)


def test_clients_that_differ_are_told_apart_and_those_that_do_not_are_not() -> None:
    """Scales of e^k, known from many rows, have standard deviation 1; alike clients' errors are no inputs."""
    random = torch.Generator().manual_seed(1)
    rows = [torch.randn(60, 2, generator=random, dtype=torch.float64) for _ in range(40)]
    batch = ClientBatch.pad([(x[:, :1], 5.0 + np.exp(k / 10) * x[:, 1]) for k, x in enumerate(rows)])
    inputs = summary_inputs(batch, settle_summaries(batch))
    assert float(inputs[:, 0].std(correction=0)) == pytest.approx(1.0, abs=0.02)
    assert float(inputs[:, 2].std(correction=0)) < 0.3  # correlations are all 0
    alone = batch.select(torch.tensor([7])).trim()
    torch.testing.assert_close(summary_inputs(alone, settle_summaries(batch))[0], inputs[7])


def test_what_rows_do_not_say_is_the_average_client_s() -> None:
    batch = federation(6, 6, 6, 0, 3)
    batch.x[0, :, 1] = 7.0  # a feature that does not vary
    batch.y[1] = 3.0  # a target that does not
    _, errors = summarise(batch, ONE)
    unknown = [[False] * 3 + [True], [True] * 4, [False] * 4, [True] * 4, [False, False, True, True]]
    assert errors.isinf().tolist() == unknown and (errors > 0).all()
    inputs = summary_inputs(batch, settle_summaries(batch))
    assert inputs.isfinite().all() and not inputs[[1, 3]].any() and inputs[0, 3] == 0


def test_a_federation_of_one_client_has_nothing_to_tell() -> None:
    batch = federation(6)
    assert not summary_inputs(batch, settle_summaries(batch)).any()


@pytest.mark.parametrize("power", [-1000, -40, 600, 900])
def test_a_unit_that_is_a_power_of_two_changes_no_bit(power: int) -> None:
    batch, unit = federation(9, 30, 4), 2.0**power
    other = ClientBatch(batch.x * unit, batch.y * unit, batch.mask, batch.ids, batch.names)
    first, second = (summary_inputs(one, settle_summaries(one)) for one in (batch, other))
    assert torch.equal(first, second)


@pytest.mark.parametrize("far", [1e-300, 1e-150, 1e150, 1e300])
def test_one_client_far_out_leaves_all_finite(far: float) -> None:
    batch = federation(9, 30, 4)
    batch.y[0] *= far
    inputs = summary_inputs(batch, settle_summaries(batch))
    assert inputs.isfinite().all() and inputs.abs().max() < 2.0


def test_every_row_of_a_client_gets_its_inputs() -> None:
    batch, inputs = federation(3, 1), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    wide = with_inputs(batch, inputs)
    for k, m in enumerate((3, 1)):
        assert torch.equal(wide.x[k, :m], torch.cat((batch.x[k, :m], inputs[k].double().expand(m, 2)), 1))
    assert not wide.x[~wide.mask].any() and wide.x.dtype == batch.x.dtype
