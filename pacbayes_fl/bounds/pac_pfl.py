"""Quantities of PAC-PFL's theorems: the factor of the nats, the privacy of a draw, and the effect of later rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pacbayes_fl.bounds.checks import Number, checked
from pacbayes_fl.bounds.costs import max_information


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

    Example:
        >>> from pacbayes_fl.bounds import confidence_factor
        >>> round(confidence_factor(100.0, 24, 2_000.0).item(), 6)
        0.000417
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

    Example:
        >>> from pacbayes_fl.bounds import gibbs_epsilon
        >>> round(gibbs_epsilon(10.0, 0.05, 100).item(), 4)
        0.01
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

    Example:
        >>> from pacbayes_fl.bounds import later_log_ratio
        >>> later_log_ratio(beta=10.0, m=90, later=10).item()  # 2 x 10 x 10 / 100
        2.0
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

    Example:
        >>> from pacbayes_fl.bounds import later_change
        >>> round(later_change(10.0, 100, 20).item(), 4)
        0.9311
    """
    return (high - low) * (0.5 * later_log_ratio(beta, m, later, low=low, high=high)).tanh()


@dataclass(frozen=True, eq=False)
class NotVacuous:
    """The part of eq. (6) that does not depend on the risk, and whether the bound can be non-vacuous (section 8.3.1).

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
    """Whether eq. (6) can be below b for a client with a prior drawn from the optimal hyper-posterior.

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

    Example:
        >>> from pacbayes_fl.bounds import not_vacuous
        >>> bool(not_vacuous(beta=100.0, m=1_000, tau=0.01, delta=0.05).enough)
        True
    """
    beta, m, width = checked("beta", beta, 0.0, strict=True), checked("m", m, 1.0), high - low
    epsilon = gibbs_epsilon(beta, checked("tau", tau, 0.0), m, low=low, high=high)
    hoeffding, privacy = beta * width**2 / (8.0 * m), m * epsilon.square() / (2.0 * beta)
    nats = max_information(epsilon, m, delta) - torch.as_tensor(delta, dtype=torch.float64).log()
    constant = hoeffding + nats / beta
    return NotVacuous(
        constant, epsilon, hoeffding < width, privacy < width, hoeffding + privacy < width, constant < width
    )
