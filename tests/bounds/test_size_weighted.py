"""Pooled rows of clients that are not alike: moments, sums, coverage, and priors that saw the pool."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from pacbayes_fl.bounds.certificate import Certificate, MonteCarlo
from pacbayes_fl.bounds.client import seeger
from pacbayes_fl.bounds.kl_inverse import binary_kl
from pacbayes_fl.bounds.premises import Premises, Provenance
from pacbayes_fl.bounds.server import new_clients, server_bound
from pacbayes_fl.bounds.size_weighted import size_weighted
from pacbayes_fl.bounds.table import BOUNDS
from pacbayes_fl.errors import AssumptionError, ShapeError

FINE = Premises(Provenance("data-free"), independent=True, posterior="exact Gibbs")
WORLDS, DELTA = 2000, 0.05
POOLABLE = [bound.name for bound in BOUNDS.values() if bound.poolable]


def moment(chances: np.ndarray) -> float:
    """E exp(N kl(L^ || L)) of the average of N independent Bernoulli losses."""
    law, n = np.ones(1), len(chances)
    for p in chances:
        law = np.convolve(law, (1 - p, p))
    divergence = binary_kl(torch.arange(n + 1).double() / n, torch.tensor(chances.mean()))
    return float(law @ (n * divergence).exp().numpy())


def test_losses_that_are_not_alike_have_the_smaller_moment_behind_the_pooled_bound() -> None:
    assert moment(np.repeat((0.05, 0.6), 5)) == pytest.approx(1.9666872380627207, rel=1e-12)
    assert moment(np.full(10, 0.325)) == pytest.approx(4.66021568, rel=1e-8)
    chances = np.random.default_rng(0).random((50, 12))
    for each in chances:
        assert moment(each) <= moment(np.full(12, each.mean())) * (1 + 1e-12) <= 2 * math.sqrt(12)


@pytest.mark.parametrize("name", POOLABLE)
def test_the_pooled_bound_sums_rows_and_divergences(name: str) -> None:
    risk, kl, n = (
        torch.tensor([0.1, 0.2, 0.4], dtype=torch.float64),
        torch.tensor([1.0, 10.0, 0.0]),
        torch.tensor([50, 500, 5]),
    )
    got = size_weighted(risk, kl, n, 0.05, FINE, bound=BOUNDS[name], monte_carlo=MonteCarlo(100, 0.01))
    average = (0.1 * 50 + 0.2 * 500 + 0.4 * 5) / 555
    alone = BOUNDS[name].function(average, 11.0, 555, 0.05, FINE, monte_carlo=MonteCarlo(100, 0.01))
    assert got.valid and got.value.item() == pytest.approx(alone.value.item(), rel=1e-12)
    assert "averaged over clients by their rows" in got.risk and "averaged" not in alone.risk
    one = size_weighted(risk[:1], kl[:1], n[:1], 0.05, FINE)
    assert one.value.item() == pytest.approx(seeger(0.1, 1.0, 50, 0.05, FINE).value.item(), rel=1e-12)
    for wrong in (math.inf, -1.0):
        with pytest.raises(AssumptionError, match="kl must be finite"):
            size_weighted(risk, torch.tensor([1.0, wrong, 0.0]), n, 0.05, FINE)


@pytest.mark.parametrize("name", ["risk", "kl", "n"])
def test_one_number_counts_for_every_client_of_a_pool_and_other_shapes_are_refused(name: str) -> None:
    """A scalar KL that counted once made the bound of 100 clients with fair coins fail in every second world."""
    each = {"risk": torch.full((100,), 0.3), "kl": torch.full((100,), math.log(2.0)), "n": torch.full((100,), 10.0)}
    one = {**each, name: each[name][0]}
    assert (
        size_weighted(**one, delta=DELTA, premises=FINE).value
        == size_weighted(**each, delta=DELTA, premises=FINE).value
    )
    for wrong in (each[name].unsqueeze(1), each[name][:2], each[name][:1]):
        with pytest.raises(ShapeError, match=name):
            size_weighted(**{**each, name: wrong}, delta=DELTA, premises=FINE)
    with pytest.raises(ShapeError, match=r"at least one of them \[K\], got \[\]"):
        size_weighted(0.3, 1.0, 10, DELTA, FINE)
    draws = MonteCarlo(5, 0.01, risks=torch.full((100, 5), 0.3))
    with pytest.raises(ShapeError, match=r"risks of draws must be those of the average \[M\], got \[100, 5\]"):
        size_weighted(**each, delta=DELTA, premises=FINE, monte_carlo=draws)


def test_the_pooled_bound_covers_clients_with_posteriors_of_their_own_and_needs_their_divergences() -> None:
    """Five clients with 40 rows, losses of different difficulty, each with the best of 20 hypotheses on its rows."""
    truth = torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9]).double().reshape(1, 5, 1).expand(WORLDS, 5, 20)
    generator = torch.Generator().manual_seed(4)
    risk = (torch.binomial(torch.full_like(truth, 40.0), truth, generator=generator) / 40).amin(-1)  # [2000, 5]
    rows = torch.full((5,), 40.0)
    fails = {"honest": 0, "blind": 0}
    for each in risk[:400]:
        for word, kl in (("honest", math.log(20)), ("blind", 0.0)):
            certificate = size_weighted(each, torch.full((5,), kl), rows, DELTA, FINE, bound=BOUNDS["mcallester"])
            fails[word] += int(certificate.value.item() < 0.5)
    assert fails["honest"] <= stats.binom.isf(1e-6, 400, DELTA) < fails["blind"]


def test_pooled_clients_need_priors_that_saw_nobody_of_the_pool() -> None:
    """Twelve clients with one fair label each, all worlds: a prior is sure of the product of the others' labels."""
    prior = dataclasses.replace(FINE, prior=Provenance("other clients"))
    labels = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=12))).double()
    wrong = (labels.prod(1, keepdim=True) * labels != labels).double()  # Q = P, and no client's own label was seen
    values = [size_weighted(risk, torch.zeros(12), torch.ones(12), DELTA, FINE).value.item() for risk in wrong[:2]]
    assert values[0] < 0.5 < values[1]  # all are right, or all are wrong
    known = size_weighted(wrong[0], torch.zeros(12), torch.ones(12), DELTA, prior)
    assert not known.valid and "have seen rows of its bound" in known.reasons[0]
    assert wrong.sum(1).unique().tolist() == [0.0, 12.0] and wrong.mean().item() == 0.5


@pytest.mark.parametrize("average", ["size-weighted clients", "clients on average", "new client on average"])
def test_priors_of_an_average_have_seen_none_of_its_rows(average: Any) -> None:
    risk, n = torch.tensor([0.1, 0.2]), torch.tensor([50, 60])

    def certificate(prior: Provenance) -> Certificate:
        premises = dataclasses.replace(FINE, prior=prior, drawn_clients=True)
        if average == "size-weighted clients":
            return size_weighted(risk, torch.zeros(2), n, 0.05, premises)
        return (server_bound if average == "clients on average" else new_clients)(risk, 9.0, n, 0.0, 0.05, premises)

    for source in ("data-free", "disjoint clients", "split"):
        assert certificate(Provenance(source)).valid and certificate(Provenance(source)).premises.average == average
    for prior in (
        Provenance("other clients"),
        Provenance("row-level DP", 0.1),
        Provenance("client-level DP", 0.1, 0.01),
        Provenance("saw the rows"),
        Provenance(),
    ):
        assert len(certificate(prior).reasons) == 1 and "no certificate" in str(certificate(prior))
        alone = seeger(risk, 0.0, n, 0.05, dataclasses.replace(FINE, prior=prior))
        assert alone.valid is (prior.source in ("other clients", "row-level DP", "client-level DP"))


@pytest.mark.parametrize("name", [bound.name for bound in BOUNDS.values() if not bound.poolable])
def test_a_bound_that_does_not_hold_at_pooled_rows_is_refused(name: str) -> None:
    with pytest.raises(AssumptionError, match=f"'{name}' does not hold at pooled rows .*poolable, such as 'seeger'"):
        size_weighted(torch.tensor([0.1, 0.2]), torch.zeros(2), torch.tensor([50, 60]), 0.05, FINE, bound=BOUNDS[name])
