"""Batched networks: the gradient written out is that of autograd, group by group."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from pacbayes_fl.models.functions.networks import BatchedMLP, Layers, activations, layer_gradients, shared_outputs

SIZES = pytest.mark.parametrize("sizes", [(3, 4, 5, 2), (3, 1), (1, 32, 32, 1), (2, 7, 1)], ids=str)


def networks(sizes: tuple[int, ...], batch: int, seed: int = 0) -> Layers:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(batch, *shape, generator=generator, dtype=torch.float64)

    pairs = list(pairwise(sizes))
    return Layers([draw(*pair) for pair in pairs], [draw(n_out) for _, n_out in pairs])


def definition(layers: Layers, x: Tensor, sizes: tuple[int, ...]) -> Tensor:
    named = {f"weights.{i}": weight for i, weight in enumerate(layers.weights)}
    named |= {f"biases.{i}": bias for i, bias in enumerate(layers.biases)}
    output: Tensor = functional_call(BatchedMLP(sizes), named, (x,))
    return output


def inputs(sizes: tuple[int, ...], batch: int, rows: int) -> Tensor:
    return torch.randn(batch, rows, sizes[0], generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@SIZES
def test_outputs_are_those_of_the_module(sizes: tuple[int, ...]) -> None:
    layers, x = networks(sizes, 4), inputs(sizes, 4, 6)
    kept = x.clone()
    values = activations(layers, x)
    torch.testing.assert_close(values[-1], definition(layers, x, sizes), rtol=1e-13, atol=1e-13)
    assert [value.shape[-1] for value in values] == list(sizes)
    assert torch.equal(x, kept)  # hidden layers are overwritten by their tanh, inputs are not


def test_the_module_is_a_tanh_network_with_a_linear_output() -> None:
    layers, x = networks((2, 3, 1), 1), inputs((2, 3, 1), 1, 5)
    (first, second), (first_bias, second_bias) = layers
    hidden = torch.tanh(x[0] @ first[0] + first_bias[0])
    expected = hidden @ second[0] + second_bias[0]
    torch.testing.assert_close(definition(layers, x, (2, 3, 1))[0], expected, rtol=1e-14, atol=1e-14)


@SIZES
@pytest.mark.parametrize("groups", [1, 3])
def test_gradients_are_those_of_autograd_in_every_group(sizes: tuple[int, ...], groups: int) -> None:
    layers, x = networks(sizes, 2), inputs(sizes, 2, 6)
    values = activations(layers, x)
    grad_output = torch.randn(2, 6, sizes[-1], generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    result = layer_gradients(layers, values, grad_output, groups)
    for group, rows in enumerate(torch.arange(6).chunk(groups)):
        own = Layers(*([t.clone().requires_grad_() for t in part] for part in layers))
        (definition(own, x[:, rows], sizes) * grad_output[:, rows]).sum().backward()
        for gradient, leaf in zip((*result.weights, *result.biases), (*own.weights, *own.biases), strict=True):
            assert leaf.grad is not None
            torch.testing.assert_close(gradient[:, group], leaf.grad, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("value", [0.0, 1e-9, -0.3, 2.0, 40.0, -800.0, torch.inf])
def test_tanh_is_right_to_the_last_bit_of_one(value: float) -> None:
    one, zero = torch.ones(1, 1, 1, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64)
    output = activations(Layers([value * one, one], [zero, zero]), one)[-1]
    torch.testing.assert_close(output.squeeze(), torch.tensor(value, dtype=torch.float64).tanh(), rtol=0, atol=2.3e-16)


def test_a_row_that_is_not_a_number_stays_alone() -> None:
    layers, x = networks((3, 4, 2), 2), inputs((3, 4, 2), 2, 6)
    clean = layer_gradients(layers, activations(layers, x), torch.ones(2, 6, 2, dtype=torch.float64), 3)
    x[:, 2] = torch.nan  # in the second group
    result = layer_gradients(layers, activations(layers, x), torch.ones(2, 6, 2, dtype=torch.float64), 3)
    for gradient, expected in zip(result.weights, clean.weights, strict=True):
        assert gradient[:, 1].isnan().any()
        torch.testing.assert_close(gradient[:, [0, 2]], expected[:, [0, 2]], rtol=0, atol=0)


@SIZES
@pytest.mark.parametrize(("clients", "rows"), [(1, 6), (3, 5), (4, 1)])
def test_networks_that_clients_share_give_what_copies_of_them_give(
    sizes: tuple[int, ...], clients: int, rows: int
) -> None:
    layers, x = networks(sizes, 2), inputs(sizes, clients, rows)
    kept = x.clone()
    result = shared_outputs(layers, x)
    for p in range(2):
        copies = Layers(*([t[p].repeat(clients, *[1] * (t.dim() - 1)) for t in part] for part in layers))
        torch.testing.assert_close(result[:, p], activations(copies, x)[-1], rtol=1e-13, atol=1e-13)
    assert torch.equal(x, kept) and result.is_contiguous()
