"""PAC-Bayes bounds for what the others leave open: one drawn hypothesis, rows that keep arriving, and votes.

Notation and premises are those of `client`, and each has its proof here. None is for pooled rows of clients that are
not alike.
"""

from __future__ import annotations

import math
from dataclasses import replace

from torch import Tensor

from pacbayes_fl.bounds.bound import Bound
from pacbayes_fl.bounds.certificate import Certificate, MonteCarlo, Terms, certify
from pacbayes_fl.bounds.checks import Number, checked, counts_errors, require_alike, whole
from pacbayes_fl.bounds.client import budget, confidence, in_units, of_risk, unit_risk
from pacbayes_fl.bounds.kl_inverse import kl_inverse_upper
from pacbayes_fl.bounds.premises import BY_PAIRS, DRAWN_ONCE, Premises, as_premises
from pacbayes_fl.errors import AssumptionError

# one drawn hypothesis ----------------------------------------------------------------------------------------------


def one_draw(risk: Number, log_ratio: Number, n: Number, delta: Number, premises: Premises) -> Certificate:
    """Bound the risk of one hypothesis that was drawn once from the posterior (after Rivasplata et al. 2020).

    L(h) <= a + R kl^-1((L^(h) - a) / R, (ln dQ/dP(h) + ln(xi(n) / delta)) / n) for one h ~ Q

    The probability is over the rows and the draw, which must be the only one: who draws again and keeps the best counts
    the draws (`premises.tried`). h can then be shipped, alone. `log_ratio` may be negative.

    Why it holds: E_S E_h~Q exp(n kl(L^(h) || L(h)) - ln dQ/dP(h)) = E_S E_h~P exp(n kl) 1[dQ/dP(h) > 0] <= xi(n) as P
    has not seen the rows, and by Markov's inequality.

    Example:
        >>> from pacbayes_fl.bounds import Premises, Provenance, one_draw
        >>> premises = Premises(Provenance("split"), independent=True)
        >>> bound = one_draw(0.03, log_ratio=5.0, n=1000, delta=0.05, premises=premises)
        >>> round(bound.value.item(), 4), bound.premises.predictor
        (0.0637, 'drawn once')
    """
    if as_premises(premises).average != "client":
        raise AssumptionError(f"one drawn hypothesis is one client's, not one of {premises.average!r}")
    reasons = () if premises.predictor in ("Gibbs", DRAWN_ONCE) else (_ONE_DRAW,)
    premises = premises if reasons else replace(premises, predictor=DRAWN_ONCE)
    ratio = checked("log_ratio", log_ratio, -math.inf)
    terms = {"risk": checked("risk", risk, premises.loss.low, premises.loss.high), "n": whole("n", n), "kl": ratio}
    require_alike({"risk": terms["risk"], "log_ratio": ratio, "n": terms["n"], "delta": delta})
    return certify("one draw (Rivasplata et al.)", _one_draw, terms, delta, premises, reasons=reasons)


_ONE_DRAW = "the bound is on one hypothesis drawn from the posterior, the Gibbs predictor that draws once"


def _one_draw(terms: Terms) -> dict[str, Tensor]:
    nats = budget(terms).clamp_min(0.0)  # what is below has a probability that delta pays for
    return {"bound": in_units(kl_inverse_upper(unit_risk(terms), nats / terms["n"]), terms)}


ONE_DRAW = Bound(
    name="one-draw",
    function=one_draw,
    formula=_one_draw,
    needs=("risk", "log_ratio", "n"),
    poolable=False,
    world="drawn hypotheses",
)


# rows that keep arriving -------------------------------------------------------------------------------------------


def anytime(
    risk: Number, kl: Number, n: Number, delta: Number, premises: Premises, *, monte_carlo: MonteCarlo | None = None
) -> Certificate:
    """Bound the risk at all numbers of rows at once (after Jang et al. 2023 and Chugg et al. 2023; proved here).

    L <= a + R kl^-1((L^ - a) / R, (KL + ln(sqrt(pi n + 1) / delta)) / n) for all n and Q with probability 1 - delta

    Rows may keep arriving and be certified after each, whoever stops when: delta is spent once, on one prior that was
    fixed before the first of them. It costs ln(2) / 2 nats more than the kl inverse does at one n that was fixed.

    A risk that was estimated by draws is one estimate at each n, which may mislead with delta_M / (n (n + 1)), delta_M
    the share of the draws: these sum to it, however many estimates there are.

    Why it holds: for a fixed hypothesis of mean loss p, x_i in [0, 1] independent, and q ~ Beta(1/2, 1/2),

        M_n = E_q prod_i (x_i q / p + (1 - x_i) (1 - q) / (1 - p))

    is a martingale of mean 1 that is never negative, and so is E_P M_n: by Ville's inequality it stays below 1 / delta
    for all n at once, with probability 1 - delta. By Donsker and Varadhan's inequality E_Q ln M_n <= KL + ln(1 / delta)
    for all Q. As ln is concave, a factor is at least (q / p)^x ((1 - q) / (1 - p))^(1 - x), so that with k = sum_i x_i

        M_n >= B(k + 1/2, n - k + 1/2) / (pi p^k (1 - p)^(n - k)) >= exp(n kl(k / n || p)) / sqrt(pi n + 1):

    ln B(k + 1/2, n - k + 1/2) + n h(k / n), h the entropy, is least at the ends k = 0 and n, since digamma(x + 1/2) -
    ln x falls with x, and there it is ln(pi r), r = Gamma(n + 1/2) / (sqrt(pi) n!) >= 1 / sqrt(pi n + 1): from n = 1 on
    r^2 (pi n + 1) falls, as (2 n + 1)^2 (pi n + pi + 1) - 4 (n + 1)^2 (pi n + 1) = pi - 3 - (4 - pi) n < 0, towards 1,
    Wallis' product. kl is convex, so that E_Q kl is at least that of the risks.
    """
    if as_premises(premises).average == "size-weighted clients":
        what = f"the anytime bound is on one client's rows, whose losses have one mean, not on {premises.average!r}"
        raise AssumptionError(what, hint="its martingale needs that mean; seeger holds of size-weighted clients")
    return of_risk("anytime kl inverse", _anytime, risk, kl, n, delta, premises, monte_carlo)


def _anytime(terms: Terms) -> dict[str, Tensor]:
    n = terms["n"]
    nats = terms["kl"] + confidence(terms) + 0.5 * (math.pi * n + 1.0).log()
    each = {**terms, "mc_delta": terms["mc_delta"] / (n * (n + 1.0))} if "mc_delta" in terms else terms
    return {"bound": in_units(kl_inverse_upper(unit_risk(each), nats / n), terms)}


ANYTIME = Bound(
    name="anytime",
    function=anytime,
    formula=_anytime,
    needs=("risk", "kl", "n"),
    poolable=False,
    anytime=True,
    world="fair coins",
)


# votes -------------------------------------------------------------------------------------------------------------


def tandem(
    tandem_risk: Number,
    kl: Number,
    n: Number,
    delta: Number,
    premises: Premises,
    *,
    monte_carlo: MonteCarlo | None = None,
) -> Certificate:
    """Bound the error rate of the majority vote by how often two draws err together (Masegosa et al. 2020).

    L(MV) <= 4 kl^-1(T^, (2 KL + ln(xi(n) / delta)) / n),  T^ the share of rows that independent h, h' ~ Q both miss

    Where errors are hardly correlated it is below the factor 2 of "majority vote", and never below the risk's 4 L^2.

    Draws that estimate T^ are independent pairs. All pairs of S hypotheses are S // 2 such draws: their mean
    is one over all orders of means of S // 2 disjoint pairs (Hoeffding 1963, section 5).

    Why it holds: where a weighted vote errs, Q-mass of at least a half errs, so that P[MV errs] <= P[E_Q 1[h errs] >=
    1/2] <= 4 E (E_Q 1[h errs])^2 = 4 E_Q^2 T(h, h') by Markov's inequality of second order; the kl inverse is applied
    to pairs of hypotheses, whose prior is P^2, and KL(Q^2 || P^2) = 2 KL(Q || P).
    """
    if as_premises(premises).average != "client":
        raise AssumptionError(f"a vote is one client's, not one of {premises.average!r}")
    reasons = () if premises.predictor in ("Gibbs", BY_PAIRS) else (_TANDEM,)
    premises = premises if reasons else replace(premises, predictor=BY_PAIRS)
    if not counts_errors(premises.loss):
        reasons = (*reasons, f"a vote has errors, and {premises.loss.name} is no 0-1 loss")
    low, high = premises.loss.low, premises.loss.high
    terms = {"risk": checked("tandem_risk", tandem_risk, low, high), "kl": checked("kl", kl, 0.0), "n": whole("n", n)}
    require_alike({"tandem_risk": terms["risk"], "kl": terms["kl"], "n": terms["n"], "delta": delta})
    theorem = "majority vote by its tandem risk"
    return certify(theorem, _tandem, terms, delta, premises, monte_carlo=monte_carlo, reasons=reasons)


_TANDEM = "the tandem risk has its factor: say predictor = 'Gibbs'"


def _tandem(terms: Terms) -> dict[str, Tensor]:
    nats = budget(terms) + terms["kl"]
    return {"bound": in_units(4.0 * kl_inverse_upper(unit_risk(terms), nats / terms["n"]), terms)}


TANDEM = Bound(
    name="tandem",
    function=tandem,
    formula=_tandem,
    needs=("tandem_risk", "kl", "n"),
    poolable=False,
    world="drawn hypotheses",
)
