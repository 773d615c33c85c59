"""IFCA and FeSEM as arithmetic on quadratics, against the steps of their papers written out, and their limits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.errors import AssumptionError, PrivacyError, StudyError
from pacbayes_fl.federation import engine
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.inference.map_estimate import LocalDescent
from pacbayes_fl.methods.baselines.clustered import Centres, Client, Clustered, Update
from pacbayes_fl.methods.baselines.fedavg import FedAvg
from pacbayes_fl.noise import Noise
from pacbayes_fl.server import clusters
from pacbayes_fl.server.aggregations import AGGREGATIONS
from tests.methods.by_hand import MODEL, SIZES
from tests.methods.by_hand import clients as by_hand
from tests.worlds import A, B, Quadratic, Round, descent, numbers, personal, quadratics, rounds

close = pytest.approx
CENTRES = (-1.0, 1.5)


def ifca(steps: int = 2, **options: Any) -> Clustered:
    options = {"weighting": "uniform", "start": "random"} | options
    return Clustered(Quadratic(), descent(steps, 0.1), **options)


def fesem(steps: int = 2, **options: Any) -> Clustered:
    return ifca(steps, assignment="weights", **options)


def centres(*theta: float, played: int = 0) -> Centres:
    return Centres(torch.tensor(theta, dtype=torch.float64).unsqueeze(1), torch.tensor(played))


def first(method: Clustered, *theta: float) -> Round:
    return next(rounds(method, quadratics(), server=centres(*theta)))


def local(start: float, a: float, b: float, steps: int) -> float:
    for _ in range(steps):
        start -= 0.1 * a * (start - b)
    return start


def sent(*theta: float, cluster: list[int]) -> Update:
    """Return updates of clients of weight 1."""
    ones = torch.ones(len(theta), dtype=torch.float64)
    weights = torch.tensor(theta, dtype=torch.float64).unsqueeze(1)
    return Update(weights, torch.tensor(cluster), ones, ones, ones, ones)


@pytest.mark.parametrize(("weighting", "expected"), [("uniform", [-1.12375, 1.18]), ("rows", [-1.228333333333, 1.18])])
def test_ifca_takes_the_cluster_of_the_least_loss_and_averages_its_members(
    weighting: Any, expected: list[float]
) -> None:
    last = first(ifca(weighting=weighting), *CENTRES)
    losses = [[a / 2 * (c - b) ** 2 for c in CENTRES] for a, b in zip(A, B, strict=True)]
    assert losses == [[0.5, 1.125], [8.0, 0.5], [1.25, 15.3125]]
    chosen = [one.index(min(one)) for one in losses]
    assert last.update.cluster.tolist() == chosen == [0, 1, 0]
    by_steps = [local(CENTRES[j], a, b, 2) for j, a, b in zip(chosen, A, B, strict=True)]
    assert numbers(last.update.theta) == close(by_steps, abs=1e-14)
    assert by_steps == close([-0.81, 1.18, -1.4375], abs=1e-10)
    assert numbers(last.server.theta) == close(expected, abs=1e-10)
    best = [min(numbers(last.server.theta), key=lambda c, b=b: (c - b) ** 2) for b in B]  # type: ignore[misc]
    assert personal(ifca(), last, quadratics()) == best, "they choose again, which one of them does by rows"
    assert personal(ifca(), last, quadratics(), fresh=True) == personal(ifca(), last, quadratics())


def test_gradient_averaging_divides_by_all_clients_of_the_round() -> None:
    """theta_j - (gamma / m) sum_members g_k (IFCA, Algorithm 1, line 14)."""
    last = first(ifca(1, averaging="all"), *CENTRES)
    expected = list(CENTRES)
    for j, a, b in zip((0, 1, 0), A, B, strict=True):
        expected[j] -= 0.1 / 3 * a * (CENTRES[j] - b)
    assert numbers(last.server.theta) == close(expected, abs=1e-14)
    assert expected == close([-1.05, 1.433333333333], abs=1e-10)


def test_a_private_release_of_gradient_averaging_is_exact() -> None:
    method, start = ifca(1, averaging="all"), centres(*CENTRES)
    last = first(method, *CENTRES)
    slots = method.to_release(start, last.update)
    assert slots.theta.shape == (3, 2, 1) and not slots.theta[0, 1].any() and not slots.theta[1, 0].any()
    mean = tensors.expand(tensors.weighted_mean(slots, last.update.weight), 1)
    assert numbers(method.server(start, method.from_release(start, mean, 3.0), 3).theta) == close(
        numbers(last.server.theta), abs=1e-14
    )


def test_of_equally_good_clusters_it_is_the_first() -> None:
    assert first(ifca(clusters=3), 0.5, 0.5, 0.5).update.cluster.tolist() == [0, 0, 0]
    assert clusters.nearest(torch.tensor([[0.0]]), torch.tensor([[1.0], [-1.0]])).tolist() == [0]


def test_fesem_takes_the_nearest_centre_of_what_clients_sent() -> None:
    uploads, start = (-1.9, 0.4, 1.1, -0.6), centres(-1.0, 1.0, played=1)
    points = torch.tensor(uploads, dtype=torch.float64).unsqueeze(1)
    cluster = clusters.nearest(points, start.theta)
    assert cluster.tolist() == [0, 1, 1, 0]
    after = fesem().server(start, sent(*uploads, cluster=cluster.tolist()), 4)
    assert numbers(after.theta) == close([-1.25, 0.75], abs=1e-12)
    assert clusters.nearest(points, after.theta).tolist() == [0, 1, 1, 0]


def test_a_round_of_fesem_trains_the_centre_next_to_the_last_upload_and_sends_the_one_next_to_the_new_one() -> None:
    method, message, batch = fesem(5), centres(-1.0, 0.2, played=1), quadratics()
    state = Client(torch.tensor([[-3.0], [-0.9], [1.0]], dtype=torch.float64), torch.tensor([0, 0, 1]))
    update, kept = method.client(message, state, batch, Noise(0, 2, batch.ids))
    trained = [local(c, a, b, 5) for c, a, b in zip((-1.0, -1.0, 0.2), A, B, strict=True)]
    assert numbers(update.theta) == close(trained, abs=1e-14) == numbers(kept.theta)
    nearest = [0 if abs(t + 1.0) <= abs(t - 0.2) else 1 for t in trained]
    assert update.cluster.tolist() == kept.cluster.tolist() == nearest == [0, 1, 0], "two of them changed"
    assert update.moved.tolist() == [0.0, 1.0, 1.0]


def test_a_new_client_of_fesem_chooses_by_its_loss() -> None:
    method, last = fesem(), first(fesem(), *CENTRES)
    by_loss = ifca().assign(last.server, last.clients, quadratics())
    expected = [numbers(last.server.theta)[j] for j in by_loss.tolist()]
    assert personal(method, last, quadratics(), fresh=True) == expected
    far = last._replace(clients=Client(torch.full((3, 1), 50.0, dtype=torch.float64), torch.zeros(3).long()))
    assert personal(method, far, quadratics()) == [max(numbers(last.server.theta))] * 3


def test_neither_step_of_fesem_raises_its_objective() -> None:
    """sum_k |theta_k - c_{r(k)}|^2, which the E-step and the M-step lower in turn."""
    points = torch.randn(30, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    ones = torch.ones(30, dtype=torch.float64)
    middle, cluster, values = points[:4].clone(), torch.zeros(30, dtype=torch.int64), []

    def objective(middle: Tensor, cluster: Tensor) -> float:
        return float((points - middle[cluster]).square().sum())

    for _ in range(4):
        values.append(objective(middle, cluster := clusters.nearest(points, middle)))
        update = Update(points, cluster, ones, ones, ones, ones)
        middle = fesem(clusters=4).server(Centres(middle, torch.tensor(1)), update, 30).theta
        values.append(objective(middle, cluster))
    assert values == sorted(values, reverse=True) and values[-1] < 0.9 * values[0]


@pytest.mark.parametrize("assignment", ["loss", "weights"])
@pytest.mark.parametrize("start", ["uploads", "random"])
@pytest.mark.parametrize("averaging", ["members", "all"])
def test_one_cluster_is_fedavg(assignment: Any, start: Any, averaging: Any) -> None:
    shape = LocalDescent(3, 4, 1e-2)
    batch, plan = by_hand(*SIZES), FederationPlan(rounds=3, seed=3)
    expected: Any = engine.run_rounds(FedAvg(MODEL, shape), batch, plan)
    method = Clustered(MODEL, shape, 1, assignment, averaging, start)
    result: Any = engine.run_rounds(method, batch, plan)
    torch.testing.assert_close(result.server.theta[0], expected.server.theta, rtol=0, atol=1e-14)


def test_as_many_centres_as_clients_are_clients_alone() -> None:
    """Of which each begins next to its own."""
    start = [0.1, 1.1, -2.2]
    played = rounds(fesem(1, clusters=3), quadratics(), server=centres(*start))
    for steps in range(1, 5):
        last = next(played)
        expected = [local(c, a, b, steps) for c, a, b in zip(start, A, B, strict=True)]
        assert numbers(last.server.theta) == close(expected, abs=1e-13)


def test_an_empty_cluster_stays() -> None:
    last = first(ifca(clusters=3), *CENTRES, 99.0)
    assert numbers(last.server.theta)[2] == 99.0


def test_clusters_with_other_names_are_the_same_clusters() -> None:
    for method in (ifca(), fesem()):
        one, other = first(method, *CENTRES), first(method, *CENTRES[::-1])
        assert numbers(one.server.theta) == numbers(other.server.theta)[::-1]
        assert (one.update.cluster + other.update.cluster == 1).all()


def test_the_first_round_groups_what_clients_send() -> None:
    """From equal centres, which no client could choose among: near 0 and 2, and near -2 (A, B of the world)."""
    for method in (ifca(20, start="uploads"), fesem(20, start="uploads")):
        played = rounds(method, quadratics(), server=centres(0.5, 0.5))
        next(played)
        assert next(played).update.cluster.tolist() in ([0, 0, 1], [1, 1, 0])


def test_a_client_that_failed_is_in_no_cluster() -> None:
    """Its row is zeros of weight 0."""
    for method, played in ((ifca(), 1), (ifca(start="uploads"), 0), (ifca(averaging="all"), 1)):
        three = sent(-2.0, -1.8, 5.0, cluster=[0, 0, 1])
        four = sent(-2.0, 0.0, -1.8, 5.0, cluster=[0, 0, 0, 1])
        four = four._replace(weight=torch.tensor([1.0, 0.0, 1.0, 1.0], dtype=torch.float64))
        start = centres(*CENTRES, played=played)
        one, other = method.server(start, three, 3).theta, method.server(start, four, 4).theta
        assert numbers(one) == close(numbers(other), abs=1e-14)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"start": "uploads"}, PrivacyError, r"start = 'uploads' groups what single clients send"),
        ({"weighting": "rows"}, PrivacyError, r"weighting = 'rows' needs every client's number of rows"),
        ({"start": "uploads"}, StudyError, r"start = 'uploads' lets one client found a cluster.*'median'"),
        ({"averaging": "all"}, StudyError, r"averaging = 'all' sums the steps of members, and aggregate = 'median'"),
    ],
)
def test_what_clusters_cannot_do_is_refused(options: dict[str, Any], error: Any, words: str) -> None:
    method = ifca(**options)
    with pytest.raises(error, match=words):
        method.check_private() if error is PrivacyError else method.check_robust(AGGREGATIONS["median"])


def test_there_is_no_certificate() -> None:
    last, batch = first(ifca(), *CENTRES), quadratics()
    posterior = ifca().personalise(last.server, last.clients, batch, Noise(0, 0, batch.ids))
    with pytest.raises(AssumptionError, match="Clustered has no posterior over hypotheses"):
        ifca().refine(posterior, batch, batch, Noise(0, 0, batch.ids))


def test_a_cluster_that_does_not_exist_is_not_possible() -> None:
    method = replace(ifca(), clusters=2)
    assert method.possible(sent(0.0, 0.0, 0.0, cluster=[0, 1, 2])).tolist() == [True, True, False]
