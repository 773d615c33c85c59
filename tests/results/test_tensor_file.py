"""Tensors written block by block are the bytes that the format's own library writes."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch

from pacbayes_fl import tensors
from pacbayes_fl.errors import UNREADABLE, ShapeError
from pacbayes_fl.results import tensor_file


def test_the_bytes_are_those_of_safetensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "MAPPED", 16)
    monkeypatch.setattr(tensor_file, "_CHUNK", 7)
    monkeypatch.setattr(tensors, "BLOCK", 2)
    given = {
        "existing.mean": torch.randn(5, 3, dtype=torch.float64),
        "a.mask": torch.tensor([[True, False]] * 5),
        "a.half": torch.randn(3, dtype=torch.float16),
        "b.labels": torch.arange(6).view(2, 3),
        "a.probs": torch.randn(5, 2, 3)[:, :, ::2],
        "empty": torch.zeros(0, 4),
        "scalar": torch.tensor(3.0),
        'a name "so"': torch.tensor([1], dtype=torch.uint8),
    }
    file = io.BytesIO()
    tensor_file.write(file, given)
    assert file.getvalue() == safetensors.torch.save({name: one.contiguous() for name, one in given.items()})
    back = safetensors.torch.load(file.getvalue())
    assert all(torch.equal(back[name], one) for name, one in given.items())
    (tmp_path / "x").write_bytes(file.getvalue())
    with (tmp_path / "x").open("rb") as saved:
        own = tensor_file.read(saved)
    assert own.keys() == back.keys() and all(torch.equal(own[name], one) for name, one in given.items())
    assert all(own[name].dtype == one.dtype for name, one in given.items())
    with pytest.raises(ShapeError, match="complex"):
        tensor_file.write(file, {"z": torch.zeros(1, dtype=torch.complex64)})


def test_stretches_of_zeros_are_bytes_of_the_file_and_take_no_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long, last = torch.zeros(3, 2**20), torch.zeros(2**20)
    long[1, 7], long[2, 2**19], last[5] = 1.0, -0.0, 2.0
    for given in ({"a": long, "b": last}, {"a": long[:, ::2]}):
        with (tmp_path / "x").open("wb") as file:
            tensor_file.write(file, given)
        data = (tmp_path / "x").read_bytes()
        assert data == safetensors.torch.save({name: one.contiguous() for name, one in given.items()})
        assert 512 * (tmp_path / "x").stat().st_blocks < len(data) / 2  # a file in memory may have pages of 2 MB
        file = io.BytesIO()
        tensor_file.write(file, given)
        assert file.getvalue() == data
        with (tmp_path / "x").open("rb") as saved:
            own = tensor_file.read(saved)
        assert all(
            torch.equal(own[name].view(torch.int32), one.contiguous().view(torch.int32)) for name, one in given.items()
        )


BROKEN: dict[str, Callable[[bytes], bytes]] = {
    "a short file": lambda data: data[:-1],
    "a longer file": lambda data: data + b"0",
    "a header beyond the file": lambda data: (2**40).to_bytes(8, "little") + data[8:],
    "another shape": lambda data: data.replace(b"[2,3]", b"[2,4]"),
    "a negative shape": lambda data: data.replace(b"[2,3]", b"[-2,-3]"),
    "an unknown dtype": lambda data: data.replace(b"F32", b"F31"),
    "another place": lambda data: data.replace(b"[0,24]", b"[1,25]"),
    "no header": lambda data: data[:8] + b"[" + data[9:],
    "nothing": lambda data: b"",
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_file_that_does_not_hold_what_it_says_is_refused(how: str, tmp_path: Path) -> None:
    data = safetensors.torch.save({"x": torch.ones(2, 3)})
    (tmp_path / "x").write_bytes(BROKEN[how](data))
    with (tmp_path / "x").open("rb") as file, pytest.raises(UNREADABLE):
        tensor_file.read(file)
