"""Optimisers as functions on trees, batched over clients.

Adam is elementwise, so a batched Adam equals one per client but for its step count: here that is per client.
"""

from __future__ import annotations

from typing import Generic, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from pacbayes_fl.tensors import leaves, tree_map, where

Tree = TypeVar("Tree")
Optimiser = Literal["adam", "sgd"]


class Adam(NamedTuple, Generic[Tree]):
    """Moments of Adam (Kingma and Ba 2015, Algorithm 1) and the number of steps taken."""

    first: Tree
    second: Tree
    steps: Tensor  # [] for a server, [K] for clients, int64


def _like(count: Tensor, leaf: Tensor) -> Tensor:
    return count.view(count.shape + (1,) * (leaf.dim() - count.dim()))


def adam_init(parameters: Tree, clients: int | None = None) -> Adam[Tree]:
    """Begin Adam at zero moments.

    Args:
        parameters: leaves [*] of a server or [K, *] of clients.
        clients: K when every client counts its own steps, None for a server.

    Returns:
        The state before the first step.
    """
    device = next(iter(leaves(parameters).values())).device
    steps = torch.zeros(() if clients is None else (clients,), dtype=torch.int64, device=device)
    return Adam(tree_map(torch.zeros_like, parameters), tree_map(torch.zeros_like, parameters), steps)


def adam(
    parameters: Tree,
    gradient: Tree,
    state: Adam[Tree],
    rate: float,
    betas: tuple[float, float] = (0.9, 0.999),
    epsilon: float = 1e-8,
) -> tuple[Tree, Adam[Tree]]:
    """Take one Adam step downhill (Kingma and Ba 2015, Algorithm 1).

    Args:
        parameters: leaves [*] or [K, *].
        gradient: of the loss to be lowered, the same leaves.
        state: of `adam_init` or of the last step.
        rate: learning rate.
        betas: decay of the two moments.
        epsilon: added to the root of the second moment.

    Returns:
        New parameters and new state; the inputs are left as they are.
    """
    steps = state.steps + 1
    first = tree_map(lambda m, g: betas[0] * m + (1 - betas[0]) * g, state.first, gradient)
    second = tree_map(lambda v, g: betas[1] * v + (1 - betas[1]) * g.square(), state.second, gradient)

    def step(leaf: Tensor, m: Tensor, v: Tensor) -> Tensor:
        count = _like(steps, leaf).double()  # 1 - 0.999 in float32 is off by 5e-5
        first_share, second_share = ((1 - beta**count).to(leaf.dtype) for beta in betas)
        return leaf - rate * (m / first_share) / ((v / second_share).sqrt() + epsilon)

    return tree_map(step, parameters, first, second), Adam(first, second, steps)


def adam_(
    parameters: Tree,
    gradient: Tree,
    state: Adam[Tree],
    rate: float,
    betas: tuple[float, float] = (0.9, 0.999),
    epsilon: float = 1e-8,
) -> Adam[Tree]:
    """Take one Adam step downhill in place: `adam` for a hot loop that owns its parameters and moments.

    Args:
        parameters: leaves [K, *]; overwritten.
        gradient: of the loss to be lowered, the same leaves.
        state: moments, overwritten, and steps [K], left as they are.
        rate: learning rate.
        betas: decay of the two moments.
        epsilon: added to the root of the second moment.

    Returns:
        The state after the step; its moments are the ones given.
    """
    steps = state.steps + 1
    first_share, second_share = (1 - beta ** steps.double() for beta in betas)
    scale = first_share / second_share.sqrt() / rate  # step = m / (sqrt(v) * scale + shift)
    shift = first_share * (epsilon / rate)

    def step(leaf: Tensor, g: Tensor, m: Tensor, v: Tensor) -> Tensor:
        m.lerp_(g, 1 - betas[0])
        v.mul_(betas[1]).addcmul_(g, g, value=1 - betas[1])
        below = v.sqrt().mul_(_like(scale, leaf).to(leaf.dtype)).add_(_like(shift, leaf).to(leaf.dtype))
        return leaf.addcdiv_(m, below, value=-1.0)

    tree_map(step, parameters, gradient, state.first, state.second)
    return Adam(state.first, state.second, steps)


def step_(
    parameters: Tree,
    gradient: Tree,
    state: Adam[Tree],
    rate: float,
    optimiser: Optimiser = "adam",
    active: Tensor | None = None,
) -> Adam[Tree]:
    """Take one step downhill in place, by Adam or plainly, theta <- theta - rate g; steps are counted by both.

    Args:
        parameters: leaves [K, *]; overwritten.
        gradient: of the loss to be lowered, the same leaves.
        state: moments, overwritten by Adam and left by "sgd", and steps [K], left as they are.
        rate: learning rate.
        optimiser: "adam" or "sgd".
        active: bool [K], True for clients that take the step; the others, their moments and counts stay; all when None.

    Returns:
        The state after the step.
    """
    if active is not None:
        before, moments = tree_map(torch.clone, parameters), tree_map(torch.clone, state)
        after = step_(parameters, gradient, state, rate, optimiser)
        tree_map(Tensor.copy_, parameters, where(active, parameters, before))
        tree_map(Tensor.copy_, after, where(active, after, moments))
        return after
    if optimiser == "adam":
        return adam_(parameters, gradient, state, rate)
    tree_map(lambda leaf, g: leaf.sub_(g, alpha=rate), parameters, gradient)
    return state._replace(steps=state.steps + 1)


def sgd(parameters: Tree, gradient: Tree, rate: float) -> Tree:
    """Take one plain step downhill.

    Args:
        parameters: leaves [*] or [K, *].
        gradient: of the loss to be lowered, the same leaves.
        rate: learning rate.

    Returns:
        New parameters.

    Example:
        >>> import torch
        >>> from pacbayes_fl.inference.optim import sgd
        >>> sgd(torch.ones(2), torch.ones(2), rate=0.5).tolist()
        [0.5, 0.5]
    """
    return tree_map(lambda leaf, g: leaf - rate * g, parameters, gradient)
