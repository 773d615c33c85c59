"""Bounds on averages over clients: exact counterexamples to the printed ones, laws, and coverage of the others."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from pacbayes_fl.bounds.certificate import Certificate, MonteCarlo, Premises, Provenance
from pacbayes_fl.bounds.client import max_information, monte_carlo_risk
from pacbayes_fl.bounds.divergence import discrete_kl, gibbs_weights
from pacbayes_fl.bounds.losses import LossRange
from pacbayes_fl.bounds.server import (
    SERVER_BOUNDS,
    Weights,
    confidence_factor,
    gibbs_epsilon,
    later_change,
    later_log_ratio,
    lemma_4_3,
    lemma_4_6,
    new_clients,
    not_vacuous,
    server_bound,
    theorem_4_2,
    theorem_delta,
)
from pacbayes_fl.errors import AssumptionError, ShapeError
from pacbayes_fl.posteriors.particles import gibbs_tau

FINE = Premises(Provenance("data-free"), independent=True, posterior="exact Gibbs", drawn_clients=True)
SURE = 1 - 1e-12  # ln(1 / delta) = 0
DELTA = 0.05


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def ranged(low: float, high: float) -> Premises:
    return dataclasses.replace(FINE, loss=LossRange("loss", low, high))


# published numbers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lam", "n2", "epsilon", "factor"),
    [
        (10.0, 0, 1.9305019305, 2.8777778e-4),
        (1.0, 0, 1.4705882353, 3.7777778e-4),
        (100.0, 24, 0.0023121291056, 0.2402787778),
        (1.0001e-4, 0, None, 1.0001778),
    ],
)
def test_privacy_and_confidence_have_their_published_values(
    lam: float, n2: int, epsilon: float | None, factor: float
) -> None:
    tau = gibbs_tau(lam, 150.0, 24, n2)
    assert confidence_factor(150.0, 24, lam, n2, 1e-4).item() == pytest.approx(factor, rel=1e-7)
    assert 1 / (24 * 150.0 * tau) == pytest.approx(factor, rel=1e-7)
    if epsilon is not None:
        assert gibbs_epsilon(150.0, tau, 150).item() == pytest.approx(epsilon, rel=1e-9)
        assert gibbs_epsilon(150.0, tau, 150, low=-1, high=2).item() == pytest.approx(3 * epsilon, rel=1e-9)
        assert gibbs_epsilon(150.0, tau, 1).item() == pytest.approx(150 * epsilon, rel=1e-9)  # the client as a whole


def test_later_rows_move_a_posterior_by_their_published_values() -> None:
    assert theorem_delta(1.0, 150, 10, 24).item() == pytest.approx(0.010443814603426286, rel=1e-13)
    assert theorem_delta(150.0, 150, 10, 24).item() == pytest.approx(1 / 24, rel=1e-15)
    assert theorem_delta(1e9, 1, 1, 24).item() == pytest.approx(1 / 24, rel=1e-15)  # e^x is beyond float64
    assert later_change(10.0, 50, 10).item() == pytest.approx(0.9311096087, rel=1e-9)
    assert later_log_ratio(10.0, 50, 10, low=-1, high=1).item() == pytest.approx(2 * 10 * 10 * 2 / 60, rel=1e-14)
    assert later_change(10.0, 50, 0).item() == theorem_delta(10.0, 50, 0, 24).item() == 0.0


def test_no_change_of_a_posterior_exceeds_what_later_rows_can_do() -> None:
    generator = torch.Generator().manual_seed(0)
    for beta, m, later in ((3.0, 5, 1), (1.0, 2, 2), (8.0, 9, 1)):
        draws = (torch.rand(400, 6, k, generator=generator, dtype=torch.float64) > 0.5 for k in (m, later))
        mine, new = (draw.double() for draw in draws)
        truth = torch.rand(400, 6, generator=generator, dtype=torch.float64).round()
        before, _ = gibbs_weights(mine.mean(-1), beta)
        after, _ = gibbs_weights(torch.cat((mine, new), -1).mean(-1), beta)
        change = ((after - before) * truth).sum(-1).abs()
        assert change.max().item() <= later_change(beta, m, later).item()
        ratio = (after / before).log().abs().max().item()
        assert 0.2 * later_log_ratio(beta, m, later).item() < ratio <= later_log_ratio(beta, m, later).item()


def test_a_draw_from_the_optimal_hyper_posterior_is_as_private_as_lemma_4_5_says() -> None:
    """All data sets of 3 rows, of 4 kinds each, for one client, two priors and two hypotheses; one row changes."""
    priors, beta, tau, m = torch.stack((numbers(0.7, 0.3), numbers(0.2, 0.8))), 3.0, 0.6, 3
    kinds = torch.tensor(list(itertools.product((0.0, 1.0), repeat=2))).double()
    data = torch.tensor(list(itertools.product(range(4), repeat=m)))
    _, log_z = gibbs_weights(kinds[data].mean(1).unsqueeze(1), beta, priors.expand(len(data), 2, 2))
    hyper = torch.log_softmax(tau * log_z, -1)
    apart = (data.unsqueeze(0) != data.unsqueeze(1)).sum(-1)
    worst = (hyper.unsqueeze(0) - hyper.unsqueeze(1)).abs().amax(-1)[apart == 1].max().item()
    assert worst == pytest.approx(0.2971268304, rel=1e-9)
    assert worst <= gibbs_epsilon(beta, tau, m).item() == pytest.approx(1.2)


@pytest.mark.quick
def test_weights_by_beta_have_their_published_values() -> None:
    m, energy = numbers(20, 30, 50), numbers(0.1, 0.2, 0.4)
    got = server_bound(energy, m, m, 2.0, DELTA, FINE, weights="beta")
    parts = got.parts()
    assert got.valid and "averaged over clients by their beta" in got.risk
    assert (parts["divergence"] + parts["confidence"]).item() == pytest.approx(0.049957322735539905, rel=1e-14)
    assert parts["Hoeffding"].item() == pytest.approx(0.125, rel=1e-15)
    assert parts["free energy"].item() == pytest.approx(0.2 * 0.1 + 0.3 * 0.2 + 0.5 * 0.4, rel=1e-15)
    mixed = server_bound(energy, numbers(4, 5, 1), m, 2.0, DELTA, FINE, weights="beta").parts()["Hoeffding"]
    assert mixed.item() == pytest.approx((16 / 20 + 25 / 30 + 1 / 50) / (8 * 10), rel=1e-14)


def test_the_repaired_confidence_is_sixty_times_smaller_than_the_printed_one() -> None:
    energy = torch.full((24,), 0.3, dtype=torch.float64)
    printed = theorem_4_2(energy, 12.0, 150, 3.0, DELTA, FINE, lam=10.0)
    repaired = server_bound(energy, 12.0, 150, 3.0, DELTA, FINE)
    assert printed.valid and repaired.valid
    assert printed.parts()["confidence"].item() == pytest.approx(0.6115, abs=5e-5)
    assert repaired.parts()["confidence"].item() == pytest.approx(0.0104, abs=5e-5)
    assert repaired.parts()["divergence"].item() == pytest.approx(3 / (24 * 12), rel=1e-14)
    assert printed.parts()["Hoeffding"].item() == repaired.parts()["Hoeffding"].item() == 12 / (8 * 150)


def test_what_leaves_no_room_for_a_risk_is_named() -> None:
    got = not_vacuous(150.0, 150, 0.5, DELTA)
    assert got.constant.item() == pytest.approx(0.770, abs=5e-4)
    nats = max_information(1.0, 150, DELTA).item() + math.log(20)
    assert got.constant.item() == pytest.approx(1 / 8 + nats / 150, rel=1e-14)
    taus = numbers(0.66, 0.662, 0.7, 0.71)
    several = not_vacuous(1e6, 10**6, taus, DELTA)
    assert several.jointly.tolist() == several.enough.tolist() == [True, False, False, False]  # (7 / 16)^(1/2) = .6614
    assert several.privacy.tolist() == [True, True, True, False]  # eps = 2 tau < sqrt 2
    for high, fits in ((7.9, True), (8.1, False)):
        assert not_vacuous(1e4, 10**4, 0.0, DELTA, high=high).range.item() is fits
    small = not_vacuous(math.sqrt(10**4), 10**4, 0.1, DELTA, high=20.0)
    assert small.range and small.enough  # 8 is a limit for beta = m alone
    assert not_vacuous(1.0, 10**6, 0.1, DELTA).enough.item() is False  # ln(1 / delta) / beta: more rows do not help


# where the printed theorem fails, exactly: one hypothesis with a loss of 0 or R, half of the time each ----------------


def outcomes(n: int, high: float) -> Tensor:
    """Free energies [n + 1, n] of n clients with one row each, of which 0 ... n have lost R."""
    lost = torch.arange(n + 1, dtype=torch.float64)
    return (high * lost / n).unsqueeze(-1).expand(n + 1, n)


def failing(certificate: Certificate, rows: int, high: float = 1.0) -> float:
    """Probability with which the truth, R / 2, is above a bound that is given for every number of losses."""
    value = certificate.value.numpy()
    return float(stats.binom.pmf(range(rows + 1), rows, 0.5)[value < high / 2].sum())


@pytest.mark.parametrize(
    ("n", "high", "delta", "probability"),
    [
        (100, 7.0, 0.05, 0.13563),
        (100, 7.0, 0.2, 0.24206),
        (100, 5.0, 0.1, 0.13563),
        (400, 7.0, 0.05, 0.17106),
    ],
)
def test_the_printed_theorem_fails_too_often_and_is_refused_there(
    n: int, high: float, delta: float, probability: float
) -> None:
    energy, premises = outcomes(n, high), ranged(0, high)
    printed = theorem_4_2(energy, 1 / n, 1, 0.0, delta, premises, lam=100.0)
    assert failing(printed, n, high) == pytest.approx(probability, abs=5e-6)
    assert probability > delta
    assert not printed.valid and "too small here: C > 1 / sqrt n" in str(printed)
    repaired = server_bound(energy, 1 / n, 1, 0.0, delta, premises)
    assert repaired.valid and failing(repaired, n, high) < 1e-3 * delta


def test_the_counterexample_has_its_published_digits() -> None:
    energy, premises = outcomes(100, 7.0), ranged(0, 7)
    printed = theorem_4_2(energy, 0.01, 1, 0.0, DELTA, premises, lam=100.0)
    assert (printed.value - energy.mean(-1)).max().item() == pytest.approx(0.36082322735539907, rel=1e-13)
    assert failing(printed, 100, 7.0) == pytest.approx(0.1356265120369177, rel=1e-12)
    repaired = server_bound(energy, 0.01, 1, 0.0, DELTA, premises)
    assert (repaired.value - energy.mean(-1)).max().item() == pytest.approx(3.0569822735539907, rel=1e-13)
    assert failing(repaired, 100, 7.0) < 1e-20
    edge = theorem_4_2(energy, 0.1, 1, 0.0, DELTA, premises, lam=100.0, v=1e-12)  # C = 1 / sqrt n
    assert edge.valid and not theorem_4_2(energy, 0.0999, 1, 0.0, DELTA, premises, lam=100.0, v=1e-12).valid
    assert (edge.value - energy.mean(-1)).max().item() == pytest.approx(0.9120732273553991, rel=1e-13)
    assert failing(edge, 100, 7.0) == pytest.approx(0.00332, abs=5e-6)
    same = server_bound(energy, 0.1, 1, 0.0, DELTA, premises)
    torch.testing.assert_close(same.value, edge.value, rtol=1e-13, atol=0)


@pytest.mark.parametrize(
    ("high", "delta", "probability"), [(7.0, 0.05, 0.1767), (7.0, 0.01, 0.0823), (20.0, 0.01, 0.269)]
)
def test_the_printed_theorem_fails_as_often_as_was_simulated(high: float, delta: float, probability: float) -> None:
    printed = theorem_4_2(outcomes(1000, high), 1e-3, 1, 0.0, delta, ranged(0, high), lam=1e4)
    assert failing(printed, 1000, high) == pytest.approx(probability, abs=0.012)


def test_the_printed_lemma_on_new_clients_fails_too_and_its_repair_does_not() -> None:
    """400 clients with one row and difficulties from Beta(.1, .1): their losses are independent, and half are R."""
    energy, premises = outcomes(400, 7.0), ranged(0, 7)
    log_z = -energy.mean(-1) / confidence_factor(1 / 400, 400, 1.0001e-4)  # of one prior
    printed = lemma_4_6(log_z, 1 / 400, torch.ones(400), DELTA, premises, lam=1.0001e-4)
    assert not printed.valid and "too small here" in str(printed)
    assert failing(printed, 400, 7.0) == pytest.approx(0.1425, abs=0.012)
    repaired = new_clients(energy, 1 / 400, 1, 0.0, DELTA, premises)
    assert repaired.valid and failing(repaired, 400, 7.0) == pytest.approx(0.0053, abs=5e-4)


def test_step_2_of_the_proof_is_false_and_refused() -> None:
    world = TwoOutcomes(
        numbers(0.42, 0.58), torch.tensor([[1.0, 1.0], [1.0, 0.0], [0.0, 1.0]]).double(), numbers(0.988, 0.011, 0.001)
    )
    now, then = (world.tables(8.0, 1, later).risk @ world.counts(1) for later in (0, 1))
    assert now.item() == pytest.approx(0.5406464149188706, rel=1e-13)
    assert then.item() == pytest.approx(0.6447419147980267, rel=1e-13)
    n = 10**4
    energy = torch.full((n,), 0.5, dtype=torch.float64)
    printed = theorem_4_2(energy, 8.0, 1, 0.0, DELTA, FINE, lam=math.sqrt(n) * (n + 1e-4), later=1)
    allowed = (printed.parts()["later rows"] + printed.parts()["confidence"]).item()
    assert allowed == pytest.approx(0.0312, abs=5e-5) and then.item() - now.item() > allowed
    assert not printed.valid and "step 2 of the proof" in str(printed)
    assert server_bound(energy, 8.0, 1, 0.0, DELTA, FINE, later=1).valid


# the lemma behind the repair, by enumeration -------------------------------------------------------------------------


class Tables(NamedTuple):
    """By number of rows of the second kind, 0 ... m: free energy and risk averaged over later rows, [m + 1] each."""

    energy: Tensor
    risk: Tensor


class TwoOutcomes(NamedTuple):
    """Rows of two kinds with known probabilities [2]; losses [H, 2] in [0, 1] and a prior [H] of the hypotheses."""

    chances: Tensor
    losses: Tensor
    prior: Tensor

    def counts(self, m: int) -> Tensor:
        return torch.from_numpy(stats.binom.pmf(range(m + 1), m, self.chances[1].item()))

    def tables(self, beta: float, m: int, later: int) -> Tables:
        truth = self.losses @ self.chances
        energy, risk = torch.zeros(m + 1).double(), torch.zeros(m + 1).double()
        for c in range(m + 1):
            _, log_z = gibbs_weights(self.losses @ numbers(m - c, c) / m, beta, self.prior)
            energy[c] = -log_z / beta
            for more, chance in enumerate(self.counts(later)):
                split = numbers(m + later - c - more, c + more) / (m + later)
                weights, _ = gibbs_weights(self.losses @ split, beta, self.prior)
                risk[c] += chance * (weights @ truth)
        return Tables(energy, risk)


@pytest.mark.parametrize(("m", "later"), [(1, 0), (1, 1), (2, 1), (1, 3), (3, 5)])
def test_no_world_breaks_the_inequality_behind_the_server_level_bound(m: int, later: int) -> None:
    generator, tightest = torch.Generator().manual_seed(m + 10 * later), math.inf
    for _ in range(40):
        u = torch.rand(12, generator=generator, dtype=torch.float64)
        chances = torch.stack((u[0], 1 - u[0]))
        world = TwoOutcomes(chances, u[1:9].reshape(4, 2).round(), torch.softmax(4 * u[8:], 0))
        beta = 0.2 * 60 ** float(u[9])
        tables = world.tables(beta, m, later)
        spent = (world.counts(m) * (beta * (tables.risk - tables.energy)).exp()).sum().log().item()
        allowed = beta * server_bound(tables.energy[:1], beta, m, 0.0, DELTA, FINE, later=later).parts()["Hoeffding"]
        assert spent <= allowed.item() + 1e-12
        tightest = min(tightest, allowed.item() - spent)
    assert tightest < 0.05  # it is no idle inequality


def test_rows_to_come_cost_their_sampling_without_replacement() -> None:
    energy, m, later = numbers(0.2, 0.2, 0.2), numbers(10, 20, 30), numbers(0, 5, 30)
    got = server_bound(energy, 6.0, m, 0.0, DELTA, FINE, later=later)
    kappa = 1 / 10 + (1 / 20 + 1 / (20 * 25)) + (1 / 30 + 1 / (30 * 60))
    assert got.parts()["Hoeffding"].item() == pytest.approx(6 / 8 * kappa / 3, rel=1e-14)
    assert got.valid and "averaged over later rows" in got.theorem
    worst = server_bound(energy, 6.0, m, 0.0, DELTA, FINE, later=None)
    for rows in (1, 2, 100):
        known = server_bound(energy, 6.0, m, 0.0, DELTA, FINE, later=rows).value.item()
        assert known <= worst.value.item() and (known == worst.value.item()) is (rows == 1)
    assert "later" not in server_bound(energy, 6.0, m, 0.0, DELTA, FINE).theorem


# coverage: exact for one hypothesis; else 2000 worlds, where more than 149 failures have probability 1e-6 at most -----

ROWS, WORLDS, RED = 200, 2000, 149
BEST = math.sqrt(8 * ROWS * math.log(1 / DELTA))


def pooled_server(nats: float, n: int = 10, m: float = ROWS / 10, delta: float = DELTA) -> Certificate:
    """Ten clients with 20 rows each and lambda = n beta = nats, for 0 ... 200 rows lost."""
    energy = outcomes(ROWS, 1.0)[:, :n]
    return server_bound(energy, nats / n, m, 0.0, delta, FINE)


def test_the_server_level_bound_covers_and_needs_each_of_its_terms() -> None:
    for nats in (BEST, ROWS, 1.0, 20.0 * ROWS):
        assert pooled_server(nats).valid and failing(pooled_server(nats), ROWS) <= 0.0075
    assert failing(pooled_server(BEST), ROWS) == pytest.approx(0.0058, abs=0.0015)  # and it is not slack by much
    assert failing(pooled_server(BEST, delta=SURE), ROWS) == pytest.approx(0.113, abs=0.003)
    assert failing(pooled_server(1.0, delta=SURE), ROWS) == pytest.approx(0.473, abs=0.003)
    assert failing(pooled_server(ROWS, m=1e12), ROWS) == pytest.approx(0.363, abs=0.012)


def test_the_new_client_bound_covers_and_needs_each_of_its_terms() -> None:
    """200 clients that are either always or never wrong, so that only the step to new clients counts."""
    energy = outcomes(ROWS, 1.0)

    def bound(lam: float, delta: float = DELTA) -> Certificate:
        return new_clients(energy, 1.0, 10**6, 0.0, delta, FINE, lam=lam)

    for lam in (BEST, ROWS, 1.0):
        assert bound(lam).valid and failing(bound(lam), ROWS) <= 0.0075
    default = new_clients(energy, 1.0, 10**6, 0.0, DELTA, FINE)
    torch.testing.assert_close(default.value, bound(BEST).value, rtol=1e-13, atol=0)
    assert failing(bound(BEST, delta=SURE), ROWS) == pytest.approx(0.113, abs=0.003)
    unspent = bound(ROWS)
    bare = dataclasses.replace(unspent, value=unspent.value - unspent.parts()["Hoeffding of clients"])
    assert failing(bare, ROWS) > 0.3


def test_the_new_client_bound_needs_its_term_for_rows() -> None:
    """A continuum of hypotheses that toss coins: Z = E e^(-beta L^) exactly, and every posterior has risk 1/2."""
    m, beta, n = 5, 10.0, 100
    log_z = m * math.log(0.5 * (1 + math.exp(-beta / m)))
    energy = torch.full((n,), -log_z / beta, dtype=torch.float64)
    got = new_clients(energy, beta, m, 0.0, DELTA, FINE)
    assert got.value.item() >= 0.5 > (got.value - got.parts()["Hoeffding of rows"]).item()
    seen = server_bound(energy, beta, m, 0.0, DELTA, FINE)
    assert seen.value.item() >= 0.5 > (seen.value - seen.parts()["Hoeffding"]).item()


def test_both_bounds_need_the_divergence_of_the_hyper_posterior() -> None:
    """500 priors, each a point mass on a hypothesis that tosses coins; the hyper-posterior believes the luckiest."""
    nats, n = 8 * math.sqrt(ROWS), 10
    generator = torch.Generator().manual_seed(0)
    lost = (
        torch.binomial(torch.full((WORLDS, 500), float(ROWS)), torch.tensor(0.5), generator=generator).double() / ROWS
    )
    weights, _ = gibbs_weights(lost, nats)
    energy = (weights * lost).sum(1, keepdim=True).expand(-1, n)
    kl = discrete_kl(weights)
    wide = energy[:, :1].expand(-1, ROWS)  # 200 clients that are always or never wrong
    bounds: tuple[Callable[[Tensor], Certificate], ...] = (
        lambda divergence: server_bound(energy, nats / n, ROWS / n, divergence, DELTA, FINE),
        lambda divergence: new_clients(wide, 1.0, 10**6, divergence, DELTA, FINE, lam=nats),
    )
    for bound in bounds:
        assert bound(kl).valid and int((bound(kl).value < 0.5).sum()) <= RED
        assert int((bound(0 * kl).value < 0.5).sum()) > RED


@pytest.fixture(scope="module")
def federation() -> tuple[list[TwoOutcomes], Tensor]:
    """Four priors on eight hypotheses, two kinds of clients; losses are 0 or 1 by the kind of row."""
    generator = torch.Generator().manual_seed(3)
    losses = torch.rand(8, 2, generator=generator, dtype=torch.float64).round()
    losses[0], losses[1] = numbers(0, 1), numbers(1, 0)
    priors = torch.softmax(2 * torch.randn(4, 8, generator=generator, dtype=torch.float64), -1)
    return [TwoOutcomes(numbers(p, 1 - p), losses, priors[0]) for p in (0.3, 0.6)], priors


@pytest.mark.parametrize(("later", "weights"), [(0, "equal"), (0, "beta"), (2, "equal"), (2, "beta")])
def test_the_server_level_bound_covers_clients_that_differ(
    federation: tuple[list[TwoOutcomes], Tensor], later: int, weights: Weights
) -> None:
    worlds, priors = federation
    n, generator = 20, torch.Generator().manual_seed(7)
    energies, risks, betas, sizes = [], [], [], []
    for i in range(n):
        world, beta, m = worlds[i % 2], (2.0, 6.0)[i // 10], (3, 6)[i // 10]
        tables = [world._replace(prior=prior).tables(beta, m, later) for prior in priors]
        drawn = torch.multinomial(world.counts(m), WORLDS, replacement=True, generator=generator)
        energies.append(torch.stack([table.energy[drawn] for table in tables], -1))
        risks.append(torch.stack([table.risk[drawn] for table in tables], -1))
        betas.append(beta)
        sizes.append(m)
    tempers, rows = numbers(*betas), numbers(*sizes)
    share = tempers / tempers.sum() if weights == "beta" else torch.full((n,), 1 / n, dtype=torch.float64)
    lam = (tempers / share).min()
    energy, risk = torch.stack(energies, 1), torch.stack(risks, 1)  # [2000, 20, 4]
    hyper, _ = gibbs_weights((share.unsqueeze(-1) * energy).sum(1), lam)
    of_clients = (hyper.unsqueeze(1) * energy).sum(-1)
    truth = (hyper * (share.unsqueeze(-1) * risk).sum(1)).sum(-1)
    got = server_bound(of_clients, tempers, rows, discrete_kl(hyper), DELTA, FINE, later=later, weights=weights)
    assert got.valid and got.value.shape == (WORLDS,)
    assert int((got.value < truth).sum()) <= RED
    assert got.value.mean().item() < truth.mean().item() + 0.35
    if weights == "equal" and later == 0:
        one = theorem_4_2(of_clients, 6.0, rows, discrete_kl(hyper), DELTA, FINE, lam=10.0)
        same = server_bound(of_clients, 6.0, rows, discrete_kl(hyper), DELTA, FINE)
        assert one.valid and bool((same.value < one.value).all())  # the printed one is the looser of two valid ones


def test_other_posteriors_are_covered_by_their_own_free_energy() -> None:
    """Each client takes the luckiest of 50 hypotheses that toss coins: L^ + KL / beta, with KL = ln 50."""
    n, m, beta = 4, 50, 40.0
    counts = torch.full((WORLDS, n, 50), float(m))
    generator = torch.Generator().manual_seed(1)
    risk = torch.binomial(counts, torch.tensor(0.5), generator=generator).double() / m
    other = dataclasses.replace(FINE, posterior="any")
    best = risk.amin(-1)
    honest = server_bound(best + math.log(50) / beta, beta, m, 0.0, DELTA, other)
    assert honest.valid and int((honest.value < 0.5).sum()) <= RED
    assert int((server_bound(best, beta, m, 0.0, DELTA, other).value < 0.5).sum()) > RED
    weights, log_z = gibbs_weights(risk, beta)
    at_gibbs = (weights * risk).sum(-1) + discrete_kl(weights) / beta
    torch.testing.assert_close(at_gibbs, -log_z / beta, rtol=1e-12, atol=0)
    uniform = risk.mean(-1)  # Q = P
    assert bool((uniform >= -log_z / beta).all())


def test_an_unbiased_estimate_of_z_costs_nothing() -> None:
    """One client, one prior on two hypotheses: all rows, and all draws of the two hypotheses that estimate Z."""
    beta, m, prior = 3.0, 2, numbers(0.4, 0.6)
    world = TwoOutcomes(numbers(0.3, 0.7), torch.tensor([[1.0, 0.0], [0.0, 1.0]]).double(), prior)
    tables, spent, exact = world.tables(beta, m, 0), 0.0, 0.0
    for c, chance in enumerate(world.counts(m).tolist()):
        likelihood = (-beta * (world.losses @ numbers(m - c, c) / m)).exp()
        pairs = itertools.product(range(2), repeat=2)
        mean = sum((prior[h] * prior[g] * 0.5 * (likelihood[h] + likelihood[g])).item() for h, g in pairs)
        spent += chance * math.exp(beta * tables.risk[c].item()) * mean
        exact += chance * math.exp(beta * (tables.risk[c] - tables.energy[c]).item())
    assert spent == pytest.approx(exact, rel=1e-13)


# laws ------------------------------------------------------------------------------------------------------------

energies = st.lists(st.floats(0, 0.9), min_size=1, max_size=6)
few = settings(max_examples=25)


def call(name: str, energy: Tensor, beta: float, m: float, kl: float, delta: float, premises: Premises) -> Certificate:
    """Call any bound with the same numbers, at a lambda that the theorem allows and that has the loss's unit."""
    width, n = premises.loss.high - premises.loss.low, len(energy)
    if name == "lemma-4.6":
        factor = confidence_factor(beta, n, 50.0 / width)
        return lemma_4_6(-energy.mean() / factor, beta, torch.full((n,), m), delta, premises, lam=50.0 / width)
    if name in ("theorem-4.2", "lemma-4.3"):
        return SERVER_BOUNDS[name](energy, beta, m, kl, delta, premises, lam=50.0 / width)
    return SERVER_BOUNDS[name](energy, beta, m, kl, delta, premises)


@few
@given(
    risks=energies, beta=st.floats(0.1, 50), kl=st.floats(0, 20), c=st.floats(0.02, 50), a=st.floats(-3, 3),
    name=st.sampled_from(["server", "new-clients"]),
)  # fmt: skip
def test_the_unit_of_the_loss_does_not_matter(
    name: str, risks: list[float], beta: float, kl: float, c: float, a: float
) -> None:
    energy = numbers(*risks)
    unit = call(name, energy, beta, 20, kl, DELTA, ranged(0, 1)).value.item()
    scaled = call(name, c * energy, beta / c, 20, kl, DELTA, ranged(0, c)).value.item()
    assert scaled == pytest.approx(c * unit, rel=1e-11)
    moved = call(name, a + energy, beta, 20, kl, DELTA, ranged(a, a + 1)).value.item()
    assert moved - a == pytest.approx(unit, rel=1e-9, abs=1e-9)


def test_the_printed_confidence_has_no_unit() -> None:
    energy = numbers(0.2, 0.3)
    unit = theorem_4_2(energy, 5.0, 20, 1.0, DELTA, ranged(0, 1), lam=10.0, v=1e-4)
    scaled = theorem_4_2(10 * energy, 0.5, 20, 1.0, DELTA, ranged(0, 10), lam=1.0, v=1e-4)
    assert scaled.value.item() != pytest.approx(10 * unit.value.item(), rel=0.1)
    rest = [(each.value - each.parts()["confidence"]).item() for each in (unit, scaled)]
    assert rest[1] == pytest.approx(10 * rest[0], rel=1e-12)


@few
@given(
    risks=energies, beta=st.floats(0.1, 50), m=st.integers(2, 1000), kl=st.floats(0, 20), delta=st.floats(1e-6, 0.5),
    more=st.floats(0, 0.1), name=st.sampled_from(list(SERVER_BOUNDS)),
)  # fmt: skip
def test_less_risk_less_divergence_more_rows_and_more_delta_never_raise_a_bound(
    name: str, risks: list[float], beta: float, m: int, kl: float, delta: float, more: float
) -> None:
    energy, premises = numbers(*risks), ranged(0, 1)
    base = call(name, energy, beta, m, kl, delta, premises).value.item() * (1 - 1e-12)
    assert call(name, energy + more, beta, m, kl, delta, premises).value.item() >= base
    assert call(name, energy, beta, m, kl * (1 + more), delta, premises).value.item() >= base
    if name != "new-clients" or kl == 0:  # whose lambda depends on delta, and is the best where kl = 0
        assert call(name, energy, beta, m, kl, delta * (1 - more), premises).value.item() >= base
    assert call(name, energy, beta, math.ceil(m * (1 - more)), kl, delta, premises).value.item() >= base


@pytest.mark.parametrize("name", list(SERVER_BOUNDS))
def test_a_certificate_is_rebuilt_from_its_terms_and_every_term_counts(name: str) -> None:
    got = call(name, numbers(0.1, 0.3, 0.2), 2.0, 5, 3.0, DELTA, ranged(0, 1))
    if name == "server":
        got = server_bound(numbers(0.1, 0.3, 0.2), 2.0, 5, 3.0, DELTA, ranged(0, 1), later=1)
    if name == "theorem-4.2":
        got = theorem_4_2(numbers(0.1, 0.3, 0.2), 2.0, 5, 3.0, DELTA, ranged(0, 1), lam=5.0, later=1)
    copied = {key: torch.tensor(value.tolist(), dtype=torch.float64) for key, value in got.terms.items()}
    again = dataclasses.replace(got, terms=copied)
    assert again.recompute().item() == pytest.approx(got.value.item(), rel=1e-14)
    assert sum(part.item() for part in got.parts().values()) == pytest.approx(got.value.item(), rel=1e-14)
    for key in got.terms.keys() - {"low", "v", "n2" if name == "lemma-4.6" else ""}:
        changed = dataclasses.replace(got, terms={**got.terms, key: 1.1 * got.terms[key]}).recompute().item()
        assert abs(changed - got.value.item()) > 1e-5, key


# what is no certificate, and what is no number ------------------------------------------------------------------------


def printed(**change: Any) -> Certificate:
    given: dict[str, Any] = {"beta": 12.0, "m": 150, "premises": FINE, "lam": 10.0, "later": 0.0, "v": 1e-4} | change
    premises, beta, m = given.pop("premises"), given.pop("beta"), given.pop("m")
    energy = torch.full((24,), max(0.3, premises.loss.low), dtype=torch.float64)
    return theorem_4_2(energy, beta, m, 3.0, DELTA, premises, **given)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"beta": 0.2}, "C > 1 / sqrt n"),
        ({"lam": 1.0001e-4}, "C > 1 / sqrt n"),
        ({"lam": 0.5, "v": 1.0}, "lambda > n2 + v"),
        ({"beta": 1 / 25}, "beta >= 1 / n"),
        ({"later": 1.0, "lam": 30.0}, "step 2 of the proof"),
        ({"later": 151.0, "lam": 30.0}, "no more later rows than there are rows"),
        ({"later": 1.0, "lam": 30.0, "premises": ranged(-1, 1)}, "never negative"),
        ({"premises": dataclasses.replace(FINE, posterior="any")}, "exact Gibbs posterior"),
        (
            {"premises": dataclasses.replace(FINE, prior=Provenance("client-level DP", 0.1))},
            "covers the rows of one client",
        ),
        ({"premises": dataclasses.replace(FINE, prior=Provenance("saw the rows"))}, "the prior saw the rows"),
        ({"premises": dataclasses.replace(FINE, independent=False)}, "not declared independent"),
    ],
)
def test_the_printed_theorem_says_why_it_does_not_hold(change: dict[str, Any], reason: str) -> None:
    assert printed().valid and printed(premises=ranged(-1, 1)).valid
    broken = printed(**change)
    assert not broken.valid and [reason in given for given in broken.reasons].count(True) == 1
    assert "at most" not in str(broken) and f"{broken.value.item():.3f}" not in str(broken)


def test_unknown_later_rows_count_as_some() -> None:
    energy, unknown = numbers(0.2, 0.3, 0.1), torch.tensor([True, False, False])
    got = lemma_4_3(energy, 5.0, 20, 1.0, DELTA, FINE, lam=9.0, later=numbers(0, 2, 0), unknown=unknown)
    shifts = (1 / 3) ** 2 + theorem_delta(5.0, 20, 2, 3).item() ** 2
    assert got.parts()["later rows"].item() == pytest.approx(9 * shifts / (8 * (2 + 1e-4)), rel=1e-13)
    assert got.parts()["divergence"].item() == pytest.approx(1 / 15 + (2 + 1e-4) / 9, rel=1e-13)
    assert not got.valid and "step 2" in str(got)
    blind = lemma_4_3(energy, 5.0, 20, 1.0, DELTA, FINE, lam=9.0)
    assert blind.value.item() >= got.value.item() and blind.terms["n2"].item() == 3
    known = theorem_4_2(energy, 5.0, 20, 1.0, DELTA, FINE, lam=9.0, later=numbers(0, 2, 0))
    assert known.value.item() <= got.value.item()
    assert "lambda > n2 + v" in str(lemma_4_3(energy, 5.0, 20, 1.0, DELTA, FINE, lam=3.0))
    sure = lemma_4_3(energy, 5.0, 20, 1.0, DELTA, FINE, lam=9.0, unknown=False)
    assert sure.value.item() == theorem_4_2(energy, 5.0, 20, 1.0, DELTA, FINE, lam=9.0).value.item()


def test_lemma_4_6_is_theorem_4_2_at_the_optimal_hyper_posterior_and_a_term_for_clients() -> None:
    """C ln Z_tau is the free energy and the divergence of the hyper-posterior of Corollary 4.4 (eq. 32)."""
    generator = torch.Generator().manual_seed(2)
    by_prior = torch.rand(30, 4, generator=generator, dtype=torch.float64)
    beta, m, lam = 8.0, torch.full((30,), 50.0), 10.0
    tau = gibbs_tau(lam, beta, 30, 0)
    hyper, log_z = gibbs_weights(by_prior.sum(0), tau * beta)
    at_optimum = theorem_4_2(by_prior @ hyper, beta, m, discrete_kl(hyper), DELTA, FINE, lam=lam)
    lemma = lemma_4_6(log_z, beta, m, DELTA, FINE, lam=lam)
    assert lemma.valid and at_optimum.valid and "of a new client" in lemma.risk
    assert lemma.value.item() - at_optimum.value.item() == pytest.approx(lam / 1e-4 / (8 * 30), rel=1e-9)
    for change, reason in (
        ({"drawn_clients": False}, "drawn_clients"),
        ({"posterior": "any"}, "exact Gibbs posterior"),
    ):
        broken = lemma_4_6(log_z, beta, m, DELTA, dataclasses.replace(FINE, **change), lam=lam)
        assert [reason in given for given in broken.reasons] == [True]
    for beta_low, lam_low, reason in ((0.02, 10.0, "C > 1 / sqrt n"), (8.0, 1e-4, "lambda > n2 + v")):
        assert reason in str(lemma_4_6(0.0, beta_low, m, DELTA, FINE, lam=lam_low))


def test_the_repaired_bounds_say_why_they_do_not_hold() -> None:
    energy = numbers(0.2, 0.3)
    any_posterior = dataclasses.replace(FINE, posterior="any")

    def reasons(certificate: Certificate) -> str:
        assert not certificate.valid and len(certificate.reasons) == 1
        return str(certificate)

    assert server_bound(energy, numbers(3, 5), 20, 1.0, DELTA, any_posterior, lam=6.0).valid
    above = server_bound(energy, numbers(3, 5), 20, 1.0, DELTA, FINE, lam=6.01)
    assert "lambda must be at most" in reasons(above)
    assert server_bound(energy, numbers(3, 5), 20, 1.0, DELTA, FINE, lam=7.99, weights="beta").valid
    assert "with later rows" in reasons(server_bound(energy, 3.0, 20, 1.0, DELTA, any_posterior, later=1))
    draws = MonteCarlo(100, 0.01)
    assert "leave the loss's range" in reasons(
        server_bound(energy, 3.0, 20, 1.0, DELTA, any_posterior, monte_carlo=draws)
    )
    safe = dataclasses.replace(FINE, posterior="no worse than the prior")
    assert server_bound(energy, 3.0, 20, 1.0, DELTA, safe, monte_carlo=draws).valid
    assert new_clients(energy, 3.0, 20, 1.0, DELTA, safe, monte_carlo=draws).valid
    assert "with later rows" in reasons(server_bound(energy, 3.0, 20, 1.0, DELTA, safe, later=1))
    with pytest.raises(AssumptionError, match="free_energy must be finite, at least 0 and at most 1"):
        server_bound(energy + 1, 3.0, 20, 1.0, DELTA, safe)
    for bound in (server_bound, new_clients):
        for private in (Provenance("row-level DP", 0.1), Provenance("client-level DP", 0.1, 1e-3)):
            premises = dataclasses.replace(FINE, prior=private)
            assert "covers the rows of one client" in reasons(bound(energy, 3.0, 20, 1.0, DELTA, premises))
        tried = dataclasses.replace(FINE, tried=None)
        assert "uncounted" in reasons(bound(energy, 3.0, 20, 1.0, DELTA, tried))
    fixed = dataclasses.replace(FINE, drawn_clients=False)
    assert server_bound(energy, 3.0, 20, 1.0, DELTA, fixed).valid
    assert "drawn_clients" in reasons(new_clients(energy, 3.0, 20, 1.0, DELTA, fixed))
    assert "leave the loss's range" in reasons(new_clients(energy, 3.0, 20, 1.0, DELTA, any_posterior))


def test_what_is_bounded_is_said_whatever_the_premises_said() -> None:
    energy, wrong = numbers(0.2, 0.3), dataclasses.replace(FINE, average="new client on average")
    seen = server_bound(energy, 3.0, 20, 1.0, DELTA, wrong)
    assert "0-1 loss of the Gibbs predictor, averaged over clients;" in str(seen)
    assert (
        "of a new client, averaged over such clients and their rows"
        in new_clients(energy, 3.0, 20, 1.0, DELTA, dataclasses.replace(FINE, average="client")).risk
    )
    vote = dataclasses.replace(FINE, predictor="majority vote")
    assert server_bound(energy, 3.0, 20, 1.0, DELTA, vote).value.item() == 2 * seen.value.item()


def test_the_fewest_rows_of_any_client_count_for_new_ones() -> None:
    energy = numbers(0.2, 0.3, 0.4)
    some = new_clients(energy, 3.0, numbers(50, 7, 20), 1.0, DELTA, FINE)
    assert some.value.item() == new_clients(energy, 3.0, 7, 1.0, DELTA, FINE).value.item()
    assert str(some).startswith("new clients with at least 7 rows (PAC-PFL Lemma 4.6, repaired): risk at most")
    assert "at least 1000000 rows" in new_clients(energy, 3.0, 10**6, 1.0, DELTA, FINE).theorem
    at = new_clients(energy, 3.0, 7, 1.0, DELTA, FINE, lam=5.0).parts()
    assert at["Hoeffding of clients"].item() == pytest.approx(5 / 24, rel=1e-14)
    assert at["Hoeffding of rows"].item() == pytest.approx(3 / 56, rel=1e-14)
    assert (at["divergence"] + at["confidence"]).item() == pytest.approx((1 + math.log(20)) / 5, rel=1e-14)


@pytest.mark.parametrize("name", ["server", "new-clients", "theorem-4.2"])
def test_draws_from_the_hyper_posterior_take_their_own_delta(name: str) -> None:
    energy, premises, more = numbers(0.4, 0.8), ranged(0, 2), {"lam": 6.0}
    got = SERVER_BOUNDS[name](energy, 3.0, 20, 1.0, DELTA, premises, monte_carlo=MonteCarlo(200, 0.02), **more)
    exact = SERVER_BOUNDS[name](energy, 3.0, 20, 1.0, DELTA - 0.02, premises, **more)
    upper = 2 * monte_carlo_risk(0.3, 200, 0.02).item()  # of the average free energy, 0.6 in [0, 2]
    assert got.parts()["free energy"].item() == pytest.approx(upper, rel=1e-12) and upper > 0.6
    assert got.value.item() - exact.value.item() == pytest.approx(upper - 0.6, rel=1e-11)
    assert dict(got.delta_split) == pytest.approx({"bound": 0.03, "Monte Carlo": 0.02})


def test_many_hyper_posteriors_are_bounded_at_once() -> None:
    energy = torch.rand(7, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    kl, beta, m = torch.arange(7.0), numbers(2, 3, 4), numbers(9, 8, 7)
    together = server_bound(energy, beta, m, kl, DELTA, FINE, weights="beta", later=2)
    for each in range(7):
        alone = server_bound(energy[each], beta, m, kl[each], DELTA, FINE, weights="beta", later=2)
        assert alone.value.shape == () and together.value[each].item() == pytest.approx(alone.value.item(), rel=1e-14)


def test_what_no_number_can_be_formed_of_is_refused() -> None:
    energy = numbers(0.2, 0.3)
    for name in ("server", "new-clients", "theorem-4.2", "lemma-4.3"):
        more = {"lam": 6.0} if name in ("theorem-4.2", "lemma-4.3") else {}
        bound = SERVER_BOUNDS[name]
        with pytest.raises(AssumptionError, match=r"the divergence of atoms.*SmoothedHyperPosterior"):
            bound(energy, 3.0, 20, math.inf, DELTA, FINE, **more)
        with pytest.raises(AssumptionError, match=r"free_energy must be finite, at least 0 and at most 1, got 1\.7"):
            bound(numbers(0.2, 1.7), 3.0, 20, 1.0, DELTA, FINE, **more)  # of an unbounded loss
        with pytest.raises(ShapeError, match=r"free_energy must be one number a client \[\*, K\], got \[\]"):
            bound(torch.tensor(0.2), 3.0, 20, 1.0, DELTA, FINE, **more)
        with pytest.raises(ShapeError, match=r"m must be one number \[\] or one a client \[2\], got \[3\]"):
            bound(energy, 3.0, torch.ones(3), 1.0, DELTA, FINE, **more)
        with pytest.raises(AssumptionError, match="delta must lie strictly between 0 and 1"):
            bound(energy, 3.0, 20, 1.0, 1.0, FINE, **more)
        with pytest.raises(AssumptionError, match="lam must be finite, above 0, got 0"):
            bound(energy, 3.0, 20, 1.0, DELTA, FINE, lam=0.0)
        if name != "server":
            with pytest.raises(
                AssumptionError,
                match=r"beta must be the same for all clients, got 3 to 4 \(one number for all clients\)",
            ):
                bound(energy, numbers(3, 4), 20, 1.0, DELTA, FINE, **more)
    other = dataclasses.replace(FINE, posterior="any")
    assert server_bound(numbers(0.2, 1.7), 3.0, 20, 1.0, DELTA, other).valid  # L^ + KL / beta may exceed b
    with pytest.raises(AssumptionError, match="weights must be one of equal, beta, got 'rows'"):
        server_bound(energy, 3.0, 20, 1.0, DELTA, FINE, weights="rows")  # type: ignore[arg-type]
    with pytest.raises(AssumptionError, match="-C log_z must be finite, at least 0 and at most 1, got 21"):
        lemma_4_6(-4.0e5, 8.0, torch.full((24,), 50.0), DELTA, FINE, lam=2.0)
    with pytest.raises(ShapeError, match=r"m must be one number a client \[K\]"):
        lemma_4_6(0.0, 8.0, torch.tensor(50.0), DELTA, FINE, lam=2.0)


def test_the_table_names_every_bound() -> None:
    assert list(SERVER_BOUNDS) == ["server", "new-clients", "theorem-4.2", "lemma-4.3", "lemma-4.6"]
    assert next(iter(SERVER_BOUNDS.values())) is server_bound
    with pytest.raises(AssumptionError, match="posterior must be one of any, exact Gibbs, no worse than the prior"):
        Premises(posterior="Gibbs")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        SERVER_BOUNDS["server"] = new_clients  # type: ignore[index]


def test_new_clients_may_have_any_posterior_that_gives_way_to_its_prior() -> None:
    """200 clients with four rows and a difficulty of their own; each is too sure of its rows, or keeps the prior."""
    n, m, beta, generator = 200, 4, 3.0, torch.Generator().manual_seed(6)
    difficulty = torch.rand(WORLDS // 4, n, 1, generator=generator, dtype=torch.float64).expand(-1, -1, 6)
    risk = torch.binomial(torch.full_like(difficulty, m), difficulty, generator=generator) / m
    weights, _ = gibbs_weights(risk, 2 * beta)
    energy, before = (weights * risk).sum(-1) + discrete_kl(weights) / beta, risk.mean(-1)
    safe = dataclasses.replace(FINE, posterior="no worse than the prior")
    got = new_clients(torch.minimum(energy, before), beta, m, 0.0, DELTA, safe)
    assert got.valid and int((got.value < 0.5).sum()) <= stats.binom.isf(1e-6, WORLDS // 4, DELTA)
    bare = (got.parts()["free energy"] < 0.5).double().mean().item()
    assert bare > 0.3  # the free energy alone is no bound
