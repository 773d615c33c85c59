"""Client-level bounds: published digits, laws of scale and order, and coverage in worlds whose truth is known."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.optimize import brentq
from torch import Tensor

from pacbayes_fl.bounds import client
from pacbayes_fl.bounds.certificate import Certificate, MonteCarlo
from pacbayes_fl.bounds.client import alquier, catoni, gibbs, mcallester, pbb_lambda, pbb_quadratic, seeger, theorem_3_2
from pacbayes_fl.bounds.costs import client_privacy, max_information, monte_carlo_risk
from pacbayes_fl.bounds.divergence import discrete_kl, gibbs_weights
from pacbayes_fl.bounds.kl_inverse import kl_inverse_lower
from pacbayes_fl.bounds.losses import LossRange
from pacbayes_fl.bounds.moment import log_moment
from pacbayes_fl.bounds.premises import Premises, Provenance
from pacbayes_fl.bounds.table import BOUNDS
from pacbayes_fl.errors import AssumptionError
from tests.bounds.worlds import CLIENT_BOUNDS, twin

FINE = Premises(Provenance("data-free"), independent=True, posterior="exact Gibbs")
PBB = (0.03, 500.0, 30_000, 0.025)


def private(epsilon: float, draws: int = 1, rows: int | None = None) -> Premises:
    return dataclasses.replace(FINE, prior=Provenance("row-level DP", epsilon, draws=draws, rows=rows))


def of_clients(epsilon: float, delta: float = 0.0, draws: int = 1) -> Premises:
    return dataclasses.replace(FINE, prior=Provenance("client-level DP", epsilon, delta, draws))


def call(name: str, risk: float, kl: float, n: float, beta: float, delta: float, premises: Premises) -> Certificate:
    """Call any bound with the same numbers; that of eq. (6) with the Z that they imply."""
    numbers = {"risk": risk, "kl": kl, "n": n, "beta": beta, "log_z": -beta * risk - kl}
    return BOUNDS[name].certify(numbers, delta, premises)


def premises_for(name: str, loss: LossRange) -> Premises:
    return dataclasses.replace(private(0.02) if BOUNDS[name].private else FINE, loss=loss)


# published digits ------------------------------------------------------------------------------------------------


@pytest.mark.quick
def test_bounds_of_pac_bayes_with_backprop_have_their_published_values() -> None:
    """Theirs are with 2 sqrt n for xi(n): a delta that is smaller by as much."""
    risk, kl, n, delta = PBB
    at = (risk, kl, n, delta * math.exp(log_moment(torch.tensor(n)).item()) / (2 * math.sqrt(n)))

    def value(certificate: Certificate) -> float:
        assert certificate.valid
        return certificate.value.item()

    assert value(mcallester(*at, FINE)) == pytest.approx(0.12215354062333471, rel=1e-13)
    assert value(pbb_quadratic(*at, FINE)) == pytest.approx(0.08314458256549129, rel=1e-13)
    assert value(seeger(*at, FINE)) == pytest.approx(0.07249532731061159, rel=1e-12)
    assert value(pbb_lambda(*at, FINE)) == pytest.approx(0.08314458256549129, rel=1e-13)  # the best is the quadratic
    assert value(pbb_lambda(*at, FINE, weight=0.6391827455941629)) == pytest.approx(0.08314458256549129, rel=1e-13)
    assert value(pbb_lambda(*at, FINE, weight=0.5)) == pytest.approx(0.08529213359688853, rel=1e-13)


def test_an_estimated_risk_takes_two_steps_and_both_their_deltas() -> None:
    assert monte_carlo_risk(0.03, 1000, 0.005).item() == pytest.approx(0.050968895794594564, rel=1e-12)  # ln(1 / delta)
    delta = 0.025 * math.exp(log_moment(torch.tensor(30_000)).item()) / (2 * math.sqrt(30_000))
    certificate = seeger(0.03, 500.0, 30_000, delta + 0.005, FINE, monte_carlo=MonteCarlo(1000, 0.005))
    assert certificate.value.item() == pytest.approx(0.10180273085790097, rel=1e-12)
    assert certificate.recompute().item() == certificate.value.item()


@pytest.mark.quick
def test_bounds_at_fixed_beta_have_their_published_values() -> None:
    prior, risk = (torch.tensor(v, dtype=torch.float64) for v in ((0.5, 0.3, 0.2), (0.1, 0.3, 0.05)))
    weights, log_z = gibbs_weights(risk, 10.0, prior)
    empirical, kl = weights @ risk, discrete_kl(weights, prior)
    plain = alquier(empirical, kl, 20, 10.0, 0.05, FINE)
    assert plain.value.item() == pytest.approx(0.47595980526258014, rel=1e-13)
    assert "eq. 14" in plain.theorem
    dp = theorem_3_2(empirical, kl, 20, 10.0, 0.05, private(0.1))
    assert dp.value.item() == pytest.approx(0.6214714011503417, rel=1e-13)
    assert "Theorem 3.2" in dp.theorem
    for premises, of_risk in ((FINE, plain), (private(0.1), dp)):  # eq. (6) is eq. (4) at the Gibbs posterior
        of_z = gibbs(log_z, 20, 10.0, 0.05, premises)
        assert of_z.valid and of_z.value.item() == pytest.approx(of_risk.value.item(), rel=1e-13)


def test_catoni_is_the_inverse_of_his_phi_and_no_looser_than_the_sum() -> None:
    risk, kl, n, beta, delta = 0.1, 3.0, 200, 60.0, 0.05
    rate, spent = beta / n, (kl - math.log(delta)) / n
    root = brentq(lambda p: -math.log(1 - p * (1 - math.exp(-rate))) - rate * risk - spent, 0, 1, xtol=1e-14)
    got = catoni(risk, kl, n, beta, delta, FINE).value.item()
    assert got == pytest.approx(root, rel=1e-11)
    assert got < alquier(risk, kl, n, beta, delta, FINE).value.item()


# what a prior under privacy costs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CLIENT_BOUNDS)
def test_a_private_prior_costs_its_max_information_in_every_bound(name: str) -> None:
    nats = max_information(0.1, 60, 0.05).item()
    rest = (0.1, 2.0, 100, 10.0)
    got = call(name, *rest, 0.05, private(0.05, draws=2, rows=60))  # two draws of .05 each
    cheaper = call(twin(name), *rest, 0.05 * math.exp(-nats), FINE)
    assert got.value.item() == pytest.approx(cheaper.value.item(), rel=1e-12)
    all_rows = call(name, *rest, 0.05, private(0.1)).value.item()
    assert all_rows > got.value.item()


@pytest.mark.parametrize("name", CLIENT_BOUNDS)
def test_a_prior_under_privacy_of_clients_costs_its_epsilon_in_every_bound(name: str) -> None:
    rest = (0.1, 2.0, 100, 10.0)
    got = call(name, *rest, 0.05, of_clients(0.3, 0.01, draws=2))
    same = twin(name)
    cheaper = call(same, *rest, (0.05 - 0.02) * math.exp(-0.6), FINE)
    assert got.valid and got.value.item() == pytest.approx(cheaper.value.item(), rel=1e-12)
    tried = dataclasses.replace(of_clients(0.3, 0.01), tried=4)  # each of them pays the whole of d0
    shared = call(same, *rest, (0.05 / 4 - 0.01) * math.exp(-0.3), FINE)
    assert call(name, *rest, 0.05, tried).value.item() == pytest.approx(shared.value.item(), rel=1e-12)
    pure = call(name, *rest, 0.05, of_clients(0.3))
    assert pure.value.item() == pytest.approx(call(same, *rest, 0.05 * math.exp(-0.3), FINE).value.item(), rel=1e-12)
    for spent in (0.05, 0.07):
        with pytest.raises(AssumptionError, match=f"delta of the bound must exceed .* {spent:g}, got 0.05"):
            call(name, *rest, 0.05, of_clients(0.3, spent))


def test_all_rows_are_one_record_where_that_costs_less() -> None:
    for epsilon, nats in ((1e-3, 0.1), (0.1, max_information(0.1, 100, 0.05).item())):
        got = seeger(0.1, 2.0, 100, 0.05, private(epsilon)).value.item()
        assert got == pytest.approx(seeger(0.1, 2.0, 100, 0.05 * math.exp(-nats), FINE).value.item(), rel=1e-12)
    assert client_privacy(0.4, 0.0, 0.05).item() == 0.4  # what 14.6 nats of max-information paid for at 100 rows
    assert max_information(0.4, 100, 0.05).item() == pytest.approx(14.614, abs=1e-3)


def test_theorem_3_2_wants_an_epsilon() -> None:
    with pytest.raises(
        AssumptionError, match="needs the epsilon of a private prior, got a prior of source 'data-free'"
    ):
        theorem_3_2(0.1, 2.0, 100, 10.0, 0.05, FINE)


# laws ------------------------------------------------------------------------------------------------------------

names = st.sampled_from(CLIENT_BOUNDS)
risks, kls = st.floats(0, 0.5), st.floats(0, 100)
rows, betas, deltas = st.integers(1, 10**6), st.floats(0.1, 1e3), st.floats(1e-6, 0.5)


@given(name=names, risk=risks, kl=kls, n=rows, beta=betas, delta=deltas, c=st.floats(0.01, 100), a=st.floats(-3, 3))
def test_the_unit_of_the_loss_does_not_matter(
    name: str, risk: float, kl: float, n: int, beta: float, delta: float, c: float, a: float
) -> None:
    kl = min(kl, beta * (1 - risk)) if "log_z" in BOUNDS[name].needs else kl  # a Z that some risk in [a, b] can give
    unit = call(name, risk, kl, n, beta, delta, premises_for(name, LossRange("unit", 0, 1)))
    scaled = call(name, c * risk, kl, n, beta / c, delta, premises_for(name, LossRange("scaled", 0, c)))
    assert scaled.value.item() == pytest.approx(c * unit.value.item(), rel=1e-9)
    moved = call(name, a + risk, kl, n, beta, delta, premises_for(name, LossRange("moved", a, a + 1)))
    if name != "pbb-lambda":  # its best lambda is a square root of the risk, in which rounding of a + risk - a shows
        assert moved.value.item() - a == pytest.approx(unit.value.item(), rel=1e-6, abs=1e-6)


@given(name=names, risk=risks, kl=kls, n=rows, beta=betas, delta=deltas, more=st.floats(0, 0.5))
def test_less_risk_less_divergence_more_rows_and_more_delta_never_raise_a_bound(
    name: str, risk: float, kl: float, n: int, beta: float, delta: float, more: float
) -> None:
    kl = min(kl, 0.4 * beta * (1 - risk)) if "log_z" in BOUNDS[name].needs else kl
    premises = premises_for(name, LossRange("unit", 0, 1))
    if BOUNDS[name].private:  # with more rows seen, a prior of the same epsilon may know more: hold them
        premises = dataclasses.replace(premises, prior=Provenance("row-level DP", 0.02, rows=50))

    def value(risk: float = risk, kl: float = kl, n: float = n, delta: float = delta) -> float:
        return min(1.0, call(name, risk, kl, n, beta, delta, premises).value.item())  # above, it says nothing

    base = value() * (1 - 1e-12)
    assert value(risk=risk + 0.1 * more) >= base
    assert value(kl=kl * (1 + more)) >= base
    assert value(delta=delta * (1 - more)) >= base
    assert value(n=math.ceil(n * (1 - more))) >= base


@settings(max_examples=60)
@given(name=names, risk=risks, kl=kls, n=rows, beta=betas, delta=deltas, draws=st.none() | st.integers(1, 1000))
def test_a_certificate_is_rebuilt_from_its_terms(
    name: str, risk: float, kl: float, n: int, beta: float, delta: float, draws: int | None
) -> None:
    kl = min(kl, beta * (1 - risk)) if "log_z" in BOUNDS[name].needs else kl
    premises = premises_for(name, LossRange("unit", 0, 1))
    certificate = call(name, risk, kl, n, beta, delta, premises)
    if draws is not None and BOUNDS[name].estimable:
        numbers = {"risk": risk, "kl": kl, "n": n, "beta": beta}
        certificate = BOUNDS[name].certify(numbers, delta, premises, MonteCarlo(draws, 0.2 * delta))
    copied = {key: torch.tensor(value.item(), dtype=torch.float64) for key, value in certificate.terms.items()}
    again = dataclasses.replace(certificate, terms=copied).recompute()
    assert again.item() == pytest.approx(certificate.value.item(), rel=1e-12)


@pytest.mark.parametrize("name", CLIENT_BOUNDS)
def test_every_term_counts(name: str) -> None:
    certificate = call(name, 0.1, 2.0, 100, 20.0, 0.05, premises_for(name, LossRange("unit", 0, 1)))
    for key in certificate.terms.keys() - {"low"}:
        terms = {**certificate.terms, key: 1.1 * certificate.terms[key]}
        again = dataclasses.replace(certificate, terms=terms).recompute().item()
        assert abs(again - certificate.value.item()) > 1e-4, key


def test_clients_are_certified_one_by_one() -> None:
    risk, kl, n = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([1.0, 10.0, 0.0]), torch.tensor([50, 500, 5])
    for name, bound in ((bound.name, bound.function) for bound in BOUNDS.values() if bound.poolable):
        together = bound(risk, kl, n, 0.05, FINE)
        assert together.value.shape == (3,) and together.value.dtype == torch.float64, name
        for k in range(3):
            alone = bound(risk[k], kl[k], n[k], 0.05, FINE)
            assert together.value[k].item() == pytest.approx(alone.value.item(), rel=1e-14)


# no number, or no certificate --------------------------------------------------------------------------------------


def test_what_no_number_can_be_formed_of_is_refused() -> None:
    for bad_kl in (math.inf, math.nan, -0.1):
        with pytest.raises(AssumptionError, match="kl must be finite, at least 0, got"):
            seeger(0.1, bad_kl, 100, 0.05, FINE)
    for bad_n in (0, -5, math.inf, 1.5):
        with pytest.raises(AssumptionError, match="n must be at least 1 and a whole"):
            mcallester(0.1, 1.0, bad_n, 0.05, FINE)
    for bad_weight in (0.0, 2.0, 2.5, math.nan):
        with pytest.raises(AssumptionError, match="weight must"):
            pbb_lambda(0.1, 1.0, 100, 0.05, FINE, weight=bad_weight)
    with pytest.raises(AssumptionError, match=r"risk must be finite, at least 0 and at most 1, got 1\.5$"):
        alquier(1.5, 1.0, 100, 10.0, 0.05, FINE)
    with pytest.raises(AssumptionError, match="-log_z / beta must be finite, at least 0 and at most 1, got 35"):
        gibbs(-350.0, 100, 10.0, 0.05, FINE)  # the log marginal likelihood of an unbounded loss


def test_eq_6_is_for_the_exact_gibbs_posterior_alone() -> None:
    other = dataclasses.replace(FINE, posterior="any")
    assert "exact Gibbs posterior" in gibbs(-1.0, 100, 10.0, 0.05, other).reasons[0]
    assert alquier(0.1, 1.0, 100, 10.0, 0.05, other).valid


# coverage: 2000 worlds at delta = .05, more than 149 failures have probability 1e-6 at a true rate of delta ----------

WORLDS, ROWS, DELTA, RED = 2000, 200, 0.05, 149


def empirical(hypotheses: int, rows: int = ROWS, truth: float = 0.5, seed: int = 0) -> Tensor:
    """Empirical risks [2000, L] of hypotheses whose losses are independent Bernoulli."""
    generator = torch.Generator().manual_seed(seed)
    counts = torch.full((WORLDS, hypotheses), float(rows))
    return torch.binomial(counts, torch.tensor(truth), generator=generator).double() / rows


def failures(risks: Tensor, beta: float, bound: Callable[[Tensor, Tensor, Tensor], Certificate]) -> int:
    """Count the worlds in which the truth, 1/2, is above the bound of the exact Gibbs posterior."""
    weights, log_z = gibbs_weights(risks, beta)
    certificate = bound((weights * risks).sum(1), discrete_kl(weights), log_z)
    assert certificate.value.shape == (WORLDS,)
    return int((certificate.value < 0.5).sum())


ONE = math.sqrt(8 * ROWS * math.log(1 / DELTA))  # the best beta for one hypothesis
MANY = 8 * math.sqrt(ROWS)


@pytest.fixture(scope="module")
def single() -> Tensor:
    return empirical(1)


@pytest.fixture(scope="module")
def many() -> Tensor:
    return empirical(2000, seed=1)


def test_an_unbiased_estimate_of_the_normaliser_costs_nothing() -> None:
    """Two hypotheses with loss 1 on one kind of row each; all three rows, and all five draws that estimate Z."""
    beta, rows, prior, chance = 4.0, 3, np.array((0.3, 0.7)), np.array((0.4, 0.6))
    spent = exact = beyond = 0.0
    for kind in itertools.product((0, 1), repeat=rows):
        likelihood = np.exp(-beta * np.bincount(kind, minlength=2) / rows)
        risk = float(prior * likelihood @ chance) / (z := float(prior @ likelihood))
        for drawn in itertools.product((0, 1), repeat=5):
            estimate = likelihood[list(drawn)].mean()
            probability = float(chance[list(kind)].prod() * prior[list(drawn)].prod())
            spent += probability * math.exp(beta * risk) * estimate
            exact += probability * math.exp(beta * risk) * z
            got = gibbs(math.log(estimate), rows, beta, 0.3, FINE)
            beyond += probability * (got.value.item() < risk)
    assert spent == pytest.approx(exact, rel=1e-12)
    assert exact <= math.exp(beta**2 / (8 * rows)) and beyond <= 0.3


@pytest.mark.parametrize("draws", [1, 5])
def test_eq_6_covers_with_a_few_draws_in_place_of_its_normaliser(draws: int, many: Tensor) -> None:
    estimate = torch.logsumexp(-MANY * many[:, :draws], 1) - math.log(draws)
    assert int((gibbs(estimate, ROWS, MANY, DELTA, FINE).value < 0.5).sum()) <= RED
    assert int((gibbs(estimate, 10**9, ROWS, 1 - 1e-12, FINE).value < 0.5).sum()) > RED


def test_the_default_bound_goes_red_without_its_divergence(many: Tensor) -> None:
    assert failures(many, 20 * ROWS, lambda risk, kl, _: seeger(risk, 0 * kl, ROWS, DELTA, FINE)) > RED


def test_the_default_bound_goes_red_with_the_other_inverse(single: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "kl_inverse_upper", kl_inverse_lower)
    assert failures(single, 1.0, lambda risk, kl, _: seeger(risk, kl, ROWS, DELTA, FINE)) > RED


def test_the_default_bound_goes_red_with_a_moment_that_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one hypothesis and one row: without a loss, of probability 1 - p, the bound is 1 - delta / xi(1), xi(1) = 2.

    Between 1 and xi no world is known in which the bound fails: there it is the moment itself that tests hold on to.
    """

    def failed(xi: float) -> int:
        p = torch.tensor(1 - 0.99 * DELTA / xi)
        errors = torch.binomial(torch.ones(10 * WORLDS), p, generator=torch.Generator().manual_seed(10)).double()
        monkeypatch.setattr(client, "log_moment", lambda n: torch.full_like(n, math.log(xi)))
        return int((seeger(errors, 0.0, 1, DELTA, FINE).value < p.item()).sum())

    red = stats.binom.isf(1e-6, 10 * WORLDS, DELTA)
    assert failed(2.0) < 0.6 * DELTA * 10 * WORLDS < failed(1.0) <= red < failed(0.8)


@pytest.mark.slow
def test_bounds_at_fixed_beta_go_red_without_each_of_their_terms(single: Tensor, many: Tensor) -> None:
    sure = 1 - 1e-12  # ln(1 / delta) = 0
    for bound in (alquier, catoni):
        assert failures(single, ONE, lambda r, kl, _, b=bound: b(r, kl, ROWS, ONE, sure, FINE)) > RED  # type: ignore[misc]
        assert failures(many, MANY, lambda r, kl, _, b=bound: b(r, 0 * kl, ROWS, MANY, DELTA, FINE)) > RED  # type: ignore[misc]
    assert failures(single, 1.0, lambda _, __, z: gibbs(z, 10**9, ROWS, sure, FINE)) > RED


def test_a_private_prior_needs_its_term_and_with_it_covers() -> None:
    """One of 3000 point masses, drawn by the exponential mechanism from the rows themselves: eps = 2 tau beta / m."""
    rows, beta, tau = 100, 48.95, 1.0
    risks = empirical(3000, rows, seed=2)
    exponent = torch.softmax(-tau * beta * risks, 1)
    chosen = torch.multinomial(exponent, 1, generator=torch.Generator().manual_seed(3))
    risk = risks.gather(1, chosen).squeeze(1)
    honest = theorem_3_2(risk, 0.0, rows, beta, DELTA, private(2 * tau * beta / rows))
    blind = alquier(risk, 0.0, rows, beta, DELTA, FINE)
    assert int((honest.value < 0.5).sum()) == 0
    assert 0.40 < (blind.value < 0.5).double().mean().item() < 0.47  # .435 was measured


MASSES, TRIES = 2000, 20


def released(errors: Tensor, best: int, epsilon: float, spent: float, seed: int) -> Tensor:
    """Draw one of 2000 point masses from the rows of all worlds [2000, 2000]: (epsilon, spent)-DP, whatever they are.

    One of the `best` with the fewest errors has odds e^epsilon against one of the others, whichever those are, so that
    no probability changes by more than e^epsilon; with probability `spent` the best of all is released instead.
    """
    generator = torch.Generator().manual_seed(seed)
    order = (errors + 0.5 * torch.rand(errors.shape, generator=generator)).argsort(1)
    odds = best * math.exp(epsilon)
    among = torch.rand(WORLDS, generator=generator) < odds / (odds + MASSES - best)
    place = torch.rand(WORLDS, generator=generator)
    chosen = torch.where(among, place * best, best + place * (MASSES - best)).long()
    chosen = torch.where(torch.rand(WORLDS, generator=generator) < spent, 0, chosen)
    return order.gather(1, chosen.unsqueeze(1)).squeeze(1)


def worst_prior(epsilon: float, spent: float, term: Callable[[float, float, float], float]) -> tuple[int, float]:
    """Count the worlds in which a bound fails that pays `term` for its prior, at the truth that is worst for it.

    Every hypothesis errs by itself with probability p, just above what the bound says of one without an error in 20
    rows: of all the point masses about delta' have none, and the mechanism looks for them.
    """
    share = DELTA * math.exp(-term(epsilon, spent, DELTA))
    p = 1 - (0.99 * share) ** (1 / TRIES)
    generator = torch.Generator().manual_seed(6)
    errors = torch.binomial(torch.full((WORLDS, MASSES), float(TRIES)), torch.tensor(p), generator=generator)
    chosen = released(errors, max(1, round(share * MASSES)), epsilon, spent, 7)
    risk = errors.gather(1, chosen.unsqueeze(1)).squeeze(1).double() / TRIES
    certificate = catoni(risk, 0.0, TRIES, 1e6, DELTA, of_clients(epsilon, spent))
    return int((certificate.value < p).sum()), p


def exact_nats(epsilon: float, spent: float, delta: float) -> float:
    return epsilon + math.log(delta / (delta - spent))


@pytest.mark.law
@pytest.mark.parametrize(("epsilon", "spent"), [(1.0, 0.0), (1.0, 0.02), (2.0, 0.04)])
def test_a_prior_under_privacy_of_clients_is_covered_in_the_worst_world_and_barely(
    epsilon: float, spent: float
) -> None:
    failed, _ = worst_prior(epsilon, spent, exact_nats)
    assert 0.75 * DELTA * WORLDS < failed <= RED


@pytest.mark.law
@pytest.mark.parametrize(
    ("epsilon", "spent", "mutant"),
    [
        (1.0, 0.0, lambda *_: 0.0),  # nothing is paid
        (2.0, 0.0, lambda epsilon, *_: 0.5 * epsilon),  # the epsilon of zeros for that of a replacement
        (1.0, 0.04, lambda epsilon, *_: epsilon),  # the delta of the privacy is forgotten
        (2.0, 0.04, lambda _, spent, delta: math.log(delta / (delta - spent))),  # its epsilon is
    ],
)
def test_a_prior_under_privacy_of_clients_goes_red_without_each_of_its_terms(
    epsilon: float, spent: float, mutant: Callable[..., float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "client_privacy", lambda e, s, d: torch.tensor(mutant(float(e), float(s), float(d))))
    failed, p = worst_prior(epsilon, spent, mutant)
    assert failed > RED
    monkeypatch.undo()
    honest = catoni(0.0, 0.0, TRIES, 1e6, DELTA, of_clients(epsilon, spent))
    assert honest.value.item() > p


@pytest.fixture(scope="module")
def risk_released() -> Tensor:
    """Risks [2000] of point masses that a private mechanism has released of the rows themselves."""
    errors = ROWS * empirical(MASSES, seed=8)
    return errors.gather(1, released(errors, 5, 1.0, 0.02, 9).unsqueeze(1)).squeeze(1) / ROWS


@pytest.mark.parametrize("name", CLIENT_BOUNDS)
def test_every_bound_covers_a_prior_under_privacy_of_clients(name: str, risk_released: Tensor) -> None:
    certificate = call(name, risk_released, 0.0, ROWS, ONE, DELTA, of_clients(1.0, 0.02))  # type: ignore[arg-type]
    assert certificate.valid and int((certificate.value < 0.5).sum()) <= RED


@pytest.mark.parametrize(
    (
        "truth",
        "rows",
        "beta",
        "expected",
    ),  # alquier, catoni, mcallester, seeger: means that an independent code measured
    [
        (torch.full((20,), 0.5), 20, 20.0, (0.675, 0.669, 0.737, 0.721)),
        (torch.linspace(0.1, 0.9, 20), 100, 10.0, (0.599, 0.599, 0.361, 0.341)),
        (torch.linspace(0.1, 0.9, 20), 1000, 1000.0, (0.231, 0.159, 0.171, 0.148)),
        (torch.full((20,), 0.03), 100, 100.0, (0.175, 0.077, 0.196, 0.101)),
    ],
)
def test_bounds_of_twenty_hypotheses_are_as_tight_as_was_measured(
    truth: Tensor, rows: int, beta: float, expected: tuple[float, ...]
) -> None:
    counts = torch.full((WORLDS, 20), float(rows))
    generator = torch.Generator().manual_seed(5)
    risks = torch.binomial(counts, truth.expand(WORLDS, 20), generator=generator).double() / rows
    weights, _ = gibbs_weights(risks, beta)
    numbers = (weights * risks).sum(1), discrete_kl(weights), rows
    certificates = [alquier(*numbers, beta, DELTA, FINE), catoni(*numbers, beta, DELTA, FINE)]
    certificates += [mcallester(*numbers, DELTA, FINE), seeger(*numbers, DELTA, FINE)]
    true_risk = (weights * truth).sum(1)
    assert [each.value.mean().item() for each in certificates[:2]] == pytest.approx(expected[:2], abs=0.0015)
    theirs = DELTA * math.exp(log_moment(torch.tensor(rows)).item()) / (2 * math.sqrt(rows))  # of 2 sqrt n
    same = [mcallester(*numbers, theirs, FINE), seeger(*numbers, theirs, FINE)]
    assert [each.value.mean().item() for each in same] == pytest.approx(expected[2:], abs=0.0015)
    assert all(int((each.value < true_risk).sum()) <= RED for each in certificates)


# pooled over clients that are not alike ------------------------------------------------------------------------------


def test_bounds_on_a_client_do_not_speak_of_averages_that_they_do_not_bound() -> None:
    for average in ("clients on average", "clients by beta", "new client on average"):
        premises = dataclasses.replace(FINE, average=average)
        for name in CLIENT_BOUNDS:
            with pytest.raises(AssumptionError, match="on a client or on size-weighted clients"):
                call(name, 0.1, 1.0, 50, 10.0, 0.05, dataclasses.replace(private(0.1), average=average))
        with pytest.raises(AssumptionError, match="server_bound"):
            seeger(0.1, 1.0, 50, 0.05, premises)
