"""Bayesian networks alone: plain torch against a prior that stays, and what they have in common with pFedBayes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pacbayes_fl import tensors
from pacbayes_fl.errors import PrivacyError
from pacbayes_fl.federation import messages
from pacbayes_fl.inference.svi import LocalInference
from pacbayes_fl.methods.baselines.vanilla_bnn import VanillaBNN
from pacbayes_fl.methods.variational.base import PriorTracking
from pacbayes_fl.methods.variational.pfedbayes import PFedBayes, Server
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.weights.mean_field import MeanField, rho_of
from tests.methods import by_hand, refining
from tests.methods.by_hand import MODEL, SIZES, D, K, clients, close, randn

LOCAL = LocalInference(steps=2, inner=2, minibatch=4, draws=2, rate=0.03, zeta=0.7)
STD = 0.4


def method(**options: Any) -> VanillaBNN:
    return VanillaBNN(MODEL, LOCAL, **({"prior_std": STD, "draws": 3, "join_passes": 2} | options))


def fixed() -> MeanField:
    """Return the prior [D]."""
    zero = torch.zeros(D, dtype=torch.float64)
    return MeanField(zero, rho_of(torch.full_like(zero, STD**2)))


def start() -> Server:
    return Server(MeanField(by_hand.alive(0.5 * randn(20, D)), 0.1 * randn(21, D) - 2.0))


def test_three_rounds_are_variational_inference_against_one_prior_in_plain_torch() -> None:
    algorithm, batch, state = method(), clients(*SIZES), start()
    kept = algorithm.init_clients(state, batch)
    expected = [by_hand.Client(state.w, fixed(), (0.03, 1.0)) for _ in range(K)]
    for one in expected:
        one.held = slice(None)  # the prior stays
    for t in (1, 2, 3):
        update, kept = algorithm.client(state, kept, batch, Noise(3, t, batch.ids))
        values = []
        for k, (one, m) in enumerate(zip(expected, SIZES, strict=True)):
            values.append(one.play(LOCAL, batch.x[k, :m], batch.y[k, :m], Noise(3, t, batch.ids[k : k + 1])))
            close([leaf[k] for leaf in kept.q], one.q)
            torch.testing.assert_close(one.w[1].data, fixed().rho)
        fit, kl = torch.tensor(values, dtype=torch.float64).T
        close(update.fit, (fit, kl, fit - LOCAL.zeta * kl))
        for form in (update, algorithm.reduce(update)):
            said = algorithm.report(state, form)
            close([said["kl"], said["elbo"]], [kl.mean(), (fit - LOCAL.zeta * kl).mean()])
        assert algorithm.server(state, algorithm.reduce(update), K) is state
        assert all(name.split(".")[0] in ("weight", "clients", "fit") for name in messages.flatten(update))


def test_it_is_pfedbayes_of_one_client_whose_prior_does_not_move() -> None:
    batch, known = clients(SIZES[0]), Server(fixed())
    algorithm, other = method(), PFedBayes(MODEL, LOCAL, PriorTracking(rate=1e-300))
    kept, theirs, server = algorithm.init_clients(known, batch), other.init_clients(known, batch), known
    for t in (1, 2, 3):
        update, kept = algorithm.client(known, kept, batch, Noise(3, t, batch.ids))
        sent, theirs = other.client(server, theirs, batch, Noise(3, t, batch.ids))
        server = other.server(server, sent, 1)
        for mine, its in ((kept.q, theirs.q), (update.fit, sent.fit), (known.w, server.w)):
            close(mine, its, 1e-14)


def test_who_never_trained_makes_the_steps_of_some_rounds_and_moves_nobody_else() -> None:
    algorithm, batch, state, noise = method(), clients(*SIZES), start(), Noise(3, 0, (5, 6, 7))
    fresh = algorithm.init_clients(state, batch)
    _, trained = algorithm.client(state, fresh, batch, Noise(3, 1, batch.ids))
    mixed = tensors.where(torch.tensor([True, False, True]), trained, fresh)
    alone, joined = noise.fork(), fresh
    for _ in range(2):
        _, joined = algorithm.client(state, joined, batch, alone)
    q: Any = algorithm.personalise(state, mixed, batch, noise).family
    assert all(torch.equal(leaf[0], own[0]) for leaf, own in zip(q, trained.q, strict=True))
    assert all(torch.equal(leaf[1], own[1]) for leaf, own in zip(q, joined.q, strict=True))


def test_a_client_without_rows_goes_to_the_prior() -> None:
    """The KL divergence alone: the likelihood of no rows is 1."""
    algorithm, batch = method(join_passes=25), clients(3, 0)
    joined: Any = algorithm.personalise(start(), algorithm.init_clients(start(), batch), batch, Noise(3, 0, batch.ids))
    before = start().w.kl(fixed())
    assert (joined.family.kl(fixed()) < torch.tensor([1.0, 0.01]) * before).all()


def test_refined_posteriors() -> None:
    refining.check(method(), start(), refining.gaussian_oracle)


def test_it_has_no_release() -> None:
    with pytest.raises(PrivacyError, match="VanillaBNN has no private release: its clients send nothing"):
        method().check_private()
