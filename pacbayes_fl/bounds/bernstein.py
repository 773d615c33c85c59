"""A PAC-Bayes bound by the variance of the losses: of use where they vary less than coins do."""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor

from pacbayes_fl.bounds.bound import Bound
from pacbayes_fl.bounds.certificate import Certificate, MonteCarlo, Terms, certify
from pacbayes_fl.bounds.checks import Number, checked, whole
from pacbayes_fl.bounds.client import confidence, in_units, unit_risk
from pacbayes_fl.bounds.costs import drawn_risk, monte_carlo_risk
from pacbayes_fl.bounds.premises import Premises, as_premises, not_of_fixed
from pacbayes_fl.errors import AssumptionError

_RATES = 128
_STEPS = 100  # of Newton's method, which has ended long before
_EULER: Final = 0.5772156649015329
_OUTWARDS = 1e-12  # relative: more than rounding of the root


def empirical_bernstein(
    risk: Number,
    variance: Number,
    kl: Number,
    n: Number,
    delta: Number,
    premises: Premises,
    *,
    monte_carlo: MonteCarlo | None = None,
) -> Certificate:
    """Bound the risk by the variance of the losses (after Tolstikhin and Seldin 2013, Mhammedi et al. 2019).

    L <= L^ + max {d : mean_g exp(g n d - psi(g) T) <= e^(KL + ln(1 / delta))},  psi(g) = -ln(1 - g) - g,
    T = n (1 + H_{n-1} / (n - 1)) V^ + 1/4 for a loss in [0, 1],  H_{n-1} = 1 + 1/2 + ... + 1/(n - 1)

    V^ = E_Q (1/n) sum_i (l_i(h) - L^(h))^2 is the variance over rows, averaged over hypotheses; a larger number may
    stand for it. The rates are 128 fixed ones, g / (1 - g) being equidistant in its logarithm from n^(-1/2) to n: the
    best of all rates costs about ln ln n nats. About L^ + sqrt(2 V^ (KL + ln(1 / delta)) / n) for small variance.

    Why it holds: ln(1 - g y) >= -g y - psi(g) y^2 for y <= 1 and 0 < g < 1, as (ln(1 - u) + u) / u^2 falls with u (Fan,
    Grama and Liu 2015). Hence for x in [0, 1] of mean m and c in [0, 1] that x does not depend on, y = x - c,

        E exp(g (m - x) - psi(g) (x - c)^2) <= e^(g (m - c)) E (1 - g (x - c)) = e^(g (m - c)) (1 - g (m - c)) <= 1.

    Take the rows in any order, c_1 = 1/2 and c_i the mean loss of those before: the product over rows has mean at most
    1, and by Jensen's inequality so has the exponential of the exponents' mean over all orders. There (x_1 - 1/2)^2 is
    at most 1/4, and (x_i - c_i)^2 is on average s^2 (1 + 1 / (i - 1)), s^2 = n V / (n - 1): what two numbers drawn
    without replacement differ by. These sum to T. So E exp(g n (L(h) - L^(h)) - psi(g) T(h)) <= 1 for every h and g;
    the mean over g and h ~ P is bounded by Markov's inequality. Donsker and Varadhan's inequality gives E_Q ln mean_g
    exp(...) <= KL + ln(1 / delta) for all Q at once, and the logarithm of a mean of exponentials is convex, so that it
    may be taken of the averages over Q.

    Draws that estimate the risk estimate V^ too, each at half of their share of delta. V^ is of single hypotheses:
    losses of which every row has a hypothesis of its own vary less where rows err in turn, and do not estimate it. As
    l^2 <= (a + b) l - a b in [a, b], V^ <= (L^ - a) (b - L^) whatever the hypotheses are: the bound of L^ by the draws
    is one of V^ too, and the smaller one counts. R^2 / 4 is the variance to give where there is no estimate.

    Example:
        >>> from pacbayes_fl.bounds import Premises, Provenance, empirical_bernstein, seeger
        >>> premises = Premises(Provenance("split"), independent=True)
        >>> by_variance = empirical_bernstein(0.3, variance=0.001, kl=5.0, n=1000, delta=0.05, premises=premises)
        >>> round(by_variance.value.item(), 3), round(seeger(0.3, 5.0, 1000, 0.05, premises).value.item(), 3)
        (0.312, 0.373)
    """
    loss = as_premises(premises).loss
    if premises.average != "client":
        raise AssumptionError(f"a bound by the variance is on one client, not on {premises.average!r}")
    terms = {
        "risk": checked("risk", risk, loss.low, loss.high),
        "variance": checked("variance", variance, 0.0, 0.25 * (loss.high - loss.low) ** 2),
        "kl": checked("kl", kl, 0.0),
        "n": whole("n", n),
    }
    theorem, reasons = "empirical Bernstein", not_of_fixed(premises)
    return certify(theorem, _bernstein, terms, delta, premises, monte_carlo=monte_carlo, reasons=reasons)


def _bernstein(terms: Terms) -> dict[str, Tensor]:
    halved = {**terms, "mc_delta": 0.5 * terms["mc_delta"]} if "mc_delta" in terms else terms
    risk, n = unit_risk(halved), terms["n"]
    harmonic = torch.digamma(n) + _EULER  # H_{n-1}
    total = n * (1.0 + harmonic / (n - 1.0).clamp_min(1.0)) * _unit_variance(halved, risk) + 0.25
    away = _deviation(*torch.broadcast_tensors(terms["kl"] + confidence(terms), total, n))
    return {"bound": in_units((risk + away).clamp_max(1.0), terms)}


def _unit_variance(terms: Terms, risk: Tensor) -> Tensor:
    """Variance [] or [K] of a loss in [0, 1], with what its estimation from draws costs: 4 V^ lies in [0, 1].

    The risk is the bound of L^ by its draws.
    """
    scale = 4.0 / (terms["high"] - terms["low"]).square()
    result = (scale * terms["variance"]).clamp(0.0, 1.0)
    if "mc_draws" not in terms:
        return 0.25 * result
    draws = terms.get("mc_variance_draws", terms["mc_draws"])  # records of earlier versions have one number for both
    if "mc_variances" in terms:
        result = drawn_risk((scale * terms["mc_variances"]).clamp(0.0, 1.0), draws, terms["mc_delta"])
    else:
        result = monte_carlo_risk(result, draws, terms["mc_delta"])
    if "mc_variance_draws" not in terms:
        return 0.25 * result
    most = risk.clamp_max(0.5)
    return torch.minimum(0.25 * result, most * (1.0 - most))


def _deviation(nats: Tensor, total: Tensor, n: Tensor) -> Tensor:
    """Largest d with ln mean_g exp(g n d - psi(g) T) <= nats, never below it.

    The left side is convex in d and grows: Newton's method comes from above, and one step more has all slopes.
    """
    place = torch.linspace(0.0, 1.0, _RATES, dtype=torch.float64, device=n.device)
    logit = (1.5 * place - 0.5) * n.log().unsqueeze(-1)  # ln g / (1 - g)
    rate, price = logit.sigmoid(), torch.nn.functional.softplus(logit) - logit.sigmoid()

    def step(d: Tensor, nats: Tensor, total: Tensor) -> Tensor:
        exponents = rate * (n * d).unsqueeze(-1) - price * total.unsqueeze(-1)
        slope = (exponents.softmax(-1) * rate).sum(-1).detach() * n
        return d - (exponents.logsumexp(-1) - math.log(_RATES) - nats) / slope

    with torch.no_grad():
        best = ((nats + math.log(_RATES)).unsqueeze(-1) + price * total.unsqueeze(-1)) / (rate * n.unsqueeze(-1))
        d = best.amin(-1)
        for _ in range(_STEPS):
            last, d = d, torch.minimum(d, step(d, nats, total))
            if bool((last - d <= 1e-15 * last).all()):
                break
    return step(d, nats, total) * (1.0 + _OUTWARDS)


EMPIRICAL_BERNSTEIN = Bound(
    name="empirical-bernstein",
    function=empirical_bernstein,
    formula=_bernstein,
    needs=("risk", "variance", "kl", "n"),
    poolable=False,
    world="rare losses",
)
