"""FedEM against expectation-maximisation on straight lines, scipy's logsumexp, and FedAvg."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.special import logsumexp
from scipy.stats import norm

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import AssumptionError, PrivacyError
from pacbayes_fl.methods.base import Nothing
from pacbayes_fl.methods.baselines.averaging import Server
from pacbayes_fl.methods.baselines.fedavg import FedAvg
from pacbayes_fl.methods.baselines.fedem import FedEM, Proportions
from pacbayes_fl.noise import Noise
from tests.methods.by_hand import MODEL, SIZES, clients, randn
from tests.worlds import Quadratic, after, descent, numbers, rounds

Array = NDArray[np.float64]
X = [np.array([0.8, -1.1, 1.3, 0.9, -1.2]), np.array([1.0, -0.7, 1.4])]
Y = [np.array([1.7, -2.1, 2.4, -0.8, 1.5]), np.array([-1.2, 0.6, -1.3])]
"""Rows near y = 2 x and y = -x."""
BATCH = ClientBatch.pad([(torch.from_numpy(x)[:, None], torch.from_numpy(y)) for x, y in zip(X, Y, strict=True)])
START = (0.5, -0.3)


def responsibilities(x: Array, y: Array, w: Array, log_pi: Array) -> Array:
    joint = norm.logpdf(y[:, None], x[:, None] * w, 1.0) + log_pi
    return np.exp(joint - logsumexp(joint, 1, keepdims=True))


def line(steps: int = 2, rate: float = 0.1, components: int = 2, **options: Any) -> FedEM:
    return FedEM(Quadratic(), descent(steps, rate), components=components, **options)


@pytest.mark.parametrize("weighting", ["rows", "uniform"])
def test_two_rounds_are_the_algorithm_box_in_numpy(weighting: Any) -> None:
    played = rounds(line(weighting=weighting), BATCH, *START)
    w, log_pi = np.array(START), [np.log([0.5, 0.5])] * 2
    for _ in range(2):
        sent = []
        for k, (x, y) in enumerate(zip(X, Y, strict=True)):
            q, own = responsibilities(x, y, w, log_pi[k]), w.copy()
            log_pi[k] = np.log(q.mean(0))
            for _ in range(2):
                own -= 0.1 * (q * (x[:, None] * own - y[:, None]) * x[:, None]).mean(0)
            sent.append(own)
        w = np.average(sent, 0, [5, 3] if weighting == "rows" else None)
        last = next(played)
        np.testing.assert_allclose(last.update.theta, sent, rtol=1e-12)
        np.testing.assert_allclose(last.clients.log_share, log_pi, rtol=1e-12)
        np.testing.assert_allclose(last.server.theta, w, rtol=1e-12)


def test_a_network_moves_by_as_much_as_rows_are_its_own() -> None:
    """A client to whose rows it means next to nothing leaves it where it is in the usual steps of a round."""
    method = FedEM(Quadratic(), components=2)
    kept = Proportions(torch.tensor([[0.0, -9.0]], dtype=torch.float64), torch.ones(1, dtype=torch.int64))
    theta = torch.tensor(START, dtype=torch.float64)
    client = BATCH.select(torch.tensor([0]))
    moved = (method.client(Server(theta), kept, client, Noise(0, 0, client.ids))[0].theta - theta).abs()[0]
    assert moved[0] > 0.1 > 100 * moved[1]


def test_many_steps_of_one_client_are_expectation_maximisation() -> None:
    """The M-step of lines is a weighted regression; descent comes to it, and no round makes the rows less likely."""
    batch, method = BATCH.select(torch.tensor([0])), line(70, 1.2)
    (x, y), w, log_pi, before = (X[0], Y[0]), np.array(START), np.log([0.5, 0.5]), -np.inf
    for last, _ in zip(rounds(method, batch, *START), range(3), strict=False):
        q = responsibilities(x, y, w, log_pi)
        w, log_pi = (q * (x * y)[:, None]).sum(0) / (q * (x * x)[:, None]).sum(0), np.log(q.mean(0))
        np.testing.assert_allclose(last.server.theta, w, rtol=1e-6)
        np.testing.assert_allclose(last.clients.log_share[0], log_pi, rtol=1e-6)
        value = logsumexp(norm.logpdf(y[:, None], x[:, None] * w, 1.0) + log_pi, 1).sum()
        assert value > before
        before = value


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_one_network_is_fedavg(optimiser: Any) -> None:
    batch, local = clients(*SIZES), descent(3, 0.1)
    local = type(local)(3, 4, 0.05, optimiser)
    results = []
    for method in (FedEM(MODEL, local, components=1), FedAvg(MODEL, local)):
        method: Any
        state = method.init_server(torch.Generator().manual_seed(1))
        kept = method.init_clients(state, batch)
        update, kept = method.client(state, kept, batch, Noise(0, 1, batch.ids))
        state = method.server(state, update, 3)
        predicted = method.personalise(state, kept, batch, Noise(0, 0, batch.ids)).predict(batch.x)
        results.append((state.theta, update.loss, predicted.log_probs))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def test_equal_networks_stay_equal_and_their_start_does_not() -> None:
    assert len(set(numbers(after(3, line(), BATCH, 0.5, 0.5).server.theta))) == 1
    assert len(set(numbers(line().init_server(torch.Generator().manual_seed(0)).theta))) == 2


def test_predictions_mix_the_networks_in_the_client_s_proportions() -> None:
    method, shares = line(), torch.tensor([[0.9, 0.1], [0.2, 0.8]], dtype=torch.float64)
    state = Proportions(shares.log(), torch.ones(2, dtype=torch.int64))
    message, noise = Server(torch.tensor([2.0, -1.0], dtype=torch.float64)), Noise(0, 0, BATCH.ids)
    predicted: Any = method.personalise(message, state, BATCH, noise).predict(BATCH.x)
    for k, (x, y) in enumerate(zip(X, Y, strict=True)):
        joint = norm.logpdf(y[:, None], x[:, None] * np.array([2.0, -1.0]), 1.0) + np.log(shares[k].numpy())
        np.testing.assert_allclose(predicted.log_prob(BATCH.y)[k, : len(y)], logsumexp(joint, 1), rtol=1e-12)
    assert method.global_model(message, state, BATCH, noise) is None


def test_a_new_client_finds_its_proportions_and_no_other_client_s_change() -> None:
    method, noise = line(join_steps=3), Noise(0, 0, BATCH.ids)
    message = Server(torch.tensor([2.0, -1.0], dtype=torch.float64))
    equal = method.init_clients(message, BATCH)
    mixed = equal._replace(rounds=torch.tensor([0, 4]))
    log_pi = np.log([0.5, 0.5])
    for _ in range(3):
        log_pi = np.log(responsibilities(X[0], Y[0], np.array([2.0, -1.0]), log_pi).mean(0))
    result = method.personalise(message, mixed, BATCH, noise).log_weights.squeeze(-1)
    np.testing.assert_allclose(result[0], log_pi, rtol=1e-12)
    assert torch.equal(result[1], equal.log_share[1])


def test_a_client_without_rows_keeps_equal_proportions() -> None:
    empty = ClientBatch.pad([(torch.zeros(0, 1).double(), torch.zeros(0).double())], allow_empty=True)
    method, message = line(), Server(torch.tensor([2.0, -1.0], dtype=torch.float64))
    update, kept = method.client(message, method.init_clients(message, empty), empty, Noise(0, 1, empty.ids))
    assert numbers(update.theta) == [2.0, -1.0] and numbers(update.weight) == [0.0]
    assert numbers(kept.log_share.exp()) == pytest.approx([0.5, 0.5], abs=1e-15)


def test_proportions_stay_at_home_and_what_is_not_there_is_refused_by_name() -> None:
    method = line()
    update = next(rounds(method, BATCH, *START)).update
    assert update._fields == ("theta", "weight", "clients", "loss") and update.theta.shape == (2, 2)
    with pytest.raises(PrivacyError, match="weighting = 'rows'"):
        method.check_private()
    line(weighting="uniform").check_private()
    noise: Any = Noise(0, 0, BATCH.ids)
    with pytest.raises(AssumptionError, match="FedEM has no posterior over hypotheses"):
        method.refine(Nothing(), BATCH, BATCH, noise)


def test_a_private_release_steps_by_the_mean_of_both_networks() -> None:
    method = line(weighting="uniform")
    start = Server(torch.tensor(START, dtype=torch.float64))
    update, _ = method.client(start, method.init_clients(start, BATCH), BATCH, Noise(0, 1, BATCH.ids))
    mean = Server(method.to_release(start, update).theta.mean(0, keepdim=True))
    released = method.server(start, method.from_release(start, mean, 2.0), 2)
    torch.testing.assert_close(released.theta, method.server(start, update, 2).theta, rtol=1e-12, atol=1e-14)


def test_probabilities_of_classes_are_mixed() -> None:
    batch, method = clients(*SIZES), FedEM(MODEL, components=2)
    message = Server(torch.cat((randn(1, MODEL.dim), randn(2, MODEL.dim))))
    state = Proportions(torch.tensor([[0.3, 0.7]] * 3, dtype=torch.float64).log(), torch.ones(3, dtype=torch.int64))
    predicted: Any = method.personalise(message, state, batch, Noise(0, 0, batch.ids)).predict(batch.x)
    each = [
        MODEL.observation(message.theta[None, part].expand(3, -1), batch).probs
        for part in (slice(0, MODEL.dim), slice(MODEL.dim, None))
    ]
    torch.testing.assert_close(predicted.probs, 0.3 * each[0] + 0.7 * each[1], rtol=1e-12, atol=1e-14)
