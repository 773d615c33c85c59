"""Jacobians of a network's outputs by its weights, held as factors of its layers.

An entry for a weight of a linear layer is the layer's input times the output's sensitivity to the unit behind the
weight, df_c / dw_io = a_i g_co: what takes N C D numbers in full is held in N I + N C U of them, I inputs and U units
of all layers. The few weights of convolutions, each used at many pixels, are held entry by entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import pyro
import torch
from pyro.distributions import Categorical, Normal, TorchDistribution
from torch import Tensor
from torch.nn.functional import unfold

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import StudyError
from pacbayes_fl.models.base import WeightModel
from pacbayes_fl.models.weights.bayesian_network import BayesianNetwork
from pacbayes_fl.models.weights.layers import LayerTrace, Traces


class Jacobian(Protocol):
    """Derivatives of C outputs of every row by D weights."""

    def columns(self, index: Tensor) -> Tensor:
        """Entries [K, N, C, B] for some weights of every client, index [K, B]."""

    def combined(self, factor: Tensor) -> Jacobian:
        """Jacobian of the combinations factor' f of the outputs, for factor [K, N, C, R]."""

    def squares(self) -> Tensor:
        """Squares of all entries, summed over rows and outputs [K, D]."""

    def spread(self, variance: Tensor) -> Tensor:
        """Covariance J diag(v) J' [K, N, C, C] of the outputs, v the weights' variance [K, D]."""

    def moved(self, step: Tensor) -> Tensor:
        """Change J v [K, N, C] of the outputs for a step v of the weights, step [K, D]."""

    def numel(self) -> int:
        """Numbers that are held."""


class _Block(NamedTuple):
    """A linear layer: columns of its weights and biases, and where its inputs and units stand among all layers'."""

    weight: slice
    bias: slice
    inputs: slice
    units: slice


class Layout(NamedTuple):
    """Which factors belong to which column of a Jacobian.

    Args:
        blocks: the linear layers.
        linear: whether every weight is one of a linear layer.
        input_of: position of a linear layer's input [D]; that of the constant 1 for a bias.
        unit_of: position of the unit behind a weight [D]; -1 for a weight of no linear layer.
        entry_of: position of a convolution's weight among those [D]; -1 for any other.
        columns: weight behind each entry [E].
    """

    blocks: tuple[_Block, ...]
    linear: bool
    input_of: Tensor
    unit_of: Tensor
    entry_of: Tensor
    columns: Tensor


@dataclass(frozen=True, eq=False)
class LayerJacobian:
    """A Jacobian by layer factors.

    Args:
        layout: which factor belongs to which weight.
        inputs: of all linear layers, and a last one that is 1 [K, N, I + 1].
        sensitivities: of the outputs to the units of all linear layers [K, N, C, U].
        entries: of the weights of convolutions [K, N, C, E].
    """

    layout: Layout
    inputs: Tensor
    sensitivities: Tensor
    entries: Tensor

    def columns(self, index: Tensor) -> Tensor:
        """Entries of some weights; 0 for weights of no layer.

        Args:
            index: positions of weights [K, B].

        Returns:
            [K, N, C, B].
        """
        _, rows, outputs, _ = self.sensitivities.shape
        unit, entry = self.layout.unit_of[index], self.layout.entry_of[index]
        result = _gathered(self.sensitivities, unit.clamp_min(0), rows, outputs)
        result = result * self.inputs.gather(2, _spread_rows(self.layout.input_of[index], rows)).unsqueeze(2)
        if self.layout.linear:
            return result
        result = torch.where((unit >= 0)[:, None, None, :], result, 0.0)
        if not len(self.layout.columns):
            return result
        convolved = _gathered(self.entries, entry.clamp_min(0), rows, outputs)
        return torch.where((entry >= 0)[:, None, None, :], convolved, result)

    def combined(self, factor: Tensor) -> LayerJacobian:
        """Combine the outputs.

        Args:
            factor: [K, N, C, R].

        Returns:
            The Jacobian of factor' f, with R outputs.
        """
        across = factor.mT
        return replace(self, sensitivities=across @ self.sensitivities, entries=across @ self.entries)

    def squares(self) -> Tensor:
        """Sum squares over rows and outputs: two matrix products per linear layer.

        sum_nc (a_ni g_nco)^2 = sum_n a_ni^2 sum_c g_nco^2

        Returns:
            [K, D]; 0 for weights of no layer.
        """
        out = self.inputs.new_zeros(len(self.inputs), len(self.layout.unit_of))
        by_unit, by_input = self.sensitivities.square().sum(2), self.inputs.square()
        for weight, bias, inputs, units in self.layout.blocks:
            out[:, weight] = (by_input[..., inputs].mT @ by_unit[..., units]).flatten(1)
            out[:, bias] = by_unit[..., units].sum(1)
        out[:, self.layout.columns] = self.entries.square().sum((1, 2))
        return out

    def spread(self, variance: Tensor) -> Tensor:
        """Spread independent weights to the outputs, row by row.

        Args:
            variance: of the weights [K, D].

        Returns:
            J diag(v) J' [K, N, C, C].
        """
        parts, by_input = [], self.inputs.square()
        for weight, bias, inputs, units in self.layout.blocks:
            square = variance[:, weight].unflatten(1, (inputs.stop - inputs.start, units.stop - units.start))
            parts.append(by_input[..., inputs] @ square + variance[:, None, bias])
        scaled = self.sensitivities * torch.cat(parts, -1).unsqueeze(2)
        covariance = scaled @ self.sensitivities.mT
        convolved = variance[:, self.layout.columns]
        return covariance + (self.entries * convolved[:, None, None, :]) @ self.entries.mT

    def moved(self, step: Tensor) -> Tensor:
        """Push a step of the weights to the outputs: one pass through the layers' inputs, and one to the outputs.

        Args:
            step: v [K, D].

        Returns:
            J v [K, N, C].
        """
        parts = []
        for weight, bias, inputs, units in self.layout.blocks:
            square = step[:, weight].unflatten(1, (inputs.stop - inputs.start, units.stop - units.start))
            parts.append(self.inputs[..., inputs] @ square + step[:, None, bias])
        convolved = step[:, None, self.layout.columns, None]
        result: Tensor = self.sensitivities @ torch.cat(parts, -1).unsqueeze(-1) + self.entries @ convolved
        return result.squeeze(-1)

    def numel(self) -> int:
        """Numbers of all factors."""
        return self.inputs.numel() + self.sensitivities.numel() + self.entries.numel()


@dataclass(frozen=True, eq=False)
class DenseJacobian:
    """A Jacobian entry by entry: the definition, used for programs whose layers are not known.

    Args:
        entries: [K, N, C, D].
    """

    entries: Tensor

    def columns(self, index: Tensor) -> Tensor:
        """Entries [K, N, C, B] of some weights, index [K, B]."""
        return _gathered(self.entries, index, *self.entries.shape[1:3])

    def combined(self, factor: Tensor) -> DenseJacobian:
        """Jacobian of factor' f, for factor [K, N, C, R]."""
        return DenseJacobian(factor.mT @ self.entries)

    def squares(self) -> Tensor:
        """Squares [K, D] summed over rows and outputs."""
        return self.entries.square().sum((1, 2))

    def spread(self, variance: Tensor) -> Tensor:
        """J diag(v) J' [K, N, C, C], v the weights' variance [K, D]."""
        return (self.entries * variance[:, None, None, :]) @ self.entries.mT

    def moved(self, step: Tensor) -> Tensor:
        """J v [K, N, C] of a step v of the weights, step [K, D]."""
        result: Tensor = self.entries @ step[:, None, :, None]
        return result.squeeze(-1)

    def numel(self) -> int:
        """Numbers of all entries."""
        return self.entries.numel()


class Linearised(NamedTuple):
    """A model at some weights, linear in them: f(x, theta) + J(x) (theta' - theta) (FedSI eqs. 7, 17).

    Args:
        outputs: f [K, N, C], logits or means in units of y.
        root: factor R of the likelihood's curvature at the outputs [K, N, C, C]; see `curvature_root`.
        noise: variance of targets that are numbers [K, N], in squared units of y; None for labels.
        jacobian: J.
    """

    outputs: Tensor
    root: Tensor
    noise: Tensor | None
    jacobian: Jacobian

    def weighted(self, mask: Tensor) -> Jacobian:
        """Jacobian whose squares are the generalised Gauss-Newton matrix of the negative log likelihood.

        sum_n J_n' Lambda_n J_n with Lambda = R R'; here R' J      (FedSI eqs. 6, 11)

        Args:
            mask: real rows [K, N], bool; others become 0.

        Returns:
            R' J.
        """
        return self.jacobian.combined(self.root * mask[..., None, None])


def curvature_root(observation: TorchDistribution) -> Tensor:
    """Factor R of Lambda = -d^2 ln p(y | f) / df^2 = R R'.

    Categorical with probabilities p: Lambda = diag(p) - p p', R_cr = (1[c = r] - p_c) sqrt(p_r). Normal: R = 1 / std.

    Args:
        observation: with batch shape [K, N].

    Returns:
        [K, N, C, C].

    Raises:
        StudyError: for a distribution of another kind.
    """
    if isinstance(observation, Categorical):
        probs: Tensor = observation.logits.softmax(-1)
        return (torch.diag_embed(torch.ones_like(probs)) - probs.unsqueeze(-1)) * probs.sqrt().unsqueeze(-2)
    precise: Tensor = _normal(observation).stddev.reciprocal()
    return precise[..., None, None]


def linearise(
    model: WeightModel, weights: Tensor, rows: ClientBatch, reference: ClientBatch | None = None
) -> Linearised:
    """Differentiate the outputs of every row: C passes back to the layers, or to the weights of any other program.

    Args:
        model: a network that records its layers, or any Pyro program.
        weights: flat [K, D].
        rows: inputs [K, N, *feature].
        reference: the clients' training rows, for a network that normalises by their statistics.

    Returns:
        Outputs and Jacobian, without autograd.
    """
    traces: Traces = []
    with torch.enable_grad(), pyro.validation_enabled(False):  # one client's NaN is no fault of the others
        leaf = weights.detach().requires_grad_(True)
        if isinstance(model, BayesianNetwork):
            outputs = model.forward(model.unflatten(leaf), rows, reference, traces)
            observation = model.likelihood.distribution(outputs)
        else:
            observation = model.observation(leaf, rows, reference)
            outputs = _outputs(observation)
        jacobian = _by_layers(model, outputs, traces) if traces else _by_weights(outputs, leaf)
        return _linearised(observation, outputs, jacobian)


def dense(model: WeightModel, weights: Tensor, rows: ClientBatch, reference: ClientBatch | None = None) -> Linearised:
    """Differentiate the outputs of every row entry by entry: the definition to which layer factors are held.

    Args:
        model: any.
        weights: flat [K, D].
        rows: inputs [K, N, *feature].
        reference: as in `linearise`.

    Returns:
        Outputs and Jacobian, without autograd.
    """
    with torch.enable_grad(), pyro.validation_enabled(False):
        leaf = weights.detach().requires_grad_(True)
        observation = model.observation(leaf, rows, reference)
        outputs = _outputs(observation)
        return _linearised(observation, outputs, _by_weights(outputs, leaf))


def _outputs(observation: TorchDistribution) -> Tensor:
    """Parameters of a likelihood: logits [K, N, C], as Pyro normalises them, or means [K, N, 1]."""
    result: Tensor = (
        observation.logits if isinstance(observation, Categorical) else _normal(observation).mean[..., None]
    )
    return result


def _normal(observation: TorchDistribution) -> Normal:
    if isinstance(observation, Normal):
        return observation
    got = type(observation).__name__
    raise StudyError(
        f"the Laplace approximation needs a Categorical or Normal observation, got {got}",
        hint="a variational method such as PFedBayes takes any",
    )


def _linearised(observation: TorchDistribution, outputs: Tensor, jacobian: Jacobian) -> Linearised:
    noise = None if isinstance(observation, Categorical) else _normal(observation).variance.detach()
    if noise is not None and outputs.shape[-1] > 1:
        raise StudyError(
            "the Laplace approximation takes the noise of numbers as known, and here an output decides it",
            hint="model.likelihood = 'gaussian'",
        )
    return Linearised(outputs.detach(), curvature_root(observation).detach(), noise, jacobian)


def _by_weights(outputs: Tensor, leaf: Tensor) -> DenseJacobian:
    """Differentiate row by row: clients share no weights, so one pass serves them all."""
    flat, count = outputs.flatten(1), outputs[0].numel()
    rows = [torch.autograd.grad(flat[:, i].sum(), leaf, retain_graph=i + 1 < count)[0] for i in range(count)]
    return DenseJacobian(torch.stack(rows, 1).unflatten(1, outputs.shape[1:]))


def _by_layers(model: WeightModel, outputs: Tensor, traces: Sequence[LayerTrace]) -> LayerJacobian:
    ends, count = [trace.output for trace in traces], outputs.shape[-1]
    slopes = [torch.autograd.grad(outputs[..., c].sum(), ends, retain_graph=c + 1 < count) for c in range(count)]
    by_layer = [torch.stack([slope[layer] for slope in slopes]) for layer in range(len(traces))]  # [C, ...]
    inputs, units, entries = [], [], []
    for trace, slope in zip(traces, by_layer, strict=True):
        if trace.output.dim() == 3:
            inputs.append(trace.input.detach())
            units.append(slope.permute(1, 2, 0, 3))
        else:
            entries += _convolution_entries(trace, slope)
    clients, rows = outputs.shape[:2]
    one, none = outputs.new_ones(clients, rows, 1), outputs.new_zeros(clients, rows, count, 0)
    return LayerJacobian(
        _layout(model, traces, outputs.device),
        torch.cat((*inputs, one), -1),
        torch.cat((*units, none), -1),
        torch.cat((*entries, none), -1),
    )


def _convolution_entries(trace: LayerTrace, slope: Tensor) -> list[Tensor]:
    """Sum a convolution's patches times sensitivities over its pixels: entries [K, N, C, E] of weights and biases."""
    outputs, rows, clients, channels = slope.shape[:4]
    kernel = trace.input.shape[-1] + 2 * trace.padding - slope.shape[-1] + 1
    patches = unfold(trace.input.detach().flatten(0, 1), kernel, padding=trace.padding)  # [N K, c k k, L]
    by_pixel = slope.flatten(4).permute(1, 2, 0, 3, 4).reshape(rows * clients, outputs * channels, -1)
    weight = (by_pixel @ patches.mT).view(rows, clients, outputs, -1).transpose(0, 1)
    bias = by_pixel.sum(-1).view(rows, clients, outputs, channels).transpose(0, 1)
    return [weight, bias]


def _layout(model: WeightModel, traces: Sequence[LayerTrace], device: torch.device) -> Layout:
    """Find the factors of every weight; weights of a convolution are [C, c, k, k] flat, of a linear layer [in, out]."""
    total = sum(trace.input.shape[-1] for trace in traces if trace.output.dim() == 3)
    input_of, unit_of, entry_of = (torch.full((model.dim,), fill) for fill in (0, -1, -1))
    blocks, columns, start, first = [], [torch.empty(0, dtype=torch.int64)], 0, 0
    for trace in traces:
        weight, bias = model.span(trace.weight), model.span(trace.bias)
        if trace.output.dim() != 3:
            columns += [torch.arange(span.start, span.stop) for span in (weight, bias)]
            continue
        n_in, n_out = trace.input.shape[-1], trace.output.shape[-1]
        inputs, units = torch.arange(start, start + n_in), torch.arange(first, first + n_out)
        input_of[weight], unit_of[weight] = inputs.repeat_interleave(n_out), units.repeat(n_in)
        input_of[bias], unit_of[bias] = total, units
        blocks.append(_Block(weight, bias, slice(start, start + n_in), slice(first, first + n_out)))
        start, first = start + n_in, first + n_out
    entries = torch.cat(columns)
    entry_of[entries] = torch.arange(len(entries))
    if bool((model.stochastic_columns() & (unit_of < 0) & (entry_of < 0)).any()):
        raise StudyError("the network records some of its layers only", hint="append a LayerTrace for all, or for none")
    tables = (table.to(device) for table in (input_of, unit_of, entry_of, entries))
    return Layout(tuple(blocks), bool((unit_of >= 0).all()), *tables)


def _spread_rows(index: Tensor, rows: int) -> Tensor:
    return index.unsqueeze(1).expand(-1, rows, -1)


def _gathered(table: Tensor, index: Tensor, rows: int, outputs: int) -> Tensor:
    """Take columns [K, B] of a table [K, N, C, *]."""
    return table.gather(3, index[:, None, None, :].expand(-1, rows, outputs, -1))
