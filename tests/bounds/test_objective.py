"""Objectives: the formulas anew in numpy, slopes by finite differences, and minima that scipy finds too."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import brentq, minimize, minimize_scalar
from torch.autograd import gradcheck

from pacbayes_fl.bounds import BOUNDS, ClippedNLL, LossRange, MonteCarlo, Premises, Provenance, ZeroOne
from pacbayes_fl.bounds.divergence import discrete_kl, gibbs_weights
from pacbayes_fl.bounds.objective import Objective, objective
from pacbayes_fl.errors import AssumptionError

N, DELTA, BETA = 60, 0.05, 25.0
FINE = Premises(Provenance("split"), independent=True, loss=ClippedNLL())
RISKS = np.array([0.05, 0.08, 0.13])
PRIOR = np.array([0.1, 0.3, 0.6])
GIVEN: dict[str, dict[str, Any]] = {
    "seeger": {},
    "pbb-quadratic": {},
    "pbb-lambda": {},
    "mcallester": {},
    "catoni": {"beta": BETA},
}
_EXACT = {"xatol": 1e-9}
every = pytest.mark.parametrize("name", GIVEN)


def make(name: str, **changes: Any) -> Objective:
    return objective(name, **{"n": N, "delta": DELTA, "premises": FINE, **GIVEN[name], **changes})


def log_xi() -> float:
    terms = [math.comb(N, k) * (k / N) ** k * (1 - k / N) ** (N - k) for k in range(N + 1)]
    return math.log(sum(terms))


def binary(q: float, p: float) -> float:
    return sum(a * math.log(a / b) for a, b in ((q, p), (1 - q, 1 - p)) if a)


def by_hand(name: str, risk: float, kl: float) -> float:
    """Write the formula of Perez-Ortiz et al. (2021), and of Catoni (2007), with Maurer's constant."""
    nats = kl + log_xi() - math.log(DELTA)
    s = nats / (2 * N)
    if name == "seeger":
        return float(brentq(lambda p: binary(risk, p) - nats / N, risk, 1 - 1e-15, xtol=1e-15))
    if name == "catoni":
        exponent = BETA * risk / N + (kl - math.log(DELTA)) / N
        return (1 - math.exp(-exponent)) / (1 - math.exp(-BETA / N))
    if name == "mcallester":
        return risk + math.sqrt(s)
    if name == "pbb-quadratic":
        return (math.sqrt(risk + s) + math.sqrt(s)) ** 2
    best = minimize_scalar(
        lambda w: risk / (1 - w / 2) + nats / (N * w * (1 - w / 2)), bounds=(0, 2), method="bounded", options=_EXACT
    )
    return float(best.fun)


@every
@pytest.mark.parametrize(("risk", "kl"), [(0.1, 2.0), (0.0, 0.0), (0.3, 0.4)])
def test_an_objective_is_the_formula_and_the_value_of_its_certificate(name: str, risk: float, kl: float) -> None:
    one = make(name)
    value = one(torch.tensor(risk), torch.tensor(kl)).item()
    assert value == pytest.approx(by_hand(name, float(torch.tensor(risk)), float(torch.tensor(kl))), rel=1e-7)
    certificate = one.certify(torch.tensor(risk), torch.tensor(kl))
    assert certificate.value.item() == value and certificate.valid
    assert certificate.formula is BOUNDS[name].formula and one.assumptions == BOUNDS[name].assumptions


@every
def test_slopes_are_those_of_finite_differences(name: str) -> None:
    leaves = [torch.tensor(each, dtype=torch.float64, requires_grad=True) for each in ([0.1, 0.02], [2.0, 9.0])]
    one = make(name, n=torch.tensor([60.0, 200.0]))
    gradcheck(one, leaves, eps=1e-7, atol=1e-5)
    value, by_risk, by_kl = one.slopes(leaves[0].float(), leaves[1].float())
    again = torch.autograd.grad(one(*leaves).sum(), leaves)
    assert not value.requires_grad and torch.allclose(value, one(*leaves).detach(), atol=1e-7)
    assert torch.allclose(by_risk, again[0], rtol=1e-5) and torch.allclose(by_kl, again[1], rtol=1e-5)


@every
def test_descent_ends_where_scipy_does(name: str) -> None:
    """Minimise over all posteriors on three hypotheses: torch by gradients, scipy by the formula in numpy alone."""
    one, risks, prior = make(name), torch.from_numpy(RISKS), torch.from_numpy(PRIOR)
    logits = prior.log().clone().requires_grad_()
    optimiser = torch.optim.LBFGS(
        [logits], max_iter=200, tolerance_grad=1e-12, tolerance_change=1e-16, line_search_fn="strong_wolfe"
    )

    def step() -> torch.Tensor:
        optimiser.zero_grad()
        q = logits.softmax(0)
        value = one(q @ risks, discrete_kl(q, prior))
        value.backward()
        return value

    optimiser.step(step)

    def plain(free: np.ndarray[Any, Any]) -> float:
        q = np.exp(free - free.max())
        q /= q.sum()
        return by_hand(name, float(q @ RISKS), max(0.0, float(q @ np.log(q / PRIOR))))

    found = minimize(plain, np.log(PRIOR), method="Nelder-Mead", options={"fatol": 1e-13})
    ended = step().item()
    assert ended < plain(np.log(PRIOR)) - 1e-3
    assert ended == pytest.approx(found.fun, rel=1e-5) and ended <= found.fun + 1e-7
    if name == "catoni":  # whose minimiser is known: the Gibbs posterior
        weights, _ = gibbs_weights(risks, BETA, prior)
        assert torch.allclose(logits.softmax(0).detach(), weights, atol=1e-5)


def test_the_premises_of_the_certificate_are_those_of_the_training() -> None:
    kept = make("seeger", premises=Premises(Provenance("saw the rows"), loss=ClippedNLL()))
    assert [reason[:24] for reason in kept.broken] == ["the prior saw the rows o", "the rows were not declar"]
    assert kept.certify(0.1, 1.0).reasons == kept.broken and not make("seeger").broken
    tried = make("pbb-quadratic", premises=Premises(Provenance("split"), independent=True, loss=ClippedNLL(), tried=4))
    at = torch.tensor(0.1), torch.tensor(1.0)
    assert float(tried(*at)) == float(make("pbb-quadratic", delta=DELTA / 4)(*at)) > float(make("pbb-quadratic")(*at))
    private = Premises(Provenance("client-level DP", 1.5), independent=True)
    assert float(make("mcallester", premises=private)(*at)) == pytest.approx(
        float(make("mcallester")(at[0], at[1] + 1.5))
    )
    other = make("pbb-quadratic").certify(0.2, 1.0, loss=ZeroOne(), monte_carlo=MonteCarlo(500, 0.01))
    assert other.valid and "0-1 loss" in other.risk and dict(other.delta_split) == {"bound": 0.04, "Monte Carlo": 0.01}


def test_a_wide_loss_keeps_its_unit_and_a_fixed_lambda_is_no_better_than_the_best() -> None:
    wide = make("pbb-lambda", premises=Premises(Provenance("split"), independent=True, loss=LossRange("l", 2.0, 5.0)))
    risk, kl = torch.tensor(0.1, dtype=torch.float64), torch.tensor(2.0)
    assert float(wide(2.0 + 3.0 * risk, kl)) == pytest.approx(
        2.0 + 3.0 * float(make("pbb-lambda")(risk, kl)), rel=1e-12
    )
    assert all(
        float(make("pbb-lambda", weight=w)(risk, kl)) >= float(make("pbb-lambda")(risk, kl)) for w in (0.2, 1.0, 1.7)
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: make("seeger", beta=3.0), "'seeger' has no beta"),
        (lambda: objective("catoni", n=N, delta=DELTA, premises=FINE), "'catoni' needs a beta, fixed before"),
        (lambda: make("seeger", weight=1.0), "'seeger' has no weight"),
        (lambda: make("pbb-lambda", weight=2.0), "weight must lie strictly between 0 and 2"),
        (lambda: make("seeger", delta=1.0), "delta must lie strictly between 0 and 1"),
        (lambda: make("seeger", n=0), "n must be at least 1"),
        (lambda: objective("gibbs", n=N, delta=DELTA, premises=FINE, beta=1.0), "'gibbs' needs log_z"),
        (lambda: objective("best", n=N, delta=DELTA, premises=FINE), "bound must be one of seeger"),
        (lambda: make("seeger")(torch.tensor(1.2), torch.tensor(1.0)), "risk must be finite, at least 0 and at most 1"),
        (lambda: make("seeger")(torch.tensor(0.2), torch.tensor(math.nan)), "kl must be finite"),
    ],
)
def test_what_is_no_objective_is_refused_before_training(call: Callable[[], object], message: str) -> None:
    with pytest.raises(AssumptionError, match=message):
        call()
