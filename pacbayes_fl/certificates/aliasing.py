"""Posteriors that are their own priors: of one object, or of storage that the training of one writes for both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import FunctionType, ModuleType

import numpy as np
import torch
from torch import Tensor, nn

from pacbayes_fl.errors import AssumptionError

_DEEP = 4  # containers in containers that are looked into


def require_apart(model: object, prior: object, kl: object, weights: object) -> None:
    """Refuse a prior that changed whenever the posterior did: the divergence is that of the posterior from itself.

    `prior.fit` gives the same estimator again, `state_dict` and `copy.copy` give the same storage. What both share and
    nobody trains has no slope, such as frozen layers.

    Args:
        model: the posterior.
        prior: of the same kind; None, a number or a word is apart.
        kl: in nats, which has no use for the prior, or a function of model and prior.
        weights: of a list of predictors.

    Raises:
        AssumptionError: when both are one, saying how they are kept apart.
    """
    if prior is None or isinstance(prior, str) or (kl is not None and not callable(kl)):
        return
    keep = "copy.deepcopy(prior) before the posterior is trained; leave the prior out where kl has no use for it"
    if prior is model:
        what = "posterior and prior must be two, got one object, which is no prior once it has been trained"
        raise AssumptionError(what, hint=keep)
    if type(model).__module__.split(".")[0] == "laplace":  # which keeps the mean of its fit, on one network or two
        return
    if weights is not None:
        if _storages(weights, every=True) & _storages(prior, every=True) and len(set(np.asarray(weights).tolist())) > 1:
            what = "weights and prior must be two arrays, got one: what has changed the weights has changed the prior"
            raise AssumptionError(what, hint="prior=weights.copy() before they are changed")
        return
    if shared := _storages(model, every=False) & _storages(prior, every=True):
        what = f"posterior and prior must not share what is trained, got {len(shared)} parameter(s) of both"
        hint = f"{keep}; requires_grad_(False) of layers that both share and nobody trains"
        raise AssumptionError(f"{what}, as of state_dict() or copy.copy", hint=hint)


def _storages(thing: object, every: bool) -> set[int]:
    """Addresses of the tensors and arrays in a thing: of all, or of those with slopes."""
    return {at for at, trained in _tensors(thing, _DEEP) if (every or trained) and at}


def _tensors(thing: object, deep: int) -> Iterator[tuple[int, bool]]:
    """Yield the address of every tensor or array in a thing, and whether it has slopes."""
    if isinstance(thing, nn.Module):
        for each in (*thing.parameters(), *thing.buffers()):
            yield from _tensors(each, deep)
    elif isinstance(thing, Tensor):
        if thing.layout == torch.strided:
            yield thing.untyped_storage().data_ptr(), thing.requires_grad
    elif isinstance(thing, np.ndarray):
        yield thing.__array_interface__["data"][0], False
    elif deep and not isinstance(thing, type | ModuleType | FunctionType):
        inside = thing.values() if isinstance(thing, Mapping) else thing if isinstance(thing, list | tuple) else ()
        for each in (*inside, *vars(thing).values()) if hasattr(thing, "__dict__") else inside:
            yield from _tensors(each, deep - 1)
