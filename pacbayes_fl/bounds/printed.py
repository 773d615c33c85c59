"""PAC-PFL's bounds on averages as they are printed, with a reason for each case in which they do not hold.

Notation and arguments as in `server`.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import torch
from torch import Tensor

from pacbayes_fl.bounds.bound import Bound, PerClient
from pacbayes_fl.bounds.certificate import Certificate, MonteCarlo, Terms, certify
from pacbayes_fl.bounds.checks import Number, as_numbers, checked, require_alike, whole
from pacbayes_fl.bounds.energies import (
    average_energy,
    by_client,
    drawn_alike,
    eighth,
    finite_divergence,
    free_energies,
    gibbs_only,
    n_clients,
    one_beta,
)
from pacbayes_fl.bounds.pac_pfl import confidence_factor, theorem_delta
from pacbayes_fl.bounds.premises import Premises, as_premises
from pacbayes_fl.errors import ShapeError

_ROUNDING = 1e-9


def theorem_4_2(
    free_energy: PerClient,
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

    It needs premises.posterior = "exact Gibbs", one beta and lambda > n2 + v, where n2 is the number of clients with
    later rows.
    """
    theorem = "PAC-PFL Theorem 4.2 as printed (eq. 9)"
    return _printed(theorem, free_energy, beta, m, kl, delta, premises, lam, later, False, v, monte_carlo)


def _theorem_4_2(terms: Terms) -> dict[str, Tensor]:
    n = n_clients(terms)
    return {
        "free energy": average_energy(terms, 1.0 / n),
        "Hoeffding": eighth(terms) * terms["beta"] / n * (1.0 / terms["m"]).sum(-1),
        "later rows": terms["lam"] * terms["shift"].square().sum(-1) / (8.0 * (terms["n2"] + terms["v"])),
        "divergence": _factor(terms, n) * terms["kl"],
        "confidence": -terms["delta"].log() / n**0.5,
    }


THEOREM_4_2 = Bound(
    name="theorem-4.2",
    function=theorem_4_2,
    formula=_theorem_4_2,
    needs=("free_energy", "beta", "m", "kl", "lam"),
    poolable=False,
    world="finite federation",
    average="clients on average",
    posterior="exact Gibbs",
    equal_beta=True,
    as_printed=True,
)


def lemma_4_3(
    free_energy: PerClient,
    beta: Number,
    m: Number,
    kl: Number,
    delta: Number,
    premises: Premises,
    *,
    lam: Number,
    later: Number = 0.0,
    unknown: PerClient | bool = True,
    v: Number = 1e-4,
    monte_carlo: MonteCarlo | None = None,
) -> Certificate:
    """Compute PAC-PFL Lemma 4.3 as printed: Theorem 4.2 for clients that may get more rows.

    L <= the right side of Theorem 4.2, in which unknown clients have Delta_i = R / n and count in n2

    lambda must still exceed n2 + v. What is wrong with the theorem for n2 > 0 is wrong with the lemma: `server_bound`
    with later = None holds.

    `later` is the number of rows to come where that is known. No certificate is valid while a client is unknown.
    """
    theorem = "PAC-PFL Lemma 4.3 as printed"
    return _printed(theorem, free_energy, beta, m, kl, delta, premises, lam, later, unknown, v, monte_carlo)


LEMMA_4_3 = Bound(
    name="lemma-4.3",
    function=lemma_4_3,
    formula=_theorem_4_2,
    needs=("free_energy", "beta", "m", "kl", "lam"),
    poolable=False,
    world="finite federation",
    average="clients on average",
    posterior="exact Gibbs",
    equal_beta=True,
    as_printed=True,
    example=MappingProxyType({"unknown": False}),
)


def lemma_4_6(
    log_z: Number,
    beta: Number,
    m: PerClient,
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

    log_z is ln Z_tau = ln E_P exp(tau sum_i ln Z_beta(P, S_i)) over the hyper-prior [*], m has one number a client [K],
    and n2 enters tau. It needs premises.posterior = "exact Gibbs" and drawn_clients, one beta and lambda > n2 + v.
    """
    rows = whole("m", m)
    if rows.dim() != 1:
        raise ShapeError(f"m must be one number a client [K], got {list(rows.shape)}")
    n, one, loss = len(rows), one_beta(beta, rows), as_premises(premises).loss
    numbers = {"lam": checked("lam", lam, 0.0, strict=True), "v": checked("v", v, 0.0), "n2": checked("n2", n2, 0.0, n)}
    log_normaliser = torch.as_tensor(log_z, dtype=torch.float64)
    require_alike({"log_z": log_normaliser, **numbers})
    factor = confidence_factor(one, n, **numbers)
    checked("-C log_z", -factor * log_normaliser, loss.low, loss.high)
    terms = {"log_z": log_normaliser, "beta": one, "m": rows, **numbers}
    reasons = (*gibbs_only(premises), *drawn_alike(premises), *_as_printed(one, n, **numbers))
    premises = replace(premises, average="new client on average")
    theorem = "PAC-PFL Lemma 4.6 as printed"
    return certify(theorem, _lemma_4_6, terms, delta, premises, reasons=reasons, inner={"m": 1})


def _lemma_4_6(terms: Terms) -> dict[str, Tensor]:
    n = len(terms["m"])
    several = terms["beta"] * (1.0 / terms["m"]).sum(-1) + terms["lam"] / (terms["n2"] + terms["v"])
    return {
        "free energy and divergence": -_factor(terms, n) * terms["log_z"],
        "Hoeffding": eighth(terms) / n * several,
        "confidence": -terms["delta"].log() / n**0.5,
    }


LEMMA_4_6 = Bound(
    name="lemma-4.6",
    function=lemma_4_6,
    formula=_lemma_4_6,
    needs=("log_z", "beta", "m", "lam"),
    poolable=False,
    world="new clients",
    average="new client on average",
    posterior="exact Gibbs",
    equal_beta=True,
    as_printed=True,
)


def _printed(
    theorem: str,
    free_energy: PerClient,
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
    energy = free_energies(free_energy, premises, bounded=True)
    n, one, loss = energy.shape[-1], one_beta(beta, energy), premises.loss
    rows, coming = by_client("m", whole("m", m), energy, 1.0), by_client("later", later, energy, 0.0)
    blind = by_client("unknown", as_numbers("unknown", unknown), energy, 0.0) > 0
    shift = theorem_delta(one, rows, coming, n, low=loss.low, high=loss.high)
    numbers = {
        "lam": checked("lam", lam, 0.0, strict=True),
        "v": checked("v", v, 0.0, strict=True),
        "n2": ((coming > 0) | blind).sum().double(),
    }
    require_alike({"free_energy": energy, **numbers}, {"free_energy": 1})
    reasons = [*gibbs_only(premises), *_as_printed(one, n, **numbers)]
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
        "kl": finite_divergence(kl),
        "shift": torch.where(blind, (loss.high - loss.low) / n, shift),
        **numbers,
    }
    premises = replace(premises, average="clients on average")
    more, inner = tuple(reasons), {"free_energy": 1, "m": 1, "shift": 1}
    return certify(theorem, _theorem_4_2, terms, delta, premises, monte_carlo=monte_carlo, reasons=more, inner=inner)


def _as_printed(beta: Tensor, n: int, lam: PerClient, n2: Tensor, v: Tensor) -> tuple[str, ...]:
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


def _factor(terms: Terms, n: int) -> Tensor:
    return confidence_factor(terms["beta"], n, terms["lam"], terms["n2"], terms["v"])
