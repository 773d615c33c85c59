"""pFedGP: gradient ascent of one shared theta on the sum of the clients' log evidence."""

from __future__ import annotations

import torch

from pacbayes_fl.federation import engine, federation_state
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.inference.evidence import particle_scores
from pacbayes_fl.methods.baselines.pfedgp import pfedgp
from pacbayes_fl.noise import Noise
from tests.laws.cases import deep, federation, identified

BATCH = federation(3)


def evidence(theta: torch.Tensor) -> float:
    return particle_scores(deep(3), theta.view(1, -1), BATCH).log_evidence.sum().item()


def test_a_round_is_a_step_of_adam_on_the_summed_evidence() -> None:
    method = pfedgp(deep(3), init_std=0.4, rate=0.01)
    start = federation_state.start(method, BATCH, FederationPlan()).server
    theta = start.particles[0].clone().requires_grad_(True)
    adam = torch.optim.Adam([theta], lr=0.01)
    for record, state in engine.rounds(method, BATCH, FederationPlan(rounds=5)):
        assert abs(record.values["log_evidence"] * BATCH.clients - evidence(theta.detach())) < 1e-8
        theta.grad = -particle_scores(deep(3), theta.detach().view(1, -1), BATCH).score.sum(0)[0]
        adam.step()
        mine, theirs = (identified(method, {"theta": t})["theta"] for t in (state.server.particles[0], theta.detach()))
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-10)


def test_the_hyper_prior_does_not_pull() -> None:
    narrow, wide = pfedgp(deep(3), init_std=1e-3), pfedgp(deep(3), init_std=1e3)
    start = federation_state.start(narrow, BATCH, FederationPlan())
    update, _ = narrow.client(narrow.broadcast(start.server), start.clients, BATCH, Noise(0, 1, BATCH.ids))
    one, other = (method.server(start.server, update, BATCH.clients) for method in (narrow, wide))
    assert torch.equal(one.particles, other.particles)


def test_the_evidence_rises_and_the_options_arrive() -> None:
    method = pfedgp(deep(3), init_std=0.4, rate=0.02, minibatch=3)
    assert (method.particles, method.tau, method.rate, method.minibatch) == (1, 1.0, 0.02, 3)
    start = federation_state.start(method, BATCH, FederationPlan()).server
    assert start.particles.shape == (1, deep(3).dim)
    end = engine.run_rounds(pfedgp(deep(3), init_std=0.4, rate=0.02), BATCH, FederationPlan(rounds=60)).server
    assert evidence(end.particles[0]) > evidence(start.particles[0]) + 1.0
