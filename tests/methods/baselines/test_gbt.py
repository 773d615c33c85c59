"""Boosted trees by client and pooled, against scikit-learn's own, and the variance of what they leave."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.model_selection import cross_val_predict

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import AssumptionError, PrivacyError
from pacbayes_fl.federation import engine, personalisation
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.inference.boosting import Boosting
from pacbayes_fl.methods.base import Nothing
from pacbayes_fl.methods.baselines.gbt import LocalGBT, PooledGBT, summaries
from pacbayes_fl.noise import Noise
from tests.methods.by_hand import randn

BOOSTING = Boosting(12, 0.2, 4, 3, 0.5)
SIZES = (30, 18, 2, 1, 24)


def rows(k: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows whose target follows the first feature, in one direction for even clients and the other for odd."""
    x = randn(k, count, 2)
    return x, (1 - 2 * (k % 2)) * (x[:, 0].sign() + 0.1 * randn(40 + k, count))


BATCH = ClientBatch.pad([rows(k, m) for k, m in enumerate(SIZES)])
NEW = randn(90, 5, 7, 2)


def theirs() -> HistGradientBoostingRegressor:
    return HistGradientBoostingRegressor(
        learning_rate=0.2, max_iter=12, max_leaf_nodes=4, min_samples_leaf=3, l2_regularization=0.5
    )


def test_each_client_has_scikit_learn_s_trees_and_their_residuals_out_of_fold() -> None:
    method = LocalGBT(BOOSTING, folds=3)
    predicted = method.personalise(Nothing(), Nothing(), BATCH, Noise(0, 0, BATCH.ids)).predict(NEW)
    for k in (0, 1, 4):
        x, y = BATCH.x[k][BATCH.mask[k]].numpy(), BATCH.y[k][BATCH.mask[k]].numpy()
        assert np.array_equal(predicted.mean[k].numpy(), theirs().fit(x, y).predict(NEW[k].numpy()))
        fold = np.arange(len(y)) * 3 // len(y)
        splits = [(np.flatnonzero(fold != f), np.flatnonzero(fold == f)) for f in range(3)]
        errors = y - cross_val_predict(theirs(), x, y, cv=splits)
        np.testing.assert_allclose(predicted.variance[k], np.mean(errors**2), rtol=1e-12)
    for k in (2, 3):  # too few rows
        own = BATCH.y[k][BATCH.mask[k]]
        torch.testing.assert_close(predicted.mean[k], own.mean().expand(7))
        assert (predicted.variance[k] == 1.0).all()


def pooled(**options: bool) -> PooledGBT:
    return PooledGBT(BOOSTING, folds=3, **options)


@pytest.mark.parametrize("client_features", [True, False])
def test_pooled_trees_are_scikit_learn_s_and_know_of_a_client_what_its_rows_say(client_features: bool) -> None:
    method = pooled(client_features=client_features)
    server = engine.run_rounds(method, BATCH, FederationPlan(rounds=1)).server
    real = [(x[m].numpy(), y[m].numpy()) for x, y, m in zip(BATCH.x, BATCH.y, BATCH.mask, strict=True)]

    def inputs(x: np.ndarray, known: tuple[np.ndarray, np.ndarray]) -> np.ndarray:  # type: ignore[type-arg]
        own = (known[0] * known[1][:, None]).sum(0) / max(1, len(known[1]))
        return np.concatenate((x, np.broadcast_to(own, x.shape)), 1) if client_features else x

    trees = theirs().fit(np.concatenate([inputs(x, (x, y)) for x, y in real]), np.concatenate([y for _, y in real]))
    predicted = personalisation.join(method, server, BATCH, 0).predict(NEW)
    for k, own in enumerate(real):
        np.testing.assert_allclose(predicted.mean[k], trees.predict(inputs(NEW[k].numpy(), own)), rtol=1e-12)
    errors = []
    folds = [np.arange(len(y)) * 3 // len(y) for _, y in real]
    for f in range(3):
        seen = [(x[fold != f], y[fold != f]) for (x, y), fold in zip(real, folds, strict=True)]
        left = theirs().fit(np.concatenate([inputs(x, (x, y)) for x, y in seen]), np.concatenate([y for _, y in seen]))
        for (x, y), fold, known in zip(real, folds, seen, strict=True):
            if (fold == f).any():
                errors.append(y[fold == f] - left.predict(inputs(x[fold == f], known)))
    np.testing.assert_allclose(server.variance, np.mean(np.concatenate(errors) ** 2), rtol=1e-10)


def test_numbers_of_a_client_tell_clients_apart() -> None:
    errors = []
    for client_features in (True, False):
        method = pooled(client_features=client_features)
        server = engine.run_rounds(method, BATCH, FederationPlan(rounds=1)).server
        errors.append(server.variance.item())
    assert errors[0] < 0.7 * errors[1]
    empty = summaries(BATCH.x, BATCH.y, torch.zeros_like(BATCH.mask))
    assert empty.shape == (5, 2) and not empty.any()


@pytest.mark.parametrize("sizes", [(1,), (1, 1, 1, 1), (2, 0)])
def test_few_rows_leave_a_finite_prediction(sizes: tuple[int, ...]) -> None:
    batch = ClientBatch.pad([rows(k, m) for k, m in enumerate(sizes)], allow_empty=True)
    method = pooled()
    update, _ = method.client(method.init_server(torch.Generator()), Nothing(), batch, Noise(0, 1, batch.ids))
    server = method.server(method.init_server(torch.Generator()), update, len(sizes))
    predicted = method.personalise(server, Nothing(), batch, Noise(0, 0, batch.ids)).predict(NEW[: len(sizes)])
    assert predicted.mean.isfinite().all() and (predicted.variance > 0).all()


def test_constant_targets_keep_some_variance() -> None:
    batch = ClientBatch.pad([(randn(1, 20, 2), torch.zeros(20, dtype=torch.float64))])
    posterior = LocalGBT(BOOSTING).personalise(Nothing(), Nothing(), batch, Noise(0, 0, batch.ids))
    assert posterior.variance.item() == 1e-8


def test_what_is_not_there_is_refused_by_name() -> None:
    for method, why in ((LocalGBT(), "LocalGBT has no private release"), (PooledGBT(), "its clients send their rows")):
        with pytest.raises(PrivacyError, match=why):
            method.check_private()
        with pytest.raises(AssumptionError, match="has no posterior over hypotheses"):
            method.refine(Nothing(), BATCH, BATCH, Noise(0, 0, BATCH.ids))
