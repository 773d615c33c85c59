"""Rows of many clients block by block are those of all at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from data_gen import rooms
from pacbayes_fl import tensors
from pacbayes_fl.data import long_arrays, tables
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.client_blocks import Owners, Pieces, by_block
from pacbayes_fl.errors import DataError
from pacbayes_fl.federation import state_memory
from pacbayes_fl.pages.about import Known
from pacbayes_fl.pages.run import run_page
from pacbayes_fl.results.records import load
from pacbayes_fl.study.run import run
from tests.tiny import quick, tiny


def arrays(clients: int = 7, names: list[str] | None = None) -> dict[str, np.ndarray]:
    """Return ragged clients in the long form, some of them new, some with validation rows, their rows shuffled."""
    random = np.random.default_rng(0)
    owner = np.repeat(np.arange(clients), np.arange(clients) + 4)
    place = np.concatenate([np.arange(k + 4) for k in range(clients)])
    order = random.permutation(len(owner))
    return {
        "x": random.normal(size=(len(owner), 2)),
        "y": random.normal(size=len(owner)),
        "client": owner[order],
        "test": (place == 0)[order],
        "validation": ((place == 1) & (owner == 3))[order],
        "client_name": np.array(names or [f"c{k}" for k in range(clients)]),
        "client_new": np.arange(clients) % 4 == 1,
        "feature_name": np.array(["a", "b"]),
        "feature_unit": np.array(["", ""]),
        "target_name": np.array("y"),
        "target_unit": np.array(""),
    }


def test_blocks_make_the_same_groups_and_the_same_long_form(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tables.from_arrays(arrays(), {})
    long = tables.to_arrays(whole)
    monkeypatch.setattr(tensors, "BLOCK", 2)
    blocks = tables.from_arrays(arrays(), {})
    for label, group in whole.groups.items():
        for name in ("train", "test", "validation"):
            one, other = getattr(group, name), getattr(blocks.groups[label], name)
            assert (one is None) == (other is None), (label, name)
            if one is not None:
                assert (one.names, one.ids) == (other.names, other.ids)
                assert all(torch.equal(getattr(one, leaf), getattr(other, leaf)) for leaf in ("x", "y", "mask"))
    again = tables.to_arrays(blocks)
    assert long.keys() == again.keys() and all(np.array_equal(long[name], again[name]) for name in long)


@pytest.mark.parametrize("owner", [[1, 0, 1, 3, 0], [0, 0, 1, 1, 3], [0, 1, 1, 0, 3]])
def test_rows_come_client_after_client_in_their_order(owner: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_arrays, "ROWS", 2)
    part, x = torch.tensor([True, True, True, False, True]), torch.arange(5.0)
    owners = Owners(np.array(owner), 4)
    pieces, others = Pieces(x, x + 1, owners, part), Pieces(x, x + 1, owners, ~part)
    for k in range(4):
        own = [row for row in range(5) if owner[row] == k]
        for known, wanted in ((pieces, True), (others, False)):
            rows = [float(row) for row in own if bool(part[row]) == wanted]
            assert known.of(k)[0].tolist() == rows and known.of(k)[1].tolist() == [row + 1 for row in rows]
            assert known.counts[k] == len(rows)
    longest = max(int(count) for count in pieces.counts)
    assert [row[row > 0].tolist() for row in pieces.padded(x, [1, 0])] == [
        [row for row in pieces.of(k)[0].tolist() if row] for k in (1, 0)
    ]
    assert pieces.padded(x, [0, 1, 2, 3]).shape == (4, longest)


def test_new_rows_of_clients_are_made_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "BLOCK", 2)
    batch = tables.from_arrays(arrays(), {}).groups["existing"].train
    factor, asked = torch.arange(batch.clients).double(), list[int]()

    def scaled(part: ClientBatch, own: slice) -> ClientBatch:
        asked.append(part.clients)
        return ClientBatch(part.x * factor[own, None, None], part.y, part.mask, part.ids, part.names)

    made = by_block(batch, scaled)
    assert max(asked) == 2 and torch.equal(made.x, batch.x * factor[:, None, None]) and made.names == batch.names


def test_a_client_at_fault_is_named_in_any_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "BLOCK", 2)
    bad = arrays()
    bad["y"][bad["client"] == 6] = np.nan
    with pytest.raises(DataError, match="c6"):
        tables.from_arrays(bad, {})


@pytest.mark.slow
@pytest.mark.parametrize("method", ["pac-pfl", "apfl"])
def test_a_study_in_blocks_and_files_is_that_in_memory(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit by bit: every file of the run but for its times, and so is one that goes on."""
    monkeypatch.setattr("secrets.randbits", lambda bits: 12345)
    sets = (*quick(method), "federation.cohort=3", "data.options.clients=5", "federation.checkpoint_every=1")
    if method == "apfl":
        sets = ("model={}", *sets)
    run(tiny("federation.rounds=2", *sets), tmp_path / "memory")
    for name, value in (("BLOCK", 2), ("MAPPED", 1)):
        monkeypatch.setattr(tensors, name, value)
    for name, value in (("LARGE", 1), ("ROWS", 3)):
        monkeypatch.setattr(rooms, name, value)
    for name in ("_MEMORY", "_LARGE"):
        monkeypatch.setattr(state_memory, name, 0)
    monkeypatch.setattr(long_arrays, "ROWS", 3)
    run(tiny("federation.rounds=1", *sets), tmp_path / "files")
    run(tiny("federation.rounds=2", *sets), tmp_path / "files", resume=True)
    every = {str(path.relative_to(tmp_path / "memory")) for path in (tmp_path / "memory").rglob("*") if path.is_file()}
    assert {"trained.json", "data.npz", "checkpoints/round_000002/state.safetensors"} < every
    other = {"rounds.jsonl", "manifest.json", "checkpoints/round_000001/manifest.json"}  # times, and sums of others
    for name in sorted(every - other - {"checkpoints/round_000001/state.json"}):  # of a study of one round
        assert (tmp_path / "files" / name).read_bytes() == (tmp_path / "memory" / name).read_bytes(), name
    files, memory = (load(tmp_path / name) for name in ("files", "memory"))
    known = Known({}, {}, (), {}, "")
    page = run_page(replace(memory, rounds=files.rounds), known)
    assert files == replace(memory, rounds=files.rounds) and run_page(files, known) == page
