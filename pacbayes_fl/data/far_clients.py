"""Clients whose columns lie far from everybody else's are left out of what is common to all clients."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.moments import Moments, client_moments, log_in, power_of_two
from pacbayes_fl.data.shrinkage import Population
from pacbayes_fl.errors import caller_stacklevel, listed

_FAR: Final = math.log(30.0)  # times the size of the client in the middle, at least, is far
_DEVIATIONS: Final = 6.0  # of the logarithms of sizes, in standard deviations of what is normal
_NORMAL: Final = 1.4826  # standard deviation per median absolute deviation
_ROUNDING: Final = 500.0  # of the least relative step of numbers: deviations below are none
_FEWEST: Final = 4  # clients of whom more than one half can be outvoted


def far(moments: Moments, has_rows: Tensor) -> Tensor:
    """Say which clients are far from the others in which column.

    A client's size is a_k = sqrt(std_k^2 + (mean_k - median of the means)^2). It is far where ln a_k exceeds the median
    over clients by more than ln 30 and by more than six times 1.4826 MAD, the deviation that half of the clients do not
    exceed (Huber and Ronchetti, Robust Statistics, 2009, section 5.1). As both are medians, fewer than half of the
    clients cannot move them far, whatever they send.

    Args:
        moments: of K clients.
        has_rows: [K] bool; others are never far.

    Returns:
        [K, c] bool; False where half of the clients have nothing but one and the same value, or there are fewer than 4.
    """
    result = torch.zeros_like(moments.flat)
    if int(has_rows.sum()) < _FEWEST:
        return result
    mean, std = (leaf[has_rows].double() for leaf in moments[:2])
    unit = power_of_two(torch.maximum(mean.abs(), std).median(0).values)
    size = torch.hypot(std / unit, mean / unit - (mean / unit).median(0).values)
    size = torch.where(size > _ROUNDING * torch.finfo(moments.std.dtype).eps, size, 0.0)
    usual = size.median(0).values
    logs = log_in(torch.where(size > 0, size, 1.0), torch.ones_like(unit))
    middle = log_in(torch.where(usual > 0, usual, 1.0), torch.ones_like(unit))
    spread = (logs - middle).abs().median(0).values
    limit = (_DEVIATIONS * _NORMAL * spread).clamp_min(_FAR)
    result[has_rows] = (logs - middle > limit) & (size > 0) & (usual > 0) | ~size.isfinite()
    return result


def beyond(moments: Moments, population: Population) -> Tensor:
    """Say which clients' columns are none of a population's, so that they are not drawn towards it.

    sqrt(std_k^2 + (mean_k - mean)^2) > 30 exp(6 spread) sqrt(std^2 + between^2), of a column that varies

    Args:
        moments: of K clients.
        population: of the c columns.

    Returns:
        [K, c] bool.
    """
    mean, std, between, spread = (leaf.to(moments.mean.device, torch.float64) for leaf in population)
    unit = torch.hypot(std, between) * math.exp(_FAR) * (_DEVIATIONS * spread).clamp_max(200.0).exp()
    size = torch.hypot(moments.std.double() / unit, moments.mean.double() / unit - mean / unit)
    return (size > 1.0) & ~moments.flat


def without_far(batch: ClientBatch, names: Sequence[str], used: Sequence[bool], what: str) -> ClientBatch:
    """Leave clients that are far out of a batch, and say who they are.

    Args:
        batch: rows of K clients, x [K, N, d], y [K, N].
        names: of the d features and the target.
        used: whether a column counts [d + 1].
        what: they are left out of, in words.

    Returns:
        The other clients; the same batch where nobody is far.

    Warns:
        UserWarning: naming the clients, and the columns.
    """
    near = without_far_by(client_moments(batch), batch.mask.any(1), batch.names, names, used, what)
    return batch if near is None else batch.select(near)


def without_far_by(
    moments: Moments, has_rows: Tensor, clients: Sequence[str], names: Sequence[str], used: Sequence[bool], what: str
) -> Tensor | None:
    """Find the clients that are left when those that are far are left out, and say who these are.

    Args:
        moments: of K clients.
        has_rows: [K] bool.
        clients: their names.
        names: of the c columns.
        used: whether a column counts [c].
        what: they are left out of, in words.

    Returns:
        Positions [*] of the others, on the CPU; None where nobody is far.

    Warns:
        UserWarning: naming the clients, and the columns.
    """
    out = say_far(moments, has_rows, clients, names, used, f"left out of {what}")
    return (~out).nonzero().flatten().cpu() if bool(out.any()) else None


def say_far(
    moments: Moments, has_rows: Tensor, clients: Sequence[str], names: Sequence[str], used: Sequence[bool], what: str
) -> Tensor:
    """Say who is far from all other clients.

    Args:
        moments: of K clients.
        has_rows: [K] bool.
        clients: their names.
        names: of the c columns.
        used: whether a column counts [c].
        what: becomes of it, in words.

    Returns:
        Who they are [K], bool.

    Warns:
        UserWarning: naming the clients, and the columns.
    """
    away = far(moments, has_rows) & torch.tensor([*used], device=has_rows.device)
    out = away.any(1)
    if bool(out.any()):
        who, where = those_in(away, clients, names)
        columns = (
            f"column {where[0]} is far from that" if len(where) == 1 else f"columns {listed(where)} are far from those"
        )
        text = f"{listed(who)}: {columns} of all other clients, and {what}"
        warnings.warn(f"{text}; check their units, or leave them out", stacklevel=caller_stacklevel())
    return out


def those_in(found: Tensor, clients: Sequence[str], names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Name the clients and the columns of which something was found.

    Args:
        found: of which columns of which clients [K, c] bool.
        clients: their names [K].
        names: of the columns [c].

    Returns:
        Names of the clients, and of the columns.
    """
    who, where = (found.any(dim).tolist() for dim in (1, 0))
    return [*itertools.compress(clients, who)], [*itertools.compress(names, where)]
