"""Bootstrap intervals of means over seeds and clients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from pacbayes_fl.errors import ShapeError, StudyError

_BLOCK: Final = 2**20  # numbers of bootstrap replicates that are held at once


def nested_bootstrap(
    values: Sequence[Sequence[float]], seed: int = 0, draws: int = 2000, level: float = 0.95
) -> tuple[float, float, float]:
    """Percentile bootstrap of a mean over seeds and clients.

    Seeds are drawn with replacement, and clients within them. When every seed has the same number of clients they
    are taken to be the same clients in the same order, and one draw of clients serves all seeds of a replicate
    (crossed, Owen's pigeonhole bootstrap): a client that is hard is hard under every seed, and drawing it anew for
    each would average that away and make the interval too narrow by up to sqrt(seeds). Should the clients in truth
    be different ones, the crossed draw only widens the interval: it counts noise of single entries up to 3 times,
    the nested one up to 2 times. With unequal numbers, clients are drawn for each drawn seed on its own (nested). A
    single seed is kept as it is: the interval then speaks of clients only, and one number alone has none. With few
    seeds the part that is due to seeds is too narrow by about sqrt((seeds - 1) / seeds), as in every percentile
    bootstrap.

    Args:
        values: `values[seed][client]`; a NaN makes all three numbers NaN.
        seed: of the bootstrap itself.
        draws: number of replicates.
        level: of the interval.

    Returns:
        The mean (every seed weighs alike), and the lower and upper end of the interval; NaN for both of a single client
        under a single seed, of which no spread is known.

    Raises:
        ShapeError: when there is no seed, or a seed without clients.
        StudyError: when the level is outside (0, 1) or there is no draw.

    Example:
        >>> from pacbayes_fl.results.bootstrap import nested_bootstrap
        >>> mean, low, high = nested_bootstrap([[0.4, 0.6, 0.5], [0.5, 0.7, 0.6]])  # by seed, by client
        >>> round(mean, 3), low < mean < high
        (0.55, True)
    """
    return nested_bootstraps([values], seed, draws, level)[0]


def nested_bootstraps(
    many: Sequence[Sequence[Sequence[float]]], seed: int = 0, draws: int = 2000, level: float = 0.95
) -> list[tuple[float, float, float]]:
    """Do as `nested_bootstrap` for several metrics of the same seeds and clients, whom all of them draw alike.

    Which clients a replicate draws depends on the seed and on how many there are, not on their values: it is drawn once
    for all metrics of as many clients, a block of replicates at a time.

    Args:
        many: `many[metric][seed][client]`.
        seed: of the bootstrap itself.
        draws: number of replicates.
        level: of the interval.

    Returns:
        For each metric what `nested_bootstrap` gives, bit by bit.

    Raises:
        ShapeError, StudyError: as `nested_bootstrap`.
    """
    if not 0.0 < level < 1.0 or draws < 1:
        raise StudyError(f"level must be in (0, 1) and draws at least 1, got {level} and {draws}")
    result: list[tuple[float, float, float]] = []
    alike: dict[tuple[int, ...], list[int]] = {}
    rows = [[np.asarray(row, dtype=np.float64) for row in values] for values in many]
    for k, values in enumerate(rows):
        if not values or any(row.ndim != 1 or not row.size for row in values):
            what = f"values must hold at least one client for every seed, got lengths {[len(r) for r in many[k]]}"
            raise ShapeError(what)
        result.append((float(np.mean([row.mean() for row in values])), math.nan, math.nan))
        if sum(row.size for row in values) > 1 and all(np.isfinite(row).all() for row in values):
            alike.setdefault(tuple(row.size for row in values), []).append(k)
    for sizes, metrics in alike.items():
        replicates = _replicates([rows[k] for k in metrics], sizes, np.random.default_rng(seed), draws)
        for k, means in zip(metrics, replicates, strict=True):
            low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
            result[k] = (result[k][0], float(low), float(high))
    return result


def _replicates(
    many: list[list[np.ndarray]], sizes: tuple[int, ...], random: np.random.Generator, draws: int
) -> np.ndarray:
    """Means of bootstrap replicates of several metrics [M, draws], by the same draws of seeds and clients."""
    n_seeds, means = len(sizes), np.empty((len(many), draws))
    if len(set(sizes)) == 1:
        # how often each seed and each client was drawn: all that a replicate's mean depends on
        n = sizes[0]
        seeds = random.multinomial(n_seeds, np.full(n_seeds, 1 / n_seeds), size=draws)
        by_seed = [np.stack(values) if n_seeds == 1 else seeds @ np.stack(values) for values in many]
        step = max(1, _BLOCK // n)
        for at in range(0, draws, step):
            clients = random.multinomial(n, np.full(n, 1 / n), size=min(step, draws - at)).astype(np.float64)
            for mean, values in zip(means, by_seed, strict=True):
                drawn = values if n_seeds == 1 else values[at : at + step]
                mean[at : at + step] = (drawn * clients).sum(1) / (n_seeds * n)
        return means
    lengths = np.array(sizes)
    chosen = random.integers(n_seeds, size=(draws, n_seeds, 1))
    n_clients = lengths[chosen]
    position = random.integers(n_clients, size=(draws, n_seeds, max(sizes)))
    counted = np.arange(max(sizes)) < n_clients
    for mean, values in zip(means, many, strict=True):
        padded = np.zeros((n_seeds, max(sizes)))
        for row, target in zip(values, padded, strict=True):
            target[: row.size] = row
        mean[:] = ((padded[chosen, position] * counted).sum(2, keepdims=True) / n_clients).mean((1, 2))
    return means
