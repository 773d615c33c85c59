"""Mean of a squared error that stops growing, min(e^2, limit), over a Gaussian error."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import torch
from torch import Tensor

_WIDE: Final = 4.0  # standard deviations, in units of the limit's root, from which the terms of the closed form cancel
_FAR: Final = 40.0  # standard deviations, beyond which there is no probability in float64
_RULE: Final = tuple(zip(*(values.tolist() for values in np.polynomial.legendre.leggauss(12)), strict=True))


def mean_clipped_square(residual: Tensor, std: Tensor, limit: float) -> Tensor:
    """Average min(e^2, limit) over e ~ N(residual, std^2), to nearly all digits of float64.

    In units of the limit, with e of mean m and standard deviation s, and a, b = (-1 - m) / s, (1 - m) / s:

    (m^2 + s^2) (Phi(b) - Phi(a)) + 2 m s (phi(a) - phi(b)) + s^2 (a phi(a) - b phi(b)) + Phi(a) + Phi(-b)

    and, where s is large, 1 - int_-1^1 (1 - t^2) phi((t - m) / s) / s dt by a Gauss-Legendre rule, whose terms are all
    positive: those above, of the size of s^2, would leave nothing of a difference of the size of 1 / s.

    Args:
        residual: [*], in the unit of y.
        std: positive [*], in the unit of y.
        limit: positive, in the squared unit of y.

    Returns:
        [*], in [0, limit].
    """
    root = math.sqrt(limit)
    mean, spread = residual.abs() / root, std / root
    wide = spread > _WIDE
    scale = torch.where(wide, spread, _WIDE)
    area = torch.zeros_like(mean)
    for place, weight in _RULE:
        area = area + weight * (1.0 - place**2) * torch.exp(-0.5 * ((place - mean) / scale).square())
    narrow = torch.where(wide, _WIDE, spread)
    near = torch.minimum(mean, 1.0 + _FAR * narrow)
    a, b = (((end - near) / narrow).clamp(-_FAR, _FAR) for end in (-1.0, 1.0))
    low, high = (torch.exp(-0.5 * edge.square()) / math.sqrt(2 * math.pi) for edge in (a, b))
    inside, outside = torch.special.ndtr(b) - torch.special.ndtr(a), torch.special.ndtr(a) + torch.special.ndtr(-b)
    squares = (near.square() + narrow.square()) * inside + 2.0 * near * narrow * (low - high)
    squares = squares + narrow.square() * (a * low - b * high)
    share = torch.where(wide, 1.0 - area / (scale * math.sqrt(2 * math.pi)), squares + outside)
    return limit * share.clamp(0.0, 1.0)
