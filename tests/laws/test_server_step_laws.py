"""Laws of the server's options: every method whose server averages steps as its optimiser says, and no other asks."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from typing import Any, final

import pytest
import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.inference.map_estimate import Descended, fit
from pacbayes_fl.methods import METHODS
from pacbayes_fl.methods.base import AnyMethod, Method
from pacbayes_fl.methods.baselines.averaging import Server, Update, WeightAveraging
from pacbayes_fl.noise import Noise
from pacbayes_fl.options import options_of
from pacbayes_fl.server.step import ServerStep
from pacbayes_fl.testing.scene import federation
from tests.laws.cases import from_recipe, network, rows_for

WITHOUT = {
    "pac-pfl": "Stein's direction and Adam",
    "pac-pfl-bnn": "Stein's direction and Adam",
    "pfedgp": "Stein's direction and Adam",
    "fedsi": "variances are 0 where nobody is uncertain",
    "fedsi-fac": "variances are 0 where nobody is uncertain",
}
"""Methods whose clients send steps and whose servers have no optimiser to choose, and what these do instead."""


def sends_steps(name: str) -> bool:
    return METHODS[name].method.client_deltas is not Method.client_deltas


STEPS: dict[str, dict[str, Any]] = {
    "momentum": {"server_rate": 0.5, "server_momentum": 0.8},
    "adagrad": {"server": "adagrad"},
    "yogi": {"server": "yogi", "server_rate": 0.3},
    "adam": {"server": "adam", "server_beta1": 0.7, "server_tau": 0.1},
}
AVERAGING = [name for name in METHODS if sends_steps(name) and name not in WITHOUT]


def by_hand(step: ServerStep, theta: Tensor, mean: Tensor, kept: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Step number by number; a leaf that the mean has left where it was stays."""
    result = []
    for at, to, m, v in zip(*(leaf.flatten().tolist() for leaf in (theta, mean, *kept)), strict=True):
        d = to - at
        if step.optimiser == "sgd":
            m = step.momentum * m + d
            result.append((at + step.eta * m, m, v))
            continue
        m = step.beta1 * m + (1 - step.beta1) * d
        if step.optimiser == "adagrad":
            v += d * d
        elif step.optimiser == "yogi":
            v -= (1 - step.beta2) * d * d * ((v > d * d) - (v < d * d))
        else:
            v = step.beta2 * v + (1 - step.beta2) * d * d
        result.append((at + step.eta * m / (v**0.5 + step.tau), m, v))
    return tuple(torch.tensor(column, dtype=theta.dtype).view(theta.shape) for column in zip(*result, strict=True))


def steps_by_hand(plain: AnyMethod, stepped: Any, update: Any, start: Any) -> None:
    """Play two rounds of the server: what its optimiser remembers steps by hand along the way of the plain server.

    The rest, such as a control variate, goes where the plain server takes it.
    """
    generator = torch.Generator().manual_seed(0)
    state, kept = _in(stepped.init_server(generator), start), {}
    remembered = sum(leaf.numel() for leaf in tensors.leaves(state.moments.first).values())
    for _ in range(2):
        mean = tensors.leaves(_without(plain.server(_without(state), update, 4)))
        before, rest = tensors.leaves(_without(state)), []
        state = stepped.server(state, update, 4)
        for name, leaf in tensors.leaves(_without(state)).items():
            if not leaf.is_floating_point():
                assert torch.equal(leaf, mean[name])
                continue
            memory = kept.get(name, (torch.zeros_like(leaf), torch.full_like(leaf, stepped.step.tau**2)))
            expected, *memory = by_hand(stepped.step, before[name], mean[name], memory)
            kept[name] = (memory[0], memory[1])
            by_plain = ~torch.isclose(leaf, expected, rtol=1e-9, atol=1e-12)
            assert torch.equal(leaf[by_plain], mean[name][by_plain]), f"{name} does not step"
            rest.append((name, int(by_plain.sum()), leaf.numel()))
        followed, whole = sum(count for _, count, _ in rest), sum(size for *_, size in rest)
        assert followed <= whole - remembered, f"only some step, though all are remembered: {rest}"


def _without(state: Any) -> Any:
    return state._replace(moments=type(state)._field_defaults["moments"])


def _in(state: Any, start: Any) -> Any:
    return start._replace(moments=state.moments)


@cache
def played(name: str) -> tuple[AnyMethod, Any, Any]:
    """A method with the plain step, its server's state, and what its clients send."""
    batch = rows_for(name)
    method = from_recipe(METHODS[name], 1, {"start": "random", "threshold": 0.0})
    state = method.init_server(torch.Generator().manual_seed(0))
    message = method.broadcast(state)
    update, _ = method.client(message, method.init_clients(message, batch), batch, Noise(3, 1, batch.ids))
    return method, state, update


@pytest.mark.parametrize("name", METHODS)
def test_every_method_that_averages_has_the_options_of_a_server(name: str) -> None:
    own = {one for one in options_of(METHODS[name].options) if one.startswith("server")}
    step = {"server" if field.name == "optimiser" else f"server_{field.name}" for field in fields(ServerStep)}
    assert own == (step if name in AVERAGING else set())
    assert sends_steps(name) or name not in WITHOUT


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("name", AVERAGING)
def test_a_server_steps_along_the_way_to_what_it_would_take(name: str, step: str) -> None:
    plain, start, update = played(name)
    stepped = from_recipe(METHODS[name], 1, {"start": "random", "threshold": 0.0, **STEPS[step]})
    steps_by_hand(plain, stepped, update, start)


@pytest.mark.parametrize("name", AVERAGING)
def test_what_an_optimiser_remembers_is_not_sent(name: str) -> None:
    method = from_recipe(METHODS[name], 1, STEPS["adam"])
    server = method.init_server(torch.Generator().manual_seed(0))
    assert any(leaf.startswith("moments.") for leaf in tensors.leaves(server))
    assert not any(leaf.startswith("moments.") for leaf in tensors.leaves(method.broadcast(server)))


@dataclass(frozen=True)
class Descending(WeightAveraging):
    """A method of a few lines, for servers that are wrong."""

    def descend(self, theta: Tensor, batch: ClientBatch, noise: Noise, passes: int = 1) -> Descended:
        return fit(self.model, self.local, theta, batch, noise, passes)


@final
@dataclass(frozen=True)
class Deaf(Descending):
    """Takes the mean whatever the options say."""

    def server(self, server: Server, update: Update, n_clients: int) -> Server:
        return Server(tensors.weighted_mean(update.theta, update.weight), server.moments)


@final
@dataclass(frozen=True)
class Forgetful(Descending):
    """Remembers nothing of the rounds before."""

    def server(self, server: Server, update: Update, n_clients: int) -> Server:
        theta, _ = self.step(
            server.theta, tensors.weighted_mean(update.theta, update.weight), self.step.start(server.theta)
        )
        return Server(theta, server.moments)


@pytest.mark.parametrize("method", [Deaf, Forgetful])
@pytest.mark.parametrize("step", [ServerStep(rate=0.5, momentum=0.8), ServerStep("adam")], ids=["momentum", "adam"])
def test_a_server_that_does_not_step_is_found(method: Any, step: ServerStep) -> None:
    _, start, update = played("fedavg")
    steps_by_hand(Descending(network(1)), Descending(network(1), step=step), update, start)
    with pytest.raises(AssertionError, match="step"):
        steps_by_hand(Descending(network(1)), method(network(1), step=step), update, start)


@pytest.mark.parametrize("name", ["cfedbayes", "ifca"])
@pytest.mark.parametrize("step", ["momentum", "adam"])
def test_a_cluster_without_members_stays_and_keeps_what_it_remembers(name: str, step: str) -> None:
    _, start, update = played(name)
    method = from_recipe(METHODS[name], 1, {"start": "random", **STEPS[step]})
    state = _in(method.init_server(torch.Generator().manual_seed(0)), start)
    both = method.server(state, update._replace(cluster=torch.arange(len(update.weight)) % 2), 4)
    later = method.server(both, update._replace(cluster=torch.ones_like(update.cluster)), 4)
    for old, new in zip(tensors.leaves(both).values(), tensors.leaves(later).values(), strict=True):
        if old.dim():
            assert torch.equal(old[0], new[0])
            assert not old[1].any() or not torch.equal(old[1], new[1])


@pytest.mark.parametrize("name", ["pfedbayes", "sfedbayes", "cfedbayes", "bpfed"])
def test_a_variance_stays_positive_however_long_the_step_is(name: str) -> None:
    _, start, update = played(name)
    for aggregation in ("tracked", "moments"):
        options = {"server": "adam", "server_rate": 1e6, "aggregation": aggregation, "start": "random"}
        method = from_recipe(METHODS[name], 1, options)
        if aggregation == "moments":
            message, batch = method.broadcast(start), federation(1)
            update, _ = method.client(message, method.init_clients(message, batch), batch, Noise(3, 1, batch.ids))
        after = method.server(_in(method.init_server(torch.Generator().manual_seed(0)), start), update, 4)
        old, new = ((w.slab if name == "sfedbayes" else w).scale for w in (start.w, after.w))
        assert bool((new > 0).all()) and bool(new.isfinite().all()) and not torch.equal(old, new)
