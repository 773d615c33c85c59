"""Rows of clients of very different sizes by groups are those of the whole batch, and padding takes no memory."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data import padding, row_counts, scaling, summaries
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.client_blocks import by_block, by_size
from pacbayes_fl.data.linear_start import linear_moments
from pacbayes_fl.data.lone_values import say_lone
from pacbayes_fl.data.moments import client_moments, columns_of
from pacbayes_fl.data.scaling import ColumnScale, with_targets
from pacbayes_fl.data.sent_moments import SentMoments
from pacbayes_fl.data.target_bounds import Bounds
from pacbayes_fl.study.run import run
from tests.tiny import quick, tiny

SIZES = [7, 1, 700, 64, 65, 5, 3, 128, 129, 9, 2, 300, 8, 8, 63, 40, 6, 6, 31]
BATCH_LEAVES = ("x", "y", "mask")


def uneven(dtype: torch.dtype = torch.float64, columns: int = 3, empty: bool = False) -> ClientBatch:
    """Return clients of one to 700 rows, one of which is far, one repeats its rows and one has a lone value."""
    generator = torch.Generator().manual_seed(0)
    sizes = [*SIZES, 0] if empty else SIZES
    rows = [
        (torch.randn(m, columns, generator=generator) * 3 + k, torch.randn(m, generator=generator))
        for k, m in enumerate(sizes)
    ]
    rows[3] = rows[3][0] * 1e4, rows[3][1] * 1e4
    rows[4] = rows[4][0][:1].expand(65, -1).clone(), rows[4][1][:1].expand(65).clone()
    rows[7][0][5, 0] = -1e6
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ClientBatch.pad(rows, dtype=dtype, allow_empty=empty)


@pytest.fixture
def grouped(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Return what turns groups on and off."""

    def turn(on: bool) -> None:
        monkeypatch.setattr(padding, "LEAST", 1 if on else 2**62)

    return turn


def test_groups_hold_every_client_once_and_all_of_its_rows(grouped: Callable[[bool], None]) -> None:
    grouped(True)
    batch = uneven(empty=True)
    groups = batch.groups()
    assert groups is not None
    assert sorted(torch.cat([at for at, _ in groups]).tolist()) == [*range(batch.clients)]
    for at, rows in groups:
        assert at.tolist() == sorted(at.tolist()) and int(batch.size[at].max()) <= rows <= 700
        assert rows == 64 or 2 * int(batch.size[at].max()) > rows
    even = ClientBatch.pad([(torch.ones(100, 3).double(), torch.ones(100).double())] * 9)
    assert even.groups() is None
    grouped(False)
    assert batch.groups() is None


def test_rows_that_do_not_come_first_are_left_together(grouped: Callable[[bool], None]) -> None:
    grouped(True)
    batch = uneven()
    late = batch.rows(torch.arange(699, -1, -1).expand(batch.clients, -1))
    assert late.groups() is None
    assert torch.equal(late.select(torch.tensor([2, 0])).x, late.x[[2, 0]])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_batches_are_made_and_chosen_alike(dtype: torch.dtype, grouped: Callable[[bool], None]) -> None:
    made = []
    for on in (False, True):
        grouped(on)
        batch = uneven(dtype, empty=True)
        chosen = batch.select(torch.tensor([19, 2, 5, 5, 0, 4, 7, 9, 10]))
        narrow = batch.select(torch.tensor([5, 0]), 7)
        twice = by_block(batch, lambda part, _: scaling.identity(part).apply(part))
        made.append((batch, chosen, narrow, twice))
    for one, other in zip(*made, strict=True):
        assert one.names == other.names
        for leaf in BATCH_LEAVES:
            left, right = getattr(one, leaf), getattr(other, leaf)
            assert left.dtype == right.dtype and torch.equal(left, right), leaf
    narrow = made[0][0].select(torch.tensor([5, 0])).trim()
    assert torch.equal(narrow.x, made[1][2].x)


PASSES: dict[str, Callable[[ClientBatch], list[Tensor]]] = {
    "moments": lambda batch: [*client_moments(batch)],
    "sent": lambda batch: [*SentMoments.of(batch).inside, SentMoments.of(batch).counted],
    "targets": lambda batch: [*with_targets(scaling.identity(batch), batch)],
    "counted": lambda batch: [row_counts.counted_rows(batch), row_counts.one_row(batch)],
    "summaries": lambda batch: [*summaries.summarise(batch, torch.tensor(1.0).double())],
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("columns", [1, 3, 4, 15, 17])
@pytest.mark.parametrize("name", PASSES)
def test_a_pass_by_groups_has_the_bits_of_the_whole(
    name: str, columns: int, dtype: torch.dtype, grouped: Callable[[bool], None]
) -> None:
    found = []
    for on in (False, True):
        grouped(on)
        found.append(PASSES[name](uneven(dtype, columns, empty=True)))
    for whole, parts in zip(*found, strict=True):
        assert whole.dtype == parts.dtype and torch.equal(whole.nan_to_num(7.0), parts.nan_to_num(7.0))


def test_warnings_and_sums_of_regression_are_those_of_the_whole(grouped: Callable[[bool], None]) -> None:
    said, sums = [], []
    for on in (False, True):
        grouped(on)
        batch = uneven()
        with pytest.warns(UserWarning, match="client_07: a few values of a are so far") as caught:
            say_lone(batch, ["a", "b", "c", "y"])
        said.append([str(one.message) for one in caught])
        sums.append(linear_moments(batch))
    assert said[0] == said[1]
    for whole, parts in zip(*sums, strict=True):  # products of matrices round by their shape
        torch.testing.assert_close(whole, parts, rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("repeats", [True, False])
@pytest.mark.parametrize("kind", get_args(ColumnScale))
def test_scaling_by_groups_is_that_of_the_whole(
    kind: ColumnScale, repeats: bool, grouped: Callable[[bool], None]
) -> None:
    """Bit by bit, but for sums over the rows of all clients, which are taken in another order."""
    found, said = [], []
    for on in (False, True):
        grouped(on)
        batch = uneven()
        if not repeats:
            batch = batch.select(torch.tensor([k for k in range(batch.clients) if k != 4]))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            shared = scaling.settle(batch, [kind] * 4, ["a", "b", "c", "y"])
            own = scaling.fit(batch, shared, ["a", "b", "c", "y"])
        used = shared.used(own, batch)
        scaled = by_block(batch, lambda part, at, used=used: scaling.Scaling(*(t[at] for t in used)).apply(part))
        Bounds(low=-1e9).check(batch)
        found.append([shared.mean, shared.std, *own, *used, scaled.x, scaled.y, scaled.mask])
        said.append(sorted(str(one.message) for one in caught))
    assert said[0] == said[1] and said[0]
    exact = kind != "pooled" or repeats
    for whole, parts in zip(*found, strict=True):
        if exact or whole.dtype == torch.bool:
            assert torch.equal(whole, parts)
        else:
            torch.testing.assert_close(whole, parts, rtol=1e-12, atol=1e-12)


def test_what_is_found_comes_in_the_order_of_the_clients(
    grouped: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    grouped(True)
    monkeypatch.setattr(tensors, "BLOCK", 4)
    batch, asked = uneven(), list[int]()

    def look(part: ClientBatch) -> list[Tensor]:
        asked.append(part.clients)
        return [part.size, columns_of(part).sum((1, 2))]

    size, total = by_size(batch, look)
    assert max(asked) == 4 and sum(asked) == batch.clients and torch.equal(size, batch.size)
    torch.testing.assert_close(total, columns_of(batch).sum((1, 2)))


def test_room_is_zero_wherever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "MAPPED", 64)
    for held in (1, 10**9):
        made = padding.room((5, 7, 2), torch.float32, held)
        assert made.shape == (5, 7, 2) and made.dtype == torch.float32 and not made.any()
        made[2, :3] = 1.0
        assert float(made.sum()) == 6.0

    def none(*_: object, **__: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr("mmap.mmap", none)
    assert not padding.room((5, 7, 2), torch.int64, 1).any()


def test_one_long_client_takes_the_memory_of_its_rows() -> None:
    """800 MB of padding, of which rows are 1 MB."""
    before = resident()
    rows = [(torch.ones(20_000, 5).double(), torch.ones(20_000).double())]
    rows += [(torch.ones(8, 5).double(), torch.ones(8).double())] * 999
    batch = ClientBatch.stack(rows, [f"c{k}" for k in range(1000)], range(1000))
    client_moments(batch)
    batch = by_block(batch, lambda part, _: scaling.identity(part).apply(part)).select(torch.arange(900))
    assert batch.x.shape == (900, 20_000, 5) and resident() - before < 2**28


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "pac-pfl"])
def test_a_run_by_groups_is_that_of_the_whole(
    method: str, tmp_path: Path, grouped: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("secrets.randbits", lambda bits: 12345)
    table = tmp_path / "uneven.csv"
    sizes, generator = [90, *range(8, 20)], torch.Generator().manual_seed(0)
    lines = [
        f"c{k:02},{float(a):.4f},{float(a.sin() + 0.1 * b):.4f},{'test' if row % 4 == 3 else 'train'}"
        for k, m in enumerate(sizes)
        for row, (a, b) in enumerate(torch.randn(m, 2, generator=generator))
    ]
    table.write_text("\n".join(["client,a,y,split", *lines]) + "\n")
    monkeypatch.setattr(padding, "WIDTH", 4)
    results = []
    for on in (False, True):
        grouped(on)
        sets = (*quick(method), f"data={{source = '{table}'}}", "federation.rounds=2")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of options of the tiny study's generator
            results.append(run(tiny(*sets), tmp_path / str(on)))
    first, second = results
    for metric in first.metrics:
        one, other = (torch.tensor(result.rows.column("existing", metric)) for result in results)
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6, equal_nan=True)
    assert first.predictions["existing.mask_test"].equal(second.predictions["existing.mask_test"])
