"""Rounds on one device: all clients of a chunk in one call of the method."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch, group_by_size, same_schema
from pacbayes_fl.errors import ClientError, NumericalError, StudyError, outside
from pacbayes_fl.federation import cohort
from pacbayes_fl.federation.private import Gathering, Room
from pacbayes_fl.methods.base import Method
from pacbayes_fl.models import program
from pacbayes_fl.models.base import WeightModel
from pacbayes_fl.noise import Engine, Noise
from pacbayes_fl.posteriors.base import Posterior
from pacbayes_fl.posteriors.family import check_families
from pacbayes_fl.results import RoundRecord

AnyMethod = Method[Any, Any, Any, Any]
_TIRES_AFTER = 3
_JOINED_AT = 32


@dataclass(frozen=True)
class FederationPlan:
    """How a federation runs.

    Args:
        rounds: T.
        cohort: clients drawn per round (c of PAC-PFL's Algorithm 1), all when None.
        seed: of every random draw.
        on_bad_client: "drop" leaves a client out of a round when its update or state is not finite; "stop" raises.
        min_clients: fewer good clients in a round change nothing and raise.
        chunk: numbers that the clients of one call may hold in the hot loop (see `Method.footprint`).
        waste: clients of one call differ in size by at most this factor.
        noise: engine of the clients' random streams.
        train: who makes a client's step in a round: the drawn "cohort", as PAC-PFL, BPFed and FedSI print it and public
            code does everywhere, or "all" clients, of whom the cohort's updates enter the server while the others keep
            what they have learned (Algorithms 1-3 of pFedBayes, sFedBayes and cFedBayes), at N / c times the work.
    """

    rounds: int = 100
    cohort: int | None = None
    seed: int = 0
    on_bad_client: Literal["drop", "stop"] = "drop"
    min_clients: int = 1
    chunk: int = 2**20
    waste: float = 1.1
    noise: Engine = "philox"
    train: Literal["cohort", "all"] = "cohort"

    def __post_init__(self) -> None:
        """Refuse numbers that mean nothing."""
        if self.rounds < 0 or self.min_clients < 1 or self.chunk < 1 or self.waste < 1:
            raise StudyError("rounds must be >= 0, min_clients and chunk >= 1, waste >= 1")
        if not 0 <= self.seed < 2**32:
            raise StudyError(f"seed must be in [0, 2**32), got {self.seed}")
        if self.cohort is not None and self.cohort < self.min_clients:
            raise StudyError(f"cohort must be at least min_clients={self.min_clients}, got {self.cohort}")
        if self.train not in ("cohort", "all"):
            raise StudyError(f"train must be 'cohort' or 'all', got {self.train!r}")


class FederationState(NamedTuple):
    """Everything that a later round depends on."""

    server: Any
    clients: Any
    round: int


def start(method: AnyMethod, batch: ClientBatch, plan: FederationPlan) -> FederationState:
    """Begin: the state before the first round.

    Args:
        method: the algorithm.
        batch: rows of all clients.
        plan: gives the seed.

    Returns:
        Round 0, on the batch's device.
    """
    server = method.init_server(torch.Generator().manual_seed(plan.seed))
    check_families(server)
    server = tensors.tree_map(lambda leaf: leaf.to(batch.x.device), server)
    return FederationState(server, method.init_clients(method.broadcast(server), batch), 0)


def _prepared(method: AnyMethod, batch: ClientBatch) -> ClientBatch:
    """Check a user's program before anything is trained; see `program.prepared`."""
    while hasattr(method, "inner"):  # a temperature or folds around it
        method = method.inner
    model = getattr(method, "model", None)
    return program.prepared(model, batch) if isinstance(model, WeightModel) else batch


def parts(method: AnyMethod, sizes: list[int], positions: list[int], plan: FederationPlan) -> list[list[int]]:
    """Cut clients into calls: alike in size, and small enough for the memory that `plan.chunk` grants.

    Args:
        method: says what a client costs.
        sizes: real rows of every client of the federation.
        positions: clients that take part.
        plan: gives chunk and waste.

    Returns:
        Positions by call, together all of them.
    """
    if not method.federated:
        return [positions]
    calls = []
    for group in group_by_size([sizes[k] for k in positions], plan.waste):
        largest = max(sizes[positions[i]] for i in group)
        step = max(1, plan.chunk // method.footprint(largest))
        calls += [[positions[i] for i in group[at : at + step]] for at in range(0, len(group), step)]
    return calls


class _Joining:
    """Updates of a round; where they add up, memory does not grow with the number of calls."""

    def __init__(self, method: AnyMethod) -> None:
        self._reduce, self._updates = method.reduce, list[Any]()

    def add(self, update: Any, good: Tensor) -> None:
        self._updates.append(self._reduce(tensors.where(good, update, tensors.tree_map(torch.zeros_like, update))))
        if len(self._updates) == _JOINED_AT:
            self._updates = [self._reduce(tensors.cat(self._updates))]

    def joined(self) -> Any:
        return tensors.cat(self._updates)


def rounds(
    method: AnyMethod,
    batch: ClientBatch,
    plan: FederationPlan,
    state: FederationState | None = None,
    room: Room | None = None,
) -> Iterator[tuple[RoundRecord, FederationState]]:
    """Run the rounds that are left, one at a time.

    Args:
        method: the algorithm.
        batch: training rows of all clients [K, N, *].
        plan: how to run.
        state: where to go on; the start when None.
        room: makes the rounds private (see `federation.private`), with cohorts of its own. Their records tell how many
            clients were expected, and of all numbers only those that follow from what was released.

    Yields:
        After each round its record and the state to go on from.

    Raises:
        ClientError: when fewer than `min_clients` were good; the last state that was yielded still holds.
        NumericalError: when a client fails and `on_bad_client` is "stop", or the server's state is not finite.
        PrivacyError: when the budget does not allow another round.
    """
    if plan.min_clients > batch.clients:
        raise StudyError(f"min_clients is {plan.min_clients}, and there are {batch.clients} clients")
    batch = _prepared(method, batch)
    state = start(method, batch, plan) if state is None else state
    sizes = [int(m) for m in batch.size.tolist()]
    some = (plan.cohort is not None if room is None else room.draws) and plan.train == "cohort"
    everyone = None if some else _calls(method, batch, sizes, list(range(batch.clients)), plan)
    failures, said = dict.fromkeys(batch.names, 0), set[str]()
    while state.round < plan.rounds:
        begun, t = time.perf_counter(), state.round + 1
        drawn = cohort.draw(plan.seed, t, batch.ids, plan.cohort) if room is None else room.draw(batch.ids, t)
        chosen = drawn.tolist()
        heard = {batch.names[k] for k in chosen}
        message = method.broadcast(state.server)
        clients = tensors.tree_map(torch.clone, state.clients)  # once a round: what was yielded before stays as it is
        joining: _Joining | Gathering = _Joining(method) if room is None else room.gather(method, message, t)
        flags = []
        members: list[str] = []
        for index, rows in everyone if everyone is not None else _calls(method, batch, sizes, chosen, plan):
            before = tensors.select(clients, index)
            noise = Noise(plan.seed, t, rows.ids, rows.x.device, plan.noise)
            update, after = method.client(message, before, rows, noise)
            good = tensors.finite({"update": update, "state": after})
            _hear(joining, update, good, [name in heard for name in rows.names])
            _write(clients, index, tensors.where(good, after, before))
            if room is None:
                flags.append(good)
                members += rows.names
        joined = joining.joined()
        server = method.server(state.server, joined, batch.clients)
        values = method.report(server, joined)
        host = _read(flags, server, values)  # the one look at the device in a round
        found, (finite, *scalars) = host[: len(members)], host[len(members) :]
        dropped = tuple(name for name, good in zip(members, found, strict=True) if not good)
        present = len(heard.difference(dropped))
        if room is None:
            _judge(plan, t, dropped, present, len(heard))
            _remember(failures, t, dropped, members)
        if not finite:
            raise NumericalError("the server's state is not finite", round=t, hint="lower the learning rate")
        state = FederationState(server, clients, t)
        numbers = dict(zip(values, scalars, strict=True))
        if room is not None:
            yield room.record(t, numbers), state
            continue
        numbers["seconds"] = time.perf_counter() - begun
        remark = method.remark(numbers)
        if remark is not None and remark not in said:
            said.add(remark)
            warnings.warn(f"{remark} (round {t})", stacklevel=outside())
        yield RoundRecord(t, present, dropped, numbers), state


def _calls(
    method: AnyMethod, batch: ClientBatch, sizes: list[int], positions: list[int], plan: FederationPlan
) -> list[tuple[Tensor, ClientBatch]]:
    calls = []
    for part in parts(method, sizes, positions, plan):
        index = torch.tensor(part)
        rows = batch.select(index).trim(max(1, max(sizes[k] for k in part)))
        calls.append((index.to(batch.x.device), rows))
    return calls


def _hear(joining: _Joining | Gathering, update: Any, good: Tensor, heard: list[bool]) -> None:
    """Let the cohort's clients of a call join; what the others did stays with them."""
    if all(heard):
        joining.add(update, good)
    elif any(heard):
        index = torch.tensor(heard).nonzero().squeeze(1).to(good.device)
        joining.add(tensors.select(update, index), good[index])


def _write(clients: Any, index: Tensor, part: Any) -> None:
    """Put the clients of a call into the state of all, in place."""
    tensors.tree_map(lambda leaf, new: leaf.index_copy_(0, index, new), clients, part)


def _read(flags: list[Tensor], server: Any, values: Any) -> list[float]:
    sound = [leaf.isfinite().all() for leaf in tensors.leaves(server).values()]
    whole = torch.stack(sound).all() if sound else torch.ones((), dtype=torch.bool, device=flags[0].device)
    scalars = [value.double().view(1) for value in values.values()]
    host: list[float] = torch.cat([*(flag.double() for flag in flags), whole.double().view(1), *scalars]).tolist()
    return host


def _judge(plan: FederationPlan, t: int, dropped: tuple[str, ...], present: int, drawn: int) -> None:
    """Raise when the round must not count."""
    if dropped and plan.on_bad_client == "stop":
        raise NumericalError(
            "its update is not finite", client=dropped[0], round=t, hint="on_bad_client = 'drop' goes on"
        )
    if present < plan.min_clients:
        raise ClientError(
            f"{present} of {drawn} clients gave a finite update, {plan.min_clients} are needed",
            round=t,
            client=dropped[0] if dropped else None,
            hint="nothing was changed; the last round's state holds",
        )


def _remember(failures: dict[str, int], t: int, dropped: tuple[str, ...], members: list[str]) -> None:
    """Count how often in a row each client has failed, and warn of the third time."""
    for name in members:
        failures[name] = failures[name] + 1 if name in dropped else 0
        if failures[name] == _TIRES_AFTER:
            warnings.warn(f"client {name!r} was dropped {_TIRES_AFTER} times in a row (round {t})", stacklevel=3)


def run_rounds(
    method: AnyMethod,
    batch: ClientBatch,
    plan: FederationPlan,
    on_round: Callable[[RoundRecord], None] | None = None,
) -> FederationState:
    """Run a federation from its start to its last round.

    Args:
        method: the algorithm.
        batch: training rows of all clients [K, N, *].
        plan: how to run.
        on_round: called with the record of every round.

    Returns:
        The state after the last round.

    Raises:
        ClientError, NumericalError: as `rounds`.
    """
    last = start(method, batch, plan)
    for record, state in rounds(method, batch, plan):
        last = state
        if on_round is not None:
            on_round(record)
    return last


def personalise(
    method: AnyMethod, state: FederationState, batch: ClientBatch, plan: FederationPlan
) -> Iterator[tuple[Tensor, Posterior]]:
    """Give every client of a federation its own posterior, a few at a time.

    Args:
        method: the algorithm.
        state: after the last round.
        batch: the clients' rows, in the order of `state.clients`.
        plan: gives chunk, waste and seed.

    Yields:
        Positions [k] of the clients and their posterior.
    """
    for index, call in personal_calls(method, state, batch, plan):
        yield index, method.personalise(*call)


def global_models(
    method: AnyMethod, state: FederationState, batch: ClientBatch, plan: FederationPlan
) -> Iterator[tuple[Tensor, Posterior]]:
    """Give what the server itself would predict for every client, a few at a time.

    Args:
        method: the algorithm.
        state: after some round.
        batch: the clients' rows, in the order of `state.clients`.
        plan: gives chunk, waste and seed.

    Yields:
        Positions [k] of the clients and the global model's posterior for them; nothing where there is no global model.
    """
    for index, call in personal_calls(method, state, batch, plan):
        found = method.global_model(*call)
        if found is None:
            return
        yield index, found


def personal_calls(
    method: AnyMethod,
    state: FederationState,
    batch: ClientBatch,
    plan: FederationPlan,
    more: Sequence[int] | None = None,
) -> Iterator[tuple[Tensor, tuple[Any, Any, ClientBatch, Noise]]]:
    """Cut clients into the calls that come after the rounds, such as `Method.personalise`.

    Args:
        method: the algorithm.
        state: after some round.
        batch: the clients' rows, in the order of `state.clients`.
        plan: gives chunk, waste and seed.
        more: rows of every client that a call needs memory for beside those of the batch.

    Yields:
        Positions [k] of the clients, and the arguments: message, state, rows and noise of round 0.
    """
    batch = _prepared(method, batch)
    sizes = [int(m) for m in batch.size.tolist()]
    message = method.broadcast(state.server)
    room = sizes if more is None else [own + other for own, other in zip(sizes, more, strict=True)]
    for index, rows in _calls(method, batch, room, list(range(batch.clients)), plan):
        noise = Noise(plan.seed, 0, rows.ids, rows.x.device, plan.noise)
        own = rows if more is None else rows.trim()
        yield index, (message, tensors.select(state.clients, index), own, noise)


def join(
    method: AnyMethod,
    server: Any,
    batch: ClientBatch,
    seed: int,
    like: ClientBatch | None = None,
    engine: Engine = "philox",
) -> Posterior:
    """Let clients personalise that never trained; the federation learns nothing from them.

    Args:
        method: the algorithm.
        server: its state after the last round.
        batch: the new clients' rows [K, N, *]; a client without rows gets the prior's prediction.
        seed: of the personalisation's random draws.
        like: a batch of the federation whose columns the new ones must match.
        engine: of the personalisation's random draws, as in the federation's plan.

    Returns:
        The posterior of the K clients.

    Raises:
        DataError: when the columns differ.
    """
    if like is not None:
        same_schema(like, batch)
    batch = _prepared(method, batch)
    message = method.broadcast(server)
    noise = Noise(seed, 0, batch.ids, batch.x.device, engine)
    return method.personalise(message, method.init_clients(message, batch), batch, noise)
