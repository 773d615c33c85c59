"""How many minibatches a client takes, and that a client which is through stays where it is."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import StudyError
from pacbayes_fl.inference import map_estimate, svi, turns, weight_svgd
from pacbayes_fl.inference.map_estimate import LocalDescent
from pacbayes_fl.inference.svi import LocalInference
from pacbayes_fl.models.likelihoods import Gaussian
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.weights.mean_field import MeanField

MODEL = BayesianMLP((2, 3, 1), Gaussian(0.3), torch.float64)
SIZES = (5, 0, 13, 1, 8)
K, D = len(SIZES), MODEL.dim
every_optimiser = pytest.mark.parametrize("optimiser", ["adam", "sgd"])


def randn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def clients(sizes: tuple[int, ...] = SIZES) -> ClientBatch:
    rows = [(randn(k, m, 2), randn(10 + k, m)) for k, m in enumerate(sizes)]
    return ClientBatch.pad(rows, allow_empty=True)


def start(seed: int = 20) -> MeanField:
    return MeanField(0.5 * randn(seed, K, D), 0.1 * randn(seed + 1, K, D) - 2.0)


@pytest.mark.parametrize("kind", [LocalInference, LocalDescent])
def test_a_client_takes_as_many_minibatches_as_its_rows_need(kind: Any) -> None:
    local = kind(steps=None, epochs=3, minibatch=4)
    expected = [3 * math.ceil(m / 4) for m in SIZES]
    assert turns.counts(local, clients()).tolist() == expected == [6, 0, 12, 3, 6]
    assert turns.counts(local, clients(), 2).tolist() == [2 * number for number in expected]
    taken = list(turns.turns(local, clients()))
    assert len(taken) == 12
    for turn, active in enumerate(taken):
        assert active is not None and active.tolist() == [turn < number for number in expected]
    alike = list(turns.turns(local, clients((4, 3, 1))))
    assert alike == [None] * 3  # no look at who is through
    assert list(turns.turns(kind(steps=7), clients(), 2)) == [None] * 14
    total = torch.tensor([6.0, 0.0, 6.0, 6.0, 3.0])
    assert turns.mean_over(local, clients(), total).tolist() == [1.0, 0.0, 0.5, 2.0, 0.5]


@pytest.mark.parametrize("kind", [LocalInference, LocalDescent])
def test_exactly_one_of_steps_and_epochs_is_given(kind: Any) -> None:
    with pytest.raises(StudyError, match=r"steps = 20 and epochs = 10 exclude each other.*None \('none' in a study\)"):
        kind(epochs=10)
    with pytest.raises(StudyError, match="one of steps and epochs must be given, and both are None"):
        kind(steps=None)
    for wrong in (0, -1, float("nan")):
        with pytest.raises(StudyError, match="epochs must be at least 1, got"):
            kind(steps=None, epochs=wrong)
    with pytest.raises(StudyError, match="optimiser must be one of 'adam', 'sgd', got 'adamw'"):
        kind(optimiser="adamw")


def fitted(optimiser: Any, what: str, batch: ClientBatch, positions: list[int]) -> Any:
    """Fit some clients by a way to fit, with epochs."""
    at, noise = torch.tensor(positions), Noise(3, 1, batch.ids)
    prior, rows = tensors.select(start(), at), batch.select(at).trim()
    rate = 0.02 if optimiser == "adam" else 1e-4
    shared: dict[str, Any] = {"steps": None, "epochs": 3, "minibatch": 4, "rate": rate, "optimiser": optimiser}
    streams = noise.select(positions)
    if what == "map_estimate":
        return map_estimate.fit(MODEL, LocalDescent(**shared), prior.loc, rows, streams, passes=2)
    local = LocalInference(**shared, inner=2, zeta=0.7)
    if what == "svi":
        return svi.fit(MODEL, local, prior, rows, streams, 2, svi.draw_of)
    particles = torch.stack((prior.loc, prior.loc + 0.1), 1)
    return weight_svgd.fit(MODEL, local, prior, particles, rows, streams, lambda theta, score: score)


@every_optimiser
@pytest.mark.parametrize("what", ["map_estimate", "svi", "weight_svgd"])
def test_who_is_through_waits_and_is_what_it_is_alone(what: str, optimiser: Any) -> None:
    batch = clients()
    together = fitted(optimiser, what, batch, list(range(K)))
    for k in range(K):
        alone = fitted(optimiser, what, batch, [k])
        mine = tensors.select(together, torch.tensor([k]))
        for name, leaf in tensors.leaves(alone).items():
            torch.testing.assert_close(tensors.leaves(mine)[name], leaf, rtol=1e-9, atol=1e-12)
    if what == "map_estimate":
        assert together.adam.steps.tolist() == [2 * 3 * math.ceil(m / 4) for m in SIZES]
        assert together.loss[1] == 0 and (together.loss[[0, 2, 3, 4]] > 0).all()


@every_optimiser
def test_epochs_of_equal_clients_are_as_many_steps(optimiser: Any) -> None:
    batch = clients((8, 7, 5))
    noise, theta = Noise(3, 1, batch.ids), randn(30, 3, D)
    shared: dict[str, Any] = {"minibatch": 4, "rate": 0.02, "optimiser": optimiser}
    by_epochs = map_estimate.fit(MODEL, LocalDescent(None, **shared, epochs=3), theta, batch, noise.copy())
    by_steps = map_estimate.fit(MODEL, LocalDescent(6, **shared), theta, batch, noise.copy())
    assert torch.equal(by_epochs.theta, by_steps.theta) and torch.equal(by_epochs.loss, by_steps.loss)
