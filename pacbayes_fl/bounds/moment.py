"""The moment behind every bound on kl(L^ || L): Maurer's sum, which 2 sqrt n stands for elsewhere."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_EXACT = 256  # rows up to which the sum is taken; beyond, its upper bound exceeds it by less than 6e-6 of itself
_SAFE = 1.0 + 1e-13  # more than the rounding of either


def log_moment(n: Tensor) -> Tensor:
    """Give ln xi(n), rounded up, of the sum that bounds E exp(n kl(L^ || L)) for n independent losses in [0, 1].

    xi(n) = sum_k C(n, k) (k / n)^k (1 - k / n)^(n - k)

    It is the expectation itself for losses in {0, 1} of any mean strictly between. For losses in [0, 1] the expectation
    is no larger: exp(n kl(. || L)) is convex in each loss, so that at the same mean it is largest at the ends (Maurer
    2004, A note on the PAC Bayesian theorem, Theorem 1). That holds for every n, and xi(n) <= 2 sqrt n. For losses of
    different means see `bounds.size_weighted`.

    By Abel's identity xi(n) = 1 + sum_{j=1}^n prod_{i<j} (1 - i / n), whose terms are positive. Beyond 256 rows

    xi(n) = n! (e / n)^n / 2 + 1 - theta_n <= sqrt(pi n / 2) e^(1 / (12 n)) + 2 / 3,

    with e^n / 2 = sum_{k<n} n^k / k! + theta_n n^n / n! and 1 / 3 <= theta_n <= 1 / 2 (Ramanujan's problem: Szegoe
    1928, Watson 1929), and Stirling's formula as Robbins (1955) encloses it.

    Args:
        n: rows, whole numbers of at least 1 [*].

    Returns:
        [*], float64.

    Example:
        >>> import math, torch
        >>> from pacbayes_fl.bounds.moment import log_moment
        >>> n = torch.tensor(100.0)
        >>> round(log_moment(n).item(), 3), round(math.log(2 * math.sqrt(100)), 3)
        (2.581, 2.996)
    """
    n = n.double()
    steps = torch.arange(_EXACT, dtype=torch.float64, device=n.device)
    factors = (1.0 - steps / n.clamp_max(_EXACT).unsqueeze(-1)).clamp_min(0.0)
    exact = 1.0 + factors.cumprod(-1).sum(-1)
    beyond = (0.5 * math.pi * n).sqrt() * (1.0 / (12.0 * n)).exp() + 2.0 / 3.0
    return (torch.where(n <= _EXACT, exact, beyond) * _SAFE).log()
