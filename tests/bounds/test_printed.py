"""PAC-PFL's printed bounds: exact counterexamples, and the reasons that their certificates give."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch

from pacbayes_fl.bounds.certificate import Certificate
from pacbayes_fl.bounds.divergence import discrete_kl, gibbs_weights
from pacbayes_fl.bounds.pac_pfl import confidence_factor, theorem_delta
from pacbayes_fl.bounds.premises import Provenance
from pacbayes_fl.bounds.printed import lemma_4_3, lemma_4_6, theorem_4_2
from pacbayes_fl.bounds.server import new_clients, server_bound
from pacbayes_fl.posteriors.hyper_posterior import gibbs_tau
from tests.bounds.worlds import DELTA, FINE, TwoOutcomes, failing, numbers, outcomes, ranged


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
    over = [7 * math.expm1(-0.01 * (e + math.log(20))) / math.expm1(-0.07) - e for e in energy.mean(-1).tolist()]
    assert (repaired.value - energy.mean(-1)).max().item() == pytest.approx(max(over), rel=1e-12)
    assert max(over) < 3.0569822735539907  # with Hoeffding's lemma in the place of Catoni's function
    assert failing(repaired, 100, 7.0) < 1e-20
    edge = theorem_4_2(energy, 0.1, 1, 0.0, DELTA, premises, lam=100.0, v=1e-12)  # C = 1 / sqrt n
    assert edge.valid and not theorem_4_2(energy, 0.0999, 1, 0.0, DELTA, premises, lam=100.0, v=1e-12).valid
    assert (edge.value - energy.mean(-1)).max().item() == pytest.approx(0.9120732273553991, rel=1e-13)
    assert failing(edge, 100, 7.0) == pytest.approx(0.00332, abs=5e-6)
    same = server_bound(energy, 0.1, 1, 0.0, DELTA, premises)
    assert bool((same.value <= edge.value + 1e-12).all())


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
    best = math.sqrt(8 * 400 * math.log(20)) / 7
    repaired = new_clients(energy, 1 / 400, 1, 0.0, DELTA, premises, lam=best)
    assert repaired.valid and failing(repaired, 400, 7.0) == pytest.approx(0.0053, abs=2e-3)


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


def test_the_printed_confidence_has_no_unit() -> None:
    energy = numbers(0.2, 0.3)
    unit = theorem_4_2(energy, 5.0, 20, 1.0, DELTA, ranged(0, 1), lam=10.0, v=1e-4)
    scaled = theorem_4_2(10 * energy, 0.5, 20, 1.0, DELTA, ranged(0, 10), lam=1.0, v=1e-4)
    assert scaled.value.item() != pytest.approx(10 * unit.value.item(), rel=0.1)
    rest = [(each.value - each.parts()["confidence"]).item() for each in (unit, scaled)]
    assert rest[1] == pytest.approx(10 * rest[0], rel=1e-12)


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
