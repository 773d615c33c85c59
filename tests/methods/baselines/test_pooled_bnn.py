"""One Bayesian network on all rows: that of one client who has them all."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import PrivacyError
from pacbayes_fl.inference.svi import LocalInference
from pacbayes_fl.methods.base import Nothing
from pacbayes_fl.methods.baselines.centralised import pool
from pacbayes_fl.methods.baselines.pooled_bnn import PooledBNN, Server
from pacbayes_fl.methods.baselines.vanilla_bnn import VanillaBNN
from pacbayes_fl.methods.variational import pfedbayes
from pacbayes_fl.noise import Noise
from tests.methods import refining
from tests.methods.by_hand import CLASSES, MODEL, SIZES, K, clients, randn

LOCAL = LocalInference(steps=2, minibatch=4, rate=0.03, zeta=0.7)
METHOD = PooledBNN(MODEL, LOCAL, prior_std=0.4, draws=3)


def begun() -> Server:
    return METHOD.init_server(torch.Generator().manual_seed(3))


def after(rounds: int, weight: torch.Tensor | None = None) -> Server:
    server, batch = begun(), clients(*SIZES)
    for t in range(rounds):
        update, _ = METHOD.client(server, Nothing(), batch, Noise(3, t, batch.ids))
        server = METHOD.server(server, update if weight is None else update._replace(weight=weight), K)
    return server


def test_it_is_the_network_of_one_client_who_has_all_rows() -> None:
    batch, start = clients(*SIZES), begun()
    x, y = pool(METHOD.client(start, Nothing(), batch, Noise(3, 1, batch.ids))[0])
    assert len(y) == sum(SIZES)
    everybody = ClientBatch.pad([(x, y)], ["all"], ids=[0], classes=CLASSES)
    alone = VanillaBNN(MODEL, LOCAL, prior_std=0.4, draws=3)
    known = pfedbayes.Server(type(start.state.q)(*(leaf[0] for leaf in start.state.q)))
    kept = alone.init_clients(known, everybody)
    for t in (1, 2, 3):
        update, kept = alone.client(known, kept, everybody, Noise(int(start.seed), t, (0,), engine="generators"))
    pooled = after(3)
    assert all(torch.equal(mine, its) for mine, its in zip(pooled.state.q, kept.q, strict=True))
    assert all(torch.equal(mine, its) for mine, its in zip(pooled.fit, update.fit, strict=True))
    assert METHOD.report(pooled, update)["elbo"] == update.fit.elbo.sum() and int(pooled.rounds) == 3  # type: ignore[arg-type]


def test_rows_of_clients_that_are_left_out_do_not_count() -> None:
    nobody = after(2, torch.zeros(K))
    assert all(torch.equal(mine, its) for mine, its in zip(nobody.state.q, begun().state.q, strict=True))
    some, all_of_them = after(1, torch.tensor([1.0, 0.0, 1.0])), after(1)
    assert not torch.equal(some.state.q.loc, all_of_them.state.q.loc)


def test_everybody_gets_the_same_model_which_is_the_global_one() -> None:
    batch, server = clients(*SIZES), after(1)
    posterior = METHOD.personalise(server, Nothing(), batch, Noise(3, 0, batch.ids))
    whole = METHOD.global_model(server, Nothing(), batch, Noise(3, 0, batch.ids))
    x = randn(70, 1, 4, 2).expand(K, -1, -1)
    means = posterior.predict_at_mean(x).probs  # type: ignore[union-attr]
    assert torch.equal(means[0], means[1]) and torch.equal(posterior.predict(x).probs, whole.predict(x).probs)  # type: ignore[union-attr]


def test_refined_posteriors() -> None:
    server, seen, rows = after(1), clients(*refining.SEEN), refining.more(*refining.NEW)
    prior = METHOD.personalise(server, Nothing(), seen, Noise(3, 0, seen.ids))
    refined = METHOD.refine(prior, seen, rows, Noise(3, 0, rows.ids))
    family: Any = refined.posterior.family  # type: ignore[attr-defined]
    torch.testing.assert_close(refined.kl, refining.gaussian_oracle(family, prior.family), rtol=1e-10, atol=1e-12)
    assert (refined.kl[:2] > 1e-3).all() and refined.kl[2] == 0.0


def test_its_rows_leave() -> None:
    assert not METHOD.federated
    with pytest.raises(PrivacyError, match="PooledBNN has no private release: its clients send their rows"):
        METHOD.check_private()
