"""Clients in calls; one that exhausts a GPU's memory gives the same numbers from fewer clients at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace

import pytest
import torch

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import ClientError
from pacbayes_fl.federation import client_calls
from pacbayes_fl.federation.client_calls import CallSplitter
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.methods import METHODS
from pacbayes_fl.methods.base import AnyMethod
from pacbayes_fl.methods.tempered import Tempered
from pacbayes_fl.models.weights import program
from tests.federating import pac_pfl
from tests.laws.cases import federation, from_recipe

CPU = torch.device("cpu")


@pytest.mark.parametrize("waste", [1.0, 1.1, 3.0])
@pytest.mark.parametrize("chunk", [1, 4000, 10**6])
def test_calls_are_small_enough_and_hold_everybody_once(waste: float, chunk: int) -> None:
    sizes = [60, 1, 61, 20, 20, 300, 22, 59, 5]
    positions = [0, 1, 3, 4, 5, 6, 7, 8]
    method, plan = pac_pfl(), FederationPlan(chunk=chunk, waste=waste)
    calls = client_calls.parts(method, sizes, positions, plan, CPU)
    assert sorted(k for call in calls for k in call) == positions
    for call in calls:
        rows = [sizes[k] for k in call]
        assert max(rows) <= max(waste * min(rows), min(rows) + 8)
        assert len(call) == 1 or len(call) * method.footprint(max(rows)) <= chunk
    assert (len(calls) == len(positions)) == (chunk == 1)


@pytest.mark.parametrize(
    "wrap", [lambda method: method, lambda method: Tempered(method, 2.0)], ids=["bare", "tempered"]
)
@pytest.mark.parametrize("name", [name for name, recipe in METHODS.items() if recipe.model == "weights"])
def test_the_program_of_every_method_is_checked_before_it_trains(
    name: str, wrap: Callable[[AnyMethod], AnyMethod], monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = []
    monkeypatch.setattr(program, "prepared", lambda model, batch: checked.append(model) or batch)  # type: ignore[func-returns-value]
    method = from_recipe(METHODS[name], 1)
    client_calls.prepared(wrap(method), federation(1))
    assert checked == [getattr(method, "model", None)]


def test_pooled_methods_see_everybody_at_once() -> None:
    pooled = from_recipe(METHODS["pooled-ridge"], 1)
    assert client_calls.parts(pooled, [5, 1, 900], [0, 1, 2], FederationPlan(chunk=1), CPU) == [[0, 1, 2]]


def test_calls_fill_the_caches_of_a_cpu_and_a_share_of_a_gpu_s_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    card = SimpleNamespace(total_memory=8 << 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: card)
    gpu = torch.device("cuda", 0)
    assert client_calls.chunk_of(FederationPlan(), CPU) == 2**20
    assert client_calls.chunk_of(FederationPlan(), gpu) == 2**24
    assert (
        client_calls.chunk_of(FederationPlan(chunk=7), gpu) == client_calls.chunk_of(FederationPlan(chunk=7), CPU) == 7
    )
    method, sizes = pac_pfl(), [300] * 40
    few, many = (len(client_calls.parts(method, sizes, list(range(40)), FederationPlan(), d)) for d in (CPU, gpu))
    assert few > many == 1


def names(splitter: CallSplitter, batch: ClientBatch, fits: int) -> tuple[list[tuple[str, ...]], list[int]]:
    """Work through all clients where so many fit; return who was done together, and how many were tried."""
    tried = []

    def work(positions: Sequence[int], rows: ClientBatch) -> tuple[str, ...]:
        tried.append(len(positions))
        assert rows.names == tuple(batch.names[k] for k in positions)
        if len(positions) > fits:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return rows.names

    return [result for *_, result in splitter.calls(range(batch.clients), batch, work)], tried


@pytest.mark.parametrize("fits", [5, 3, 2, 1])
def test_a_call_is_halved_until_it_fits_and_no_larger_one_is_tried_again(fits: int) -> None:
    splitter, batch = CallSplitter(), federation(1)
    if fits < 5:
        with pytest.warns(UserWarning, match=r"GPU memory exhausted by 5 clients .* from here on 3 at a time") as said:
            done, _ = names(splitter, batch, fits)
        assert len(said) == {3: 1, 2: 2, 1: 3}[fits]
    else:
        done, _ = names(splitter, batch, fits)
    assert [name for call in done for name in call] == list(batch.names)
    assert max(map(len, done)) <= fits
    _, again = names(splitter, batch, fits)
    assert max(again) <= fits and len(again) == len(done), "what did not fit is known"


def test_one_client_that_does_not_fit_is_named() -> None:
    with pytest.warns(UserWarning), pytest.raises(ClientError, match=r"client 'client_00': the GPU has too little"):
        names(CallSplitter(), federation(1), 0)


def test_another_error_is_no_matter_of_memory() -> None:
    def work(positions: Sequence[int], rows: ClientBatch) -> None:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        list(CallSplitter().calls(range(5), federation(1), work))
