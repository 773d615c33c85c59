"""Methods whose server averages the clients of every cluster, which may begin with a grouping of the first uploads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pacbayes_fl.errors import PrivacyError, StudyError
from pacbayes_fl.methods.base import in_range, no_average
from pacbayes_fl.models.base import default
from pacbayes_fl.server import clusters
from pacbayes_fl.server.aggregations import AggregationRule


def memberships(cluster: Tensor, clients: Tensor, moved: Tensor, count: int) -> dict[str, Tensor]:
    """Sum up the clusters of a round, for its record.

    Args:
        cluster: of every client, or of whole clusters [K], int64.
        clients: number of clients behind a row [K].
        moved: how many of them have changed their cluster [K].
        count: number of clusters.

    Returns:
        How many clients changed their cluster, and how many clusters have members.
    """
    sizes = clusters.sums(clients, cluster, torch.ones_like(clients), count)[0]
    occupied = torch.where(sizes.isfinite(), (sizes > 0).to(sizes), torch.nan)  # a private round withholds them
    return {"moved": moved.sum(), "occupied": occupied.sum()}


class Clustering:
    """Half of a method: how its clusters begin and what follows from that, which stands before `Method` in its bases.

    Args:
        clusters: number of clusters, J.
        start: "uploads" where the server groups what clients send in the first round; of clusters that differ at once
            any other word.
    """

    clusters: int
    start: str

    def founded(self, rounds: Tensor, cluster: Tensor, points: Tensor, weight: Tensor) -> Tensor:
        """Give cluster [K]; after 0 rounds [], where all started alike, by k-means of points [K, D] of weight [K]."""
        if self.start != "uploads":
            return cluster
        return torch.where(rounds == 0, clusters.k_means(points, weight, self.clusters), cluster)

    def possible(self, update: Any) -> Tensor:
        """Whether there is such a cluster too: bool [K]."""
        there: Tensor = (update.cluster >= 0) & (update.cluster < self.clusters)
        return in_range(update) & there

    def describe(self, state: Any) -> Mapping[str, Tensor]:
        """Every client's last cluster; -1 for one that never trained."""
        return {"cluster": state.cluster.double()}

    def check_withheld(self) -> None:
        """Refuse a start from k-means over single clients' uploads."""
        if self.start == "uploads":
            what = "start = 'uploads' groups what single clients send, which a private round withholds"
            raise PrivacyError(what, hint="method.start = 'random'")

    def check_rule(self, rule: AggregationRule) -> None:
        """Refuse a start from k-means over single clients' uploads."""
        if self.start == "uploads":
            what = f"start = 'uploads' lets one client found a cluster, whatever aggregate = {rule.name!r} does"
            raise StudyError(what, hint="method.start = 'random'")
        self.check_members(rule)

    @default
    def check_members(self, rule: AggregationRule) -> None:
        """Raise StudyError where a cluster's step is another thing than its members' steps joined to one."""

    def check_average(self) -> None:
        """Refuse: clients may leave a cluster and others come, so that it is another one rounds later."""
        raise no_average(self, "a cluster is of other clients rounds later")
