"""Releases outside of rounds: one bounded message of every client, summed, noised, paid for once, and kept for good."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from torch import Tensor

from pacbayes_fl.errors import PrivacyError
from pacbayes_fl.noise import generator_from_text
from pacbayes_fl.privacy import kinds, mechanisms
from pacbayes_fl.privacy.accounting import Budget, noise_multiplier
from pacbayes_fl.privacy.charges import Charge
from pacbayes_fl.privacy.ledger import Ledger
from pacbayes_fl.privacy.mechanisms import Cohorts, Mechanism

_DRAWS: Final = 4096  # of a mechanism's noise, for its variance


def charge(kind: str, budget: Budget, share: float, rounds: Cohorts, message: str, coordinates: int) -> Charge:
    """Find what a message outside of rounds costs, to which every client contributes.

    Its noise is the least for which it alone is (share epsilon, delta)-DP. With the rounds it composes. Beside a
    mechanism that chooses it is Laplace noise.

    Args:
        kind: of the mechanism.
        budget: of all releases together.
        share: of its epsilon.
        rounds: cohorts of rounds, whose neighbours are hidden here too.
        message: its name.
        coordinates: D.

    Returns:
        The charge.

    Raises:
        PrivacyError: when the noise is one that a paper prints, or none keeps the budget.
    """
    if kinds.MECHANISMS[kind].chooses:
        kind = "laplace"  # a mean cannot be chosen; pure epsilon, too
    if kinds.MECHANISMS[kind].correlated:
        kind = "gaussian"  # of one release, the same
    if kinds.MECHANISMS[kind].claim is not None:
        what = f"the budget of {kind} pays for rounds alone, and not for a message on {message}"
        raise PrivacyError(what, hint="privacy.mechanism = 'gaussian'; or train without that message")
    everybody = Cohorts(rounds.clients, neighbours=rounds.neighbours)
    alone = Budget(share * budget.epsilon, budget.delta, budget.method)
    return Charge(kind, noise_multiplier(kind, alone, 1, everybody), coordinates, everybody, message)


class Releases(Protocol):
    """Whatever gives the mean of clients' messages."""

    def mean(self, message: str, rows: Tensor, longest: tuple[float, float], round: int, about: str = "") -> Tensor:
        """Give the mean of clients' messages.

        Args:
            message: its name.
            rows: of N clients [N, D].
            longest: L1 and L2 norm that no message exceeds.
            round: after which it is.
            about: public settings that it is a function of.

        Returns:
            [D], float64.
        """

    def noise_std(self, message: str, longest: tuple[float, float]) -> float:
        """Give the standard deviation of the noise on each number of that mean."""


class Rehearsal:
    """Means without noise, for checks before anything is paid for: nothing that follows from them may be kept."""

    def mean(self, message: str, rows: Tensor, longest: tuple[float, float], round: int, about: str = "") -> Tensor:
        """Give the plain mean.

        Args:
            message: its name.
            rows: of N clients [N, D].
            longest: not looked at.
            round: not looked at.
            about: not looked at.

        Returns:
            [D], float64.
        """
        return rows.double().mean(0)

    def noise_std(self, message: str, longest: tuple[float, float]) -> float:
        """There is no noise.

        Args:
            message: not looked at.
            longest: not looked at.

        Returns:
            0.
        """
        return 0.0


@dataclass(frozen=True)
class Outside:
    """Makes the releases of a run outside of its rounds.

    Args:
        ledger: pays for them.
        charges: by message; their sum is reserved in the ledger.
        seed: of a simulation; None for randomness from the operating system.
    """

    ledger: Ledger
    charges: Mapping[str, Charge]
    seed: int | None

    def mean(self, message: str, rows: Tensor, longest: tuple[float, float], round: int, about: str = "") -> Tensor:
        """Release the mean of the clients' messages.

        (1 / N) (sum_k clip(v_k) + noise), which one client moves by at most `longest` / N, twice that where it is
        replaced by another.

        Args:
            message: its name.
            rows: v_k of N clients [N, D]; one that is not finite counts as 0.
            longest: L1 and L2 norm that no message exceeds: what is longer is clipped.
            round: after which it is.
            about: public settings that it is a function of, beside the rows.

        Returns:
            [D], float64: what was released before, where it was.

        Raises:
            PrivacyError: when the budget does not allow it.
            CheckpointError: when the payment cannot be written; nothing is released then.
        """
        known = self.ledger.outside(message, about)
        if known is not None and known.mean["mean"].shape == (1, rows.shape[1]):
            return known.mean["mean"][0].to(rows.device)
        cost = self.charges[message]
        if rows.shape != (cost.cohorts.clients, cost.coordinates):
            what = f"a message on {message} is of {cost.cohorts.clients} clients and {cost.coordinates} numbers"
            raise PrivacyError(f"{what}, got {list(rows.shape)}")
        mechanism = self.mechanism(message, longest)
        clipped = mechanisms.clip({"mean": rows}, mechanism)
        source = mechanisms.source(self.seed, len(self.ledger), mechanism, cost.coordinates)
        result = mechanisms.noisy_mean(clipped, mechanism, cost.cohorts, source)
        self.ledger.spend(cost, round, result, about)
        return result["mean"][0]

    def mechanism(self, message: str, longest: tuple[float, float]) -> Mechanism:
        """Clip and noise of a message.

        Args:
            message: its name.
            longest: L1 and L2 norm of it.

        Returns:
            The mechanism, which clips in its own norm.
        """
        kind = self.charges[message].kind
        return Mechanism(kind, longest[0 if kinds.MECHANISMS[kind].norm == 1 else 1], self.charges[message].multiplier)

    def noise_std(self, message: str, longest: tuple[float, float]) -> float:
        """Standard deviation of the noise on each number of a released mean, a public number.

        Args:
            message: its name.
            longest: as `mean`.

        Returns:
            Its root mean square over draws of a fixed seed.
        """
        mechanism, cost = self.mechanism(message, longest), self.charges[message]
        draws = max(1, _DRAWS // cost.coordinates)
        generator = generator_from_text(f"variance of {mechanism.kind} in {cost.coordinates} dimensions")
        noise = mechanisms.noise(mechanism, cost.coordinates, generator, draws)
        return math.sqrt(float(noise.square().mean())) / cost.cohorts.divisor
