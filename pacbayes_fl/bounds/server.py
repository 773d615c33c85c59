"""Bounds on averages over clients under a hyper-posterior over priors: for training clients and for new ones.

Notation: n = K clients with m_i rows S_i each; a hyper-posterior over priors P and its divergence KL from a hyper-prior
that saw no rows, in nats; a loss in [a, b], R = b - a. Client i answers a prior P with a posterior Q_i, which its free
energy F_i(P) is about:

    F_i(P) = -ln Z_{beta_i}(P, S_i) / beta_i    of the exact Gibbs posterior (premises.posterior = "exact Gibbs")
    F_i(P) = L^(Q_i) + KL(Q_i || P) / beta_i    of any other, by whatever map of P and S_i (premises.posterior = "any",
                                                or "no worse than the prior" where F_i(P) <= L^(P) for every P)

The arguments `free_energy` are E F_i(P) over the hyper-posterior; all are described in `bound.ARGUMENTS`. Every bound
holds with probability at least 1 - delta over the rows of all clients, for all hyper-posteriors at once. Losses in
[0, 1] and Catoni's function (Catoni 2007, section 1.2), convex in p and falling with r, with its inverse, concave,

    C_r(p) = -ln(1 - p (1 - e^-r)) / r >= p - r / 8,      C_r^-1(x) = (1 - e^(-r x)) / (1 - e^-r), 1 from x = 1 on,

leave nothing behind that rows cannot take away, as R^2 beta / (8 m) of Hoeffding's lemma does. `server_bound`
and `new_clients` are proved as they stand; the theorem and the lemmas of PAC-PFL are not (`printed`).
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Final, Literal, get_args

import torch
from torch import Tensor

from pacbayes_fl.bounds.bound import Bound, PerClient
from pacbayes_fl.bounds.certificate import Certificate, MonteCarlo, Terms, certify, split_delta
from pacbayes_fl.bounds.checks import Number, checked, require_alike, whole
from pacbayes_fl.bounds.energies import (
    GIBBS_ONLY,
    average_energy,
    by_client,
    catoni_inverse,
    drawn_alike,
    eighth,
    finite_divergence,
    free_energies,
    in_range,
    n_clients,
    one_beta,
)
from pacbayes_fl.bounds.premises import Premises
from pacbayes_fl.errors import AssumptionError

Weights = Literal["equal", "beta"]

_ROUNDING = 1e-9
_INNER: Final = MappingProxyType(dict.fromkeys(("free_energy", "beta", "m", "later", "weights"), 1))


def server_bound(
    free_energy: PerClient,
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

    sum_i w_i L_i <= a + R C_r^-1((sum_i w_i F_i + (KL + ln(1 / delta)) / lambda - a) / R),  r = R max_i beta_i / m_i

    0 < lambda <= min_i beta_i / w_i

    It is never above sum_i w_i F_i + R^2 / 8 max_i beta_i / m_i + (KL + ln(1 / delta)) / lambda. With w_i = 1 / n and
    one beta, lambda = n beta is the best, and the hyper-posterior that minimises the bound is that of Corollary 4.4
    with tau = 1. With w_i = beta_i / sum_j beta_j, lambda = sum_j beta_j for unequal beta_i. beta = 4 m costs no more
    than beta = m here: try several, and count them (`premises.tried`).

    Why it holds, for a loss in [0, 1]: with r_i = beta_i / m_i, E exp(-r_i l) <= 1 - L(h) (1 - e^-r_i) = exp(-r_i
    C_r_i(L(h))) as exp is convex, so that E_S E_h~P exp(beta_i (C_r_i(L(h)) - L^(h))) <= 1 over m_i independent rows;
    by Donsker and Varadhan's inequality, and as C is convex, E exp(beta_i (C_r_i(L_i) - F_i(P))) <= 1 for every fixed
    P and any Q_i. By Jensen's inequality an exponent lambda w_i <= beta_i has the like; clients are independent and the
    hyper-prior is fixed, so that Markov's inequality and Donsker and Varadhan's over priors give sum_i w_i C_r_i(L_i)
    <= sum_i w_i F_i + (KL + ln(1 / delta)) / lambda on average over the hyper-posterior, the left side of which is at
    least C_r(sum_i w_i L_i). An unbiased estimate of Z, drawn for each client on its own, may stand in for Z at no
    cost: exp(beta_i (C(L_i) - F_i)) is linear in it.

    With later rows, on average over them and for exact Gibbs posteriors alone, it is instead

        sum_i w_i F_i + R^2 / 8 sum_i w_i beta_i kappa_i + (KL + ln(1 / delta)) / lambda,
        kappa_i = 1 / m_i + [later_i > 0] / (m_i (m_i + later_i)),

    by Hoeffding's lemma and Serfling's on sampling without replacement: the posterior is that of all rows.

    lambda is the largest allowed when not given. With later rows the risk is that of the posterior of all rows, on
    average over these; `later` is None where their number is unknown, of which one is the worst.

    Example:
        >>> import torch
        >>> from pacbayes_fl.bounds import Premises, Provenance, server_bound
        >>> premises = Premises(Provenance("data-free"), independent=True, posterior="exact Gibbs")
        >>> energies, rows = torch.full((24,), 0.1), torch.full((24,), 100.0)
        >>> round(server_bound(energies, beta=50.0, m=rows, kl=20.0, delta=0.05, premises=premises).value.item(), 4)
        0.147
    """
    if weights not in get_args(Weights):
        raise AssumptionError(f"weights must be one of {', '.join(get_args(Weights))}, got {weights!r}")
    energy = free_energies(free_energy, premises)
    tempers = by_client("beta", beta, energy, 0.0, strict=True)
    share = tempers / tempers.sum() if weights == "beta" else torch.full_like(tempers, 1.0 / len(tempers))
    largest = (tempers / share).min()
    terms = {
        "free_energy": energy,
        "beta": tempers,
        "m": by_client("m", whole("m", m), energy, 1.0),
        "later": by_client("later", 1.0 if later is None else later, energy, 0.0),
        "weights": share,
        "kl": finite_divergence(kl),
        "lam": largest if lam is None else checked("lam", lam, 0.0, strict=True),
    }
    reasons = [*(() if monte_carlo is None else in_range(premises))]
    if bool((terms["lam"] > largest * (1.0 + _ROUNDING)).any()):
        reasons.append(
            "lambda must be at most the smallest beta_i / w_i, which is n beta for equal weights and one beta"
        )
    gathering = bool((terms["later"] > 0).any())
    if gathering and premises.posterior != "exact Gibbs":
        reasons.append(f"with later rows {GIBBS_ONLY}")
    theorem = "server level (PAC-PFL Theorem 4.2, repaired)" + (", averaged over later rows" if gathering else "")
    premises = replace(premises, average="clients by beta" if weights == "beta" else "clients on average")
    more = tuple(reasons)
    return certify(theorem, _server, terms, delta, premises, monte_carlo=monte_carlo, reasons=more, inner=_INNER)


def _server(terms: Terms) -> dict[str, Tensor]:
    m, later = terms["m"], terms["later"]
    parts = {
        "free energy": average_energy(terms, terms["weights"]),
        "divergence": terms["kl"] / terms["lam"],
        "confidence": -terms["delta"].log() / terms["lam"],
    }
    if bool((later > 0).any()):
        kappa = 1.0 / m + torch.where(later > 0, 1.0 / (m * (m + later)), 0.0)
        return parts | {"Hoeffding": eighth(terms) * (terms["weights"] * terms["beta"] * kappa).sum(-1)}
    total = parts["free energy"] + parts["divergence"] + parts["confidence"]
    return parts | {"Catoni": catoni_inverse(total, (terms["beta"] / m).max(), terms) - total}


SERVER = Bound(
    name="server",
    function=server_bound,
    formula=_server,
    needs=("free_energy", "beta", "m", "kl"),
    poolable=False,
    world="finite federation",
    average="clients on average",
)


def new_clients(
    free_energy: PerClient,
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

    E L <= a + R C_r^-1(C_s^-1((1 / n sum_i F_i - a) / R + (KL + ln(1 / delta)) / (R lambda))),

    r = R beta / m_min,  s = R lambda / n,  lambda = sqrt(8 n ln(1 / delta)) / R when not given

    The left side is over new clients, their rows, and priors drawn from the hyper-posterior: no client on its own. That
    no new client will have fewer than m_min rows is a premise too, which the certificate names and no number shows.
    It is never above 1 / n sum_i F_i + beta R^2 / (8 m_min) + lambda R^2 / (8 n) + (KL + ln(1 / delta)) / lambda, by
    Hoeffding's lemma, for which that lambda is the best at KL = 0. The kl inverse in place of C_s^-1, for all lambdas
    at once, would cost ln xi(n) / n: with few clients more than the best lambda is worth.

    Why it holds, for a loss in [0, 1]: the free energies of clients drawn alike are independent, alike and in [0, 1]
    for every fixed P, so that Catoni's inequality with n clients in place of rows, at a lambda that no client had a
    part in, covers the step to the expected free energy f of a new client. Of it E exp(beta (C(L) - F)) <= 1 as in
    `server_bound`, hence C_r(E L) <= E C(L) <= f by Jensen's inequality, with r for the fewest rows, as C falls with r.

    m_min is the fewest of m when given by client, and no client, seen or new, has fewer. The premises need
    drawn_clients and a posterior other than "any", which new clients have too.

    Example:
        >>> import torch
        >>> from pacbayes_fl.bounds import Premises, Provenance, new_clients
        >>> premises = Premises(Provenance("data-free"), independent=True, posterior="exact Gibbs", drawn_clients=True)
        >>> energies, rows = torch.full((24,), 0.1), torch.full((24,), 100.0)
        >>> round(new_clients(energies, beta=50.0, m=rows, kl=2.0, delta=0.05, premises=premises).value.item(), 4)
        0.481
    """
    energy = free_energies(free_energy, premises, bounded=True)
    fewest = by_client("m", whole("m", m), energy, 1.0).min()
    split_delta(delta)
    require_alike({"free_energy": energy, "kl": finite_divergence(kl), "delta": delta}, _INNER)
    nats = -torch.as_tensor(delta, dtype=torch.float64).log()
    best = (8.0 * energy.shape[-1] * nats).sqrt() / (premises.loss.high - premises.loss.low)
    terms = {
        "free_energy": energy,
        "beta": one_beta(beta, energy),
        "m": fewest,
        "kl": finite_divergence(kl),
        "lam": best if lam is None else checked("lam", lam, 0.0, strict=True),
    }
    reasons = (*in_range(premises), *drawn_alike(premises))
    premises = replace(premises, average="new client on average")
    theorem = f"new clients with at least {fewest.item():.15g} rows (PAC-PFL Lemma 4.6, repaired)"
    inner = {"free_energy": 1}
    return certify(theorem, _new_clients, terms, delta, premises, monte_carlo=monte_carlo, reasons=reasons, inner=inner)


def _new_clients(terms: Terms) -> dict[str, Tensor]:
    n, nats = n_clients(terms), terms["kl"] - terms["delta"].log()
    energy = average_energy(terms, 1.0 / n)
    drawn = energy + nats / terms["lam"]
    expected = catoni_inverse(drawn, terms["lam"] / n, terms)
    value = catoni_inverse(expected, terms["beta"] / terms["m"], terms)
    return {"free energy": energy, "step to new clients": expected - energy, "Catoni": value - expected}


NEW_CLIENTS = Bound(
    name="new-clients",
    function=new_clients,
    formula=_new_clients,
    needs=("free_energy", "beta", "m", "kl"),
    poolable=False,
    world="new clients",
    average="new client on average",
    posterior="no worse than the prior",
    equal_beta=True,
)
