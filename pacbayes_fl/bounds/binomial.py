"""The upper end of Clopper and Pearson: how likely an error may be that was seen k times in n rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy import special
from torch import Tensor

_OUTWARDS = 1e-12  # relative to p and to 1 - p: where the inverse begins
_STEP = 1e-4  # of the slope in k, relative to sqrt(k + 1), in which the tail is smooth


def binomial_upper(k: Tensor, n: Tensor, delta: Tensor) -> Tensor:
    """Largest p with P[Bin(n, p) <= k] >= delta, never below it; 1 for k = n.

    P[Bin(n, p) <= k] = 1 - I_p(k + 1, n - k) falls with p. Between whole k it is this incomplete beta function.

    Args:
        k: errors [*], from 0 to n.
        n: rows [*], of a shape that broadcasts.
        delta: in (0, 1) [*].

    Returns:
        [*], float64; with slopes in k, by central differences, and in delta.

    Example:
        >>> import torch
        >>> from pacbayes_fl.bounds.binomial import binomial_upper
        >>> k, n = torch.tensor([0.0, 5.0, 100.0]).double(), torch.tensor(100.0).double()
        >>> binomial_upper(k, n, torch.tensor(0.05).double()).numpy().round(4).tolist()
        [0.0295, 0.1023, 1.0]
    """
    result: Tensor = _Upper.apply(*torch.broadcast_tensors(k.double(), n.double(), delta.double()))  # type: ignore[no-untyped-call]
    return result


def _tail(k: Any, n: Any, p: Any) -> Any:
    return special.betaincc(k + 1.0, n - k, p)


class _Upper(torch.autograd.Function):
    """Value by the inverse incomplete beta function, pushed outwards; slopes by the implicit function theorem."""

    @staticmethod
    def forward(k: Tensor, n: Tensor, delta: Tensor) -> Tensor:
        given = [each.detach().cpu().numpy() for each in (k, n, delta)]
        errors, rows, chance = (np.asarray(each, dtype=np.float64) for each in given)
        sure = errors >= rows
        inside = np.where(sure, 0.0, errors)
        p = np.where(sure, 1.0, special.betainccinv(inside + 1.0, rows - inside, chance))
        p = np.where(np.isnan(p) & ~np.isnan(chance), 1.0, p)  # of the least chances scipy knows no inverse
        push = _OUTWARDS
        for _ in range(40):  # the inverse may err to either side: the tail there has to be delta at most
            p = np.where(sure, 1.0, np.minimum(p + push * np.minimum(p, 1.0 - p) + np.spacing(p), 1.0))
            if bool(np.all(sure | (p >= 1.0) | (_tail(inside, rows, p) <= chance))):
                break
            push *= 2.0
        return torch.from_numpy(np.asarray(p)).to(k.device).reshape(k.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs, output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, Tensor]:
        k, n, _, p = (each.cpu().numpy() for each in ctx.saved_tensors)
        inside = (p < 1.0) & (k < n)
        k, p = np.where(inside, k, 0.0), np.where(inside, p, 0.5)
        log_density = k * np.log(p) + (n - k - 1.0) * np.log1p(-p) - special.betaln(k + 1.0, n - k)
        density = np.exp(log_density)  # -d tail / d p
        step = np.minimum(_STEP * np.sqrt(k + 1.0), 0.25 * (n - k))
        by_k = (_tail(k + step, n, p) - _tail(k - step, n, p)) / (2.0 * step)
        slopes = [np.where(inside, each, 0.0) for each in (by_k / density, -1.0 / density)]
        by_errors, by_delta = (torch.from_numpy(np.asarray(each)).to(grads[0]) for each in slopes)
        return grads[0] * by_errors, None, grads[0] * by_delta
