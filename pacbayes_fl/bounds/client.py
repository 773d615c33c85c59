"""Bounds on the true risk of one client's posterior, from numbers.

Notation: a posterior Q over hypotheses with empirical risk L^ on n rows, a prior P, KL = KL(Q || P) in nats, a loss
with values in [a, b], R = b - a. Every bound holds with probability at least 1 - delta over the rows, for all Q at
once, and also for pooled rows of clients that are not alike: then it is on the average over these rows. Arguments
are those of `bound.ARGUMENTS`.

A prior that was drawn with differential privacy from the same rows costs nats more in every bound: eps of whole clients
(`client_privacy`), or I(eps, m, delta) of rows (PAC-PFL Theorem 3.2). A risk that was estimated from draws of the
posterior is first replaced by its own upper bound.

Each bound is a function, its formula, and its record for the table, `table.BOUNDS`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pacbayes_fl.bounds.bound import Bound
from pacbayes_fl.bounds.certificate import Certificate, Formula, MonteCarlo, Terms, certify
from pacbayes_fl.bounds.checks import Number, as_numbers, checked, require_alike, whole
from pacbayes_fl.bounds.costs import client_privacy, drawn_risk, max_information, monte_carlo_risk, unit_of
from pacbayes_fl.bounds.kl_inverse import kl_inverse_upper
from pacbayes_fl.bounds.moment import log_moment
from pacbayes_fl.bounds.premises import Premises, as_premises, not_of_fixed
from pacbayes_fl.errors import AssumptionError

# bounds for any posterior, without a temperature ------------------------------------------------------------------


def seeger(
    risk: Number, kl: Number, n: Number, delta: Number, premises: Premises, *, monte_carlo: MonteCarlo | None = None
) -> Certificate:
    """Bound the risk by the inverse of the binary KL divergence: the default (Seeger 2002, Maurer 2004).

    L <= a + R kl^-1((L^ - a) / R, (KL + ln(xi(n) / delta)) / n), with xi(n) < 2 sqrt n of `moment.log_moment`

    Example:
        >>> from pacbayes_fl.bounds import Premises, Provenance, seeger
        >>> premises = Premises(Provenance("split"), independent=True)
        >>> round(seeger(0.03, 500.0, 30_000, 0.025, premises).value.item(), 4)
        0.0725
    """
    return of_risk("Maurer/Seeger, kl inverse", _seeger, risk, kl, n, delta, premises, monte_carlo)


def _seeger(terms: Terms) -> dict[str, Tensor]:
    return {"bound": in_units(kl_inverse_upper(unit_risk(terms), budget(terms) / terms["n"]), terms)}


SEEGER = Bound(
    name="seeger",
    function=seeger,
    formula=_seeger,
    needs=("risk", "kl", "n"),
    poolable=True,
    world="fair coins",
)


def mcallester(
    risk: Number, kl: Number, n: Number, delta: Number, premises: Premises, *, monte_carlo: MonteCarlo | None = None
) -> Certificate:
    """Bound the risk by a square root (McAllester 1999, with Maurer's constant).

    L <= L^ + R sqrt((KL + ln(xi(n) / delta)) / (2 n))

    Example:
        >>> from pacbayes_fl.bounds import Premises, Provenance, mcallester
        >>> premises = Premises(Provenance("split"), independent=True)
        >>> round(mcallester(0.03, 500.0, 30_000, 0.025, premises).value.item(), 4)
        0.1221
    """
    return of_risk("McAllester", _mcallester, risk, kl, n, delta, premises, monte_carlo)


def _mcallester(terms: Terms) -> dict[str, Tensor]:
    root = (budget(terms) / (2.0 * terms["n"])).sqrt()
    return {"risk": in_units(unit_risk(terms), terms), "complexity": (terms["high"] - terms["low"]) * root}


MCALLESTER = Bound(
    name="mcallester",
    function=mcallester,
    formula=_mcallester,
    needs=("risk", "kl", "n"),
    poolable=True,
    world="fair coins",
)


def pbb_quadratic(
    risk: Number, kl: Number, n: Number, delta: Number, premises: Premises, *, monte_carlo: MonteCarlo | None = None
) -> Certificate:
    """Bound the risk by PAC-Bayes with Backprop's quadratic form (Perez-Ortiz et al. 2021).

    L <= (sqrt(L^ + B / (2 n)) + sqrt(B / (2 n)))^2 for a loss in [0, 1],  B = KL + ln(xi(n) / delta)

    Example:
        >>> from pacbayes_fl.bounds import Premises, Provenance, pbb_quadratic
        >>> premises = Premises(Provenance("split"), independent=True)
        >>> round(pbb_quadratic(0.03, 500.0, 30_000, 0.025, premises).value.item(), 4)
        0.0831
    """
    return of_risk("PBB, quadratic form", _quadratic, risk, kl, n, delta, premises, monte_carlo)


def _quadratic(terms: Terms) -> dict[str, Tensor]:
    share = budget(terms) / (2.0 * terms["n"])
    return {"bound": in_units(((unit_risk(terms) + share).sqrt() + share.sqrt()).square(), terms)}


PBB_QUADRATIC = Bound(
    name="pbb-quadratic",
    function=pbb_quadratic,
    formula=_quadratic,
    needs=("risk", "kl", "n"),
    poolable=True,
    world="fair coins",
)


def pbb_lambda(
    risk: Number,
    kl: Number,
    n: Number,
    delta: Number,
    premises: Premises,
    *,
    weight: Number | None = None,
    monte_carlo: MonteCarlo | None = None,
) -> Certificate:
    """Bound the risk by PAC-Bayes with Backprop's lambda form (Thiemann et al. 2017).

    L <= L^ / (1 - lambda / 2) + B / (n lambda (1 - lambda / 2)) for a loss in [0, 1],  B = KL + ln(xi(n) / delta)

    It holds for all lambda at once, so the best one, 2 / (sqrt(2 n L^ / B + 1) + 1), is as good as any fixed before.

    Example:
        >>> from pacbayes_fl.bounds import Premises, Provenance, pbb_lambda
        >>> premises = Premises(Provenance("split"), independent=True)
        >>> round(pbb_lambda(0.03, 500.0, 30_000, 0.025, premises).value.item(), 4)
        0.0831
    """
    own = {} if weight is None else {"weight": checked("weight", weight, 0.0, 2.0, strict=True)}
    if own and bool((own["weight"] >= 2).any()):
        raise AssumptionError("weight must lie strictly between 0 and 2, got 2")
    return of_risk("PBB, lambda form", _lambda, risk, kl, n, delta, premises, monte_carlo, **own)


def _lambda(terms: Terms) -> dict[str, Tensor]:
    unit, nats, n = unit_risk(terms), budget(terms), terms["n"]
    weight = terms["weight"] if "weight" in terms else 2.0 / ((2.0 * n * unit / nats + 1.0).sqrt() + 1.0)
    left = 1.0 - 0.5 * weight
    scale = terms["high"] - terms["low"]
    return {"risk": in_units(unit / left, terms), "complexity": scale * nats / (n * weight * left)}


PBB_LAMBDA = Bound(
    name="pbb-lambda",
    function=pbb_lambda,
    formula=_lambda,
    needs=("risk", "kl", "n"),
    poolable=True,
    world="fair coins",
)


# bounds at a temperature that was fixed before ---------------------------------------------------------------------


def catoni(
    risk: Number,
    kl: Number,
    n: Number,
    beta: Number,
    delta: Number,
    premises: Premises,
    *,
    monte_carlo: MonteCarlo | None = None,
) -> Certificate:
    """Bound the risk by Catoni's exact form at a beta that was fixed before (Catoni 2007, Theorem 1.2.6).

    L <= (1 - exp(-beta L^ / n - (KL + ln(1 / delta)) / n)) / (1 - exp(-beta / n)) for a loss in [0, 1]

    Where the rows chose among betas, `premises.tried` is their number.

    Example:
        >>> from pacbayes_fl.bounds import Premises, Provenance, catoni
        >>> premises = Premises(Provenance("split"), independent=True)
        >>> round(catoni(0.03, 500.0, 30_000, 5_000.0, 0.025, premises).value.item(), 4)
        0.1404
    """
    own = {"beta": _beta(beta)}
    return of_risk("Catoni, exact form at fixed beta", _catoni, risk, kl, n, delta, premises, monte_carlo, **own)


def _catoni(terms: Terms) -> dict[str, Tensor]:
    rate = terms["beta"] * (terms["high"] - terms["low"]) / terms["n"]  # beta of the loss in [0, 1], over n
    nats = rate * unit_risk(terms) + (terms["kl"] + confidence(terms)) / terms["n"]
    return {"bound": in_units(torch.expm1(-nats) / torch.expm1(-rate), terms)}


CATONI = Bound(
    name="catoni",
    function=catoni,
    formula=_catoni,
    needs=("risk", "kl", "n", "beta"),
    poolable=False,
    world="fair coins",
)


def alquier(
    risk: Number,
    kl: Number,
    n: Number,
    beta: Number,
    delta: Number,
    premises: Premises,
    *,
    monte_carlo: MonteCarlo | None = None,
) -> Certificate:
    """Bound the risk by a sum, at a beta that was fixed before (Alquier et al. 2016; PAC-PFL eq. 14).

    L <= L^ + (KL + beta^2 R^2 / (8 n) + ln(1 / delta)) / beta

    With beta = n the term beta R^2 / (8 n) = R^2 / 8 stays, however many rows there are.

    Where the rows chose among betas, `premises.tried` is their number.

    Example:
        >>> from pacbayes_fl.bounds import Premises, Provenance, alquier
        >>> premises = Premises(Provenance("split"), independent=True)
        >>> round(alquier(0.03, 500.0, 30_000, 5_000.0, 0.025, premises).value.item(), 4)
        0.1516
    """
    own = {"beta": _beta(beta)}
    theorem = _with_prior("Alquier/Catoni at fixed beta (PAC-PFL eq. 14)", "PAC-PFL Theorem 3.2 (eq. 4)", premises)
    return of_risk(theorem, _alquier, risk, kl, n, delta, premises, monte_carlo, **own)


def _alquier(terms: Terms) -> dict[str, Tensor]:
    divergence = terms["kl"] / terms["beta"]
    return {"risk": in_units(unit_risk(terms), terms), "divergence": divergence, **_fixed_beta(terms)}


ALQUIER = Bound(
    name="alquier",
    function=alquier,
    formula=_alquier,
    needs=("risk", "kl", "n", "beta"),
    poolable=False,
    world="fair coins",
)


def theorem_3_2(
    risk: Number,
    kl: Number,
    n: Number,
    beta: Number,
    delta: Number,
    premises: Premises,
    *,
    monte_carlo: MonteCarlo | None = None,
) -> Certificate:
    """Bound the risk under a prior that was drawn with privacy from the same rows (PAC-PFL Theorem 3.2, eq. 4).

    L <= L^ + (KL + beta^2 R^2 / (8 n) + I(eps, m, delta) + ln(1 / delta)) / beta

    m rows are one record too, with m eps: the term is the smaller of I and m eps. Privacy of whole clients has that of
    `client_privacy` in its place.

    n counts m_i and new rows together; `Provenance.rows` says how many the mechanism saw. The probability is over the
    rows and the draw of the prior, whose epsilon the premises must name.

    Example:
        >>> from pacbayes_fl.bounds import Premises, Provenance, theorem_3_2
        >>> private = Premises(Provenance("row-level DP", epsilon=0.01), independent=True)
        >>> round(theorem_3_2(0.03, 500.0, 30_000, 5_000.0, 0.025, private).value.item(), 4)
        0.1526
    """
    if not as_premises(premises).prior.private:
        raise AssumptionError(
            f"Theorem 3.2 needs the epsilon of a private prior, got a prior of source {premises.prior.source!r}",
            hint="Provenance('row-level DP', epsilon=...), or `alquier` for a prior that did not see the rows",
        )
    return alquier(risk, kl, n, beta, delta, premises, monte_carlo=monte_carlo)


THEOREM_3_2 = Bound(
    name="theorem-3.2",
    function=theorem_3_2,
    formula=_alquier,
    needs=("risk", "kl", "n", "beta"),
    poolable=False,
    world="private prior",
    private=True,
)


def gibbs(log_z: Number, n: Number, beta: Number, delta: Number, premises: Premises) -> Certificate:
    """Bound the risk of the exact Gibbs posterior, by its normaliser alone (PAC-PFL eq. 6; eq. 15 without the term I).

    L(Q*) <= (-ln Z + beta^2 R^2 / (8 n) + I(eps, m, delta) + ln(1 / delta)) / beta,  Z = E_P e^(-beta L^)

    An unbiased estimate of Z, from draws of the prior without another look at the rows, may stand in for Z at no cost:
    Markov's inequality is for the mean of exp(beta L(Q*)) Z, linear in Z, and that over the draws too is the same.

    It needs premises.posterior = "exact Gibbs" and a Z that a risk in [a, b] can give.

    Example:
        >>> from pacbayes_fl.bounds import LossRange, Premises, Provenance, gibbs
        >>> premises = Premises(Provenance("split"), independent=True, posterior="exact Gibbs")
        >>> round(gibbs(-300.0, 30_000, 3_000.0, 0.025, premises).value.item(), 4)
        0.1137
    """
    _require_own_rows(premises)
    beta, log_z, loss = _beta(beta), as_numbers("log_z", log_z), premises.loss
    require_alike({"log_z": log_z, "beta": beta})
    checked("-log_z / beta", -log_z / beta, loss.low, loss.high)
    terms = {"log_z": log_z, "n": _rows(n), "beta": beta}
    reasons = not_of_fixed(premises)
    if premises.posterior != "exact Gibbs":
        reasons = (
            *reasons,
            "eq. (6) is for the exact Gibbs posterior of the same loss, beta and rows, and this one is not",
        )
    theorem = _with_prior("Gibbs posterior (PAC-PFL eq. 15)", "Gibbs posterior (PAC-PFL eq. 6)", premises)
    return certify(theorem, _gibbs, terms, delta, premises, reasons=reasons)


def _gibbs(terms: Terms) -> dict[str, Tensor]:
    return {"free energy": -terms["log_z"] / terms["beta"], **_fixed_beta(terms)}


GIBBS = Bound(
    name="gibbs",
    function=gibbs,
    formula=_gibbs,
    needs=("log_z", "n", "beta"),
    poolable=False,
    world="fair coins",
    posterior="exact Gibbs",
)


# what they share ---------------------------------------------------------------------------------------------------


def of_risk(
    theorem: str,
    formula: Formula,
    risk: Number,
    kl: Number,
    n: Number,
    delta: Number,
    premises: Premises,
    monte_carlo: MonteCarlo | None,
    **own: Tensor,
) -> Certificate:
    """Certify a client by a formula of its empirical risk and its KL divergence, after checking both.

    Args:
        theorem: which bound.
        formula: turns terms into parts that sum to the bound.
        risk: empirical risk [] or [K], in the unit of the loss.
        kl: KL(Q || P) [] or [K], in nats.
        n: rows [] or [K].
        delta: probability with which the bound may fail.
        premises: its assumptions.
        monte_carlo: how the risk was estimated, if it was.
        **own: further terms of the formula, [] or [K].

    Returns:
        The certificate.

    Raises:
        AssumptionError: when a number is out of range, or the premises are of an average over clients.
    """
    loss = as_premises(premises).loss
    _require_own_rows(premises)
    terms = {"risk": checked("risk", risk, loss.low, loss.high), "kl": checked("kl", kl, 0.0), "n": _rows(n), **own}
    reasons = not_of_fixed(premises)
    return certify(theorem, formula, terms, delta, premises, monte_carlo=monte_carlo, reasons=reasons)


def _require_own_rows(premises: Premises) -> None:
    if as_premises(premises).average not in ("client", "size-weighted clients"):
        raise AssumptionError(
            f"a client-level bound is on a client or on size-weighted clients, not on {premises.average!r}",
            hint="`server_bound` and `new_clients` speak of averages over clients",
        )


def _beta(beta: Number) -> Tensor:
    return checked("beta", beta, 0.0, strict=True)


def _rows(n: Number) -> Tensor:
    return whole("n", n)


def _with_prior(plain: str, private: str, premises: Premises) -> str:
    return private if as_premises(premises).prior.private else plain


def unit_risk(terms: Terms) -> Tensor:
    """Empirical risk [] or [K] as of a loss in [0, 1], with what its estimation from draws costs."""
    if "mc_risks" in terms:
        return drawn_risk(unit_of(terms["mc_risks"], terms), terms["mc_draws"], terms["mc_delta"])
    unit = unit_of(terms["risk"], terms)
    return monte_carlo_risk(unit, terms["mc_draws"], terms["mc_delta"]) if "mc_draws" in terms else unit


def in_units(unit: Tensor, terms: Terms) -> Tensor:
    """Take a risk over to the unit of the loss, [a, b].

    Args:
        unit: risk of the loss in [0, 1], [] or [K].
        terms: of the formula.

    Returns:
        a + (b - a) unit, [] or [K].
    """
    return terms["low"] + (terms["high"] - terms["low"]) * unit


def confidence(terms: Terms) -> Tensor:
    """Nats for delta [] or [K]: ln(1 / delta), and what a private prior costs."""
    nats = -terms["delta"].log()
    if "prior_delta" in terms:
        return nats + client_privacy(terms["epsilon"], terms["prior_delta"], terms["delta"])
    if "epsilon" in terms:
        epsilon, rows = terms["epsilon"], terms.get("prior_rows", terms["n"])
        nats = nats + torch.minimum(max_information(epsilon, rows, terms["delta"]), rows * epsilon)
    return nats


def budget(terms: Terms) -> Tensor:
    """B = KL + ln(xi(n) / delta) [] or [K], in nats, with what a private prior costs."""
    return terms["kl"] + confidence(terms) + log_moment(terms["n"])


def _fixed_beta(terms: Terms) -> dict[str, Tensor]:
    """Give what Hoeffding's lemma and delta cost at a fixed beta."""
    hoeffding = terms["beta"] * (terms["high"] - terms["low"]).square() / (8.0 * terms["n"])
    return {"Hoeffding": hoeffding, "confidence": confidence(terms) / terms["beta"]}
