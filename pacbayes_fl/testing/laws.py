"""Laws that every method keeps, each a function of a federation after two rounds that raises where it is broken."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.federation import engine, federation_state, messages, personalisation
from pacbayes_fl.federation.federation_state import FederationState
from pacbayes_fl.federation.node import InMemory, Node
from pacbayes_fl.federation.remote_player import RemotePlayer, roster
from pacbayes_fl.federation.transport import Loopback
from pacbayes_fl.methods.base import AnyMethod
from pacbayes_fl.noise import Noise
from pacbayes_fl.tensors import AnyTree
from pacbayes_fl.testing.scene import (
    ARRANGEMENTS,
    Arrangement,
    Part,
    Scene,
    assert_close,
    bits,
    identified,
    numbers,
    require,
    unchanged,
)

Law = Callable[[Scene], None]
META: Final = torch.device("meta")


# how clients are called ------------------------------------------------------------------------------------------


@contextmanager
def _called_as(name: str) -> Iterator[None]:
    try:
        yield
    except AssertionError as error:
        error.add_note(f"clients were called {name}")
        raise


def round_keeps(scene: Scene, arrangements: Mapping[str, Arrangement] = ARRANGEMENTS) -> None:
    """Check that updates, states and the server's step do not depend on how clients are called: 1e-9, relative.

    Args:
        scene: a federation after two rounds.
        arrangements: the calls, by name.
    """
    s, k = scene, scene.batch.clients
    update, after = s.play(s.whole)
    require(tensors.finite(update).all(), "updates are not finite")
    server = s.method.server(s.server, s.method.reduce(update), k)
    for name, arrangement in arrangements.items():
        with _called_as(name):
            parts = arrangement(k)
            played = [s.play(part) for part in parts]
            for part, (part_update, part_after) in zip(parts, played, strict=True):
                assert_close(part_update, tensors.select(update, torch.tensor(part.positions)))
                assert_close(part_after, tensors.select(after, torch.tensor(part.positions)))
            if sum(len(part.positions) for part in parts) == k:
                joined = tensors.cat([s.method.reduce(part_update) for part_update, _ in played])
                same = s.method.server(s.server, joined, k)
                assert_close(identified(s.method, same), identified(s.method, server))


def _predicts_alike(scene: Scene, predict: Callable[[Part], object], arrangements: Mapping[str, Arrangement]) -> None:
    whole = predict(scene.whole)
    for name, arrangement in arrangements.items():
        with _called_as(name):
            for part in arrangement(scene.batch.clients):
                alone = predict(part)
                require((alone is None) == (whole is None), "some calls predict, and others do not")
                if whole is not None:
                    assert_close(alone, tensors.select(whole, torch.tensor(part.positions)))


def personalisation_keeps(
    scene: Scene, arrangements: Mapping[str, Arrangement] = ARRANGEMENTS, clients: AnyTree = None
) -> None:
    """Check that personal predictions and their densities do not depend on how clients are called: 1e-9, relative.

    Args:
        scene: a federation after two rounds.
        arrangements: the calls, by name.
        clients: other states [K, *] than the scene's, such as of clients some of whom never trained.
    """
    s, x = scene, scene.points
    states = s.clients if clients is None else clients

    def predict(part: Part) -> dict[str, Tensor]:
        index, rows = s.rows(part)
        posterior = s.method.personalise(s.message, tensors.select(states, index), rows, s.noise(rows.ids, 0))
        predictive = posterior.predict(x[index])
        said = numbers(predictive)
        classes = said["probs"].shape[-1] if "probs" in said else None
        first = x.flatten(2)[:, :, 0].double()
        targets = first if classes is None else torch.arange(x.shape[1]).expand(x.shape[:2]) % classes
        return said | {"log_prob": predictive.log_prob(targets[index])}

    _predicts_alike(s, predict, arrangements)


def global_model_keeps(scene: Scene, arrangements: Mapping[str, Arrangement] = ARRANGEMENTS) -> None:
    """Check that what the server itself predicts does not depend on how clients are called: 1e-9, relative.

    Args:
        scene: a federation after two rounds.
        arrangements: the calls, by name.
    """
    s = scene

    def predict(part: Part) -> dict[str, Tensor] | None:
        index, rows = s.rows(part)
        model = s.method.global_model(s.message, tensors.select(s.clients, index), rows, s.noise(rows.ids, 0))
        return None if model is None else numbers(model.predict(s.points[index]))

    _predicts_alike(s, predict, arrangements)


def _called(*names: str) -> Law:
    arrangements = {name: ARRANGEMENTS[name] for name in names}

    def law(scene: Scene) -> None:
        if scene.method.federated:
            round_keeps(scene, arrangements)
        personalisation_keeps(scene, arrangements)
        global_model_keeps(scene, arrangements)

    return law


# runs ------------------------------------------------------------------------------------------------------------


def seed(scene: Scene) -> None:
    """Check that the same seed gives the same run bit by bit.

    Args:
        scene: a federation after two rounds.
    """
    again = engine.run_rounds(scene.method, scene.batch, scene.plan)
    require(bits(again.server) == bits(scene.server), "two runs of one seed have different servers")
    require(bits(again.clients) == bits(scene.clients), "two runs of one seed have different clients")


def inputs(scene: Scene) -> None:
    """Check that no step changes what it is given.

    Args:
        scene: a federation after two rounds.
    """
    s = scene
    rows = {"x": s.batch.x, "y": s.batch.y, "mask": s.batch.mask}
    given = {"server": s.server, "clients": s.clients, "message": s.message, "rows": rows}
    before = bits(given)
    update, after = s.method.client(s.message, s.clients, s.batch, s.noise(s.batch.ids))
    given |= {"update": update, "after": after}
    before |= bits({"update": update, "after": after})
    s.method.report(s.method.server(s.server, s.method.reduce(update), s.batch.clients), update)
    s.method.personalise(s.message, s.clients, s.batch, s.noise(s.batch.ids, 0)).predict(s.batch.x)
    now = bits(given)
    changed = [name for name, content in before.items() if now[name] != content]
    require(not changed, f"changed in place: {', '.join(changed)}")


def leaves(scene: Scene) -> None:
    """Check that updates and states of clients begin with K, weigh something, and are finite from the start.

    Args:
        scene: a federation after two rounds.
    """
    s, k = scene, scene.batch.clients
    update, after = s.play(s.whole)
    for name, leaf in tensors.leaves({"update": update, "after": after}).items():
        require(leaf.shape[:1] == (k,), f"{name} must be [K={k}, *], got {list(leaf.shape)}")
    weight = tensors.leaves(update).get("weight")
    require(weight is not None, "an update must have a leaf weight [K]")
    require(weight is not None and weight.shape == (k,) and bool((weight > 0).all()), "weight must be [K], positive")
    start = federation_state.start(s.method, s.batch, s.plan)
    for tree in (s.server, s.clients, start.server, start.clients):
        for name, leaf in tensors.leaves(tree).items():
            require(leaf.isfinite().all(), f"{name} is not finite")
    shown = s.method.describe(s.clients)
    for name, leaf in shown.items():
        require(leaf.shape == (k,) and leaf.isfinite().all(), f"describe: {name} must be [K={k}] and finite")


def resume(scene: Scene) -> None:
    """Check that a run that goes on from what was saved is, bit by bit, one that was never interrupted.

    Args:
        scene: a federation after two rounds.
    """
    s = scene
    _, one = next(iter(engine.rounds(s.method, s.batch, s.plan)))
    start = federation_state.start(s.method, s.batch, s.plan)
    saved = {name: messages.flatten(tree) for name, tree in (("server", one.server), ("clients", one.clients))}
    back = FederationState(
        tensors.unleaves(start.server, saved["server"], exact=False),
        tensors.unleaves(start.clients, saved["clients"], exact=False),
        1,
        one.watch,
    )
    for tree, like in ((back.server, start.server), (back.clients, start.clients)):
        require(type(tree) is type(like), f"a state that was read back is a {type(tree).__name__}")
    ((_, again),) = engine.rounds(s.method, s.batch, s.plan, back)
    require(bits(again.server) == bits(s.server), "the server of a run that goes on is another")
    require(bits(again.clients) == bits(s.clients), "the clients of a run that goes on are others")


def remote(scene: Scene, clients: int = 3, cohort: int = 2) -> None:
    """Check that rounds over a network, client by client, are those of one device bit by bit.

    Args:
        scene: a federation after two rounds, some of whose clients play two rounds from the start, smallest first, as
            the engine does, so that sums have one order.
        clients: how many.
        cohort: how many of them in a round.
    """
    s, positions = scene, torch.arange(clients)
    method, batch = s.method, s.batch.select(s.batch.size.argsort(stable=True)[:clients])
    plan, memories = replace(s.plan, chunk=1, cohort=cohort), InMemory()
    node = Node(method, batch, memories)
    node.join("run", 0)
    player = RemotePlayer(method, roster(node.clients, batch), plan, None, Loopback([node]), "run")
    begun = federation_state.start(method, player.batch, plan)
    rounds = engine.rounds(method, batch, plan), engine.play(player, begun)
    first = federation_state.start(method, batch, plan).clients
    for (record, state), (told, there) in zip(*rounds, strict=True):
        require(bits(there.server) == bits(state.server), "the server of rounds over a network is another")
        for k, name in enumerate(batch.names):
            like, memory = tensors.select(first, positions[k : k + 1]), memories.load(name)
            kept = None if memory is None else memory.last
            own = like if kept is None else tensors.unleaves(like, kept.state)
            here = tensors.select(state.clients, positions[k : k + 1])
            require(bits(own) == bits(here), "what remote clients keep is something else")
        said, known = ({**one.values, "seconds": 0.0} for one in (told, record))
        require(replace(told, values=said) == replace(record, values=known), "the record of a round is another")


def failure(scene: Scene) -> None:
    """Check that a client whose rows are not finite is left out by name, and moves nobody else.

    A method whose clients do not look at their rows before they personalise has nothing to leave out.

    Args:
        scene: a federation after two rounds; in the third the second client fails.
    """
    s, at = scene, 1
    x = s.batch.x.clone()
    x[at] = torch.nan
    spoilt = s._replace(batch=replace(s.batch, x=x))
    begun = FederationState(s.server, s.clients, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ((record, state),) = engine.rounds(s.method, spoilt.batch, replace(s.plan, rounds=3), begun)
        looks = bits(spoilt.play(Part([at], unchanged))[0]) != bits(s.play(Part([at], unchanged))[0])
    dropped = (s.batch.names[at],) if looks else ()
    require(record.dropped == dropped, f"left out were {record.dropped}, not {dropped}")
    others = [k for k in range(s.batch.clients) if k != at]
    update, after = s.play(Part(others, ClientBatch.trim) if looks else s.whole)
    expected = s.method.server(s.server, s.method.reduce(update), s.batch.clients)
    assert_close(identified(s.method, state.server), identified(s.method, expected))
    own = after if looks else tensors.select(after, torch.tensor(others))
    assert_close(tensors.select(state.clients, torch.tensor(others)), own)


def newcomers(scene: Scene) -> None:
    """Check that clients that never trained predict, also one without rows, and do not depend on each other.

    Args:
        scene: a federation after two rounds.
    """
    s, new = scene, scene.strangers

    def joined(batch: ClientBatch) -> dict[str, Tensor]:
        posterior = personalisation.join(s.method, s.server, batch, s.plan.seed, s.batch, s.plan.noise)
        return numbers(posterior.predict(new.x if batch is new else new.x[1:]))

    result = joined(new)
    for name, leaf in result.items():
        require(leaf.shape[:2] == new.y.shape, f"{name} must be {list(new.y.shape)}, got {list(leaf.shape)}")
        require(leaf.isfinite().all(), f"{name} of a new client is not finite")
    require((result["probs" if "probs" in result else "variance"] > 0).all(), "a new client is certain")
    alone = joined(new.select(torch.tensor([1])).trim())
    assert_close(alone, tensors.select(result, torch.tensor([1])))


# devices ---------------------------------------------------------------------------------------------------------


def _tensors(values: Iterable[object]) -> Iterator[Tensor]:
    """Yield the tensors among the arguments of an operation, which are tensors, numbers and lists of these."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


class OneDevice(TorchDispatchMode):
    """Refuses operations on tensors of several devices, also those that torch allows: a scalar of the CPU is copied."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Look at the devices, and go on."""
        devices = {leaf.device.type for leaf in _tensors((*args, *(kwargs or {}).values()))}
        require(len(devices) < 2, f"{func} of tensors on {' and '.join(sorted(devices))}")
        return func(*args, **(kwargs or {}))


def host_bound(method: AnyMethod) -> str | None:
    """Say why a method, or the model that it was given, reads numbers by nature.

    Args:
        method: the algorithm.

    Returns:
        The reason; None where it runs on a device alone.
    """
    return method.host_bound or getattr(getattr(method, "model", None), "host_bound", None)


def on_meta(method: AnyMethod, batch: ClientBatch, seed: int) -> dict[str, object]:
    """Play a round, personalise and predict where tensors have shapes and no numbers, so that reading one fails.

    Args:
        method: the algorithm.
        batch: rows of clients.
        seed: of the run.

    Returns:
        All that came of it.
    """
    batch = replace(batch, x=batch.x.to(META), y=batch.y.to(META), mask=batch.mask.to(META))

    def noise(round: int) -> Noise:
        return Noise(seed, round, batch.ids, META, "generators")

    server = method.init_server(torch.Generator().manual_seed(seed))
    server = tensors.tree_map(lambda leaf: leaf.to(META), server)
    with OneDevice():  # type: ignore[no-untyped-call]
        message = method.broadcast(server)
        clients = method.init_clients(message, batch)
        update, clients = method.client(message, clients, batch, noise(1))
        deltas, reduced = method.client_deltas(message, update), method.reduce(update)
        server = method.server(server, reduced, batch.clients)
        message = method.broadcast(server)
        predicted = [method.personalise(message, clients, batch, noise(0)).predict(batch.x)]
        predicted.append(method.personalise_trained(message, clients, batch, noise(0)).predict(batch.x))
        whole = method.global_model(message, clients, batch, noise(0))
        predicted += [] if whole is None else [whole.predict(batch.x)]
        result = {"server": server, "clients": clients, "update": update, "deltas": deltas, "reduced": reduced}
        result |= {"report": dict(method.report(server, reduced)), "describe": dict(method.describe(clients))}
        return result | {"predicted": {str(i): numbers(one) for i, one in enumerate(predicted)}}


def device(scene: Scene) -> None:
    """Check that no step asks a device for a number, or leaves it; nothing is asked of a method that is host-bound.

    Args:
        scene: a federation, of which the shapes count.
    """
    if host_bound(scene.method) is not None:
        return
    for name, leaf in tensors.leaves(on_meta(scene.method, scene.batch, scene.plan.seed)).items():
        require(leaf.device.type == "meta", f"{name} is on {leaf.device}")


def _federated(law: Law) -> Law:
    def kept(scene: Scene) -> None:
        if scene.method.federated:
            law(scene)

    return kept


LAWS: Final[Mapping[str, Law]] = MappingProxyType(
    {
        "batch": _called("one by one", "in two calls", "without the others"),
        "permutation": _called("permuted"),
        "padding": _called("padded"),
        "seed": seed,
        "inputs": inputs,
        "leaves": leaves,
        "resume": _federated(resume),
        "remote": _federated(remote),
        "failure": _federated(failure),
        "newcomers": newcomers,
        "device": device,
    }
)
"""Every law by name; one is broken where it raises anything."""
