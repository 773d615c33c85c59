"""ln dQ/dP at one drawn hypothesis of any model, for bounds on one draw."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

import numpy as np
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from pacbayes_fl.errors import AssumptionError, shown

_TRIED = 20
"""Further draws at which a function of the caller's is asked."""
_SELDOM = 1e-6
"""Chance of a logarithm, and of a sum of some, that is refused."""


def number_of(said: object) -> float:
    """Take ln dQ/dP at a draw, as somebody has given it.

    Args:
        said: in nats.

    Returns:
        The number.

    Raises:
        AssumptionError: when it is none, or infinite.
    """
    plain = said.detach() if isinstance(said, Tensor) else said
    truth = isinstance(plain, bool | np.bool_) or (isinstance(plain, Tensor) and plain.dtype == torch.bool)
    try:
        value = math.nan if truth else float(cast(float, plain))
    except (TypeError, ValueError, RuntimeError):
        value = math.nan
    if not math.isfinite(value):
        what = f"log_ratio must be ln dQ/dP at the drawn predictor, a finite number of nats, got {shown(said)}"
        hint = "of several parts their sum, (q.log_prob(theta) - p.log_prob(theta)).sum(); where it is infinite the"
        raise AssumptionError(what, hint=f"{hint} prior has no such predictor, and there is no bound")
    return value


def known_before(said: object) -> float:
    """Take ln dQ/dP at the one predictor that somebody has drawn.

    By the same inequality as in `require_likely`, P[ln dQ/dP <= ln c] <= c over draws of Q.

    Args:
        said: in nats.

    Returns:
        The number.

    Raises:
        AssumptionError: when it is none, or infinite, or so small as one of a million draws has it, or fewer.
    """
    value = number_of(said)
    if value <= math.log(_SELDOM):
        what = f"log_ratio must be ln dQ/dP at the drawn predictor, got {value:.3g}"
        hint = "log density of the posterior less that of the prior, both normalised, at what was drawn"
        raise AssumptionError(f"{what}, which less than one of a million draws of Q has", hint=hint)
    return value


def require_likely(sample: Callable[[torch.Generator], object], log_ratio: Callable[[object], object]) -> None:
    """Refuse a function that is no logarithm of dQ/dP, by draws that no row is shown to, and draws of no generator.

    E_Q exp(-ln dQ/dP) <= 1, so that by Markov's inequality P[sum of M independent ones <= ln c] <= c

    A function with the sign of ln dP/dQ has a sum of about -M KL.

    Args:
        sample: draws a hypothesis from a generator.
        log_ratio: gives ln dQ/dP at one.

    Raises:
        AssumptionError: when one of a million right functions, or fewer, would have so small a sum; when a generator of
            the same seed gives another draw, as nobody could then draw the predictor of the bound again.
    """

    def drawn(count: int) -> list[float]:
        generator = torch.Generator().manual_seed(_TRIED)
        return [number_of(log_ratio(sample(generator))) for _ in range(count)]

    (again,), values = drawn(1), drawn(_TRIED)
    if abs(again - values[0]) > 1e-6 * (1.0 + abs(again)):
        what = f"sample must draw by its generator alone, and of one seed log_ratio is {again:.6g} and {values[0]:.6g}"
        raise AssumptionError(what, hint="torch.randn(..., generator=generator) for every random number")
    total = sum(values)
    if total <= math.log(_SELDOM):
        what = f"log_ratio must be ln dQ/dP, whose mean over draws of Q is KL(Q || P) >= 0, got {total / _TRIED:.3g}"
        hint = "log density of the posterior less that of the prior, at what sample gives"
        raise AssumptionError(f"{what} in the mean of {_TRIED} draws", hint=hint)


def of_gaussians(theta: Tensor, posterior: tuple[Tensor, Tensor], prior: tuple[Tensor, Tensor]) -> float:
    """Take ln dQ/dP of two Gaussians.

    Args:
        theta: the draw [D].
        posterior: mean [D] and covariance [D, D] of Q, float64.
        prior: those of P.

    Returns:
        The logarithm at the draw, in nats.
    """
    q, p = (MultivariateNormal(mean.detach(), covariance.detach()) for mean, covariance in (posterior, prior))
    at = theta.detach().double()
    return float(q.log_prob(at) - p.log_prob(at))
