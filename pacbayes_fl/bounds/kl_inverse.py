"""The binary KL divergence and its two inverses, which err on the safe side of the root only.

They have slopes in closed form, of any order, and no slope is infinite or no number: one that is infinite, as that of
kl(q || p) in q at 0, is that at the smallest normal double, so that a chain of slopes with a zero in it is zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pacbayes_fl.errors import AssumptionError

_TINY, _EPS = torch.finfo(torch.float64).tiny, torch.finfo(torch.float64).eps
_BELOW = math.nextafter(_TINY, 0.0)
_SERIES = 18  # enough for |x| < 1/2: 9^-18 is below what float64 resolves
_SLACK = 1e-14  # more than `binary_kl` can be wrong by, relative to its value
_STEPS = 12  # of Newton's method, which takes four to six


def log_excess(x: Tensor) -> Tensor:
    """Take x - ln(1 + x) >= 0 without the cancellation that costs all digits near 0.

    With z = x / (2 + x), ln(1 + x) = 2 (z + z^3/3 + z^5/5 + ...) and x - 2 z = x z.

    Args:
        x: [*], at least -1, float64.

    Returns:
        [*]; infinite at -1.
    """
    near = x.abs() < 0.5  # each branch is kept away from where its slope is no number
    return torch.where(near, _series(torch.where(near, x, 0.0)), (far := torch.where(near, 1.0, x)) - torch.log1p(far))


def _series(x: Tensor) -> Tensor:
    z = x / (2.0 + x)
    square, tail = z.square(), torch.zeros_like(z)
    for k in range(_SERIES, 0, -1):
        tail = (tail + 1.0 / (2 * k + 1)) * square
    return z * (x - 2.0 * tail)


def binary_kl(q: Tensor | float, p: Tensor | float) -> Tensor:
    """KL divergence of Bernoulli distributions, to a few units in the last place also where q and p are close.

    kl(q || p) = q ln(q / p) + (1 - q) ln((1 - q) / (1 - p))

    Args:
        q: probabilities [*].
        p: probabilities [*], of a shape that broadcasts.

    Returns:
        [*], in nats, float64; infinite where p excludes what q allows.

    Example:
        >>> import torch
        >>> from pacbayes_fl.bounds import binary_kl
        >>> round(binary_kl(torch.tensor(0.1), torch.tensor(0.2)).item(), 4)
        0.0367
    """
    q, p = _doubles(q, p)
    difference = (p - q).detach()
    parts = relative_entropy(
        torch.stack((q, 1.0 - q)), torch.stack((p, 1.0 - p)), torch.stack((difference, -difference))
    )
    return parts[0] + parts[1]


def _kl(q: Tensor, p: Tensor) -> Tensor:
    """Take `binary_kl` of float64 numbers, outside of any graph."""
    difference = p - q
    parts = _part(torch.stack((q, 1.0 - q)), torch.stack((p, 1.0 - p)), torch.stack((difference, -difference)))
    return parts[0] + parts[1]


def relative_entropy(a: Tensor, b: Tensor, difference: Tensor | None = None) -> Tensor:
    """Take a ln(a / b) + b - a, which is never negative: the part of a KL divergence that one outcome makes.

    Args:
        a: at least 0 [*], float64.
        b: at least 0 [*], of the same shape.
        difference: b - a [*], where it is known to more digits than these two have.

    Returns:
        [*], in nats; infinite where b = 0 < a.

    Example:
        >>> import torch
        >>> from pacbayes_fl.bounds.kl_inverse import relative_entropy
        >>> a, b = torch.tensor([1.0, 2.0, 0.0]).double(), torch.tensor([1.0, 1.0, 3.0]).double()
        >>> relative_entropy(a, b).numpy().round(4).tolist()  # 0, 2 ln 2 - 1, 3
        [0.0, 0.3863, 3.0]
    """
    result: Tensor = _RelativeEntropy.apply(  # type: ignore[no-untyped-call]
        a, b, (b - a).detach() if difference is None else difference
    )
    return result


class _RelativeEntropy(torch.autograd.Function):
    """Value by `_part`; slopes ln(a / b) and 1 - a / b."""

    @staticmethod
    def forward(a: Tensor, b: Tensor, difference: Tensor) -> Tensor:
        return _part(a, b, difference)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], inputs[1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        a, b = (value.clamp_min(_TINY) for value in ctx.saved_tensors)
        by_b = torch.where(ctx.saved_tensors[0] == 0, 1.0, 1.0 - (a / b).clamp_max(1.0 / _TINY))
        return grads[0] * (a.log() - b.log()), grads[0] * by_b, None


def _part(a: Tensor, b: Tensor, difference: Tensor) -> Tensor:
    """Take a ln(a / b) + b - a; the differences of both outcomes cancel."""
    x = difference / a
    ratio = b / a
    plain = (ratio > 1e-300) & (ratio < 1e300)  # beyond, the quotient underflows or overflows
    far = difference - a * torch.where(plain, ratio.log(), b.log() - a.log())
    return torch.where(a == 0, difference, torch.where(x.abs() < 0.5, a * _series(x), far))


def kl_inverse_upper(q: Tensor | float, c: Tensor | float) -> Tensor:
    """Largest p with kl(q || p) <= c, never below it.

    Newton's method, then bisection to neighbouring numbers, of which the outer one is returned: as if c were larger by
    1e-14 of itself. The slopes are those of the implicit function theorem:

    dp/dc = p (1 - p) / (p - q),  dp/dq = ln[p (1 - q) / (q (1 - p))] dp/dc

    Args:
        q: probabilities [*].
        c: budgets in nats [*], at least 0, of a shape that broadcasts; infinity gives 1.

    Returns:
        [*], float64, in [q, 1].

    Raises:
        AssumptionError: when q is no probability or c is negative or no number.

    Example:
        >>> from pacbayes_fl.bounds import kl_inverse_upper
        >>> round(kl_inverse_upper(0.1, 0.05).item(), 4)
        0.2201
    """
    result: Tensor = _Inverse.apply(*_checked(q, c), _upper)  # type: ignore[no-untyped-call]
    return result


def _upper(q: Tensor, c: Tensor) -> Tensor:
    few = c.clamp_max(1.0)  # any more reaches 1
    geometric = q.sqrt() * few.sqrt()  # of numbers whose product may be too small for one
    reach = torch.minimum(2.0 * few + math.sqrt(2.0) * geometric, 1.0 - q)  # kl(q || p) >= (p - q)^2 / (2 p)
    end = (q + reach * (1.0 + 1e-9)).clamp_max(1.0)
    end = torch.where(end < 1.0, torch.nextafter(end, torch.ones_like(end)), 1.0)
    # kl(q || p) >= -(1 - q) ln(1 - p) - h(q), which is all but equal where p is close to 1
    entropy = torch.special.entr(q) + torch.special.entr(1.0 - q)
    start = torch.minimum(q + _reach(q, c), -torch.expm1(-(c + entropy) / (1.0 - q)))

    def newton(p: Tensor, excess: Tensor) -> Tensor:  # in ln(1 - p), of which kl is convex: from outside it stays there
        return p - (1.0 - p) * torch.expm1(excess * p / (p - q))

    return torch.where(c == 0, q, _outer(q, c * (1.0 + _SLACK), end, start, newton))


def kl_inverse_lower(q: Tensor | float, c: Tensor | float) -> Tensor:
    """Smallest p with kl(q || p) <= c, never above it; slopes as of `kl_inverse_upper`.

    Args:
        q: probabilities [*].
        c: budgets in nats [*], at least 0, of a shape that broadcasts; infinity gives 0.

    Returns:
        [*], float64, in [0, q].

    Raises:
        AssumptionError: when q is no probability or c is negative or no number.

    Example:
        >>> from pacbayes_fl.bounds import kl_inverse_lower
        >>> round(kl_inverse_lower(0.1, 0.05).item(), 4)
        0.0313
    """
    result: Tensor = _Inverse.apply(*_checked(q, c), _lower)  # type: ignore[no-untyped-call]
    return result


def _lower(q: Tensor, c: Tensor) -> Tensor:
    # With h = -(1 - q) ln(1 - q) <= q the root lies between q e^(-(c + h) / q) and q e^(-c / q): within a factor e.
    loss = torch.where(q < 1, -(1.0 - q) * torch.log1p(-q), 0.0)
    end = torch.where(q > 0, q * (-(c + loss) / q).exp() * (1.0 - 1e-9), 0.0)
    end = torch.where(c == 0, q, torch.minimum(q, end.clamp_min(_BELOW)))
    start = torch.maximum(end, q - _reach(1.0 - q, c))

    def newton(p: Tensor, excess: Tensor) -> Tensor:  # in ln p, likewise
        return p * (excess * (1.0 - p) / (q - p)).exp()

    result = _outer(q, c * (1.0 + _SLACK), end, start, newton)
    return torch.where(result < _TINY, 0.0, result)  # subnormal numbers are too coarse to tell


class _Inverse(torch.autograd.Function):
    """Value by Newton's method and bisection, outside of any graph; slopes by the implicit function theorem."""

    @staticmethod
    def forward(q: Tensor, c: Tensor, inverse: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        return inverse(q, c)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Any], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], inputs[1], output)
        ctx.sign = 1.0 if inputs[2] is _upper else -1.0

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        q, c, p = ctx.saved_tensors
        grad_q, grad_c = _slopes(q, c, p, ctx.sign)
        return grads[0] * grad_q, grads[0] * torch.where(c == 0, _at_no_budget(q.detach(), ctx.sign), grad_c), None


def _slopes(q: Tensor, c: Tensor, p: Tensor, sign: float) -> tuple[Tensor, Tensor]:
    """Give dp/dq and dp/dc of the upper inverse, sign 1, or of the lower one, sign -1.

    Both are 0 where p has reached the end that it runs to. At c = 0, where p = q, dp/dq = 1 and dp/dc is infinite, but
    for an upper 1 at q = 0, a lower -1 at q = 1, and 0 where q is the end itself.
    """
    still, ended = c == 0, p == (1.0 if sign > 0 else 0.0)
    inside = ~still & ~ended
    q, p = torch.where(inside, q, 0.25), torch.where(inside, p, 0.5)
    gap = p - q
    grad_c = p * (1.0 - p) / gap
    ratio = gap / (q.clamp_min(_TINY) * (1.0 - p))
    near = ratio.abs() < 0.5
    far = p.log() - q.clamp_min(_TINY).log() + (1.0 - q).clamp_min(_TINY).log() - torch.log1p(-p)
    grad_q = grad_c * torch.where(near, torch.log1p(torch.where(near, ratio, 0.0)), far)
    return torch.where(inside, grad_q, still.double()), torch.where(inside, grad_c, 0.0)


def _at_no_budget(q: Tensor, sign: float) -> Tensor:
    """Give dp/dc at c = 0: sqrt(q (1 - q) / (2 c)) at the smallest normal c inside, and that at the ends."""
    steep = (q * (1.0 - q) / (2.0 * _TINY)).sqrt()
    return sign * torch.where(q == (0.0 if sign > 0 else 1.0), 1.0, steep)


def _doubles(*numbers: Tensor | float) -> tuple[Tensor, Tensor]:
    first, second = torch.broadcast_tensors(*(torch.as_tensor(each, dtype=torch.float64) for each in numbers))
    return first, second


def _checked(q: Tensor | float, c: Tensor | float) -> tuple[Tensor, Tensor]:
    q, c = _doubles(q, c)
    if (wrong := ~((q >= 0) & (q <= 1))).any():
        raise AssumptionError(f"q must be a probability, got {q[wrong][0].item():g}")
    if (wrong := ~(c >= 0)).any():
        raise AssumptionError(f"c must be at least 0 nats, got {c[wrong][0].item():g}")
    return q, c


def _reach(q: Tensor, c: Tensor) -> Tensor:
    """Bound p - q of the upper inverse: kl(q || p) >= (p - q)^2 / (2 p), and >= (p - q)^2 / (2 (1 - q))."""
    c = c.clamp_max(1.0)  # any more reaches 1, and infinity times 0 is no number
    root = (2.0 * c).sqrt()
    return torch.minimum(2.0 * c + q.sqrt() * root, (1.0 - q).sqrt() * root)


def _outer(q: Tensor, c: Tensor, end: Tensor, start: Tensor, newton: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Bracket the root of kl(q || p) = c, which lies between q and `end`, by neighbours; return the outer one.

    There kl >= c, or it is `end`. Newton's method says about where to look; where the signs beside its root do not
    agree, bisection begins with the whole bracket.
    """
    low, high = torch.minimum(q, end).clamp_min(_TINY), torch.maximum(q, end).clamp_max(1.0 - 0.5 * _EPS)
    p = start.clamp(low, high)
    for _ in range(_STEPS):
        p, last = newton(p, _kl(q, p) - c).clamp(low, high), p
        if not bool(((p - last).abs() > 1e-8 * torch.minimum((p - q).abs(), p)).any()):
            break  # the next step would be of the order of the square of this one
    inner, outer = q, end
    off = 8.0 * _EPS * (p + c * p * (1.0 - p) / (p - q).abs())  # by rounding of p, and of kl times dp/dc
    for middle in (p - off, p, p + off):
        inner, outer = _narrowed(q, c, inner, outer, middle)
    while True:
        middle = inner + 0.5 * (outer - inner)
        if bool(((middle == inner) | (middle == outer)).all()):
            return outer
        inner, outer = _narrowed(q, c, inner, outer, middle)


def _narrowed(q: Tensor, c: Tensor, inner: Tensor, outer: Tensor, middle: Tensor) -> tuple[Tensor, Tensor]:
    """Replace the end of the bracket on whose side of the root the middle lies, if it lies in the bracket."""
    inside = (middle > torch.minimum(inner, outer)) & (middle < torch.maximum(inner, outer))
    past = _kl(q, middle) >= c
    return torch.where(inside & ~past, middle, inner), torch.where(inside & past, middle, outer)
