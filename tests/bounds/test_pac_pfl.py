"""Quantities of PAC-PFL's theorems: published numbers, and enumerations of what they bound."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from pacbayes_fl.bounds.costs import max_information
from pacbayes_fl.bounds.divergence import gibbs_weights
from pacbayes_fl.bounds.pac_pfl import (
    confidence_factor,
    gibbs_epsilon,
    later_change,
    later_log_ratio,
    not_vacuous,
    theorem_delta,
)
from pacbayes_fl.posteriors.hyper_posterior import gibbs_tau
from tests.bounds.worlds import DELTA, numbers


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
