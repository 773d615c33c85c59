"""BNFed: networks whose units stand in another order are the same network, and who is alike is averaged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from pacbayes_fl.errors import PrivacyError, StudyError
from pacbayes_fl.inference import map_estimate
from pacbayes_fl.inference.map_estimate import LocalDescent
from pacbayes_fl.methods.baselines.bnfed import BNFed, Client, Server, Update
from pacbayes_fl.models.likelihoods import Categorical
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP
from pacbayes_fl.noise import Noise
from pacbayes_fl.server.matching import Matching
from tests.methods.by_hand import CLASSES, HIDDEN, INPUTS, MODEL, SIZES, D, K, clients, logits, randn

LOCAL = LocalDescent(3, 4, 0.05, "sgd")
METHOD = BNFed(MODEL, LOCAL, matching=Matching(sigma0=1e6))
WIDE = BNFed(BayesianMLP((INPUTS, 2 * HIDDEN, CLASSES), Categorical(CLASSES), torch.float64), LOCAL, units=HIDDEN)


def permuted(theta: Tensor, order: list[int]) -> Tensor:
    units, last = METHOD.split(theta)
    return METHOD.joined(units[order], last, theta)


def sent(*thetas: Tensor, ids: tuple[int, ...] = (5, 3, 9)) -> Update:
    one = torch.ones(len(thetas), dtype=torch.float64)
    return Update(torch.stack(thetas), torch.tensor(ids[: len(thetas)]), one, one, one)


def start(method: BNFed = METHOD) -> Server:
    return method.init_server(torch.Generator().manual_seed(3))


def test_a_network_is_its_units_and_last_biases() -> None:
    theta = randn(1, D)
    units, last = METHOD.split(theta)
    assert units.shape == (HIDDEN, INPUTS + 1 + CLASSES) and last.tolist() == theta[-CLASSES:].tolist()
    assert torch.equal(METHOD.joined(units, last, theta), theta)
    x, other = randn(2, 6, INPUTS), permuted(theta, [2, 0, 1])
    assert not torch.equal(other, theta)
    torch.testing.assert_close(logits(other, x), logits(theta, x), rtol=0, atol=1e-12)


def test_permuted_copies_of_a_network_are_averaged_to_it() -> None:
    theta, x = randn(1, D), randn(2, 6, INPUTS)
    update = sent(theta, permuted(theta, [2, 0, 1]), permuted(theta, [1, 0, 2]))
    result = METHOD.server(start(), update, 3)
    torch.testing.assert_close(logits(result.theta, x), logits(theta, x), rtol=0, atol=1e-9)
    mean = logits(update.theta.mean(0), x)  # what FedAvg makes of them
    assert (mean - logits(theta, x)).abs().max() > 0.1 and int(result.rounds) == 1


def test_networks_whose_units_are_in_one_order_are_averaged_as_fedavg_does() -> None:
    theta = 3 * randn(1, D)
    near = [theta + 0.01 * randn(2 + k, D) for k in range(3)]
    result = METHOD.server(start(), sent(*near), 3)
    units = METHOD.split(torch.stack(near).mean(0))[0]
    rows = METHOD.split(result.theta)[0]
    assert sorted(map(tuple, rows.round(8).tolist())) == sorted(map(tuple, units.round(8).tolist()))
    torch.testing.assert_close(result.theta[-CLASSES:], torch.stack(near).mean(0)[-CLASSES:], rtol=0, atol=1e-9)


def test_one_client_s_network_is_shrunk() -> None:
    method, theta = replace(METHOD, matching=Matching(sigma=1.0, sigma0=2.0)), randn(1, D)
    result = method.server(start(), sent(theta), 1)
    mine, its = (sorted(map(tuple, method.split(one)[0].round(9).tolist())) for one in (result.theta, theta / 1.25))
    assert mine == its
    torch.testing.assert_close(result.theta[-CLASSES:], theta[-CLASSES:] / 1.25)


def test_the_order_of_arrival_and_who_was_left_out_do_not_matter() -> None:
    thetas = [randn(k, D) for k in range(3)]
    result = METHOD.server(start(), sent(*thetas), 3)
    again = METHOD.server(start(), sent(*reversed(thetas), ids=(9, 3, 5)), 3)
    assert torch.equal(again.theta, result.theta)
    two = METHOD.server(start(), sent(thetas[0], thetas[2], ids=(5, 9)), 3)
    silent = sent(*thetas)._replace(weight=torch.tensor([1.0, 0.0, 1.0]))
    assert torch.equal(METHOD.server(start(), silent, 3).theta, two.theta)
    nobody = silent._replace(weight=torch.zeros(3))
    assert METHOD.server(start(), nobody, 3).rounds == 0


def test_clients_begin_alone_and_go_on_from_the_atoms_of_their_units() -> None:
    batch, known = clients(*SIZES), start()
    update, first = METHOD.client(known, METHOD.init_clients(known, batch), batch, Noise(3, 1, batch.ids))
    noise = Noise(3, 1, batch.ids)
    drawn = 0.1 * noise.fork().weights(torch.zeros(K, D, dtype=torch.float64))
    expected = map_estimate.fit(MODEL, LOCAL, drawn, batch, noise).theta
    torch.testing.assert_close(update.theta, expected, rtol=0, atol=1e-14)
    theta = 3 * randn(1, D)
    orders = [[2, 0, 1], [0, 1, 2], [1, 2, 0]]
    kept = Client(torch.stack([permuted(theta + 0.01 * randn(9, D), order) for order in orders]), first.rounds)
    update, _ = METHOD.client(known._replace(theta=theta), kept, batch, Noise(3, 2, batch.ids))
    begun = torch.stack([permuted(theta, order) for order in orders])
    expected = map_estimate.fit(MODEL, LOCAL, begun, batch, Noise(3, 2, batch.ids)).theta
    torch.testing.assert_close(update.theta, expected, rtol=0, atol=1e-14)


def test_room_for_more_atoms_than_a_client_has_units_is_used_and_is_silent() -> None:
    batch, state = clients(*SIZES), start(WIDE)
    assert (abs(WIDE.split(state.theta)[0]).sum(1) > 0).sum() == HIDDEN
    kept: Any = WIDE.init_clients(state, batch)
    for t in (1, 2):
        update, kept = WIDE.client(state, kept, batch, Noise(3, t, batch.ids))
        assert all((abs(WIDE.split(one)[0]).sum(1) > 0).tolist() == [True] * 3 + [False] * 3 for one in kept.theta)
        state = WIDE.server(state, WIDE.reduce(update), K)
    assert (abs(WIDE.split(state.theta)[0]).sum(1) > 0).sum() >= HIDDEN


def test_what_cannot_be_matched_is_refused() -> None:
    deep = BayesianMLP((2, 3, 3, 2), Categorical(2))
    with pytest.raises(StudyError, match="one hidden layer"):
        BNFed(deep)
    with pytest.raises(StudyError, match=f"units must be at most {HIDDEN}, the model's width, got 9"):
        BNFed(MODEL, units=9)
    with pytest.raises(PrivacyError, match="BNFed has no private release"):
        METHOD.check_private()
