"""What a node remembers survives its process, and a fault in it is never taken for a state."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pacbayes_fl.errors import CheckpointError, DamageWarning
from pacbayes_fl.federation.messages import Kept
from pacbayes_fl.federation.node import Joined, Memory
from pacbayes_fl.study.deployment.node_folder import NodeFolder

FIRST = Kept("run", 1, {"w.loc": torch.arange(6.0).view(2, 3), "seen": torch.tensor([1])})
SECOND = Kept("run", 2, {"w.loc": torch.arange(6.0, dtype=torch.float64), "seen": torch.tensor([2])})


@pytest.mark.parametrize(
    "memory",
    [Memory("run", 0), Memory("run", 3, FIRST), Memory("run", 0, SECOND, FIRST), Memory("run", 0, Kept("run", 4, {}))],
    ids=["joined", "one round", "two rounds", "no state"],
)
def test_a_memory_is_read_as_it_was_written(memory: Memory, tmp_path: Path) -> None:
    NodeFolder(tmp_path).save("../house 7", memory)
    result = NodeFolder(tmp_path).load("../house 7")
    assert result is not None and (result.run, result.joined) == (memory.run, memory.joined)
    for mine, other in ((result.last, memory.last), (result.before, memory.before)):
        assert (mine is None) == (other is None)
        if mine is not None and other is not None:
            assert mine.round == other.round and mine.state.keys() == other.state.keys()
            assert all(torch.equal(leaf, other.state[name]) for name, leaf in mine.state.items())
            assert all(leaf.dtype == other.state[name].dtype for name, leaf in mine.state.items())
    assert [path.suffix for path in (tmp_path / "clients").iterdir()] == [".safetensors"]
    assert NodeFolder(tmp_path).load("another") is None


def test_any_flipped_byte_is_a_memory_that_was_lost(tmp_path: Path) -> None:
    folder = NodeFolder(tmp_path)
    folder.save("a", Memory("run", 0, SECOND, FIRST))
    (path,) = (tmp_path / "clients").iterdir()
    data = path.read_bytes()
    for at in range(0, len(data), 7):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.warns(DamageWarning, match="client 'a' is damaged .*: it joins as new"):
            assert folder.load("a") is None
    for cut in (0, 9, len(data) - 1):
        path.write_bytes(data[:cut])
        with pytest.warns(DamageWarning):
            assert folder.load("a") is None


def test_a_memory_of_another_client_is_none_of_this_one(tmp_path: Path) -> None:
    folder = NodeFolder(tmp_path)
    folder.save("a", Memory("run", 0, FIRST))
    (mine,) = (tmp_path / "clients").iterdir()
    folder.save("b", Memory("run", 0, SECOND))
    other = next(path for path in (tmp_path / "clients").iterdir() if path != mine)
    other.replace(mine)
    with pytest.warns(DamageWarning, match="client 'a' is damaged"):
        assert folder.load("a") is None


def test_one_node_at_a_time_and_no_links(tmp_path: Path) -> None:
    folder = NodeFolder(tmp_path / "node")
    with folder.lock(), pytest.raises(CheckpointError, match="in use by"), NodeFolder(tmp_path / "node").lock():
        pass
    folder.save("a", Memory("run", 0))
    (path,) = (tmp_path / "node" / "clients").iterdir()
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="link"):
        folder.load("a")


def test_the_run_is_remembered_and_a_damaged_memory_of_it_is_none(tmp_path: Path) -> None:
    place = NodeFolder(tmp_path / "node")
    assert place.joined() is None
    place.join(Joined("r1", "{}"))
    assert NodeFolder(tmp_path / "node").joined() == Joined("r1", "{}")
    path = tmp_path / "node" / "joined.json"
    path.write_bytes(path.read_bytes().replace(b"r1", b"r2"))
    with pytest.warns(DamageWarning, match="the server has to join it again"):
        assert place.joined() is None


@pytest.mark.parametrize("run", ["../../etc", "a/b", "", "x" * 5000, "..", "\u00e9", "a b"])
def test_a_server_does_not_choose_where_results_are_kept(run: str, tmp_path: Path) -> None:
    place = NodeFolder(tmp_path)
    assert place.results(run).parent == tmp_path / "results" and len(place.results(run).name) == 16
    assert place.results("0a1b").name == "0a1b"
