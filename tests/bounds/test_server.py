"""Bounds on averages over clients: exact counterexamples to the printed ones, laws, and coverage of the others."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from pacbayes_fl.bounds.certificate import Certificate, MonteCarlo
from pacbayes_fl.bounds.costs import monte_carlo_risk
from pacbayes_fl.bounds.divergence import discrete_kl, gibbs_weights
from pacbayes_fl.bounds.premises import Premises, Provenance
from pacbayes_fl.bounds.printed import lemma_4_6, theorem_4_2
from pacbayes_fl.bounds.server import Weights, new_clients, server_bound
from pacbayes_fl.bounds.table import BOUNDS
from pacbayes_fl.errors import AssumptionError, ShapeError
from tests.bounds.worlds import DELTA, FINE, SERVER_BOUNDS, SURE, TwoOutcomes, call, failing, numbers, outcomes, ranged

# published numbers -----------------------------------------------------------------------------------------------


@pytest.mark.quick
def test_weights_by_beta_have_their_published_values() -> None:
    m, energy = numbers(20, 30, 50), numbers(0.1, 0.2, 0.4)
    got = server_bound(energy, m, m, 2.0, DELTA, FINE, weights="beta")
    parts = got.parts()
    assert got.valid and "averaged over clients by their beta" in got.risk
    assert (parts["divergence"] + parts["confidence"]).item() == pytest.approx(0.049957322735539905, rel=1e-14)
    total = sum(parts[name].item() for name in ("free energy", "divergence", "confidence"))
    assert got.value.item() == pytest.approx((1 - math.exp(-total)) / (1 - math.exp(-1)), rel=1e-14)
    assert 0.1 < parts["Catoni"].item() < 0.125
    assert parts["free energy"].item() == pytest.approx(0.2 * 0.1 + 0.3 * 0.2 + 0.5 * 0.4, rel=1e-15)
    later = server_bound(energy, numbers(4, 5, 1), m, 2.0, DELTA, FINE, weights="beta", later=numbers(0, 0, 1))
    spent = (16 / 20 + 25 / 30 + (1 / 50 + 1 / (50 * 51))) / (8 * 10)
    assert later.parts()["Hoeffding"].item() == pytest.approx(spent, rel=1e-14)
    mixed = server_bound(energy, numbers(4, 5, 1), m, 2.0, DELTA, FINE, weights="beta")
    total = mixed.value.item() - mixed.parts()["Catoni"].item()
    assert mixed.value.item() == pytest.approx(math.expm1(-0.2 * total) / math.expm1(-0.2), rel=1e-14)


def test_the_repaired_confidence_is_sixty_times_smaller_than_the_printed_one() -> None:
    energy = torch.full((24,), 0.3, dtype=torch.float64)
    printed = theorem_4_2(energy, 12.0, 150, 3.0, DELTA, FINE, lam=10.0)
    repaired = server_bound(energy, 12.0, 150, 3.0, DELTA, FINE)
    assert printed.valid and repaired.valid
    assert printed.parts()["confidence"].item() == pytest.approx(0.6115, abs=5e-5)
    assert repaired.parts()["confidence"].item() == pytest.approx(0.0104, abs=5e-5)
    assert repaired.parts()["divergence"].item() == pytest.approx(3 / (24 * 12), rel=1e-14)
    assert printed.parts()["Hoeffding"].item() == 12 / (8 * 150) > repaired.parts()["Catoni"].item() > 0


# where the printed theorem fails, exactly: one hypothesis with a loss of 0 or R, half of the time each ----------------


# the lemma behind the repair, by enumeration -------------------------------------------------------------------------


@pytest.mark.parametrize(("m", "later"), [(1, 0), (1, 1), (2, 1), (1, 3), (3, 5)])
def test_no_world_breaks_the_inequality_behind_the_server_level_bound(m: int, later: int) -> None:
    generator, tightest = torch.Generator().manual_seed(m + 10 * later), math.inf
    for _ in range(40):
        u = torch.rand(12, generator=generator, dtype=torch.float64)
        chances = torch.stack((u[0], 1 - u[0]))
        world = TwoOutcomes(chances, u[1:9].reshape(4, 2).round(), torch.softmax(4 * u[8:], 0))
        beta = 0.2 * 60 ** float(u[9])
        tables = world.tables(beta, m, later)
        risk, allowed = tables.risk, 0.0
        if later:
            parts = server_bound(tables.energy[:1], beta, m, 0.0, DELTA, FINE, later=later).parts()
            allowed = beta * parts["Hoeffding"].item()
        else:  # Catoni's function of the risk in place of the risk
            risk = -torch.log1p(risk * math.expm1(-beta / m)) * m / beta
        spent = (world.counts(m) * (beta * (risk - tables.energy)).exp()).sum().log().item()
        assert spent <= allowed + 1e-12
        tightest = min(tightest, allowed - spent)
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
    bare = dataclasses.replace(unspent, value=unspent.value - unspent.parts()["step to new clients"])
    assert failing(bare, ROWS) > 0.3


def test_the_new_client_bound_needs_its_term_for_rows() -> None:
    """A continuum of hypotheses that toss coins: Z = E e^(-beta L^) exactly, and every posterior has risk 1/2."""
    m, beta, n = 5, 10.0, 100
    log_z = m * math.log(0.5 * (1 + math.exp(-beta / m)))
    energy = torch.full((n,), -log_z / beta, dtype=torch.float64)
    got = new_clients(energy, beta, m, 0.0, DELTA, FINE)
    assert got.value.item() >= 0.5 > (got.value - got.parts()["Catoni"]).item()
    seen = server_bound(energy, beta, m, 0.0, DELTA, FINE)
    assert seen.value.item() >= 0.5 > (seen.value - seen.parts()["Catoni"]).item()


def test_both_bounds_need_the_divergence_of_the_hyper_posterior() -> None:
    """500 priors, each a point mass on a hypothesis that tosses coins; the hyper-posterior is on the best."""
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


@pytest.mark.law
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
    """Each client takes the best of 50 hypotheses that toss coins: L^ + KL / beta, with KL = ln 50."""
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


@few
@given(
    risks=energies, beta=st.floats(0.1, 50), m=st.integers(2, 1000), kl=st.floats(0, 20), delta=st.floats(1e-6, 0.5),
    more=st.floats(0, 0.1), name=st.sampled_from(SERVER_BOUNDS),
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


@pytest.mark.parametrize("name", SERVER_BOUNDS)
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
    at = new_clients(energy, 3.0, 7, 0.2, DELTA, FINE, lam=5.0)
    drawn = 0.3 + (0.2 + math.log(20)) / 5
    step = math.expm1(-5 / 3 * drawn) / math.expm1(-5 / 3)
    assert at.parts()["step to new clients"].item() == pytest.approx(step - 0.3, rel=1e-13)
    assert at.value.item() == pytest.approx(math.expm1(-3 / 7 * step) / math.expm1(-3 / 7), rel=1e-13)
    assert all(bound(energy, 3.0, 7, 90.0, DELTA, FINE).value.item() == 1.0 for bound in (new_clients, server_bound))


def test_catoni_s_function_is_never_looser_than_hoeffding_s_lemma() -> None:
    """The sums that both bounds were before, of 100 random federations; the largest loss says as much for nothing."""
    u = torch.rand(100, 12, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    for energy, (n, spread, rows, nats, delta) in zip(u[:, 5:], u[:, :5].tolist(), strict=True):
        energy = energy[: 1 + int(7 * n)] * spread
        beta, m, kl, delta = 30.0 * float(energy[0]) + 0.1, 1 + int(200 * rows), 6.0 * nats**2, 0.3 * delta + 1e-4
        step = kl - math.log(delta)
        best = math.sqrt(-8 * len(energy) * math.log(delta))
        for lam in (None, 0.5 * best, 2.0 * best):
            at = best if lam is None else lam
            old = energy.mean().item() + beta / (8 * m) + at / (8 * len(energy)) + step / at
            new = new_clients(energy, beta, m, kl, delta, FINE, lam=lam).value.item()
            assert new <= min(old, 1.0) * (1 + 1e-12)
        seen = energy.mean().item() + beta / (8 * m) + step / (len(energy) * beta)
        assert server_bound(energy, beta, m, kl, delta, FINE).value.item() <= seen * (1 + 1e-12)


@pytest.mark.parametrize("name", ["server", "new-clients", "theorem-4.2"])
def test_draws_from_the_hyper_posterior_take_their_own_delta(name: str) -> None:
    energy, premises, more = numbers(0.4, 0.8), ranged(0, 2), {"lam": 6.0}
    got = BOUNDS[name].function(energy, 3.0, 20, 1.0, DELTA, premises, monte_carlo=MonteCarlo(200, 0.02), **more)
    exact = BOUNDS[name].function(energy, 3.0, 20, 1.0, DELTA - 0.02, premises, **more)
    upper = 2 * monte_carlo_risk(0.3, 200, 0.02).item()  # of the average free energy, 0.6 in [0, 2]
    assert got.parts()["free energy"].item() == pytest.approx(upper, rel=1e-12) and upper > 0.6
    if name == "theorem-4.2":
        assert got.value.item() - exact.value.item() == pytest.approx(upper - 0.6, rel=1e-11)
    assert got.value.item() > exact.value.item()
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
        bound = BOUNDS[name].function
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


def test_a_posterior_of_another_name_is_refused() -> None:
    with pytest.raises(AssumptionError, match="posterior must be one of any, exact Gibbs, no worse than the prior"):
        Premises(posterior="Gibbs")  # type: ignore[arg-type]


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
