"""Matching the hidden units of clients' networks by a Beta-Bernoulli process (PFNM, Yurochkin et al., ICML 2019)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

from pacbayes_fl.options import check, option

Floats: TypeAlias = npt.NDArray[np.float64]
Places: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Matching:
    """Which units of clients are the same: v_jl ~ N(theta_c(j,l), sigma^2 I), with atoms theta_i ~ N(0, sigma_0^2 I).

    Args:
        sigma: how far a client's unit is from its atom, the standard deviation of a weight.
        sigma0: of the weights of atoms.
        gamma: mass of the process: the larger the more atoms.
        popularity: factor of ln(m / (J - m)), the log odds of an atom that m of J clients have; 2 by the derivation.
        sweeps: times that every client is matched anew against all others.
    """

    sigma: float = option(1.0, above=0, symbol="sigma")
    sigma0: float = option(3.0, above=0, symbol="sigma_0")
    gamma: float = option(1.0, above=0, symbol="gamma_0")
    popularity: float = option(2.0, low=0)
    sweeps: int = option(5, low=0)

    def __post_init__(self) -> None:
        """Check the ranges."""
        check(self)

    def gains(self, v: Floats, sums: Floats, counts: Places, clients: int, fresh: int) -> Floats:
        """Say what the joint log density gains, twice, when a client's unit joins an atom or begins one.

        |v / sigma^2 + s_i|^2 / (p_i + 1 / sigma^2) - |s_i|^2 / p_i + 2 ln(m_i / (J - m_i))   for the atom i,
        |v / sigma^2|^2 / (1 / sigma_0^2 + 1 / sigma^2) + 2 ln(gamma_0 / J) - 2 ln k          for the k-th new one,
        with s_i = sum of the others' units / sigma^2 and p_i = 1 / sigma_0^2 + m_i / sigma^2   (PFNM, eqs. 8-9)

        Args:
            v: units of the client [L, M].
            sums: of the others' units by atom [A, M].
            counts: other clients that have the atom, m_i [A], 1 <= m_i < J.
            clients: J.
            fresh: number of new atoms to choose among.

        Returns:
            [L, A + fresh].
        """
        each, prior = 1.0 / self.sigma**2, 1.0 / self.sigma0**2
        s, p = each * sums, prior + each * counts
        squares = np.square(s).sum(1)
        joined = each**2 * np.square(v).sum(1)[:, None] + 2.0 * each * v @ s.T + squares
        old = joined / (p + each) - squares / p + self.popularity * np.log(counts / (clients - counts))
        new = each**2 * np.square(v).sum(1)[:, None] / (prior + each) + 2.0 * math.log(self.gamma / clients)
        return np.hstack([old, new - 2.0 * np.log(np.arange(1, fresh + 1))])

    def match(self, units: Sequence[Floats], capacity: int, random: np.random.Generator) -> tuple[list[Places], Floats]:
        """Match the units of all clients, by coordinate ascent over clients.

        Args:
            units: of each client [L_j, M].
            capacity: largest number of atoms, at least the largest L_j.
            random: order of the clients in the sweeps.

        Returns:
            The atom of every unit [L_j] of every client, and the atoms' posterior means [A, M].
        """
        clients, width = len(units), units[0].shape[1]
        sums, counts = np.zeros((0, width)), np.zeros(0, dtype=np.int64)
        places: list[Places] = [np.zeros(0, dtype=np.int64) for _ in units]
        sweeps = [random.permutation(clients) for _ in range(self.sweeps)]
        for sweep, order in enumerate([np.arange(clients), *sweeps]):
            for j in order:
                if sweep:
                    np.subtract.at(sums, places[j], units[j])
                    np.subtract.at(counts, places[j], 1)
                    kept = counts > 0
                    renamed = np.cumsum(kept) - 1
                    sums, counts = sums[kept], counts[kept]
                    places = [renamed[place] for place in places]
                fresh = min(len(units[j]), capacity - len(counts))
                columns = linear_sum_assignment(self.gains(units[j], sums, counts, clients, fresh), maximize=True)[1]
                begun = np.unique(columns[columns >= len(counts)])  # those that were chosen, one after another
                columns = np.where(columns < len(counts), columns, len(counts) + np.searchsorted(begun, columns))
                sums = np.vstack([sums, np.zeros((len(begun), width))])
                counts = np.concatenate([counts, np.zeros(len(begun), dtype=np.int64)])
                np.add.at(sums, columns, units[j])
                np.add.at(counts, columns, 1)
                places[j] = columns
        return places, self.mean(sums, counts[:, None])

    def mean(self, sums: Floats, counts: Floats | Places) -> Floats:
        """Posterior means of atoms, (sum v / sigma^2) / (1 / sigma_0^2 + m / sigma^2).

        Args:
            sums: of units [*].
            counts: how many they are, m [*].

        Returns:
            [*].
        """
        each = 1.0 / self.sigma**2
        result: Floats = each * sums / (1.0 / self.sigma0**2 + each * counts)
        return result


def nearest(units: Floats, atoms: Floats) -> Places:
    """Find the atom of each unit, no two the same, with the least sum of squared distances.

    Args:
        units: [L, M].
        atoms: [A, M], A >= L.

    Returns:
        [L].

    Example:
        >>> import numpy as np
        >>> from pacbayes_fl.server.matching import nearest
        >>> nearest(np.array([[0.9], [1.1]]), np.array([[0.0], [1.0], [5.0]])).tolist()  # no atom twice
        [0, 1]
    """
    distance = np.square(atoms).sum(1) - 2.0 * units @ atoms.T  # and |unit|^2, whatever its atom
    result: Places = linear_sum_assignment(distance)[1]
    return result
