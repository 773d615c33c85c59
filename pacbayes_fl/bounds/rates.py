"""Rates at which average generalisation errors fall, as the papers on Bayesian networks state them: no bounds.

The theorems hold "with dominating probability" up to constants that nobody knows, some of them "arbitrary diverging
sequences", and bound a Hellinger distance to functions that nobody knows. Their terms say how an error changes with
rows, parameters and depth, and nothing about its size: a `Rate` has no value and is no number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from pacbayes_fl.errors import AssumptionError


@dataclass(frozen=True)
class Rate:
    """The terms of a theorem on rates, each up to a factor that is not known.

    Args:
        theorem: which one, with its equation.
        terms: computable ones by name; they may be compared with themselves at other n, not with each other.
        unknown: the factors.
    """

    theorem: str
    terms: Mapping[str, float]
    unknown: tuple[str, ...]

    def __str__(self) -> str:
        terms = ", ".join(f"{name} = {term:.4g}" for name, term in self.terms.items())
        return (
            f"{self.theorem}: a rate and no bound: its terms ({terms}) count up to what is unknown"
            f" ({'; '.join(self.unknown)})"
        )


def pfedbayes_rate(
    n: int,
    parameters: int,
    depth: int,
    width: int,
    inputs: int,
    *,
    log_power: float,
    zeta: float = 1.0,
    smoothness: float | None = None,
    dimension: float | None = None,
) -> Rate:
    """State the terms of pFedBayes' Theorem 1 (journal version, eq. 23).

    error <= C eps_n^2 + C' chi_n + C'' / (N zeta) sum_i xi_i

    chi_n = ((L + 1) T / n) ln M + (T / n) ln(r_0 sqrt(n / T))    (eq. 13),  eps_n^2 = chi_n ln^(2 delta) n    (eq. 15)

    For beta-smooth functions of d intrinsic dimensions xi <= C_0 T^(-2 beta / d) (eq. 24), and with T of the order of
    n^(d / (2 beta + d)) the whole is of the order of n^(-2 beta / (2 beta + d)) ln^(2 delta') n (eq. 25), of which no
    method can do without the first factor (eq. 28).

    Args:
        n: rows of a client.
        parameters: T.
        depth: hidden layers, L.
        width: of each hidden layer, M.
        inputs: r_0.
        log_power: delta > 1, of which the theorem leaves the choice.
        zeta: weight of the KL divergence, at least 1.
        smoothness: beta, in Hoelder's sense; without it the approximation error stays unknown.
        dimension: d, with the smoothness.

    Returns:
        The terms.

    Raises:
        AssumptionError: when a number is none that the theorem allows.

    Example:
        >>> from pacbayes_fl.bounds import pfedbayes_rate
        >>> pfedbayes_rate(1_000, 100, 2, 8, 3, log_power=1.1).terms.keys()
        dict_keys(['chi_n', 'eps_n^2'])
    """
    terms = _dense(n, parameters, depth, width, inputs, log_power) | _smooth(n, parameters, smoothness, dimension)
    return _rate("pFedBayes, Theorem 1 (eq. 23)", _divided(terms, zeta))


def sfedbayes_rate(
    n: int,
    sparsities: Sequence[int],
    depth: int,
    width: int,
    inputs: int,
    *,
    log_power: float,
) -> Rate:
    """State the terms of sFedBayes' Theorem 2 (eq. 39), for which T gives way to each client's best sparsity.

    error <= 1 / N sum_i [C eps_i^2 + C' chi_i + C'' / zeta xi_i]

    chi_i = ((L + 1) s_i / n) ln M + (s_i / n) ln(r_0 sqrt(n / s_i))   (eq. 35),  eps_i^2 = chi_i ln^delta n   (eq. 37)

    The power of the logarithm is half of that of Theorem 1, as printed.

    Args:
        n: rows of a client.
        sparsities: s_i*, how many parameters client i's best network needs, which nobody knows; one a client.
        depth: hidden layers, L.
        width: of each hidden layer, M.
        inputs: r_0.
        log_power: delta.

    Returns:
        The terms, averaged over clients.

    Raises:
        AssumptionError: when a number is none that the theorem allows.

    Example:
        >>> from pacbayes_fl.bounds import sfedbayes_rate
        >>> sfedbayes_rate(1_000, [40, 60], 2, 8, 3, log_power=1.1).terms.keys()
        dict_keys(['chi_n', 'eps_n^2'])
    """
    if not sparsities:
        raise AssumptionError("sparsities must name one number a client, got none")
    chi = math.fsum(_chi(n, s, depth, width, inputs) for s in sparsities) / len(sparsities)
    return _rate("sFedBayes, Theorem 2 (eq. 39)", {"chi_n": chi, "eps_n^2": chi * _log_factor(n, log_power, 1.0)})


def cfedbayes_rate(
    n: int,
    parameters: int,
    depth: int,
    width: int,
    inputs: int,
    *,
    log_power: float,
    zeta: float = 1.0,
    smoothness: float | None = None,
    dimension: float | None = None,
) -> Rate:
    """State the terms of cFedBayes' Theorem 3 (eq. 51), for one cluster.

    error <= C eps_n^2 + C' chi_n + C'' / (|S_k| zeta) sum_{i in S_k} xi_i,  with chi_n, eps_n of Theorem 1

    With functions that are beta_k-smooth within the cluster it is of the order of n^(-2 beta_k / (2 beta_k + d))
    ln^(2 delta') n (eq. 53): the number of clusters does not enter.

    Args:
        n: rows of a client.
        parameters: T.
        depth: hidden layers, L.
        width: of each hidden layer, M.
        inputs: r_0.
        log_power: delta > 1, of which the theorem leaves the choice.
        zeta: weight of the KL divergence, at least 1.
        smoothness: beta_k, in Hoelder's sense; without it the approximation error stays unknown.
        dimension: d, with the smoothness.

    Returns:
        The terms.

    Raises:
        AssumptionError: when a number is none that the theorem allows.

    Example:
        >>> from pacbayes_fl.bounds import cfedbayes_rate
        >>> cfedbayes_rate(1_000, 100, 2, 8, 3, log_power=1.1).terms.keys()
        dict_keys(['chi_n', 'eps_n^2'])
    """
    terms = _dense(n, parameters, depth, width, inputs, log_power) | _smooth(n, parameters, smoothness, dimension)
    return _rate("cFedBayes, Theorem 3 (eq. 51)", _divided(terms, zeta))


def bpfed_rate(
    n: int,
    personal: int,
    shared: int,
    depth: int,
    width: int,
    inputs: int,
    *,
    log_power: float,
) -> Rate:
    """State the terms of BPFed's Theorem 1 (eq. 19), in which the personal and the shared factors count alike.

    error <= C r_n + C' / N sum_i xi_i + C'' eps_n^2,  T = T_1 + T_2

    r_n = ((L + 1) T / n) ln K + (T / n) ln(e_0 sqrt(n / T))   (eq. 13),  eps_n = alpha sqrt(r_n) ln^delta n   (eq. 15)

    Eq. 13 prints N, the number of clients, where its proof and eq. 15 have K, the width, which stands here. The "large
    constant" alpha is left out.

    Args:
        n: rows of a client.
        personal: T_1.
        shared: T_2.
        depth: hidden layers, L.
        width: of each hidden layer, K.
        inputs: e_0.
        log_power: delta > 1, of which the theorem leaves the choice.

    Returns:
        The terms.

    Raises:
        AssumptionError: when a number is none that the theorem allows.

    Example:
        >>> from pacbayes_fl.bounds import bpfed_rate
        >>> bpfed_rate(1_000, 80, 20, 2, 8, 3, log_power=1.1).terms.keys()
        dict_keys(['r_n', 'eps_n^2'])
    """
    if personal < 0 or shared < 0:
        raise AssumptionError(f"personal and shared must be at least 0, got {personal} and {shared}")
    chi = _chi(n, personal + shared, depth, width, inputs)
    terms = {"r_n": chi, "eps_n^2": chi * _log_factor(n, log_power, 2.0)}
    return Rate(
        "BPFed, Theorem 1 (eq. 19)",
        MappingProxyType(terms),
        ("C and C', divergent sequences", "C''", "alpha", "xi_i, the distance from the truth", "noise variance"),
    )


def _rate(theorem: str, terms: Mapping[str, float]) -> Rate:
    unknown = ["C", "C' and C'', diverging sequences", "the noise variance"]
    if "approximation" not in terms:
        unknown.append("xi_i, the distance from the truth")
    return Rate(theorem, MappingProxyType(dict(terms)), tuple(unknown))


def _dense(n: int, parameters: int, depth: int, width: int, inputs: int, log_power: float) -> dict[str, float]:
    """Estimation error of a network all of whose weights are in."""
    chi = _chi(n, parameters, depth, width, inputs)
    return {"chi_n": chi, "eps_n^2": chi * _log_factor(n, log_power, 2.0)}


def _chi(n: int, parameters: int, depth: int, width: int, inputs: int) -> float:
    """Estimation error of a network with so many parameters (eq. 13, 35; BPFed's r_n)."""
    for name, value in (("n", n), ("parameters", parameters), ("depth", depth), ("width", width), ("inputs", inputs)):
        if value < 1:
            raise AssumptionError(f"{name} must be at least 1, got {value}")
    nats = (depth + 1) * math.log(width) + math.log(inputs * math.sqrt(n / parameters))
    if nats <= 0:
        raise AssumptionError(
            f"the theorem needs a network with r_0 sqrt(n / T) large, got {inputs} sqrt({n} / {parameters})",
            hint="with far more parameters than rows its estimation error has no meaning",
        )
    return parameters / n * nats


def _log_factor(n: int, power: float, times: float) -> float:
    if not power > 1:
        raise AssumptionError(f"log_power must be above 1, got {power}")
    return float(math.log(n) ** (times * power))


def _smooth(n: int, parameters: int, smoothness: float | None, dimension: float | None) -> dict[str, float]:
    """Give what is known of functions of known smoothness: the approximation error, and the best rate of any method."""
    if smoothness is None and dimension is None:
        return {}
    if smoothness is None or dimension is None or not (smoothness > 0 and dimension > 0):
        raise AssumptionError(f"smoothness and dimension must both be positive, got {smoothness} and {dimension}")
    return {
        "approximation": float(parameters ** (-2.0 * smoothness / dimension)),
        "minimax": float(n ** (-2.0 * smoothness / (2.0 * smoothness + dimension))),
    }


def _divided(terms: Mapping[str, float], zeta: float) -> dict[str, float]:
    """Divide the approximation error by zeta."""
    if not zeta >= 1:
        raise AssumptionError(f"zeta must be at least 1, got {zeta}")
    return {name: term / zeta if name == "approximation" else term for name, term in terms.items()}
