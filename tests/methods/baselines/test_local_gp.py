"""What Gaussian processes of each client alone share: a search from one start, and refinement that keeps its end."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.inference.evidence import maximise
from pacbayes_fl.methods.base import Nothing
from pacbayes_fl.methods.baselines.ard_gp import ARDGP
from pacbayes_fl.methods.baselines.vanilla_gp import VanillaGP
from pacbayes_fl.models.functions.deep_kernel_gp import DeepKernelGP
from pacbayes_fl.noise import Noise

METHODS = (VanillaGP(DeepKernelGP(2, (3,), (3,)), steps=5), ARDGP(("a", "b"), steps=5))


def batch(rows: int, seed: int) -> ClientBatch:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, rows, 2, generator=generator, dtype=torch.float64)
    return ClientBatch.pad([(one, one.sum(1).sin()) for one in x])


@pytest.mark.parametrize("method", METHODS, ids=["vanilla-gp", "ard-gp"])
def test_hyper_parameters_are_those_of_the_rows_of_the_search(method: Any) -> None:
    start, seen = method.init_server(torch.Generator().manual_seed(1)), batch(5, 0)
    noise = Noise(0, 0, seen.ids)
    prior = method.personalise(start, Nothing(), seen, noise)
    assert torch.equal(prior.theta, maximise(method.prior, start.theta, seen, method.rate, 5))
    after, kl = method.refine(prior, seen, batch(3, 1), noise)
    assert torch.equal(after.theta, prior.theta) and after.x.shape[1] == 8 and bool((kl > 0).all())
