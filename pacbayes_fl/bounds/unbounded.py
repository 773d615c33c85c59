"""A PAC-Bayes bound for a loss without a range, such as a negative log density, under constants that are stated."""

from __future__ import annotations

from torch import Tensor

from pacbayes_fl.bounds.bound import Bound
from pacbayes_fl.bounds.certificate import Certificate, Terms, certify
from pacbayes_fl.bounds.checks import Number, checked, require_alike, whole
from pacbayes_fl.bounds.client import confidence
from pacbayes_fl.bounds.premises import Premises, as_premises, not_of_fixed
from pacbayes_fl.errors import AssumptionError


def sub_gamma(
    risk: Number,
    kl: Number,
    n: Number,
    beta: Number,
    variance_factor: Number,
    scale: Number,
    delta: Number,
    premises: Premises,
) -> Certificate:
    """Bound the risk under a loss without a range that is sub-gamma below its mean (after Germain et al. 2016).

    L <= L^ + (KL + ln(1 / delta)) / beta + beta s^2 / (2 n (1 - beta c / n)),  0 < beta < n / c

    It rests on a statement that no rows can show, and that must not be estimated from those of the bound:

        ln E exp(t (L(h) - l(h, z))) <= t^2 s^2 / (2 (1 - c t)) for t = beta / n and P-almost every hypothesis h,

    s^2 the variance factor, in squared units of the loss, c the scale, in its unit. A loss that is never below a and
    whose (l - a)^2 has a mean of at most s^2 is so with c = 0, whatever its upper tail: e^-u <= 1 - u + u^2 / 2 for
    u >= 0. Losses of range R have s = R / 2 and c = 0 (Hoeffding's lemma). -ln N(y; f(x), s_y^2) is never below
    ln(2 pi s_y^2) / 2, but the mean of its square is bounded where f and y are: not under a Gaussian process over
    functions of any size, of which the statement has to be made for functions that are clipped, or by who knows better.

    For a B = KL + ln(1 / delta) that is expected before the rows are seen, the best beta is n sqrt(2 B) / (sqrt(n) s +
    c sqrt(2 B)).

    Why it holds: rows are independent, so that E_S exp(beta (L(h) - L^(h))) <= exp(beta^2 s^2 / (2 n (1 - beta c / n)))
    for P-almost every h, hence for its mean under P; by Markov's inequality and that of Donsker and Varadhan, for all Q
    at once. A statement on the mean over h ~ P of a single row's exponential does not do: the n rows share h, and
    E_P u^n >= (E_P u)^n.

    Example:
        >>> from pacbayes_fl.bounds import Premises, Provenance, UnboundedLoss, sub_gamma
        >>> premises = Premises(Provenance("split"), independent=True, loss=UnboundedLoss("nlpd"))
        >>> bound = sub_gamma(1.5, 5.0, 1000, beta=100.0, variance_factor=4.0, scale=0.0, delta=0.05, premises=premises)
        >>> round(bound.value.item(), 4)  # 1.5 + (5 + ln 20) / 100 + 100 x 4 / 2000
        1.78
    """
    loss = as_premises(premises).loss
    if premises.average != "client":
        raise AssumptionError(f"a bound under a stated constant is on one client, not on {premises.average!r}")
    terms = {
        "risk": checked("risk", risk, loss.low, loss.high),
        "kl": checked("kl", kl, 0.0),
        "n": whole("n", n),
        "beta": checked("beta", beta, 0.0, strict=True),
        "variance_factor": checked("variance_factor", variance_factor, 0.0, strict=True),
        "scale": checked("scale", scale, 0.0),
    }
    require_alike(terms)
    if bool((terms["beta"] * terms["scale"] >= terms["n"]).any()):
        most = (terms["n"] / terms["scale"]).min().item()
        raise AssumptionError(f"beta must be below n / scale, {most:g}", hint="a smaller beta, fixed before the rows")
    theorem = "sub-gamma loss at fixed beta"
    return certify(theorem, _sub_gamma, terms, delta, premises, reasons=not_of_fixed(premises), any_range=True)


def _sub_gamma(terms: Terms) -> dict[str, Tensor]:
    rate = terms["beta"] / terms["n"]
    return {
        "risk": terms["risk"],
        "divergence": terms["kl"] / terms["beta"],
        "stated constant": 0.5 * rate * terms["variance_factor"] / (1.0 - rate * terms["scale"]),
        "confidence": confidence(terms) / terms["beta"],
    }


SUB_GAMMA = Bound(
    name="sub-gamma",
    function=sub_gamma,
    formula=_sub_gamma,
    needs=("risk", "kl", "n", "beta", "variance_factor", "scale"),
    poolable=False,
    world="unbounded losses",
)
