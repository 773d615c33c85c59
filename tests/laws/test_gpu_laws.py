"""Laws of every method on a GPU: it comes to what the CPU comes to, also where processes exchange by NCCL."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.federation import engine, personalisation
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.federation.ranks import Ranks
from pacbayes_fl.methods import METHODS
from pacbayes_fl.noise import Noise
from tests.laws.cases import ALL, LABELLED, SEED, Case, assert_close, identified, numbers
from tests.ranked import on_gpus

pytestmark = pytest.mark.gpu
GPU = "cuda"
CLOSE = 1e-7  # orders of sums differ, and a step may divide by what is small
CASES = {f"{case}-{d}": (case, d) for case in (*ALL, *LABELLED) for d in case.dimensions[:1] if case.name in METHODS}


def played(case: Case, d: int, device: str, ranks: Ranks | None = None) -> Mapping[str, Any]:
    """Play two rounds on a device, and bring what comes of it to the CPU; alone, personal predictions as well."""
    method, batch = case.build(d), case.federation(d).to(device)
    plan = FederationPlan(rounds=2, seed=SEED, noise=case.noise)
    *_, (_, state) = engine.rounds(method, batch, plan, ranks=ranks)
    found = {"server": state.server}
    if ranks is None:
        noise = Noise(SEED, 0, batch.ids, batch.x.device, case.noise)
        message = method.broadcast(state.server)
        posterior = personalisation.posteriors(method, message, state.clients, batch, noise)
        found |= {"clients": state.clients, "predicted": numbers(posterior.predict(batch.x))}
    devices = {leaf.device.type for leaf in tensors.leaves(found).values()}
    assert devices <= {device}, f"tensors are on {devices}"
    found = tensors.tree_map(Tensor.cpu, found)
    return found | {"server": identified(method, found["server"])}


@pytest.mark.parametrize("name", CASES)
def test_a_gpu_comes_to_what_the_cpu_comes_to(name: str) -> None:
    assert_close(played(*CASES[name], GPU), played(*CASES[name], "cpu"), CLOSE)


def compared(ranks: Ranks) -> dict[str, str]:
    """Say what differs when processes exchange by NCCL from what this one plays alone."""
    warnings.simplefilter("ignore")
    different = {}
    for name, (case, d) in CASES.items():
        if not case.build(d).federated:
            continue
        together = played(case, d, GPU, ranks)
        try:
            assert_close(together, {"server": played(case, d, GPU)["server"]}, CLOSE)
        except AssertionError as error:
            different[name] = str(error)
    return different


def test_processes_that_exchange_by_nccl_come_to_what_one_comes_to(tmp_path: Path) -> None:
    for different in on_gpus(tmp_path, compared):
        assert different == {}
