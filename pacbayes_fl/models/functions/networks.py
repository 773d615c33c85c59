"""Networks whose weights may carry any batch dimensions, and their gradient written out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn


class BatchedMLP(nn.Module):
    """Tanh network with a linear output (PAC-PFL section 8.3.2) that broadcasts over batches of weights.

    Called through `torch.func.functional_call` with weights [*, in, out] and biases [*, out], it maps inputs
    [*, N, in] to [*, N, out]. Its own parameters are placeholders of zeros: values come from theta.

    Args:
        sizes: numbers of units from the input to the output.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        """Make one weight and one bias per layer."""
        super().__init__()
        self.weights = nn.ParameterList(
            torch.zeros(n_in, n_out, dtype=torch.float64) for n_in, n_out in pairwise(sizes)
        )
        self.biases = nn.ParameterList(torch.zeros(n_out, dtype=torch.float64) for n_out in sizes[1:])

    def forward(self, x: Tensor) -> Tensor:
        """Apply the network.

        Args:
            x: inputs [*, N, in].

        Returns:
            Outputs [*, N, out].
        """
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.matmul(torch.tanh(x) if layer else x, weight) + bias.unsqueeze(-2)
        return x


class Layers(NamedTuple):
    """Weights [B, in, out] and biases [B, out] of B networks alike, layer by layer."""

    weights: Sequence[Tensor]
    biases: Sequence[Tensor]


def activations(layers: Layers, x: Tensor) -> list[Tensor]:
    """Apply B networks, one per batch entry: `BatchedMLP` without autograd, with the values for its gradient.

    Args:
        layers: the networks.
        x: inputs [B, N, in].

    Returns:
        Inputs of every layer [B, N, in], and last the outputs [B, N, out].
    """
    values = [x]
    for layer, (weight, bias) in enumerate(zip(*layers, strict=True)):
        if layer:
            _tanh_(values[-1])
        values.append(torch.baddbmm(bias.unsqueeze(-2), values[-1], weight))
    return values


def shared_outputs(layers: Layers, x: Tensor) -> Tensor:
    """Apply P networks that all clients share to every client's rows: `activations` of K * P copies, without copies.

    Args:
        layers: the networks.
        x: inputs [K, N, in].

    Returns:
        Outputs [K, P, N, out].
    """
    networks, clients = len(layers.weights[0]), len(x)
    values = x.unsqueeze(0).expand(networks, *x.shape)
    for layer, (weight, bias) in enumerate(zip(*layers, strict=True)):
        if layer:
            _tanh_(values)
        incoming, values = values, x.new_empty(networks, *x.shape[:-1], weight.shape[-1])
        for p in range(networks):
            own = weight[p].expand(clients, *weight.shape[1:])
            torch.baddbmm(bias[p].expand(clients, 1, -1), incoming[p], own, out=values[p])
    return values.transpose(0, 1).contiguous()


def layer_gradients(layers: Layers, values: Sequence[Tensor], grad_output: Tensor, groups: int) -> Layers:
    """Go back through B networks, keeping the gradients of groups of rows apart.

    Args:
        layers: the networks.
        values: of `activations`.
        grad_output: gradient by the outputs [B, groups * N, out]; the N rows of a group follow each other.
        groups: number of groups G.

    Returns:
        Gradients by weights [B, G, in, out] and biases [B, G, out].
    """
    weights: list[Tensor] = []
    biases: list[Tensor] = []
    for layer in reversed(range(len(layers.weights))):
        incoming, outgoing = (t.unflatten(1, (groups, -1)) for t in (values[layer], grad_output))  # [B, G, N, units]
        weights.insert(0, incoming.mT @ outgoing)
        biases.insert(0, outgoing.sum(-2))
        if layer:
            grad_output = grad_output @ layers.weights[layer].mT
            grad_output.addcmul_(grad_output * values[layer], values[layer], value=-1.0)  # tanh' = 1 - tanh^2
    return Layers(weights, biases)


def _tanh_(x: Tensor) -> Tensor:
    """Overwrite x with tanh x = 2 / (1 + exp(-2 x)) - 1: right to the last bit of 1, and twice as fast on a CPU."""
    return x.tanh_() if x.is_cuda else x.mul_(2.0).sigmoid_().mul_(2.0).sub_(1.0)


def by_network(values: Tensor, groups: int) -> Tensor:
    """Bring values of clients to networks.

    Args:
        values: [K, P, N, F].
        groups: clients that share a network, K where all share the P particles, else 1.

    Returns:
        Of B = K P / groups networks [B, groups * N, F].
    """
    batched: Tensor = values.unflatten(0, (-1, groups)).transpose(1, 2).flatten(2, 3).flatten(0, 1)
    return batched


def by_client(values: Tensor, particles: int, groups: int) -> Tensor:
    """Undo `by_network`.

    Args:
        values: [B, groups * N, F].
        particles: P.
        groups: clients that share a network.

    Returns:
        [K, P, N, F].
    """
    split: Tensor = values.unflatten(0, (-1, particles)).unflatten(2, (groups, -1))  # [*, P, groups, N, F]
    return split.transpose(1, 2).flatten(0, 1)
