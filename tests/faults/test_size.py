"""Ten thousand clients: what a study costs grows with its clients and rows, never with their product.

Counts of calls, of numbers drawn and of bytes; never times.
"""

from __future__ import annotations

import io
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pacbayes_fl import tensors
from pacbayes_fl.data import tables
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.federation import checkpoint, client_states, cohort, engine, federation_state, state_memory
from pacbayes_fl.federation.federation_state import FederationState
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.methods import METHODS
from pacbayes_fl.methods.base import AnyMethod
from pacbayes_fl.results import bootstrap
from pacbayes_fl.results.client_rows import ClientRow, ClientRows
from pacbayes_fl.results.records import Result
from pacbayes_fl.study import run as study
from tests.laws.cases import Toy, bits, federation, from_recipe, rows_for
from tests.tiny import quick, tiny

METRICS = tuple(f"m{i}" for i in range(12))


def arrays(clients: int, rows: int = 4) -> dict[str, Any]:
    """Return a data set in long form whose clients lie interleaved."""
    random, owner = np.random.default_rng(clients), np.tile(np.arange(clients), rows)
    return {
        "x": random.normal(size=(clients * rows, 2)),
        "y": random.normal(size=clients * rows),
        "client": owner,
        "test": np.repeat(np.arange(rows) % 2 == 1, clients),
        "client_name": np.array([f"c{k}" for k in range(clients)]),
        "client_new": np.arange(clients) % 5 == 4,
        "feature_name": np.array(["a", "b"]),
        "feature_unit": np.array(["", ""]),
        "target_name": "y",
        "target_unit": "",
    }


def peak(work: Callable[[], Any]) -> int:
    """Bytes that Python and NumPy hold at most beyond what they held before."""
    work()
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_reading_a_data_set_takes_memory_by_its_rows() -> None:
    """Eight times the clients: as much a client, where a mask a client would be eight times as much."""
    few, many = (peak(partial(tables.from_arrays, arrays(clients), {})) for clients in (250, 2000))
    assert many < 1.3 * 8 * few


def test_rows_are_those_of_a_mask_a_client() -> None:
    given = arrays(30)
    random = np.random.default_rng(0)
    given["client"] = random.permutation(np.concatenate((np.repeat(np.arange(30), 3), np.arange(30)[::-1])))
    given["test"] = np.zeros(120, dtype=bool)
    for k in range(30):
        given["test"][np.flatnonzero(given["client"] == k)[1:3]] = True
    dataset = tables.from_arrays(given, {})
    for group in dataset.groups.values():
        for batch, part in ((group.train, ~given["test"]), (group.test, given["test"])):
            for k, name in enumerate(batch.names):
                at = (given["client"] == int(name[1:])) & part
                assert batch.x[k][batch.mask[k]].numpy().tobytes() == given["x"][at].tobytes()
                assert batch.y[k][batch.mask[k]].numpy().tobytes() == given["y"][at].tobytes()


def result(clients: int, gaps: bool = False) -> Result:
    random = np.random.Generator(np.random.PCG64(clients))
    rows = []
    for k in range(2 * clients):
        values: Mapping[str, float] = {name: float(random.normal()) for name in METRICS}
        if gaps and k % 7 == 0:
            values = {**values, METRICS[1]: float("nan"), METRICS[2]: float("inf")}
        rows.append(ClientRow(k, f"c{k}", "existing" if k < clients else "new", 5, values))
    return Result("s", "m", 0, "regression", clients=tuple(rows))


def test_tables_ask_for_the_names_of_metrics_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names are a walk over all clients: asked for by row and cell they were N^2 steps."""
    asked: list[int] = []
    names: Callable[[ClientRows], tuple[str, ...]] = ClientRows.metrics.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(ClientRows, "metrics", property(lambda self: asked.append(1) or names(self)))  # type: ignore[func-returns-value]
    found = result(200)
    asked.clear()
    written = io.BytesIO()
    found.rows.write_csv(written)
    assert len(asked) == 1
    found.summary()
    assert len(asked) <= 3  # once a group
    assert written.getvalue().count(b"\n") == 401


class Counting:
    """A generator that counts the numbers that it draws."""

    drawn = 0

    def __init__(self, seed: int) -> None:
        self._own = np.random.Generator(np.random.PCG64(seed))

    def multinomial(self, n: int, p: Any, size: int) -> Any:
        Counting.drawn += size * len(p)
        return self._own.multinomial(n, p, size=size)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Counting]]:
    Counting.drawn = 0
    monkeypatch.setattr(np.random, "default_rng", Counting)
    yield Counting


def test_the_bootstrap_of_a_run_draws_clients_once_for_all_metrics_and_tables(counted: type[Counting]) -> None:
    found = result(300)
    shown = [found.summary() for _ in range(3)]  # written, printed, asked for
    assert counted.drawn == 2 * (2000 * 300 + 2000)  # of each group, and of its one seed
    assert shown[0] == shown[1] == shown[2]
    shown[0]["groups"].clear()
    assert found.summary() == shown[1]


def test_metrics_that_some_clients_lack_cost_one_draw_more(counted: type[Counting]) -> None:
    found = result(300, gaps=True)
    known = sum(not np.isnan(v) for v in found.column("existing", METRICS[1]))
    new = sum(not np.isnan(v) for v in found.column("new", METRICS[1]))
    found.summary()
    assert counted.drawn == 2000 * (600 + known + new) + 4 * 2000


def test_the_bootstrap_holds_blocks_of_replicates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not 2000 counts of every client: 160 MB for ten thousand of them."""
    monkeypatch.setattr(bootstrap, "_BLOCK", 2**14)
    values = [[np.random.default_rng(k).normal(size=2000).tolist()] for k in range(3)]
    assert peak(lambda: bootstrap.nested_bootstraps(values)) < 2_000_000 < 2000 * 2000 * 8


def per_client(method: AnyMethod, batch: ClientBatch) -> int:
    """Bytes of one client's state."""
    state = federation_state.start(method, batch, FederationPlan())
    return sum(leaf.nbytes for leaf in tensors.leaves(state.kept.select([0])).values())


STATEFUL = [name for name, recipe in METHODS.items() if per_client(from_recipe(recipe, 1), rows_for(name))]


def test_methods_whose_clients_keep_something_are_among_those_attacked() -> None:
    assert {"pfedbayes", "sfedbayes", "cfedbayes", "bpfed", "fedsi", "local"} <= set(STATEFUL)


@pytest.mark.law
@pytest.mark.parametrize("name", STATEFUL)
def test_memory_between_rounds_is_that_of_the_clients_that_took_part(name: str) -> None:
    """One client of five a round: as many states as clients were drawn, however many rounds there were."""
    method, batch = from_recipe(METHODS[name], 1), federation(1)
    plan, one = FederationPlan(rounds=4, cohort=1, seed=2), per_client(method, batch)
    drawn = set[int]()
    start = federation_state.start(method, batch, plan)
    assert start.kept.bytes == 0
    for record, state in engine.rounds(method, batch, plan, start):
        drawn |= set(cohort.draw(plan.seed, record.round, batch.ids, 1).tolist())
        assert state.kept.present == tuple(sorted(drawn))
        assert state.kept.bytes == len(drawn) * one
    assert 1 < len(drawn) < 5
    assert start.kept.bytes == 0


@pytest.mark.law
@pytest.mark.parametrize("name", STATEFUL)
def test_rounds_of_all_clients_share_nothing_and_leave_nothing_behind(name: str) -> None:
    method, batch = from_recipe(METHODS[name], 1), federation(1)
    one = per_client(method, batch)
    for _, state in engine.rounds(method, batch, FederationPlan(rounds=3, waste=10.0)):
        assert state.kept.bytes == 5 * one


@pytest.mark.law
@pytest.mark.parametrize("name", STATEFUL)
def test_a_round_can_be_undone_without_the_memory_of_all_states_twice(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rooms for one state of every client, whoever holds states of rounds before; and the same numbers."""
    method, batch = from_recipe(METHODS[name], 1), federation(1)
    plan, one = FederationPlan(rounds=3, chunk=1), per_client(method, batch)
    usual = [(state, bits(state.clients)) for _, state in engine.rounds(method, batch, plan)]
    assert all(state.kept.bytes == 5 * one for state, _ in usual)
    monkeypatch.setattr(client_states, "AT_HAND", 0)
    monkeypatch.setattr(state_memory, "_SHELF", 0)
    states = [state for _, state in engine.rounds(method, batch, plan)]
    assert [state.kept.bytes for state in states] == [0, 0, 5 * one]
    assert states[-1].kept.shelves.bytes == 5 * one and states[-1].kept.shelves.in_file == 2 * 5 * one
    assert [bits(state.clients) for state in states] == [known for _, known in usual]


@pytest.mark.parametrize("clients", [40, 400])
def test_a_round_of_a_cohort_touches_no_other_client(clients: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of states that are made or copied in a round of three, of forty clients and of four hundred."""
    made: list[int] = []
    begin: Callable[..., Any] = Toy.init_clients
    monkeypatch.setattr(Toy, "init_clients", lambda *a: made.append(a[2].clients) or begin(*a))  # type: ignore[func-returns-value]
    rows = [(torch.ones(2, 1), torch.zeros(2))] * clients
    batch = ClientBatch.pad(rows, dtype=torch.float64)
    for _ in engine.rounds(Toy(1), batch, FederationPlan(rounds=3, cohort=3)):
        pass
    assert sum(made) <= 3 * 3


def test_runs_save_the_states_of_clients_that_took_part_and_go_on_bit_by_bit(tmp_path: Path) -> None:
    """A checkpoint of a run of which two of eight clients were drawn a round, with and without an interruption."""

    def run(folder: str, rounds: int, resume: bool = False) -> FederationState:
        sizes = ("data.options.clients=8", "data.options.new_clients=0", "federation.cohort=2")
        one = tiny(*quick("pfedbayes"), *sizes, f"federation.rounds={rounds}")
        study.run(one, tmp_path / folder, resume=resume)
        return study.open_run(tmp_path / folder).state

    whole, _ = run("whole", 5), run("cut", 3)
    saved = checkpoint.load(tmp_path / "cut")
    assert saved is not None and 2 <= len(saved.meta["kept"]) < 8
    assert {len(leaf) for name, leaf in saved.tensors.items() if name.startswith("clients")} == {
        len(saved.meta["kept"])
    }
    again = run("cut", 5, resume=True)
    assert bits(again.clients) == bits(whole.clients) and bits(again.server) == bits(whole.server)
    assert again.kept.present == whole.kept.present and again.kept.bytes == whole.kept.bytes
    files = [(tmp_path / name / "checkpoints/round_000005/state.safetensors").read_bytes() for name in ("whole", "cut")]
    assert files[0] == files[1]
