"""Stein variational gradient descent on the particles of a hyper-posterior (Liu and Wang 2016; PAC-PFL eqs. 39-40)."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from pacbayes_fl.errors import StudyError

Median = Literal["off-diagonal", "all-pairs", "per-dimension"]
"""Named rules of h by the median of distances; see `bandwidth`."""

Bandwidth = Literal[Median, "independent"]
"""Named rules; a number instead fixes h. See `direction`."""


def _median(values: Tensor) -> Tensor:
    """Median along dimension 0, the mean of the two middle values of an even count (as numpy, unlike torch)."""
    ordered, count = values.sort(0).values, len(values)
    return 0.5 * (ordered[(count - 1) // 2] + ordered[count // 2])


def bandwidth(squares: Tensor, rule: Median) -> Tensor:
    """Bandwidth h of k = exp(-d^2 / h) from squared distances.

    "off-diagonal" and "per-dimension": median over pairs of different particles / ln(P + 1), jointly or coordinate by
    coordinate (Liu and Wang 2016; Pyro does the latter). "all-pairs": median over all P^2 entries, the zero diagonal
    included, / ln(P + 1) (the public code of PACOH, written there as exp(-d^2 / (2 h^2))).

    Args:
        squares: squared distances [P, P, *], of several sets of particles or by coordinate.
        rule: its name.

    Returns:
        h [*]; 0 where all particles coincide.

    Raises:
        StudyError: when there is no such rule.

    Example:
        >>> import torch
        >>> from pacbayes_fl.server import svgd
        >>> squares = torch.tensor([[0.0, 4.0], [4.0, 0.0]])
        >>> round(svgd.bandwidth(squares, "off-diagonal").item(), 4)  # 4 / ln 3
        3.641
    """
    if rule not in get_args(Median):
        raise StudyError(f"bandwidth must be a number or one of {', '.join(get_args(Bandwidth))}, got {rule!r}")
    count = squares.shape[0]
    if rule == "all-pairs":
        pairs = squares.flatten(0, 1)
    else:
        row, column = torch.triu_indices(count, count, 1, device=squares.device)
        pairs = squares[row, column]
    return _median(pairs) / math.log(count + 1)


def direction(particles: Tensor, score: Tensor, rule: Bandwidth | float = "off-diagonal") -> Tensor:
    """Direction in which SVGD moves the particles.

    phi_k = (1/P) sum_l [ k(phi_l, phi_k) score_l + grad_{phi_l} k(phi_l, phi_k) ],  k = exp(-d^2 / h)  (PAC-PFL eq. 39)

    One particle feels its score alone (MAP); coincident particles feel no repulsion, and so never part. "independent"
    is P phi_k in the limit h -> 0: every particle climbs alone, and the particles are P local maxima of the
    hyper-posterior's density, no draws from it.

    Args:
        particles: [P, D], or [K, P, D] of K sets that do not feel each other.
        score: gradient of the log target at the particles [*, P, D].
        rule: name of the bandwidth rule, or h itself.

    Returns:
        [*, P, D], to be added to the particles times a learning rate.

    Raises:
        StudyError: when there is no such rule, or h is not positive.

    Example:
        >>> import torch
        >>> from pacbayes_fl.server import svgd
        >>> particles = torch.tensor([[0.0], [1.0]]).double()
        >>> svgd.direction(particles, score=0 * particles, rule=1.0).numpy().round(4).tolist()  # apart
        [[-0.3679], [0.3679]]
    """
    if isinstance(rule, float | int) and not rule > 0:
        raise StudyError(f"bandwidth must be positive, got {rule:g}")
    if rule == "independent" or particles.shape[-2] == 1:
        return score
    particles, score = particles.movedim(-2, 0), score.movedim(-2, 0)
    difference = particles.unsqueeze(0) - particles.unsqueeze(1)  # [l, k]: phi_k - phi_l, exact (no cancellation)
    squares, size = difference.square(), particles.square().mean(0)
    if rule != "per-dimension":
        squares, size = squares.sum(-1), size.sum(-1)
    h = squares.new_full(squares.shape[2:], rule) if isinstance(rule, float | int) else bandwidth(squares, rule)
    # A floor keeps 0/0 away when particles coincide: the kernel is then 1 and the repulsion 0.
    h = h.clamp_min(1e-12 * (1.0 + size))
    kernel = torch.exp(-squares / h)
    if rule != "per-dimension":
        kernel, h = kernel.unsqueeze(-1), h.unsqueeze(-1)
    return (kernel * (score.unsqueeze(1) + 2.0 * difference / h)).mean(0).movedim(0, -2)


def spread(particles: Tensor) -> Tensor:
    """Root mean square distance of the particles from their mean: how much of a distribution is left.

    Args:
        particles: [P, D].

    Returns:
        [], in units of the hyper-parameters per coordinate.

    Example:
        >>> import torch
        >>> from pacbayes_fl.server import svgd
        >>> svgd.spread(torch.tensor([[-1.0], [1.0]])).item()
        1.0
    """
    return (particles - particles.mean(0)).square().mean().sqrt()
