"""The bound under a stated constant: exact failures in the worlds that it is sharpest in, and what it is not for."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import optimize, stats

from pacbayes_fl import bounds
from pacbayes_fl.bounds import Premises, Provenance, UnboundedLoss, unbounded
from pacbayes_fl.bounds.coverage import DRAWN, MOST, coverage
from pacbayes_fl.errors import AssumptionError

FINE = Premises(Provenance("data-free"), independent=True, loss=UnboundedLoss("NLPD"))
DELTA = 0.05


def above(n: int, beta: float, scale: float, kl: float = 0.0) -> float:
    """What the bound adds to the empirical risk, s^2 = 1."""
    return bounds.sub_gamma(0.0, kl, n, beta, 1.0, scale, DELTA, FINE).value.item()


@pytest.mark.parametrize("n", [1, 5, 200])
def test_it_fails_no_more_often_than_delta_and_without_its_constant_it_would(n: int) -> None:
    """Losses that are normal, s = 1 and c = 0, or 1 - E for a standard exponential E, s = c = 1: by their tails."""
    normal = [stats.norm.sf(above(n, beta, 0.0) * math.sqrt(n)) for beta in np.geomspace(0.1, 10, 40) * math.sqrt(n)]
    gamma = [stats.gamma.sf(n * (1 + above(n, share * n, 1.0)), n) for share in np.linspace(0.02, 0.98, 49)]
    assert max(*normal, *gamma) <= DELTA
    root = math.sqrt(2 * math.log(1 / DELTA))
    assert max(normal) == pytest.approx(stats.norm.sf(root), rel=0.05)  # at the best beta: Chernoff's own tail
    if n == 200:
        beta = 200 * root / (math.sqrt(200) + root)
        terms = [each.item() for each in bounds.sub_gamma(0.0, 0.0, n, beta, 1.0, 1.0, DELTA, FINE).parts().values()]
        assert stats.gamma.sf(n * (1 + terms[3]), n) > DELTA  # without the stated constant


def test_what_is_left_out_is_found_by_its_world(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = {"unbounded losses": tuple(DRAWN["unbounded losses"](0))}
    assert max(one.failures for one in coverage(unbounded.SUB_GAMMA, cases)) <= MOST  # type: ignore[arg-type]
    own = unbounded._sub_gamma
    for part in ("divergence", "stated constant"):

        def without(terms: dict[str, torch.Tensor], part: str = part) -> dict[str, torch.Tensor]:
            return {name: 0 * value if name == part else value for name, value in own(terms).items()}

        monkeypatch.setattr(unbounded, "_sub_gamma", without)
        assert max(one.failures for one in coverage(unbounded.SUB_GAMMA, cases)) > MOST  # type: ignore[arg-type]


def test_a_loss_with_a_range_has_hoeffding_s_constant_and_the_formula_of_alquier() -> None:
    premises = Premises(Provenance("split"), independent=True, loss=bounds.LossRange("loss", 0.0, 3.0))
    one = bounds.sub_gamma(0.4, 2.0, 50, 7.0, 9 / 4, 0.0, DELTA, premises).value
    torch.testing.assert_close(one, bounds.alquier(0.4, 2.0, 50, 7.0, DELTA, premises).value, rtol=1e-12, atol=0)


def test_a_loss_that_is_never_below_its_least_value_is_sub_gamma_by_its_second_moment() -> None:
    """-ln N(y; 0, 1) less its least value, y normal: any upper tail, s^2 the mean of its square and c = 0."""
    y = torch.randn(400_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    loss = 0.5 * y.square()
    for t in (0.1, 1.0, 5.0):
        assert math.log(float((t * (0.5 - loss)).exp().mean())) <= 0.5 * t**2 * 0.75  # E y^4 / 4 = 3 / 4


def test_the_beta_of_the_docstring_is_the_best() -> None:
    for n, kl, s2, c in ((100.0, 3.0, 0.4, 0.0), (50.0, 9.0, 2.0, 1.5)):
        root = math.sqrt(2 * (kl - math.log(DELTA)))
        best = n * root / (math.sqrt(n * s2) + c * root)

        def value(beta: float, n: float = n, kl: float = kl, s2: float = s2, c: float = c) -> float:
            return bounds.sub_gamma(0.0, kl, n, beta, s2, c, DELTA, FINE).value.item()

        limit = 1e4 if c == 0 else n / c * 0.999
        found = optimize.minimize_scalar(value, bounds=(1e-3, limit), method="bounded", options={"xatol": 1e-9})
        assert value(best) <= found.fun + 1e-9


def test_no_other_bound_takes_a_loss_without_a_range_and_its_record_is_json() -> None:
    with pytest.raises(AssumptionError, match="loss 'NLPD' must be bounded"):
        bounds.seeger(0.4, 1.0, 50, DELTA, FINE)
    with pytest.raises(AssumptionError, match="loss 'NLPD' must be bounded"):
        bounds.holdout_betting(torch.ones(5), DELTA, FINE)
    with pytest.raises(AssumptionError, match="beta must be below n / scale, 25"):
        bounds.sub_gamma(0.4, 1.0, 50, 25.0, 1.0, 2.0, DELTA, FINE)
    one = bounds.sub_gamma(-1.3, 1.0, 50, 7.0, 1.0, 2.0, DELTA, FINE)
    again = bounds.from_record(bounds.to_record(one))
    assert one.valid and torch.equal(again.value, one.value) and again.premises == FINE and not one.vacuous
    normal = bounds.sub_gamma(1.3, 1.0, 50, 7.0, 1.0, 0.0, DELTA, replace(FINE, loss=bounds.NormalNLL(1.0)))
    again = bounds.from_record(bounds.to_record(normal))
    assert normal.valid and again.premises.loss == bounds.NormalNLL(1.0) and torch.equal(again.value, normal.value)
    with pytest.raises(AssumptionError, match="must be bounded"):
        bounds.seeger(1.4, 1.0, 50, DELTA, replace(FINE, loss=bounds.NormalNLL(1.0)))
    assert "NLPD of the Gibbs predictor" in str(one) and "inf" not in one.to_json()
