"""A posterior over the weights of a network or of any Pyro program, and its predictions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from pyro.distributions import Categorical, Normal, TorchDistribution
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import ShapeError
from pacbayes_fl.models.base import WeightModel
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.classes import ClassMixture, average_log_probs
from pacbayes_fl.posteriors.point import PointMass
from pacbayes_fl.posteriors.predictive import NormalMixture
from pacbayes_fl.posteriors.sampled import SampledMixture
from pacbayes_fl.posteriors.weights.mean_field import MeanField
from pacbayes_fl.posteriors.weights.spike_slab import SpikeSlab

_AT_ONCE: Final = 2**16  # numbers of one call: larger ones cost more than they save
Predictive = ClassMixture | NormalMixture | SampledMixture


@dataclass(frozen=True, eq=False)
class WeightPosterior:
    """Weights of K clients, as a family that can be drawn from.

    Args:
        model: the likelihood.
        family: leaves [K, D].
        draws: S; 1 for a point mass.
        noise: the clients' streams; every prediction takes the same draws.
        reference: the clients' training rows, for a network that normalises by their statistics.
        noise_std: factor of the draws' eps; 1 but for a preset that does as a public code.
    """

    model: WeightModel
    family: Any
    draws: int
    noise: Noise
    reference: ClientBatch | None = None
    noise_std: float = 1.0

    @property
    def uncertain(self) -> bool:
        """Whether predictions differ from those at the mean weights."""
        return not isinstance(self.family, PointMass)

    def predict(self, x: Tensor) -> Predictive:
        """Average the predictive distribution over S draws of the weights.

        p(y | x) = 1/S sum_s p(y | x, theta_s)

        Args:
            x: inputs [K, N, *feature].

        Returns:
            A distribution over classes, a mixture of normals, or a mixture of the likelihood's own kind, with batch
            shape [K, N].
        """
        return averaged(self._each(x, self.draws, self.noise.copy(), self.noise_std), self.noise)

    def predict_at_mean(self, x: Tensor) -> Predictive:
        """Predict with the mean weights alone.

        Args:
            x: inputs [K, N, *feature].

        Returns:
            As `predict`.
        """
        with torch.no_grad():
            result = self.model.observation(self.family.mean(), rows_of(x, self.noise), self.reference)
            return averaged(iter([result]), self.noise)

    def sample_hypotheses(self, x: Tensor, draws: int, noise: Noise) -> Iterator[TorchDistribution]:
        """Draw networks from the family itself, also where a preset shrinks the draws of predictions by `noise_std`.

        theta_s ~ q, one at a time

        Args:
            x: inputs [K, N, *feature].
            draws: S, networks.
            noise: the clients' streams, left as they are: the same streams give the same networks, whatever the inputs.

        Yields:
            p(y | x, theta_s), batch shape [K, N].
        """
        return self._each(x, draws, noise.copy())

    def sample_by_row(self, x: Tensor, draws: int, noise: Noise) -> Iterator[TorchDistribution] | None:
        """Draw a network for every row, so that averages over rows have the same mean as under `sample_hypotheses`.

        theta_sn ~ q for each row n of a draw s, all independent: of independent normal weights and fully connected
        layers a fraction of the work (`models.weights.layers.fully_connected_by_row`).

        Args:
            x: inputs [K, N, *feature].
            draws: S.
            noise: the clients' streams, which every draw moves on.

        Returns:
            p(y_n | x_n, theta_sn) of every draw, batch shape [K, N]; None where weights or layers are others.
        """
        prepare = getattr(self.model, "observation_by_row", None)
        if prepare is None or not isinstance(self.family, MeanField):
            return None
        with torch.no_grad():
            drawn = prepare(self.family.loc, self.family.scale, rows_of(x, noise))
        return None if drawn is None else _by_row(drawn, draws, noise)

    def _each(self, x: Tensor, draws: int, noise: Noise, std: float = 1.0) -> Iterator[TorchDistribution]:
        rows, family = rows_of(x, noise), self.family
        if isinstance(family, MeanField | SpikeSlab):
            family = family.precompute()  # its scales, once for all draws
        for _ in range(draws):
            with torch.no_grad():  # not around the loop: between draws the mode is the caller's
                draw = self.family.draw(noise)
                theta = family.weights(draw if std == 1.0 else draw * std)
                result = self.model.observation(theta, rows, self.reference)
            yield result


def _by_row(
    drawn: Callable[[Callable[[Tensor], Tensor]], TorchDistribution], draws: int, noise: Noise
) -> Iterator[TorchDistribution]:
    for _ in range(draws):
        with torch.no_grad():  # not around the loop, as in `_each`
            result = drawn(noise.normal_by_row)
        yield result


def rows_of(x: Tensor, noise: Noise) -> ClientBatch:
    """Make a batch of inputs without targets, as a model takes them.

    Args:
        x: inputs [K, N, *feature].
        noise: names the clients.

    Returns:
        The batch, every row real.

    Raises:
        ShapeError: when x has no feature, or not the clients.
    """
    if x.dim() < 3 or len(x) != len(noise.ids):
        raise ShapeError(f"x must be [K, N, *feature] with K={len(noise.ids)}, got {list(x.shape)}")
    blank = torch.zeros(x.shape[:2], dtype=torch.int64, device=x.device)
    names = tuple(map(str, noise.ids))
    return ClientBatch(x, blank, torch.ones_like(blank, dtype=torch.bool), noise.ids, names)


def repeated(batch: ClientBatch, times: int) -> ClientBatch:
    """Give every client's rows several times, one after the other: for networks that differ in their weights alone.

    Args:
        batch: rows of K clients.
        times: P.

    Returns:
        Rows of K P clients, those of one client side by side.
    """
    if times == 1:
        return batch
    x, y, mask = (tensor.repeat_interleave(times, 0) for tensor in (batch.x, batch.y, batch.mask))
    ids = tuple(one for one in batch.ids for _ in range(times))
    names = tuple(one for one in batch.names for _ in range(times))
    return replace(batch, x=x, y=y, mask=mask, ids=ids, names=names)


def at_once(model: WeightModel, batch: ClientBatch, families: int, draws: int) -> Iterator[int]:
    """Say how many draws a model takes in one call, each as a client of its own, as far as a fixed size holds them.

    Args:
        model: a network or a program.
        batch: rows of K clients.
        families: M, of which each draw is taken.
        draws: S.

    Yields:
        Numbers of draws, at least 1, which add up to S.
    """
    rows = batch.x.shape[1]
    each = families * batch.clients * (model.footprint(rows) + rows * (2 + batch.x.shape[2:].numel()))
    most = max(1, _AT_ONCE // each)
    yield from (min(most, draws - start) for start in range(0, draws, most))


def observations(
    model: WeightModel, weights: Sequence[Tensor], batch: ClientBatch, reference: ClientBatch | None = None
) -> list[TorchDistribution]:
    """Give the predictions of several weights: after the first in one call, where they are normal or of classes.

    Args:
        model: a network or a program.
        weights: flat [K, D] each.
        batch: inputs [K, N, *feature].
        reference: as `WeightModel.observation` takes it.

    Returns:
        A distribution with batch shape [K, N] for each of the weights.
    """
    first, others = model.observation(weights[0], batch, reference), weights[1:]
    count = len(others)
    if count < 2 or type(first) not in (Normal, Categorical):
        return [first, *(model.observation(theta, batch, reference) for theta in others)]
    theta = torch.stack([*others], 1).flatten(0, 1)
    other = None if reference is None else repeated(reference, count)
    every: Any = model.observation(theta, repeated(batch, count), other)
    if type(first) is Normal:
        loc, scale = (leaf.unflatten(0, (-1, count)).unbind(1) for leaf in (every.loc, every.scale))
        return [first, *(Normal(*own, validate_args=False) for own in zip(loc, scale, strict=True))]
    logits = every.logits.unflatten(0, (-1, count)).unbind(1)
    return [first, *(Categorical(logits=own, validate_args=False) for own in logits)]


def averaged(observations: Iterator[TorchDistribution], noise: Noise) -> Predictive:
    """Mix distributions of the same targets with equal weights.

    Args:
        observations: with batch shape [K, N], one per draw and all of one kind.
        noise: the clients' streams, for what is known of a kind by draws alone.

    Returns:
        The mixture: of Categoricals over classes, of Normals, or of any other kind.
    """
    first = next(observations)
    if isinstance(first, Categorical):

        def log_probs() -> Iterator[Tensor]:
            yield first.logits.log_softmax(-1)
            for one in observations:
                yield one.logits.log_softmax(-1)

        return ClassMixture(average_log_probs(log_probs()))
    if isinstance(first, Normal):
        return _normals([first, *observations])
    each = (first, *observations)
    shape, level = (len(noise.ids), len(each)), -math.log(len(each))
    return SampledMixture(torch.full(shape, level, dtype=torch.float64, device=noise.device), each, noise)


def _normals(observations: Sequence[Normal]) -> NormalMixture:
    means = torch.stack([one.mean.double() for one in observations], 1)
    variances = torch.stack([one.variance.double() for one in observations], 1)
    weights = means.new_full(means.shape[:2], -math.log(means.shape[1]))
    return NormalMixture(weights, means, variances)
