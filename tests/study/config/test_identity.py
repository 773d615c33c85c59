"""Objects are one by their content: equal ones have one hash, in every process, and every change of them another."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import gpytorch
import numpy as np
import pytest
import torch

from pacbayes_fl.methods.baselines.fedavg import FedAvg
from pacbayes_fl.methods.pac_pfl.gp import PacPFL
from pacbayes_fl.models.functions.deep_kernel_gp import DeepKernelGP
from pacbayes_fl.models.functions.gpytorch_prior import GPyTorchPrior
from pacbayes_fl.models.likelihoods import Gaussian
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP
from pacbayes_fl.study.config.identity import identity


@dataclass(frozen=True)
class Own:
    """A user's object."""

    values: Any
    rate: float = 0.5

    @cached_property
    def slow(self) -> int:
        return 3


def prior(scale: float = 1.0) -> GPyTorchPrior:
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
    kernel.outputscale = scale
    return GPyTorchPrior(gpytorch.means.ConstantMean(), kernel, 2)


def fedavg(width: int = 3, **options: Any) -> FedAvg:
    return FedAvg(BayesianMLP((1, width, 1), Gaussian()), **options)


class Loop:
    """An object that holds itself."""

    def __init__(self, number: int) -> None:
        self.number, self.own = number, self


DIFFERENT: dict[str, tuple[Any, Any]] = {
    "options": (lambda: fedavg(), lambda: fedavg(init_std=0.2)),
    "models": (lambda: fedavg(), lambda: fedavg(4)),
    "parts": (lambda: fedavg(), lambda: replace(fedavg(), local=replace(fedavg().local, rate=0.3))),
    "processes": (lambda: PacPFL(DeepKernelGP(2, (3,), (3,))), lambda: PacPFL(DeepKernelGP(2, (3,), (4,)))),
    "modules": (prior, lambda: prior(2.0)),
    "tensors": (lambda: Own(torch.tensor([1.0, 2.0])), lambda: Own(torch.tensor([1.0, 2.5]))),
    "dtypes": (lambda: Own(torch.zeros(2)), lambda: Own(torch.zeros(2, dtype=torch.float64))),
    "shapes": (lambda: Own(np.zeros((2, 3))), lambda: Own(np.zeros((3, 2)))),
    "nesting": (lambda: Own([1, [2], 3]), lambda: Own([1, [2, 3]])),
    "kinds": (lambda: Own((1, "2")), lambda: Own((1, 2))),
    "functions": (lambda: Own(partial(min, 1)), lambda: Own(partial(max, 1))),
    "keys": (lambda: Own({"a": 1, "b": 2}), lambda: Own({"a": 1, "c": 2})),
    "sets": (lambda: Own({"a", "b"}), lambda: Own({"a", "c"})),
    "circles": (lambda: Own(Loop(1)), lambda: Own(Loop(2))),
}


@pytest.mark.parametrize(("one", "other"), DIFFERENT.values(), ids=DIFFERENT)
def test_equal_objects_have_one_hash_and_others_another(one: Any, other: Any) -> None:
    assert identity(one()).sha256 == identity(one()).sha256
    assert identity(one()).sha256 != identity(other()).sha256
    assert one() is not one()


def linear(nu: float = 2.5, fixed: float = 1.0) -> GPyTorchPrior:
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu))
    kernel.outputscale = fixed
    kernel.raw_outputscale.requires_grad_(False)
    return GPyTorchPrior(gpytorch.means.LinearMean(2), kernel, 2)


def test_the_weights_with_which_a_mean_happens_to_start_do_not_count() -> None:
    """The hyper-prior is not centred there. What theta leaves as it is counts; what calls leave behind does not."""
    one, other = linear(), linear()
    weights = one._parts.mean.weights.clone()
    assert not torch.equal(weights, other._parts.mean.weights)
    one.variance(one.location().view(1, 1, -1).float(), torch.zeros(1, 3, 2))
    assert identity(PacPFL(one)) == identity(PacPFL(other)) and identity(one) == identity(other)
    assert torch.equal(one._parts.mean.weights, weights), "the user's module keeps its own"
    assert len({identity(each).sha256 for each in (one, linear(1.5), linear(fixed=2.0), prior())}) == 4


def test_what_an_object_computes_on_demand_does_not_count() -> None:
    first, second = Own(1), Own(1)
    assert second.slow == 3
    assert identity(first) == identity(second)
    assert identity(first).options == {"values": 1, "rate": 0.5}
    assert identity(first).kind == f"{__name__}:Own"


SOURCE = """
from dataclasses import dataclass
import torch
from pacbayes_fl.study.config.identity import identity

class Base:
    def step(self):
        return {step}

@dataclass(frozen=True)
class Mine(Base):
    words: frozenset = frozenset(("a", "b", "c"))
    values: object = None

def found():
    return identity(Mine(values={{"x": torch.ones(3), "f": torch.nn.Linear(2, 0)}})).sha256
"""


@pytest.mark.slow
def test_another_process_finds_the_same_and_another_source_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the seed of Python's hashes is; a comment behind the class is no change of it, its base is one."""
    result = []
    for place, step, end in (("a", "1", ""), ("b", "1", "\n# the end\n"), ("c", "2", "")):
        folder = tmp_path / place
        folder.mkdir()
        (folder / "own.py").write_text(SOURCE.format(step=step) + end, encoding="utf-8")
        monkeypatch.syspath_prepend(folder)
        monkeypatch.delitem(sys.modules, "own", raising=False)
        result.append(import_module("own").found())
    assert result[0] == result[1] != result[2]
    environment = {"PYTHONHASHSEED": "1", "PYTHONPATH": ":".join(sys.path)}
    code = f"import sys; sys.path.insert(0, {str(tmp_path / 'a')!r}); import own; print(own.found())"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == result[0], done.stderr
