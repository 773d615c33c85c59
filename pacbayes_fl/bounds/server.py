"""Bounds on averages over clients: what a hyper-posterior over priors is worth to those it saw, and to new ones.

Notation: n = K clients with m_i rows S_i each; a hyper-posterior over priors P and its divergence KL from a hyper-prior
that saw no rows, in nats; a loss in [a, b], R = b - a. Client i answers a prior P with a posterior Q_i, which its free
energy F_i(P) is about:

    F_i(P) = -ln Z_{beta_i}(P, S_i) / beta_i    of the exact Gibbs posterior (premises.posterior = "exact Gibbs")
    F_i(P) = L^(Q_i) + KL(Q_i || P) / beta_i    of any other, by whatever map of P and S_i (premises.posterior = "any",
                                                or "no worse than the prior" where F_i(P) <= L^(P) for every P)

The arguments `free_energy` are E F_i(P) over the hyper-posterior. Every bound holds with probability at least 1 - delta
over the rows of all clients, for all hyper-posteriors at once. `server_bound` and `new_clients` are proved as they
stand; the theorem and the lemmas of PAC-PFL are not, so that they refuse what they cannot vouch for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal, get_args

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
    split_delta,
    whole,
)
from pacbayes_fl.bounds.client import max_information, monte_carlo_risk
from pacbayes_fl.errors import AssumptionError, ShapeError

Weights = Literal["equal", "beta"]

_ROUNDING = 1e-9
_GIBBS = "the free energies must be those of the exact Gibbs posterior of the same loss, beta and rows"
_IN_RANGE = (
    "a free energy must never leave the loss's range, as that of the exact Gibbs posterior and of one that gives way to"
    " the prior where it is worse never does (posterior = 'exact Gibbs' or 'no worse than the prior')"
)


def server_bound(
    free_energy: Tensor,
    beta: Number,
    m: Number,
    kl: Number,
    delta: Number,
    premises: Premises,
    *,
    lam: Number | None = None,
    later: Number | None = 0.0,
    weights: Weights = "equal",
    monte_carlo: MonteCarlo | None = None,
) -> Certificate:
    """Bound the clients' average risk under a hyper-posterior: the default, a repair of PAC-PFL Theorem 4.2.

    sum_i w_i L_i <= sum_i w_i F_i + R^2 / 8 sum_i w_i beta_i kappa_i + (KL + ln(1 / delta)) / lambda

    kappa_i = 1 / m_i + [later_i > 0] / (m_i (m_i + later_i)),  0 < lambda <= min_i beta_i / w_i

    With w_i = 1 / n and one beta, lambda = n beta is the best, and the hyper-posterior that minimises the bound is that
    of Corollary 4.4 with tau = 1. With w_i = beta_i / sum_j beta_j, lambda = sum_j beta_j for unequal beta_i.

    Why it holds: V_i = L_i - F_i(P) has E exp(beta_i V_i) <= exp(beta_i^2 R^2 kappa_i / 8) for every fixed P: without
    later rows by Donsker and Varadhan's inequality and Hoeffding's lemma, for any Q_i; with them also by Serfling's
    lemma on sampling without replacement, for the Gibbs posterior of all rows alone. By Jensen's inequality an exponent
    lambda w_i <= beta_i has the like; clients are independent and the hyper-prior is fixed, so that Markov's inequality
    and Donsker and Varadhan's over priors give the rest. An unbiased estimate of Z, drawn for each client on its own,
    may stand in for Z at no cost: exp(beta_i V_i) is linear in it.

    Args:
        free_energy: E F_i [*, K], in the unit of the loss.
        beta: beta_i [] or [K], in 1 / unit of the loss.
        m: rows m_i [] or [K].
        kl: KL of the hyper-posterior from the hyper-prior [*], in nats.
        delta: probability with which it may fail [*].
        premises: of the hyper-prior, the rows and the clients' posteriors; `average` is set here.
        lam: lambda, fixed beforehand, in 1 / unit of the loss; the largest allowed when not given.
        later: rows that are still to come [] or [K]: the risk is that of the posterior of all rows, on average over
            these; None where their number is unknown, of which one is the worst.
        weights: w_i: "equal", or by "beta".
        monte_carlo: how many priors drawn from the hyper-posterior the free energies were averaged over, if they were.

    Returns:
        The certificate [*].

    Raises:
        AssumptionError: when no number can be formed, as for an infinite KL, or for an ln Z of an unbounded loss.
        ShapeError: when an argument is not one number or one a client.
    """
    if weights not in get_args(Weights):
        raise AssumptionError(f"weights must be one of {', '.join(get_args(Weights))}, got {weights!r}")
    energy = _energies(free_energy, premises)
    tempers = _by_client("beta", beta, energy, 0.0, strict=True)
    share = tempers / tempers.sum() if weights == "beta" else torch.full_like(tempers, 1.0 / len(tempers))
    largest = (tempers / share).min()
    terms = {
        "free_energy": energy,
        "beta": tempers,
        "m": _by_client("m", whole("m", m), energy, 1.0),
        "later": _by_client("later", 1.0 if later is None else later, energy, 0.0),
        "weights": share,
        "kl": _divergence(kl),
        "lam": largest if lam is None else checked("lam", lam, 0.0, strict=True),
    }
    reasons = [*(() if monte_carlo is None else _in_range(premises))]
    if bool((terms["lam"] > largest * (1.0 + _ROUNDING)).any()):
        reasons.append(
            "lambda must be at most the smallest beta_i / w_i, which is n beta for equal weights and one beta"
        )
    gathering = bool((terms["later"] > 0).any())
    if gathering and premises.posterior != "exact Gibbs":
        reasons.append(f"with later rows {_GIBBS}")
    theorem = "server level (PAC-PFL Theorem 4.2, repaired)" + (", averaged over later rows" if gathering else "")
    premises = replace(premises, average="clients by beta" if weights == "beta" else "clients on average")
    return certify(theorem, _server, terms, delta, premises, monte_carlo=monte_carlo, reasons=tuple(reasons))


def new_clients(
    free_energy: Tensor,
    beta: Number,
    m: Number,
    kl: Number,
    delta: Number,
    premises: Premises,
    *,
    lam: Number | None = None,
    monte_carlo: MonteCarlo | None = None,
) -> Certificate:
    """Bound the risk of a new client under a hyper-posterior, on average: a repair of PAC-PFL Lemma 4.6.

    E L <= 1 / n sum_i F_i + beta R^2 / (8 m_min) + lambda R^2 / (8 n) + (KL + ln(1 / delta)) / lambda

    The left side is over new clients, their rows, and priors drawn from the hyper-posterior: no client on its own. That
    no new client will have fewer than m_min rows is a premise too, which the certificate names and no number shows. The
    hyper-posterior that minimises the right side is that of Corollary 4.4 with tau = lambda / (n beta).

    Why it holds: the free energies of clients drawn alike are independent, alike and in [a, b] for every fixed P, so
    that Hoeffding's lemma covers the step from n clients to all; a new client's expected risk is at most its expected
    free energy plus beta R^2 / (8 m).

    Args:
        free_energy: E F_i [*, K], in the unit of the loss.
        beta: the one that all clients have, in 1 / unit of the loss.
        m: rows, below which no client falls, seen or new; m_min is the fewest of them when given by client, [] or [K].
        kl: KL of the hyper-posterior from the hyper-prior [*], in nats.
        delta: probability with which it may fail [*].
        premises: with drawn_clients, and with a posterior other than "any", which new clients have too; `average` is
            set here.
        lam: lambda, fixed beforehand, in 1 / unit of the loss; when not given sqrt(8 n ln(1 / delta)) / R, which is the
            best for KL = 0.
        monte_carlo: how many priors drawn from the hyper-posterior the free energies were averaged over, if they were.

    Returns:
        The certificate [*].

    Raises:
        AssumptionError: when no number can be formed, as for unequal beta_i or an infinite KL.
        ShapeError: when an argument is not one number or one a client.
    """
    energy = _energies(free_energy, premises, bounded=True)
    n, fewest = energy.shape[-1], _by_client("m", whole("m", m), energy, 1.0).min()
    split_delta(delta)
    nats = -torch.as_tensor(delta, dtype=torch.float64).log()
    best = (8.0 * n * nats).sqrt() / (premises.loss.high - premises.loss.low)
    terms = {
        "free_energy": energy,
        "beta": _one_beta(beta),
        "m": fewest,
        "kl": _divergence(kl),
        "lam": best if lam is None else checked("lam", lam, 0.0, strict=True),
    }
    reasons = (*_in_range(premises), *_drawn(premises))
    premises = replace(premises, average="new client on average")
    theorem = f"new clients with at least {fewest.item():.15g} rows (PAC-PFL Lemma 4.6, repaired)"
    return certify(theorem, _new_clients, terms, delta, premises, monte_carlo=monte_carlo, reasons=reasons)


def theorem_4_2(
    free_energy: Tensor,
    beta: Number,
    m: Number,
    kl: Number,
    delta: Number,
    premises: Premises,
    *,
    lam: Number,
    later: Number = 0.0,
    v: Number = 1e-4,
    monte_carlo: MonteCarlo | None = None,
) -> Certificate:
    """Compute PAC-PFL Theorem 4.2 as printed (eq. 9), which is not always a bound; `server_bound` is one, and smaller.

    L <= 1 / n sum_i F_i + C KL + beta R^2 / (8 n) sum_i 1 / m_i + lambda sum_i Delta_i^2 / (8 (n2 + v))
         + ln(1 / delta) / sqrt n,    C = 1 / (n beta) + (n2 + v) / lambda

    Its proof gives C ln(1 / delta) for the last term, so that the printed one is too small where C > 1 / sqrt n, and
    does not cover n2 > 0 clients with later rows. Each such case is a reason of the certificate.

    Args:
        free_energy: E F_i of the exact Gibbs posteriors [*, K], in the unit of the loss.
        beta: the one that all clients have, in 1 / unit of the loss.
        m: rows m_i [] or [K].
        kl: KL of the hyper-posterior from the hyper-prior [*], in nats.
        delta: probability with which it may fail [*].
        premises: with posterior = "exact Gibbs"; `average` is set here.
        lam: lambda > n2 + v.
        later: rows that are still to come [] or [K]; n2 is the number of clients with any.
        v: small constant of the theorem.
        monte_carlo: how many priors drawn from the hyper-posterior the free energies were averaged over, if they were.

    Returns:
        The certificate [*], seldom a valid one.

    Raises:
        AssumptionError: when no number can be formed, as for unequal beta_i or an infinite KL.
        ShapeError: when an argument is not one number or one a client.
    """
    theorem = "PAC-PFL Theorem 4.2 as printed (eq. 9)"
    return _printed(theorem, free_energy, beta, m, kl, delta, premises, lam, later, False, v, monte_carlo)


def lemma_4_3(
    free_energy: Tensor,
    beta: Number,
    m: Number,
    kl: Number,
    delta: Number,
    premises: Premises,
    *,
    lam: Number,
    later: Number = 0.0,
    unknown: Tensor | bool = True,
    v: Number = 1e-4,
    monte_carlo: MonteCarlo | None = None,
) -> Certificate:
    """Compute PAC-PFL Lemma 4.3 as printed: Theorem 4.2 for clients of which nobody knows whether more rows will come.

    They have Delta_i = R / n and count in n2, which lambda must then still exceed. What is wrong with the theorem for
    n2 > 0 is wrong with the lemma: `server_bound` with later = None holds.

    Args:
        free_energy: E F_i of the exact Gibbs posteriors [*, K], in the unit of the loss.
        beta: the one that all clients have, in 1 / unit of the loss.
        m: rows m_i [] or [K].
        kl: KL of the hyper-posterior from the hyper-prior [*], in nats.
        delta: probability with which it may fail [*].
        premises: with posterior = "exact Gibbs"; `average` is set here.
        lam: lambda > n2 + v.
        later: rows that are still to come where that is known [] or [K].
        unknown: whether it is not known [] or [K]; all when not given.
        v: small constant of the theorem.
        monte_carlo: how many priors drawn from the hyper-posterior the free energies were averaged over, if they were.

    Returns:
        The certificate [*], never a valid one while a client is unknown.

    Raises:
        AssumptionError: when no number can be formed, as for unequal beta_i or an infinite KL.
        ShapeError: when an argument is not one number or one a client.
    """
    theorem = "PAC-PFL Lemma 4.3 as printed"
    return _printed(theorem, free_energy, beta, m, kl, delta, premises, lam, later, unknown, v, monte_carlo)


def lemma_4_6(
    log_z: Number,
    beta: Number,
    m: Tensor,
    delta: Number,
    premises: Premises,
    *,
    lam: Number,
    n2: float = 0.0,
    v: Number = 1e-4,
) -> Certificate:
    """Compute PAC-PFL Lemma 4.6 as printed, which is not always a bound; `new_clients` is one, and smaller.

    E L <= -C ln Z_tau + R^2 / (8 n) (beta sum_i 1 / m_i + lambda / (n2 + v)) + ln(1 / delta) / sqrt n

    It is for the optimal hyper-posterior of Corollary 4.4 alone, of which Z_tau is the normaliser, and for new clients
    whose numbers of rows follow the law of the seen ones'. The probability is over the seen clients and their rows, and
    not, as printed, over the new ones, of which the left side is an average.

    Args:
        log_z: ln Z_tau = ln E_P exp(tau sum_i ln Z_beta(P, S_i)) over the hyper-prior [*], in nats.
        beta: the one that all clients have, in 1 / unit of the loss.
        m: rows m_i [K].
        delta: probability with which it may fail [*].
        premises: with posterior = "exact Gibbs" and drawn_clients; `average` is set here.
        lam: lambda > n2 + v.
        n2: number of clients that expect later rows, which enters tau.
        v: small constant of Theorem 4.2.

    Returns:
        The certificate [*].

    Raises:
        AssumptionError: when no number can be formed, as for unequal beta_i or an ln Z of an unbounded loss.
        ShapeError: when m is not one number a client.
    """
    rows = whole("m", m)
    if rows.dim() != 1:
        raise ShapeError(f"m must be one number a client [K], got {list(rows.shape)}")
    n, one, loss = len(rows), _one_beta(beta), premises.loss
    numbers = {"lam": checked("lam", lam, 0.0, strict=True), "v": checked("v", v, 0.0), "n2": checked("n2", n2, 0.0, n)}
    log_normaliser = torch.as_tensor(log_z, dtype=torch.float64)
    factor = confidence_factor(one, n, **numbers)
    checked("-C log_z", -factor * log_normaliser, loss.low, loss.high)
    terms = {"log_z": log_normaliser, "beta": one, "m": rows, **numbers}
    reasons = (*_gibbs_only(premises), *_drawn(premises), *_as_printed(one, n, **numbers))
    premises = replace(premises, average="new client on average")
    return certify("PAC-PFL Lemma 4.6 as printed", _lemma_4_6, terms, delta, premises, reasons=reasons)


SERVER_BOUNDS: Mapping[str, Callable[..., Certificate]] = MappingProxyType(
    {
        "server": server_bound,
        "new-clients": new_clients,
        "theorem-4.2": theorem_4_2,
        "lemma-4.3": lemma_4_3,
        "lemma-4.6": lemma_4_6,
    }
)
"""Every bound on an average over clients under the name that a command uses; the first is the default."""


# what goes into them ---------------------------------------------------------------------------------------------


def confidence_factor(beta: Number, n: int, lam: Number, n2: Number = 0.0, v: Number = 1e-4) -> Tensor:
    """Factor of the nats in Theorem 4.2, those of delta included: the printed 1 / sqrt n is too small below it.

    C = 1 / (n beta) + (n2 + v) / lambda = 1 / (n beta tau), with tau of Corollary 4.4

    Args:
        beta: [], in 1 / unit of the loss.
        n: number of clients.
        lam: lambda [].
        n2: number of clients that expect later rows [].
        v: small constant of the theorem [].

    Returns:
        [], in the unit of the loss.
    """
    beta, lam, n2, v = (torch.as_tensor(value, dtype=torch.float64) for value in (beta, lam, n2, v))
    return 1.0 / (n * beta) + (n2 + v) / lam


def gibbs_epsilon(beta: Number, tau: Number, m: Number, *, low: float = 0.0, high: float = 1.0) -> Tensor:
    """Pure differential privacy of one exact draw from the optimal hyper-posterior (PAC-PFL Lemma 4.5).

    eps_i = 2 beta tau R / m_i, for one changed row of client i; with m = 1, for the client as a whole

    An approximation of such a draw, by SVGD or by a Markov chain, does not have it, and two draws cost it twice.

    Args:
        beta: [] or [K], in 1 / unit of the loss.
        tau: exponent of the hyper-posterior [].
        m: rows [] or [K].
        low: a.
        high: b.

    Returns:
        [] or [K].
    """
    beta, tau, m = (torch.as_tensor(value, dtype=torch.float64) for value in (beta, tau, m))
    return 2.0 * beta * tau * (high - low) / m


def later_log_ratio(beta: Number, m: Number, later: Number, *, low: float = 0.0, high: float = 1.0) -> Tensor:
    """How far later rows can move a Gibbs posterior: its density changes by a factor in [e^-x, e^x].

    x = 2 beta later R / (m + later)    (proof of PAC-PFL Theorem 4.2)

    Args:
        beta: [] or [K], in 1 / unit of the loss.
        m: rows [] or [K].
        later: rows that are still to come [] or [K].
        low: a.
        high: b.

    Returns:
        x [] or [K], in nats.
    """
    beta, m, later = (torch.as_tensor(value, dtype=torch.float64) for value in (beta, m, later))
    return 2.0 * beta * later * (high - low) / (m + later)


def theorem_delta(beta: Number, m: Number, later: Number, n: int, *, low: float = 0.0, high: float = 1.0) -> Tensor:
    """Delta_i of PAC-PFL Theorem 4.2, which is right for losses that are never negative alone.

    Delta_i = min(R, b (e^x - e^-x)) / n, with x of `later_log_ratio`

    Args:
        beta: [] or [K], in 1 / unit of the loss.
        m: rows [] or [K].
        later: rows that are still to come [] or [K].
        n: number of clients.
        low: a.
        high: b.

    Returns:
        [] or [K], in the unit of the loss.
    """
    x = later_log_ratio(beta, m, later, low=low, high=high).clamp_max(50.0)  # beyond, it is R by far
    return (2.0 * high * x.sinh()).clamp_max(high - low) / n


def later_change(beta: Number, m: Number, later: Number, *, low: float = 0.0, high: float = 1.0) -> Tensor:
    """Most that later rows can change the risk of a Gibbs posterior, whatever they are.

    |L(Q~) - L(Q*)| <= R tanh(x / 2), the total variation of densities whose ratio lies in [e^-x, e^x]

    Added to a bound for the rows of now, it gives one for all rows, which is of use only where beta later / m is small.

    Args:
        beta: [] or [K], in 1 / unit of the loss.
        m: rows [] or [K].
        later: rows that are still to come [] or [K].
        low: a.
        high: b.

    Returns:
        [] or [K], in the unit of the loss.
    """
    return (high - low) * (0.5 * later_log_ratio(beta, m, later, low=low, high=high)).tanh()


@dataclass(frozen=True, eq=False)
class NotVacuous:
    """What of eq. (6) is there however small the risk is, and whether it leaves room (PAC-PFL section 8.3.1).

    Args:
        constant: beta R^2 / (8 m) + (I(eps, m, delta) + ln(1 / delta)) / beta [] or [K], in the unit of the loss.
        epsilon: of Lemma 4.5 [] or [K].
        range: whether Hoeffding's term alone is below R, bool [] or [K]: b - a < 8 at beta = m.
        privacy: whether m eps^2 / (2 beta) alone is, bool [] or [K]: eps < sqrt(2 (b - a)) at beta = m.
        jointly: whether their sum is, bool [] or [K]: (1/8 + 2 tau^2) (b - a) < 1 at beta = m.
        enough: whether the whole constant is, bool [] or [K]; the first three are necessary, this is what counts.
    """

    constant: Tensor
    epsilon: Tensor
    range: Tensor
    privacy: Tensor
    jointly: Tensor
    enough: Tensor


def not_vacuous(
    beta: Number, m: Number, tau: Number, delta: Number, *, low: float = 0.0, high: float = 1.0
) -> NotVacuous:
    """Say whether eq. (6) can be below b for a client with a prior drawn from the optimal hyper-posterior.

    For the gap to vanish as rows grow, beta must grow more slowly than m, and without bound: under the paper's
    beta = Omega(1) the term ln(1 / delta) / beta may stay.

    Args:
        beta: [] or [K], in 1 / unit of the loss.
        m: rows [] or [K].
        tau: exponent of the hyper-posterior [].
        delta: probability with which it may fail [*].
        low: a.
        high: b.

    Returns:
        The conditions.

    Raises:
        AssumptionError: when a number is none that the bound allows.
    """
    beta, m, width = checked("beta", beta, 0.0, strict=True), checked("m", m, 1.0), high - low
    epsilon = gibbs_epsilon(beta, checked("tau", tau, 0.0), m, low=low, high=high)
    hoeffding, privacy = beta * width**2 / (8.0 * m), m * epsilon.square() / (2.0 * beta)
    nats = max_information(epsilon, m, delta) - torch.as_tensor(delta, dtype=torch.float64).log()
    constant = hoeffding + nats / beta
    return NotVacuous(
        constant, epsilon, hoeffding < width, privacy < width, hoeffding + privacy < width, constant < width
    )


def _printed(
    theorem: str,
    free_energy: Tensor,
    beta: Number,
    m: Number,
    kl: Number,
    delta: Number,
    premises: Premises,
    lam: Number,
    later: Number,
    unknown: Tensor | bool,
    v: Number,
    monte_carlo: MonteCarlo | None,
) -> Certificate:
    energy = _energies(free_energy, premises, bounded=True)
    n, one, loss = energy.shape[-1], _one_beta(beta), premises.loss
    rows, coming = _by_client("m", whole("m", m), energy, 1.0), _by_client("later", later, energy, 0.0)
    blind = _by_client("unknown", torch.as_tensor(unknown).double(), energy, 0.0) > 0
    shift = theorem_delta(one, rows, coming, n, low=loss.low, high=loss.high)
    numbers = {
        "lam": checked("lam", lam, 0.0, strict=True),
        "v": checked("v", v, 0.0, strict=True),
        "n2": ((coming > 0) | blind).sum().double(),
    }
    reasons = [*_gibbs_only(premises), *_as_printed(one, n, **numbers)]
    if bool(numbers["n2"] > 0):
        reasons.append("step 2 of the proof, on later rows, is false: `server_bound` has another")
        if loss.low < 0:
            reasons.append("Delta_i needs a loss that is never negative")
    if bool((coming > rows).any()):
        reasons.append("the proof needs no more later rows than there are rows")
    terms = {
        "free_energy": energy,
        "beta": one,
        "m": rows,
        "kl": _divergence(kl),
        "shift": torch.where(blind, (loss.high - loss.low) / n, shift),
        **numbers,
    }
    premises = replace(premises, average="clients on average")
    return certify(theorem, _theorem_4_2, terms, delta, premises, monte_carlo=monte_carlo, reasons=tuple(reasons))


# checks ----------------------------------------------------------------------------------------------------------


def _energies(free_energy: Tensor, premises: Premises, *, bounded: bool = False) -> Tensor:
    """Take free energies as float64: at least a, and at most b for posteriors that are no worse than the prior."""
    high = premises.loss.high if bounded or premises.posterior != "any" else float("inf")
    numbers = checked("free_energy", free_energy, premises.loss.low, high)
    if numbers.dim() == 0 or numbers.shape[-1] == 0:
        raise ShapeError(f"free_energy must be one number a client [*, K], got {list(numbers.shape)}")
    return numbers


def _by_client(name: str, value: Number, energy: Tensor, low: float, *, strict: bool = False) -> Tensor:
    numbers, clients = checked(name, value, low, strict=strict), energy.shape[-1]
    if numbers.dim() > 1 or (numbers.dim() == 1 and len(numbers) != clients):
        raise ShapeError(f"{name} must be one number [] or one a client [{clients}], got {list(numbers.shape)}")
    return numbers.to(energy.device).expand(clients)


def _one_beta(beta: Number) -> Tensor:
    numbers = checked("beta", beta, 0.0, strict=True).flatten()
    if bool((numbers != numbers[0]).any()):
        raise AssumptionError(
            f"beta must be the same for all clients, got {numbers.min().item():g} to {numbers.max().item():g}",
            hint="one number for all clients",
        )
    return numbers[0]


def _divergence(kl: Number) -> Tensor:
    if bool(torch.as_tensor(kl, dtype=torch.float64).isposinf().any()):
        raise AssumptionError(
            "kl must be finite, got inf: the divergence of atoms, such as SVGD's particles, from a density",
            hint="blur them: posteriors.particles.SmoothedHyperPosterior",
        )
    return checked("kl", kl, 0.0)


def _gibbs_only(premises: Premises) -> tuple[str, ...]:
    return () if premises.posterior == "exact Gibbs" else (_GIBBS,)


def _in_range(premises: Premises) -> tuple[str, ...]:
    return () if premises.posterior != "any" else (_IN_RANGE,)


def _drawn(premises: Premises) -> tuple[str, ...]:
    if premises.drawn_clients:
        return ()
    return ("clients, seen and new, were not declared independent draws of one distribution (drawn_clients)",)


def _as_printed(beta: Tensor, n: int, lam: Tensor, n2: Tensor, v: Tensor) -> tuple[str, ...]:
    """Say what of the printed theorem's conditions and of its last term does not hold."""
    factor = confidence_factor(beta, n, lam, n2, v)
    reasons = []
    if bool((factor > n**-0.5 * (1.0 + _ROUNDING)).any()):
        reasons.append(
            "the printed ln(1 / delta) / sqrt n is too small here: C > 1 / sqrt n, or tau < 1 / (beta sqrt n)"
        )
    if bool((lam <= n2 + v).any()):
        reasons.append("the theorem needs lambda > n2 + v")
    if bool(beta * n < 1.0 - _ROUNDING):
        reasons.append("the theorem needs beta >= 1 / n")
    return tuple(reasons)


# formulas: functions of terms ------------------------------------------------------------------------------------


def _average_energy(terms: Terms, weights: Tensor | float) -> Tensor:
    """Average free energy, with what its estimation costs: it lies in [a, b] for every prior drawn."""
    mean = (weights * terms["free_energy"]).sum(-1)
    if "mc_draws" not in terms:
        return mean
    width = terms["high"] - terms["low"]
    unit = ((mean - terms["low"]) / width).clamp(0.0, 1.0)
    return terms["low"] + width * monte_carlo_risk(unit, terms["mc_draws"], terms["mc_delta"])


def _clients(terms: Terms) -> int:
    return terms["free_energy"].shape[-1]


def _eighth(terms: Terms) -> Tensor:
    """R^2 / 8 of Hoeffding's lemma."""
    return (terms["high"] - terms["low"]).square() / 8.0


def _server(terms: Terms) -> dict[str, Tensor]:
    m, later = terms["m"], terms["later"]
    kappa = 1.0 / m + torch.where(later > 0, 1.0 / (m * (m + later)), 0.0)
    return {
        "free energy": _average_energy(terms, terms["weights"]),
        "Hoeffding": _eighth(terms) * (terms["weights"] * terms["beta"] * kappa).sum(-1),
        "divergence": terms["kl"] / terms["lam"],
        "confidence": -terms["delta"].log() / terms["lam"],
    }


def _new_clients(terms: Terms) -> dict[str, Tensor]:
    n = _clients(terms)
    return {
        "free energy": _average_energy(terms, 1.0 / n),
        "Hoeffding of rows": _eighth(terms) * terms["beta"] / terms["m"],
        "Hoeffding of clients": _eighth(terms) * terms["lam"] / n,
        "divergence": terms["kl"] / terms["lam"],
        "confidence": -terms["delta"].log() / terms["lam"],
    }


def _theorem_4_2(terms: Terms) -> dict[str, Tensor]:
    n = _clients(terms)
    return {
        "free energy": _average_energy(terms, 1.0 / n),
        "Hoeffding": _eighth(terms) * terms["beta"] / n * (1.0 / terms["m"]).sum(-1),
        "later rows": terms["lam"] * terms["shift"].square().sum(-1) / (8.0 * (terms["n2"] + terms["v"])),
        "divergence": _factor(terms, n) * terms["kl"],
        "confidence": -terms["delta"].log() / n**0.5,
    }


def _lemma_4_6(terms: Terms) -> dict[str, Tensor]:
    n = len(terms["m"])
    several = terms["beta"] * (1.0 / terms["m"]).sum(-1) + terms["lam"] / (terms["n2"] + terms["v"])
    return {
        "free energy and divergence": -_factor(terms, n) * terms["log_z"],
        "Hoeffding": _eighth(terms) / n * several,
        "confidence": -terms["delta"].log() / n**0.5,
    }


def _factor(terms: Terms, n: int) -> Tensor:
    return confidence_factor(terms["beta"], n, terms["lam"], terms["n2"], terms["v"])


FORMULAS: Mapping[str, Formula] = MappingProxyType(
    {"server": _server, "new-clients": _new_clients, "theorem-4.2": _theorem_4_2, "lemma-4.6": _lemma_4_6}
)
"""Every formula under the name that a record gives it."""
