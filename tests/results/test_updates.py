"""Files of later rows are listed as they were written, and their heads are read without their numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch

from pacbayes_fl.errors import DataError
from pacbayes_fl.results import manifest, updates


def written(folder: Path, number: int, clients: dict[str, int]) -> None:
    about = {"round": 3, "clients": [*clients], "rows": [*clients.values()], "stateful": []}
    content = safetensors.torch.save({"x": torch.ones(2)}, {updates.KEY: json.dumps(about)})
    manifest.put(folder, {updates.name_of(number): content})


def test_rows_and_clients_are_counted_over_all_updates(tmp_path: Path) -> None:
    assert updates.since(None) is None and updates.since(tmp_path) is None
    written(tmp_path, 1, {"a": 2, "b": 1})
    assert str(updates.since(tmp_path)) == "3 later rows of 2 clients"
    written(tmp_path, 2, {"a": 5})
    assert updates.since(tmp_path) == updates.Since(2, 8, 2)
    assert str(updates.since(tmp_path)) == "8 later rows of 2 clients in 2 updates"
    assert [path.name for path in updates.paths(tmp_path)] == ["000001.safetensors", "000002.safetensors"]
    assert updates.about(updates.paths(tmp_path)[1]) == updates.About(3, ["a"], [5], [])


def test_a_gap_and_a_foreign_file_are_refused(tmp_path: Path) -> None:
    written(tmp_path, 2, {"a": 1})
    with pytest.raises(DataError, match=r"000001\.safetensors is missing"):
        updates.paths(tmp_path)
    written(tmp_path, 1, {"a": 1})
    (tmp_path / updates.FOLDER / "mine.safetensors").write_bytes(b"")
    with pytest.raises(DataError, match=r"(000003|mine)\.safetensors is"):
        updates.paths(tmp_path)


@pytest.mark.parametrize("data", [b"", b"\xff" * 9, b"\x02\0\0\0\0\0\0\0{}"])
def test_a_head_that_is_none_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "000001.safetensors").write_bytes(data)
    with pytest.raises(DataError, match="cannot be read"):
        updates.about(tmp_path / "000001.safetensors")
