"""Fully connected layers of many clients: `torch.nn`, client by client, and what is recorded on the way."""

from __future__ import annotations

import pytest
import torch

from pacbayes_fl.models.likelihoods import Categorical
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP
from pacbayes_fl.models.weights.layers import Traces, fully_connected
from tests.laplace import randn, torch_module

K, N = 3, 5


@pytest.mark.parametrize("sizes", [(4, 3), (4, 6, 3), (4, 6, 5, 3)], ids=str)
def test_the_layers_are_torch_s_with_a_relu_between(sizes: tuple[int, ...]) -> None:
    model = BayesianMLP(sizes, Categorical(3), torch.float64)
    x, theta = randn(1, K, N, 4), randn(2, K, model.dim)
    out = fully_connected(x, model.unflatten(theta), len(sizes) - 1)
    for k in range(K):
        torch.testing.assert_close(out[k], torch_module(model, theta[k])(x[k]).detach(), rtol=1e-12, atol=1e-13)


def test_a_record_says_what_went_in_and_what_came_out_before_the_nonlinearity() -> None:
    model = BayesianMLP((4, 6, 3), Categorical(3), torch.float64)
    x, weights, traces = randn(1, K, N, 4), model.unflatten(randn(2, K, model.dim)), Traces()
    out = fully_connected(x, weights, 2, traces)
    assert torch.equal(out, fully_connected(x, weights, 2))
    assert [(trace.weight, trace.bias, trace.padding) for trace in traces] == [
        ("weight_0", "bias_0", 0),
        ("weight_1", "bias_1", 0),
    ]
    for trace in traces:
        linear = torch.einsum("kni,kio->kno", trace.input, weights[trace.weight]) + weights[trace.bias][:, None]
        torch.testing.assert_close(trace.output, linear, rtol=1e-12, atol=1e-13)
    assert torch.equal(traces[0].input, x) and traces[1].output is out
    assert torch.equal(traces[1].input, traces[0].output.relu()) and (traces[0].output < 0).any()
