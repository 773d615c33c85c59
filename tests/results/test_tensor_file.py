"""Tensors written block by block are the bytes that the format's own library writes."""

from __future__ import annotations

import io

import pytest
import safetensors.torch
import torch

from pacbayes_fl import tensors
from pacbayes_fl.errors import ShapeError
from pacbayes_fl.results import tensor_file


def test_the_bytes_are_those_of_safetensors(monkeypatch: pytest.MonkeyPatch) -> None:
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
    with pytest.raises(ShapeError, match="complex"):
        tensor_file.write(file, {"z": torch.zeros(1, dtype=torch.complex64)})
