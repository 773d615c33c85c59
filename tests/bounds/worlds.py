"""Worlds whose truth is known exactly, for the tests of bounds on averages."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import torch
from scipy import stats
from torch import Tensor

from pacbayes_fl.bounds.certificate import Certificate
from pacbayes_fl.bounds.divergence import gibbs_weights
from pacbayes_fl.bounds.losses import LossRange
from pacbayes_fl.bounds.pac_pfl import confidence_factor
from pacbayes_fl.bounds.premises import Premises, Provenance
from pacbayes_fl.bounds.table import BOUNDS

USUAL = frozenset(("risk", "kl", "n", "beta", "log_z"))
CLIENT_BOUNDS = [
    bound.name for bound in BOUNDS.values() if bound.group is None and not bound.fixed and USUAL.issuperset(bound.needs)
]
SERVER_BOUNDS = [bound.name for bound in BOUNDS.values() if bound.group is not None]
FINE = Premises(Provenance("data-free"), independent=True, posterior="exact Gibbs", drawn_clients=True)

SURE = 1 - 1e-12  # ln(1 / delta) = 0

DELTA = 0.05


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def ranged(low: float, high: float) -> Premises:
    return dataclasses.replace(FINE, loss=LossRange("loss", low, high))


def outcomes(n: int, high: float) -> Tensor:
    """Free energies [n + 1, n] of n clients with one row each, of which 0 ... n have lost R."""
    lost = torch.arange(n + 1, dtype=torch.float64)
    return (high * lost / n).unsqueeze(-1).expand(n + 1, n)


def failing(certificate: Certificate, rows: int, high: float = 1.0) -> float:
    """Probability with which the truth, R / 2, is above a bound that is given for every number of losses."""
    value = certificate.value.numpy()
    return float(stats.binom.pmf(range(rows + 1), rows, 0.5)[value < high / 2].sum())


class Tables(NamedTuple):
    """By number of rows of the second kind, 0 ... m: free energy and risk averaged over later rows, [m + 1] each."""

    energy: Tensor
    risk: Tensor


class TwoOutcomes(NamedTuple):
    """Rows of two kinds with known probabilities [2]; losses [H, 2] in [0, 1] and a prior [H] of the hypotheses."""

    chances: Tensor
    losses: Tensor
    prior: Tensor

    def counts(self, m: int) -> Tensor:
        return torch.from_numpy(stats.binom.pmf(range(m + 1), m, self.chances[1].item()))

    def tables(self, beta: float, m: int, later: int) -> Tables:
        truth = self.losses @ self.chances
        energy, risk = torch.zeros(m + 1).double(), torch.zeros(m + 1).double()
        for c in range(m + 1):
            _, log_z = gibbs_weights(self.losses @ numbers(m - c, c) / m, beta, self.prior)
            energy[c] = -log_z / beta
            for more, chance in enumerate(self.counts(later)):
                split = numbers(m + later - c - more, c + more) / (m + later)
                weights, _ = gibbs_weights(self.losses @ split, beta, self.prior)
                risk[c] += chance * (weights @ truth)
        return Tables(energy, risk)


def call(name: str, energy: Tensor, beta: float, m: float, kl: float, delta: float, premises: Premises) -> Certificate:
    """Call any bound with the same numbers, at a lambda that the theorem allows and that has the loss's unit."""
    n, lam = len(energy), 50.0 / (premises.loss.high - premises.loss.low)
    log_z = -energy.mean() / confidence_factor(beta, n, lam)
    given = {"free_energy": energy, "beta": beta, "m": torch.full((n,), m), "kl": kl, "lam": lam, "log_z": log_z}
    return BOUNDS[name].certify(given, delta, premises)


def twin(name: str) -> str:
    """Name of the bound for any prior that has the same formula."""
    return next(bound.name for bound in BOUNDS.values() if bound.formula is BOUNDS[name].formula)
