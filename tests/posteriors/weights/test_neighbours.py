"""Neighbours against scikit-learn's, by a network whose embedding is worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import StudyError
from pacbayes_fl.models.likelihoods import Gaussian
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.weights.neighbours import NeighbourPosterior
from tests.methods.by_hand import CLASSES, MODEL, alive, clients, randn

SIZES = (9, 4, 6)
LINES = BayesianMLP((2, 3, 1), Gaussian(0.3), torch.float64)
NEW = randn(7, 3, 5, 2)


def embedded(theta: Tensor, x: Tensor) -> np.ndarray:
    """The hidden units of a network with flat weights [D] at rows [N, 2]."""
    return torch.relu(x @ theta[:6].view(2, 3) + theta[6:9]).numpy()


def theta(model: Any) -> Tensor:
    """Weights of hidden units that are all alive: else rows are equally near, of which scikit-learn counts some."""
    return alive(alive(alive(randn(3, len(SIZES), model.dim))))


def posterior(model: Any, batch: ClientBatch, share: float, neighbours: int = 3, scale: float = 0.7) -> Any:
    weights, noise = theta(model), Noise(0, 0, batch.ids)
    return NeighbourPosterior(model, weights, batch, noise, share, neighbours, scale)


def numbers_of(batch: ClientBatch) -> ClientBatch:
    rows = [(batch.x[k, :m], randn(30 + k, m)) for k, m in enumerate(SIZES)]
    return ClientBatch.pad(rows)


@pytest.mark.parametrize("neighbours", [1, 3, 100])
@pytest.mark.parametrize("share", [1.0, 0.4])
def test_classes_are_mixed_with_those_of_scikit_learn_s_neighbours(neighbours: int, share: float) -> None:
    batch = clients(*SIZES)
    result = posterior(MODEL, batch, share, neighbours).predict(NEW).probs
    network = MODEL.observation(theta(MODEL), ClientBatch.pad([(x, torch.zeros(5)) for x in NEW])).probs
    for k, m in enumerate(SIZES):
        labels = batch.y[k, :m].numpy()
        other = KNeighborsClassifier(min(neighbours, m), weights=lambda d: np.exp(-d / 0.7))
        other.fit(embedded(theta(MODEL)[k], batch.x[k, :m]), labels)
        expected = np.zeros((5, CLASSES))
        expected[:, other.classes_] = other.predict_proba(embedded(theta(MODEL)[k], NEW[k]))
        np.testing.assert_allclose(result[k], share * expected + (1 - share) * network[k].numpy(), atol=1e-12)


@pytest.mark.parametrize("share", [1.0, 0.4])
def test_means_are_mixed_with_those_of_scikit_learn_s_neighbours(share: float) -> None:
    batch = numbers_of(clients(*SIZES))
    result = posterior(LINES, batch, share).predict(NEW)
    network = LINES.observation(theta(LINES), ClientBatch.pad([(x, torch.zeros(5)) for x in NEW])).mean
    for k, m in enumerate(SIZES):
        other = KNeighborsRegressor(3, weights=lambda d: np.exp(-d / 0.7))
        other.fit(embedded(theta(LINES)[k], batch.x[k, :m]), batch.y[k, :m].numpy())
        expected = other.predict(embedded(theta(LINES)[k], NEW[k]))
        np.testing.assert_allclose(result.mean[k], share * expected + (1 - share) * network[k].numpy(), atol=1e-12)
    torch.testing.assert_close(result.variance, torch.full_like(result.mean, 0.3**2))


def test_rows_that_are_as_near_as_the_kth_are_all_counted() -> None:
    rows = ClientBatch.pad([(torch.zeros(4, 2).double(), torch.tensor([0, 0, 1, 2]))], classes=CLASSES)
    one = NeighbourPosterior(MODEL, theta(MODEL)[:1], rows, Noise(0, 0, rows.ids), 1.0, 2, 1.0)
    assert one.predict(NEW[:1]).probs[0, 0].tolist() == pytest.approx([0.5, 0.25, 0.25], abs=1e-15)


def test_far_away_rows_have_weights_too() -> None:
    batch = clients(*SIZES)
    probs = posterior(MODEL, batch, 1.0, scale=1e-3).predict(1e6 * NEW).probs
    torch.testing.assert_close(probs.sum(-1), torch.ones_like(probs[..., 0]), rtol=1e-12, atol=1e-12)


def test_a_client_without_rows_has_the_network_alone() -> None:
    batch = clients(4, 0, 3)
    alone = posterior(MODEL, batch, 1.0).predict(NEW)
    network = MODEL.observation(theta(MODEL), ClientBatch.pad([(x, torch.zeros(5)) for x in NEW])).probs
    torch.testing.assert_close(alone.probs[1], network[1], rtol=1e-14, atol=1e-15)


def test_distances_are_taken_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    one = posterior(MODEL, clients(*SIZES), 0.5)
    whole = one.predict(NEW).log_probs
    monkeypatch.setattr("pacbayes_fl.posteriors.weights.neighbours._ROWS", 2)
    torch.testing.assert_close(one.predict(NEW).log_probs, whole, rtol=1e-13, atol=1e-14)


def test_other_targets_are_refused_by_name() -> None:
    class Counts(Gaussian):
        def distribution(self, outputs: Tensor) -> Any:
            return torch.distributions.Poisson(outputs.squeeze(-1).exp())

    model = BayesianMLP((2, 3, 1), Counts(), torch.float64)
    with pytest.raises(StudyError, match="means of normals, got targets of Poisson"):
        posterior(model, numbers_of(clients(*SIZES)), 0.5).predict(NEW)
