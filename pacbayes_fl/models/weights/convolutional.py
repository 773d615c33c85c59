"""Bayesian convolutional networks of images, all clients at once by grouped convolution."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from copy import copy
from itertools import pairwise
from types import MappingProxyType
from typing import ClassVar, NamedTuple, Self

import torch
from torch import Tensor
from torch.nn.functional import conv2d, max_pool2d, pad

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import ShapeError, StudyError
from pacbayes_fl.models.base import default
from pacbayes_fl.models.likelihoods import Likelihood
from pacbayes_fl.models.weights.bayesian_network import BayesianNetwork, Weights
from pacbayes_fl.models.weights.layers import LayerTrace, Traces, fully_connected

EPSILON = 1e-5
"""Added to the variance by which a channel is normalised, in its squared units."""

ImageShape = tuple[int, int, int]
"""Channels, height and width."""


class Moments(NamedTuple):
    """Statistics of every channel over a client's real rows and all pixels.

    Args:
        mean: [K, C].
        variance: divided by the number of values, not by one less [K, C].
    """

    mean: Tensor
    variance: Tensor


def moments(x: Tensor, mask: Tensor) -> Moments:
    """Take the statistics of a layer; both are 0 for a client without rows.

    Args:
        x: values [N, K, C, H, W].
        mask: real rows [K, N], bool.

    Returns:
        One mean and variance per client and channel [K, C].
    """
    real = mask.mT.to(x.dtype).unsqueeze(-1)
    count = (real.sum(0) * x.shape[-2:].numel()).clamp_min(1.0)
    mean = (real * x.sum((-2, -1))).sum(0) / count
    squares = (x - mean[..., None, None]).square().sum((-2, -1))
    return Moments(mean, (real * squares).sum(0) / count)


def normalised(x: Tensor, statistics: Moments, scale: Tensor, shift: Tensor, mask: Tensor) -> Tensor:
    """Normalise every channel, then scale and shift it: gamma (x - mean) / sqrt(variance + 1e-5) + beta.

    Args:
        x: values [N, K, C, H, W].
        statistics: mean and variance [K, C].
        scale: gamma [K, C].
        shift: beta [K, C].
        mask: real rows [K, N], bool; padding becomes 0.

    Returns:
        [N, K, C, H, W].
    """
    slope = scale * (statistics.variance + EPSILON).rsqrt()
    offset = shift - slope * statistics.mean
    # Padding has no say in the statistics: where they are small it would grow from layer to layer until it overflows.
    real = mask.mT.to(x.dtype).unsqueeze(-1)
    return torch.addcmul((real * offset)[..., None, None], (real * slope)[..., None, None], x)


class _Statistics(NamedTuple):
    """Of some clients' rows under their weights.

    Args:
        layers: moments of every convolution.
        known: clients with rows [K], bool.
    """

    layers: list[Moments]
    known: Tensor


def convolved(x: Tensor, weight: Tensor, bias: Tensor, padding: int = 0) -> Tensor:
    """Convolve the images of every client with its own weights: one convolution in K groups of channels.

    Args:
        x: images [N, K, c, H, W].
        weight: [K, C, c, k, k].
        bias: [K, C].
        padding: pixels of zeros on every side.

    Returns:
        [N, K, C, h, w] with h = H + 2 padding - k + 1, and w alike.
    """
    out = conv2d(x.flatten(1, 2), weight.flatten(0, 1), bias.flatten(), padding=padding, groups=x.shape[1])
    return out.view(len(x), *bias.shape, *out.shape[2:])


def halved(x: Tensor) -> Tensor:
    """Keep the largest of every 2 x 2 pixels.

    Args:
        x: images [N, K, C, H, W].

    Returns:
        [N, K, C, h, w] with h = H // 2 and w = W // 2.
    """
    out = max_pool2d(x.flatten(1, 2), 2)
    return out.view(*x.shape[:3], *out.shape[2:])


class ImageNetwork(BayesianNetwork):
    """Convolutions, then fully connected ReLU layers.

    Args:
        input_shape: channels, height and width of an image.
        kernels: shapes [C, c, k, k] of the convolutions.
        head: numbers of units from the flattened features to the last hidden layer.
        likelihood: of the targets given the outputs.
        dtype: of the weights.
    """

    def __init__(
        self,
        input_shape: ImageShape,
        kernels: tuple[tuple[int, ...], ...],
        head: tuple[int, ...],
        likelihood: Likelihood,
        dtype: torch.dtype,
    ) -> None:
        """Name the weights of every layer."""
        super().__init__(likelihood, dtype)
        self.input_shape, self.kernels = input_shape, kernels
        self.head = (*head, likelihood.outputs)

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Convolutions conv_0 [C, c, k, k], conv_bias_0 [C], ...; then weight_0 [in, out], bias_0 [out], ..."""
        shapes: dict[str, tuple[int, ...]] = {}
        for layer, kernel in enumerate(self.kernels):
            shapes |= {f"conv_{layer}": kernel, f"conv_bias_{layer}": kernel[:1]} | self._own_shapes(layer)
        for layer, (n_in, n_out) in enumerate(pairwise(self.head)):
            shapes |= {f"weight_{layer}": (n_in, n_out), f"bias_{layer}": (n_out,)}
        return MappingProxyType(shapes)

    def footprint(self, rows: int) -> int:
        """Numbers per client: the activations of the first convolution outweigh the weights."""
        _, height, width = self.input_shape
        return max(self.dim, rows * self.kernels[0][0] * height * width)

    def forward(
        self,
        weights: Weights,
        rows: ClientBatch,
        reference: ClientBatch | None = None,
        traces: Traces | None = None,
    ) -> Tensor:
        """Apply the networks; see `BayesianNetwork.forward`.

        Args:
            weights: [K, *shape] by site.
            rows: images [K, N, channels, H, W], or flattened in that order [K, N, d].
            reference: rows whose statistics normalise; the rows themselves when None.
            traces: where layers are to be recorded; nowhere when None.

        Returns:
            Outputs [K, N, C].

        Raises:
            ShapeError: for images of another shape.
        """
        x = self.features(weights, rows, reference, traces).flatten(2).transpose(0, 1)
        return fully_connected(x, weights, len(self.head) - 1, traces)

    @abstractmethod
    def features(
        self, weights: Weights, rows: ClientBatch, reference: ClientBatch | None, traces: Traces | None
    ) -> Tensor:
        """Apply the convolutions; arguments as in `forward`.

        Args:
            weights: [K, *shape] by site.
            rows: images [K, N, channels, H, W], or flattened in that order [K, N, d].
            reference: rows whose statistics normalise; the rows themselves when None.
            traces: where layers are to be recorded; nowhere when None.

        Returns:
            [N, K, C, H, W] of the last convolution.
        """

    def convolution(self, x: Tensor, weights: Weights, layer: int, traces: Traces | None, padding: int = 0) -> Tensor:
        """Apply one convolution, and record it.

        Args:
            x: images [N, K, c, H, W].
            weights: [K, *shape] by site.
            layer: its number.
            traces: where it is to be recorded; nowhere when None.
            padding: pixels of zeros on every side.

        Returns:
            [N, K, C, h, w].
        """
        weight, bias = f"conv_{layer}", f"conv_bias_{layer}"
        out = convolved(x, weights[weight], weights[bias], padding)
        if traces is not None:
            traces.append(LayerTrace(weight, bias, x, out, padding))
        return out

    def images(self, rows: ClientBatch) -> Tensor:
        """Bring the inputs to the layout of grouped convolution.

        Args:
            rows: images [K, N, channels, H, W], or flattened in that order [K, N, d].

        Returns:
            [N, K, channels, H, W], in the dtype of the weights.

        Raises:
            ShapeError: for images of another shape.
        """
        expected, got = torch.Size(self.input_shape), rows.x.shape[2:]
        if got not in (expected, (expected.numel(),)):
            raise ShapeError(
                f"x must hold images {list(expected)} or {expected.numel()} features, got {list(got)}",
                client=rows.names[0],
                hint="input_shape is (channels, height, width)",
            )
        return rows.x.to(self.dtype).transpose(0, 1).reshape(*rows.mask.mT.shape, *expected)

    @default
    def _own_shapes(self, layer: int) -> dict[str, tuple[int, ...]]:
        """Further sites of a convolution."""
        return {}


class PooledNetwork(ImageNetwork):
    """Convolutions of 5x5 without padding, each with ReLU and 2x2 max pooling, then fully connected ReLU layers.

    Args:
        input_shape: channels, height and width of an image, no side under 16 pixels.
        channels: of the two convolutions.
        hidden: units of the fully connected layers.
        likelihood: of the targets given the outputs.
        dtype: of the weights.

    Raises:
        StudyError: for images too small to leave a pixel.
    """

    def __init__(
        self,
        input_shape: ImageShape,
        channels: tuple[int, int],
        hidden: tuple[int, ...],
        likelihood: Likelihood,
        dtype: torch.dtype,
    ) -> None:
        """Name the weights of every layer."""
        colours, *sides = input_shape
        if colours < 1 or min(sides) < 16:
            raise StudyError(f"input_shape must be (channels, height, width) from (1, 16, 16), got {input_shape}")
        height, width = (((side - 4) // 2 - 4) // 2 for side in sides)
        first, second = channels
        kernels = ((first, colours, 5, 5), (second, first, 5, 5))
        super().__init__(input_shape, kernels, (second * height * width, *hidden), likelihood, dtype)

    def features(
        self, weights: Weights, rows: ClientBatch, reference: ClientBatch | None, traces: Traces | None
    ) -> Tensor:
        """Apply the convolutions [N, K, C, H, W]; see `ImageNetwork.features`. `reference` is not used."""
        x = self.images(rows)
        for layer in range(len(self.kernels)):
            # The largest of some values, then its ReLU: the ReLUs' largest at a quarter of the work.
            x = torch.relu(halved(self.convolution(x, weights, layer, traces)))
        return x


class BayesianCNN(PooledNetwork):
    """LeNet-5 with ReLU and max pooling: conv 5x5 to 6, pool, conv 5x5 to 16, pool, 120, 84, C.

    3 x 32 x 32 images of 10 classes give the papers' 62,006 weights.

    Args:
        input_shape: channels, height and width of an image, no side under 16 pixels.
        likelihood: of the targets given the outputs.
        dtype: of the weights.

    Raises:
        StudyError: for images too small to leave a pixel.

    Example:
        >>> from pacbayes_fl import BayesianCNN, Categorical
        >>> BayesianCNN((3, 32, 32), Categorical(10)).dim
        62006
        >>> BayesianCNN((1, 28, 28), Categorical(10)).dim
        44426
    """

    def __init__(self, input_shape: ImageShape, likelihood: Likelihood, dtype: torch.dtype = torch.float32) -> None:
        """Name the weights of every layer."""
        super().__init__(input_shape, (6, 16), (120, 84), likelihood, dtype)


class BayesianFedAvgCNN(PooledNetwork):
    """The CNN of FedAvg (McMahan et al. 2017) without padding: conv 5x5 to 32, pool, conv 5x5 to 64, pool, 512, C.

    1 x 28 x 28 images of 10 classes give 582,026 weights: the network of PAC-PFL's image experiments, which the paper
    takes from Zhang et al. (2023) and their library PFLlib.

    Args:
        input_shape: channels, height and width of an image, no side under 16 pixels.
        likelihood: of the targets given the outputs.
        dtype: of the weights.

    Raises:
        StudyError: for images too small to leave a pixel.

    Example:
        >>> from pacbayes_fl import BayesianFedAvgCNN, Categorical
        >>> BayesianFedAvgCNN((1, 28, 28), Categorical(10)).dim
        582026
    """

    def __init__(self, input_shape: ImageShape, likelihood: Likelihood, dtype: torch.dtype = torch.float32) -> None:
        """Name the weights of every layer."""
        super().__init__(input_shape, (32, 64), (512,), likelihood, dtype)


class BayesianVGG(ImageNetwork):
    """Small VGG: 16, 32, 64, 128, 128 channels of 3x3 convolution, batch norm, ReLU and pooling, then 128, 128, C.

    3 x 32 x 32 images of 10 classes give the papers' 280,074 parameters. The papers leave open how batch norm becomes
    Bayesian. Here its statistics are local: never sent nor averaged; in training those of the minibatch's real rows,
    client by client, in prediction those of the client's training rows under the same draw of the weights. Its scale
    and shift are `deterministic`: sites gamma_i and beta_i are learned and sent as numbers without uncertainty. A
    client without training rows is normalised by the rows to be predicted, so there, and only there, a prediction
    depends on the other rows. The convolutions' biases are kept for the papers' count: normalisation takes them out,
    so that nothing but the prior moves them.

    Args:
        input_shape: channels, height and width of an image; a side under 32 pixels is filled up with zeros.
        likelihood: of the targets given the outputs.
        dtype: of the weights.

    Raises:
        StudyError: for images without pixels.

    Example:
        >>> from pacbayes_fl import BayesianVGG, Categorical
        >>> network = BayesianVGG((3, 32, 32), Categorical(10))
        >>> network.dim, int(network.stochastic_columns().sum())  # scales and shifts have no uncertainty
        (280074, 279338)
    """

    row_by_row: ClassVar[bool] = False
    _statistics: _Statistics | None = None

    def __init__(self, input_shape: ImageShape, likelihood: Likelihood, dtype: torch.dtype = torch.float32) -> None:
        """Name the weights of every layer."""
        channels, *sides = input_shape
        if min(input_shape) < 1:
            raise StudyError(f"input_shape must be (channels, height, width) from (1, 1, 1), got {input_shape}")
        height, width = (max(side, 32) // 32 for side in sides)
        kernels = tuple((n_out, n_in, 3, 3) for n_in, n_out in pairwise((channels, 16, 32, 64, 128, 128)))
        super().__init__(input_shape, kernels, (128 * height * width, 128, 128), likelihood, dtype)
        self.deterministic = frozenset(name for layer in range(len(kernels)) for name in self._own_shapes(layer))

    def centre(self) -> Tensor:
        """Centre of the initial means [D]: 1 for the scales gamma_i of the batch norms, else 0."""
        centre = torch.zeros(self.dim, dtype=self.dtype)
        for layer in range(len(self.kernels)):
            centre[self.span(f"gamma_{layer}")] = 1.0
        return centre

    def features(
        self, weights: Weights, rows: ClientBatch, reference: ClientBatch | None, traces: Traces | None
    ) -> Tensor:
        """Apply the convolutions [N, K, C, H, W]; see `ImageNetwork.features`. Known statistics are constants."""
        statistics = self._statistics
        if statistics is None and reference is not None:
            statistics = self._taken(weights, reference)
        return self._normalising(weights, rows, traces, statistics)[0]

    def with_statistics(self, weights: Tensor, reference: ClientBatch) -> Self:
        """Take the statistics of the training rows once; see `WeightModel.with_statistics`.

        Args:
            weights: flat [K, D].
            reference: the clients' training rows.

        Returns:
            A network that normalises by them.
        """
        result = copy(self)
        result._statistics = self._taken(self.unflatten(weights), reference)
        return result

    def _taken(self, weights: Weights, reference: ClientBatch) -> _Statistics:
        with torch.no_grad():
            return _Statistics(self._normalising(weights, reference, None)[1], reference.mask.any(1))

    def _normalising(
        self, weights: Weights, rows: ClientBatch, traces: Traces | None, statistics: _Statistics | None = None
    ) -> tuple[Tensor, list[Moments]]:
        """Apply the convolutions with the rows' own statistics, or known ones for clients that have them."""
        x, used = self._enlarged(self.images(rows)), []
        for layer in range(len(self.kernels)):
            x = self.convolution(x, weights, layer, traces, padding=1)
            own = moments(x, rows.mask)
            if statistics is not None:
                pairs = zip(statistics.layers[layer], own, strict=True)
                own = Moments(*(torch.where(statistics.known[:, None], there, here.detach()) for there, here in pairs))
            used.append(own)
            x = normalised(x, own, weights[f"gamma_{layer}"], weights[f"beta_{layer}"], rows.mask)
            x = torch.relu(halved(x))
        return x, used

    def _enlarged(self, x: Tensor) -> Tensor:
        """Put images into the middle of ones of 32 x 32 pixels."""
        height, width = (max(0, 32 - side) for side in self.input_shape[1:])
        return pad(x, (width // 2, width - width // 2, height // 2, height - height // 2))

    def _own_shapes(self, layer: int) -> dict[str, tuple[int, ...]]:
        """Scale and shift of the batch norm."""
        channels = self.kernels[layer][:1]
        return {f"gamma_{layer}": channels, f"beta_{layer}": channels}
