"""A clip that follows a quantile of the clients' norms, which a noisy count beside every noisy sum pays for.

Andrew, Thakkar, McMahan and Ramaswamy 2021, "Differentially Private Learning with Adaptive Clipping", NeurIPS.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final, TypedDict

import torch
from torch import Tensor

from pacbayes_fl.errors import PrivacyError
from pacbayes_fl.privacy import kinds, mechanisms
from pacbayes_fl.privacy.mechanisms import Cohorts, Mechanism
from pacbayes_fl.tensors import AnyTree

RATE: Final = 0.2
_NOISE: Final = 0.05  # of the cohort: the paper's m / 20
_MOST: Final = 0.1  # of a release's rho in L2, and of its epsilon in L1, that a count takes where nothing is asked for
_FAR: Final = 1e12  # clips by which the clip may leave its start: noise alone makes it neither 0 nor infinite


class Joint(TypedDict):
    """What is summed and noised in a round: leaves [K, *] of the clipped updates, and one number a client."""

    update: AnyTree
    below: Tensor


@dataclass(frozen=True)
class AdaptiveClip:
    r"""How a clip follows a quantile, and what part of the noise that costs.

    C <- C exp(-rate (b - quantile)), with b the noisy share of clients whose norm is at most C      (Section 2.1)

    A client of a round adds w = (clip(u, C), +a) where |u| <= C and w = (clip(u, C), -a) otherwise, and a failed or
    absent one zeros. That is one message of D + 1 numbers, whose norm is at most C' with C'^2 = C^2 + a^2 in L2 and
    C' = C + a in L1, whatever the client's rows are. So the release of the sum of all w with noise of scale z C' *is*
    that of the mechanism that clips messages of D + 1 numbers to C' and has the noise multiplier z. It costs what that
    one costs: under both neighbouring relations (zeros move the sum by C', a replacement by 2 C'), with chance in the
    cohorts, and by whichever account the mechanism has. C is a function of earlier releases, so that rounds compose.

    With a = `part` C' and sigma_b the noise's scale on the count of clients, half of a step from -a to a being one of
    1/2 in their number,

        sigma_b = z C' / (2 a) = z / (2 part)
        z_delta = z C' / C     = (z^-2 - (2 sigma_b)^-2)^(-1/2) in L2      (Theorem 1)
                                 (z^-1 - (2 sigma_b)^-1)^-1 in L1

    is the noise of the update per C. b is 1/2 + sum / (2 a m) for the fixed divisor m, so that in a cohort of chance
    those who are absent count as a half.

    What adapts is one number, the norm of the whole message in the mechanism's own norm.

    Args:
        quantile: gamma, the share of clients whose norm shall be at most C.
        rate: eta, of the logarithm of C.
        part: a / C', between 0 and 1.

    Raises:
        PrivacyError: when a number is out of its range.

    Example:
        >>> from pacbayes_fl.privacy.adaptive import AdaptiveClip
        >>> round(AdaptiveClip(quantile=0.5, rate=0.2, part=0.1).following(1.0, below=0.8, start=1.0), 12)
        0.941764533584
    """

    quantile: float
    rate: float
    part: float

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name, most in (("quantile", 1.0), ("rate", math.inf), ("part", 1.0)):
            if not 0 < (value := getattr(self, name)) < most:
                raise PrivacyError(f"{name} of an adaptive clip must be above 0 and below {most:g}, got {value}")

    @classmethod
    def of(
        cls, mechanism: Mechanism, cohorts: Cohorts, quantile: float, rate: float = RATE, noise: float | None = None
    ) -> AdaptiveClip:
        """Find the part of a release that a count of a given noise takes.

        Args:
            mechanism: of the release; its multiplier z pays for update and count together.
            cohorts: gives the divisor m.
            quantile: gamma.
            rate: eta.
            noise: sigma_b / m, the noise's scale on the share of clients. None is .05, as in the paper, or more where
                the count would take more than a tenth of the release (of rho in L2, of epsilon in L1).

        Returns:
            The rule of the clip.

        Raises:
            PrivacyError: when the mechanism has no clip that could follow norms, or the count with so little noise
                would cost as much as the release or more.
        """
        check(mechanism.kind)
        part = mechanism.multiplier / (2 * (noise or _NOISE) * cohorts.divisor)
        if noise is None:
            part = min(part, _MOST if mechanism.norm == 1 else math.sqrt(_MOST))
        if part >= 1:
            least = mechanism.multiplier / (2 * cohorts.divisor)
            what = f"noise of {noise:g} on the share of clients below the clip costs more than the whole release"
            raise PrivacyError(what, hint=f"give more than {least:.4g}, or none for a tenth of it")
        return cls(quantile, rate, part)

    def joint(self, mechanism: Mechanism) -> Mechanism:
        """Give the mechanism of update and count together.

        Args:
            mechanism: clips updates to C; its multiplier z is that of both.

        Returns:
            The one that clips to C'.
        """
        return replace(mechanism, clip=mechanism.clip / self._rest(mechanism))

    def multiplier(self, mechanism: Mechanism) -> float:
        """Give z_delta, the noise's scale on the sum of updates per C.

        Args:
            mechanism: as `joint` takes it.

        Returns:
            More than z.
        """
        return mechanism.multiplier / self._rest(mechanism)

    def count_noise(self, mechanism: Mechanism) -> float:
        """Give sigma_b, the noise's scale on the number of clients below the clip.

        Args:
            mechanism: as `joint` takes it.

        Returns:
            Clients.
        """
        return mechanism.multiplier / (2 * self.part)

    def _rest(self, mechanism: Mechanism) -> float:
        """C / C'."""
        return 1 - self.part if mechanism.norm == 1 else math.sqrt((1 - self.part) * (1 + self.part))

    def join(self, update: AnyTree, mechanism: Mechanism, present: Tensor) -> Joint:
        """Clip updates, and put beside each whether it was short.

        Args:
            update: floating leaves [K, *].
            mechanism: clips updates to C.
            present: bool [K], False for a client that failed.

        Returns:
            The messages w: float64 leaves [K, *] and [K].

        Raises:
            PrivacyError: when a leaf is not floating.
        """
        norm = mechanisms.norms(update, mechanism)
        step = torch.full_like(norm, self.part * self.joint(mechanism).clip)
        below = torch.where(norm <= mechanism.clip, step, -step)
        counts = present.to(norm.device) & norm.isfinite()
        return Joint(update=mechanisms.clip(update, mechanism, present), below=torch.where(counts, below, 0.0))

    def share(self, mean: Tensor, mechanism: Mechanism) -> float:
        """Read the noisy share b off a release.

        Args:
            mean: the noisy sum of "below" by the divisor [S], of one release.
            mechanism: as `join` took it.

        Returns:
            b, which noise may take out of [0, 1].
        """
        return 0.5 + float(mean) / (2 * self.part * self.joint(mechanism).clip)

    def following(self, clip: float, below: float, start: float) -> float:
        """Give the clip of the next round.

        Args:
            clip: C of this one.
            below: b, the noisy share.
            start: C of the first round, from which it never goes farther than by a factor of 1e12.

        Returns:
            C exp(-rate (b - quantile)).
        """
        moved = math.log(clip / start) - self.rate * (below - self.quantile)
        return start * math.exp(min(max(moved, -math.log(_FAR)), math.log(_FAR)))


def check(mechanism: str) -> None:
    """Refuse a clip that follows norms under a mechanism that has none to follow.

    Args:
        mechanism: a name of `kinds.MECHANISMS`.

    Raises:
        PrivacyError: when it chooses, its noise is one that a paper prints, or spans rounds.
    """
    kind = kinds.MECHANISMS[mechanism]
    if kind.chooses or kind.claim is not None or kind.correlated:
        why = "chooses, and sums no updates" if kind.chooses else "has the noise that a paper prints for a fixed clip"
        why = "correlates the noise of rounds of one clip" if kind.correlated else why
        what = f"[privacy] clip_quantile is not for {mechanism}, which {why}"
        raise PrivacyError(what, hint="leave clip_quantile out, or take privacy.mechanism = 'gaussian'")
