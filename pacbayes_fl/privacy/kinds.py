"""Noise mechanisms by name: one record each, with the norm of its clip, its noise and how its cost is accounted for."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from pacbayes_fl.errors import StudyError, shown
from pacbayes_fl.options import by_name
from pacbayes_fl.plugins.table import OpenTable, under_its_name

Account = Literal["gaussian", "laplace", "pure", "zcdp"]
Norm = Literal[1, 2, "range"]

_WORDS: Final = 2.0**52


def _one(coordinates: int) -> float:
    return 1.0


def _half_square(ratio: float) -> float:
    return 0.5 / ratio**2


class Claim(NamedTuple):
    """Noise that a paper prints, with an epsilon that it claims for it.

    Args:
        who: the paper.
        multiplier: gives the noise's scale on the sum per clip from that epsilon and the number T of rounds.
    """

    who: str
    multiplier: Callable[[float, int], float]


@dataclass(frozen=True)
class MechanismKind:
    """A kind of noise on a clipped sum.

    Args:
        name: what studies call it.
        title: one line for people.
        norm: which norm the clip bounds, 1 or 2; or "range": every number by itself is put into [0, gamma], and of the
            noisy sums nothing is released but which one is the least.
        draw: gives noise of scale 1, float64 [S, D], from the number S of draws, the number D of coordinates and a
            generator on the CPU, or None for the operating system's randomness.
        account: the strongest account that holds: of "gaussian" or product "laplace" noise; of any mechanism that is
            "pure"ly epsilon-private and no more; or "zcdp", by `zcdp` and the pure epsilon without any distribution of
            losses.
        growth: pure epsilon of noise of one sensitivity with D coordinates; not asked for under "gaussian", which has
            none.
        zcdp: rho from the noise's scale per sensitivity.
        delta: whether a study takes a delta above 0 where it names none.
        claim: of noise that a paper prints: the epsilon of a study is what the paper claims, the scale follows from it
            and the rounds, and no multiplier is searched for; None where epsilon is a budget.
        correlated: whether the noise of a round depends on that of rounds before, see `privacy.correlated`.
    """

    name: str
    title: str
    norm: Norm
    draw: Callable[[int, int, torch.Generator | None], Tensor]
    account: Account
    growth: Callable[[int], float] = _one
    zcdp: Callable[[float], float] = _half_square
    delta: bool = False
    claim: Claim | None = None
    correlated: bool = False

    def __post_init__(self) -> None:
        """Refuse a norm or an account that nothing here knows, or that cannot hold: it would be another one's.

        Raises:
            StudyError: saying what is allowed.
        """
        for what, value, allowed in (("norm", self.norm, get_args(Norm)), ("account", self.account, get_args(Account))):
            if not any(type(value) is type(one) and value == one for one in allowed):
                among = ", ".join(map(repr, allowed))
                raise StudyError(f"mechanism {self.name!r}: {what} must be one of {among}, got {shown(value)}")
        if self.account == "laplace" and self.norm != 1:
            what = f"mechanism {self.name!r}: independent Laplace noise is accounted for by an L1 clip, norm=1"
            hint = "account = 'zcdp' with the growth of a clip in L2, sqrt(D)"
            raise StudyError(f"{what}, got {shown(self.norm)}", hint=hint)

    @property
    def chooses(self) -> bool:
        """Whether a release is the place of the least sum, and no sum."""
        return self.norm == "range"


def _uniform(draws: int, numbers: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """Draw float64 [S, D] in (0, 1], fine near 0, and signs [S, D] from bits of their own."""
    high, low = _words((2, draws, numbers), generator)
    return _fraction(high >> 11, low >> 11), (1 - 2 * (high & 1)).double()


def _fraction(high: Tensor, low: Tensor) -> Tensor:
    """(high + (low + 1/2) 2^-52) 2^-52 of whole numbers below 2^52: a double near 0 keeps all 104 bits."""
    return (high.double() + (low.double() + 0.5) / _WORDS) / _WORDS


def _normal(draws: int, numbers: int, generator: torch.Generator | None) -> Tensor:
    """Draw standard normal numbers, float64 [S, D]: the smaller tail and a sign, so that both tails reach as far."""
    tail, sign = _uniform(draws, numbers, generator)
    normal: Tensor = sign * torch.special.ndtri(0.5 * tail)
    return normal


def _laplace(draws: int, numbers: int, generator: torch.Generator | None) -> Tensor:
    """Draw Laplace numbers of scale 1, float64 [S, D]."""
    uniform, sign = _uniform(draws, numbers, generator)
    unit: Tensor = -sign * uniform.log()
    return unit


def _knorm(draws: int, numbers: int, generator: torch.Generator | None) -> Tensor:
    """Draw vectors of density proportional to exp(-|x|_2), float64 [S, D].

    Their radius is Gamma(D, 1), the sum of D exponentials, in a uniform direction.
    """
    unit = _laplace(draws, numbers, generator)
    direction, radius = _normal(draws, numbers, generator), unit.abs().sum(1, keepdim=True)
    vectors: Tensor = direction * (radius / torch.linalg.vector_norm(direction, dim=1, keepdim=True))
    return vectors


def _gumbel(draws: int, numbers: int, generator: torch.Generator | None) -> Tensor:
    """Draw -G of Gumbel numbers G = -ln E of scale 1, float64 [S, D]: E is exponential, and fine near 0, which wins."""
    uniform, _ = _uniform(draws, numbers, generator)
    negative: Tensor = torch.log1p(-uniform).neg().log()
    return negative


def _eighth_square(ratio: float) -> float:
    """Give rho = epsilon^2 / 8 of what moves the log odds of any two outcomes by at most epsilon = 1 / ratio.

    Its privacy loss L under P lies in an interval of length epsilon, and E e^-L = 1. By Hoeffding's lemma E L <=
    epsilon^2 / 8, and ln E e^(aL) <= a E L + a^2 epsilon^2 / 8, so that D_(1+a) <= (1 + a) epsilon^2 / 8.
    """
    return 0.125 / ratio**2


def _words(shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
    """Draw whole numbers of 63 bits, int64."""
    if generator is not None:
        return torch.empty(shape, dtype=torch.int64).random_(generator=generator)
    count = math.prod(shape)
    if not count:
        return torch.empty(shape, dtype=torch.int64)
    return (torch.frombuffer(bytearray(os.urandom(8 * count)), dtype=torch.int64) & (2**63 - 1)).view(shape)


_BUILT_IN: Final[Mapping[str, MechanismKind]] = by_name(
    MechanismKind(
        "gaussian",
        "L2 clip, independent N(0, s^2) on every coordinate of the sum: (epsilon, delta)-DP",
        2,
        _normal,
        "gaussian",
        delta=True,
    ),
    MechanismKind(
        "dp-ftrl",
        "L2 clip, Gaussian noise that cancels in sums of rounds, cohorts in a known order: (epsilon, delta)-DP",
        2,
        _normal,
        "gaussian",
        delta=True,
        correlated=True,
    ),
    MechanismKind(
        "laplace",
        "L1 clip, independent Laplace of scale s on every coordinate: pure epsilon-DP",
        1,
        _laplace,
        "laplace",
    ),
    MechanismKind(
        "knorm",
        "L2 clip, one vector of density proportional to exp(-|x|_2 / s): pure epsilon-DP",
        2,
        _knorm,
        "pure",
    ),
    MechanismKind(
        "exponential",
        "one of several priors, chosen with odds exp(-sum of clients' regrets / s): pure epsilon-DP, whatever D",
        "range",
        _gumbel,
        "pure",
        zcdp=_eighth_square,
    ),
    MechanismKind(
        "paper_algorithm_3",
        "L2 clip with independent Laplace noise, as PAC-PFL's Algorithm 3 prints it; its epsilon does not hold",
        2,
        _laplace,
        "zcdp",
        growth=math.sqrt,
        delta=True,
        claim=Claim("PAC-PFL", lambda epsilon, rounds: rounds / epsilon),  # Algorithm 3, lines 6-8
    ),
)


MECHANISMS: Final = OpenTable(
    lambda: _BUILT_IN,
    "pacbayes_fl.mechanisms",
    "[privacy] mechanism",
    "a record pacbayes_fl.privacy.kinds.MechanismKind",
    under_its_name(MechanismKind),
)
"""All of them by name or reference. A new one is one more record above; who brings one vouches for its account."""
