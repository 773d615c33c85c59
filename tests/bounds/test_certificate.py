"""Certificates: what they carry, what they print, what breaks them, and how delta is shared."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch

from pacbayes_fl.bounds.bernstein import empirical_bernstein
from pacbayes_fl.bounds.certificate import MonteCarlo, split_delta, trivial_bound
from pacbayes_fl.bounds.client import alquier, mcallester, seeger
from pacbayes_fl.bounds.losses import ClippedNLL, LossRange, ZeroOne
from pacbayes_fl.bounds.premises import Premises, Provenance
from pacbayes_fl.bounds.record import from_record, to_record
from pacbayes_fl.bounds.server import server_bound
from pacbayes_fl.bounds.table import BOUNDS
from pacbayes_fl.errors import AssumptionError, ShapeError
from tests.bounds.worlds import CLIENT_BOUNDS, twin

FINE = Premises(Provenance("split"), independent=True)


def test_a_certificate_says_what_it_bounds_and_how_surely() -> None:
    certificate = seeger(0.03, 500.0, 30_000, 0.035, FINE, monte_carlo=MonteCarlo(1000, 0.01))
    assert certificate.valid and certificate.reasons == () and not certificate.vacuous
    assert certificate.prior.source == "split"
    assert certificate.delta == 0.035
    assert dict(certificate.delta_split) == pytest.approx({"bound": 0.025, "Monte Carlo": 0.01})
    assert sum(certificate.delta_split.values()) == pytest.approx(0.035, rel=1e-15)
    assert (
        str(certificate)
        == repr(certificate)
        == (
            "Maurer/Seeger, kl inverse: risk at most 0.09957 with probability at least 0.965 "
            "(0-1 loss of the Gibbs predictor, each client on its own; "
            "delta: bound 0.025, Monte Carlo 0.01; prior: split)"
        )
    )


@pytest.mark.parametrize(
    ("delta", "words"),
    [(0.05, "0.95"), (1e-6, "0.999999"), (4e-7, "1 - 4e-07"), (1e-8, "1 - 1e-08"), (1e-300, "1 - 1e-300")],
)
def test_no_certificate_is_sure(delta: float, words: str) -> None:
    assert f" with probability at least {words} (0-1 loss" in str(seeger(0.03, 50.0, 30_000, delta, FINE))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"prior": Provenance("saw the rows")}, "the prior saw the rows"),
        ({"prior": Provenance()}, "nobody said where the prior came from"),
        ({"prior": Provenance("row-level DP", 0.1, 1e-6)}, "needs pure privacy of rows"),
        ({"independent": False}, "not declared independent"),
        ({"tried": None}, "uncounted"),
        ({"predictor": "point estimate"}, "not on a point estimate"),
        ({"predictor": "averaged prediction"}, "convex loss only"),
        ({"predictor": "majority vote", "loss": ClippedNLL()}, "0-1 loss only"),
    ],
)
@pytest.mark.parametrize("name", CLIENT_BOUNDS)
def test_every_broken_premise_is_a_reason_of_every_bound(name: str, change: dict[str, Any], reason: str) -> None:
    premises = dataclasses.replace(FINE, posterior="exact Gibbs")
    bound = BOUNDS[name]
    if bound.private:
        if "prior" in change and not change["prior"].private:
            return
        premises = dataclasses.replace(premises, prior=Provenance("row-level DP", 0.1))
    numbers = {"risk": 0.1, "kl": 2.0, "n": 100, "beta": 10.0, "log_z": -0.1 * 10}
    assert bound.certify(numbers, 0.05, premises).valid
    broken = bound.certify(numbers, 0.05, dataclasses.replace(premises, **change))
    assert not broken.valid
    assert [reason in given for given in broken.reasons] == [True]
    assert "no certificate" in str(broken) and "at most" not in str(broken)
    assert f"{broken.value.item():.3f}" not in str(broken)


def test_a_convex_loss_certifies_averaged_predictions() -> None:
    premises = dataclasses.replace(
        FINE, loss=LossRange("Brier score", 0, 2, convex=True), predictor="averaged prediction"
    )
    assert seeger(0.1, 2.0, 100, 0.05, premises).valid


def test_a_majority_vote_costs_a_factor_of_two() -> None:
    vote = dataclasses.replace(FINE, predictor="majority vote")
    for bound in (seeger, mcallester):
        one, two = bound(0.1, 2.0, 100, 0.05, FINE), bound(0.1, 2.0, 100, 0.05, vote)
        assert two.value.item() == 2 * one.value.item()
        assert two.recompute().item() == two.value.item()
    assert "majority vote" in two.risk


def test_choices_made_on_the_rows_share_delta() -> None:
    tried = dataclasses.replace(FINE, tried=20)
    got = seeger(0.1, 2.0, 100, 0.1, tried, monte_carlo=MonteCarlo(50, 0.04))
    alone = seeger(0.1, 2.0, 100, 0.1 / 20, FINE, monte_carlo=MonteCarlo(50, 0.04 / 20))
    assert got.value.item() == pytest.approx(alone.value.item(), rel=1e-12)
    assert got.valid and got.delta == 0.1


def test_additive_bounds_come_apart_and_others_stay_whole() -> None:
    certificate = alquier(torch.tensor([0.1, 0.2]), 2.0, torch.tensor([100, 50]), 10.0, 0.05, FINE)
    parts = certificate.parts()
    assert list(parts) == ["risk", "divergence", "Hoeffding", "confidence"]
    assert parts["divergence"].item() == 0.2
    torch.testing.assert_close(sum(parts.values()), certificate.value, rtol=1e-15, atol=0)
    assert list(seeger(0.1, 2.0, 100, 0.05, FINE).parts()) == ["bound"]


def test_a_value_that_says_nothing_is_called_vacuous() -> None:
    several = seeger(torch.tensor([0.1, 0.1]), torch.tensor([2.0, 1e6]), 100, 0.05, FINE)
    assert several.vacuous.tolist() == [False, True]
    assert "for 2 clients" in str(several) and "vacuous for 1 of 2" in str(several)
    wide = dataclasses.replace(FINE, loss=LossRange("a loss", 0, 3))
    assert not seeger(0.1, 10.0, 100, 0.05, wide).vacuous
    one = mcallester(0.1, 1e3, 100, 0.05, wide)
    assert one.vacuous and str(one).endswith("; vacuous: the loss never exceeds 3")


def test_delta_is_split_and_checked() -> None:
    assert split_delta(0.05) == {"bound": 0.05}
    for delta in (0.0, 1.0, -0.1, math.nan):
        with pytest.raises(AssumptionError, match="delta must lie strictly between 0 and 1"):
            seeger(0.1, 2.0, 100, delta, FINE)
    for spent in (0.05, 0.06, 0.0):
        with pytest.raises(AssumptionError, match="the delta of Monte Carlo"):
            seeger(0.1, 2.0, 100, 0.05, FINE, monte_carlo=MonteCarlo(10, spent))
    with pytest.raises(AssumptionError, match="draws must be at least 1"):
        MonteCarlo(0, 0.01)


@pytest.mark.parametrize("name", CLIENT_BOUNDS)
def test_the_trivial_bound_is_that_of_a_predictor_fixed_before_any_rows(name: str) -> None:
    """Whatever the certificate paid for: a divergence, draws, privacy, choices, a vote."""
    n, beta, guess = torch.tensor([40, 500]), 30.0, torch.tensor([0.9, 0.5], dtype=torch.float64)
    rich = Premises(Provenance("row-level DP", 0.1, draws=2), independent=True, predictor="majority vote", tried=7)
    plain = Premises(Provenance("data-free"), independent=True, posterior="exact Gibbs")

    def value(risk: torch.Tensor, kl: float, premises: Premises, **more: Any) -> Any:
        numbers = {"risk": risk, "kl": kl, "n": n, "beta": beta, "log_z": -beta * risk - kl}
        same = BOUNDS[twin(name) if kl == 0 else name]
        return same.certify(numbers, 0.05, premises, **more)

    draws = {"monte_carlo": MonteCarlo(100, 0.01)} if BOUNDS[name].estimable else {}
    certificate = value(torch.tensor([0.05, 0.1]), 3.0, rich, **draws)
    expected = value(guess, 0.0, plain).value
    torch.testing.assert_close(trivial_bound(certificate, guess), expected, rtol=1e-12, atol=0)
    one = trivial_bound(certificate, 0.9)
    torch.testing.assert_close(one[0], expected[0], rtol=1e-12, atol=0)
    with pytest.raises(AssumptionError, match="risk must be finite, at least 0 and at most 1"):
        trivial_bound(certificate, 1.5)


def test_a_bound_just_below_the_range_may_tell_of_no_learning() -> None:
    result = seeger(0.1, 47.0, torch.tensor([30, 3000]), 0.05, FINE)
    guess = trivial_bound(result, ZeroOne().trivial(2))
    assert not result.vacuous.any() and (result.value < guess).tolist() == [False, True]
    several = trivial_bound(seeger(0.1, 47.0, 30, 0.05, FINE), torch.tensor([0.5, 0.9]))
    assert several.shape == (2,) and several[0].item() == pytest.approx(guess[0].item(), rel=1e-12)
    server = server_bound(torch.tensor([0.1, 0.2]), 30.0, 30, 2.0, 0.05, FINE)
    alone = server_bound(torch.tensor([0.5, 0.5]), 30.0, 30, 0.0, 0.05, FINE)
    assert trivial_bound(server, 0.5).item() == pytest.approx(alone.value.item(), rel=1e-12)


def test_an_estimate_is_the_mean_of_its_draws_or_refused() -> None:
    """The bound is by the draws: a risk above their mean would bound nothing."""
    risks = torch.rand(2, 50, generator=torch.Generator().manual_seed(0))
    drawn = MonteCarlo(50, 0.01, risks)
    assert seeger(risks.mean(1), 1.0, 100, 0.05, FINE, monte_carlo=drawn).valid  # in float32
    with pytest.raises(AssumptionError, match=r"risk must be the mean of its 50 draws, 0.\d+, got 0.5 \(client 1\)"):
        seeger(torch.tensor([risks[0].mean(), 0.5]), 1.0, 100, 0.05, FINE, monte_carlo=drawn)
    for low in (torch.zeros(50), torch.ones(50)):
        with pytest.raises(AssumptionError, match=r"risk must be the mean of its 50 draws, [01], got 0.5 \(give"):
            seeger(0.5, 1.0, 100, 0.05, FINE, monte_carlo=MonteCarlo(50, 0.01, low))
    known: dict[str, Any] = {"risk": 0.5, "kl": 1.0, "n": 100, "delta": 0.05, "premises": FINE}
    equal = torch.full((50,), 0.5), torch.full((50,), 0.1)
    known["variance"] = 0.1
    drawn = MonteCarlo(50, 0.01, *equal)
    listed = MonteCarlo(50, 0.01, equal[0].tolist(), equal[1].numpy())  # type: ignore[arg-type]
    first, second = (empirical_bernstein(**known, monte_carlo=each) for each in (drawn, listed))
    assert first.valid and torch.allclose(first.value, second.value)
    with pytest.raises(AssumptionError, match=r"risks must be one number, or a tensor of one a client .*, got 'low'"):
        MonteCarlo(50, 0.01, "low")  # type: ignore[arg-type]
    with pytest.raises(AssumptionError, match=r"variance must be the mean of its 50 draws, 0.1, got 0.2"):
        empirical_bernstein(**{**known, "variance": 0.2}, monte_carlo=drawn)
    assert seeger(0.5, 1.0, 100, 0.05, FINE, monte_carlo=MonteCarlo(50, 0.01, trials=5000)).valid


@pytest.mark.parametrize(
    ("beta", "name"), [(1e-323, "alquier"), (1.7e308, "alquier"), (1e-323, "catoni"), (1.7e308, "catoni")]
)
def test_a_bound_that_float64_cannot_hold_is_none(beta: float, name: str) -> None:
    """0 times infinity was NaN, which is not below 1 and was no vacuous bound either."""
    wide = Premises(Provenance("split"), independent=True, loss=LossRange("cost", -50.0, 100.0))
    numbers = {
        "risk": torch.tensor([-50.0, -50.0]),
        "kl": 1.0,
        "n": 100,
        "beta": torch.tensor([1.0, beta], dtype=torch.float64),
    }
    with pytest.raises(
        AssumptionError, match=r"the bound by .* must be finite, at least -inf, got (inf|nan) \(client 1\)"
    ):
        BOUNDS[name].certify(numbers, 0.05, wide)


def test_what_is_no_estimate_and_certificates_of_no_client_are_refused() -> None:
    with pytest.raises(AssumptionError, match=r"monte_carlo must be a MonteCarlo\(draws, delta\), got 1000"):
        seeger(0.1, 1.0, 10, 0.05, FINE, monte_carlo=1000)  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match=r"a bound is of one client \[\] or of several \[K\], got none"):
        seeger(torch.tensor([]), 0.0, 10, 0.05, FINE)


def test_shares_of_delta_are_subtracted_in_float64() -> None:
    """By client, in float32: the parts were above their sum, and the record could not be read."""
    estimate = MonteCarlo(3, torch.tensor([0.01, 0.02]))
    for delta in (0.05, torch.tensor([0.05, 0.2])):
        made = seeger(torch.tensor([0.1, 0.2]), 5.0, 100, delta, FINE, monte_carlo=estimate)
        parts = sum(torch.as_tensor(part) for part in made.delta_split.values())
        assert bool((parts <= torch.as_tensor(delta)).all()) and parts.dtype == torch.float64
        assert torch.equal(from_record(to_record(made)).value, made.value)
    with pytest.raises(AssumptionError, match="delta must be one number"):
        seeger(0.1, 5.0, 100, torch.tensor(0.05 + 0j), FINE)
