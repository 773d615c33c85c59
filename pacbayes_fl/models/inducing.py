"""Which clients' rows are known to a Gaussian process through inducing points, and through how many."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import StudyError


class Inducing(NamedTuple):
    """Rule by which rows alone decide, client by client.

    Args:
        points: most points of a client, M.
        above: most rows of a client whose evidence and posterior are exact.
    """

    points: int
    above: int = 0

    def checked(self) -> Inducing:
        """Check the ranges.

        Returns:
            The same.

        Raises:
            StudyError: when there would be no point, or a negative number of rows.
        """
        if self.points < 1 or self.above < 0:
            what = (
                f"a client needs at least 1 inducing point above at least 0 rows, got {self.points} above {self.above}"
            )
            raise StudyError(what, hint="None is exact for all clients")
        return self


AUTO = Inducing(200, 700)
"""From about 700 rows on, 200 points are never slower than the exact evidence: benchmarks/RESULTS.md compares them."""


class Way(NamedTuple):
    """Clients whose rows are known in the same way.

    Args:
        at: their positions [k] among the K clients; None for all of them.
        batch: their rows.
        points: most points of each; None where all rows count.
    """

    at: Tensor | None
    batch: ClientBatch
    points: int | None


def ways(rule: Inducing | None, batch: ClientBatch) -> list[Way]:
    """Part clients into those with points and those without, so that nobody's numbers depend on who else is there.

    Sizes are read only where some client may need points and another none: on a GPU that waits for what is under way,
    once for an evidence that takes far longer.

    Args:
        rule: of the prior; None for exact posteriors alone.
        batch: rows of K clients.

    Returns:
        One way, or two.
    """
    if rule is None or batch.mask.shape[1] <= rule.above:
        return [Way(None, batch, None)]
    if not rule.above:
        return [Way(None, batch, rule.points)]
    large = (batch.mask.sum(1) > rule.above).cpu()
    if bool(large.all()):
        return [Way(None, batch, rule.points)]
    if not bool(large.any()):
        return [Way(None, batch.trim(), None)]
    return [
        Way(at, batch.select(at).trim(), points)
        for at, points in ((torch.nonzero(~large).flatten(), None), (torch.nonzero(large).flatten(), rule.points))
    ]


def all_exact(rule: Inducing | None, batch: ClientBatch) -> bool:
    """Say whether no client's rows are known through points.

    Args:
        rule: of the prior; None for exact posteriors alone.
        batch: rows of K clients.

    Returns:
        Whether every way of `ways` is without points.
    """
    return all(way.points is None for way in ways(rule, batch))


def order(parts: list[Way]) -> Tensor:
    """Positions [K] of the clients in the order of `parts`, one after the other."""
    return torch.cat([part.at for part in parts if part.at is not None]).argsort()
