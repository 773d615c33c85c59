"""FedCFL: its cut against all cuts, its splits and routes step by step, and FedAvg where nothing is split."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from pacbayes_fl.errors import PrivacyError, StudyError
from pacbayes_fl.federation import engine
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.inference.map_estimate import LocalDescent
from pacbayes_fl.methods.baselines.clustered import Update
from pacbayes_fl.methods.baselines.fedavg import FedAvg
from pacbayes_fl.methods.baselines.fedcfl import FedCFL, Server
from pacbayes_fl.noise import Noise
from pacbayes_fl.server.aggregations import AGGREGATIONS
from tests.methods.by_hand import MODEL, SIZES
from tests.methods.by_hand import clients as by_hand
from tests.worlds import Quadratic, Round, descent, numbers, personal, quadratics, rounds

STEPS = ((1.0, 0.1), (0.9, -0.2), (-0.6, 0.9), (-0.7, 0.6), (0.2, 1.0))
close = pytest.approx


def server(d: int = 2, room: int = 3) -> Server:
    zeros = torch.zeros(room, d, dtype=torch.float64)
    return Server(zeros, torch.full((room,), -1), zeros, zeros, torch.tensor(1), torch.tensor(0.0, dtype=torch.float64))


def sent(steps: Any, weight: list[float] | None = None) -> Update:
    theta = torch.tensor(steps, dtype=torch.float64)
    ones = torch.ones(len(theta), dtype=torch.float64)
    weights = ones if weight is None else torch.tensor(weight, dtype=torch.float64)
    return Update(theta, torch.zeros(len(theta), dtype=torch.int64), weights, ones, ones, ones)


def cfl(**options: Any) -> FedCFL:
    usual = {"weighting": "uniform", "max_clusters": 3, "mean_below": 0.6, "longest_above": 1.0, "relative": False}
    return FedCFL(Quadratic(), descent(2, 0.1), **(usual | options))


def test_a_cluster_that_is_pulled_apart_is_cut_where_directions_differ_most() -> None:
    state = cfl().server(server(), sent(STEPS), 5)
    assert int(state.used) == 2 and state.parent.tolist() == [-1, 0, -1]
    one, two = (torch.tensor(STEPS, dtype=torch.float64)[rows].mean(0) for rows in ([2, 3, 4], [0, 1]))
    assert numbers(state.theta[0]) == close(numbers(one)) and numbers(state.theta[1]) == close(numbers(two))
    units = [(x / math.hypot(x, y), y / math.hypot(x, y)) for x, y in STEPS]
    assert numbers(state.leave[1]) == close([(units[0][i] + units[1][i]) / 2 for i in range(2)])
    assert numbers(state.stay[1]) == close([(units[2][i] + units[3][i] + units[4][i]) / 3 for i in range(2)])


@pytest.mark.parametrize(
    ("options", "split"),
    [
        ({"mean_below": 0.505964425626}, False),
        ({"mean_below": 0.505964425628}, True),
        ({"longest_above": 1.081665382640}, False),
        ({"longest_above": 1.081665382638}, True),
        ({"gamma": 0.594678790570}, False),
        ({"gamma": 0.594678790568}, True),
        ({"mean_below": 0.0}, False),
        ({"max_clusters": 1}, False),
        ({"relative": True, "longest_above": 1.10, "mean_below": 0.52}, False),  # of the mean length 0.9901
        ({"relative": True, "longest_above": 1.09, "mean_below": 0.50}, False),
        ({"relative": True, "longest_above": 1.09, "mean_below": 0.52}, True),
    ],
)
def test_when_it_is_split(options: dict[str, Any], split: bool) -> None:
    """|mean| 0.505964425627, the longest 1.081665382639, sqrt((1 - alpha) / 2) = 0.594678790569."""
    method = cfl(**options)
    state = method.server(server(room=method.max_clusters), sent(STEPS), 5)
    assert int(state.used) == 1 + split
    if not split:
        assert numbers(state.theta[0]) == close(numbers(torch.tensor(STEPS, dtype=torch.float64).mean(0)))


def test_the_server_depends_on_no_order_of_rows_and_on_no_client_that_failed() -> None:
    expected = cfl().server(server(), sent(STEPS), 5)
    order = [3, 0, 4, 2, 1]
    failed = sent([*[STEPS[k] for k in order], (0.0, 0.0)], [1.0] * 5 + [0.0])
    for update in (sent([STEPS[k] for k in order]), failed):
        result = cfl().server(server(), update, 5)
        for name in Server._fields:
            torch.testing.assert_close(getattr(result, name), getattr(expected, name), rtol=0, atol=1e-14)


def test_a_longer_step_of_a_client_leaves_the_cut() -> None:
    longer = [*STEPS[:3], (-2.1, 1.8), STEPS[4]]
    parts = [cfl(mean_below=9.0).server(server(), sent(steps), 5) for steps in (STEPS, longer)]
    torch.testing.assert_close(parts[0].leave, parts[1].leave, rtol=0, atol=1e-14)


A, B = (1.0, 1.0, 1.0, 1.0), (-1.0, -1.1, 1.0, 1.1)
BATCH = quadratics(A, B, (1, 1, 1, 1))


def two_groups(**options: Any) -> FedCFL:
    return cfl(**{"mean_below": 0.05, "longest_above": 0.05, "max_clusters": 2} | options)


def play(method: FedCFL) -> Iterator[Round]:
    """Play rounds of two groups from the weight 1/2."""
    start = server(1, method.max_clusters)
    return rounds(method, BATCH, server=start._replace(theta=start.theta + 0.5))


def test_two_groups_are_found_and_then_learn_apart() -> None:
    played = play(two_groups())
    used, result = [], []
    for _ in range(40):
        last = next(played)
        used.append(int(last.server.used))
        result.append(last.update.cluster.tolist())
    split = used.index(2)
    assert 0 < split < 15 and result[split] == [0] * 4, "the mean step is long at first"
    assert result[split + 1] in ([0, 0, 1, 1], [1, 1, 0, 0]) and result[-1] == result[split + 1]
    means = {result[-1][0]: -1.05, result[-1][2]: 1.05}
    assert numbers(last.server.theta) == close([means[0], means[1]], abs=1e-3)
    assert personal(two_groups(), last, BATCH) == [numbers(last.server.theta)[j] for j in result[-1]]
    new = quadratics((2.0,), (0.9,), (3,))
    assert personal(two_groups(), last, new, fresh=True) == [max(numbers(last.server.theta))]


def test_who_missed_a_split_finds_its_side_by_its_last_step() -> None:
    played = play(two_groups())
    kept = next(last.clients for last in played if int(last.server.used) == 2)
    message = next(played).server
    assert two_groups().assign(message, kept, BATCH).tolist() in ([0, 0, 1, 1], [1, 1, 0, 0])


@pytest.mark.parametrize("options", [{"mean_below": 0.0}, {"max_clusters": 1}])
def test_without_a_split_it_is_fedavg(options: dict[str, Any]) -> None:
    batch, plan, local = by_hand(*SIZES), FederationPlan(rounds=3, seed=3), LocalDescent(3, 4, 1e-2)
    expected = engine.run_rounds(FedAvg(MODEL, local), batch, plan)
    result = engine.run_rounds(FedCFL(MODEL, local, **options), batch, plan)
    torch.testing.assert_close(result.server.theta[0], expected.server.theta, rtol=0, atol=1e-14)


def test_steps_of_single_clients_have_no_private_release_and_no_robust_aggregate() -> None:
    last = next(play(two_groups()))
    with pytest.raises(PrivacyError, match="FedCFL has no private release: its clients send steps"):
        two_groups().to_release(last.server, last.update)
    with pytest.raises(StudyError, match="those of FedCFL send no steps"):
        two_groups().check_robust(AGGREGATIONS["median"])


def test_a_client_keeps_the_direction_of_its_step() -> None:
    method = two_groups()
    state = method.init_server(torch.Generator().manual_seed(0))
    _, kept = method.client(state, method.init_clients(state, BATCH), BATCH, Noise(0, 1, BATCH.ids))
    assert kept.direction.abs().tolist() == [[1.0]] * 4 and kept.cluster.tolist() == [0] * 4
    assert kept.seen.tolist() == [1] * 4
