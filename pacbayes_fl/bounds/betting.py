"""Upper ends of means of losses in [0, 1] by betting: tighter than kl^-1 where losses vary less than coins do.

A gambler who holds that the mean L of independent x_i in [0, 1] is m, and is wrong, loses to one who bets on less:

    W_n(m) = mean_g prod_i (1 + g (m - x_i) / (1 - m))    over fixed bets 0 < g < 1

Why it holds: every factor is at least 1 - g > 0, and has mean 1 at m = L, where W is therefore a martingale of mean 1
that is never negative; so is a mean of these over bets that are fixed beforehand. By Ville's inequality W_n(L) reaches
1 / delta, at whichever n, with probability at most delta. Every factor grows with m, as d/dm (m - x) / (1 - m) =
(1 - x) / (1 - m)^2 >= 0, so that all m with W_n(m) < 1 / delta are those below one. (Betting for means is that of
Waudby-Smith and Ramdas 2024, Estimating means of bounded random variables by betting; a mixture of bets as Cover's
universal portfolio is that of Orabona and Jun 2024, Tight concentrations and confidence sequences from the regret of
universal portfolio.)

W falls where an x_i grows, so that losses may be rounded up, and it does not depend on the order of the rows.

With s = -ln(1 - m) every factor is 1 - g + g (1 - x_i) e^s, so that W is a sum of positive numbers times powers of e^s,
and ln W convex in s: Newton's steps come to the root from above and stay there, after the first.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

_BETS = 128  # sin^2 of equidistant angles: Jeffreys' prior of a coin, whose regret is half a logarithm of n
_STEPS = 60  # of bisection: an interval of length 1 shrinks below the spacing of numbers
_NEWTON = 40  # steps at most; 5 to 10 are usual
_OUTWARDS = 4e-16  # what m may have lost by rounding
_SURELY = 36.7  # -ln(1 - m) of the last number below 1
_ROUNDING = 1e-12  # nats by which capital is taken for less: more than its sum of logarithms can be wrong by
_GROUPS = 250
_VALUES = 16


def log_capital(losses: Tensor, mean: Tensor, counts: Tensor | None = None, doubtful: Tensor | None = None) -> Tensor:
    """Take ln W_n(m), or the least of it over all sets of rows that hold those which are not doubtful.

    A row's factor is below 1 where its loss is above m: a doubtful one counts there alone.

    Args:
        losses: in [0, 1] [*, V], float64.
        mean: m [*], below 1.
        counts: how often each loss stands there [*, V]; once when None. 0 for padding.
        doubtful: rows that may be left out, bool [*, V]; none when None.

    Returns:
        [*], in nats.
    """
    share = (mean.unsqueeze(-1) - losses) / (1.0 - mean).unsqueeze(-1)
    terms = torch.log1p(_bets(losses) * share.unsqueeze(-1))  # [*, V, bets]
    if doubtful is not None:
        terms = torch.where(doubtful.unsqueeze(-1), terms.clamp_max(0.0), terms)
    total = terms.sum(-2) if counts is None else (counts.unsqueeze(-1) * terms).sum(-2)
    return total.logsumexp(-1) - math.log(_BETS)


def _bets(losses: Tensor) -> Tensor:
    angle = (torch.arange(_BETS, dtype=torch.float64, device=losses.device) + 0.5) * (0.5 * math.pi / _BETS)
    return angle.sin().square()


def betting_upper(losses: Tensor, nats: Tensor, counts: Tensor | None = None, doubtful: Tensor | None = None) -> Tensor:
    """Largest m with ln W_n(m) <= nats, never below it; its slopes are those of the implicit function theorem.

    Args:
        losses: in [0, 1] [*, V], float64.
        nats: ln(1 / delta) [*], of a shape that broadcasts.
        counts: how often each loss stands there [*, V]; once when None.
        doubtful: rows that may be left out, bool [*, V]; none when None.

    Returns:
        [*], float64, in [mean of the losses that are not doubtful, 1].

    Example:
        >>> import torch
        >>> from pacbayes_fl.bounds.betting import betting_upper
        >>> losses, nats = torch.full((1, 50), 0.2, dtype=torch.float64), torch.log(torch.tensor([2.0, 20.0])).double()
        >>> more = betting_upper(losses, nats)
        >>> bool(0.2 < more[0] < more[1] < 1.0)  # the less it may fail the larger
        True
    """
    shape = np.broadcast_shapes(losses.shape[:-1], nats.shape)  # torch's own imports sympy
    nats = nats.expand(shape)
    times = torch.ones_like(losses) if counts is None else counts
    with torch.no_grad():
        goal = nats * (1.0 + _ROUNDING) + _ROUNDING * times.sum(-1)
        high = _descended(losses, goal, times) if doubtful is None else _bisected(losses, goal, times, doubtful)
    if not (torch.is_grad_enabled() and (losses.requires_grad or nats.requires_grad)):
        return high
    with torch.enable_grad():
        at = high.clamp_max(1.0 - 1e-12).requires_grad_()
        capital = log_capital(losses, at, counts, doubtful)
        (slope,) = torch.autograd.grad(capital.sum(), at, retain_graph=True)
        rest = (nats - log_capital(losses, at.detach(), counts, doubtful)) / slope.detach().clamp_min(1e-12)
    result: Tensor = high + torch.where(high < 1.0, rest - rest.detach(), 0.0)
    return result


def _descended(losses: Tensor, goal: Tensor, counts: Tensor) -> Tensor:
    """Take Newton's steps to the least m [*] whose capital reaches a goal [*]; 1 where none does."""
    bets, weights = _bets(losses), counts.unsqueeze(-2)
    odds, spared = bets / (1.0 - bets), counts.sum(-1, keepdim=True) * (1.0 - bets).log()
    mean = (counts * losses).sum(-1) / counts.sum(-1)
    at = -torch.log1p(-mean.clamp_max(1.0 - 1e-16)).expand(goal.shape)
    for step in range(_NEWTON):
        # A factor f is 1 - g times what follows, and 1 - (1 - g) / f is the slope of its logarithm by s.
        factor = (((1.0 - losses) * at.exp().unsqueeze(-1)).unsqueeze(-1) * odds).add_(1.0)
        by_bet = spared + (weights @ factor.log()).squeeze(-2)
        slopes = (weights @ factor.reciprocal_().neg_().add_(1.0)).squeeze(-2)
        slope = (slopes * by_bet.softmax(-1)).sum(-1)
        ahead = by_bet.logsumexp(-1) - math.log(_BETS) - goal
        new = (at - ahead / slope.clamp_min(1e-300)).clamp(0.0, _SURELY)
        new = new if not step else torch.minimum(new, at)
        ended = step > 0 and not bool((at - new > 1e-15 * (1.0 + at)).any())
        at = new
        if ended:
            break
    return torch.where(at < _SURELY, (_OUTWARDS - torch.expm1(-at)).clamp_max(1.0), 1.0)


def _bisected(losses: Tensor, goal: Tensor, counts: Tensor, doubtful: Tensor) -> Tensor:
    """Halve an interval down to the least m [*] whose capital reaches a goal [*], some rows being doubtful."""
    sure = torch.where(doubtful, 0.0, counts)
    low = ((sure * losses).sum(-1) / sure.sum(-1)).expand(goal.shape)  # capital is at most 1 there: ln is concave
    high = torch.ones_like(low)
    for _ in range(_STEPS):
        middle = 0.5 * (low + high)
        below = (middle >= 1.0) | (log_capital(losses, middle.clamp_max(1.0 - 1e-16), counts, doubtful) < goal)
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return high


def counted(losses: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Count equal losses, where there are few values, as of the 0-1 loss.

    Args:
        losses: [*, V].
        counts: how often each stands there [*, V].

    Returns:
        Values and their counts [*, U], U at most V; the same mean of logarithms, without slopes.
    """
    if losses.requires_grad or len(values := losses.unique()) > min(_VALUES, losses.shape[-1]):
        return losses, counts
    times = torch.stack([torch.where(losses == value, counts, 0.0).sum(-1) for value in values], -1)
    return values.expand(times.shape), times


def grouped(risks: Tensor) -> Tensor:
    """Take the risks of draws in at most 250 groups of neighbours, each at its largest: no smaller, and less to store.

    Args:
        risks: in [0, 1] [*, M].

    Returns:
        [*, V], sorted, V at most 250; where V divides M every one stands for M / V draws, else V is M.
    """
    draws, ordered = risks.shape[-1], risks.double().sort(-1).values
    each = -(-draws // _GROUPS)
    if each == 1 or draws % each:
        return ordered
    result: Tensor = ordered.unflatten(-1, (draws // each, each)).amax(-1)
    return result
