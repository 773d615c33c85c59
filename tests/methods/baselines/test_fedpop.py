"""FedPop on a Gaussian world where posteriors and scores are known, its limits, and its certificates' posteriors."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from pacbayes_fl.errors import PrivacyError
from pacbayes_fl.federation import engine, messages
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.inference.langevin import Langevin
from pacbayes_fl.inference.map_estimate import LocalDescent
from pacbayes_fl.inference.parts import Personal
from pacbayes_fl.methods.baselines.fedavg import FedAvg
from pacbayes_fl.methods.baselines.fedpop import FedPop, Server
from pacbayes_fl.methods.baselines.split import Split
from pacbayes_fl.noise import Noise
from tests import worlds
from tests.methods.by_hand import MODEL, SIZES, clients
from tests.worlds import Product, World, descent, numbers, products

HEADS = Personal(1, "last")
STILL = Langevin(0.1, temperature=0.0, burn_in=0.0)


class Sum(World):
    """y ~ N(phi + z, 1)."""

    sites = ("phi", "z")

    def mean(self, x: Tensor, **weights: Tensor) -> Tensor:
        return x * (weights["phi"] + weights["z"])


BATCH, RATE = worlds.clients([1.0] * 3, [1.0, -0.5, 2.0], [4] * 3), 0.01
POSTERIOR = torch.tensor([0.466666666667, -0.533333333333, 1.133333333333], dtype=torch.float64).unsqueeze(1)
SERVER = Server(torch.tensor([0.3, 0.0], dtype=torch.float64), torch.tensor([0.5], dtype=torch.float64))


def gaussian(steps: int, chain: Langevin = STILL, **options: Any) -> FedPop:
    return FedPop(Sum(), descent(steps, RATE), chain, own=HEADS, phi="once", prior_step=1.0, **options)


def played(method: FedPop, start: Tensor) -> Any:
    state = method.init_clients(SERVER, BATCH)._replace(own=start.clone())
    return method.client(SERVER, state, BATCH, Noise(0, 1, BATCH.ids))


def test_chains_rest_at_the_posterior_means() -> None:
    _, after = played(gaussian(60), torch.zeros(3, 1, dtype=torch.float64))
    torch.testing.assert_close(after.own, POSTERIOR, rtol=0, atol=1e-11)


def test_scores_are_the_gradients_of_the_marginal_likelihood(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two draws with the posterior's mean and variance, 1 / 6, stand for it: scores depend on nothing else."""
    away = math.sqrt(1 / 6)
    monkeypatch.setattr(Langevin, "step", lambda self, z, drift, noise: 2 * POSTERIOR - z)
    update, _ = played(gaussian(2), POSTERIOR - away)
    sent = update.sent
    by_phi = (4 * (sent.phi - 0.3) / RATE).sum()
    assert float(by_phi) == pytest.approx(2.133333333333, abs=1e-10)
    torch.testing.assert_close(sent.z.mean, POSTERIOR, rtol=0, atol=1e-12)
    torch.testing.assert_close(sent.z.variance, torch.full_like(POSTERIOR, 0.166666666667), rtol=0, atol=1e-11)
    square = sent.z.mean.square() + sent.z.variance
    assert float((0.5 * (square / 0.5 - 1)).sum()) == pytest.approx(0.786666666667, abs=1e-10)
    scale = gaussian(2, prior="scale")
    for form in (update, scale.reduce(update)):
        server = scale.server(SERVER, form, 3)
        assert numbers(server.variance) == pytest.approx([0.762222222222], abs=1e-10) and server.theta[1] == 0.0
        assert float(server.theta[0]) == pytest.approx(0.3 + RATE * 2.133333333333 / 12, abs=1e-12)
    learned = gaussian(2).server(SERVER, update, 3)
    centre = float(POSTERIOR.mean())
    assert numbers(learned.theta)[1:] == pytest.approx([centre], abs=1e-12)
    assert numbers(learned.variance) == pytest.approx([0.762222222222 - centre**2], abs=1e-10)
    fixed = gaussian(2, prior="fixed").server(SERVER, update, 3)
    assert numbers(fixed.variance) == [0.5] and numbers(fixed.theta)[1:] == [0.0]
    half = replace(gaussian(2), prior_step=0.5).server(SERVER, update, 3)
    second = 0.5 * 0.5 + 0.5 * 0.762222222222  # E z^2 goes half of its way too
    assert numbers(half.variance) == pytest.approx([second - (centre / 2) ** 2], abs=1e-10)


def test_the_prior_is_never_narrower_than_a_stable_chain_allows() -> None:
    update, _ = played(gaussian(1), torch.zeros(3, 1, dtype=torch.float64))  # one draw: no spread at all
    assert numbers(gaussian(1).server(SERVER, update, 3).variance) == [0.1]


def test_draws_of_personal_models_have_the_posterior_s_moments() -> None:
    """Of 400 clients alike, one chain each: the bias of gamma = .02 at precision 6 is 6 %."""
    method, many = (
        gaussian(8, Langevin(0.02), draws=2, thin=4, join_passes=4),
        worlds.clients([1.0] * 400, [1.0] * 400, [4] * 400),
    )
    posterior = method.personalise(SERVER, method.init_clients(SERVER, many), many, Noise(0, 0, many.ids))
    z = posterior.components[1].own
    assert float(z.mean()) == pytest.approx(float(POSTERIOR[0]), abs=0.08)
    assert float(z.var()) == pytest.approx(1 / 6, rel=0.25)
    assert torch.equal(posterior.components[1].weights()[:, 0], torch.full((400,), 0.3, dtype=torch.float64))
    both = torch.stack([one.own for one in posterior.components]).mean(0)
    torch.testing.assert_close(posterior.means[0][:, 1:], both)


def test_refined_posteriors_are_bayes_rule_on_the_draws() -> None:
    method = gaussian(1, Langevin(0.05), draws=5)
    prior = method.personalise(SERVER, method.init_clients(SERVER, BATCH), BATCH, Noise(0, 0, BATCH.ids))
    rows = worlds.clients([1.0] * 3, [0.5, 0.5, -1.0], [3, 3, 3])
    refined = method.refine(prior, BATCH, rows, Noise(0, 0, rows.ids))
    z = torch.stack([one.own[:, 0] for one in prior.components], 1)  # [K, S]
    by_hand = (-1.5 * (torch.tensor([[0.5], [0.5], [-1.0]]) - 0.3 - z).square()).softmax(1)
    weights = refined.posterior.log_weights.squeeze(-1).exp()  # type: ignore[attr-defined]
    torch.testing.assert_close(weights, by_hand)
    torch.testing.assert_close(refined.kl, (by_hand * (5 * by_hand).log()).sum(1))
    assert (refined.kl > 0).all() and (refined.kl <= math.log(5)).all() and method.finite_posterior
    assert torch.equal(prior.log_weights, torch.full((3, 5, 1), -math.log(5), dtype=torch.float64))


PLAN, LOCAL, NETWORK = FederationPlan(rounds=3, seed=3), LocalDescent(3, 4, 1e-2), clients(*SIZES)


def test_without_own_weights_it_is_fedavg_bit_by_bit() -> None:
    """At temperature 0: the empty draws of a chain would move the minibatches' random numbers."""
    expected: Any = engine.run_rounds(FedAvg(MODEL, LOCAL, weighting="uniform"), NETWORK, PLAN)
    result: Any = engine.run_rounds(FedPop(MODEL, LOCAL, STILL, own=Personal(0)), NETWORK, PLAN)
    assert torch.equal(result.server.theta, expected.server.theta) and result.clients.own.shape == (3, 0)


@pytest.mark.parametrize("rounds", [1, 2])
def test_with_a_wide_prior_and_no_noise_it_is_fedper(rounds: int) -> None:
    """One row of a client: the loss of a row is that of all."""
    batch, start = products(), (1.0, 0.5)
    method = FedPop(Product(), descent(2, 0.1), STILL, own=HEADS, prior="fixed")
    state = Server(torch.tensor(start, dtype=torch.float64), torch.full((1,), 1e16, dtype=torch.float64))
    *_, last = (played for played, _ in zip(worlds.rounds(method, batch, server=state), range(rounds), strict=False))
    fedper = worlds.after(rounds, Split(Product(), descent(2, 0.1), own=HEADS, weighting="uniform"), batch, *start)
    assert numbers(last.clients.own) == pytest.approx(numbers(fedper.clients.own), abs=1e-12)
    assert numbers(last.server.theta) == pytest.approx(numbers(fedper.server.theta), abs=1e-12)


def test_with_a_narrow_prior_all_have_the_head_mu() -> None:
    batch, start = products(), (1.0, 0.5)
    method = FedPop(Product(), descent(2, 0.1), Langevin(1e-14), own=HEADS, prior="fixed")
    state = Server(torch.tensor(start, dtype=torch.float64), torch.full((1,), 1e-14, dtype=torch.float64))
    last = next(worlds.rounds(method, batch, server=state))
    fixed = worlds.after(
        1, Split(Product(), descent(2, 0.1), own=HEADS, schedule="shared", weighting="uniform"), batch, *start
    )
    assert numbers(last.server.theta) == pytest.approx(numbers(fixed.server.theta), abs=1e-5)
    assert numbers(last.clients.own) == pytest.approx([0.5] * 3, abs=1e-5)


def test_draws_stay_at_home() -> None:
    update, after = played(gaussian(2), torch.zeros(3, 1, dtype=torch.float64))
    assert set(messages.flatten(update)) == {"sent.phi", "sent.z.mean", "sent.z.variance", "weight", "clients", "loss"}
    assert after.rounds.tolist() == [1, 1, 1]
    with pytest.raises(PrivacyError, match="weighting = 'rows'"):
        gaussian(1, weighting="rows").check_private()
