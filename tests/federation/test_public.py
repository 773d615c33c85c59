"""The part of a server's state that leaves it."""

from __future__ import annotations

import pytest
import safetensors.torch
import torch

from pacbayes_fl import tensors
from pacbayes_fl.errors import CheckpointError
from pacbayes_fl.federation import public
from pacbayes_fl.study.data import load
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.prepare import build

STUDY = Study.from_toml("polynomial", ["method.particles=2", "federation.device=cpu"])
METHOD, _ = build(STUDY, load(STUDY))


def moved() -> object:
    """Move every number of a server."""
    start = METHOD.init_server(torch.Generator().manual_seed(3))
    return tensors.tree_map(lambda leaf: leaf + 1 if leaf.is_floating_point() else leaf, start)


def test_what_clients_are_sent_arrives_and_nothing_else() -> None:
    server = moved()
    data = public.to_bytes(METHOD, server, 3)
    again = public.from_bytes(METHOD, data, 3)
    sent, came = (tensors.leaves(METHOD.broadcast(one)) for one in (server, again))
    assert sent.keys() == came.keys() and all(torch.equal(sent[name], came[name]) for name in sent)
    start = tensors.leaves(METHOD.init_server(torch.Generator().manual_seed(3)))
    kept = [name for name, leaf in tensors.leaves(again).items() if torch.equal(leaf, start[name])]
    assert any("particles" not in name for name in kept)  # moments of the optimiser are those of the start


def test_what_is_no_state_is_refused() -> None:
    data = public.to_bytes(METHOD, moved(), 3)
    flat = safetensors.torch.load(data)
    with pytest.raises(CheckpointError, match="no state of"):
        public.from_bytes(METHOD, data[:-5], 3)
    with pytest.raises(CheckpointError, match="no state of"):
        public.from_bytes(METHOD, safetensors.torch.save({"x": torch.zeros(1)}), 3)
    name = next(name for name, leaf in flat.items() if leaf.is_floating_point())
    flat[name] = torch.full_like(flat[name], torch.nan)
    with pytest.raises(CheckpointError, match="not finite"):
        public.from_bytes(METHOD, safetensors.torch.save(flat), 3)
