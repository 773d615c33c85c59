"""FedAMP and HeurFedAMP: who is mixed how much, against formulas written out; local training and MTL are limits."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from pacbayes_fl.errors import AssumptionError, PrivacyError, StudyError
from pacbayes_fl.federation import engine
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.inference.map_estimate import LocalDescent
from pacbayes_fl.methods.baselines.fedamp import Client, FedAMP, Server, Update
from pacbayes_fl.methods.baselines.local import LocalOnly
from pacbayes_fl.methods.baselines.mtl import MTL
from pacbayes_fl.noise import Noise
from pacbayes_fl.server.aggregations import AGGREGATIONS
from tests.methods.by_hand import MODEL, SIZES
from tests.methods.by_hand import clients as by_hand
from tests.worlds import A, B, Quadratic, descent, numbers, personal, quadratics, rounds

POINTS = ((1.0, 0.0), (0.8, 0.6), (0.0, -1.0))
IDS = (7, 3, 5)
close = pytest.approx


def amp(steps: int = 300, rate: float = 0.2, **options: Any) -> FedAMP:
    return FedAMP(Quadratic(), descent(steps, rate), **({"clients": 5, "from_start": False} | options))


def table(points: Any, ids: tuple[int, ...] = IDS, room: int = 2) -> tuple[Server, Client]:
    """Return what a server knows of clients, with free room, and what these keep."""
    theta = torch.tensor(points, dtype=torch.float64)
    free = torch.zeros(room, theta.shape[1], dtype=torch.float64)
    known = torch.tensor([*ids, *[-1] * room])
    return Server(free[0], torch.cat((theta, free)), known), Client(theta, torch.ones(len(theta), dtype=torch.int64))


def matrix(method: FedAMP, points: Any = POINTS) -> list[list[float]]:
    message, state = table(points)
    xi, own = method.shares(message, state, IDS)
    assert not xi[:, 3:].any() and not xi[:, :3].diagonal().any()
    return (xi[:, :3] + torch.diag(own)).tolist()


def heuristic(sigma: float, own: float, points: Any = POINTS) -> list[list[float]]:
    """HeurFedAMP's weights in a loop."""

    def cosine(k: int, j: int) -> float:
        inner = sum(x * y for x, y in zip(points[k], points[j], strict=True))
        return inner / math.hypot(*points[k]) / math.hypot(*points[j])

    rows = []
    for k in range(3):
        e = [math.exp(sigma * cosine(k, j)) if j != k else 0.0 for j in range(3)]
        rows.append([own if j == k else (1 - own) * e[j] / sum(e) for j in range(3)])
    return rows


def test_heurfedamp_weighs_by_cosines() -> None:
    result = matrix(amp(attention="cosine", sigma=2.0))
    for row, expected in zip(result, heuristic(2.0, 0.5), strict=True):
        assert row == close(expected, abs=1e-14)
    assert result[0] == close([0.5, 0.416009192567, 0.083990807433], abs=1e-10)
    assert result[1] == close([0.471337912051, 0.5, 0.028662087949], abs=1e-10)
    assert result[2] == close([0.384262391750, 0.115737608250, 0.5], abs=1e-10)


def test_fedamp_weighs_by_distances() -> None:
    result = matrix(amp(sigma=1.0, alpha=0.25))
    assert result[0] == close([0.798586167682, 0.167580011509, 0.033833820809], abs=1e-10)
    assert result[1] == close([0.167580011509, 0.822229437496, 0.010190550995], abs=1e-10)
    assert result[2] == close([0.033833820809, 0.010190550995, 0.955975628196], abs=1e-10)


@pytest.mark.parametrize("options", [{}, {"sigma": 1.0, "alpha": 9.0}, {"attention": "cosine"}, {"sigma": 1e-3}])
def test_shares_are_those_of_a_mean(options: dict[str, Any]) -> None:
    """Also where alpha (N - 1) > sigma, for which the formula gives a client a negative share of itself."""
    for row in matrix(amp(**options)):
        assert sum(row) == close(1.0) and min(row) >= 0.0


def test_cosines_may_be_of_steps_from_the_common_start() -> None:
    far = tuple((x + 100.0, y - 50.0) for x, y in POINTS)
    message, state = table(far)
    message = message._replace(theta=torch.tensor([100.0, -50.0], dtype=torch.float64))
    xi, _ = amp(attention="cosine", sigma=2.0, from_start=True).shares(message, state, IDS)
    expected = [[value * (k != j) for j, value in enumerate(row)] for k, row in enumerate(heuristic(2.0, 0.5))]
    assert numbers(xi[:, :3]) == close([value for row in expected for value in row], abs=1e-12)


def test_a_round_is_the_proximal_point_of_the_mixture() -> None:
    batch, method = quadratics(), amp(sigma=1.0, alpha=0.25, lam=0.5)
    message, state = table([[2.0], [1.0], [-1.0]], batch.ids)
    update, kept = method.client(message, state, batch, Noise(0, 1, batch.ids))
    mixture = (1.907937582354, 1.082812040848, -0.990749623203)
    exact = [(a * b + 2.0 * u) / (a + 2.0) for a, b, u in zip(A, B, mixture, strict=True)]
    assert numbers(update.theta) == close(exact, abs=1e-10) == numbers(kept.theta)
    assert exact == close([1.271958388236, 1.027604013616, -1.551444276979], abs=1e-10)
    begun = amp(1, 0.1, sigma=1.0, alpha=0.25, lam=0.5, begin="own")
    moved = numbers(begun.client(message, state, batch, Noise(0, 1, batch.ids))[0].theta)
    own = zip((2.0, 1.0, -1.0), A, B, mixture, strict=True)
    assert moved == close([w - 0.1 * (a * (w - b) + 2.0 * (w - u)) for w, a, b, u in own], abs=1e-10)


def test_without_temperature_and_with_an_equal_share_of_itself_all_mixtures_are_the_mean() -> None:
    for row in matrix(amp(attention="cosine", sigma=1e-300, own=1 / 3)):
        assert row == close([1 / 3] * 3, abs=1e-15)


def test_then_it_is_mtl() -> None:
    """With lambda_2 = 0 and lambda_1 = lambda / alpha; the steps begin at the client's own weights."""
    local, batch = descent(3, 0.1), quadratics()
    equal = FedAMP(Quadratic(), local, "cosine", 3, 1.0, 0.5, 1e-300, 1 / 3, begin="own")
    ours, theirs = rounds(equal, batch, 2.0), rounds(MTL(Quadratic(), local, lambda1=2.0), batch, 2.0)
    for _ in range(4):
        one, other = next(ours), next(theirs)
        centre = numbers(one.clients.theta.mean(0))
        assert centre == close(numbers(other.server.theta), abs=1e-12)


@pytest.mark.parametrize("attention", ["distance", "cosine"])
def test_without_a_pull_every_client_is_alone(attention: Any) -> None:
    local, plan, batch = LocalDescent(3, 4, 1e-2, "sgd"), FederationPlan(rounds=3, seed=3), by_hand(*SIZES)
    alone: Any = engine.run_rounds(LocalOnly(MODEL, local), batch, plan)
    result: Any = engine.run_rounds(FedAMP(MODEL, local, attention, lam=0.0, begin="own"), batch, plan)
    assert torch.equal(result.clients.theta, alone.clients.theta)


def test_a_client_that_is_all_its_own_is_pulled_to_its_last_weights() -> None:
    batch, method = quadratics(), amp(attention="cosine", own=1.0, lam=1.0)
    message, state = table([[2.0], [1.0], [-1.0]], batch.ids)
    update, _ = method.client(message, state, batch, Noise(0, 1, batch.ids))
    exact = [(a * b + w) / (a + 1.0) for a, b, w in zip(A, B, (2.0, 1.0, -1.0), strict=True)]
    assert numbers(update.theta) == close(exact, abs=1e-12)


def test_a_new_client_is_pulled_to_the_mean_of_all() -> None:
    batch = replace(quadratics((3.0,), (1.0,), (2,)), ids=(99,))
    for attention in ("distance", "cosine"):
        method = amp(attention=attention, lam=2.0, join_passes=2)
        last = next(rounds(method, quadratics(), 2.0))
        mean = float(last.server.models[:3].mean())
        assert personal(method, last, batch, fresh=True) == [close((3.0 + 2.0 * mean) / 5.0, abs=1e-12)]
        assert personal(method, last, quadratics()) == numbers(last.clients.theta)


def sent(values: dict[int, float], failed: tuple[int, ...] = ()) -> Update:
    ids, theta = torch.tensor([*values]), torch.tensor([[value] for value in values.values()], dtype=torch.float64)
    weight = torch.tensor([0.0 if client in failed else 1.0 for client in values], dtype=torch.float64)
    return Update(theta * weight.unsqueeze(1), ids, weight, weight, weight)


def held(server: Server) -> dict[int, float]:
    return {int(i): float(w) for i, w in zip(server.ids, server.models, strict=True) if i >= 0}


def test_the_server_keeps_the_last_weights_of_every_client_whatever_the_order_and_whoever_fails() -> None:
    method = amp()
    start = method.init_server(torch.Generator().manual_seed(0))
    one = method.server(start, sent({9: 1.0, 4: 2.0, 6: 3.0}), 5)
    other = method.server(start, sent({6: 3.0, 9: 1.0, 8: 7.0, 4: 2.0}, failed=(8,)), 5)
    assert held(one) == {4: 2.0, 6: 3.0, 9: 1.0} and one.ids.tolist() == other.ids.tolist() == [4, 6, 9, -1, -1]
    assert torch.equal(one.models, other.models)
    later = method.server(one, sent({1: 5.0, 6: 8.0, 9: 0.0}, failed=(9,)), 5)
    assert held(later) == {4: 2.0, 6: 8.0, 9: 1.0, 1: 5.0}


def test_a_message_from_a_client_that_names_another_counts_as_its_own() -> None:
    update = amp().registered(sent({1: 5.0, 6: 8.0}), torch.ones(2), (3, 4))
    assert update.ids.tolist() == [3, 4]


def test_more_clients_than_room_are_refused() -> None:
    start = amp().init_server(torch.Generator().manual_seed(0))
    with pytest.raises(StudyError, match=r"clients must be at least 6, .*, got 5 \(method.clients = 6\)"):
        amp().server(start, sent({1: 1.0}), 6)


def test_weights_that_others_receive_have_no_private_release_no_aggregate_and_no_certificate() -> None:
    last, batch = next(rounds(amp(), quadratics(), 2.0)), quadratics()
    with pytest.raises(PrivacyError, match="FedAMP has no private release: its clients send weights that other"):
        amp().to_release(last.server, last.update)
    with pytest.raises(StudyError, match="those of FedAMP send no steps"):
        amp().check_robust(AGGREGATIONS["median"])
    posterior = amp().personalise(last.server, last.clients, batch, Noise(0, 0, batch.ids))
    with pytest.raises(AssumptionError, match="FedAMP has no posterior over hypotheses"):
        amp().refine(posterior, batch, batch, Noise(0, 0, batch.ids))
