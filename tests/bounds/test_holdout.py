"""Hold-out bounds: every failure counted by exact enumeration, the published numbers, and what they are not about."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from pacbayes_fl import bounds
from pacbayes_fl.bounds import BOUNDS, Certificate, Premises, Provenance
from pacbayes_fl.bounds.costs import client_privacy
from pacbayes_fl.bounds.losses import LossRange, ZeroOne
from pacbayes_fl.errors import AssumptionError, ShapeError

FINE = Premises(Provenance("split"), independent=True)
UNIT = Premises(Provenance("split"), independent=True, loss=LossRange("loss in [0, 1]", 0.0, 1.0))
OF_ERRORS = [name for name, bound in BOUNDS.items() if bound.fixed and "risk" in bound.needs]
Bounding = Callable[[Tensor, int, float], Tensor]


def of_errors(name: str) -> Bounding:
    """Give a hold-out bound as a function of errors [W], rows and delta."""

    def bound(errors: Tensor, n: int, delta: float) -> Tensor:
        if name == "holdout-betting":
            losses = (torch.arange(n) < errors.unsqueeze(-1)).double()
            return bounds.holdout_betting(losses, delta, FINE).value
        return BOUNDS[name].certify({"risk": errors / n, "n": n}, delta, FINE).value

    return bound


def worst(
    bound: Bounding, rows: tuple[int, ...] = (1, 2, 5, 20, 100), deltas: tuple[float, ...] = (0.5, 0.05, 1e-3)
) -> float:
    """Largest P[bound < L] / delta over all L: it is attained where L is just above a value of the bound."""
    result = 0.0
    for n, delta in itertools.product(rows, deltas):
        values = bound(torch.arange(n + 1).double(), n, delta).numpy()
        for value in values[values < 1]:
            truth = np.nextafter(value, 1.0)
            chance = stats.binom.pmf(np.arange(n + 1), n, truth)[values < truth].sum()
            result = max(result, chance / delta)
    return result


@pytest.mark.parametrize("name", [*OF_ERRORS, "holdout-betting"])
def test_no_chance_of_errors_makes_a_bound_fail_more_often_than_delta(name: str) -> None:
    ratio = worst(of_errors(name))
    assert ratio <= 1.0 + 1e-9
    if name == "holdout-binomial":  # the boundary itself: no smaller bound holds
        assert ratio > 1.0 - 1e-6


@pytest.mark.parametrize("name", [*OF_ERRORS, "holdout-betting"])
def test_a_bound_that_is_a_little_too_small_is_found(name: str) -> None:
    """Mutants: delta three times as large, which is a factor left out, and one error fewer."""
    bound = of_errors(name)
    loose = 3.0 if name == "holdout-binomial" else 40.0
    assert worst(lambda k, n, delta: bound(k, n, min(0.999, loose * delta)), (1, 20), (0.02,)) > 1.0
    assert worst(lambda k, n, delta: bound((k - 1).clamp_min(0), n, delta), (2, 100), (0.5,)) > 1.0


def test_losses_between_0_and_1_are_covered_by_enumeration() -> None:
    """All tables of 8 rows over three values, at three laws; the sums are exact."""
    values, n = torch.tensor([0.0, 0.3, 1.0]).double(), 8
    counts = [c for c in itertools.product(range(n + 1), repeat=3) if sum(c) == n]
    losses = torch.stack([values.repeat_interleave(torch.tensor(count)) for count in counts])
    for law in ((0.2, 0.7, 0.1), (0.05, 0.05, 0.9), (0.6, 0.399, 0.001)):
        truth = float(torch.tensor(law).double() @ values)
        chance = stats.multinomial.pmf(np.array(counts), n, law)
        for delta in (0.3, 0.05):
            betting = bounds.holdout_betting(losses, delta, UNIT).value
            klinv = bounds.holdout_kl(losses.mean(-1), n, delta, UNIT).value
            for bound in (betting, klinv):
                assert chance[(bound < truth).numpy()].sum() <= delta
            assert bool((betting <= 1.0).all())


def test_the_binomial_tail_is_clopper_and_pearson_s() -> None:
    errors, n = torch.tensor([0.0, 3.0, 11.0, 125.0]).double(), 125
    got = bounds.holdout_binomial(errors / n, n, 0.05, FINE).value
    expected = [stats.beta.ppf(0.95, k + 1, n - k) for k in errors[:-1].tolist()]
    assert got.tolist() == pytest.approx([*expected, 1.0], rel=1e-9)
    assert got[0].item() == pytest.approx(1 - 0.05 ** (1 / n), rel=1e-9)
    assert bool((bounds.holdout_binomial((errors / n).float(), n, 0.05, FINE).value >= got).all())


def test_bounds_that_imply_each_other_are_in_that_order() -> None:
    risk = torch.tensor([0.0, 0.04, 0.096, 0.4])
    value = {name: BOUNDS[name].certify({"risk": risk, "n": 125}, 0.05, FINE).value for name in OF_ERRORS}
    order = ("holdout-binomial", "holdout-kl", "holdout-chernoff")
    for tight, loose in itertools.pairwise(order):
        assert bool((value[tight] <= value[loose] + 1e-9).all()) and value[tight][1] < value[loose][1]
    assert bool((value["holdout-kl"] < value["holdout-hoeffding"] + 1e-12).all())
    assert value["holdout-hoeffding"][2].item() == pytest.approx(0.096 + math.sqrt(math.log(20) / 250), rel=1e-6)


def test_losses_that_vary_little_have_a_smaller_bound_by_betting_than_by_their_mean() -> None:
    losses = 0.3 + 0.02 * torch.sin(torch.arange(400.0)).double()
    betting, klinv = (
        bounds.holdout_betting(losses, 0.05, UNIT).value,
        bounds.holdout_kl(losses.mean(), 400, 0.05, UNIT).value,
    )
    assert 0.3 < betting < 0.315 < 0.35 < klinv
    wide = Premises(Provenance("split"), independent=True, loss=LossRange("loss", -2.0, 2.0))
    moved = bounds.holdout_betting(4.0 * losses - 2.0, 0.05, wide).value
    assert moved.item() == pytest.approx(4.0 * betting.item() - 2.0, rel=1e-9)


def test_clients_with_different_numbers_of_rows_are_bounded_as_alone() -> None:
    losses = torch.rand(2, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    both = bounds.holdout_betting(losses, 0.05, UNIT, rows=torch.tensor([30, 7]))
    alone = [bounds.holdout_betting(losses[0], 0.05, UNIT), bounds.holdout_betting(losses[1, :7], 0.05, UNIT)]
    assert both.value.tolist() == pytest.approx([float(each.value) for each in alone], rel=1e-12)
    assert both.terms["risk"][1].item() == pytest.approx(losses[1, :7].mean().item())
    doubted = bounds.holdout_betting(losses, 0.05, UNIT, rows=torch.tensor([20, 20]), doubtful=torch.tensor([10, 0]))
    sets = [torch.cat((losses[0, :20], losses[0, 20:][list(more)])) for size in (0, 1, 4, 10)
            for more in itertools.islice(itertools.combinations(range(10), size), 30)]  # fmt: skip
    each = [float(bounds.holdout_betting(one, 0.05, UNIT).value) for one in sets]
    assert max(each) <= doubted.value[0].item() < max(each) + 0.05
    assert doubted.value[1].item() == pytest.approx(float(bounds.holdout_betting(losses[1, :20], 0.05, UNIT).value))
    with pytest.raises(AssumptionError, match="rows must be at most 30, the losses given, got 31"):
        bounds.holdout_betting(losses, 0.05, UNIT, rows=31)
    with pytest.raises(ShapeError, match="losses must be"):
        bounds.holdout_betting(torch.tensor(0.3), 0.05, UNIT)


def test_a_predictor_released_with_privacy_from_the_rows_pays_for_it() -> None:
    private = Premises(Provenance("client-level DP", 0.5, 0.001), independent=True)
    left = math.exp(math.log(0.05) - float(client_privacy(0.5, 0.001, 0.05)))
    paid = bounds.holdout_binomial(0.1, 100, 0.05, private).value
    assert paid.item() == pytest.approx(bounds.holdout_binomial(0.1, 100, left, FINE).value.item(), rel=1e-9)


class Costly(ZeroOne):
    """One of its errors costs half, which its parent knows nothing of."""

    name = "cost"


COSTLY = Premises(Provenance("split"), independent=True, loss=Costly())


@pytest.mark.parametrize(
    ("certificate", "reason"),
    [
        (lambda: bounds.holdout_binomial(0.09, 125, 0.05, FINE), "no whole number of errors"),
        (lambda: bounds.holdout_binomial(0.2, 125, 0.05, UNIT), "is no 0-1 loss"),
        (lambda: bounds.holdout_binomial(0.2, 125, 0.05, COSTLY), "cost is no 0-1 loss"),
        (lambda: bounds.tandem(0.2, 1.0, 125, 0.05, COSTLY), "cost is no 0-1 loss"),
        (lambda: bounds.seeger(0.2, 1.0, 125, 0.05, replace(COSTLY, predictor="majority vote")), "not for cost"),
        (lambda: bounds.holdout_kl(0.2, 125, 0.05, Premises(independent=True)), "nobody said where the prior"),
        (lambda: bounds.holdout_kl(0.2, 125, 0.05, Premises(Provenance("split"))), "not declared independent"),
        (lambda: bounds.seeger(0.2, 0.0, 125, 0.05, Premises(Provenance("split"), True, predictor="fixed predictor")),
         "for a fixed predictor take a hold-out bound"),
    ],
)  # fmt: skip
def test_a_bound_that_does_not_hold_says_why(certificate: Callable[[], Certificate], reason: str) -> None:
    assert any(reason in text for text in certificate().reasons)


def test_errors_are_counted_of_the_0_1_loss_alone() -> None:
    assert [bounds.holdout_for(loss).name for loss in (ZeroOne(), Costly())] == ["holdout-binomial", "holdout-betting"]


def test_an_average_over_clients_has_no_hold_out_bound() -> None:
    with pytest.raises(AssumptionError, match="on one client's predictor, not on 'size-weighted clients'"):
        bounds.holdout_kl(0.2, 125, 0.05, Premises(Provenance("split"), True, average="size-weighted clients"))


def test_a_share_that_was_rounded_down_stands_for_its_errors() -> None:
    """One error of 30 as .0333333, and a third of a third of a million as a share in float32 that numpy holds."""
    for share, n, errors in (
        (0.0333333, 30, 1),
        (float(np.float32(1 / 3)), 3 * 10**5, 10**5),
        (0.0999999999, 10**7, 10**6),
    ):
        got = bounds.holdout_binomial(share, n, 0.05, FINE)
        assert got.valid and got.value >= bounds.holdout_binomial(errors / n, n, 0.05, FINE).value
