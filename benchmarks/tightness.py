"""Bounds of this library beside those of its peers on the same numbers: `python -m benchmarks.tightness`.

PAC-Bayes with Backprop (Perez-Ortiz et al. 2021) and pacbb publish the same certificate,

kl^-1(kl^-1(L, ln(2 / d') / M), (KL + ln(2 sqrt n / d)) / n),

which is computed anew here by scipy's root finding: the wheel of pacbb on PyPI (0.1.2) has no module of bounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from scipy import stats
from scipy.optimize import brentq

from pacbayes_fl.bounds import BOUNDS, MonteCarlo, Premises, Provenance

DRAWS, DELTA, DRAWS_DELTA = 1000, 0.05, 0.01
OURS = ("seeger", "pbb-quadratic", "pbb-lambda", "mcallester", "catoni")


class Case(NamedTuple):
    """Numbers of a certificate.

    Args:
        name: where they come from.
        risk: empirical 0-1 risk of the Gibbs predictor.
        kl: of the posterior from the prior, in nats.
        n: rows of the bound.
    """

    name: str
    risk: float
    kl: float
    n: int


CASES: Sequence[Case] = (
    Case("MNIST small, pFedBayes", 0.092, 1.4, 125),
    Case("MNIST small, BPFed", 0.070, 21.7, 125),
    Case("MNIST large, pFedBayes", 0.055, 13.2, 2250),
    Case("MNIST large, FedSI", 0.032, 0.04, 2250),
    Case("as PBB on MNIST", 0.03, 500.0, 30000),
)
"""Numbers of `RESULTS_CERTIFICATES.md`, and some of the size of PAC-Bayes with Backprop's."""


def peers(case: Case, draws: int = DRAWS) -> float:
    """Compute the certificate of PAC-Bayes with Backprop and of pacbb.

    Args:
        case: its numbers.
        draws: M, of the estimate of the risk.

    Returns:
        The bound on the 0-1 risk.
    """
    risk = _inverse(case.risk, math.log(2.0 / DRAWS_DELTA) / draws)
    budget = case.kl + math.log(2.0 * math.sqrt(case.n) / (DELTA - DRAWS_DELTA))
    return _inverse(risk, budget / case.n)


def binomial(case: Case) -> float:
    """Bound the error of one fixed predictor that errs as often on as many rows (Clopper and Pearson 1934).

    Args:
        case: its numbers; the divergence is of no use.

    Returns:
        The bound on the 0-1 risk.
    """
    errors = math.ceil(case.risk * case.n)
    return float(stats.beta.ppf(1.0 - DELTA, errors + 1, case.n - errors))


def ours(case: Case, draws: int | None = DRAWS) -> Mapping[str, float]:
    """Compute the bounds of this library.

    Args:
        case: its numbers.
        draws: M; None for an exact risk, which is given all of delta.

    Returns:
        By name, Catoni's at beta = n.
    """
    premises = Premises(Provenance("split"), independent=True)
    estimate = None if draws is None else MonteCarlo(draws, DRAWS_DELTA)
    numbers = {"risk": case.risk, "kl": case.kl, "n": case.n, "beta": float(case.n)}
    found = {name: BOUNDS[name].certify(numbers, DELTA, premises, estimate) for name in OURS}
    return MappingProxyType({name: each.value.item() for name, each in found.items()})


def _inverse(q: float, c: float) -> float:
    def excess(p: float) -> float:
        parts = [(a, b) for a, b in ((q, p), (1.0 - q, 1.0 - p)) if a]
        return sum(a * math.log(a / b) for a, b in parts) - c

    return float(brentq(excess, q, 1.0 - 1e-15, xtol=1e-15))


def table() -> list[str]:
    """Write the table, one line a case.

    Returns:
        Lines of Markdown.
    """
    heads = ["inputs", "risk", "KL", "n", "PBB, pacbb", *OURS, "seeger, exact risk", "binomial, fixed predictor"]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for case in CASES:
        known = ours(case)
        values = [peers(case), *known.values(), ours(case, None)["seeger"], binomial(case)]
        cells = [case.name, f"{case.risk:g}", f"{case.kl:g}", f"{case.n}", *(f"{value:.3f}" for value in values)]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


if __name__ == "__main__":
    print("\n".join(table()))
