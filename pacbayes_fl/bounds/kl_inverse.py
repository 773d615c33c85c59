"""The binary KL divergence and its two inverses, which err on the safe side of the root only."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pacbayes_fl.errors import AssumptionError

_SERIES = 18  # enough for |x| < 1/2: 9^-18 is below what float64 resolves
_SLACK = 1e-14  # more than `binary_kl` can be wrong by, relative to its value


def log_excess(x: Tensor) -> Tensor:
    """Take x - ln(1 + x) >= 0 without the cancellation that costs all digits near 0.

    With z = x / (2 + x), ln(1 + x) = 2 (z + z^3/3 + z^5/5 + ...) and x - 2 z = x z.

    Args:
        x: [*], at least -1, float64.

    Returns:
        [*]; infinite at -1.
    """
    return torch.where(x.abs() < 0.5, _series(x), x - torch.log1p(x))


def _series(x: Tensor) -> Tensor:
    z = x / (2.0 + x)
    square, tail = z.square(), torch.zeros_like(z)
    for k in range(_SERIES, 0, -1):
        tail = (tail + 1.0 / (2 * k + 1)) * square
    return z * (x - 2.0 * tail)


def binary_kl(q: Tensor, p: Tensor) -> Tensor:
    """KL divergence of Bernoulli distributions, to a few units in the last place also where q and p are close.

    kl(q || p) = q ln(q / p) + (1 - q) ln((1 - q) / (1 - p))

    Args:
        q: probabilities [*].
        p: probabilities [*], of a shape that broadcasts.

    Returns:
        [*], in nats, float64; infinite where p excludes what q allows.
    """
    q, p = torch.broadcast_tensors(q.double(), p.double())
    difference = p - q
    parts = _part(torch.stack((q, 1.0 - q)), torch.stack((p, 1.0 - p)), torch.stack((difference, -difference)))
    return parts[0] + parts[1]


def _part(a: Tensor, b: Tensor, difference: Tensor) -> Tensor:
    """Take a ln(a / b) + b - a, which is never negative; the differences of both outcomes cancel."""
    x = difference / a
    ratio = b / a
    plain = (ratio > 1e-300) & (ratio < 1e300)  # beyond, the quotient underflows or overflows
    far = difference - a * torch.where(plain, ratio.log(), b.log() - a.log())
    return torch.where(a == 0, difference, torch.where(x.abs() < 0.5, a * _series(x), far))


def kl_inverse_upper(q: Tensor, c: Tensor) -> Tensor:
    """Largest p with kl(q || p) <= c, never below it.

    Bisection to neighbouring numbers, of which the outer one is returned: as if c were larger by 1e-14 of itself.

    Args:
        q: probabilities [*].
        c: budgets in nats [*], at least 0, of a shape that broadcasts; infinity gives 1.

    Returns:
        [*], float64, in [q, 1].

    Raises:
        AssumptionError: when q is no probability or c is negative or no number.
    """
    q, c = _checked(q, c)
    few = c.clamp_max(1.0)  # any more reaches 1, and infinity times 0 is no number
    reach = torch.minimum(2.0 * few + (2.0 * q * few).sqrt(), 1.0 - q)  # kl(q || p) >= (p - q)^2 / (2 p)
    end = (q + reach * (1.0 + 1e-9)).clamp_max(1.0)
    end = torch.where(end < 1.0, torch.nextafter(end, torch.ones_like(end)), 1.0)
    return torch.where(c == 0, q, _outer(lambda p: binary_kl(q, p) >= c * (1.0 + _SLACK), q, end))


def kl_inverse_lower(q: Tensor, c: Tensor) -> Tensor:
    """Smallest p with kl(q || p) <= c, never above it.

    Args:
        q: probabilities [*].
        c: budgets in nats [*], at least 0, of a shape that broadcasts; infinity gives 0.

    Returns:
        [*], float64, in [0, q].

    Raises:
        AssumptionError: when q is no probability or c is negative or no number.
    """
    q, c = _checked(q, c)
    # With h = -(1 - q) ln(1 - q) <= q the root lies between q e^(-(c + h) / q) and q e^(-c / q): within a factor e.
    loss = torch.where(q < 1, -(1.0 - q) * torch.log1p(-q), 0.0)
    end = torch.where(q > 0, q * (-(c + loss) / q).exp() * (1.0 - 1e-9), 0.0)
    found = torch.where(c == 0, q, _outer(lambda p: binary_kl(q, p) >= c * (1.0 + _SLACK), q, end))
    return torch.where(found < torch.finfo(found.dtype).tiny, 0.0, found)  # subnormal numbers are too coarse to tell


def _checked(q: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    q, c = torch.broadcast_tensors(q.double(), c.double())
    if (wrong := ~((q >= 0) & (q <= 1))).any():
        raise AssumptionError(f"q must be a probability, got {q[wrong][0].item():g}")
    if (wrong := ~(c >= 0)).any():
        raise AssumptionError(f"c must be at least 0 nats, got {c[wrong][0].item():g}")
    return q, c


def _outer(beyond: Callable[[Tensor], Tensor], inner: Tensor, outer: Tensor) -> Tensor:
    """Bisect to neighbouring numbers; return the outer one, where `beyond` holds or which ends the bracket."""
    while True:
        middle = inner + 0.5 * (outer - inner)
        if bool(((middle == inner) | (middle == outer)).all()):
            return outer
        past = beyond(middle)
        inner, outer = torch.where(past, inner, middle), torch.where(past, middle, outer)
