"""A subspace that is fixed in advance and public, in which messages are clipped, summed and noised."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType, ModuleType
from typing import Final, NamedTuple

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.errors import PrivacyError
from pacbayes_fl.noise import generator_from_text
from pacbayes_fl.plugins.table import OpenTable
from pacbayes_fl.privacy import kinds, mechanisms
from pacbayes_fl.tensors import AnyTree

Directions = Callable[[int, int, int], Tensor]
"""Gives k independent directions [k, D] from D, k and the study's public seed; never from data of clients."""

_MOST: Final = 2**28  # numbers of a basis: 2 GiB
_FLAT: Final = 1e-10  # of the longest: what is left of a direction that is a combination of those before


class Projected(NamedTuple):
    """What a client's message is in the subspace: its coefficients [K, k], float64."""

    within: Tensor


def random(coordinates: int, dimension: int, seed: int) -> Tensor:
    """Draw directions whose span is uniform among all subspaces of its dimension.

    Args:
        coordinates: D.
        dimension: k.
        seed: public.

    Returns:
        Standard normal numbers [k, D], float64, of which no rotation changes the law.
    """
    generator = generator_from_text(f"subspace/{seed}/{coordinates}/{dimension}")
    return torch.randn(dimension, coordinates, generator=generator, dtype=torch.float64)


def _directions(thing: object, module: ModuleType, name: str) -> Directions | None:
    return thing if callable(thing) else None


DIRECTIONS: Final[OpenTable[Directions]] = OpenTable(
    lambda: MappingProxyType({"random": random}),
    "pacbayes_fl.directions",
    "[privacy] directions",
    "a function (D, k, seed) -> [k, D]",
    _directions,
)
"""All of them by name or reference; who brings one vouches for that no client's data are in it."""


@dataclass(frozen=True, eq=False)
class Subspace:
    r"""The projection of messages on k directions, and the way back.

    Let Q [k, D] have orthonormal rows, Q Q^T = I, and be independent of all clients' rows. A message u of a client
    becomes Q u, which is clipped, summed and noised as any message of k numbers, and the server takes

        Q^T (sum_k clip(Q u_k) + noise) / divisor

    in the place of a release of D numbers. Q u is a function of u and of nothing secret, so that the release of k
    numbers costs what the mechanism costs at D = k; what Q^T makes of it costs nothing.

    - |Q u|_2 <= |u|_2, as |Q u|^2 = u^T P u for the orthogonal projection P = Q^T Q. In L1 that is not so, and the clip
      is of Q u all the same.
    - A message in the subspace is released as it is: P u = u. Of any other I - P is lost.
    - Noise with E n n^T = s^2 I has the covariance s^2 P after it: its mean square length is s^2 k where it was s^2 D.
    - A uniform subspace keeps k / D of the mean square of every message, E P = (k / D) I. At one clip noise falls by no
      more than what it is added to; but norms fall by sqrt(k / D), and with them the clip that they need.

    Q is the QR factor of k directions, which makes any that a user brings orthonormal too, and Gaussian ones uniform.
    It takes k D numbers and about 2 k^2 D multiplications, once; it is not saved, as seed, D and k give it again.

    Args:
        basis: Q [k, D], float64.
        empty: a message of no clients, leaves [0, *] of the dtypes and on the device of the method's messages.

    Example:
        >>> import torch
        >>> from pacbayes_fl.privacy.subspace import Subspace
        >>> space = Subspace.of({'a': torch.zeros(0, 3), 'b': torch.zeros(0, 2)}, dimension=2, seed=0)
        >>> space.project({'a': torch.ones(7, 3), 'b': torch.ones(7, 2)}).within.shape
        torch.Size([7, 2])
    """

    basis: Tensor
    empty: AnyTree

    @classmethod
    def of(cls, empty: AnyTree, dimension: int, seed: int, directions: str = "random") -> Subspace:
        """Make the subspace of a federation; whoever knows the arguments makes the same.

        Args:
            empty: a message of no clients, leaves [0, *].
            dimension: k.
            seed: public.
            directions: a name of `DIRECTIONS`.

        Returns:
            The subspace.

        Raises:
            PrivacyError: when k is not below the D numbers of a message, k D numbers are too many, or the directions
                are not k finite and independent ones.
        """
        size = mechanisms.coordinates(empty)
        if not 0 < dimension < size:
            what = f"[privacy] subspace must be from 1 to {size - 1}, as a message has {size} numbers, got {dimension}"
            raise PrivacyError(what, hint="leave it out to release all of them")
        if dimension * size > _MOST:
            what = f"[privacy] subspace = {dimension} of {size} numbers takes a basis of {dimension * size}"
            raise PrivacyError(f"{what}, at most {_MOST} are allowed", hint=f"at most {_MOST // size}")
        given = DIRECTIONS[directions](size, dimension, seed)
        if not isinstance(given, Tensor) or given.shape != (dimension, size) or not bool(given.isfinite().all()):
            came = list(given.shape) if isinstance(given, Tensor) else type(given).__name__
            what = f"[privacy] directions = {directions!r} must give finite numbers [{dimension}, {size}], got {came}"
            raise PrivacyError(what, hint="one direction a row, in the order of the message's leaves")
        factor, rest = torch.linalg.qr(given.detach().double().cpu().T)
        lengths = rest.diagonal()
        if float(lengths.abs().min()) <= _FLAT * float(lengths.abs().max()):
            what = f"[privacy] directions = {directions!r} gives {dimension} that are not independent"
            raise PrivacyError(what, hint="lower privacy.subspace, or leave out those that follow from others")
        basis = (factor * lengths.sign()).T.contiguous()  # the one factor with positive lengths, whatever the library
        return cls(basis.to(next(iter(tensors.leaves(empty).values())).device), empty)

    @property
    def released(self) -> Projected:
        """What is noised in a round, of no clients."""
        return Projected(self.basis.new_zeros(0, len(self.basis)))

    def project(self, update: AnyTree) -> Projected:
        """Project each client's whole message: Q u.

        Args:
            update: floating leaves [K, *].

        Returns:
            Coefficients [K, k]; of a message that is not finite they are not finite either.

        Raises:
            PrivacyError: when a leaf is not floating, and so cannot carry noise.
        """
        rows = mechanisms.vectors(update)
        within = rows @ self.basis.T
        whole = rows.isfinite().all(1, keepdim=True)  # 0 times infinity is no number in every library
        return Projected(torch.where(whole, within, torch.nan))

    def lift(self, mean: Projected) -> AnyTree:
        """Give a release the form of a message: Q^T times the coefficients.

        Args:
            mean: coefficients [S, k].

        Returns:
            Leaves [S, *] of the method's dtypes.
        """
        flat = tensors.leaves(self.empty)
        sizes = [math.prod(leaf.shape[1:]) for leaf in flat.values()]
        parts = iter((mean.within @ self.basis).split(sizes, 1))
        return tensors.tree_map(lambda like: next(parts).reshape(-1, *like.shape[1:]).to(like.dtype), self.empty)


def check(mechanism: str) -> None:
    """Refuse a subspace under a mechanism whose releases are no sums of messages, or printed for all coordinates.

    Args:
        mechanism: a name of `kinds.MECHANISMS`.

    Raises:
        PrivacyError: when it chooses, or its noise is one that a paper prints.
    """
    kind = kinds.MECHANISMS[mechanism]
    if kind.chooses or kind.claim is not None:
        why = "chooses, and sums no updates" if kind.chooses else "has the noise that a paper prints for all numbers"
        what = f"[privacy] subspace is not for {mechanism}, which {why}"
        raise PrivacyError(what, hint="leave subspace out, or take privacy.mechanism = 'gaussian'")
