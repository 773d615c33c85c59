"""Layers of a network, all clients at once, and the record of each layer's inputs and outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor


class LayerTrace(NamedTuple):
    """Inputs and outputs of one layer with weights, before the nonlinearity.

    Args:
        weight: its site of weights, [in, out] or [C, c, k, k].
        bias: its site of biases.
        input: rows [K, N, in], or images [N, K, c, H, W] of a convolution.
        output: [K, N, out], or [N, K, C, h, w].
        padding: pixels of zeros on every side of a convolution.
    """

    weight: str
    bias: str
    input: Tensor
    output: Tensor
    padding: int = 0


Traces = list[LayerTrace]


def fully_connected(x: Tensor, weights: Mapping[str, Tensor], layers: int, traces: Traces | None = None) -> Tensor:
    """Apply layers weight_0 [K, in, out], bias_0 [K, out], weight_1, ... with a ReLU between each two.

    Args:
        x: rows [K, N, in].
        weights: by site.
        layers: their number.
        traces: where each layer is to be recorded; nowhere when None.

    Returns:
        [K, N, out] of the last layer.
    """
    for layer in range(layers):
        x = torch.relu(x) if layer else x
        weight, bias = f"weight_{layer}", f"bias_{layer}"
        out = torch.baddbmm(weights[bias].unsqueeze(-2), x, weights[weight])
        if traces is not None:
            traces.append(LayerTrace(weight, bias, x, out))
        x = out
    return x


def fully_connected_by_row(
    x: Tensor, loc: Mapping[str, Tensor], scale: Mapping[str, Tensor], layers: int
) -> Callable[[Callable[[Tensor], Tensor]], Tensor]:
    """Apply layers whose weights are independent normals, drawn anew for every row: local reparametrisation.

    a = x' mu + m + eps sqrt((x^2)' sigma^2 + s^2), eps ~ N(0, 1) for every row and unit

    of weights N(mu, sigma^2) and biases N(m, s^2): given its inputs, the units of a layer are independent, as no weight
    serves two of them (Kingma, Salimans and Welling 2015, eq. 6). The inputs of the first layer are always the same, so
    that what is large of a network, its first weights, is neither drawn nor multiplied again.

    Args:
        x: rows [K, N, in].
        loc: means of the weights [K, in, out] and biases [K, out], by site as in `fully_connected`.
        scale: their standard deviations.
        layers: their number.

    Returns:
        A function that takes standard normals in the shape of a tensor [K, N, *] and gives outputs [K, N, out]; each
        call of it draws anew.
    """

    def moments(layer: int, x: Tensor) -> tuple[Tensor, Tensor]:
        weight, bias = f"weight_{layer}", f"bias_{layer}"
        mean = torch.baddbmm(loc[bias].unsqueeze(-2), x, loc[weight])
        variance = torch.baddbmm(scale[bias].square().unsqueeze(-2), x.square(), scale[weight].square())
        return mean, variance.sqrt_()

    first = moments(0, x)

    def drawn(normal: Callable[[Tensor], Tensor]) -> Tensor:
        out = torch.addcmul(first[0], first[1], normal(first[0]))
        for layer in range(1, layers):
            mean, deviation = moments(layer, out.relu_())
            out = torch.addcmul(mean, deviation, normal(mean))
        return out

    return drawn
