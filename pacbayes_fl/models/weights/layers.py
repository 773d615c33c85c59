"""Layers of a network, all clients at once, and the record of each layer's inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping
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
