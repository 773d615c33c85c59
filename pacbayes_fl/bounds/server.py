"""Bounds on averages over clients under a hyper-posterior over priors: for training clients and for new ones.

Notation: n = K clients with m_i rows S_i each; a hyper-posterior over priors P and its divergence KL from a hyper-prior
that saw no rows, in nats; a loss in [a, b], R = b - a. Client i answers a prior P with a posterior Q_i, which its free
energy F_i(P) is about:

    F_i(P) = -ln Z_{beta_i}(P, S_i) / beta_i    of the exact Gibbs posterior (premises.posterior = "exact Gibbs")
    F_i(P) = L^(Q_i) + KL(Q_i || P) / beta_i    of any other, by whatever map of P and S_i (premises.posterior = "any",
                                                or "no worse than the prior" where F_i(P) <= L^(P) for every P)

The arguments `free_energy` are E F_i(P) over the hyper-posterior; all are described in `bound.ARGUMENTS`. Every bound
holds with probability at least 1 - delta over the rows of all clients, for all hyper-posteriors at once. `server_bound`
and `new_clients` are proved as they stand; the theorem and the lemmas of PAC-PFL are not (`printed`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

import torch
from torch import Tensor

from pacbayes_fl.bounds.bound import Bound, PerClient
from pacbayes_fl.bounds.certificate import Certificate, MonteCarlo, Terms, certify, split_delta
from pacbayes_fl.bounds.checks import Number, checked, whole
from pacbayes_fl.bounds.energies import (
    GIBBS_ONLY,
    average_energy,
    by_client,
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

    lambda is the largest allowed when not given. With later rows the risk is that of the posterior of all rows, on
    average over these; `later` is None where their number is unknown, of which one is the worst.
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
    return certify(theorem, _server, terms, delta, premises, monte_carlo=monte_carlo, reasons=tuple(reasons))


def _server(terms: Terms) -> dict[str, Tensor]:
    m, later = terms["m"], terms["later"]
    kappa = 1.0 / m + torch.where(later > 0, 1.0 / (m * (m + later)), 0.0)
    return {
        "free energy": average_energy(terms, terms["weights"]),
        "Hoeffding": eighth(terms) * (terms["weights"] * terms["beta"] * kappa).sum(-1),
        "divergence": terms["kl"] / terms["lam"],
        "confidence": -terms["delta"].log() / terms["lam"],
    }


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

    E L <= 1 / n sum_i F_i + beta R^2 / (8 m_min) + lambda R^2 / (8 n) + (KL + ln(1 / delta)) / lambda

    The left side is over new clients, their rows, and priors drawn from the hyper-posterior: no client on its own. That
    no new client will have fewer than m_min rows is a premise too, which the certificate names and no number shows. The
    hyper-posterior that minimises the right side is that of Corollary 4.4 with tau = lambda / (n beta).

    Why it holds: the free energies of clients drawn alike are independent, alike and in [a, b] for every fixed P, so
    that Hoeffding's lemma covers the step from n clients to all; a new client's expected risk is at most its expected
    free energy plus beta R^2 / (8 m).

    m_min is the fewest of m when given by client, and no client, seen or new, has fewer. The premises need
    drawn_clients and a posterior other than "any", which new clients have too. lambda is sqrt(8 n ln(1 / delta)) / R
    when not given, which is the best for KL = 0.
    """
    energy = free_energies(free_energy, premises, bounded=True)
    n, fewest = energy.shape[-1], by_client("m", whole("m", m), energy, 1.0).min()
    split_delta(delta)
    nats = -torch.as_tensor(delta, dtype=torch.float64).log()
    best = (8.0 * n * nats).sqrt() / (premises.loss.high - premises.loss.low)
    terms = {
        "free_energy": energy,
        "beta": one_beta(beta),
        "m": fewest,
        "kl": finite_divergence(kl),
        "lam": best if lam is None else checked("lam", lam, 0.0, strict=True),
    }
    reasons = (*in_range(premises), *drawn_alike(premises))
    premises = replace(premises, average="new client on average")
    theorem = f"new clients with at least {fewest.item():.15g} rows (PAC-PFL Lemma 4.6, repaired)"
    return certify(theorem, _new_clients, terms, delta, premises, monte_carlo=monte_carlo, reasons=reasons)


def _new_clients(terms: Terms) -> dict[str, Tensor]:
    n = n_clients(terms)
    return {
        "free energy": average_energy(terms, 1.0 / n),
        "Hoeffding of rows": eighth(terms) * terms["beta"] / terms["m"],
        "Hoeffding of clients": eighth(terms) * terms["lam"] / n,
        "divergence": terms["kl"] / terms["lam"],
        "confidence": -terms["delta"].log() / terms["lam"],
    }


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
