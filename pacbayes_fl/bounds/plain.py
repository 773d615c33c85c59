"""What a certificate is made of, as JSON can hold it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, is_dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from torch import Tensor

from pacbayes_fl.bounds.losses import LOSSES, BoundedLoss, LossRange, UnboundedLoss
from pacbayes_fl.bounds.normal_nll import NormalNLL
from pacbayes_fl.bounds.premises import Premises
from pacbayes_fl.files import JsonMapping, JsonTable
from pacbayes_fl.results.records import SIMULATED_EPSILON

KINDS: Mapping[str, Callable[..., BoundedLoss]] = MappingProxyType(
    {kind.__name__: kind for kind in (*LOSSES.values(), LossRange, UnboundedLoss, NormalNLL)}
)
"""Losses that come back from their settings, by the names of their classes."""


def premises_record(premises: Premises) -> JsonTable:
    """Write premises as numbers, words, lists and dicts.

    Args:
        premises: of a certificate.

    Returns:
        Its fields; a loss of the caller's own is its name and range, an epsilon of a simulation is called so.
    """
    prior, simulated = asdict(premises.prior), premises.prior.simulated
    del prior["simulated"]  # the name of its epsilon says so
    own = {field.name: getattr(premises, field.name) for field in fields(Premises)}
    own |= {"prior": renamed(_plain_all(prior), simulated), "loss": _plain_all(_loss_record(premises.loss))}
    return _plain_all(own)


def renamed(entries: JsonMapping, simulated: bool, back: bool = False) -> JsonTable:
    """Call an epsilon what it is where its noise came from a seed, or take that name back.

    Args:
        entries: by name.
        simulated: whether the noise came from a seed.
        back: take the name back.

    Returns:
        The same entries, that one under its other name.
    """
    names = (SIMULATED_EPSILON, "epsilon") if back else ("epsilon", SIMULATED_EPSILON)
    return {names[1] if simulated and key == names[0] else str(key): value for key, value in entries.items()}


def plain(value: Any) -> Any:
    """Write a number of any library, or several as lists; what is none stays as it is."""
    return value.tolist() if isinstance(value, Tensor | np.generic) else value


def _plain_all(entries: JsonMapping) -> JsonTable:
    return {name: plain(value) for name, value in entries.items()}


def _loss_record(loss: BoundedLoss) -> JsonTable:
    if KINDS.get(type(loss).__name__) is type(loss) and is_dataclass(loss):
        return {"kind": type(loss).__name__, **{field.name: getattr(loss, field.name) for field in fields(loss)}}
    return {"kind": "LossRange", "name": loss.name, "low": loss.low, "high": loss.high, "convex": loss.convex}
