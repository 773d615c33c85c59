"""Rates: their terms as the papers define them, and that none of them passes for a bound."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from pacbayes_fl.bounds.rates import Rate, bpfed_rate, cfedbayes_rate, pfedbayes_rate, sfedbayes_rate
from pacbayes_fl.errors import AssumptionError

NETWORK: dict[str, Any] = {"depth": 1, "width": 100, "inputs": 784, "log_power": 1.5}
RATES = (
    pfedbayes_rate(250, 79510, **NETWORK),
    sfedbayes_rate(250, [1000, 2000], **NETWORK),
    cfedbayes_rate(250, 79510, **NETWORK),
    bpfed_rate(250, 1010, 78500, **NETWORK),
)


@pytest.mark.parametrize("rate", RATES)
def test_a_rate_is_no_number_and_says_so(rate: Rate) -> None:
    with pytest.raises(TypeError):
        float(rate)  # type: ignore[arg-type]
    assert not hasattr(rate, "value") and not hasattr(rate, "__float__") and not hasattr(rate, "__index__")
    assert "a rate and no bound" in str(rate) and "unknown" in str(rate) and "at most" not in str(rate)
    with pytest.raises(TypeError):
        rate.terms["chi_n"] = 0.0  # type: ignore[index]
    with pytest.raises(dataclasses.FrozenInstanceError):
        rate.theorem = "a bound"  # type: ignore[misc]
    assert all(math.isfinite(term) and term > 0 for term in rate.terms.values())


def test_the_terms_of_pfedbayes_are_those_of_its_equations() -> None:
    n, t, hidden, m, r0, delta = 4000, 300, 2, 20, 5, 1.25
    got = pfedbayes_rate(n, t, hidden, m, r0, log_power=delta, zeta=10.0, smoothness=2.0, dimension=4.0)
    chi = ((hidden + 1) * t / n) * math.log(m) + (t / n) * math.log(r0 * math.sqrt(n / t))  # eq. 13
    root = (hidden + 1) * t * math.log(m) + t * math.log(r0 * math.sqrt(n / t))
    eps = n**-0.5 * math.sqrt(root) * math.log(n) ** delta  # eq. 15
    assert got.terms["chi_n"] == pytest.approx(chi, rel=1e-14)
    assert got.terms["eps_n^2"] == pytest.approx(eps**2, rel=1e-13)
    assert got.terms["approximation"] == pytest.approx(t ** (-2 * 2 / 4) / 10, rel=1e-14)  # eq. 24
    assert got.terms["minimax"] == pytest.approx(n ** (-4 / 8), rel=1e-14)  # eqs. 25, 28
    assert "Theorem 1" in got.theorem and "xi_i" not in str(got)
    assert "xi_i" in str(pfedbayes_rate(n, t, hidden, m, r0, log_power=delta))


def test_with_the_best_number_of_parameters_all_terms_fall_at_the_minimax_rate() -> None:
    """T = n^(d / (2 beta + d)) balances them up to logarithms (eq. 25): their ratios to it grow by these alone."""
    beta, d = 1.5, 2.0

    def ratios(n: int) -> list[float]:
        t = round(n ** (d / (2 * beta + d)))
        terms = dict(pfedbayes_rate(n, t, 1, 10, 3, log_power=1.1, smoothness=beta, dimension=d).terms)
        best = terms.pop("minimax")
        return [terms["chi_n"] / best / math.log(n), terms["approximation"] / best]

    assert ratios(10**8) == pytest.approx(ratios(10**6), rel=0.2)
    more = [pfedbayes_rate(n, 100, 1, 10, 3, log_power=1.1).terms["chi_n"] for n in (10**3, 10**4)]
    assert more[0] > 5 * more[1]


def test_sparse_clients_are_averaged_and_their_logarithm_has_half_the_power() -> None:
    n, hidden, m, r0, delta = 4000, 2, 20, 5, 1.25
    got = sfedbayes_rate(n, [300, 50], hidden, m, r0, log_power=delta)
    chis = [pfedbayes_rate(n, s, hidden, m, r0, log_power=delta).terms["chi_n"] for s in (300, 50)]
    assert got.terms["chi_n"] == pytest.approx(sum(chis) / 2, rel=1e-14)
    assert got.terms["eps_n^2"] == pytest.approx(sum(chi * math.log(n) ** delta for chi in chis) / 2, rel=1e-13)
    assert got.terms["chi_n"] < chis[0]


def test_a_cluster_has_the_terms_of_theorem_1() -> None:
    given = {"log_power": 1.25, "zeta": 2.0, "smoothness": 1.0, "dimension": 3.0}
    plain, cluster = (rate(4000, 300, 2, 20, 5, **given) for rate in (pfedbayes_rate, cfedbayes_rate))
    assert dict(plain.terms) == dict(cluster.terms) and "Theorem 3" in cluster.theorem


def test_personal_and_shared_factors_count_alike() -> None:
    got = bpfed_rate(4000, 100, 200, 2, 20, 5, log_power=1.25)
    plain = pfedbayes_rate(4000, 300, 2, 20, 5, log_power=1.25)
    assert got.terms["r_n"] == plain.terms["chi_n"] and got.terms["eps_n^2"] == plain.terms["eps_n^2"]
    assert "alpha" in str(got) and dict(bpfed_rate(4000, 300, 0, 2, 20, 5, log_power=1.25).terms) == dict(got.terms)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"n": 0}, "n must be at least 1, got 0"),
        ({"parameters": 0}, "parameters must be at least 1"),
        ({"log_power": 1.0}, "log_power must be above 1, got 1.0"),
        ({"zeta": 0.5}, "zeta must be at least 1, got 0.5"),
        ({"smoothness": 1.0}, "smoothness and dimension must both be positive, got 1.0 and None"),
        ({"smoothness": 1.0, "dimension": 0.0}, "smoothness and dimension must both be positive, got 1.0 and 0.0"),
        ({"width": 1, "parameters": 10**9}, "needs a network with r_0 sqrt"),
    ],
)
def test_what_the_theorems_do_not_allow_is_refused(change: dict[str, Any], what: str) -> None:
    for rate in (pfedbayes_rate, cfedbayes_rate):
        with pytest.raises(AssumptionError, match=what):
            rate(**{"n": 250, "parameters": 100, "depth": 1, "width": 10, "inputs": 5, "log_power": 1.5} | change)


def test_clients_and_factors_there_must_be() -> None:
    with pytest.raises(AssumptionError, match="sparsities must name one number a client"):
        sfedbayes_rate(250, [], **NETWORK)
    with pytest.raises(AssumptionError, match="personal and shared must be at least 0, got -1 and 5"):
        bpfed_rate(250, -1, 5, **NETWORK)
