"""Clusters that begin with a grouping of uploads, and what a server of clusters refuses."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from pacbayes_fl.errors import PrivacyError, StudyError
from pacbayes_fl.methods.baselines.clustered import Clustered
from pacbayes_fl.methods.clustering import Clustering, memberships
from pacbayes_fl.methods.variational.cfedbayes import CFedBayes
from pacbayes_fl.server.aggregations import AGGREGATIONS


class Sent(NamedTuple):
    cluster: Tensor
    weight: Tensor


class Three(Clustering):
    clusters = 3

    def __init__(self, start: str) -> None:
        self.start = start


def sent(*cluster: int) -> Sent:
    return Sent(torch.tensor(cluster), torch.ones(len(cluster), dtype=torch.float64))


def test_only_the_first_round_groups_and_only_uploads() -> None:
    update = sent(2, 2, 2, 2, 2)
    told = update.cluster, torch.tensor([[0.0], [9.0], [0.1], [9.1], [20.0]]), update.weight
    first, later = torch.tensor(0), torch.tensor(1)
    a, b, c, d, e = Three("uploads").founded(first, *told).tolist()
    assert a == c and b == d and {a, b, e} == {0, 1, 2}
    assert Three("uploads").founded(later, *told).tolist() == [2] * 5
    assert Three("random").founded(first, *told).tolist() == [2] * 5


def test_updates_of_clusters_that_do_not_exist_are_not_possible() -> None:
    assert Three("random").possible(sent(-1, 0, 2, 3)).tolist() == [False, True, True, False]


def test_a_round_says_how_many_clusters_have_members() -> None:
    cluster, ones = torch.tensor([0, 2, 2]), torch.ones(3)
    said = memberships(cluster, ones, ones, 3)
    assert {name: value.item() for name, value in said.items()} == {"moved": 3, "occupied": 2}
    assert memberships(cluster, torch.full((3,), torch.nan), ones, 3)["occupied"].isnan()  # a private round's


@pytest.mark.parametrize("method", [Clustered, CFedBayes])
def test_a_grouping_of_single_uploads_is_neither_private_nor_robust(method: type[object]) -> None:
    assert issubclass(method, Clustering)
    grouped, drawn, rule = Three("uploads"), Three("random"), AGGREGATIONS["median"]
    with pytest.raises(PrivacyError, match=r"'uploads' groups what single clients send.*method.start = 'random'"):
        grouped.check_withheld()
    with pytest.raises(StudyError, match=r"one client found a cluster, whatever aggregate = 'median'.*= 'random'"):
        grouped.check_rule(rule)
    drawn.check_withheld()
    drawn.check_rule(rule)


def test_the_mean_of_a_cluster_over_rounds_is_refused() -> None:
    with pytest.raises(StudyError, match=r"that of Three has none: a cluster is of other clients rounds later"):
        Three("random").check_average()
