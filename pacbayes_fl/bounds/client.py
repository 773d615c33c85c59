"""Bounds on the true risk of one client's posterior, from numbers.

Notation: a posterior Q over hypotheses with empirical risk L^ on n rows, a prior P, KL = KL(Q || P) in nats, a loss
with values in [a, b], R = b - a. Every bound holds with probability at least 1 - delta over the rows, for all Q at
once, and also for pooled rows of clients that are not alike: then it is on the average over these rows.

A prior that was drawn with differential privacy from the same rows costs nats more in every bound: eps of whole clients
(`client_privacy`), or I(eps, m, delta) of rows (PAC-PFL Theorem 3.2). A risk that was estimated from draws of the
posterior is first replaced by its own upper bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

import torch
from torch import Tensor

from pacbayes_fl.bounds.certificate import (
    Certificate,
    Formula,
    MonteCarlo,
    Number,
    Premises,
    Terms,
    certify,
    checked,
    whole,
)
from pacbayes_fl.bounds.kl_inverse import kl_inverse_upper
from pacbayes_fl.bounds.moment import log_moment
from pacbayes_fl.errors import AssumptionError


def max_information(epsilon: Number, rows: Number, delta: Number) -> Tensor:
    """Nats that a prior drawn with eps-DP from the rows of the bound costs (PAC-PFL Theorem 3.2).

    I(eps, m, delta) = m eps^2 / 2 + eps sqrt(m ln(4 / delta) / 2) + ln 2

    Args:
        epsilon: of the mechanism [] or [K], for one changed row.
        rows: that the mechanism saw, m [] or [K].
        delta: of the bound [] or [K].

    Returns:
        [] or [K], in nats.
    """
    epsilon, rows, delta = (torch.as_tensor(value, dtype=torch.float64) for value in (epsilon, rows, delta))
    return 0.5 * rows * epsilon.square() + epsilon * (0.5 * rows * (4.0 / delta).log()).sqrt() + math.log(2.0)


def client_privacy(epsilon: Number, prior_delta: Number, delta: Number) -> Tensor:
    """Nats that a prior costs which was drawn with (eps, d0)-DP from the rows of the bound, all of them as one record.

    ln(1 / delta') - ln(1 / delta) = eps + ln(delta / (delta - d0)),  delta' = (delta - d0) e^(-eps)

    Why it holds: let P = A(S) be (eps, d0)-DP when the client's whole data S is replaced by any other, and let F hold
    the pairs (S, P) for which a bound fails for some posterior. For every fixed P the bound fails with probability at
    most delta'. With S' an independent copy of S,

    P[(S, A(S)) in F] = E_S P_A[A(S) in F_S] <= E_S E_S' [e^eps P_A[A(S') in F_S] + d0] <= e^eps delta' + d0 = delta,

    since A(S') is independent of S, for which it is a fixed prior. (For d0 = 0 this is max-information of a single
    record, I_inf <= eps: Dwork et al. 2015, Generalization in adaptive data analysis, Theorem 20 with n = 1.) What the
    mechanism knows of other clients is fixed here, as they are independent of this one.

    Args:
        epsilon: of the mechanism [] or [K], for one client's whole data replaced.
        prior_delta: d0 [] or [K], below delta.
        delta: of the bound [] or [K].

    Returns:
        [] or [K], in nats.
    """
    epsilon, spent, delta = (torch.as_tensor(value, dtype=torch.float64) for value in (epsilon, prior_delta, delta))
    return epsilon - torch.log1p(-spent / delta)


def monte_carlo_risk(risk: Number, draws: Number, delta: Number) -> Tensor:
    """Bound the empirical Gibbs risk by its estimate from draws of the posterior (Perez-Ortiz et al. 2021).

    L^ <= kl^-1(estimate, ln(1 / delta) / M)

    For one side alone: the estimate is below a q < L^ with probability at most exp(-M kl(q || L^)) (Hoeffding 1963,
    Theorem 1), where both sides need ln(2 / delta).

    Args:
        risk: averaged over M independent draws [] or [K], of a loss in [0, 1].
        draws: M.
        delta: probability with which the draws may mislead.

    Returns:
        [] or [K].
    """
    risk, draws, delta = (torch.as_tensor(value, dtype=torch.float64) for value in (risk, draws, delta))
    return kl_inverse_upper(risk, -delta.log() / draws)


def seeger(
    risk: Number, kl: Number, n: Number, delta: Number, premises: Premises, *, monte_carlo: MonteCarlo | None = None
) -> Certificate:
    """Bound the risk by the inverse of the binary KL divergence: the default (Seeger 2002, Maurer 2004).

    L <= a + R kl^-1((L^ - a) / R, (KL + ln(xi(n) / delta)) / n), with xi(n) < 2 sqrt n of `moment.log_moment`

    Args:
        risk: empirical risk [] or [K], in the unit of the loss.
        kl: [] or [K], in nats.
        n: rows [] or [K].
        delta: probability with which it may fail, [] or [K].
        premises: what it rests on.
        monte_carlo: how the risk was estimated, if it was.

    Returns:
        The certificate.

    Raises:
        AssumptionError: when no number can be formed, as for an infinite KL.
    """
    return _of_risk("Maurer/Seeger, kl inverse", _seeger, risk, kl, n, delta, premises, monte_carlo)


def mcallester(
    risk: Number, kl: Number, n: Number, delta: Number, premises: Premises, *, monte_carlo: MonteCarlo | None = None
) -> Certificate:
    """Bound the risk by a square root (McAllester 1999, with Maurer's constant).

    L <= L^ + R sqrt((KL + ln(xi(n) / delta)) / (2 n))

    Args:
        risk: empirical risk [] or [K], in the unit of the loss.
        kl: [] or [K], in nats.
        n: rows [] or [K].
        delta: probability with which it may fail, [] or [K].
        premises: what it rests on.
        monte_carlo: how the risk was estimated, if it was.

    Returns:
        The certificate.

    Raises:
        AssumptionError: when no number can be formed.
    """
    return _of_risk("McAllester", _mcallester, risk, kl, n, delta, premises, monte_carlo)


def pbb_quadratic(
    risk: Number, kl: Number, n: Number, delta: Number, premises: Premises, *, monte_carlo: MonteCarlo | None = None
) -> Certificate:
    """Bound the risk by PAC-Bayes with Backprop's quadratic form (Perez-Ortiz et al. 2021).

    L <= (sqrt(L^ + B / (2 n)) + sqrt(B / (2 n)))^2 for a loss in [0, 1],  B = KL + ln(xi(n) / delta)

    Args:
        risk: empirical risk [] or [K], in the unit of the loss.
        kl: [] or [K], in nats.
        n: rows [] or [K].
        delta: probability with which it may fail, [] or [K].
        premises: what it rests on.
        monte_carlo: how the risk was estimated, if it was.

    Returns:
        The certificate.

    Raises:
        AssumptionError: when no number can be formed.
    """
    return _of_risk("PBB, quadratic form", _quadratic, risk, kl, n, delta, premises, monte_carlo)


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

    Args:
        risk: empirical risk [] or [K], in the unit of the loss.
        kl: [] or [K], in nats.
        n: rows [] or [K].
        delta: probability with which it may fail, [] or [K].
        premises: what it rests on.
        weight: lambda [] or [K], strictly between 0 and 2; the best when not given.
        monte_carlo: how the risk was estimated, if it was.

    Returns:
        The certificate.

    Raises:
        AssumptionError: when no number can be formed.
    """
    own = {} if weight is None else {"weight": checked("weight", weight, 0.0, 2.0, strict=True)}
    if own and bool((own["weight"] >= 2).any()):
        raise AssumptionError("weight must lie strictly between 0 and 2, got 2")
    return _of_risk("PBB, lambda form", _lambda, risk, kl, n, delta, premises, monte_carlo, **own)


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

    Args:
        risk: empirical risk [] or [K], in the unit of the loss.
        kl: [] or [K], in nats.
        n: rows [] or [K].
        beta: [] or [K], in 1 / unit of the loss.
        delta: probability with which it may fail, [] or [K].
        premises: what it rests on; with `tried` the number of betas if the rows chose among them.
        monte_carlo: how the risk was estimated, if it was.

    Returns:
        The certificate.

    Raises:
        AssumptionError: when no number can be formed.
    """
    own = {"beta": _beta(beta)}
    return _of_risk("Catoni, exact form at fixed beta", _catoni, risk, kl, n, delta, premises, monte_carlo, **own)


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

    Args:
        risk: empirical risk [] or [K], in the unit of the loss.
        kl: [] or [K], in nats.
        n: rows [] or [K].
        beta: [] or [K], in 1 / unit of the loss.
        delta: probability with which it may fail, [] or [K].
        premises: what it rests on; with `tried` the number of betas if the rows chose among them.
        monte_carlo: how the risk was estimated, if it was.

    Returns:
        The certificate.

    Raises:
        AssumptionError: when no number can be formed.
    """
    own = {"beta": _beta(beta)}
    theorem = _with_prior("Alquier/Catoni at fixed beta (PAC-PFL eq. 14)", "PAC-PFL Theorem 3.2 (eq. 4)", premises)
    return _of_risk(theorem, _alquier, risk, kl, n, delta, premises, monte_carlo, **own)


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

    Args:
        risk: empirical risk [] or [K], in the unit of the loss.
        kl: [] or [K], in nats.
        n: rows [] or [K], m_i and new ones together; `Provenance.rows` says how many the mechanism saw.
        beta: [] or [K], in 1 / unit of the loss.
        delta: probability with which it may fail, [] or [K], over the rows and the draw of the prior.
        premises: with a private prior.
        monte_carlo: how the risk was estimated, if it was.

    Returns:
        The certificate.

    Raises:
        AssumptionError: when no number can be formed, as without an epsilon.
    """
    if not premises.prior.private:
        raise AssumptionError(
            f"Theorem 3.2 needs the epsilon of a private prior, got a prior of source {premises.prior.source!r}",
            hint="Provenance('row-level DP', epsilon=...), or `alquier` for a prior that did not see the rows",
        )
    return alquier(risk, kl, n, beta, delta, premises, monte_carlo=monte_carlo)


def gibbs(log_z: Number, n: Number, beta: Number, delta: Number, premises: Premises) -> Certificate:
    """Bound the risk of the exact Gibbs posterior, by its normaliser alone (PAC-PFL eq. 6; eq. 15 without the term I).

    L(Q*) <= (-ln Z + beta^2 R^2 / (8 n) + I(eps, m, delta) + ln(1 / delta)) / beta,  Z = E_P e^(-beta L^)

    An unbiased estimate of Z, from draws of the prior without another look at the rows, may stand in for Z at no cost:
    Markov's inequality is for the mean of exp(beta L(Q*)) Z, linear in Z, and that over the draws too is the same.

    Args:
        log_z: ln Z [] or [K], in nats: of the bounded loss, not of a likelihood.
        n: rows [] or [K].
        beta: [] or [K], in 1 / unit of the loss.
        delta: probability with which it may fail, [] or [K].
        premises: with posterior = "exact Gibbs".

    Returns:
        The certificate.

    Raises:
        AssumptionError: when no number can be formed, as for a Z that no risk in [a, b] can give.
    """
    _require_own_rows(premises)
    beta, loss = _beta(beta), premises.loss
    log_z = torch.as_tensor(log_z, dtype=torch.float64)
    checked("-log_z / beta", -log_z / beta, loss.low, loss.high)
    terms = {"log_z": log_z, "n": _rows(n), "beta": beta}
    reasons: tuple[str, ...] = ()
    if premises.posterior != "exact Gibbs":
        reasons = ("eq. (6) is for the exact Gibbs posterior of the same loss, beta and rows, and this one is not",)
    theorem = _with_prior("Gibbs posterior (PAC-PFL eq. 15)", "Gibbs posterior (PAC-PFL eq. 6)", premises)
    return certify(theorem, _gibbs, terms, delta, premises, reasons=reasons)


BOUNDS: Mapping[str, Callable[..., Certificate]] = MappingProxyType(
    {
        "seeger": seeger,
        "mcallester": mcallester,
        "catoni": catoni,
        "alquier": alquier,
        "pbb-quadratic": pbb_quadratic,
        "pbb-lambda": pbb_lambda,
        "theorem-3.2": theorem_3_2,
        "gibbs": gibbs,
    }
)
"""Every client-level bound under the name that a command uses; the first is the default."""


def pooled(
    risk: Tensor,
    kl: Tensor,
    n: Tensor,
    delta: Number,
    premises: Premises,
    *,
    bound: Callable[..., Certificate] = seeger,
    monte_carlo: MonteCarlo | None = None,
) -> Certificate:
    """Bound the risk averaged over clients by their rows, each with a posterior and a prior of its own.

    L = sum_i n_i L^_i / N,  KL = sum_i KL(Q_i || P_i),  N = sum_i n_i

    The hypothesis is the tuple of the clients' hypotheses, its posterior and its prior are products, and its empirical
    risk is an average of N independent losses that are not alike: these have no larger E exp(N kl(L^ || L)) than N
    that are (Hoeffding 1956, Theorem 3). One draw of the tuple, a hypothesis a client, is one draw of `monte_carlo`.

    Args:
        risk: empirical risks [K], in the unit of the loss.
        kl: [K], in nats.
        n: rows [K].
        delta: probability with which it may fail, [] or [K].
        premises: of every client.
        bound: one of risk, kl, n, delta and premises alone.
        monte_carlo: how the risks were estimated, if they were.

    Returns:
        The certificate of the average, [].

    Raises:
        AssumptionError: when no number can be formed.
    """
    loss, rows = premises.loss, _rows(n)
    average = (checked("risk", risk, loss.low, loss.high) * rows).sum() / rows.sum()
    divergence = checked("kl", kl, 0.0).sum()
    together = replace(premises, average="size-weighted clients")
    return bound(average, divergence, rows.sum(), delta, together, monte_carlo=monte_carlo)


def _of_risk(
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
    loss = premises.loss
    _require_own_rows(premises)
    terms = {"risk": checked("risk", risk, loss.low, loss.high), "kl": checked("kl", kl, 0.0), "n": _rows(n), **own}
    return certify(theorem, formula, terms, delta, premises, monte_carlo=monte_carlo)


def _require_own_rows(premises: Premises) -> None:
    if premises.average not in ("client", "size-weighted clients"):
        raise AssumptionError(
            f"a client-level bound is on a client or on size-weighted clients, not on {premises.average!r}",
            hint="`server_bound` and `new_clients` speak of averages over clients",
        )


def _beta(beta: Number) -> Tensor:
    return checked("beta", beta, 0.0, strict=True)


def _rows(n: Number) -> Tensor:
    return whole("n", n)


def _with_prior(plain: str, private: str, premises: Premises) -> str:
    return private if premises.prior.private else plain


# formulas: functions of terms ------------------------------------------------------------------------------------


def _unit_risk(terms: Terms) -> Tensor:
    """Empirical risk as of a loss in [0, 1], with what its estimation costs."""
    unit = ((terms["risk"] - terms["low"]) / (terms["high"] - terms["low"])).clamp(0.0, 1.0)
    return monte_carlo_risk(unit, terms["mc_draws"], terms["mc_delta"]) if "mc_draws" in terms else unit


def _in_units(unit: Tensor, terms: Terms) -> Tensor:
    return terms["low"] + (terms["high"] - terms["low"]) * unit


def _confidence(terms: Terms) -> Tensor:
    """Nats for delta: ln(1 / delta), and what a private prior costs."""
    nats = -terms["delta"].log()
    if "prior_delta" in terms:
        return nats + client_privacy(terms["epsilon"], terms["prior_delta"], terms["delta"])
    if "epsilon" in terms:
        epsilon, rows = terms["epsilon"], terms.get("prior_rows", terms["n"])
        nats = nats + torch.minimum(max_information(epsilon, rows, terms["delta"]), rows * epsilon)
    return nats


def _budget(terms: Terms) -> Tensor:
    """B = KL + ln(xi(n) / delta), in nats."""
    return terms["kl"] + _confidence(terms) + log_moment(terms["n"])


def _seeger(terms: Terms) -> dict[str, Tensor]:
    return {"bound": _in_units(kl_inverse_upper(_unit_risk(terms), _budget(terms) / terms["n"]), terms)}


def _mcallester(terms: Terms) -> dict[str, Tensor]:
    root = (_budget(terms) / (2.0 * terms["n"])).sqrt()
    return {"risk": _in_units(_unit_risk(terms), terms), "complexity": (terms["high"] - terms["low"]) * root}


def _quadratic(terms: Terms) -> dict[str, Tensor]:
    share = _budget(terms) / (2.0 * terms["n"])
    return {"bound": _in_units(((_unit_risk(terms) + share).sqrt() + share.sqrt()).square(), terms)}


def _lambda(terms: Terms) -> dict[str, Tensor]:
    unit, budget, n = _unit_risk(terms), _budget(terms), terms["n"]
    weight = terms["weight"] if "weight" in terms else 2.0 / ((2.0 * n * unit / budget + 1.0).sqrt() + 1.0)
    left = 1.0 - 0.5 * weight
    scale = terms["high"] - terms["low"]
    return {"risk": _in_units(unit / left, terms), "complexity": scale * budget / (n * weight * left)}


def _catoni(terms: Terms) -> dict[str, Tensor]:
    rate = terms["beta"] * (terms["high"] - terms["low"]) / terms["n"]  # beta of the loss in [0, 1], over n
    nats = rate * _unit_risk(terms) + (terms["kl"] + _confidence(terms)) / terms["n"]
    return {"bound": _in_units(torch.expm1(-nats) / torch.expm1(-rate), terms)}


def _alquier(terms: Terms) -> dict[str, Tensor]:
    divergence = terms["kl"] / terms["beta"]
    return {"risk": _in_units(_unit_risk(terms), terms), "divergence": divergence, **_fixed_beta(terms)}


def _gibbs(terms: Terms) -> dict[str, Tensor]:
    return {"free energy": -terms["log_z"] / terms["beta"], **_fixed_beta(terms)}


def _fixed_beta(terms: Terms) -> dict[str, Tensor]:
    """Give what Hoeffding's lemma and delta cost at a fixed beta."""
    hoeffding = terms["beta"] * (terms["high"] - terms["low"]).square() / (8.0 * terms["n"])
    return {"Hoeffding": hoeffding, "confidence": _confidence(terms) / terms["beta"]}


FORMULAS: Mapping[str, Formula] = MappingProxyType(
    {
        "seeger": _seeger,
        "mcallester": _mcallester,
        "pbb-quadratic": _quadratic,
        "pbb-lambda": _lambda,
        "catoni": _catoni,
        "alquier": _alquier,
        "gibbs": _gibbs,
    }
)
"""Every formula under the name that a record gives it."""
