"""Clip clients' updates, sum them, add noise, and divide by a public number.

One message of a client is everything that it sends in a round: all leaves together are clipped as one vector of length
D. What is released of a round is `round_to_grid(sum_k clip(u_k) + noise) / divisor`, and nothing else: losses, counts,
log evidences and cluster labels are not private, and neither is how many messages were not finite.

Clipping clients makes the guarantee one for whole clients, and so for their single rows as well. Clipping row by row
would be cheaper in noise, but neither a GP's log evidence nor ln mean exp (PAC-PFL eq. 38) is a sum over rows: there
the guarantee for a row costs what the guarantee for a client costs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal, TypeVar, get_args

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.errors import PrivacyError
from pacbayes_fl.noise import generator_from_text
from pacbayes_fl.privacy import kinds

Tree = TypeVar("Tree")

CohortKind = Literal["all", "poisson", "fixed", "in-order"]
Neighbours = Literal["add-or-remove", "replace"]

_GRID: Final = 2.0**-20  # of the noise's scale: far below what the noise hides, far above a double's last bits


@dataclass(frozen=True)
class Mechanism:
    """A clip and a noise.

    Args:
        kind: a name of `kinds.MECHANISMS`, which says what each of them is.
        clip: gamma, the largest norm of one client's message, in units of the message.
        multiplier: s / gamma, the noise's scale on the SUM per clip.

    Raises:
        PrivacyError: when the kind is unknown or a number is not positive and finite.

    Example:
        >>> import torch
        >>> from pacbayes_fl.privacy.mechanisms import Cohorts, Mechanism, clip, noisy_mean
        >>> mechanism, random = Mechanism("gaussian", clip=1.0, multiplier=0.4), torch.Generator().manual_seed(0)
        >>> clipped = clip(torch.tensor([[3.0], [1.0], [0.5], [0.5]]).double(), mechanism)
        >>> released = noisy_mean(clipped, mechanism, Cohorts(clients=4), random, draws=10_000)
        >>> round(released.mean().item(), 2), round(released.std().item(), 2)  # 3 / 4 with noise of 0.4 / 4
        (0.75, 0.1)
    """

    kind: str
    clip: float
    multiplier: float

    def __post_init__(self) -> None:
        """Check that clip and noise are positive and finite."""
        if self.kind not in kinds.MECHANISMS:
            _one_of("kind", self.kind, tuple(kinds.MECHANISMS))
        for name in ("clip", "multiplier"):
            _positive(name, getattr(self, name))

    @classmethod
    def claimed(cls, kind: str, clip: float, epsilon: float, rounds: int) -> Mechanism:
        """Build a mechanism with the noise that a paper prints for an epsilon that it claims.

        Args:
            kind: a name of `kinds.MECHANISMS` with a claim.
            clip: gamma.
            epsilon: what the paper claims for all rounds together.
            rounds: T.

        Returns:
            The mechanism of one round.

        Raises:
            PrivacyError: when the epsilon is not positive and finite, or the kind has no claim.

        Example:
            >>> from pacbayes_fl.privacy.mechanisms import Mechanism
            >>> Mechanism.claimed("paper_algorithm_3", clip=0.1, epsilon=5.0, rounds=100).multiplier  # 100 / 5
            20.0
        """
        _positive("epsilon", epsilon)
        claim = kinds.MECHANISMS[kind].claim
        if claim is None:
            raise PrivacyError(f"no paper claims an epsilon for the noise of {kind!r}", hint="give a multiplier")
        return cls(kind, clip, claim.multiplier(epsilon, rounds))

    @property
    def norm(self) -> Literal[1, 2, "range"]:
        """Which norm the clip bounds; "range" where it bounds every number by itself."""
        return kinds.MECHANISMS[self.kind].norm

    @property
    def chooses(self) -> bool:
        """Whether a release is the place of the least sum, and no sum."""
        return kinds.MECHANISMS[self.kind].chooses

    @property
    def scale(self) -> float:
        """Scale s of the noise on the sum, in units of the message: std of Gaussian noise, b of Laplace noise."""
        return self.multiplier * self.clip


@dataclass(frozen=True)
class Cohorts:
    """Sampling of a round's clients, and the neighbouring relation of the guarantee.

    "poisson": every client by itself with probability size / clients; "fixed": exactly `size` of all, drawn without
    replacement; "all": everybody, or anybody: nothing is gained from chance. Chance helps only while nobody who
    sees the releases knows who took part; where a server's log tells it, say "all" with the size of the cohort as the
    `size`. "in-order": the next `size` in a public order that never changes, so that a client takes part in at most
    ceil(n size / clients) of any n rounds in a row, and at most in every floor(clients / size)-th. A round of n is then
    no release of every client's, and n of them cost what ceil(n size / clients) cost (see `charges.checked`).

    "add-or-remove": one client sends zeros instead, which moves the sum by at most gamma. "replace": one client (or one
    of its rows) becomes any other, which moves it by at most 2 gamma. Fixed cohorts are accounted for "replace",
    Poisson cohorts for "add-or-remove".

    Args:
        clients: N, how many there are in the federation; public.
        size: of a cohort, expected or exact, and the fixed divisor of the sum; N when None.
        kind: how a cohort is drawn.
        neighbours: what the guarantee hides.
        order: which order "in-order" cohorts follow: under another one, counting begins anew.

    Raises:
        PrivacyError: when the parts do not fit one another.

    Example:
        >>> from pacbayes_fl.privacy.mechanisms import Cohorts
        >>> poisson, in_order = Cohorts(100, 10, "poisson"), Cohorts(100, 10, "in-order")
        >>> poisson.share, in_order.separation  # a client takes part with probability .1; once in 10 rounds
        (0.1, 10)
        >>> poisson.sensitivity, Cohorts(100, neighbours="replace").sensitivity  # in clips
        (1.0, 2.0)
    """

    clients: int
    size: float | None = None
    kind: CohortKind = "all"
    neighbours: Neighbours = "add-or-remove"
    order: str = ""

    def __post_init__(self) -> None:
        """Refuse cohorts that cannot be drawn or accounted for."""
        _one_of("kind", self.kind, get_args(CohortKind))
        _one_of("neighbours", self.neighbours, get_args(Neighbours))
        _positive("clients", self.clients)
        if not 0 < self.divisor <= self.clients:
            raise PrivacyError(f"size must be above 0 and at most {self.clients} clients, got {self.size}")
        wanted = {"poisson": "add-or-remove", "fixed": "replace"}.get(self.kind, self.neighbours)
        if self.neighbours != wanted:
            what = f"{self.kind} cohorts have an account only for neighbours = {wanted!r}, got {self.neighbours!r}"
            raise PrivacyError(what, hint="kind = 'all' goes with both")
        if self.kind in ("fixed", "in-order") and self.divisor != int(self.divisor):
            raise PrivacyError(f"size of a cohort that is {self.kind} must be a whole number, got {self.size}")

    @property
    def divisor(self) -> float:
        """Divisor of the noisy sum: public, independent of the replies."""
        return float(self.clients if self.size is None else self.size)

    @property
    def most(self) -> float:
        """How many clients a round may have before its account is wrong."""
        return self.divisor if self.kind in ("fixed", "in-order") else float(self.clients)

    @property
    def share(self) -> float:
        """Probability that a client takes part, where chance counts."""
        return 1.0 if self.kind in ("all", "in-order") else self.divisor / self.clients

    @property
    def separation(self) -> int:
        """Of how many rounds in a row a client takes part in one at most."""
        return int(self.clients // self.divisor) if self.kind == "in-order" else 1

    @property
    def sensitivity(self) -> float:
        """By how many clips the sum can move."""
        return 2.0 if self.neighbours == "replace" else 1.0


def vectors(update: object) -> Tensor:
    """Join the leaves of each client's message to one vector, in the order of `tensors.leaves`.

    Args:
        update: floating leaves [K, *].

    Returns:
        [K, D], float64.

    Raises:
        PrivacyError: when a leaf is not floating, and so cannot carry noise.
    """
    leaves = tensors.leaves(update)
    for name, leaf in leaves.items():
        if not leaf.is_floating_point():
            raise PrivacyError(f"leaf {name!r} must be floating to be released, got {leaf.dtype}", hint="leave it out")
    return torch.cat([leaf.double().unsqueeze(-1).flatten(1) for leaf in leaves.values()], 1)


def norms(update: object, mechanism: Mechanism) -> Tensor:
    """Measure each client's whole update in the norm that the clip bounds.

    Args:
        update: floating leaves [K, *].
        mechanism: gives the norm; the largest number where it is "range".

    Returns:
        [K], float64; not finite where a number of the update is not.

    Raises:
        PrivacyError: when a leaf is not floating, and so cannot carry noise.

    Example:
        >>> import torch
        >>> from pacbayes_fl.privacy.mechanisms import Mechanism, norms
        >>> sent = {"weight": torch.tensor([[3.0, 0.0]]), "bias": torch.tensor([[4.0]])}
        >>> [norms(sent, Mechanism(kind, clip=1.0, multiplier=1.0)).tolist() for kind in ("gaussian", "laplace")]
        [[5.0], [7.0]]
    """
    order = math.inf if mechanism.norm == "range" else mechanism.norm
    length: Tensor = torch.linalg.vector_norm(vectors(update), order, dim=1)
    return length


def clip(update: Tree, mechanism: Mechanism, present: Tensor | None = None) -> Tree:
    """Clip each client's whole update to a norm of at most gamma; non-finite updates become 0.

    u_k / max(1, |u_k| / gamma)      (PAC-PFL Algorithm 3, line 6)

    Where the mechanism chooses, every number is put into [0, gamma] instead.

    Args:
        update: floating leaves [K, *].
        mechanism: gives gamma and the norm.
        present: bool [K], False for a row that is padding or has dropped out; all when None.

    Returns:
        Float64 leaves [K, *], in which their sum is exact enough; zeros for a client that did not take part or whose
        message is not finite.

    Raises:
        PrivacyError: when a leaf is not floating, and so cannot carry noise.

    Example:
        >>> import torch
        >>> from pacbayes_fl.privacy.mechanisms import Mechanism, clip
        >>> sent = torch.tensor([[3.0, 4.0], [0.3, 0.4]]).double()
        >>> clip(sent, Mechanism('gaussian', clip=1.0, multiplier=1.0)).numpy().round(2).tolist()
        [[0.6, 0.8], [0.3, 0.4]]
    """
    norm = norms(update, mechanism)
    usable = norm.isfinite()  # NaN and infinities reach the norm; so does a message too long to have one
    factor = (mechanism.clip / norm.clamp_min(torch.finfo(norm.dtype).tiny)).clamp_max(1.0)
    here = torch.ones_like(usable) if present is None else present

    def shorten(leaf: Tensor) -> Tensor:
        shape = (-1, *[1] * (leaf.dim() - 1))
        short = leaf.double().clamp(0.0, mechanism.clip) if mechanism.chooses else leaf.double() * factor.view(shape)
        return torch.where((usable & here).view(shape), short, 0.0)

    return tensors.tree_map(shorten, update)


def source(seed: int | None, serial: int, mechanism: Mechanism, coordinates: int) -> torch.Generator | None:
    """Give the randomness of one release.

    Two releases must never share their noise: subtracting them would show the data bare. So the number is not the
    round's, which a resumed run meets twice, but that of the entry in the ledger; and runs of one seed share no noise
    unless they also share the mechanism and the length of a message.

    Args:
        seed: of a simulation, which must be repeatable and is therefore private against nobody who knows the seed;
            None for randomness from the operating system.
        serial: number of the release in the ledger, counted from 0.
        mechanism: the clip and the noise.
        coordinates: D.

    Returns:
        A generator on the CPU, or None for the operating system's randomness.
    """
    if seed is None:
        return None
    charge = f"{mechanism.kind}/{mechanism.clip!r}/{mechanism.multiplier!r}/{coordinates}"
    return generator_from_text(f"privacy/{seed}/{serial}/{charge}")


def noise(mechanism: Mechanism, coordinates: int, generator: torch.Generator | None, draws: int = 1) -> Tensor:
    """Draw the noise of a mechanism for the sum.

    Args:
        mechanism: gives the kind and the scale.
        coordinates: D.
        generator: on the CPU, or None for the operating system's randomness.
        draws: S independent ones.

    Returns:
        Float64 [S, D] on the CPU, in units of the message.
    """
    scaled: Tensor = mechanism.scale * kinds.MECHANISMS[mechanism.kind].draw(draws, coordinates, generator)
    return scaled


def noisy_mean(
    clipped: Tree,
    mechanism: Mechanism,
    cohorts: Cohorts,
    generator: torch.Generator | None,
    draws: int = 1,
    drawn: Tensor | None = None,
) -> Tree:
    """Add noise to the sum of clipped messages and divide by the fixed divisor.

    (sum_k clip(u_k) + noise) / divisor, the numerator rounded to a grid much finer than the noise: the last bits of a
    floating-point sum would tell of the messages. Where the mechanism chooses, 1 at the least of the noisy sums and 0
    elsewhere, which is the exponential mechanism: i has the odds exp(-sum_k u_ki / s) (McSherry and Talwar 2007).

    Args:
        clipped: float64 leaves [K, *], or sums of chunks of them; with K = 0 noise is released all the same.
        mechanism: the one that clipped them.
        cohorts: gives the divisor.
        generator: on the CPU, or None for the operating system's randomness.
        draws: S independent releases of one sum, for audits.
        drawn: the noise [S, D] in the place of the mechanism's own.

    Returns:
        Float64 leaves [S, *].
    """
    flat = tensors.leaves(clipped)
    sizes = [math.prod(leaf.shape[1:]) for leaf in flat.values()]
    every = noise(mechanism, sum(sizes), generator, draws) if drawn is None else drawn
    parts = iter(every.split(sizes, 1))
    grid = _GRID * 2.0 ** math.floor(math.log2(mechanism.scale))

    def add(leaf: Tensor) -> Tensor:
        noisy: Tensor = leaf.sum(0) + next(parts).reshape(draws, *leaf.shape[1:]).to(leaf.device)
        if mechanism.chooses:
            return torch.nn.functional.one_hot(noisy.argmin(-1), noisy.shape[-1]).double()
        return (noisy / grid).round() * (grid / cohorts.divisor)

    return tensors.tree_map(add, clipped)


def coordinates(update: Tree) -> int:
    """Count the numbers D of one client's message.

    Args:
        update: leaves [K, *].

    Returns:
        D.
    """
    return sum(math.prod(leaf.shape[1:]) for leaf in tensors.leaves(update).values())


def _positive(name: str, number: float) -> None:
    if not (math.isfinite(number) and number > 0):
        raise PrivacyError(f"{name} must be positive and finite, got {number}")


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise PrivacyError(f"{name} must be one of {', '.join(known)}, got {value!r}")
