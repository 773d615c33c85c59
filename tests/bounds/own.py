"""A bound as a reader of the documentation would write it: one function, one formula, one record."""

from __future__ import annotations

from pacbayes_fl.bounds.bound import Bound
from pacbayes_fl.bounds.certificate import Certificate, MonteCarlo, Terms, certify
from pacbayes_fl.bounds.checks import Number, checked, whole
from pacbayes_fl.bounds.costs import monte_carlo_risk
from pacbayes_fl.bounds.moment import log_moment
from pacbayes_fl.bounds.premises import Premises


def _formula(terms: Terms) -> Terms:
    risk = monte_carlo_risk(terms["risk"], terms["mc_draws"], terms["mc_delta"]) if "mc_draws" in terms else None
    unit = (terms["risk"] if risk is None else risk) / terms["high"]
    share = (terms["kl"] - terms["delta"].log() + log_moment(terms["n"])) / terms["n"]
    root = (2.0 * unit * share + 1e-300).sqrt()
    return {"risk": terms["high"] * unit, "root": terms["high"] * root, "complexity": 2.0 * terms["high"] * share}


def refined_pinsker(
    risk: Number, kl: Number, n: Number, delta: Number, premises: Premises, *, monte_carlo: MonteCarlo | None = None
) -> Certificate:
    """Bound the risk by the refined Pinsker inequality.

    L <= L^ + sqrt(2 L^ B) + 2 B,  B = (KL + ln(xi(n) / delta)) / n, for a loss that begins at 0
    """
    loss = premises.loss
    terms = {"risk": checked("risk", risk, loss.low, loss.high), "kl": checked("kl", kl, 0.0), "n": whole("n", n)}
    return certify("refined Pinsker", _formula, terms, delta, premises, monte_carlo=monte_carlo)


REFINED_PINSKER = Bound(
    name="refined-pinsker",
    function=refined_pinsker,
    formula=_formula,
    needs=("risk", "kl", "n"),
    poolable=True,
    world="fair coins",
)
