"""Methods client by client: paired differences, a test of them, and ranks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from pacbayes_fl.results.records import Result

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]

EXACT: Final = 12
"""Clients up to which all signs are enumerated."""
DRAWS: Final = 9_999
"""Of signs, for more clients."""
_SEED: Final = 0  # of the bootstrap and of the test


class Paired(NamedTuple):
    """How a method compares with a reference on the same clients.

    Args:
        method: its name.
        mean: of the differences method - reference over clients, each the mean over seeds.
        low: lower end of the 95 % bootstrap interval over clients; NaN of one client.
        high: upper end.
        lower: clients for which the method has the smaller value.
        higher: clients for which it has the larger value.
        clients: that both have a number for.
        p: two-sided p-value of the sign-flip test of no difference; NaN of fewer than two clients.
        adjusted: the same by Holm's step-down procedure over all methods that are compared.
    """

    method: str
    mean: float
    low: float
    high: float
    lower: int
    higher: int
    clients: int
    p: float
    adjusted: float


def by_client(results: Sequence[Result], group: str, metric: str) -> dict[str, dict[str, float]]:
    """Average a metric over seeds, client by client.

    Args:
        results: runs of several methods.
        group: "existing" or "new".
        metric: its name.

    Returns:
        By method, by name of client; clients without a finite number are left out.
    """
    values: dict[str, dict[str, list[float]]] = {}
    for result in results:
        own = values.setdefault(result.method, {})
        for name, value in zip(result.rows.names(group), result.column(group, metric), strict=True):
            if math.isfinite(value):
                own.setdefault(name, []).append(value)
    return {method: {name: math.fsum(v) / len(v) for name, v in own.items()} for method, own in values.items()}


def sign_flip(differences: Array, seed: int = 0) -> float:
    """Test that paired differences are symmetric about 0, by flipping their signs (Fisher 1935).

    p = share of sign vectors s with |sum_k s_k d_k| >= |sum_k d_k|; all 2^K of them up to `EXACT` clients, otherwise
    (1 + count) / (1 + B) of B = `DRAWS` draws (Phipson and Smyth 2010).

    Args:
        differences: d [K], finite.
        seed: of the draws.

    Returns:
        The two-sided p-value; NaN of fewer than two differences.

    Example:
        >>> import numpy as np
        >>> from pacbayes_fl.results.paired import sign_flip
        >>> sign_flip(np.ones(5))  # two of the 2^5 sign vectors are as far out
        0.0625
    """
    import numpy as np

    count = len(differences)
    if count < 2:
        return math.nan
    total = abs(float(differences.sum()))
    slack = total * (1 - 1e-12) - 1e-300  # sums of the same numbers in another order
    if count <= EXACT:
        signs = np.array(list(itertools.product((-1.0, 1.0), repeat=count)))
        return float((np.abs(signs @ differences) >= slack).mean())
    random, larger = np.random.default_rng(seed), 0
    for begin in range(0, DRAWS, 1000):  # in parts: clients may be thousands
        flips = random.integers(0, 2, size=(min(1000, DRAWS - begin), count), dtype=np.int8) * 2.0 - 1.0
        larger += int((np.abs(flips @ differences) >= slack).sum())
    return (1 + larger) / (1 + DRAWS)


def holm(values: Sequence[float]) -> list[float]:
    """Adjust p-values for their number (Holm 1979): p_(i) becomes max_{j <= i} min(1, (m - j + 1) p_(j)).

    Args:
        values: p-values; those that are NaN are left as they are and not counted.

    Returns:
        The adjusted ones, in the same order.

    Example:
        >>> from pacbayes_fl.results.paired import holm
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    known = sorted((value, at) for at, value in enumerate(values) if not math.isnan(value))
    result, largest = [math.nan] * len(values), 0.0
    for place, (value, at) in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - place) * value))
        result[at] = largest
    return result


def paired(results: Sequence[Result], reference: str, group: str, metric: str) -> list[Paired]:
    """Compare every method with a reference, client by client.

    Args:
        results: runs of several methods on the same clients.
        reference: name of the method.
        group: "existing" or "new".
        metric: its name.

    Returns:
        A line for every other method that shares clients with the reference.
    """
    import numpy as np

    from pacbayes_fl.results.bootstrap import nested_bootstrap

    values = by_client(results, group, metric)
    base, lines = values.get(reference, {}), list[Paired]()
    for method, own in values.items():
        both = [name for name in own if name in base]
        if method == reference or not both:
            continue
        d = np.array([own[name] - base[name] for name in both])
        mean, low, high = nested_bootstrap([d.tolist()], _SEED)
        counts = (int((d < 0).sum()), int((d > 0).sum()), len(both))
        lines.append(Paired(method, mean, low, high, *counts, sign_flip(d, _SEED), math.nan))
    adjusted = holm([line.p for line in lines])
    return [line._replace(adjusted=p) for line, p in zip(lines, adjusted, strict=True)]


def ranks(results: Sequence[Result], group: str, metric: str, better: str) -> dict[str, float]:
    """Average the ranks of methods over clients: 1 is the best, equal values share the mean of their ranks.

    Args:
        results: runs of several methods on the same clients.
        group: "existing" or "new".
        metric: its name.
        better: "lower" or "higher".

    Returns:
        Mean ranks by method, over the clients that all methods have a number for; empty without such.
    """
    import numpy as np

    values = by_client(results, group, metric)
    if not values:
        return {}
    first, *others = values.values()
    both = [name for name in first if all(name in own for own in others)]
    if not both or better not in ("lower", "higher"):
        return {}
    table = np.array([[own[name] for name in both] for own in values.values()])  # [methods, clients]
    table = table if better == "lower" else -table
    below = (table[:, None] > table[None]).sum(1)
    equal = (table[:, None] == table[None]).sum(1)
    rank = below + (equal + 1) / 2
    return dict(zip(values, rank.mean(1).tolist(), strict=True))
