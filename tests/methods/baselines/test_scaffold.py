"""SCAFFOLD as worked out on quadratics, its limit, the true optimum, and equal clients, where it is FedAvg."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pacbayes_fl.errors import StudyError
from pacbayes_fl.inference.map_estimate import LocalDescent
from pacbayes_fl.methods.baselines.fedavg import FedAvg
from pacbayes_fl.methods.baselines.scaffold import Pair, Scaffold, Server
from pacbayes_fl.noise import Noise
from pacbayes_fl.server.aggregations import AGGREGATIONS
from tests.methods.by_hand import MODEL
from tests.worlds import START, A, B, Quadratic, Round, after, descent, numbers, quadratics, rounds


def start(theta: float = START) -> Server:
    return Server(Pair(*torch.tensor([[theta], [0.0]], dtype=torch.float64)))


def played(count: int, method: Scaffold) -> Round:
    game = rounds(method, quadratics(), server=start())
    return [next(game) for _ in range(count)][-1]


def test_rounds_are_as_worked_out() -> None:
    method = Scaffold(Quadratic(), descent(5, 0.05))
    first, second = played(1, method), played(2, method)
    assert numbers(first.update.pair.theta) == pytest.approx([1.547561875, 1.32768, 0.051635742188], abs=1e-12)
    assert numbers(first.clients.control) == pytest.approx([1.8097525, 2.68928, 7.79345703125], abs=1e-11)
    assert numbers(first.server.pair.theta) == pytest.approx([0.975625872396], abs=1e-12)
    assert numbers(first.server.pair.control) == pytest.approx([4.097496510417], abs=1e-11)
    assert numbers(second.server.pair.theta) == pytest.approx([0.413014096072], abs=1e-12)
    assert numbers(second.server.pair.control) == pytest.approx([2.250447105296], abs=1e-11)


def test_it_goes_to_the_optimum_where_fedavg_does_not() -> None:
    optimum = sum(a * b for a, b in zip(A, B, strict=True)) / sum(A)
    last = played(90, Scaffold(Quadratic(), descent(5, 0.05)))
    assert numbers(last.server.pair.theta) == pytest.approx([optimum], abs=1e-10)
    plain = after(90, FedAvg(Quadratic(), descent(5, 0.05), "uniform"), quadratics(), START)
    assert plain.server.theta.item() == pytest.approx(-0.217851880552, abs=1e-8)


def test_equal_clients_are_fedavg() -> None:
    batch, method = quadratics((2.0,) * 3, (1.0,) * 3, (1, 1, 1)), Scaffold(Quadratic(), descent(5, 0.1))
    game = rounds(method, batch, server=start())
    mine = [next(game) for _ in range(3)][-1].server.pair.theta
    plain = after(3, FedAvg(Quadratic(), descent(5, 0.1), "uniform"), batch, START).server.theta
    assert numbers(mine) == pytest.approx(numbers(plain), abs=1e-14)


def test_the_server_s_control_is_the_mean_of_all_clients_also_of_absent_ones() -> None:
    method, batch = Scaffold(Quadratic(), descent(5, 0.05)), quadratics()
    server, kept = start(), torch.zeros(3, 1, dtype=torch.float64)
    for t, cohort in enumerate(([0, 1], [1, 2], [0], [0, 1, 2]), 1):
        at, some = torch.tensor(cohort), batch.select(torch.tensor(cohort))
        state = method.init_clients(server, some)._replace(control=kept[at])
        update, after_it = method.client(method.broadcast(server), state, some, Noise(0, t, some.ids))
        server = method.server(server, method.reduce(update), 3)
        kept[at] = after_it.control
        assert numbers(server.pair.control) == pytest.approx(numbers(kept.mean(0)), abs=1e-12)


def test_a_released_mean_moves_both() -> None:
    method = Scaffold(Quadratic(), descent(5, 0.05))
    mean = Pair(*(torch.tensor([[value]], dtype=torch.float64) for value in (0.25, -3.0)))
    after_it = method.server(start(), method.from_release(start(), mean, 2.0), 4)
    assert numbers(after_it.pair.theta) == [START + 0.25] and numbers(after_it.pair.control) == [-1.5]


def test_a_client_without_rows_keeps_its_control() -> None:
    pair: list[tuple[Tensor, Tensor]] = [(torch.ones(1, 1).double(), torch.ones(1).double())]
    empty: list[tuple[Tensor, Tensor]] = [(torch.ones(0, 1).double(), torch.ones(0).double())]
    batch = type(quadratics()).pad(pair + empty, allow_empty=True)
    method = Scaffold(Quadratic(), LocalDescent(None, 50, 0.1, "sgd", epochs=2))
    state = method.init_clients(start(), batch)._replace(control=torch.tensor([[0.0], [0.7]], dtype=torch.float64))
    update, after_it = method.client(start(), state, batch, Noise(0, 1, batch.ids))
    assert after_it.control[1].item() == 0.7 and update.weight.tolist() == [1.0, 0.0]


def test_rules_that_bound_steps_are_refused_as_control_variates_stay() -> None:
    with pytest.raises(StudyError, match="'clipped' joins clients' steps, and those of SCAFFOLD send control variates"):
        Scaffold(MODEL).check_robust(AGGREGATIONS["clipped"])


@pytest.mark.parametrize("local", [LocalDescent(), LocalDescent(optimiser="sgd", momentum=0.5)])
def test_other_optimisers_are_refused(local: LocalDescent) -> None:
    with pytest.raises(StudyError, match="SCAFFOLD corrects plain descent, got optimiser = "):
        Scaffold(MODEL, local)
