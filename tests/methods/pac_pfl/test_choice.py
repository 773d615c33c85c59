"""Private choice among priors: utilities by the definition, the same candidates for all, and what a run makes of it."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import PrivacyError
from pacbayes_fl.federation import engine, federation_state
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.inference import evidence
from pacbayes_fl.methods.base import Nothing
from pacbayes_fl.methods.pac_pfl.choice import PriorChoice, Regrets
from pacbayes_fl.methods.pac_pfl.gp import Message, PacPFL
from pacbayes_fl.models.functions.deep_kernel_gp import DeepKernelGP
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.hyper_posterior import GaussianHyperPrior
from pacbayes_fl.privacy import mechanisms
from pacbayes_fl.privacy.mechanisms import Cohorts, Mechanism
from pacbayes_fl.study import audit, run
from pacbayes_fl.study.file import Study
from tests.private import Free, open_private
from tests.remote import player
from tests.tiny import TABLE, assert_same_state, tiny

CHOICE = ("privacy.mechanism=exponential", "method.particles=1", "federation.rounds=3", "privacy.candidates=9")
ON = ("privacy.epsilon_if_noise_were_secret=10", *CHOICE)


def choice(candidates: int = 7, step: float = 0.6, seed: int = 3) -> PriorChoice:
    model = DeepKernelGP(1, (3,), (3,))
    return PriorChoice(PacPFL(model, GaussianHyperPrior(model.location(), 0.5), particles=1), candidates, step, seed)


def clients() -> ClientBatch:
    generator = torch.Generator().manual_seed(0)
    parts = [torch.rand(m, 1, generator=generator, dtype=torch.float64) for m in (4, 7, 1, 3)]
    return ClientBatch.pad([(x, torch.sin(3 * x[:, 0] + k)) for k, x in enumerate(parts)])


def start(method: PriorChoice) -> Tensor:
    return method.init_server(torch.Generator().manual_seed(0)).particles


def test_regrets_are_by_the_definition_of_the_evidence() -> None:
    method, batch = choice(70), clients()
    particles = start(method)
    sent, _ = method.client(Message(particles), Nothing(), batch, Noise(0, 2, batch.ids))
    candidates = method.proposals(particles, 2)
    for k, size in enumerate(batch.size.int().tolist()):
        x, y = batch.x[k : k + 1, :size], batch.y[k : k + 1, :size]
        known = []
        for theta in candidates:
            at = theta.view(1, 1, -1)
            prior = method.model.mean(at, x), method.model.covariance(at, x), method.model.noise(at, x)
            covariance = prior[1][0, 0] + prior[2][0, 0].expand(size).diag()
            law = torch.distributions.MultivariateNormal(prior[0][0, 0], covariance)
            known.append(float(law.log_prob(y[0])))
        torch.testing.assert_close(sent.regret[k], max(known) - torch.tensor(known, dtype=torch.float64))
    assert sent.regret.amin(1).eq(0).all() and sent.weight.tolist() == [1.0] * 4


def test_everybody_draws_the_same_candidates_and_the_server_takes_the_least_regret() -> None:
    method = choice()
    server = method.init_server(torch.Generator().manual_seed(0))
    for t in (1, 2, 3):
        candidates = method.proposals(server.particles, t)
        assert torch.equal(candidates, method.proposals(server.particles.clone(), t))
        assert torch.equal(candidates[:1], server.particles) and len(candidates) == 7
        regret = torch.tensor([[1.0, 2, 0, 3, 3, 3, 3], [2.0, 3, 0, 0, 3, 3, 3]], dtype=torch.float64)
        server = method.server(server, Regrets(regret, torch.ones(2)), 2)
        assert torch.equal(server.particles[0], candidates[2])
    assert not torch.equal(method.proposals(server.particles, 4)[1], choice(seed=4).proposals(server.particles, 4)[1])


def test_proposals_leave_a_gaussian_hyper_prior_as_it_is() -> None:
    """Started from a draw of it, a proposal is another; correlation sqrt(1 - step^2) with where it came from."""
    method = choice(3000)
    centre = method.model.location()
    particles = start(method)
    moved = (method.proposals(particles, 2)[1:] - centre - 0.8 * (particles - centre)) / (0.5 * 0.6)
    assert stats.kstest(moved.flatten()[::7].numpy(), "norm").pvalue > 1e-6
    first = (method.proposals(particles, 1)[1:] - centre) / 0.5
    assert stats.kstest(first.flatten()[::7].numpy(), "norm").pvalue > 1e-6


def test_a_client_whose_covariance_cannot_be_factored_regrets_that_candidate_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    method, batch = choice(3), clients()
    values = torch.tensor([[math.nan, 1.0, 2.0], [math.nan] * 3, [0.0, -math.inf, 1.0], [5.0, 4.0, math.inf]]).double()
    monkeypatch.setattr("pacbayes_fl.inference.evidence.particle_evidence", lambda *given: values)
    sent, _ = method.client(Message(start(method)), Nothing(), batch, Noise(0, 1, batch.ids))
    assert sent.regret.tolist() == [[1e6, 1.0, 0.0], [0.0] * 3, [1.0, 1e6, 0.0], [0.0, 1.0, 1e6]]


def test_a_round_takes_each_candidate_with_its_odds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the engine, over many seeds of the noise: exp(-sum of clipped regrets / s), s = multiplier times clip."""
    method, batch, mechanism = choice(4), clients(), Mechanism("exponential", 2.0, 0.7)
    state = federation_state.start(method, batch, FederationPlan(rounds=1))
    candidates = method.proposals(state.server.particles, 1)
    monkeypatch.setattr(method.__class__, "proposals", lambda self, particles, round: candidates)
    sent, _ = method.client(Message(state.server.particles), Nothing(), batch, Noise(0, 1, batch.ids))
    odds = torch.softmax(-sent.regret.clamp(0, 2).sum(0) / 1.4, 0)
    taken: Counter[int] = Counter()
    plan = FederationPlan(rounds=1)
    for seed in range(150):
        aggregator = open_private(method, batch, plan, tmp_path, mechanism, Cohorts(4), seed)
        aggregator = type(aggregator)(mechanism, aggregator.cohorts, Free(), seed, aggregator.empty)
        (record, after) = next(engine.rounds(method, batch, plan, state, aggregator))
        at = int((candidates == after.server.particles).all(1).nonzero()[0])
        taken[at] += 1
        assert record.values == {"moved": float(at > 0)}
    assert stats.chisquare([taken[at] for at in range(4)], (150 * odds).tolist()).pvalue > 1e-4


def test_nodes_of_a_deployment_draw_the_candidates_of_the_server(tmp_path: Path) -> None:
    method, batch, plan = choice(20), clients(), FederationPlan(seed=3, rounds=3)
    chance = Mechanism("exponential", 5.0, 20.0)  # so that the prior so far is not taken again
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    here = open_private(method, batch, plan, tmp_path / "here", chance, Cohorts(4), 5)
    there = open_private(method, batch, plan, tmp_path / "there", chance, Cohorts(4), 5)
    begun = federation_state.start(method, batch, plan)
    whole = [state.server.particles for _, state in engine.rounds(method, batch, plan, begun, here)]
    apart = [state.server.particles for _, state in engine.play(player(method, batch, plan, None, there), begun)]
    assert len(whole) == 3 and all(map(torch.equal, whole, apart))
    assert len({tuple(phi[0, :2].tolist()) for phi in (begun.server.particles, *whole)}) == 4


def test_without_noise_a_round_takes_the_candidate_of_the_most_evidence(tmp_path: Path) -> None:
    """Clients look at the candidates that the server then takes one of, in every round."""
    method, batch, plan = choice(20), clients(), FederationPlan(seed=1, rounds=3)
    aggregator = open_private(method, batch, plan, tmp_path, Mechanism("exponential", 1e6, 1e-12), Cohorts(4), 5)
    state, moved = federation_state.start(method, batch, plan), 0
    for t, (_, after) in enumerate(engine.rounds(method, batch, plan, state, aggregator), 1):
        candidates = method.proposals(state.server.particles, t)
        best = int(evidence.particle_scores(method.model, candidates, batch).log_evidence.sum(0).argmax())
        assert torch.equal(after.server.particles[0], candidates[best])
        state, moved = after, moved + (best > 0)
    assert moved > 1


# studies --------------------------------------------------------------------------------------------------------


def test_a_run_says_what_its_choices_cost_and_goes_on_after_a_crash(tmp_path: Path) -> None:
    result = run.run(tiny(*ON), tmp_path / "whole")
    told = result.labels["privacy"]
    assert (told["mechanism"], told["delta"], told["releases"]) == ("exponential", 0.0, 3)
    assert told["pure_if_noise_were_secret"] == pytest.approx(10.0)
    assert told["rho_if_noise_were_secret"] == pytest.approx(3 * (10 / 3) ** 2 / 8)
    run.run(tiny(*ON, "federation.rounds=2", "privacy.multiplier=0.3"), tmp_path / "half")
    again = run.run(tiny(*ON, "privacy.multiplier=0.3"), tmp_path / "half", resume=True)
    straight = run.run(tiny(*ON, "privacy.multiplier=0.3"), tmp_path / "straight")
    assert again.column("existing", "rsmse") == straight.column("existing", "rsmse")
    assert_same_state(tmp_path / "half", tmp_path / "straight")
    found = audit.audit(str(tmp_path / "whole"), count=2000)
    assert found.holds and found.reported == pytest.approx(10.0)


def test_a_certificate_of_all_rows_pays_the_epsilon_of_replacing_a_client(tmp_path: Path) -> None:
    run.run(tiny(*ON, "privacy.neighbours=replace", "report.certify.independent=true"), tmp_path / "run")
    trained = run.open_run(tmp_path / "run")
    known = trained.replacement(0.05)
    assert known is not None and known.delta >= 0 and known.nats(0.05) <= 10.0 * (1 + 1e-9)


def test_messages_beside_choices_are_means_with_laplace_noise(tmp_path: Path) -> None:
    sets = ("data.scale=pooled", 'data.ranges={"x"=[-1,1], "y"=[-2,2]}')
    told = run.run(tiny(*ON, *sets), tmp_path / "run").labels["privacy"]
    assert told["pure_if_noise_were_secret"] == pytest.approx(10.0) and set(told["outside"]) == {"scaling"}


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["method.particles=2"], "chooses one prior, got method.particles = 2"),
        (
            ["method.name=pfedbayes", "model.widths=[4]"],
            "chooses one of several priors, and pfedbayes",
        ),
    ],
)
def test_what_has_no_prior_to_choose_is_refused_by_name(sets: list[str], message: str, tmp_path: Path) -> None:
    on = [ON[0], ON[1], *ON[3:]]
    table: dict[str, Any] = {**TABLE, "model": {}, "method": {}}
    with pytest.raises(PrivacyError, match=message):
        run.run(Study.from_table(table, "tiny.toml", [*on, *sets]), tmp_path / "run")


def test_choices_by_chance_are_remarked(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="3 rounds chooses among 9 priors mostly by chance"):
        run.run(tiny("privacy.epsilon_if_noise_were_secret=1", *CHOICE), tmp_path / "run")


def test_too_little_noise_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real = mechanisms.noise
    monkeypatch.setattr(mechanisms, "noise", lambda *given, **named: real(*given, **named) / 3)
    found = audit.audit("polynomial", ["privacy.epsilon=1", *CHOICE, "federation.rounds=1"], count=20_000)
    assert not found.holds
