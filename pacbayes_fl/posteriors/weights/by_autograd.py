"""Families without written-out slopes: automatic differentiation through their draws and their KL divergence."""

from __future__ import annotations

from typing import NamedTuple, NoReturn

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.errors import StudyError
from pacbayes_fl.models.base import WeightModel
from pacbayes_fl.tensors import AnyTree


class ByAutograd:
    """Gradients by autograd for a family that defines only its draws and its KL divergence.

    A child is a NamedTuple of unconstrained parameters, leaves [K, *] or [*], with `draw`, `weights`, `mean` and `kl`
    as `WeightDistribution` has them. Its weights depend on each other across the sites of a model, so that no site has
    a distribution of its own, and a Pyro program is asked for its log likelihood at given weights.
    """

    __slots__ = ()

    def precompute(self) -> Differentiated:
        """The family itself: nothing is computed beforehand."""
        return Differentiated(self)

    def site(self, span: slice, shape: tuple[int, ...], draw: AnyTree) -> NoReturn:
        """Refuse to cut the weights into independent sites."""
        what = f"the weights of a {type(self).__name__} depend on each other: a site of a model has no part of its own"
        raise StudyError(what, hint="draw all weights at once, by `weights`")


def check_uncertain(model: WeightModel, name: str) -> None:
    """Ask that all weights of a model are uncertain.

    Args:
        model: the likelihood.
        name: of the family.

    Raises:
        StudyError: when some sites are deterministic parameters, since not only scales depend on them.
    """
    if model.deterministic:
        what = f"{name} makes all weights uncertain, and {', '.join(sorted(model.deterministic))} are numbers"
        raise StudyError(what, hint="take the mean field for a network with such weights")


class Differentiated(NamedTuple):
    """A family with its slopes by automatic differentiation, the definition that written-out slopes are held to.

    Args:
        family: a `ByAutograd`, leaves [K, *].
    """

    family: AnyTree

    def weights(self, draw: AnyTree) -> Tensor:
        """Weights theta [K, D] of a draw, without a graph."""
        theta: Tensor = self.family.weights(draw)
        return theta.detach()

    def vjp(self, draw: AnyTree, grad_weights: Tensor) -> AnyTree:
        """Gradient by the parameters, from the gradient grad_weights [K, D] by the weights of a draw."""
        leaf = _leaf(self.family)
        with torch.enable_grad():
            theta = leaf.weights(draw)
        return _slopes(theta, leaf, grad_weights)

    def kl(self, prior: Differentiated) -> Tensor:
        """KL(self || prior) [K], in nats, without a graph."""
        with torch.no_grad():
            value: Tensor = self.family.kl(prior.family)
        return value

    def kl_gradient(self, prior: Differentiated) -> AnyTree:
        """Gradient of KL(self || prior) by the parameters of self, leaves [K, *].

        That of KL(self || self), which is 0 but for rounding, is taken off: the rest is exactly 0 at self = prior,
        where Adam would turn what rounding leaves into whole steps.
        """
        q, w = self._alike(prior)
        return _difference(_by_first(q, w), _by_first(q, q))

    def kl_gradient_wrt_prior(self, prior: Differentiated) -> AnyTree:
        """Gradient of KL(self || prior) by the parameters of the prior, client by client: leaves [K, *].

        That of KL(prior || prior), by its second argument, is taken off, as in `kl_gradient`.
        """
        q, w = self._alike(prior)
        return _difference(_by_second(q, w), _by_second(w, w))

    def _alike(self, prior: Differentiated) -> tuple[AnyTree, AnyTree]:
        """Both families with leaves [K, *] in one layout: a view's numbers may differ in their last bit."""
        own, other = tensors.leaves(self.family), tensors.leaves(prior.family)
        shared = any(other[name].dim() < leaf.dim() for name, leaf in own.items())
        clients = len(next(iter(own.values())))
        w = tensors.expand(prior.family, clients) if shared else prior.family
        q, w = (tensors.tree_map(lambda leaf: leaf.detach().contiguous(), family) for family in (self.family, w))
        return q, w


def _by_first(q: AnyTree, w: AnyTree) -> AnyTree:
    leaf = _leaf(q)
    with torch.enable_grad():
        kl = leaf.kl(w)
    return _slopes(kl, leaf, torch.ones_like(kl))


def _by_second(q: AnyTree, w: AnyTree) -> AnyTree:
    leaf = _leaf(w)
    with torch.enable_grad():
        kl = q.kl(leaf)
    return _slopes(kl, leaf, torch.ones_like(kl))


def _difference(slopes: AnyTree, rounding: AnyTree) -> AnyTree:
    return tensors.tree_map(torch.sub, slopes, rounding)


def _leaf(family: AnyTree) -> AnyTree:
    return tensors.tree_map(lambda parameter: parameter.detach().requires_grad_(True), family)


def _slopes(value: Tensor, leaf: AnyTree, grad_value: Tensor) -> AnyTree:
    """Gradients of a value by a tree, of its own memory: callers add to them in place."""
    if not value.requires_grad:
        return tensors.tree_map(torch.zeros_like, leaf)
    flat = list(tensors.leaves(leaf).values())
    result = iter(torch.autograd.grad(value, flat, grad_value, allow_unused=True, materialize_grads=True))
    return tensors.tree_map(lambda _: next(result).clone(memory_format=torch.contiguous_format), leaf)
