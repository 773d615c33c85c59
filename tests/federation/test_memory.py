"""Calls that exhaust a GPU's memory: the same numbers from fewer clients at a time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import ClientError
from pacbayes_fl.federation.memory import Memory
from tests.laws.cases import federation


def names(memory: Memory, batch: ClientBatch, fits: int) -> tuple[list[tuple[str, ...]], list[int]]:
    """Work through all clients where so many fit; return who was done together, and how many were tried."""
    tried = []

    def work(positions: Sequence[int], rows: ClientBatch) -> tuple[str, ...]:
        tried.append(len(positions))
        assert rows.names == tuple(batch.names[k] for k in positions)
        if len(positions) > fits:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return rows.names

    return [found for *_, found in memory.calls(range(batch.clients), batch, work)], tried


@pytest.mark.parametrize("fits", [5, 3, 2, 1])
def test_a_call_is_halved_until_it_fits_and_no_larger_one_is_tried_again(fits: int) -> None:
    memory, batch = Memory(), federation(1)
    if fits < 5:
        with pytest.warns(UserWarning, match=r"GPU memory exhausted by 5 clients .* from here on 3 at a time") as said:
            done, _ = names(memory, batch, fits)
        assert len(said) == {3: 1, 2: 2, 1: 3}[fits]
    else:
        done, _ = names(memory, batch, fits)
    assert [name for call in done for name in call] == list(batch.names)
    assert max(map(len, done)) <= fits
    _, again = names(memory, batch, fits)
    assert max(again) <= fits and len(again) == len(done), "what did not fit is known"


def test_one_client_that_does_not_fit_is_named() -> None:
    with pytest.warns(UserWarning), pytest.raises(ClientError, match=r"client 'client_00': the GPU has too little"):
        names(Memory(), federation(1), 0)


def test_another_error_is_no_matter_of_memory() -> None:
    def work(positions: Sequence[int], rows: ClientBatch) -> None:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        list(Memory().calls(range(5), federation(1), work))
