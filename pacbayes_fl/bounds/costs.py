"""Costs of a bound beside its divergence: a prior drawn with privacy, and a risk estimated by draws."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from pacbayes_fl.bounds.betting import betting_upper
from pacbayes_fl.bounds.checks import Number
from pacbayes_fl.bounds.kl_inverse import kl_inverse_upper


def max_information(epsilon: Number, rows: Number, delta: Number) -> Tensor:
    """Nats that a prior drawn with eps-DP from the rows of the bound costs (PAC-PFL Theorem 3.2).

    I(eps, m, delta) = m eps^2 / 2 + eps sqrt(m ln(4 / delta) / 2) + ln 2

    Args:
        epsilon: of the mechanism [] or [K], for one changed row.
        rows: that the mechanism saw, m [] or [K].
        delta: of the bound [] or [K].

    Returns:
        [] or [K], in nats.

    Example:
        >>> from pacbayes_fl.bounds import max_information
        >>> round(max_information(0.01, 1_000, 0.025).item(), 3)
        1.247
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

    Example:
        >>> from pacbayes_fl.bounds import client_privacy
        >>> round(client_privacy(1.0, 1e-5, 0.025).item(), 3)
        1.0
    """
    epsilon, spent, delta = (torch.as_tensor(value, dtype=torch.float64) for value in (epsilon, prior_delta, delta))
    return epsilon - torch.log1p(-spent / delta)


def monte_carlo_risk(risk: Number, draws: Number, delta: Number) -> Tensor:
    """Bound the empirical Gibbs risk by its estimate from draws of the posterior (Perez-Ortiz et al. 2021).

    L^ <= kl^-1(estimate, ln(1 / delta) / M)

    For one side alone: the estimate is below a q < L^ with probability at most exp(-M kl(q || L^)) (Hoeffding 1963,
    Theorem 1), where both sides need ln(2 / delta). That theorem is on the mean of independent numbers in [0, 1] whose
    means may differ, L^ being the mean of these: where every one of n rows has a hypothesis of its own in each of S
    draws, the S n losses are such numbers, and M is S n.

    Args:
        risk: averaged over M independent draws [] or [K], of a loss in [0, 1].
        draws: M [] or [K].
        delta: probability with which the draws may mislead.

    Returns:
        [] or [K].

    Example:
        >>> from pacbayes_fl.bounds import monte_carlo_risk
        >>> round(monte_carlo_risk(0.03, 1_000, 0.01).item(), 4)
        0.0493
    """
    risk, draws, delta = (torch.as_tensor(value, dtype=torch.float64) for value in (risk, draws, delta))
    return kl_inverse_upper(risk, -delta.log() / draws)


def drawn_risk(risks: Tensor, draws: Number, delta: Number) -> Tensor:
    """Bound the empirical Gibbs risk by the risks of the single draws, by betting (`betting`).

    L^ <= max {m : mean_g prod_j (1 + g (m - r_j) / (1 - m)) <= 1 / delta},  r_j the risk of draw j, g in (0, 1)

    The draws are independent given the rows, each r_j is in [0, 1], L^ is the mean of their means m_j, and no more is
    used: by the inequality of arithmetic and geometric means

    E prod_j (1 + g (L^ - r_j) / (1 - L^)) = prod_j (1 + g (L^ - m_j) / (1 - L^)) <= 1.

    So draws may look at different rows, as long as all count alike together. `monte_carlo_risk` pays for draws that
    could each be right or wrong; a draw is an average over many rows, and such hardly differ.

    Args:
        risks: of groups of draws [*, V], each of M / V draws that have no larger risk (`betting.grouped`).
        draws: M.
        delta: probability with which the draws may mislead.

    Returns:
        [*].
    """
    delta = torch.as_tensor(delta, dtype=torch.float64)
    counts = torch.as_tensor(draws, dtype=torch.float64) / risks.shape[-1] * torch.ones_like(risks)
    return betting_upper(risks, -delta.log(), counts)


def unit_of(risk: Tensor, terms: Mapping[str, Tensor]) -> Tensor:
    """Take risks over to [0, 1]; what rounding has put beyond is put back.

    Args:
        risk: [*], in the unit of the loss.
        terms: with "low" and "high" of the loss.

    Returns:
        [*].
    """
    return ((risk - terms["low"]) / (terms["high"] - terms["low"])).clamp(0.0, 1.0)
